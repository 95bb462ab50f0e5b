"""What if another policy decided from now on: the live queue on the live cluster, simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from metasched.model import Job, Snapshot, Status
from metasched.policy import Policy
from metasched.simulator.measured import ALL, curves, everywhere
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.run import simulate
from metasched.store import JobRecord, Store
from metasched.throughput.curve import ScalingTraining, ran
from metasched.throughput.training import Training


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much work a live job is taken to be.

    Attributes:
        training: with the work that is done already.
        done: of its steps.
        how: where that comes from, in words.
    """

    training: Training
    done: float
    how: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """One live job under several policies.

    Attributes:
        job: as it is now.
        how: where its remaining work comes from, in words.
        ends: by policy, when it would end; None where it does not.
        preemptions: by policy, how often it would be stopped from now on.
    """

    job: Job
    how: str
    ends: Mapping[str, float | None]
    preemptions: Mapping[str, int]


def forecast(
    snapshot: Snapshot,
    estimates: Mapping[str, Estimate],
    policies: Mapping[str, Policy],
    settings: Settings,
) -> list[Forecast]:
    """Simulate the live jobs, from now to their ends, under each policy.

    Args:
        snapshot: what is. Jobs that must not start at all (blocked) are left out, with what they hold.
        estimates: for each job.
        policies: by the name under which they are shown.
        settings: how the cluster behaves; whether jobs share GPUs, or have uneven numbers of them, the snapshot says.
    """
    settings = replace(settings, sharing=snapshot.sharing, uneven=snapshot.uneven)
    jobs = [job for job in snapshot.jobs if job.blocked is None and job.status is not Status.FINISHED]
    submissions = tuple(_submission(job, estimates[job.uid]) for job in jobs)
    ends: dict[str, dict[str, float | None]] = {job.uid: {} for job in jobs}
    stops: dict[str, dict[str, int]] = {job.uid: {} for job in jobs}
    for name, policy in policies.items():
        outcome = simulate(Workload("live", submissions), snapshot.nodes, policy, settings, begin=snapshot.now)
        for found in outcome.jobs:
            ends[found.uid][name] = found.finished
            stops[found.uid][name] = found.preemptions - snapshot.job[found.uid].preemptions
    return [Forecast(job, estimates[job.uid].how, ends[job.uid], stops[job.uid]) for job in jobs]


def _submission(job: Job, estimate: Estimate) -> Submission:
    keeps = job.status in (Status.RUNNING, Status.SUSPENDED) and job.stop_requested is None
    return Submission(
        job.evolve(
            progress_steps=estimate.done,
            placement=job.placement if keeps else None,
            released=None,
            released_at=None,
            stop_requested=None,
            learns=False,
        ),
        estimate.training,
    )


def estimate_all(store: Store, jobs: Sequence[Job], assumed_seconds: float, exponent: float) -> dict[str, Estimate]:
    """How much work each live job has left, by the best that is known of it.

    In this order: the steps that it has declared, at the speeds that it has reported; what finished jobs of the same
    user and name took; an assumption.

    Args:
        store: where jobs are recorded.
        jobs: the live ones.
        assumed_seconds: of running at the requested size, for a job of which nothing is known.
        exponent: of the growth of speed with the number of GPUs, beyond the sizes that were measured.
    """
    past: dict[tuple[str, str], list[JobRecord]] = {}
    for record in store.recent_jobs(ALL):
        if record.end_state == "COMPLETED":
            past.setdefault((record.user, record.name), []).append(record)
    return {
        job.uid: _estimate(store, job, past.get((job.user, job.name), ()), assumed_seconds, exponent) for job in jobs
    }


def _estimate(store: Store, job: Job, past: Sequence[JobRecord], assumed_seconds: float, exponent: float) -> Estimate:
    units = max(job.gpus, 1)
    found = curves(store, job.uid, exponent)
    if job.total_steps and found:
        whole = ScalingTraining(float(job.total_steps), everywhere(found))
        return Estimate(whole, job.progress_steps or 0.0, "its own reports")
    services = [service for record in past if (service := sum(record.attained.values())) > 0]
    if services:
        total, count = fmean(services) / units, len(services)
        how = f"{count} earlier job{'' if count == 1 else 's'} of this name"
    else:
        total, how = assumed_seconds, "assumed"
    done = min(job.attained_service / units, 0.9 * total)  # an estimate that was too low leaves a tenth
    return Estimate(ran(total, job.gpus, exponent if job.elastic else None), done, how)
