"""The rows of the parity table, one module for each artifact; see ``row.py``."""
