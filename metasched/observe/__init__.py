"""What Slurm lists, and what the store remembers of it, as a snapshot.

Slurm is the truth for what runs, the store for history. Every step is repeatable: the daemon may be killed between any
two lines, and the next poll goes on from what it finds.
"""
