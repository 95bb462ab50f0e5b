"""The read-only step of a poll: Slurm's jobs, nodes, reservations and associations as records. Writes nothing."""
