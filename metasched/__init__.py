"""A Slurm meta-scheduler for deep-learning training."""
