"""The search for nodes: who stays, who goes where, who makes room for whom."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from metasched.model import Grant, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.placement import words
from metasched.placement.free import Free, Ground, Group, Load
from metasched.placement.pairs import Pair, are_together, joined, least

# A search for jobs to displace looks at every node; after so many vain ones the rest of the round goes without.
VAIN_REPAIRS = 32

ALL = Load(1, 1, 1)
NO_GPUS = Load(0, 1, 1)


@dataclass(frozen=True, slots=True)
class Placements:
    """Where the granted jobs go.

    Attributes:
        placed: by uid, most important first; pinned jobs are in it whether granted or not.
        unplaced: by uid, why a grant or fallback has no place, in words.
        shares: by uid, the other job on the same GPUs, for both of each pair.
    """

    placed: Mapping[str, Placement]
    unplaced: Mapping[str, str]
    shares: Mapping[str, str] = field(default_factory=dict)


def place(snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant] = ()) -> Placements:
    """Find nodes for the grants, most important first, then for the fallback in what is left.

    Every uid must be a job of the snapshot, and appear once.
    """
    return _Placer(snapshot, grants, fallback).run()


class _LastGround:
    """The cluster that was looked at last: a simulation shows the very same tuple of nodes round after round."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Node, ...], Ground] | None = None

    def of(self, nodes: tuple[Node, ...]) -> Ground:
        last = self._last  # one read: another thread may write it
        if last is None or last[0] is not nodes:
            self._last = last = (nodes, Ground(nodes))
        return last[1]


_last_ground = _LastGround()


class _Placer:
    """One call of ``place``: who holds what so far, and what is free."""

    def __init__(self, snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant]) -> None:
        self.job: dict[str, Job] = dict(snapshot.job)
        self.order = [*grants, *fallback]
        self.grants = len(grants)
        self.rank = {grant.uid: i for i, grant in enumerate(self.order)}
        self.uneven = snapshot.uneven
        can_stop, suspended = Preempt.CHECKPOINT, Status.SUSPENDED
        self.held = [job for job in snapshot.jobs if job.preempt is not can_stop or job.status is suspended]
        self.placed: dict[str, Placement] = {}
        self.kept: set[str] = set()  # jobs that have all they are to have, and need no further thought
        self.shares: dict[str, str] = {}
        self.fixed: set[str] = set()  # placed jobs that cannot be displaced
        self.residue: dict[str, Load] = {}  # kinds of resources (1) that a job holds even if it does not run
        self.pairs: dict[str, Pair] = {}  # by host
        self.beside: dict[str, str] = {}  # who is to share GPUs with a pinned job, and with whom
        self.unpaired: dict[str, str] = {}  # guests without a host, and why
        for grant in self.order:
            if grant.max_nodes is not None:
                job = self.job[grant.uid]
                self.job[grant.uid] = job.evolve(max_nodes=min(grant.max_nodes, job.max_nodes or grant.max_nodes))
        self.ground = ground = _last_ground.of(snapshot.nodes)
        if any(grant.shares_with is not None for grant in self.order):
            self._pair_up()
        self.guests = {pair.guest.uid for pair in self.pairs.values()} | (self.unpaired.keys() - self.beside.keys())
        self.free = Free(ground, self._named(snapshot.jobs))
        self.loads: dict[tuple[int, int, int], Load] = {}
        # Who could be displaced, once somebody asks: their ranks, ascending, and what they take on each node.
        self.indexed = False
        self.ranks: list[int] = []
        self.movable: list[dict[str, Load]] = []
        self.vain = 0
        self.hopeless: set[object] = set()
        self.words: dict[object, str] = {}

    def run(self) -> Placements:
        self._fix()
        self._keep()
        for rank, grant in enumerate(self.order):
            uid = grant.uid
            if uid in self.guests or uid in self.kept:
                continue
            if uid in self.pairs and (uid not in self.placed or self.job[uid] is not self.pairs[uid].job):
                self._join(rank, self.pairs[uid])
            elif uid in self.placed:
                if self.placed[uid].gpus < grant.gpus:
                    self._grow(grant)
            elif uid in self.beside and self._sit(grant, self.beside[uid]):
                continue
            elif grant.shares_with is None:
                self._settle(rank, grant)
        for uid, pair in self.pairs.items():
            if uid in self.placed and self.job[uid] is pair.job:
                self.placed[pair.guest.uid] = self.placed[uid]
                self._share(uid, pair.guest.uid)
        placed = self.placed
        unplaced = {grant.uid: self._explain(grant) for grant in self.order if grant.uid not in placed}
        ordered = {uid: placed[uid] for uid in placed if uid not in self.rank} if self.fixed else {}
        ordered |= {uid: placed[uid] for uid in self.rank if uid in placed}
        return Placements(ordered, unplaced, self.shares)

    def _named(self, jobs: Iterable[Job]) -> frozenset[str]:
        """Names of nodes that some job calls by name."""
        named = [job.only_nodes | job.excluded_nodes for job in jobs if job.only_nodes or job.excluded_nodes]
        named += [pair.job.only_nodes for pair in self.pairs.values() if pair.job.only_nodes]
        return frozenset[str]().union(*named) if named else frozenset()

    # -- who shares with whom ------------------------------------------------------------------------------------

    def _pair_up(self) -> None:
        for grant in self.order:
            if grant.shares_with is None:
                continue
            guest, host = self.job[grant.uid], self.job[grant.shares_with]
            why = self._pair(host, guest, grant)
            if why is not None:
                self.unpaired[guest.uid] = why

    def _pair(self, host: Job, guest: Job, grant: Grant) -> str | None:
        """Note that two jobs are to share GPUs, or say why they cannot."""
        if any(job.status is Status.SUSPENDED and not job.pinned for job in (host, guest)):
            return f"it cannot share GPUs with job {host.address} while one of them is suspended"
        if host.pinned and guest.pinned:
            return None if are_together(host, guest) else f"neither it nor job {host.address} can move"
        alone = self.order[self.rank[host.uid]]
        pair = joined(host, guest, alone, grant, self.ground.nodes)
        if pair is None:
            return f"no nodes suit both it and job {host.address}"
        if host.pinned:
            self.beside[guest.uid] = host.uid
            self.unpaired[guest.uid] = f"there is no room for it beside job {host.address}"
        elif guest.pinned:
            self.beside[host.uid] = guest.uid
        else:
            self.pairs[host.uid] = pair
            if pair.together or not host.active:
                self._stand_in(pair)
        return None

    def _stand_in(self, pair: Pair) -> None:
        """From here on the host stands for both."""
        self.job[pair.host.uid] = pair.job
        self.order[self.rank[pair.host.uid]] = pair.grant

    def _share(self, one: str, other: str) -> None:
        self.shares[one], self.shares[other] = other, one

    def _join(self, rank: int, pair: Pair) -> None:
        """Place host and guest, where they are not placed together yet, or else the host alone."""
        uid = pair.host.uid
        before, known = self._release(uid) if uid in self.placed else None, self.hopeless
        if before is not None:
            self.hopeless = set()
        self._stand_in(pair)
        self._settle(rank, pair.grant)
        if uid in self.placed:
            return
        self.job[uid], self.order[rank] = pair.host, pair.alone
        if before is None:
            self._settle(rank, pair.alone)
        else:
            self._assign(pair.host, before)
            self.hopeless = known

    def _sit(self, grant: Grant, host: str) -> bool:
        """Put a job on the GPUs of a pinned one, unless that shares them with another one that stays."""
        job, place = self.job[grant.uid], self.placed[host]
        if host in self.shares or not _answers(grant, place) or not self._takes(job, place):
            return False
        if not all(self.free.fits(i, load) for i, load in self._loads(job, place, NO_GPUS)):
            return False
        self._seat(job, place, host)
        return True

    def _seat(self, job: Job, place: Placement, host: str) -> None:
        self.placed[job.uid] = place
        self.fixed.add(job.uid)
        self._share(job.uid, host)
        for i, load in self._loads(job, place, NO_GPUS):
            self.free.change(i, load, -1)

    # -- who holds what ------------------------------------------------------------------------------------------

    def _fix(self) -> None:
        """Take off what nothing in this round can free."""
        for job in sorted(self.held, key=lambda job: (job.submitted, job.uid)):
            place = job.placement
            if place is None or not job.active:
                continue
            if job.pinned:
                other = job.shares_with
                if other in self.fixed and are_together(job, self.job[other]):
                    self._seat(job, place, other)
                else:
                    self.fixed.add(job.uid)
                    self._assign(job, place)
            elif job.status is Status.SUSPENDED:
                # Who suspended it may resume it at any moment: only behind our own are the CPUs ours to give.
                self._leave(job, place, Load(1, 0, 1) if job.suspended_by_us else ALL)
            elif job.status is Status.RUNNING and job.preempt is Preempt.SUSPEND:
                self._leave(job, place, Load(0, 0, 1))
        for uid, host in self.beside.items():
            job, place = self.job[uid], self.placed[host]
            asked = self.order[self.rank[uid]]
            if job.status is Status.RUNNING and are_together(job, self.job[host]) and _answers(asked, place):
                self._seat(job, place, host)

    def _leave(self, job: Job, place: Placement, residue: Load) -> None:
        for i, load in self._loads(job, place, residue):
            self.free.change(i, load, -1)
        self.residue[job.uid] = residue

    def _keep(self) -> None:
        """Leave granted jobs where they are: running ones as a fact, the others as far as there is room."""
        stay, queued = [], []
        placed, kept = self.placed, self.kept
        settled = placed.keys() | self.guests | self.beside.keys()
        jobs, runs, waits = self.job, Status.RUNNING, (Status.QUEUED, Status.SUSPENDED)
        for grant in self.order:
            uid = grant.uid
            job = jobs[uid]
            place, status = job.placement, job.status
            if uid in settled:
                continue
            if status is runs:
                if place is None or not _answers(grant, place) or (job.shares_with and self._parted(job)):
                    continue
                kept.add(uid)
                if self.residue or place.uneven:
                    self._assign(job, place)
                else:
                    placed[uid] = place
                    stay.append((job, place))
            elif status in waits:
                queued.append((grant, job))
        self.free.hold(stay)
        for grant, job in queued:
            self._stay(grant, job)
        short = {grant.uid for grant in self.order if grant.at_least is not None and grant.at_least < grant.gpus}
        kept.difference_update(self.pairs, short)

    def _parted(self, job: Job) -> bool:
        """Whether another job keeps its GPUs, with which it is to share them no more."""
        return job.shares_with is not None and self.placed.get(job.shares_with) == job.placement

    def _stay(self, grant: Grant, job: Job) -> bool:
        """Put it exactly where it is, was released for, or is just leaving, if that answers the grant and fits."""
        place = job.released if job.status is Status.QUEUED else job.placement
        if place is None or not _answers(grant, place) or self._parted(job):
            return False
        in_place = job.status in (Status.RUNNING, Status.SUSPENDED)
        if not (in_place or self._takes(job, place)) or not self._fits(job, place):
            return False
        self._assign(job, place)
        return True

    def _takes(self, job: Job, place: Placement) -> bool:
        """Whether its nodes are there, accept new jobs and suit this one; how much is free is another question."""
        numbers, k = self.free.numbers(place), len(place.nodes)
        asked = job.nodes if job.gpus else job.nodes or 1
        if len(numbers) < k or asked not in (None, k) or k > (job.max_nodes or k):
            return False
        nodes = [self.free.nodes[i] for i in numbers]
        kinds = {node.gpu_type for node in nodes} if job.gpus else {None}
        return kinds == {place.gpu_type} and all(node.accepts and job.matches(node) for node in nodes)

    def _fits(self, job: Job, place: Placement) -> bool:
        """Whether all its nodes are there, and have room for it now."""
        loads = self._rest(job, place)
        fits = self.free.fits
        return len(loads) == len(place.nodes) and all(fits(i, load) for i, load in loads)

    def _loads(self, job: Job, place: Placement, share: Load = ALL) -> list[tuple[int, Load]]:
        """What it takes on each of its nodes, of some kinds of resources; nodes that are gone are left out."""
        number = self.free.number
        if place.uneven:
            each = {gpus: Load.of(job, gpus).part(share) for gpus in set(place.uneven)}
            return [(number[name], each[gpus]) for name, gpus in place.shares if name in number]
        shape = (job.cpus_per_unit, job.memory_per_unit, place.gpus_per_node)
        load = self.loads.get(shape)
        if load is None:
            load = self.loads[shape] = Load.of(job, place.gpus_per_node)
        if share is not ALL:
            load = load.part(share)
        return [(number[name], load) for name in place.nodes if name in number]

    def _rest(self, job: Job, place: Placement) -> list[tuple[int, Load]]:
        """What it takes on each node beyond what it holds there anyway."""
        held = self.residue.get(job.uid)
        if held is None:
            return self._loads(job, place)
        return self._loads(job, place, Load(1 - held.gpus, 1 - held.cpus, 1 - held.memory))

    def _assign(self, job: Job, place: Placement) -> None:
        uid = job.uid
        self.placed[uid] = place
        change = self.free.change
        loads = self._rest(job, place) if self.residue else self._loads(job, place)
        for i, load in loads:
            change(i, load, -1)
        if self.indexed and uid not in self.fixed:
            insort(self.ranks, self.rank[uid])
            for i, load in loads:
                self.movable[i][uid] = load

    def _release(self, uid: str) -> Placement:
        self._index()
        self.kept.discard(uid)
        place = self.placed.pop(uid)
        del self.ranks[bisect_left(self.ranks, self.rank[uid])]
        for i in self.free.numbers(place):
            self.free.change(i, self.movable[i].pop(uid), +1)
        return place

    def _index(self) -> None:
        """From here on, know who could be displaced; most rounds never ask."""
        if self.indexed:
            return
        self.indexed = True
        self.movable = [{} for _ in self.ground.nodes]
        movable = [uid for uid in self.placed if uid not in self.fixed]
        self.ranks = sorted([self.rank[uid] for uid in movable])
        for uid in movable:
            for i, load in self._rest(self.job[uid], self.placed[uid]):
                self.movable[i][uid] = load

    # -- finding nodes -------------------------------------------------------------------------------------------

    def _settle(self, rank: int, grant: Grant) -> None:
        job = self.job[grant.uid]
        # A job that stops to grow must not fall back to its old size if it is looked at meanwhile: it would never end.
        grows = job.status is Status.STOPPING and job.placement is not None and job.placement.gpus < grant.gpus
        if not grows and self._stay(grant, job):
            return
        prescribed = job.placement if job.uid in self.residue else grant.exact
        if prescribed is not None:
            self._put(rank, grant, job, prescribed)
            return
        low = least(grant)
        if not self._enough(rank, grant, job, low) or self._find_amount(grant, job, grant.gpus):
            return
        important = rank < self.grants
        full = job.spreads(grant.gpus)
        if important and self._displace(rank, job, full, self.grants - 1):
            return
        if self._find_fewer(grant, job, low):
            return
        if important and self.vain < VAIN_REPAIRS:
            served = any(
                self._displace(rank, job, spreads, above)
                for spreads in (full, job.spreads(low) if low < grant.gpus else ())
                for above in (rank, -1)
            )
            self.vain += not (served or (self.uneven and self._displace_unevenly(rank, grant, job, low)))

    def _enough(self, rank: int, grant: Grant, job: Job, gpus: int) -> bool:
        """Whether GPUs, though scattered or held by later jobs, are enough for a grant; cheap, and never wrongly no."""
        if not job.gpus:
            return True
        total = sum([self.free.total.get(kind, 0) for kind in self._kinds(grant, job)])
        if total < gpus and rank < self.grants:
            self._index()
            for later in reversed(self.ranks):
                if total >= gpus or later < rank:
                    break
                total += self.placed[self.order[later].uid].gpus
        return total >= gpus

    def _grow(self, grant: Grant) -> None:
        """Move a kept job to more GPUs, where its grant asks for more than it holds and they are free."""
        job = self.job[grant.uid]
        if grant.uid in self.fixed or grant.uid in self.residue:
            return
        before, known = self._release(grant.uid), self.hopeless
        self.hopeless = set()  # what was hopeless may fit into its own room
        if not self._find_amount(grant, job, grant.gpus) and not self._find_fewer(grant, job, before.gpus + 1):
            self._assign(job, before)
            self.hopeless = known

    def _find_fewer(self, grant: Grant, job: Job, low: int) -> bool:
        """Place it on fewer GPUs than its grant's, if that allows it: the largest amount that is at least ``low``.

        Spread evenly, all but the grant's least are held to as few nodes as can hold them: seven nodes x one GPU are no
        gain over one x four.
        """
        if grant.at_least is None or grant.at_least >= grant.gpus:
            return False
        low = max(low, grant.at_least)
        if self.uneven:
            most = max((self._room(job, kind) for kind in self._kinds(grant, job)), default=0)
            return any(self._find_amount(grant, job, gpus) for gpus in range(min(grant.gpus - 1, most), low - 1, -1))
        widest = max([self.ground.widest[kind] for kind in self._kinds(grant, job)], default=0)
        return self._find_any(
            grant,
            job,
            (
                (k, g)
                for gpus in range(grant.gpus - 1, low - 1, -1)
                for k, g in job.spreads(gpus)
                if gpus == grant.at_least or k == job.nodes or (k - 1) * widest < gpus
            ),
        )

    def _kinds(self, grant: Grant, job: Job) -> Sequence[str]:
        """GPU types that would do."""
        widest = self.ground.widest
        if grant.gpu_type is not None:
            return [grant.gpu_type] if grant.gpu_type in widest else []
        return [kind for kind in job.gpu_types if kind in widest] if job.gpu_types else self.ground.types

    def _types(self, grant: Grant, job: Job) -> Sequence[str | None]:
        """The same, that of its present or previous run first; a job without GPUs has the one type None."""
        if not job.gpus:
            return (None,)
        kinds, before = self._kinds(grant, job), _before(job)
        if before is None or len(kinds) == 1:
            return kinds
        return sorted(kinds, key=lambda kind: kind != before.gpu_type)

    def _find_amount(self, grant: Grant, job: Job, gpus: int) -> bool:
        """Place it on that many GPUs, evenly if possible."""
        if self._find_any(grant, job, job.spreads(gpus)):
            return True
        if not (self.uneven and gpus) or grant.exact is not None:
            return False
        for gpu_type in self._types(grant, job):
            shares = self._find_uneven(job, gpus, gpu_type)
            if shares is not None:
                names = self.free.names(i for i, _ in shares)
                self._assign(job, Placement(names, 0, gpu_type, tuple(g for _, g in shares)))
                return True
        return False

    def _find_any(self, grant: Grant, job: Job, spreads: Iterable[tuple[int, int]]) -> bool:
        """Place it on the first spread for which there are nodes."""
        types = self._types(grant, job)
        for k, g in spreads:
            for gpu_type in types:
                numbers = self._find(job, k, g, gpu_type)
                if numbers is not None:
                    self._assign(job, Placement(self.free.names(numbers), g, gpu_type))
                    return True
        return False

    def _find(self, job: Job, k: int, g: int, gpu_type: str | None) -> list[int] | None:
        """K nodes with room: first those of the previous run, then those of few racks, then the tightest."""
        load = Load.of(job, g)
        key = (k, load, gpu_type, job.constraints)
        if key in self.hopeless:
            return None
        free, groups, before = self.free, self.free.matching(job, gpu_type), _before(job)
        chosen = []
        if before is not None:
            chosen = [i for i in free.numbers(before) if free.fits(i, load) and free.group[i] in groups][:k]
            if len(chosen) == k:
                return chosen
        fitting = (i for i in free.candidates(groups, load) if free.fits(i, load) and i not in chosen)
        if k > 1 and self.ground.has_racks:
            chosen = self._by_rack(chosen, list(fitting), k)
        else:
            chosen += islice(fitting, k - len(chosen))
        if len(chosen) < k:
            self.hopeless.add(key)
            return None
        return chosen

    def _by_rack(self, chosen: list[int], fitting: list[int], k: int) -> list[int]:
        """K nodes, the chosen and some that fit (tightest first), on the fewest racks; of racks alike, the fullest."""
        nodes, racks = self.free.nodes, dict[str | None, list[int]]()
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
        groups = self.free.matching(job, gpu_type)
        units = sorted((max(self.free.units(i, job), 0) for group in groups for i in group.numbers), reverse=True)
        return sum(units[: job.max_nodes if job.nodes is None else job.nodes])

    def _find_uneven(self, job: Job, gpus: int, gpu_type: str | None) -> list[tuple[int, int]] | None:
        """Nodes, and GPUs on each: the freest nodes, until the rest fits on one, and of such nodes the tightest."""
        free = self.free
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

    # -- making room ---------------------------------------------------------------------------------------------

    def _put(self, rank: int, grant: Grant, job: Job, place: Placement) -> None:
        """Place it exactly there, by displacing others if it must be."""
        in_place = job.uid in self.residue
        if not _answers(grant, place) or not (in_place or self._takes(job, place)):
            return
        if self._fits(job, place):
            self._assign(job, place)
            return
        loads = self._rest(job, place)
        if rank >= self.grants or len(loads) < len(place.nodes) or self.vain >= VAIN_REPAIRS:
            return
        self._index()
        for above in (self.grants - 1, rank, -1):
            victims = [self._victims(i, load, above) for i, load in loads]
            displaced = set[str]().union(*(some for some in victims if some is not None))
            if None not in victims and self._swap(rank, job, place, displaced):
                return
        self.vain += 1

    def _displace(self, rank: int, job: Job, spreads: Iterable[tuple[int, int]], above: int) -> bool:
        """Place a grant by taking nodes from placed jobs of rank above a bound, few and unimportant ones.

        Displaced jobs before it in the order get another place at once, or nothing is changed; those after it get
        their turn later.
        """
        self._index()
        if self.ranks and self.ranks[-1] > above:
            types = self._types(self.order[rank], job)
            for k, g in spreads:
                for gpu_type in types:
                    found = self._vacate(job, k, g, self._among(self.free.matching(job, gpu_type)), above)
                    if found is not None:
                        numbers, displaced = found
                        if self._swap(rank, job, Placement(self.free.names(numbers), g, gpu_type), displaced):
                            return True
        return False

    def _displace_unevenly(self, rank: int, grant: Grant, job: Job, low: int) -> bool:
        """Place it on what becomes free as later jobs are displaced, the least important first."""
        self._index()
        known, self.hopeless = self.hopeless, set()
        displaced: list[tuple[str, Placement]] = []
        found = False
        while not found and self.ranks and self.ranks[-1] > rank:
            uid = self.order[self.ranks[-1]].uid
            displaced.append((uid, self._release(uid)))
            self.hopeless = set()
            found = any(self._find_amount(grant, job, gpus) for gpus in dict.fromkeys((grant.gpus, low)))
        for uid, place in reversed(displaced):
            if not found or self._fits(self.job[uid], place):
                self._assign(self.job[uid], place)
        if not found:
            self.hopeless = known
        return found

    def _among(self, groups: list[Group]) -> Callable[[int], bool]:
        return lambda i: self.free.group[i] in groups

    def _vacate(
        self, job: Job, k: int, g: int, site: Callable[[int], bool], above: int
    ) -> tuple[list[int], set[str]] | None:
        """K sites that become free enough by displacing few jobs of rank above a bound, and these jobs.

        None if there are none. Looks at the nodes of the least important jobs first, and no further once enough
        sites are found that cost one job each.
        """
        load = Load.of(job, g)
        costs: list[tuple[int, int, int]] = []
        victims: dict[int, set[str]] = {}
        cheap = 0
        for i in self._from_the_end(load, above):
            if i in victims or not site(i):
                continue
            victims[i] = set()
            needed = self._victims(i, load, above)
            if needed is not None:
                victims[i] = needed
                costs.append((len(needed), len(costs), i))
                cheap += len(needed) <= 1
                if cheap == k:
                    break
        if len(costs) < k:
            return None
        chosen = [i for _, _, i in sorted(costs)[:k]]
        return chosen, set().union(*(victims[i] for i in chosen))

    def _from_the_end(self, load: Load, above: int) -> Iterator[int]:
        """Nodes that fit as they are, then nodes of placed jobs, the least important first; with repetitions."""
        yield from (i for i in self.free.candidates(self.free.groups, load) if self.free.fits(i, load))
        for rank in reversed(self.ranks):
            if rank <= above:
                return
            yield from self.free.numbers(self.placed[self.order[rank].uid])

    def _victims(self, i: int, load: Load, above: int) -> set[str] | None:
        """The jobs to take off node i for the load to fit, the least important first; None if it cannot."""
        gpus = self.free.gpus[i] - load.gpus
        cpus = self.free.cpus[i] - load.cpus
        memory = self.free.memory[i] - load.memory
        taken: list[tuple[str, Load]] = []
        there = self.movable[i]
        for uid in sorted(there, key=self.rank.__getitem__, reverse=True):
            if (gpus >= 0 and cpus >= 0 and memory >= 0) or self.rank[uid] <= above:
                break
            held = there[uid]
            taken.append((uid, held))
            gpus, cpus, memory = gpus + held.gpus, cpus + held.cpus, memory + held.memory
        if gpus < 0 or cpus < 0 or memory < 0:
            return None
        needed = set()
        for uid, held in reversed(taken):  # spare the most important that need not go after all
            if gpus >= held.gpus and cpus >= held.cpus and memory >= held.memory:
                gpus, cpus, memory = gpus - held.gpus, cpus - held.cpus, memory - held.memory
            else:
                needed.add(uid)
        return needed

    def _swap(self, rank: int, job: Job, place: Placement, displaced: set[str]) -> bool:
        """Give the place to the job, and other places to displaced jobs before it; all of it or nothing."""
        before = {uid: self._release(uid) for uid in displaced}
        known, self.hopeless = self.hopeless, set()
        self._assign(job, place)
        moved = []
        for uid in sorted((uid for uid in displaced if self.rank[uid] < rank), key=self.rank.__getitem__):
            grant, other = self.order[self.rank[uid]], self.job[uid]
            moved.append(uid)
            if not self._stay(grant, other) and not (
                uid not in self.residue and grant.exact is None and self._find_amount(grant, other, before[uid].gpus)
            ):
                break
        else:
            return True
        for uid in (*moved, job.uid):
            if uid in self.placed:
                self._release(uid)
        for uid, there in before.items():
            self._assign(self.job[uid], there)
        self.hopeless = known
        return False

    # -- words ---------------------------------------------------------------------------------------------------

    def _explain(self, grant: Grant) -> str:
        job = self.job[grant.uid]
        if grant.shares_with is not None:
            host = self.job[grant.shares_with]
            why = "but there is no room for both" if host.uid in self.placed else "which has no place either"
            return self.unpaired.get(job.uid, f"is to share the GPUs of job {host.address}, {why}")
        if job.uid in self.residue and job.placement is not None:
            return words.suspended(job.placement)
        if grant.exact is not None:
            return words.exact(self.free, job, grant.exact)
        gpus = least(grant)
        unit = (job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes)
        key = (gpus, grant.gpu_type, job.gpus > 0, job.constraints, unit)
        if key not in self.words:
            types = self._kinds(grant, job) if job.gpus else (None,)
            self.words[key] = words.search(self.free, job, gpus, types, uneven=self.uneven)
        return self.words[key]


def _answers(grant: Grant, place: Placement) -> bool:
    """Whether holding that place is one of the things that the grant allows."""
    if grant.exact is not None:
        return place == grant.exact
    if grant.gpu_type is not None and grant.gpu_type != place.gpu_type:
        return False
    if grant.max_nodes is not None and len(place.nodes) > grant.max_nodes:
        return False
    gpus = place.gpus
    return gpus == grant.gpus or least(grant) <= gpus <= grant.gpus


def _before(job: Job) -> Placement | None:
    """Where it is or was last."""
    return job.placement or job.released or job.last_placement
