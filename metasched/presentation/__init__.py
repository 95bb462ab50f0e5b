"""Records in words and numbers for people: shared by the command line and the web page. Pure."""
