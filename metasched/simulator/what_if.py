"""Forecasts: the live queue on the live cluster, simulated from now on under several policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from metasched.core.apps import AppsState
from metasched.core.model import Job, Node, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.retention import holds_without_effective_stop
from metasched.simulator.recorded_trainings import ALL, learned_curves, reported_curves, with_default
from metasched.simulator.records import InitialState, Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.store import JobRecord, Store
from metasched.throughput.fitted_training import FittedTraining, has_fitted_goodput
from metasched.throughput.scaling_curve import ScalingTraining, training_of_run

NO_APPS = AppsState()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated work of a live job.

    Attributes:
        training: the job's whole work, including the steps already done, and its speed.
        done: steps done.
        how: the source of the estimate, in words.
        declared: whether the job itself declares its work, so that policies see it.
    """

    training: ScalingTraining | FittedTraining
    done: float
    how: str
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """One live job under several policies.

    Attributes:
        job: the job as it is now.
        how: the source of the estimate of its work, in words.
        ends: its completion by policy, in unix seconds; None where it does not complete.
        preemptions: the number of its stops from now on, by policy.
        ended: when its app's tuner ends it for good, in unix seconds, by policy; without those where it does not.
        gpu_seconds: GPU-seconds that it holds from now on, by policy.
    """

    job: Job
    how: str
    ends: Mapping[str, float | None]
    preemptions: Mapping[str, int]
    ended: Mapping[str, float]
    gpu_seconds: Mapping[str, float]

    @property
    def gpu_hours(self) -> Mapping[str, float]:
        """GPU-hours that it holds from now on, by policy."""
        return {name: seconds / 3600 for name, seconds in self.gpu_seconds.items()}


def forecast(  # noqa: PLR0917  the inputs of a simulation
    snapshot: Snapshot,
    estimates: Mapping[str, Estimate],
    policies: Mapping[str, Policy],
    settings: Settings,
    states: Mapping[str, PolicyState | None] | None = None,
    apps: AppsState = NO_APPS,
    progress: Callable[[int, int], object] | None = None,
) -> list[Forecast]:
    """Simulate the live jobs, from now to their completions, under each policy.

    Args:
        snapshot: the live cluster. Blocked jobs that hold no GPUs are left out.
        estimates: the work of each job, by uid; jobs without one are left out.
        policies: the policies by label.
        settings: how the cluster behaves; GPU sharing and uneven placements are those of the snapshot, and restarts
            cost what was measured of each job, where that is known.
        states: the policies' states after the last round, by label; policies that are not in it begin with their
            initial state.
        apps: the apps' state after the last round. Tuners compare the losses that trials have reported so far.
        progress: is called with the number of jobs that have ended under all policies so far, and of all to end.
    """
    settings = replace(settings, sharing=snapshot.sharing, uneven=snapshot.uneven)
    jobs = [job for job in schedulable_jobs(snapshot) if job.uid in estimates]
    nodes = (*snapshot.nodes, *unlisted_nodes(snapshot, jobs))
    submissions = tuple(live_submission(job, estimates[job.uid]) for job in jobs)
    ends: dict[str, dict[str, float | None]] = {job.uid: {} for job in jobs}
    lost: dict[str, dict[str, float]] = {job.uid: {} for job in jobs}
    stops: dict[str, dict[str, int]] = {job.uid: {} for job in jobs}
    held: dict[str, dict[str, float]] = {job.uid: {} for job in jobs}
    for number, (name, policy) in enumerate(policies.items()):
        begin = InitialState(
            at=snapshot.now,
            round=snapshot.round,
            state=(states or {}).get(name),
            apps=apps,
            completed_trials=snapshot.completed_trials,
            trial_orders=snapshot.trial_orders,
            quotas=snapshot.quotas,
        )
        shown = _after(number * len(jobs), len(policies) * len(jobs), progress)
        outcome = simulate(Workload("live", submissions), nodes, policy, settings, begin=begin, progress=shown)
        for found in outcome.jobs:
            ends[found.uid][name] = found.finished
            if found.ended is not None:
                lost[found.uid][name] = found.ended
            stops[found.uid][name] = found.preemptions - snapshot.job[found.uid].preemptions
            held[found.uid][name] = sum(interval.gpu_seconds(snapshot.now) for interval in found.intervals)
    return [
        Forecast(job, estimates[job.uid].how, ends[job.uid], stops[job.uid], lost[job.uid], held[job.uid])
        for job in jobs
    ]


def _after(done: int, total: int, progress: Callable[[int, int], object] | None) -> Callable[[int, int], object] | None:
    """Return the progress of one simulation of several, after ``done`` of ``total`` jobs."""
    return None if progress is None else lambda ended, _: progress(done + ended, total)


def schedulable_jobs(snapshot: Snapshot) -> list[Job]:
    """The jobs that a simulation continues: all live ones without blocked jobs that hold no GPUs."""
    live = [job for job in snapshot.jobs if job.status is not Status.FINISHED]
    return [job for job in live if job.blocked is None or holds_without_effective_stop(job)]


def unlisted_nodes(snapshot: Snapshot, jobs: Iterable[Job]) -> list[Node]:
    """Nodes of running jobs that the cluster no longer lists: with the held resources only, closed to other jobs."""
    found: dict[str, Node] = {}
    for job, placement in [
        (job, job.placement) for job in jobs if job.placement is not None and holds_without_effective_stop(job)
    ]:
        for name, gpus in placement.node_gpus:
            if name not in snapshot.node:
                node = found.setdefault(name, Node(name, placement.gpu_type, 0, 0, 0, accepts=False))
                found[name] = replace(
                    node,
                    gpus=node.gpus + gpus,
                    cpus=node.cpus + job.node_cpus(gpus),
                    memory=node.memory + job.node_memory(gpus),
                )
    return list(found.values())


def live_submission(job: Job, estimate: Estimate) -> Submission:
    """A live job as a simulation continues it: with its history, and on its GPUs unless its stop has been asked for."""
    return Submission(
        job.evolve(
            progress_steps=estimate.done,
            placement=job.placement if holds_without_effective_stop(job) else None,
            released=None,
            released_at=None,
            stop_requested=None,
            learns_speed=False,
        ),
        estimate.training,
        restart_seconds=job.restart_seconds,
        declared=estimate.declared,
    )


def estimate_all(
    store: Store, jobs: Sequence[Job], assumed_seconds: float, exponent: float, *, most_earlier_jobs: int = ALL
) -> dict[str, Estimate]:
    """Estimate the work of each live job, by uid, from the best source there is.

    The sources are, in this order: the steps that the job declares, at its fitted goodput where its batch size may
    change, else at its reported speeds; the service of completed jobs of the same user and name; ``assumed_seconds``,
    or the job's time limit where that is less.

    Args:
        store: the daemon's store.
        jobs: the live jobs.
        assumed_seconds: running time at the requested size, for a job of which nothing is known.
        exponent: the exponent of speed over the number of GPUs, beyond the measured sizes.
        most_earlier_jobs: of the jobs that have ended, only so many are read, the latest.
    """
    past: dict[tuple[str, str], list[JobRecord]] = {}
    for record in store.recent_jobs(most_earlier_jobs):
        if record.end_state == "COMPLETED" and record.end_reason is None:
            past.setdefault((record.user, record.name), []).append(record)
    return {
        job.uid: _estimate(store, job, past.get((job.user, job.name), ()), assumed_seconds, exponent) for job in jobs
    }


def _estimate(store: Store, job: Job, past: Sequence[JobRecord], assumed_seconds: float, exponent: float) -> Estimate:
    units = job.gpus or job.nodes or 1
    if job.total_steps and has_fitted_goodput(job):
        fitted = FittedTraining(job, float(job.total_steps))
        return Estimate(fitted, job.progress_steps or 0.0, "its fitted goodput", declared=True)
    # Reports do not tell whether the job was co-located; the speeds that the daemon has learned do.
    found = reported_curves(store, job.uid, exponent) if job.whole_gpus else learned_curves(job.speed, exponent)
    if job.total_steps and found:
        whole = ScalingTraining(float(job.total_steps), with_default(found))
        return Estimate(whole, job.progress_steps or 0.0, "its own reports", declared=True)
    services = [service for record in past if (service := sum(record.attained.values())) > 0]
    if services:
        total, count = fmean(services) / units, len(services)
        how = f"{count} earlier job{'' if count == 1 else 's'} of this name"
    elif job.time_limit_seconds is not None and job.time_limit_seconds < assumed_seconds:
        total, how = job.time_limit_seconds, "its time limit"
    else:
        total, how = assumed_seconds, "assumed"
    done = min(job.attained_service / units, 0.9 * total)  # a tenth is left where the estimate was too low
    return Estimate(training_of_run(total, job.gpus, exponent if job.elastic else None), done, how)
