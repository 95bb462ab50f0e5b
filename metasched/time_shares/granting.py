"""Granting one round of the round mechanism: which combinations run, by priority and within their quantum. Pure.

Beyond the paper, a run has a *quantum* of several rounds in which other combinations do not take its GPUs. Jobs that
alternate in every round would spend much of it on restarts.

A *gap filler* is granted GPUs that do not suffice for a combination of higher priority, such as a gang. It comes before
others only until they suffice. A gang thus waits for the quanta of the combinations that ran before it was due, and not
for those of later ones: it would wait for ever beside short jobs that come one after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from metasched.core.model import Job
from metasched.time_shares.round_mechanism import (
    NO_PRIORITY,
    UNCONSOLIDATED,
    Candidate,
    Combination,
    Priorities,
    RoundGrant,
    TimeAccounts,
    gpu_type_of,
)

LONGEST_QUANTUM = 10.0
"""Rounds of a quantum at most: no more than the surplus that a renewal carries over in full (``deficits``)."""


def runs_within_quantum(
    accounts: TimeAccounts, jobs: Mapping[str, Job], now: float, restarts: float, round_seconds: float
) -> Mapping[Combination, str]:
    """The worker type of each combination that runs within its quantum, and has a time share there.

    The quantum of a run is as long as ``restarts`` restarts of its job, at most ``LONGEST_QUANTUM`` rounds. That of a
    pair is the longer one of its jobs', from the later one of their starts.

    Args:
        accounts: with the grants of the last round.
        jobs: the present jobs by uid; a job without a known restart has no quantum.
        now: unix seconds.
        restarts: length of a quantum, in restarts.
        round_seconds: regular seconds of a round.
    """
    found = {}
    for combination in accounts.granted:
        members = [jobs[uid] for uid in combination if uid in jobs]
        place = members[0].placement if len(members) == len(combination) else None
        if place is None or place.gpu_type is None:
            continue
        quantum = min(restarts * max(job.restart_seconds or 0.0 for job in members), LONGEST_QUANTUM * round_seconds)
        started = max(now if job.run_started is None else job.run_started for job in members)
        unconsolidated = combination[0] in accounts.unconsolidated
        worker_type = place.gpu_type + UNCONSOLIDATED if unconsolidated else place.gpu_type
        if now - started < quantum and accounts.shares.get(combination, {}).get(worker_type, 0.0) > 0:
            found[combination] = worker_type
    return found


def choose(
    accounts: TimeAccounts,
    candidates: Sequence[Candidate],
    capacity: Mapping[str, int],
    priority: Priorities,
    *,
    within_quantum: Mapping[Combination, str] | None = None,
    types_in_turn: Sequence[str] = (),
    fill: bool = True,
    nodes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[RoundGrant, ...]:
    """Grant one round by Algorithm 1: highest priority first, each job at most once, as far as GPUs are free.

    Combinations within their quantum come before all others, gap fillers as said above. They move to another worker
    type, on which their priority is higher, if GPUs remain there. Equal priorities are ordered by the larger deficit,
    then by the larger time share, then by candidate.

    Args:
        accounts: time shares, deficits, and the gap fillers of the last round.
        candidates: combinations that could run, with their worker types.
        capacity: GPUs by GPU type.
        priority: the ``priorities`` of these accounts.
        within_quantum: the result of ``runs_within_quantum``; none by default.
        types_in_turn: GPU types that are filled one after the other, and no others; empty: the highest priority over
            all types.
        fill: whether GPUs that remain go to combinations without a time share there.
        nodes: by GPU type, the GPUs of each node: combinations that may run unconsolidated run consolidated only as
            far as these suffice. None where worker types are GPU types alone.

    Returns:
        The round grants, in the order in which they were chosen.
    """
    held = within_quantum or {}
    entries = _in_order(accounts, candidates, priority, types_in_turn, fill=fill)
    granting = _Granting(capacity, nodes)
    gap_fillers: dict[str, list[tuple[Candidate, str]]] = {}  # within their quantum, by GPU type
    for *_, number, worker_type in entries if held else ():
        candidate = candidates[number]
        if held.get(candidate.combination) == worker_type:
            if candidate.combination in accounts.gap_fillers:
                gap_fillers.setdefault(gpu_type_of(worker_type), []).append((candidate, worker_type))
            else:
                granting.grant(candidate, worker_type)
    for _, cost, _, _, number, worker_type in entries:
        if not granting.left:
            break
        candidate = candidates[number]
        if (
            not granting.grant(candidate, worker_type)
            and cost < -NO_PRIORITY
            and granting.waits(candidate, worker_type)
        ):
            granting.begin_gap(worker_type)
            for filler, filled in gap_fillers.pop(gpu_type_of(worker_type), ()):
                granting.grant(filler, filled)
    if held and granting.left:
        _move_to_free_gpus(granting, [(candidates[number], worker_type) for *_, number, worker_type in entries], held)
    return tuple(granting.round_grants.values())


def _in_order(
    accounts: TimeAccounts, candidates: Sequence[Candidate], priority: Priorities, types: Sequence[str], *, fill: bool
) -> list[tuple[int, float, float, float, int, str]]:
    """Each candidate on each of its worker types, the first to be granted first.

    Returns:
        Position of the GPU type in ``types`` (``types_in_turn`` of ``choose``), negative of the priority, surplus,
        negative of the time share, position of the candidate, and worker type.
    """
    rank = {gpu_type: i for i, gpu_type in enumerate(types)}
    entries: list[tuple[int, float, float, float, int, str]] = []
    nothing: Mapping[str, float] = {}
    for i, candidate in enumerate(candidates):
        combination = candidate.combination
        by_type, deficit = priority.get(combination, nothing), accounts.deficit.get(combination, nothing)
        share = accounts.shares.get(combination, nothing)
        for worker_type in candidate.worker_types:
            turn = rank.get(gpu_type_of(worker_type)) if rank else 0
            if (worker_type in by_type or fill) and turn is not None:
                value = by_type.get(worker_type, NO_PRIORITY)
                surplus = -deficit.get(worker_type, 0.0) - candidate.credit
                entries.append((turn, -value, surplus, -share.get(worker_type, 0.0), i, worker_type))
    entries.sort()
    return entries


def _move_to_free_gpus(
    granting: _Granting, entries: Iterable[tuple[Candidate, str]], held: Mapping[Combination, str]
) -> None:
    """Move combinations from the worker types that they hold to those of higher priority on which GPUs remain.

    Args:
        granting: has the grants of all combinations.
        entries: candidates with one of their worker types each, the highest priority first.
        held: the worker type that each combination holds.
    """
    decided: set[Combination] = set()
    for candidate, worker_type in entries:
        combination = candidate.combination
        here = held.get(combination)
        if here is None or combination in decided:
            continue
        if here == worker_type or granting.move(candidate, here, worker_type):
            decided.add(combination)


class _Granting:
    """The round grants so far, and the GPUs that remain.

    Attributes:
        left: number of free GPUs.
        round_grants: the round grants by combination, in the order in which they were chosen.
    """

    def __init__(self, capacity: Mapping[str, int], nodes: Mapping[str, Sequence[int]] | None) -> None:
        self._free = dict(capacity)
        self._free_by_node = {gpu_type: sorted(gpus) for gpu_type, gpus in (nodes or {}).items()}
        self._gaps: set[str] = set()
        self._busy: set[str] = set()
        self.left = sum(self._free.values())
        self.round_grants: dict[Combination, RoundGrant] = {}

    def grant(self, candidate: Candidate, worker_type: str) -> bool:
        """Grant the round to a combination if its GPUs are free and none of its jobs has a grant; whether it has."""
        if not self._busy.isdisjoint(candidate.combination) or not self._occupy(candidate, worker_type):
            return False
        self._busy.update(candidate.combination)
        return True

    def move(self, candidate: Candidate, held: str, worker_type: str) -> bool:
        """Grant a combination free GPUs instead of those of the worker type ``held``; whether it has them."""
        before = self.round_grants.get(candidate.combination)
        if before is None or before.worker_type != held or not self._occupy(candidate, worker_type):
            return False
        self._free[before.gpu_type] += before.gpus
        self.left += before.gpus
        return True

    def waits(self, candidate: Candidate, worker_type: str) -> bool:
        """Whether none of a combination's jobs has a grant, and some GPUs of the type are free."""
        return self._busy.isdisjoint(candidate.combination) and self._free.get(gpu_type_of(worker_type), 0) > 0

    def begin_gap(self, worker_type: str) -> None:
        """Count all further grants of the GPU type as those of gap fillers."""
        self._gaps.add(gpu_type_of(worker_type))

    def _occupy(self, candidate: Candidate, worker_type: str) -> bool:
        """Grant a combination its GPUs if they are free, whatever its jobs have; whether they are."""
        gpus, gpu_type = candidate.gpus, gpu_type_of(worker_type)
        if gpus > self._free.get(gpu_type, 0):
            return False
        # an unconsolidated grant takes no node here: the placement finds its GPUs wherever they are
        consolidated = candidate.consolidated.get(gpu_type, ()) if worker_type == gpu_type else ()
        if consolidated and not _occupy_nodes(self._free_by_node.get(gpu_type, []), consolidated):
            return False
        self._free[gpu_type] -= gpus
        self.left -= gpus
        granted = RoundGrant(candidate.combination, gpu_type, gpus, worker_type != gpu_type, gpu_type in self._gaps)
        self.round_grants[candidate.combination] = granted
        return True


def _occupy_nodes(free: list[int], gpus_per_node: tuple[int, ...]) -> bool:
    """Subtract a job's GPUs from as many nodes as its placement has, if that is possible; whether that was done.

    The same number on each node is taken from the fullest nodes that can hold it. Other placements take all GPUs of the
    emptiest nodes, as the placement does, and the rest of the fullest node that can hold it.

    Args:
        free: free GPUs of each node, ascending; kept sorted.
        gpus_per_node: the job's GPUs on each of its nodes, descending.
    """
    each, nodes = gpus_per_node[0], len(gpus_per_node)
    if gpus_per_node[-1] == each:
        first = bisect_left(free, each)
        if len(free) - first < nodes:
            return False
        for number in range(first, first + nodes):
            free[number] -= each
    else:
        left, last = sum(gpus_per_node), len(free) - nodes
        if last < 0 or sum(free[last:]) < left:
            return False
        number = len(free) - 1
        while free[number] < left:
            left -= free[number]
            free[number] = 0
            number -= 1
        free[bisect_left(free, left, hi=number + 1)] -= left
    free.sort()
    return True
