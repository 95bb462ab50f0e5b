"""Granting one round of the round mechanism: which combinations run, by priority and within their quantum. Pure.

Beyond the paper, a run has a *quantum* of several rounds in which other combinations do not take its GPUs. Jobs that
alternate in every round would spend much of it on restarts.

A *gap filler* is granted GPUs that do not suffice for a combination of higher priority, such as a gang, or that count
against quotas that leave that combination too little. It comes before others only until they suffice. A gang thus waits
for the quanta of the combinations that ran before it was due, and not for those of gap fillers. Otherwise it would wait
for ever beside short jobs that come one after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from metasched.capacity.quota_budget import QuotaBudget
from metasched.core.model import Job, Quota
from metasched.time_shares.deficits import FULL_ROUNDS
from metasched.time_shares.round_mechanism import (
    NO_PRIORITY,
    Candidate,
    Combination,
    Priorities,
    RoundGrant,
    TimeAccounts,
    TimeShares,
    gpu_type_of,
    worker_type_of,
)

_Entry = tuple[int, float, float, float, int, str]
"""A candidate on one of its worker types, sorted by: position in ``types_in_turn``, negative of the priority, surplus,
negative of the time share, position of the candidate; and the worker type."""

LONGEST_QUANTUM = FULL_ROUNDS
"""Rounds of a quantum at most: the surplus that a renewal carries over in full."""


def runs_within_quantum(
    accounts: TimeAccounts, jobs: Mapping[str, Job], now: float, restarts: float, round_seconds: float
) -> Mapping[Combination, str]:
    """The worker type of each combination that runs within its quantum, and has a time share there.

    The quantum of a run is as long as ``restarts`` restarts of its job, at most ``LONGEST_QUANTUM`` rounds. A restart
    takes at least as long as the job's longest cut start: otherwise jobs whose starts take longer than a round would
    stop each other in every round, and none of them would train. The quantum of a pair is the longer one of its jobs',
    from the later one of their starts.

    Args:
        accounts: with the grants of the last round.
        jobs: the present jobs by uid; a job with neither a known restart cost nor a cut start has no quantum.
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
        restart = max(max(job.restart_seconds or 0.0, job.cut_start_seconds or 0.0) for job in members)
        quantum = min(restarts * restart, LONGEST_QUANTUM * round_seconds)
        started = max(now if job.run_started is None else job.run_started for job in members)
        worker_type = worker_type_of(place.gpu_type, unconsolidated=combination[0] in accounts.unconsolidated)
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
    quotas: Sequence[Quota] = (),
) -> tuple[RoundGrant, ...]:
    """Grant one round by Algorithm 1: highest priority first, each job at most once, as far as GPUs are free.

    A combination of which quotas leave a job too few GPUs is passed over. Otherwise the placement would deny it the
    GPUs, and leave them, round after round, to the jobs that run there.

    Combinations within their quantum come before all others, but gap fillers only while a gap is open. Combinations
    within their quantum move to a worker type of which they have a larger time share, if GPUs remain there. Equal
    priorities are ordered by the larger deficit, then by the larger time share, then by candidate.

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
        quotas: the quotas, net of the use by jobs that are not candidates.

    Returns:
        The round grants, in the order in which they were chosen.
    """
    runs = within_quantum or {}
    entries = _in_order(accounts, candidates, priority, types_in_turn, fill=fill)
    granting = _Granting(capacity, nodes, quotas)
    fillers = _keep(granting, entries, candidates, runs, accounts.gap_fillers)
    moved = True
    while moved:
        _grant_in_order(granting, entries, candidates, fillers)
        moved = _move_up(granting, candidates, accounts.shares, runs)
    return _marked(granting, entries, candidates, priority, runs)


def _keep(
    granting: _Granting,
    entries: Sequence[_Entry],
    candidates: Sequence[Candidate],
    runs: Mapping[Combination, str],
    gap_fillers: Collection[Combination],
) -> list[tuple[Candidate, str]]:
    """Grant combinations within their quantum (``runs``) the round where they run, gap fillers excepted.

    Returns:
        The gap fillers within their quantum, with their worker types.
    """
    excepted = []
    for *_, number, worker_type in entries if runs else ():
        candidate = candidates[number]
        if runs.get(candidate.combination) != worker_type:
            continue
        if candidate.combination in gap_fillers:
            excepted.append((candidate, worker_type))
        else:
            granting.grant(candidate, worker_type)
    return excepted


def _grant_in_order(
    granting: _Granting,
    entries: Iterable[_Entry],
    candidates: Sequence[Candidate],
    gap_fillers: list[tuple[Candidate, str]],
) -> None:
    """Grant GPUs by priority; where a combination lacks some of its GPUs, gap fillers of that gap come next."""
    for _, negative, _, _, number, worker_type in entries:
        if not granting.left:
            break
        candidate = candidates[number]
        if granting.grant(candidate, worker_type) or -negative <= NO_PRIORITY:
            continue
        if granting.begin_gap(candidate, worker_type):
            for filler in [one for one in gap_fillers if granting.fills_gap(*one)]:
                gap_fillers.remove(filler)
                granting.grant(*filler)


def _move_up(
    granting: _Granting, candidates: Iterable[Candidate], shares: TimeShares, runs: Mapping[Combination, str]
) -> bool:
    """Move combinations within their quantum (``runs``) to worker types of a larger time share on which GPUs remain.

    A larger time share, not a higher priority: that is highest where a combination has received least, so that it would
    move, and restart, again and again.

    Returns:
        Whether any has moved.
    """
    moved = False
    for candidate in candidates if runs and granting.left else ():
        present, share = runs.get(candidate.combination), shares.get(candidate.combination, {})
        if present is None:
            continue
        larger = [one for one, part in share.items() if one in candidate.worker_types and part > share[present]]
        larger.sort(key=lambda one: -share[one])
        moved |= any(granting.move(candidate, present, worker_type) for worker_type in larger)
    return moved


def _marked(
    granting: _Granting,
    entries: Iterable[_Entry],
    candidates: Sequence[Candidate],
    priority: Priorities,
    runs: Mapping[Combination, str],
) -> tuple[RoundGrant, ...]:
    """The round grants, with the marks of those within a quantum (``runs``), and of those in advance."""
    if not runs:
        return tuple(granting.round_grants.values())
    waiting: dict[str, float] = {}  # the highest priority of combinations without a grant, by GPU type
    for _, negative, _, _, number, worker_type in entries:
        if len(waiting) == granting.gpu_types:
            break
        if -negative > NO_PRIORITY and granting.could_have(candidates[number], worker_type):
            waiting.setdefault(gpu_type_of(worker_type), -negative)
    marked = []
    for combination, granted in granting.round_grants.items():
        in_quantum = runs.get(combination) == granted.worker_type
        before_others = in_quantum and not granted.fills_gap
        in_advance = before_others and priority[combination][granted.worker_type] < waiting.get(
            granted.gpu_type, NO_PRIORITY
        )
        marked.append(replace(granted, in_quantum=in_quantum, in_advance=in_advance))
    return tuple(marked)


def _in_order(
    accounts: TimeAccounts, candidates: Sequence[Candidate], priority: Priorities, types: Sequence[str], *, fill: bool
) -> list[_Entry]:
    """Each candidate on each of its worker types, the first to be granted first; ``types`` are ``types_in_turn``."""
    rank = {gpu_type: i for i, gpu_type in enumerate(types)}
    entries: list[_Entry] = []
    nothing: Mapping[str, float] = {}
    for i, candidate in enumerate(candidates):
        combination = candidate.combination
        by_type, deficit = priority.get(combination, nothing), accounts.deficit.get(combination, nothing)
        share = accounts.shares.get(combination, nothing)
        for worker_type in candidate.worker_types:
            turn_rank = rank.get(gpu_type_of(worker_type)) if rank else 0
            if (worker_type in by_type or fill) and turn_rank is not None:
                value = by_type.get(worker_type, NO_PRIORITY)
                surplus = -deficit.get(worker_type, 0.0) - candidate.credit
                entries.append((turn_rank, -value, surplus, -share.get(worker_type, 0.0), i, worker_type))
    entries.sort()
    return entries


class _Granting:
    """The round grants so far, and the GPUs that remain.

    Attributes:
        gpu_types: number of GPU types.
        left: number of free GPUs.
        round_grants: the round grants by combination, in the order in which they were chosen.
    """

    def __init__(
        self, capacity: Mapping[str, int], nodes: Mapping[str, Sequence[int]] | None, quotas: Sequence[Quota]
    ) -> None:
        self._free = dict(capacity)
        self._free_by_node = {gpu_type: sorted(gpus) for gpu_type, gpus in (nodes or {}).items()}
        self._gaps: set[str] = set()  # GPU types
        self._gaps_of_quotas: set[int] = set()  # positions
        self._busy: set[str] = set()
        self._budget = QuotaBudget(quotas)
        self.gpu_types = len(self._free)
        self.left = sum(self._free.values())
        self.round_grants: dict[Combination, RoundGrant] = {}

    def grant(self, candidate: Candidate, worker_type: str) -> bool:
        """Grant the round to a combination that could have it, if its GPUs are free; whether it has the round."""
        if not self.could_have(candidate, worker_type) or not self._occupy(candidate, worker_type):
            return False
        self._budget.charge(candidate.combination, candidate.gpus, [gpu_type_of(worker_type)])
        self._busy.update(candidate.combination)
        return True

    def move(self, candidate: Candidate, from_type: str, worker_type: str) -> bool:
        """Grant a combination free GPUs instead of those of the worker type ``from_type``; whether it has them."""
        before = self.round_grants.get(candidate.combination)
        if before is None or before.worker_type != from_type:
            return False
        self._budget.refund(candidate.combination, before.gpus, [before.gpu_type])
        moved = self._allows(candidate, worker_type) and self._occupy(candidate, worker_type)
        gpu_type = gpu_type_of(worker_type) if moved else before.gpu_type
        self._budget.charge(candidate.combination, before.gpus, [gpu_type])
        if moved:
            self._free[before.gpu_type] += before.gpus
            self.left += before.gpus
        return moved

    def could_have(self, candidate: Candidate, worker_type: str) -> bool:
        """Whether no job of the combination has a grant, and quotas leave all of them enough GPUs."""
        return self._busy.isdisjoint(candidate.combination) and self._allows(candidate, worker_type)

    def begin_gap(self, candidate: Candidate, worker_type: str) -> bool:
        """Count further grants of what a combination needs as those of gap fillers; whether any of that is left.

        These are grants of the GPU type, unless quotas deny the combination its GPUs, and all that count against the
        combination's quotas. Without all of these quotas, jobs would use up one while the combination lacks another.
        """
        gpu_type = gpu_type_of(worker_type)
        if not self._busy.isdisjoint(candidate.combination):
            return False
        quotas = self._budget.counting(candidate.combination, gpu_type)
        left = [number for number in quotas if self._budget.left[number] > 0]
        self._gaps_of_quotas.update(left)
        lacks_gpus = self._free.get(gpu_type, 0) > 0 and self._allows(candidate, worker_type)
        if lacks_gpus:
            self._gaps.add(gpu_type)
        return lacks_gpus or bool(left)

    def fills_gap(self, candidate: Candidate, worker_type: str) -> bool:
        """Whether a grant of this worker type would be a gap filler's."""
        gpu_type = gpu_type_of(worker_type)
        if gpu_type in self._gaps:
            return True
        return not self._gaps_of_quotas.isdisjoint(self._budget.counting(candidate.combination, gpu_type))

    def _allows(self, candidate: Candidate, worker_type: str) -> bool:
        """Whether quotas leave all jobs of the combination enough GPUs."""
        return self._budget.allows(candidate.combination, candidate.gpus, gpu_type_of(worker_type))

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
        fills_gap = self.fills_gap(candidate, worker_type)
        granted = RoundGrant(candidate.combination, gpu_type, gpus, worker_type != gpu_type, fills_gap)
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
