"""The search for free nodes, without preemption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from metasched.core.model import Grant, Job, Placement
from metasched.placement.assignments import Assignments
from metasched.placement.free_resources import Resources
from metasched.placement.requests import allowed_spreads


class NodeSearch:
    """Finds free nodes for jobs, and assigns them.

    Attributes:
        uneven: whether a job may have more GPUs on one node than on another.
        known_infeasible: requests for which no nodes were found, to be cleared when resources become free.
    """

    def __init__(self, assignments: Assignments, *, uneven: bool) -> None:
        self.known_infeasible: set[object] = set()
        self._free, self._node_index, self._assign = assignments.free, assignments.node_index, assignments.assign
        self.uneven = uneven

    def clear_infeasible(self) -> set[object]:
        """Clear the cache of infeasible requests and return it, so that a failed attempt can restore it."""
        infeasible, self.known_infeasible = self.known_infeasible, set()
        return infeasible

    def gpu_types(self, grant: Grant, job: Job) -> Sequence[str]:
        """The GPU types of the cluster that the grant and the job accept."""
        widest = self._node_index.widest
        if grant.gpu_type is not None:
            return [grant.gpu_type] if grant.gpu_type in widest else []
        return [name for name in job.gpu_types if name in widest] if job.gpu_types else self._node_index.types

    def preferred_gpu_types(self, grant: Grant, job: Job) -> Sequence[str | None]:
        """``gpu_types``, that of the present or previous run first; the only type of a CPU-only job is None."""
        if not job.gpus:
            return (None,)
        types, before = self.gpu_types(grant, job), job.latest_placement
        if before is None or len(types) == 1:
            return types
        return sorted(types, key=lambda gpu_type: gpu_type != before.gpu_type)

    def place_amount(self, grant: Grant, job: Job, gpus: int) -> bool:
        """Place the job on that many free GPUs, evenly if possible; return whether it was placed."""
        if self.place_first(grant, job, allowed_spreads(grant, job, gpus)):
            return True
        if not (self.uneven and gpus) or grant.exact is not None or (grant.sizes and gpus not in grant.sizes):
            return False
        for gpu_type in self.preferred_gpu_types(grant, job):
            parts = self._uneven_parts(job, gpus, gpu_type)
            if parts is not None:
                names = self._free.names(i for i, _ in parts)
                self._assign(job, Placement(names, 0, gpu_type, tuple(g for _, g in parts)))
                return True
        return False

    def place_fewer(self, grant: Grant, job: Job, low: int) -> bool:
        """Place the job on the most GPUs that are fewer than its grant's and at least ``low``, if the grant allows it.

        Spread evenly, each amount above the grant's least must be on the fewest nodes that can hold it: seven nodes x
        one GPU are no gain over one node x four.

        Returns:
            whether the job was placed.
        """
        if grant.at_least is None or grant.at_least >= grant.gpus:
            return False
        low = max(low, grant.at_least)
        if self.uneven:
            most = max((self._most_uneven(job, gpu_type) for gpu_type in self.gpu_types(grant, job)), default=0)
            return any(self.place_amount(grant, job, gpus) for gpus in range(min(grant.gpus - 1, most), low - 1, -1))
        widest = max([self._node_index.widest[gpu_type] for gpu_type in self.gpu_types(grant, job)], default=0)
        spreads = (
            (k, g)
            for gpus in range(grant.gpus - 1, low - 1, -1)
            for k, g in allowed_spreads(grant, job, gpus)
            if gpus == grant.at_least or k == job.nodes or (k - 1) * widest < gpus
        )
        return self.place_first(grant, job, spreads)

    def place_first(self, grant: Grant, job: Job, spreads: Iterable[tuple[int, int]]) -> bool:
        """Place the job on the first of some spreads for which there are nodes; return whether it was placed."""
        types = self.preferred_gpu_types(grant, job)
        for k, g in spreads:
            for gpu_type in types:
                numbers = self._find_nodes(job, k, g, gpu_type)
                if numbers is not None:
                    self._assign(job, Placement(self._free.names(numbers), g, gpu_type))
                    return True
        return False

    def _find_nodes(self, job: Job, k: int, g: int, gpu_type: str | None) -> list[int] | None:
        """K nodes with g free GPUs each: those of the previous run first, then on the fewest racks, then the tightest.

        Returns:
            node numbers; None where there are too few.
        """
        load = Resources.of(job, g)
        key = (k, load, gpu_type, job.constraints)
        if key in self.known_infeasible:
            return None
        free, groups, before = self._free, self._free.matching(job, gpu_type), job.latest_placement
        chosen = []
        if before is not None:
            chosen = [i for i in free.numbers(before) if free.fits(i, load) and free.group[i] in groups][:k]
            if len(chosen) == k:
                return chosen
        fitting = (i for i in free.candidates(groups, load) if free.fits(i, load) and i not in chosen)
        if k > 1 and self._node_index.has_racks:
            chosen = self._on_fewest_racks(chosen, list(fitting), k)
        else:
            chosen += islice(fitting, k - len(chosen))
        if len(chosen) < k:
            self.known_infeasible.add(key)
            return None
        return chosen

    def _on_fewest_racks(self, chosen: list[int], fitting: list[int], k: int) -> list[int]:
        """K node numbers, the chosen and some of those that fit (tightest first), on the fewest racks.

        Of racks that have enough nodes, that with the fewest is taken; otherwise the rack with the most.
        """
        nodes, racks = self._free.nodes, dict[str | None, list[int]]()
        for i in fitting:
            racks.setdefault(nodes[i].rack, []).append(i)
        found = list(chosen)
        for rack in dict.fromkeys(nodes[i].rack for i in chosen):
            found += racks.pop(rack, ())
        while len(found) < k and racks:
            lacking = k - len(found)
            whole = [rack for rack, numbers in racks.items() if len(numbers) >= lacking]
            best = min(whole, key=lambda r: len(racks[r])) if whole else max(racks, key=lambda r: len(racks[r]))
            found += racks.pop(best)
        return found[:k]

    def _most_uneven(self, job: Job, gpu_type: str | None) -> int:
        """The most free GPUs of a type that the job could have now, spread unevenly."""
        groups = self._free.matching(job, gpu_type)
        units = sorted((max(self._free.units(i, job), 0) for group in groups for i in group.numbers), reverse=True)
        return sum(units[: job.max_nodes if job.nodes is None else job.nodes])

    def _uneven_parts(self, job: Job, gpus: int, gpu_type: str | None) -> list[tuple[int, int]] | None:
        """Node numbers with GPUs on each: nodes with the most free GPUs, until the rest fits on one, the tightest.

        Returns:
            None where the nodes cannot hold that many GPUs.
        """
        free = self._free
        groups = free.matching(job, gpu_type)
        units = sorted(
            ((free.units(i, job), -i) for group in groups for i in group.numbers if free.units(i, job) > 0),
            reverse=True,
        )
        most = len(units) if job.max_nodes is None else job.max_nodes
        exactly = job.nodes
        parts: list[tuple[int, int]] = []
        left = gpus
        while units and left and len(parts) < (most if exactly is None else exactly):
            # Where the number of nodes is fixed, each of the others gets at least one GPU.
            want = left if exactly is None else left - (exactly - len(parts) - 1)
            if want < 1:
                return None
            enough = [unit for unit in units if unit[0] >= want]
            unit = enough[-1] if enough else units[0]
            best = max((u for u in units if u[0] == unit[0]), key=lambda u: u[1])
            units.remove(best)
            parts.append((-best[1], min(want, best[0])))
            left -= parts[-1][1]
        return parts if not left and exactly in (None, len(parts)) else None
