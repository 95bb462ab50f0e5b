"""The demo: real training jobs on a real, private Slurm cluster on this host, scheduled by the daemon."""
