"""The real edge: clients of Slurm, parsers, tags."""
