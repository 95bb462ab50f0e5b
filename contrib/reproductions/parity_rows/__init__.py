"""The rows of the parity table, one module for each artifact; ``row.py`` has their form."""
