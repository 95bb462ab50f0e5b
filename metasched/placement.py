"""Who runs -> which nodes: k nodes x g GPUs of one type for each job, gangs whole or not at all.

What is kept, and in which order nodes are given away:

1. What cannot be taken away stays: pinned jobs, the memory (and GPUs) of suspended ones.
2. A granted job that runs on an amount that fits its grant stays where it is; so does one that is queued on its nodes.
3. The other grants follow in their order: fewest nodes first, then the nodes of the previous run, then best fit, then
   node name. Where the full amount does not fit, fewer GPUs down to ``at_least``.
4. A grant that still has no place may displace kept jobs: first those after it, then, if each finds another place at
   once, those before it. So a later grant never costs an earlier one its place, and nothing moves without need.
5. The fallback takes what is left, in order.

The GPUs of running jobs without a grant, and of jobs that Slurm is ending, count as free: a successor queues on them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from metasched.model import Grant, Job, Node, Placement, Preempt, Snapshot, Status

# A search for jobs to displace looks at every node; after so many vain ones the rest of the round goes without.
VAIN_REPAIRS = 32


@dataclass(frozen=True, slots=True)
class Placements:
    """Where the granted jobs go.

    Attributes:
        placed: by uid, most important first; pinned jobs are in it whether granted or not.
        unplaced: by uid, why a grant or fallback has no place, in words.
    """

    placed: Mapping[str, Placement]
    unplaced: Mapping[str, str]


def place(snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant] = ()) -> Placements:
    """Find nodes for the grants, most important first, then for the fallback in what is left.

    Every uid must be a job of the snapshot, and appear once.
    """
    return _Placer(snapshot, grants, fallback).run()


@dataclass(frozen=True, slots=True)
class _Load:
    """What a job takes on one node."""

    gpus: int
    cpus: int
    memory: int


def _load(job: Job, gpus_per_node: int) -> _Load:
    return _Load(gpus_per_node, job.node_cpus(gpus_per_node), job.node_memory(gpus_per_node))


class _Group:
    """Accepting nodes that no job tells apart, sorted by free GPUs and by free CPUs."""

    def __init__(self, example: Node) -> None:
        self.example = example
        self.by_gpus: list[tuple[int, int]] = []
        self.by_cpus: list[tuple[int, int]] = []


class _Free:
    """What is free on each node, indexed so that a fitting node is found without looking at all of them.

    Nodes are numbered in the order of their names.
    """

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[Job]) -> None:
        named = frozenset[str]().union(*(job.only_nodes | job.excluded_nodes for job in jobs))
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.number = {node.name: i for i, node in enumerate(self.nodes)}
        self.gpus = [node.gpus for node in self.nodes]
        self.cpus = [node.cpus for node in self.nodes]
        self.memory = [node.memory for node in self.nodes]
        self.total: dict[str, int] = {}
        self.groups: list[_Group] = []
        self.group: list[_Group | None] = []
        self._matching: dict[object, list[_Group]] = {}
        found: dict[object, _Group] = {}
        for i, node in enumerate(self.nodes):
            group = None
            if node.accepts:
                key = (node.gpu_type, node.features, node.partitions, node.name if node.name in named else None)
                if key not in found:
                    found[key] = _Group(node)
                    self.groups.append(found[key])
                group = found[key]
                insort(group.by_gpus, (node.gpus, i))
                insort(group.by_cpus, (node.cpus, i))
                if node.gpu_type is not None:
                    self.total[node.gpu_type] = self.total.get(node.gpu_type, 0) + node.gpus
            self.group.append(group)

    def matching(self, job: Job) -> list[_Group]:
        """Groups whose nodes suit the job."""
        key = (job.gpus > 0, *job.constraints)
        if key not in self._matching:
            self._matching[key] = [group for group in self.groups if job.matches(group.example)]
        return self._matching[key]

    def fits(self, i: int, load: _Load) -> bool:
        """Whether node i can take the load now."""
        return self.gpus[i] >= load.gpus and self.cpus[i] >= load.cpus and self.memory[i] >= load.memory

    def change(self, i: int, load: _Load, sign: int) -> None:
        """Take a load from node i (sign -1) or give it back (+1)."""
        gpus, cpus = self.gpus[i], self.cpus[i]
        self.gpus[i] += sign * load.gpus
        self.cpus[i] += sign * load.cpus
        self.memory[i] += sign * load.memory
        group = self.group[i]
        if group is not None:
            if load.gpus:
                del group.by_gpus[bisect_left(group.by_gpus, (gpus, i))]
                insort(group.by_gpus, (self.gpus[i], i))
                if group.example.gpu_type is not None:
                    self.total[group.example.gpu_type] += sign * load.gpus
            if load.cpus:
                del group.by_cpus[bisect_left(group.by_cpus, (cpus, i))]
                insort(group.by_cpus, (self.cpus[i], i))

    def candidates(self, groups: Iterable[_Group], load: _Load) -> Iterator[int]:
        """Nodes with enough free GPUs (CPU-only: CPUs), tightest fit first; a CPU-only load spares GPU nodes."""
        if load.gpus:
            yield from _merged((group.by_gpus, load.gpus) for group in groups)
        else:
            yield from _merged((g.by_cpus, load.cpus) for g in groups if g.example.gpu_type is None)
            yield from _merged((g.by_cpus, load.cpus) for g in groups if g.example.gpu_type is not None)


def _merged(indexes: Iterable[tuple[list[tuple[int, int]], int]]) -> Iterator[int]:
    tails = [index[bisect_left(index, (least, -1)) :] for index, least in indexes]
    return (i for _, i in (tails[0] if len(tails) == 1 else heapq.merge(*tails)))


class _Placer:
    """One call of ``place``: who holds what so far, and what is free."""

    def __init__(self, snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant]) -> None:
        self.job = snapshot.job
        self.jobs = sorted(snapshot.jobs, key=lambda job: (job.submitted, job.uid))
        self.order = [*grants, *fallback]
        self.grants = len(grants)
        self.rank = {grant.uid: i for i, grant in enumerate(self.order)}
        self.free = _Free(snapshot.nodes, snapshot.jobs)
        self.placed: dict[str, Placement] = {}
        self.residue: dict[str, _Load] = {}
        self.movable: list[dict[str, _Load]] = [{} for _ in self.free.nodes]
        self.ranks: list[int] = []  # of placed jobs that could be displaced, ascending
        self.vain = 0
        self.hopeless: set[object] = set()
        self.types = sorted({node.gpu_type for node in self.free.nodes if node.gpu_type is not None})
        self.widest = {t: max(n.gpus for n in self.free.nodes if n.gpu_type == t) for t in self.types}
        self.words: dict[object, str] = {}

    def run(self) -> Placements:
        for job in self.jobs:
            self._fix(job)
        self._keep()
        for rank, grant in enumerate(self.order):
            if grant.uid in self.placed:
                self._grow(grant)
            else:
                self._settle(rank, grant)
        uids = sorted(self.placed, key=lambda uid: self.rank.get(uid, -1))
        return Placements(
            placed={uid: self.placed[uid] for uid in uids},
            unplaced={g.uid: self._explain(self.job[g.uid], g) for g in self.order if g.uid not in self.placed},
        )

    # -- who holds what ------------------------------------------------------------------------------------------

    def _fix(self, job: Job) -> None:
        """Take off what nothing in this round can free."""
        if job.placement is None or not job.active:
            return
        if job.pinned:
            self._assign(job, job.placement)
            return
        load = _load(job, job.placement.gpus_per_node)
        if job.status is Status.SUSPENDED:
            # Who suspended it may resume it at any moment: only behind our own suspensions are the CPUs ours to give.
            self.residue[job.uid] = _Load(load.gpus, 0 if job.suspended_by_us else load.cpus, load.memory)
        elif job.status is Status.RUNNING and job.preempt is Preempt.SUSPEND:
            self.residue[job.uid] = _Load(0, 0, load.memory)
        else:
            return
        for i in self._numbers(job.placement):
            self.free.change(i, self.residue[job.uid], -1)

    def _keep(self) -> None:
        """Leave granted jobs where they are: running ones as a fact, the others as far as there is room."""
        granted = [(grant, self.job[grant.uid]) for grant in self.order if grant.uid not in self.placed]
        for grant, job in granted:
            if job.status is Status.RUNNING and job.placement is not None and _answers(grant, job.placement):
                self._assign(job, job.placement)
        for grant, job in granted:
            if job.status in (Status.QUEUED, Status.SUSPENDED):
                self._stay(grant, job)

    def _stay(self, grant: Grant, job: Job) -> bool:
        """Put it exactly where it is, was released for, or is just leaving, if that answers the grant and fits."""
        place = job.released if job.status is Status.QUEUED else job.placement
        if place is None or not _answers(grant, place):
            return False
        in_place = job.status in (Status.RUNNING, Status.SUSPENDED)
        numbers = self._numbers(place)
        if not in_place and not all(self.free.nodes[i].accepts and job.matches(self.free.nodes[i]) for i in numbers):
            return False
        load = self._rest(job, place)
        if len(numbers) < len(place.nodes) or not all(self.free.fits(i, load) for i in numbers):
            return False
        self._assign(job, place)
        return True

    def _numbers(self, place: Placement) -> list[int]:
        """Its nodes' numbers; a node that is gone from the snapshot has none."""
        return [self.free.number[name] for name in place.nodes if name in self.free.number]

    def _rest(self, job: Job, place: Placement) -> _Load:
        """What it takes on each node beyond what it holds there anyway."""
        load = _load(job, place.gpus_per_node)
        held = self.residue.get(job.uid)
        if held is None:
            return load
        return _Load(load.gpus - held.gpus, load.cpus - held.cpus, load.memory - held.memory)

    def _assign(self, job: Job, place: Placement) -> None:
        load = self._rest(job, place)
        self.placed[job.uid] = place
        if not job.pinned:
            insort(self.ranks, self.rank[job.uid])
        for i in self._numbers(place):
            self.free.change(i, load, -1)
            if not job.pinned:
                self.movable[i][job.uid] = load

    def _release(self, job: Job) -> Placement:
        place = self.placed.pop(job.uid)
        del self.ranks[bisect_left(self.ranks, self.rank[job.uid])]
        load = self._rest(job, place)
        for i in self._numbers(place):
            self.free.change(i, load, +1)
            del self.movable[i][job.uid]
        return place

    # -- finding nodes -------------------------------------------------------------------------------------------

    def _settle(self, rank: int, grant: Grant) -> None:
        job = self.job[grant.uid]
        important = rank < self.grants
        full, free_to_go = job.spreads(grant.gpus), job.uid not in self.residue
        if self._stay(grant, job) or (free_to_go and self._find_any(grant, job, full)):
            return
        if important and self._displace(rank, job, full, self.grants - 1):
            return
        if free_to_go and self._find_any(grant, job, self._fewer(grant, job)):
            return
        least = grant.gpus if grant.at_least is None else grant.at_least
        if important and self.vain < VAIN_REPAIRS and self._enough(rank, grant, job, least):
            served = any(
                self._displace(rank, job, spreads, above)
                for spreads in (full, job.spreads(least) if least < grant.gpus else ())
                for above in (rank, -1)
            )
            self.vain += not served

    def _enough(self, rank: int, grant: Grant, job: Job, gpus: int) -> bool:
        """Whether GPUs, though scattered or held by later jobs, are enough for a grant; cheap, and never wrongly no."""
        if not job.gpus:
            return True
        types = self._types(grant, job)
        total = sum(self.free.total.get(t, 0) for t in types)
        for later in reversed(self.ranks):
            if total >= gpus or later < rank:
                break
            total += self.placed[self.order[later].uid].gpus
        return total >= gpus

    def _grow(self, grant: Grant) -> None:
        """Move a kept job to more GPUs, where its grant asks for more than it holds and they are free."""
        job = self.job[grant.uid]
        held = self.placed[job.uid].gpus
        if held >= grant.gpus or job.pinned or job.uid in self.residue:
            return
        before, memory = self._release(job), self.hopeless
        self.hopeless = set()  # what was hopeless may fit into its own room
        amounts = [*job.spreads(grant.gpus), *(a for a in self._fewer(grant, job) if a[0] * a[1] > held)]
        if not self._find_any(grant, job, amounts):
            self._assign(job, before)
            self.hopeless = memory

    def _fewer(self, grant: Grant, job: Job) -> Iterator[tuple[int, int]]:
        """Smaller sizes than the grant's, largest first.

        All but the last are held to as few nodes as can hold them: seven nodes x one GPU are no gain over one x four.
        """
        if grant.at_least is None:
            return
        widest = max((self.widest[t] for t in self._types(grant, job)), default=0)
        for gpus in range(grant.gpus - 1, grant.at_least - 1, -1):
            for k, g in job.spreads(gpus):
                if gpus == grant.at_least or k == job.nodes or (k - 1) * widest < gpus:
                    yield k, g

    def _types(self, grant: Grant, job: Job) -> list[str]:
        """GPU types to try, the one of the present or previous run first."""
        if grant.gpu_type is not None:
            return [grant.gpu_type] if grant.gpu_type in self.widest else []
        wanted = [t for t in job.gpu_types if t in self.widest] if job.gpu_types else self.types
        before = _before(job)
        return sorted(wanted, key=lambda t: before is None or t != before.gpu_type)

    def _find_any(self, grant: Grant, job: Job, spreads: Iterable[tuple[int, int]]) -> bool:
        """Place it on the first spread for which there are nodes."""
        types: Sequence[str | None] = self._types(grant, job) if job.gpus else (None,)
        for k, g in spreads:
            for gpu_type in types:
                numbers = self._find(job, k, g, gpu_type)
                if numbers is not None:
                    names = tuple(self.free.nodes[i].name for i in numbers)
                    self._assign(job, Placement(names, g, gpu_type))
                    return True
        return False

    def _find(self, job: Job, k: int, g: int, gpu_type: str | None) -> list[int] | None:
        """K nodes with room: first those of the previous run, then the tightest."""
        load = _load(job, g)
        key = (k, load, gpu_type, *job.constraints)
        if key in self.hopeless:
            return None
        groups = self._groups(job, gpu_type)
        before = _before(job)
        chosen = [
            i
            for i in (self._numbers(before) if before is not None else ())
            if self.free.fits(i, load) and self.free.group[i] in groups
        ][:k]
        if len(chosen) < k:
            for i in self.free.candidates(groups, load):
                if self.free.fits(i, load) and i not in chosen:
                    chosen.append(i)
                    if len(chosen) == k:
                        break
            else:
                self.hopeless.add(key)
                return None
        return chosen

    def _groups(self, job: Job, gpu_type: str | None) -> list[_Group]:
        groups = self.free.matching(job)
        return groups if gpu_type is None else [g for g in groups if g.example.gpu_type == gpu_type]

    # -- making room ---------------------------------------------------------------------------------------------

    def _displace(self, rank: int, job: Job, spreads: Iterable[tuple[int, int]], above: int) -> bool:
        """Place a grant by taking nodes from placed jobs of rank above a bound, few and unimportant ones.

        Displaced jobs before it in the order get another place at once, or nothing is changed; those after it get
        their turn later.
        """
        if self.ranks and self.ranks[-1] > above:
            for k, g, gpu_type, sites in self._sites(self.order[rank], job, spreads):
                found = self._vacate(job, k, g, sites, above)
                if found is not None:
                    numbers, displaced = found
                    names = tuple(self.free.nodes[i].name for i in numbers)
                    if self._swap(rank, job, Placement(names, g, gpu_type), displaced):
                        return True
        return False

    def _sites(
        self, grant: Grant, job: Job, spreads: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, int, str | None, Callable[[int], bool]]]:
        """Where each spread could be at all: (nodes, GPUs per node, type, whether a node number is a site)."""
        if job.uid in self.residue:
            if job.placement is not None and _answers(grant, job.placement):
                own = set(self._numbers(job.placement))
                yield len(job.placement.nodes), job.placement.gpus_per_node, job.placement.gpu_type, own.__contains__
            return
        types: Sequence[str | None] = self._types(grant, job) if job.gpus else (None,)
        for k, g in spreads:
            for gpu_type in types:
                yield k, g, gpu_type, self._among(self._groups(job, gpu_type))

    def _among(self, groups: list[_Group]) -> Callable[[int], bool]:
        return lambda i: self.free.group[i] in groups

    def _vacate(
        self, job: Job, k: int, g: int, site: Callable[[int], bool], above: int
    ) -> tuple[list[int], set[str]] | None:
        """K sites that become free enough by displacing few jobs of rank above a bound, and these jobs.

        None if there are none. Looks at the nodes of the least important jobs first, and no further once enough
        sites are found that cost one job each.
        """
        load = self._rest(job, Placement((), g, None))
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

    def _from_the_end(self, load: _Load, above: int) -> Iterator[int]:
        """Nodes that fit as they are, then nodes of placed jobs, the least important first; with repetitions."""
        yield from (i for i in self.free.candidates(self.free.groups, load) if self.free.fits(i, load))
        for rank in reversed(self.ranks):
            if rank <= above:
                return
            yield from self._numbers(self.placed[self.order[rank].uid])

    def _victims(self, i: int, load: _Load, above: int) -> set[str] | None:
        """The jobs to take off node i for the load to fit, the least important first; None if it cannot."""
        gpus = self.free.gpus[i] - load.gpus
        cpus = self.free.cpus[i] - load.cpus
        memory = self.free.memory[i] - load.memory
        taken: list[tuple[str, _Load]] = []
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
        before = {uid: self._release(self.job[uid]) for uid in displaced}
        known, self.hopeless = self.hopeless, set()
        self._assign(job, place)
        moved = []
        for uid in sorted((uid for uid in displaced if self.rank[uid] < rank), key=lambda uid: self.rank[uid]):
            grant, other = self.order[self.rank[uid]], self.job[uid]
            moved.append(uid)
            if not self._stay(grant, other) and (
                uid in self.residue or not self._find_any(grant, other, other.spreads(before[uid].gpus))
            ):
                break
        else:
            return True
        for uid in (*moved, job.uid):
            if uid in self.placed:
                self._release(self.job[uid])
        for uid, there in before.items():
            self._assign(self.job[uid], there)
        self.hopeless = known
        return False

    # -- words ---------------------------------------------------------------------------------------------------

    def _explain(self, job: Job, grant: Grant) -> str:
        if job.uid in self.residue and job.placement is not None:
            where = ", ".join(job.placement.nodes)
            return f"it is suspended on {where}, cannot move, and there its resources are taken"
        gpus = grant.gpus if grant.at_least is None else grant.at_least
        spreads = job.spreads(gpus)
        types = tuple(self._types(grant, job)) if job.gpus else (None,)
        unit = (job.cpus_per_unit, job.memory_per_unit)
        key = (gpus, grant.gpus, spreads, types, *job.constraints, unit)
        if key not in self.words:
            self.words[key] = self._words(job, gpus, spreads, types)
        return self.words[key]

    def _words(self, job: Job, gpus: int, spreads: tuple[tuple[int, int], ...], types: Sequence[str | None]) -> str:
        groups = [g for g in self.free.matching(job) if not job.gpus or g.example.gpu_type in types]
        kind = f" of type {' or '.join(t for t in types if t)}" if job.gpu_types or len(types) == 1 else ""
        if not groups:
            wanted = [f"GPUs of type {' or '.join(job.gpu_types)}"] if job.gpu_types else ["GPUs"] if job.gpus else []
            wanted += [f"feature {feature}" for feature in sorted(job.features)]
            having = f" with {', '.join(wanted)}" if wanted else ""
            return f"no node{having}{f' in partition {job.partition}' if job.partition else ''} accepts jobs now"
        numbers = [i for group in groups for _, i in group.by_gpus]
        if not job.gpus:
            free = sum(max(self.free.cpus[i], 0) for i in numbers)
            k = job.nodes or 1
            each = f"{_count(k, 'node')} with {_count(job.node_cpus(0), 'free CPU')}"
            memory = f" and {_gib(job.node_memory(0))} of memory" if job.memory_per_unit else ""
            return f"needs {each}{memory}{' each' if k > 1 else ''}; {_count(free, 'CPU')} are free in all"
        if not spreads:
            return f"{_count(gpus, 'GPU')} cannot be spread evenly over {_nodes_asked(job)}"
        free = sum(max(self.free.gpus[i], 0) for i in numbers)
        if free < gpus:
            return f"needs {_count(gpus, 'GPU')}{kind}; {free} {'is' if free == 1 else 'are'} free"
        lacking = any(sum(self.free.gpus[i] >= g for i in numbers) >= k for k, g in spreads)
        ways = " or ".join(f"{g} on {_count(k, 'node')}{' each' if k > 1 else ''}" for k, g in spreads[:3])
        missing = "whose CPUs or memory suffice" if lacking else f"that can take {ways}"
        return f"{_count(free, 'GPU')}{kind} {'is' if free == 1 else 'are'} free, but not on nodes {missing}"


def _answers(grant: Grant, place: Placement) -> bool:
    """Whether holding that place is one of the things that the grant allows."""
    least = grant.gpus if grant.at_least is None else grant.at_least
    return least <= place.gpus <= grant.gpus and grant.gpu_type in (None, place.gpu_type)


def _before(job: Job) -> Placement | None:
    """Where it is or was last."""
    return job.placement or job.released or job.last_placement


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _nodes_asked(job: Job) -> str:
    return f"exactly {_count(job.nodes, 'node')}" if job.nodes is not None else f"at most {job.max_nodes} nodes"
