"""Leaked GPUs: those that Slurm counts as allocated although no job that it lists holds them. Pure.

A job that slurmctld starts within seconds of its own restart may fail, and its GPUs then stay allocated for ever
("dealloc of node bad node_offset" in slurmctld's log, Slurm 22.05). Slurm starts nothing on these GPUs until it is
reconfigured; neither draining nor resuming the node helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from metasched.core.reuse import Latest
from metasched.slurm.client import JobState, SlurmJob, SlurmNode

LEAK_SECONDS = 20.0
"""Time for which Slurm must count too many GPUs: jobs and nodes are listed at two instants."""
CURE = "scontrol reconfigure"
"""The administrator's command after which Slurm counts the GPUs of its jobs again."""
_HOLDING = frozenset({JobState.RUNNING, JobState.SUSPENDED})


def excess_allocations(nodes: Sequence[SlurmNode], listed: Sequence[SlurmJob]) -> Mapping[str, int | None]:
    """Return the GPUs that Slurm counts as allocated beyond those of the listed jobs, by node; a job may just start.

    Nodes with shards, and those of which Slurm tells no count, are left out. None stands for a node of a completing
    job, whose GPUs Slurm does not list.

    Args:
        nodes: every node that Slurm lists.
        listed: every job that Slurm lists.
    """
    return _excess(nodes, *_held(listed))


def _held(listed: Sequence[SlurmJob]) -> tuple[Mapping[str, int], frozenset[str]]:
    """Return the GPUs that the listed jobs hold, by node, and the names of the nodes of completing jobs."""
    held: Counter[str] = Counter()
    unsettled: set[str] = set()
    for job in listed:
        if not job.allocated:
            continue
        if job.state in _HOLDING:
            held.update(job.allocated)
        elif job.state is JobState.COMPLETING:
            unsettled.update(job.allocated)
    return held, frozenset(unsettled)


def _excess(nodes: Sequence[SlurmNode], held: Mapping[str, int], unsettled: frozenset[str]) -> Mapping[str, int | None]:
    return {
        node.name: None if node.name in unsettled else max(node.gpus_allocated - held.get(node.name, 0), 0)
        for node in nodes
        if node.gpus_allocated is not None and not node.shards_per_gpu
    }


class LeakedGpus:
    """The GPUs that Slurm has counted as allocated without a job in every poll of the last ``LEAK_SECONDS``.

    Args:
        reuses: whether the GPUs that jobs hold are counted again only where another list of jobs is given.
    """

    def __init__(self, *, reuses: bool = True) -> None:
        self._held = Latest[tuple[Mapping[str, int], frozenset[str]]](reuses=reuses)
        self._excess: dict[str, tuple[float, int]] = {}  # by node: since when, and the fewest GPUs since then

    def update(self, nodes: Sequence[SlurmNode], listed: Sequence[SlurmJob], now: float) -> Mapping[str, int]:
        """Return the number of leaked GPUs by node; nodes without one are missing.

        Args:
            nodes: every node that Slurm lists.
            listed: every job that Slurm lists.
            now: unix seconds.
        """
        earlier, self._excess = self._excess, {}
        for name, excess in _excess(nodes, *self._held.of(lambda: _held(listed), listed)).items():
            since, fewest = earlier.get(name, (now, excess))
            if excess is None:
                excess = fewest if name in earlier else None  # noqa: PLW2901  the node stays as it was
            if excess and fewest:
                self._excess[name] = min(since, now), min(fewest, excess)
        return {name: gpus for name, (since, gpus) in self._excess.items() if now - since >= LEAK_SECONDS}
