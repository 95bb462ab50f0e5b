"""Past jobs of Slurm's accounting, imported into the store."""
