"""Nodes in kinds: of one GPU type, and suitable for the same jobs. Bundles do not name nodes, so kinds tell them apart.

A kind takes the place of the GPU type in an auction. Where all jobs accept all nodes of a type, the kind is the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metasched.core.model import Job, Node


class NodeKinds:
    """The kinds of the nodes that accept jobs.

    Attributes:
        of: the kind of each node, by its name.
        gpu_type: the GPU type of each kind.
    """

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[Job]) -> None:
        samples = {job.constraints: job for job in jobs}
        names: dict[object, str] = {}
        found: dict[str, str] = {}
        self.gpu_type: dict[str, str] = {}
        self._suitable: dict[object, set[str]] = {constraints: set() for constraints in samples}
        for node in nodes:
            if node.gpu_type is None or not node.accepts or not node.gpus:
                continue
            suits = {constraints: job.matches(node) for constraints, job in samples.items()}
            key = node.gpu_type, tuple(suits.values())
            if key not in names:
                same = sum(gpu_type == node.gpu_type for gpu_type in self.gpu_type.values())
                names[key] = f"{node.gpu_type} {same + 1}" if same else node.gpu_type
            kind = found[node.name] = names[key]
            self.gpu_type[kind] = node.gpu_type
            for constraints, suit in suits.items():
                if suit:
                    self._suitable[constraints].add(kind)
        self.of: Mapping[str, str] = found

    def suitable(self, job: Job) -> frozenset[str]:
        """The kinds that suit a job, free or not; the job must be one of those given at first."""
        return frozenset(self._suitable[job.constraints])
