"""The import of past jobs from Slurm's accounting into the store."""
