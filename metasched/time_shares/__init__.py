"""The base of policies that give out shares of time, and the round mechanism that realises them. Pure."""
