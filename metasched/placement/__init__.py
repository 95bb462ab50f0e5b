"""From grants to nodes: k nodes x g GPUs of one type for each job, gangs whole or not at all. Pure.

    assign what cannot be taken away: pinned jobs, and the memory (and GPUs) of suspended jobs
    assign granted jobs their present placements, if those satisfy the grants: running jobs, and jobs queued on nodes
    for each other grant, most important first:
        search free nodes: fewest nodes, then the nodes of the previous run, then the fewest racks, then best fit,
            then node name; for the full amount first, then for fewer GPUs down to ``at_least``
        where no nodes are found: preempt placed jobs (``preemption.py``), first less important jobs, then more
            important ones, if each of these finds other nodes at once
    for each grant that has no nodes: search free nodes of its other types
    for each fallback, in order: search free nodes, and then those of its other types
    for each running job on more nodes than it needs, whose grant allows it: move it to fewer free nodes, if that pays

A later grant never costs an earlier one its placement, and no job moves without need, or such a gain. Where the
cluster allows it, an amount that has no even placement is spread unevenly. A placement that the policy prescribes is
used unchanged.

Two jobs that are to share GPUs, a *host* and its *guest*, are placed as one job that needs the CPUs and memory of both.
Where no nodes hold both, the host is placed alone.

The GPUs of running jobs without a grant, and of stopping jobs, count as free: a successor queues on them.
"""

from metasched.placement.explanations import closing
from metasched.placement.placer import Placements, place

__all__ = ["Placements", "closing", "place"]
