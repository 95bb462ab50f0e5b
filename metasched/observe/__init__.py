"""What Slurm shows and what the store remembers -> the snapshot, with new jobs taken in on the way.

Slurm is the truth for what runs, the store for history. Every step here is repeatable: the daemon may be killed between
any two lines, and the next poll goes on from what it finds.
"""

from metasched.reconcile.poll import Observation, Reconciler
from metasched.reconcile.seen import NOT_STARTED, PUT_OFF, SeenJob

__all__ = ["NOT_STARTED", "PUT_OFF", "Observation", "Reconciler", "SeenJob"]
