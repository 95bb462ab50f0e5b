"""The web page: what the daemon publishes and the store keeps, shown to people. Reads only."""
