"""Which GPU of a node each job sits on, and which one Slurm gives to the next that asks for a part of one.

Nobody can tell Slurm which GPU to take. It takes the first of a node that has enough shards free, in the order of their
indices: not the one that is in use already. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class GpuShards:
    """A look at the GPUs of a cluster in which Slurm gives away parts of them.

    Attributes:
        per_gpu: shards of each GPU; even, and one of two jobs on a GPU has half of them.
        free: by node, shards that are free of each of its GPUs, in the order of their indices.
        held: by uid, by node, the GPU that one of our jobs has a part of.
        unsettled: nodes where jobs are just giving GPUs back: Slurm does not tell which.
        doubled: those of ours that have a part of a GPU which another job has whole.
        forgets: whether Slurm takes a GPU for free as soon as the first of two jobs on it has ended, and gives it to
            the next job that asks for whole GPUs (seen on 22.05, corrected in 23.02). Its count of shards stays right.
    """

    per_gpu: int
    free: Mapping[str, tuple[int, ...]]
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()
    doubled: frozenset[str] = frozenset()
    forgets: bool = False

    @property
    def half(self) -> int:
        """Shards of one of two jobs on a GPU."""
        return self.per_gpu // 2

    def first(self, node: str) -> int | None:
        """The GPU on which a job of half a GPU would land now; None where none has room."""
        return next((gpu for gpu, free in enumerate(self.free.get(node, ())) if free >= self.half), None)

    def is_empty(self, node: str, gpu: int) -> bool:
        """Whether nobody has a part of a GPU."""
        return self.free[node][gpu] == self.per_gpu

    def next_whole(self, node: str, gpus: int) -> tuple[int, ...]:
        """The GPUs that a job would get which asks for so many whole ones, as far as there are any."""
        free = (self.per_gpu, self.half) if self.forgets else (self.per_gpu,)
        return tuple(gpu for gpu, shards in enumerate(self.free.get(node, ())) if shards in free)[:gpus]

    def on(self, node: str, gpu: int) -> tuple[str, ...]:
        """Who of ours has a part of a GPU."""
        return tuple(uid for uid, seats in self.held.items() if seats.get(node) == gpu)

    @cached_property
    def couples(self) -> Mapping[str, str]:
        """By uid, the other of ours on the very same GPUs, for both of each two."""
        there: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for uid, seats in self.held.items():
            there.setdefault(tuple(sorted(seats.items())), []).append(uid)
        two = [uids for uids in there.values() if len(uids) == 2]  # noqa: PLR2004  a couple
        return {uid: other for one, another in two for uid, other in ((one, another), (another, one))}
