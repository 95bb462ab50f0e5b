"""The search for nodes in what is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from metasched.core.model import Grant, Job, Placement
from metasched.placement.assignments import Assignments
from metasched.placement.free_resources import Resources


class Search:
    """Places jobs on what is free.

    Attributes:
        uneven: whether a job may have more GPUs on one node than on another.
        hopeless: what was looked for in vain; to be forgotten where something becomes free.
    """

    def __init__(self, seats: Assignments, *, uneven: bool) -> None:
        self.hopeless: set[object] = set()
        self._free, self._ground, self._assign = seats.free, seats.ground, seats.assign
        self.uneven = uneven

    def forget(self) -> set[object]:
        """Hope again; what was hopeless is given back, to be put back where nothing comes of it."""
        known, self.hopeless = self.hopeless, set()
        return known

    def kinds(self, grant: Grant, job: Job) -> Sequence[str]:
        """GPU types that would do."""
        widest = self._ground.widest
        if grant.gpu_type is not None:
            return [grant.gpu_type] if grant.gpu_type in widest else []
        return [kind for kind in job.gpu_types if kind in widest] if job.gpu_types else self._ground.types

    def types(self, grant: Grant, job: Job) -> Sequence[str | None]:
        """The same, that of its present or previous run first; a job without GPUs has the one type None."""
        if not job.gpus:
            return (None,)
        kinds, before = self.kinds(grant, job), _before(job)
        if before is None or len(kinds) == 1:
            return kinds
        return sorted(kinds, key=lambda kind: kind != before.gpu_type)

    def amount(self, grant: Grant, job: Job, gpus: int) -> bool:
        """Place it on that many GPUs, evenly if possible."""
        if self.anywhere(grant, job, job.spreads(gpus)):
            return True
        if not (self.uneven and gpus) or grant.exact is not None:
            return False
        for gpu_type in self.types(grant, job):
            shares = self._unevenly(job, gpus, gpu_type)
            if shares is not None:
                names = self._free.names(i for i, _ in shares)
                self._assign(job, Placement(names, 0, gpu_type, tuple(g for _, g in shares)))
                return True
        return False

    def fewer(self, grant: Grant, job: Job, low: int) -> bool:
        """Place it on fewer GPUs than its grant's, if that allows it: the largest amount that is at least ``low``.

        Spread evenly, all but the grant's least are held to as few nodes as can hold them: seven nodes x one GPU are no
        gain over one x four.
        """
        if grant.at_least is None or grant.at_least >= grant.gpus:
            return False
        low = max(low, grant.at_least)
        if self.uneven:
            most = max((self._room(job, kind) for kind in self.kinds(grant, job)), default=0)
            return any(self.amount(grant, job, gpus) for gpus in range(min(grant.gpus - 1, most), low - 1, -1))
        widest = max([self._ground.widest[kind] for kind in self.kinds(grant, job)], default=0)
        return self.anywhere(
            grant,
            job,
            (
                (k, g)
                for gpus in range(grant.gpus - 1, low - 1, -1)
                for k, g in job.spreads(gpus)
                if gpus == grant.at_least or k == job.nodes or (k - 1) * widest < gpus
            ),
        )

    def anywhere(self, grant: Grant, job: Job, spreads: Iterable[tuple[int, int]]) -> bool:
        """Place it on the first spread for which there are nodes."""
        types = self.types(grant, job)
        for k, g in spreads:
            for gpu_type in types:
                numbers = self._find(job, k, g, gpu_type)
                if numbers is not None:
                    self._assign(job, Placement(self._free.names(numbers), g, gpu_type))
                    return True
        return False

    def _find(self, job: Job, k: int, g: int, gpu_type: str | None) -> list[int] | None:
        """K nodes with room: first those of the previous run, then those of few racks, then the tightest."""
        load = Resources.of(job, g)
        key = (k, load, gpu_type, job.constraints)
        if key in self.hopeless:
            return None
        free, groups, before = self._free, self._free.matching(job, gpu_type), _before(job)
        chosen = []
        if before is not None:
            chosen = [i for i in free.numbers(before) if free.fits(i, load) and free.group[i] in groups][:k]
            if len(chosen) == k:
                return chosen
        fitting = (i for i in free.candidates(groups, load) if free.fits(i, load) and i not in chosen)
        if k > 1 and self._ground.has_racks:
            chosen = self._by_rack(chosen, list(fitting), k)
        else:
            chosen += islice(fitting, k - len(chosen))
        if len(chosen) < k:
            self.hopeless.add(key)
            return None
        return chosen

    def _by_rack(self, chosen: list[int], fitting: list[int], k: int) -> list[int]:
        """K nodes, the chosen and some that fit (tightest first), on the fewest racks; of racks alike, the fullest."""
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

    def _room(self, job: Job, gpu_type: str | None) -> int:
        """The most GPUs that it could have now, if they may be spread unevenly."""
        groups = self._free.matching(job, gpu_type)
        units = sorted((max(self._free.units(i, job), 0) for group in groups for i in group.numbers), reverse=True)
        return sum(units[: job.max_nodes if job.nodes is None else job.nodes])

    def _unevenly(self, job: Job, gpus: int, gpu_type: str | None) -> list[tuple[int, int]] | None:
        """Nodes, and GPUs on each: the freest nodes, until the rest fits on one, and of such nodes the tightest."""
        free = self._free
        groups = free.matching(job, gpu_type)
        units = sorted(
            ((free.units(i, job), -i) for group in groups for i in group.numbers if free.units(i, job) > 0),
            reverse=True,
        )
        most = len(units) if job.max_nodes is None else job.max_nodes
        exactly = job.nodes
        shares: list[tuple[int, int]] = []
        left = gpus
        while units and left and len(shares) < (most if exactly is None else exactly):
            # Where the number of nodes is fixed, each of the others gets at least one GPU.
            want = left if exactly is None else left - (exactly - len(shares) - 1)
            if want < 1:
                return None
            enough = [unit for unit in units if unit[0] >= want]
            unit = enough[-1] if enough else units[0]
            best = max((u for u in units if u[0] == unit[0]), key=lambda u: u[1])
            units.remove(best)
            shares.append((-best[1], min(want, best[0])))
            left -= shares[-1][1]
        return shares if not left and exactly in (None, len(shares)) else None


def _before(job: Job) -> Placement | None:
    """Where it is or was last."""
    return job.placement or job.released or job.last_placement
