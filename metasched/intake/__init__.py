"""New jobs of metasched: recognised, recorded, stamped and held."""
