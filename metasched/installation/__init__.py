"""Checks of an installation for its administrator, with fixes, and a first configuration file."""
