"""GPU shards: which GPU of a node each job has a shard of, and which GPU Slurm assigns to the next job. Pure.

Slurm cannot be told which GPU to assign. It assigns the first GPU of a node that has enough free shards, in the order
of the GPUs' indices, whether the GPU is in use already or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class GpuShards:
    """The GPU shards of a cluster, as Slurm shows them at one poll.

    Attributes:
        per_gpu: shards of each GPU, an even number; each of two jobs on a GPU has half of them.
        free: by node, the free shards of each of its GPUs, by the GPUs' indices.
        held: by uid of metasched's jobs, by node, the index of the GPU that the job has a half of.
        unsettled: names of nodes where jobs are giving GPUs back: Slurm does not tell which GPUs.
        overlapping: uids of metasched's jobs that have a half of a GPU which another job has whole.
        assigns_half_free: whether Slurm counts a GPU as free as soon as the first of two jobs on it has ended, and
            assigns it to the next job that requests whole GPUs (observed in 22.05, corrected in 23.02). Slurm's count
            of shards remains right.
    """

    per_gpu: int
    free: Mapping[str, tuple[int, ...]]
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()
    overlapping: frozenset[str] = frozenset()
    assigns_half_free: bool = False

    @property
    def half(self) -> int:
        """The number of shards that each of two jobs on a GPU has."""
        return self.per_gpu // 2

    def next_half(self, node: str) -> int | None:
        """The index of the GPU of which Slurm would assign a half now; None where no GPU has a free half."""
        return next((gpu for gpu, free in enumerate(self.free.get(node, ())) if free >= self.half), None)

    def is_empty(self, node: str, gpu: int) -> bool:
        """Whether no job has a shard of a GPU."""
        return self.free[node][gpu] == self.per_gpu

    def next_whole(self, node: str, gpus: int) -> tuple[int, ...]:
        """The indices of the GPUs that Slurm would assign to a job that requests this number of whole GPUs.

        Where fewer are free, all of them.
        """
        free = (self.per_gpu, self.half) if self.assigns_half_free else (self.per_gpu,)
        return tuple(gpu for gpu, shards in enumerate(self.free.get(node, ())) if shards in free)[:gpus]

    def holders(self, node: str, gpu: int) -> tuple[str, ...]:
        """The uids of metasched's jobs that have a half of a GPU."""
        return tuple(uid for uid, gpus in self.held.items() if gpus.get(node) == gpu)

    @cached_property
    def co_runners(self) -> Mapping[str, str]:
        """By uid of metasched's jobs, the other job on the same GPUs, for both jobs of each pair."""
        by_gpus: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for uid, gpus in self.held.items():
            by_gpus.setdefault(tuple(sorted(gpus.items())), []).append(uid)
        two = [uids for uids in by_gpus.values() if len(uids) == 2]  # noqa: PLR2004  a pair
        return {uid: other for one, another in two for uid, other in ((one, another), (another, one))}
