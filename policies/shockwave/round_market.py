"""The market of a snapshot: its jobs with their work and budgets, and its nodes and quotas as resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from metasched.capacity.shapes import ClusterShapes, ShapeCapacity
from metasched.core.model import Job, Placement, Snapshot
from metasched.core.retention import is_non_preemptible, is_vacating
from policies.shockwave.budgets import account_weights, budgets, estimated_rho
from policies.shockwave.contention import ContentionHistory
from policies.shockwave.forecast import Forecast, Prediction, forecast
from policies.shockwave.market import Market, MarketJob, Mode, Window

MOST_LIMITS = 8
"""Sets of nodes, and quotas, that are resources of the market, at most; placement enforces the others."""


class Way(NamedTuple):
    """A GPU type and a number of GPUs on which a job can run."""

    gpu_type: str
    gpus: int


@dataclass(frozen=True, slots=True)
class MarketRules:
    """What the market needs besides the snapshot.

    Attributes:
        window: the rounds to plan.
        exponent: the exponent of the estimated finish-time fairness in budgets (k).
        prediction: how regimes are predicted.
        restart_seconds: assumed seconds of a restart where none was measured.
        by_account: whether accounts have weights, which their jobs share.
        whole_job: whether progress counts relative to the whole job, rather than to the work that is left.
    """

    window: Window
    exponent: float
    prediction: Prediction
    restart_seconds: float
    by_account: bool
    whole_job: bool = False


@dataclass(frozen=True, eq=False)
class RoundMarket:
    """The market of one snapshot.

    Attributes:
        market: the market.
        ways: by uid, the ways of the job's modes, in their order; empty for a job that the nodes cannot hold.
        resources: the names of the market's resources.
        rho: by uid, the estimated finish-time fairness, for jobs whose work is known.
        pinned: uids of the jobs that keep what they hold.
    """

    market: Market
    ways: Mapping[str, tuple[Way, ...]]
    resources: tuple[str, ...]
    rho: Mapping[str, float]
    pinned: frozenset[str]


class _Limit(NamedTuple):
    """A resource: its name and capacity, and which jobs need how much of it on which GPU type."""

    name: str
    capacity: float
    gpu_type: str | None
    members: frozenset[str] | None = None
    of_jobs: bool = False

    def need(self, uid: str, way: Way) -> float:
        """What a job needs of it in a round."""
        concerned = self.gpu_type in {None, way.gpu_type} and (self.members is None or uid in self.members)
        return (1.0 if self.of_jobs else float(way.gpus)) if concerned else 0.0


def round_market(snapshot: Snapshot, history: ContentionHistory, rules: MarketRules, begins: float) -> RoundMarket:
    """The market of a snapshot.

    Args:
        snapshot: the round's jobs and nodes.
        history: the contention up to the snapshot.
        rules: what else is needed.
        begins: the begin of the window, unix seconds; jobs that run train until then.
    """
    jobs = [job for job in snapshot.jobs if job.gpus]
    shapes = ClusterShapes(snapshot.nodes, jobs, uneven=snapshot.uneven)
    held = {job.uid: place for job in jobs if (place := job.held_or_released) is not None}
    pinned = frozenset(job.uid for job in jobs if job.uid in held and is_non_preemptible(job))
    ways = {job.uid: _ways(job, shapes.of(job), held.get(job.uid), pinned, rules.window) for job in jobs}
    cluster_gpus = float(sum(snapshot.capacity.values()))
    known: dict[str, Forecast] = {}
    rho: dict[str, float] = {}
    modes: dict[str, tuple[Mode, ...]] = {}
    limits = _limits(snapshot, jobs, shapes, {uid: held[uid] for uid in pinned})
    for job in jobs:
        found = {way: _spread(way, shapes.of(job), held.get(job.uid)) for way in ways[job.uid]}
        if not found:
            continue
        places = {way: (way.gpu_type, spread) for way, spread in found.items()}
        least = rules.window.rounds * rules.window.round_seconds
        work = forecast(job, places.values(), rules.prediction, least)
        now = held.get(job.uid)
        here = None if now is None or is_vacating(job) else Way(now.gpu_type or "", now.gpus)
        if here in places:
            work = work.after(begins - snapshot.now, places[here])
        curves = {way: curve for way, place in places.items() if (curve := work.curve(place)) is not None}
        if not curves:
            ways[job.uid] = ()
            continue
        requested = min(curves, key=lambda way: (way.gpus != job.gpus, curves[way].end, way))
        if work.planned:
            total = work.total_seconds(places[requested])
            if total:
                met = history.contention(job.uid, job.submitted, cluster_gpus)
                age = max(begins + least - job.submitted, 0.0)
                rho[job.uid] = estimated_rho(age, curves[requested].end, total, met)
        known[job.uid] = work
        restart = rules.restart_seconds if job.restart_seconds is None else job.restart_seconds
        ways[job.uid] = (requested, *(way for way in curves if way != requested))
        modes[job.uid] = tuple(
            Mode(way.gpus, tuple(limit.need(job.uid, way) for limit in limits), curves[way], way == here, restart)
            for way in ways[job.uid]
        )
    market = _market(jobs, known, modes, rho, limits, pinned, cluster_gpus, rules)
    return RoundMarket(market, ways, tuple(limit.name for limit in limits), rho, pinned)


def _market(  # noqa: PLR0917
    jobs: Sequence[Job],
    known: Mapping[str, Forecast],
    modes: Mapping[str, tuple[Mode, ...]],
    rho: Mapping[str, float],
    limits: Sequence[_Limit],
    pinned: frozenset[str],
    gpus: float,
    rules: MarketRules,
) -> Market:
    wanted = [job for job in jobs if modes.get(job.uid)]
    usual = median(rho.values()) if rho else 1.0
    weights = [job.weight for job in wanted]
    if rules.by_account:
        accounts = [job.account or "" for job in wanted]
        shares = {job.account or "": job.fair_share for job in wanted if job.fair_share is not None}
        weights = account_weights(accounts, weights, shares)
    bought = budgets([rho.get(job.uid, usual) for job in wanted], rules.exponent, weights).tolist() if wanted else []
    sold = [
        MarketJob(
            job.uid,
            known[job.uid].done if rules.whole_job else 0.0,
            modes[job.uid],
            budget,
            job.uid in pinned,
        )
        for job, budget in zip(wanted, bought, strict=True)
    ]
    return Market.of(sold, [limit.capacity for limit in limits], max(gpus, 1.0), rules.window)


def _ways(
    job: Job, shape: ShapeCapacity, held: Placement | None, pinned: frozenset[str], window: Window
) -> tuple[Way, ...]:
    """The ways to run a job: those of the requested size, and those of other sizes where jobs choose among sizes."""
    if job.uid in pinned and held is not None:
        return (Way(held.gpu_type or "", held.gpus),)
    sizes = [job.gpus]
    if window.elastic:
        powers = [1 << step for step in range(job.max_gpus.bit_length())]
        sizes += [size for size in {*powers, job.min_gpus, job.max_gpus} if job.min_gpus <= size <= job.max_gpus]
    found = [way for size in dict.fromkeys(sizes) for way in _ways_of_size(size, shape)]
    fewer = range(job.gpus - 1, job.min_gpus - 1, -1)
    while not found and fewer:  # the nodes cannot hold what it asks for, and may hold less
        found, fewer = _ways_of_size(fewer[0], shape), fewer[1:]
    return tuple(found)


def _ways_of_size(size: int, shape: ShapeCapacity) -> list[Way]:
    return [Way(gpu_type, size) for gpu_type in sorted(shape.widest) if shape.consolidated(gpu_type, size) is not None]


def _spread(way: Way, shape: ShapeCapacity, held: Placement | None) -> tuple[int, ...]:
    """GPUs on each node: as the job has them now, or on as few nodes as possible."""
    if held is not None and way == (held.gpu_type or "", held.gpus):
        return held.spread
    return shape.consolidated(way.gpu_type, way.gpus) or (way.gpus,)


def _limits(
    snapshot: Snapshot, jobs: Sequence[Job], shapes: ClusterShapes, pinned: Mapping[str, Placement]
) -> list[_Limit]:
    """The resources: GPUs by type, GPUs of sets of nodes to which jobs are limited, and quotas that matter."""
    capacity: Counter[str] = Counter(snapshot.capacity)
    for place in pinned.values():
        for name, gpus in place.node_gpus:
            node = snapshot.node.get(name)
            if node is None or not node.accepts:
                capacity[place.gpu_type or ""] += gpus
    found = [_Limit(f"gpu:{name}", float(gpus), name) for name, gpus in sorted(capacity.items())]
    return [*found, *_node_sets(jobs, shapes, pinned), *_quotas(snapshot, jobs, pinned)]


def _node_sets(jobs: Sequence[Job], shapes: ClusterShapes, pinned: Mapping[str, Placement]) -> list[_Limit]:
    """Sets of nodes that are only a part of their GPU type, for the jobs that are limited to them."""
    whole: dict[str, int] = {}
    for bit, nodes in shapes.groups.items():
        if nodes[0].gpu_type is not None:
            whole[nodes[0].gpu_type] = whole.get(nodes[0].gpu_type, 0) | bit
    members: dict[tuple[str, int], set[str]] = {}
    for job in jobs:
        for gpu_type, mask in shapes.of(job).node_sets.items():
            if mask != whole.get(gpu_type) and job.uid not in pinned:
                members.setdefault((gpu_type, mask), set()).add(job.uid)
    largest = sorted(members, key=lambda key: (-len(members[key]), key))[:MOST_LIMITS]
    return [
        _Limit(
            f"nodes:{gpu_type}:{mask}",
            float(sum(node.gpus for bit, nodes in shapes.groups.items() if bit & mask for node in nodes)),
            gpu_type,
            frozenset(members[gpu_type, mask]),
        )
        for gpu_type, mask in sorted(largest)
    ]


def _quotas(snapshot: Snapshot, jobs: Sequence[Job], pinned: Mapping[str, Placement]) -> list[_Limit]:
    """The quotas that are below what their members ask for; those that are exceeded the most first."""
    gpus = {job.uid: job.gpus for job in jobs}
    found = []
    for number, quota in enumerate(snapshot.quotas):
        limit = _Limit(f"quota:{number}:{quota.name}", 0.0, quota.gpu_type, quota.members, quota.of_jobs)
        used = sum(
            limit.need(uid, Way(place.gpu_type or "", place.gpus))
            for uid, place in pinned.items()
            if uid in quota.members
        )
        wanted = sum(quota.use(gpus[uid]) for uid in quota.members if uid in gpus)
        if wanted > quota.left:
            found.append((wanted - quota.left, limit._replace(capacity=max(float(quota.left), used))))
    return [limit for _, limit in sorted(found, key=lambda pair: (-pair[0], pair[1].name))[:MOST_LIMITS]]
