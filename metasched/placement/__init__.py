"""Who runs -> which nodes: k nodes x g GPUs of one type for each job, gangs whole or not at all.

What is kept, and in which order nodes are given away:

1. What cannot be taken away stays: pinned jobs, the memory (and GPUs) of suspended ones.
2. A granted job that runs on an amount that fits its grant stays where it is; so does one that is queued on its nodes.
3. The other grants follow in their order: fewest nodes first, then the nodes of the previous run, then the fewest
   racks, then best fit, then node name. Where the full amount does not fit, fewer GPUs down to ``at_least``. Where the
   cluster allows it, an amount that has no even place is spread unevenly.
4. A grant that still has no place may displace kept jobs: first those after it, then, if each finds another place at
   once, those before it. So a later grant never costs an earlier one its place, and nothing moves without need.
5. The fallback takes what is left, in order.

Two jobs on the same GPUs are placed as one that needs the CPUs and memory of both: they stay, move and wait together,
but where there is no room for both, the host goes alone. A place that the policy prescribes is taken as it is.

The GPUs of running jobs without a grant, and of jobs that Slurm is ending, count as free: a successor queues on them.
"""

from metasched.placement.explanations import closing
from metasched.placement.placer import Placements, place

__all__ = ["Placements", "closing", "place"]
