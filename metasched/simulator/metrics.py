"""What a simulation was worth: every metric defined once, with its source. Pure, and linear in jobs but for sorting.

Jobs that did not finish have no completion time and no fairness; they are counted (``unfinished``), and while there are
any, the makespan is not defined. Whatever is not defined is ``None``.

Finish-time fairness compares a job's completion time (its JCT) with the time that would have been fair: rho > 1 is
unfair. Papers differ in what is fair; these are their definitions, ``alone`` being the time that a job takes on the
GPUs that it asks for, on as few nodes as can be (in one rack, if that takes no more), of the type where it is fastest:

- ``themis`` (NSDI 2020, section 4.3): an app is a hyper-parameter search, here the tasks ``<base>_<task>`` of one base;
  its time is from its first submission to its last end. Fair is its work on its GPUs, at most the cluster's, at linear
  speed, times the mean number of live apps in its life.
- ``gavel`` (OSDI 2020, section 4.2): fair is the job's time with 1/n of every type's GPUs, n being the mean number of
  live jobs in its life; a job of k GPUs runs for a k-th of the time on its part, and never more than all of it.
- ``shockwave`` (NSDI 2023, section 2, and its artifact's "static contention"): fair is ``alone`` times all jobs over
  all GPUs, but at least 1. The paper counts rho > 1 as unfair, the artifact rho > 1.05, and so do we.
- ``shockwave_live`` (the artifact's other list): likewise with the mean number of live jobs in the job's life.
- ``pollux`` (OSDI 2021, section 5.3.1): likewise with the mean of the GPUs that all live jobs had asked for.
- ``ares`` (section 3.2): fair is when the job would end under generalised processor sharing, where all live jobs have
  the same number of GPUs at every instant; but not before ``alone``.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from metasched.core.model import Job, Node, Placement
from metasched.simulator.records import JobOutcome, Locality, Outcome, RunInterval, Submission, Workload
from metasched.throughput.training import Training

HOUR = 3600.0
UNFAIR: Mapping[str, float] = {
    "themis": 1.0,
    "gavel": 1.0,
    "shockwave": 1.05,
    "shockwave_live": 1.05,
    "pollux": 1.0,
    "ares": 1.0,
}
"""By definition of finish-time fairness: above which rho a job is treated unfairly."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """Finish-time fairness by one definition.

    Attributes:
        rho: by uid (by app for Themis), of those for which it is defined.
        threshold: above which rho counts as unfair.
    """

    rho: Mapping[str, float]
    threshold: float

    @property
    def mean(self) -> float | None:
        """Of all rho."""
        return fmean(self.rho.values()) if self.rho else None

    @property
    def worst(self) -> float | None:
        """The largest rho."""
        return max(self.rho.values(), default=None)

    @property
    def unfair(self) -> float | None:
        """The fraction of those treated unfairly."""
        return fmean(value > self.threshold for value in self.rho.values()) if self.rho else None


@dataclass(frozen=True, slots=True)
class Metrics:
    """All of them. Times are seconds; those of jobs are over the jobs of the window.

    Attributes:
        jobs: how many were measured.
        unfinished: how many of them did not finish.
        jct_mean: job completion time, from submission to end (every paper's).
        jct_median: likewise.
        jct_p99: its 99th percentile, interpolated between ranks.
        makespan: from the first submission to the last end (Gavel, section 4.2).
        first_wait_mean: from submission to the first start.
        queueing_mean: completion time without the time in which the job held its GPUs.
        utilization: GPU time held, over what there was from the first submission to the last end.
        utilization_wanted: GPU time held, over what live jobs had asked for of it (at most all of it): it does not sink
            because nobody wants GPUs.
        preemptions_mean: stops before the end, for each job.
        restarts_mean: starts but the first, for each job, whatever made them necessary.
        gpu_hours: GPU time held by the jobs; while two have the same GPUs, each counts for half, here and everywhere.
        cost: of that, in the currency of the prices; None where a type has no price.
        consolidated: fraction of GPU time on the fewest nodes that can hold the job (placement score).
        lost_hours: of training that failures cost the jobs.
        overhead_hours: for which the jobs held GPUs without training (starts, restarts, checkpoints).
        fairness: finish-time fairness by definition.
    """

    jobs: int
    unfinished: int
    jct_mean: float | None
    jct_median: float | None
    jct_p99: float | None
    makespan: float | None
    first_wait_mean: float | None
    queueing_mean: float | None
    utilization: float | None
    utilization_wanted: float | None
    preemptions_mean: float | None
    restarts_mean: float | None
    gpu_hours: float
    cost: float | None
    consolidated: float | None
    lost_hours: float
    overhead_hours: float
    fairness: Mapping[str, Fairness]

    @property
    def rho(self) -> Mapping[str, float]:
        """By uid, finish-time fairness as Pollux defines it: of all jobs, at any load, on any cluster."""
        return self.fairness["pollux"].rho

    @property
    def values(self) -> dict[str, float | None]:
        """All numbers by name; those of fairness as ``rho_worst_themis``, ``rho_mean_themis``, ``unfair_themis``."""
        found: dict[str, float | None] = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "fairness"
        }
        for name, one in self.fairness.items():
            found |= {f"rho_worst_{name}": one.worst, f"rho_mean_{name}": one.mean, f"unfair_{name}": one.unfair}
        return found


def measure(
    outcome: Outcome,
    workload: Workload,
    *,
    window: range | None = None,
    prices: Mapping[str, float] | None = None,
) -> Metrics:
    """All metrics of a simulation.

    Args:
        outcome: of the simulation.
        workload: that it ran.
        window: positions in the workload, by arrival, of the jobs to be measured (the steady state); None for all. The
            others still count as load.
        prices: of an hour of one GPU, by type.
    """
    submissions = sorted(workload.submissions, key=lambda one: (one.job.submitted, one.job.uid))
    chosen = submissions if window is None else [submissions[i] for i in window if i < len(submissions)]
    of = {job.uid: job for job in outcome.jobs}
    jobs = [of[one.job.uid] for one in chosen if one.job.uid in of]
    done = [job for job in jobs if job.finished is not None]
    jcts = [job.jct for job in done if job.jct is not None]
    began = min((job.submitted for job in jobs), default=0.0)
    ended = max((job.finished for job in done if job.finished is not None), default=outcome.ended)
    held = _by_type(stay for job in jobs for stay in job.stays)
    capacity = sum(node.gpus for node in outcome.nodes)
    everybody = (began, ended, capacity)
    used = sum(stay.gpu_seconds(began, ended) for job in outcome.jobs for stay in job.stays)
    wanted = _wanted(outcome.jobs, {one.job.uid: one.job.gpus for one in submissions}, *everybody)
    return Metrics(
        jobs=len(jobs),
        unfinished=len(jobs) - len(done),
        jct_mean=fmean(jcts) if jcts else None,
        jct_median=median(jcts) if jcts else None,
        jct_p99=percentile(jcts, 0.99) if jcts else None,
        makespan=ended - began if jobs and len(done) == len(jobs) else None,
        first_wait_mean=_mean(job.first_started - job.submitted for job in jobs if job.first_started is not None),
        queueing_mean=_mean((job.jct or 0.0) - sum(stay.ended - stay.began for stay in job.stays) for job in done),
        utilization=used / (capacity * (ended - began)) if capacity and ended > began else None,
        utilization_wanted=used / wanted if wanted else None,
        preemptions_mean=_mean(job.preemptions for job in jobs),
        restarts_mean=_mean(max(len(job.stays) - 1, 0) for job in jobs),
        gpu_hours=sum(held.values()) / HOUR,
        cost=_cost(held, prices),
        consolidated=_consolidated(jobs, outcome.nodes),
        lost_hours=sum(job.lost_seconds for job in jobs) / HOUR,
        overhead_hours=sum(job.overhead_seconds for job in jobs) / HOUR,
        fairness=_fairness(outcome, submissions, {job.uid for job in jobs}),
    )


def percentile(values: Iterable[float], fraction: float) -> float:
    """Between order statistics by linear interpolation, as numpy's default; there must be a value."""
    ordered = sorted(values)
    rank = fraction * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


# -- GPU time -----------------------------------------------------------------------------------------------------


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _by_type(stays: Iterable[RunInterval]) -> dict[str, float]:
    """GPU-seconds."""
    held: dict[str, float] = {}
    for stay in stays:
        if stay.placement.gpu_type is not None:
            kind = stay.placement.gpu_type
            held[kind] = held.get(kind, 0.0) + stay.gpu_seconds()
    return held


def _cost(held: Mapping[str, float], prices: Mapping[str, float] | None) -> float | None:
    if prices is None or not held.keys() <= prices.keys():
        return None
    return sum(seconds / HOUR * prices[kind] for kind, seconds in held.items())


def _wanted(jobs: Iterable[JobOutcome], gpus: Mapping[str, int], began: float, ended: float, capacity: int) -> float:
    """GPU-seconds within a span that live jobs asked for, at most all."""
    changes: list[tuple[float, int]] = [(began, 0), (ended, 0)]
    for job in jobs:
        changes.append((max(job.submitted, began), gpus[job.uid]))
        changes.append((min(math.inf if job.finished is None else job.finished, ended), -gpus[job.uid]))
    total, asked = 0.0, 0
    changes.sort()
    for (at, change), (after, _) in itertools.pairwise(changes):
        asked += change
        total += min(max(asked, 0), capacity) * max(min(after, ended) - at, 0.0)
    return total


def _consolidated(jobs: Iterable[JobOutcome], nodes: Iterable[Node]) -> float | None:
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        if node.gpu_type is not None:
            sizes.setdefault(node.gpu_type, []).append(node.gpus)
    room = {kind: list(itertools.accumulate(sorted(counts, reverse=True))) for kind, counts in sizes.items()}
    together = total = 0.0
    for stay in (stay for job in jobs for stay in job.stays if stay.placement.gpus):
        time = stay.gpu_seconds()
        total += time
        fewest = bisect_right(room.get(stay.placement.gpu_type or "", []), stay.placement.gpus - 1) + 1
        together += time if len(stay.placement.nodes) <= fewest else 0.0
    return together / total if total else None


# -- Finish-time fairness -----------------------------------------------------------------------------------------


def _fairness(outcome: Outcome, submissions: Sequence[Submission], measured: set[str]) -> dict[str, Fairness]:
    capacity = sum(node.gpus for node in outcome.nodes)
    alone = Alone(outcome.nodes, outcome.settings.locality)
    times = {one.job.uid: alone.by_type(one) for one in submissions}
    best = {uid: min(found.values()) for uid, found in times.items() if found}
    gpus = {one.job.uid: one.job.gpus for one in submissions if one.job.gpus}
    jobs = [job for job in outcome.jobs if job.uid in measured and job.uid in best and job.uid in gpus]
    done = [job for job in jobs if job.finished is not None]
    live = _Live((job.submitted, math.inf if job.finished is None else job.finished) for job in outcome.jobs)
    sharing = _processor_sharing(submissions, best, capacity)
    static = max(len(outcome.jobs) / capacity, 1.0) if capacity else 1.0
    fair: dict[str, dict[str, float]] = {name: {} for name in UNFAIR if name != "themis"}
    for job in done:
        uid, time, mean_live = job.uid, best[job.uid], live.mean(job.submitted, job.finished or 0.0)
        fair["gavel"][uid] = _isolated(times[uid], gpus[uid], alone.gpus, max(mean_live, 1.0))
        fair["shockwave"][uid] = time * static
        fair["shockwave_live"][uid] = time * max(mean_live / capacity, 1.0)
        fair["pollux"][uid] = time * max(job.contention, 1.0)
        fair["ares"][uid] = max(sharing[uid] - job.submitted, time)
    jct = {job.uid: job.jct or 0.0 for job in done}
    rho = {name: {uid: jct[uid] / time for uid, time in found.items() if time > 0} for name, found in fair.items()}
    rho["themis"] = _themis(outcome, gpus, best, measured, capacity)
    return {name: Fairness(rho[name], threshold) for name, threshold in UNFAIR.items()}


class Alone:
    """How long jobs take with the cluster to themselves."""

    def __init__(self, nodes: Iterable[Node], locality: Locality) -> None:
        self._locality = locality
        self._nodes: dict[str, list[Node]] = {}
        for node in nodes:
            if node.gpu_type is not None and node.gpus:
                self._nodes.setdefault(node.gpu_type, []).append(node)
        for same in self._nodes.values():
            same.sort(key=lambda node: (-node.gpus, node.name))
        self.gpus = {kind: sum(node.gpus for node in same) for kind, same in self._nodes.items()}
        self._racks = {node.name: node.rack for same in self._nodes.values() for node in same}
        self._places: dict[tuple[str, int], Placement | None] = {}

    def by_type(self, submission: Submission) -> dict[str, float]:
        """Seconds on each type that it accepts and runs on."""
        job: Job = submission.job
        found = {}
        for kind in self._nodes:
            if job.gpus and (not job.gpu_types or kind in job.gpu_types):
                place = self._place(kind, job.gpus)
                seconds = math.inf if place is None else seconds_alone(submission.training, place) / self._factor(place)
                if seconds < math.inf:
                    found[kind] = seconds
        return found

    def _place(self, kind: str, gpus: int) -> Placement | None:
        """The largest nodes of a type, as few as can hold so many GPUs; of one rack, where as few are enough."""
        if (kind, gpus) not in self._places:
            found = _filled(self._nodes[kind], kind, gpus)
            if found is not None and self._locality.rack != self._locality.cluster:
                racks: dict[str | None, list[Node]] = {}
                for node in self._nodes[kind]:
                    racks.setdefault(node.rack, []).append(node)
                near = (_filled(nodes, kind, gpus) for nodes in racks.values())
                fewest = len(found.nodes)
                found = next((one for one in near if one is not None and len(one.nodes) == fewest), found)
            self._places[kind, gpus] = found
        return self._places[kind, gpus]

    def _factor(self, place: Placement) -> float:
        """What distance leaves of the speed at a place."""
        return self._locality.factor([self._racks[name] for name in place.nodes])


def _filled(nodes: Iterable[Node], kind: str, gpus: int) -> Placement | None:
    """So many GPUs, from the first node on; None where these have fewer."""
    names, counts, left = [], [], gpus
    for node in nodes:
        if left > 0:
            names.append(node.name)
            counts.append(min(node.gpus, left))
            left -= counts[-1]
    return Placement(tuple(names), max(counts), kind, tuple(counts)) if left <= 0 else None


def seconds_alone(training: Training, place: Placement) -> float:
    """From the first step to the last at one place, without pause; infinite where it stands still."""
    done = seconds = 0.0
    while done < training.total:
        pace = training.pace(done, place)
        if pace.steps_per_second <= 0:
            return math.inf
        until = min(pace.until, training.total)
        seconds += (until - done) / pace.steps_per_second
        done = until
    return seconds


class _Live:
    """How many spans are open at a time."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        changes = sorted(change for began, ended in spans for change in ((began, 1), (ended, -1)))
        self._at: list[float] = []
        self._area: list[float] = []
        self._count: list[int] = []
        area, count, before = 0.0, 0, 0.0
        for at, change in changes:
            if at == math.inf:
                break
            area += count * (at - before)
            count, before = count + change, at
            self._at.append(at)
            self._area.append(area)
            self._count.append(count)

    def mean(self, began: float, ended: float) -> float:
        """Over a span."""
        return (self._until(ended) - self._until(began)) / (ended - began) if ended > began else 1.0

    def _until(self, at: float) -> float:
        i = bisect_right(self._at, at) - 1
        return self._area[i] + self._count[i] * (at - self._at[i]) if i >= 0 else 0.0


def _isolated(times: Mapping[str, float], gpus: int, count: Mapping[str, int], jobs: float) -> float:
    """Gavel's X isolated: a job's seconds with 1/n of the GPUs of every type where it runs."""
    share = {kind: count[kind] / jobs / gpus for kind in times}
    too_much = max(sum(share.values()), 1.0)
    return 1.0 / sum(part / too_much / times[kind] for kind, part in share.items())


def _processor_sharing(
    submissions: Sequence[Submission], alone: Mapping[str, float], capacity: int
) -> dict[str, float]:
    """When each job would end if all live ones had the same number of GPUs at every instant.

    The virtual time is what one job has had: a job ends when that has grown by its work since it came.
    """
    ends: dict[str, float] = {}
    heap: list[tuple[float, str]] = []
    now = virtual = 0.0

    def go_on(until: float) -> None:
        nonlocal now, virtual
        while heap:
            due, uid = heap[0]
            at = now + (due - virtual) * len(heap) / capacity
            if at > until:
                virtual += (until - now) * capacity / len(heap)
                break
            heapq.heappop(heap)
            now, virtual, ends[uid] = at, due, at
        now = until if until < math.inf else now

    for one in submissions:
        if one.job.uid in alone and capacity:
            go_on(one.job.submitted)
            heapq.heappush(heap, (virtual + alone[one.job.uid] * one.job.gpus, one.job.uid))
    go_on(math.inf)
    return ends


def _themis(
    outcome: Outcome, gpus: Mapping[str, int], alone: Mapping[str, float], measured: set[str], capacity: int
) -> dict[str, float]:
    """Themis's rho of each app all of whose jobs are measured and done."""
    apps: dict[str, list[JobOutcome]] = {}
    for job in outcome.jobs:
        apps.setdefault(app_of(job.uid), []).append(job)
    span = {
        app: (min(j.submitted for j in jobs), max(math.inf if j.finished is None else j.finished for j in jobs))
        for app, jobs in apps.items()
    }
    live = _Live(span.values())
    found = {}
    for app, jobs in apps.items():
        began, ended = span[app]
        if ended == math.inf or not all(job.uid in measured and job.uid in alone and job.uid in gpus for job in jobs):
            continue
        work = sum(alone[job.uid] * gpus[job.uid] for job in jobs)
        cluster = work / min(capacity, sum(gpus[job.uid] for job in jobs))
        if cluster > 0:
            found[app] = (ended - began) / (cluster * max(live.mean(began, ended), 1.0))
    return found


def app_of(uid: str) -> str:
    """The app that a job belongs to: the base of ``<base>_<task>``, or the job itself."""
    base, _, task = uid.rpartition("_")
    return base if base and task.isdecimal() else uid
