"""Records in words and numbers for people, and which job a person asks for: for command line, web page and API."""
