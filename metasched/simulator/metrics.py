"""Metrics of a simulation, each defined once, with its source. Pure functions, linear in jobs but for sorting.

Unfinished jobs have no completion time and no fairness; they are counted (``unfinished``), and where there are any, the
makespan is not defined. Trials that their apps' tuners have ended have neither, too; they are counted apart
(``ended``), and the makespan lasts until the last job is complete or ended. A metric that is not defined is ``None``.

Finish-time fairness (rho) is a job's completion time (JCT) over a fair completion time: rho > 1 is unfair. Papers
differ in the fair time; these are their definitions. ``isolated`` is the job's duration on the GPUs that it asks for,
on as few nodes as possible (in one rack, if that takes no more nodes), of the type where it is fastest:

- ``themis`` (NSDI 2020, section 4.3): rho of apps. An app is a hyper-parameter search, here the tasks ``<base>_<task>``
  of one base; its time is from its first submission to its last completion. The fair time is its work on its GPUs (at
  most the cluster's) at linear speed, times the mean number of live apps in its life. Of a trial that was ended the
  work counts that it did.
- ``gavel`` (OSDI 2020, section 4.2): the fair time is the job's duration with 1/n of every type's GPUs, n being the
  mean number of live jobs in its life; a job of k GPUs runs for a k-th of the time, and never more than all of it.
- ``shockwave`` (NSDI 2023, section 2, and its artifact's "static contention"): the fair time is ``isolated`` times all
  jobs over all GPUs, but at least 1. The paper counts rho > 1 as unfair; its artifact, and this module, rho > 1.05.
- ``shockwave_live`` (the artifact's other list): likewise with the mean number of live jobs in the job's life.
- ``pollux`` (OSDI 2021, section 5.3.1): likewise with the mean number of GPUs that all live jobs had asked for.
- ``ares`` (section 3.2): the fair time is the completion under generalised processor sharing, where all live jobs that
  can use the same types have the same number of their GPUs at every instant (``processor_sharing``); but at least
  ``isolated``.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from metasched.core.finish_time_fairness import UNFAIR, isolated_share
from metasched.core.model import Job, Node, Placement
from metasched.simulator.processor_sharing import ProcessorSharing, SharedJob
from metasched.simulator.records import JobOutcome, Locality, Outcome, RunInterval, Submission, Workload
from metasched.throughput.training import Training

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Fairness:
    """Finish-time fairness by one definition.

    Attributes:
        rho: by uid (by app for Themis), where it is defined.
        threshold: the rho above which a job is treated unfairly.
    """

    rho: Mapping[str, float]
    threshold: float

    @property
    def mean(self) -> float | None:
        """The mean rho; None where there is none."""
        return fmean(self.rho.values()) if self.rho else None

    @property
    def worst(self) -> float | None:
        """The largest rho; None where there is none."""
        return max(self.rho.values(), default=None)

    @property
    def unfair(self) -> float | None:
        """The fraction of the jobs with a rho above the threshold; None where there is none."""
        return fmean(value > self.threshold for value in self.rho.values()) if self.rho else None


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a simulation. Times are seconds; metrics of jobs are over the jobs of the window.

    Attributes:
        jobs: the number of measured jobs.
        unfinished: the number of measured jobs that are neither complete nor ended.
        ended: the number of measured jobs that their apps' tuners ended for good.
        jct_mean: the mean job completion time, from submission to completion.
        jct_median: its median.
        jct_p99: its 99th percentile, interpolated between ranks.
        makespan: from the first submission to the last completion (Gavel, section 4.2), or to the last trial's end.
        first_wait_mean: the mean time from submission to the first start.
        queueing_mean: the mean completion time without the time in which the job held GPUs.
        utilization: GPU time held, over the cluster's, from the first submission to the last completion.
        utilization_wanted: GPU time held, over the GPU time that live jobs asked for (at most the cluster's); a lack of
            jobs does not lower it.
        preemptions_mean: the mean number of stops before a job's completion.
        restarts_mean: the mean number of a job's starts but the first, whatever their cause.
        gpu_hours: GPU-hours held by the jobs; co-located jobs count for half of their GPUs, here and everywhere.
        cost: the price of these GPU-hours; None where a type has no price.
        consolidated: fraction of GPU time on the fewest nodes that can hold the job (placement score).
        lost_hours: hours of training that failures undid.
        overhead_hours: hours for which the jobs held GPUs without training (starts, restarts, checkpoints).
        fairness: finish-time fairness by definition.
    """

    jobs: int
    unfinished: int
    ended: int
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
        """Finish-time fairness by uid, as Pollux defines it, which is defined for all jobs, loads and clusters."""
        return self.fairness["pollux"].rho

    @property
    def values(self) -> dict[str, float | None]:
        """The metrics by name; those of fairness as ``rho_worst_themis``, ``rho_mean_themis``, ``unfair_themis``."""
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
    """Compute all metrics of a simulation.

    Args:
        outcome: the simulation's outcome.
        workload: the workload that it ran.
        window: positions in the workload, by arrival, of the measured jobs (the steady state); None for all. The other
            jobs still count as load.
        prices: the price of one GPU for an hour, by type; None if it is not known.
    """
    submissions = sorted(workload.submissions, key=lambda one: (one.job.submitted, one.job.uid))
    chosen = submissions if window is None else [submissions[i] for i in window if i < len(submissions)]
    of = {job.uid: job for job in outcome.jobs}
    jobs = [of[one.job.uid] for one in chosen if one.job.uid in of]
    done = [job for job in jobs if job.finished is not None]
    jcts = [job.jct for job in done if job.jct is not None]
    began = min((job.submitted for job in jobs), default=0.0)
    left = [job for job in jobs if job.left is not None]
    ended = max((job.left for job in left if job.left is not None), default=outcome.ended)
    held = _gpu_seconds_by_type(one for job in jobs for one in job.intervals)
    capacity = sum(node.gpus for node in outcome.nodes)
    span = (began, ended, capacity)
    used = sum(one.gpu_seconds(began, ended) for job in outcome.jobs for one in job.intervals)
    wanted = _asked_gpu_seconds(outcome.jobs, {one.job.uid: one.job.gpus for one in submissions}, *span)
    return Metrics(
        jobs=len(jobs),
        unfinished=len(jobs) - len(left),
        ended=len(left) - len(done),
        jct_mean=fmean(jcts) if jcts else None,
        jct_median=median(jcts) if jcts else None,
        jct_p99=percentile(jcts, 0.99) if jcts else None,
        makespan=ended - began if jobs and len(left) == len(jobs) else None,
        first_wait_mean=_mean(job.first_started - job.submitted for job in jobs if job.first_started is not None),
        queueing_mean=_mean((job.jct or 0.0) - sum(one.ended - one.began for one in job.intervals) for job in done),
        utilization=used / (capacity * (ended - began)) if capacity and ended > began else None,
        utilization_wanted=used / wanted if wanted else None,
        preemptions_mean=_mean(job.preemptions for job in jobs),
        restarts_mean=_mean(max(len(job.intervals) - 1, 0) for job in jobs),
        gpu_hours=sum(held.values()) / HOUR,
        cost=_cost(held, prices),
        consolidated=_consolidated(jobs, outcome.nodes),
        lost_hours=sum(job.lost_seconds for job in jobs) / HOUR,
        overhead_hours=sum(job.overhead_seconds for job in jobs) / HOUR,
        fairness=_fairness(outcome, submissions, {job.uid for job in jobs}),
    )


def percentile(values: Iterable[float], fraction: float) -> float:
    """The quantile of a ``fraction`` (0 to 1), by linear interpolation; ``values`` must not be empty."""
    import numpy as np  # noqa: PLC0415  the daemon's processes start without it

    return float(np.quantile(list(values), fraction))


# -- GPU time -----------------------------------------------------------------------------------------------------


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _gpu_seconds_by_type(intervals: Iterable[RunInterval]) -> dict[str, float]:
    held: dict[str, float] = {}
    for interval in intervals:
        if interval.placement.gpu_type is not None:
            gpu_type = interval.placement.gpu_type
            held[gpu_type] = held.get(gpu_type, 0.0) + interval.gpu_seconds()
    return held


def _cost(held: Mapping[str, float], prices: Mapping[str, float] | None) -> float | None:
    if prices is None or not held.keys() <= prices.keys():
        return None
    return sum(seconds / HOUR * prices[gpu_type] for gpu_type, seconds in held.items())


def _asked_gpu_seconds(
    jobs: Iterable[JobOutcome], gpus: Mapping[str, int], began: float, ended: float, capacity: int
) -> float:
    """GPU-seconds that live jobs asked for between two instants, at most the cluster's at each instant."""
    changes: list[tuple[float, int]] = [(began, 0), (ended, 0)]
    for job in jobs:
        changes.append((max(job.submitted, began), gpus[job.uid]))
        changes.append((min(math.inf if job.left is None else job.left, ended), -gpus[job.uid]))
    total, asked = 0.0, 0
    changes.sort()
    for (at, change), (after, _) in itertools.pairwise(changes):
        asked += change
        total += min(max(asked, 0), capacity) * max(min(after, ended) - at, 0.0)
    return total


def _consolidated(jobs: Iterable[JobOutcome], nodes: Iterable[Node]) -> float | None:
    """The fraction of GPU time held on the fewest nodes possible; None where no GPU was held."""
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        if node.gpu_type is not None:
            sizes.setdefault(node.gpu_type, []).append(node.gpus)
    gpus_on_largest = {t: list(itertools.accumulate(sorted(counts, reverse=True))) for t, counts in sizes.items()}
    consolidated = total = 0.0
    for interval in (one for job in jobs for one in job.intervals if one.placement.gpus):
        time, placement = interval.gpu_seconds(), interval.placement
        total += time
        fewest = bisect_right(gpus_on_largest.get(placement.gpu_type or "", []), placement.gpus - 1) + 1
        consolidated += time if len(placement.nodes) <= fewest else 0.0
    return consolidated / total if total else None


# -- Finish-time fairness -----------------------------------------------------------------------------------------


def _fairness(outcome: Outcome, submissions: Sequence[Submission], measured: set[str]) -> dict[str, Fairness]:
    capacity = sum(node.gpus for node in outcome.nodes)
    isolated = IsolatedDurations(outcome.nodes, outcome.settings.locality)
    times = {one.job.uid: isolated.by_type(one) for one in submissions}
    best = {uid: min(found.values()) for uid, found in times.items() if found}
    gpus = {one.job.uid: one.job.gpus for one in submissions if one.job.gpus}
    jobs = [job for job in outcome.jobs if job.uid in measured and job.uid in best and job.uid in gpus]
    done = [job for job in jobs if job.finished is not None]
    live = _Concurrency((job.submitted, math.inf if job.left is None else job.left) for job in outcome.jobs)
    sharing = ProcessorSharing(isolated.gpus).completions(
        SharedJob(one.job.uid, one.job.submitted, one.job.gpus, times[one.job.uid])
        for one in submissions
        if one.job.uid in best
    )
    static = max(len(outcome.jobs) / capacity, 1.0) if capacity else 1.0
    fair: dict[str, dict[str, float]] = {name: {} for name in UNFAIR if name != "themis"}
    for job in done:
        uid, time, mean_live = job.uid, best[job.uid], live.mean(job.submitted, job.finished or 0.0)
        fair["gavel"][uid] = isolated_share(times[uid], gpus[uid], isolated.gpus, max(mean_live, 1.0))
        fair["shockwave"][uid] = time * static
        fair["shockwave_live"][uid] = time * max(mean_live / capacity, 1.0)
        fair["pollux"][uid] = time * max(job.contention, 1.0)
        fair["ares"][uid] = max(sharing[uid] - job.submitted, time)
    jct = {job.uid: job.jct or 0.0 for job in done}
    rho = {name: {uid: jct[uid] / time for uid, time in found.items() if time > 0} for name, found in fair.items()}
    totals = {one.job.uid: one.training.total for one in submissions}
    rho["themis"] = _themis(outcome, gpus, best, measured, totals)
    return {name: Fairness(rho[name], threshold) for name, threshold in UNFAIR.items()}


class IsolatedDurations:
    """Durations of jobs that have the cluster to themselves, on the GPUs that they ask for.

    Args:
        nodes: the cluster.
        locality: the cost in speed of the distance between a job's GPUs.

    Attributes:
        gpus: the cluster's GPUs by type.
    """

    def __init__(self, nodes: Iterable[Node], locality: Locality) -> None:
        self._locality = locality
        self._nodes: dict[str, list[Node]] = {}
        for node in nodes:
            if node.gpu_type is not None and node.gpus:
                self._nodes.setdefault(node.gpu_type, []).append(node)
        for same in self._nodes.values():
            same.sort(key=lambda node: (-node.gpus, node.name))
        self.gpus = {gpu_type: sum(node.gpus for node in same) for gpu_type, same in self._nodes.items()}
        self._racks = {node.name: node.rack for same in self._nodes.values() for node in same}
        self._placements: dict[tuple[str, int], Placement | None] = {}

    def by_type(self, submission: Submission) -> dict[str, float]:
        """A job's duration in seconds, by the GPU types that it accepts and runs on."""
        job: Job = submission.job
        found = {}
        for gpu_type in self._nodes:
            if job.gpus and (not job.gpu_types or gpu_type in job.gpu_types):
                placement = self._placement(gpu_type, job.gpus)
                if placement is None:
                    continue
                seconds = isolated_seconds(submission.training, placement) / self._factor(submission, placement)
                if seconds < math.inf:
                    found[gpu_type] = seconds
        return found

    def _placement(self, gpu_type: str, gpus: int) -> Placement | None:
        """The fewest, largest nodes of a type that have this number of GPUs; in one rack if that takes no more."""
        if (gpu_type, gpus) not in self._placements:
            found = _filled(self._nodes[gpu_type], gpu_type, gpus)
            if found is not None and self._locality.rack != self._locality.cluster:
                racks: dict[str | None, list[Node]] = {}
                for node in self._nodes[gpu_type]:
                    racks.setdefault(node.rack, []).append(node)
                in_one_rack = (_filled(nodes, gpu_type, gpus) for nodes in racks.values())
                fewest = len(found.nodes)
                found = next((one for one in in_one_rack if one is not None and len(one.nodes) == fewest), found)
            self._placements[gpu_type, gpus] = found
        return self._placements[gpu_type, gpus]

    def _factor(self, submission: Submission, placement: Placement) -> float:
        locality = submission.locality or self._locality
        return locality.factor(placement.gpus, [self._racks[name] for name in placement.nodes])


def _filled(nodes: Iterable[Node], gpu_type: str, gpus: int) -> Placement | None:
    """A placement of this number of GPUs that fills the nodes in their order; None where they have fewer."""
    names, counts, left = [], [], gpus
    for node in nodes:
        if left > 0:
            names.append(node.name)
            counts.append(min(node.gpus, left))
            left -= counts[-1]
    return Placement(tuple(names), max(counts), gpu_type, tuple(counts)) if left <= 0 else None


def isolated_seconds(training: Training, placement: Placement) -> float:
    """The duration of a whole training on one placement, without overheads; infinite where it does not run."""
    done = seconds = 0.0
    while done < training.total:
        pace = training.pace(done, placement)
        if pace.steps_per_second <= 0:
            return math.inf
        until = min(pace.until, training.total)
        seconds += (until - done) / pace.steps_per_second
        done = until
    return seconds


class _Concurrency:
    """The number of spans that are open at each instant, with its integral over time."""

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
        """The mean number of open spans between two instants; 1.0 where they are equal."""
        return (self._until(ended) - self._until(began)) / (ended - began) if ended > began else 1.0

    def _until(self, at: float) -> float:
        i = bisect_right(self._at, at) - 1
        return self._area[i] + self._count[i] * (at - self._at[i]) if i >= 0 else 0.0


def _themis(
    outcome: Outcome,
    gpus: Mapping[str, int],
    isolated: Mapping[str, float],
    measured: set[str],
    totals: Mapping[str, float],
) -> dict[str, float]:
    """Themis's rho of each app whose jobs are all measured, and complete or ended.

    Args:
        outcome: the simulation.
        gpus: by uid, the GPUs that a job asks for.
        isolated: by uid, the duration of the whole training on these.
        measured: uids of the jobs of the window.
        totals: by uid, the steps of the whole training; of a trial that was ended, those count that it did.
    """
    capacity = sum(node.gpus for node in outcome.nodes)
    apps: dict[str, list[JobOutcome]] = {}
    for job in outcome.jobs:
        apps.setdefault(app_of(job.uid), []).append(job)
    span = {
        app: (min(j.submitted for j in jobs), max(math.inf if j.left is None else j.left for j in jobs))
        for app, jobs in apps.items()
    }
    live = _Concurrency(span.values())
    known = measured & isolated.keys() & gpus.keys()
    found = {}
    for app, jobs in apps.items():
        began, ended = span[app]
        if ended == math.inf or not all(job.uid in known for job in jobs):
            continue
        done = [1.0 if job.ended is None else job.steps / totals[job.uid] for job in jobs]
        work = sum(isolated[job.uid] * gpus[job.uid] * part for job, part in zip(jobs, done, strict=True))
        cluster = work / min(capacity, sum(gpus[job.uid] for job in jobs))
        if cluster > 0:
            found[app] = (ended - began) / (cluster * max(live.mean(began, ended), 1.0))
    return found


def app_of(uid: str) -> str:
    """The app that a job belongs to: the base of ``<base>_<task>``, or the job itself."""
    base, _, task = uid.rpartition("_")
    return base if base and task.isdecimal() else uid
