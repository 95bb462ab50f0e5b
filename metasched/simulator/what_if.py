"""What if another policy decided from now on: the live queue on the live cluster, simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from metasched.core.model import Job, Node, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.retention import holds_without_effective_stop
from metasched.simulator.learned_speeds import ALL, curves, everywhere, learned
from metasched.simulator.records import InitialState, Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.store import JobRecord, Store
from metasched.throughput.scaling_curve import ScalingTraining, ran
from metasched.throughput.training import Training


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much work a live job is taken to be.

    Attributes:
        training: with the work that is done already.
        done: of its steps.
        how: where that comes from, in words.
        declared: whether that is what the job itself says, so that policies know it, too.
    """

    training: Training
    done: float
    how: str
    declared: bool = False


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
    states: Mapping[str, PolicyState | None] | None = None,
) -> list[Forecast]:
    """Simulate the live jobs, from now to their ends, under each policy.

    Args:
        snapshot: what is. Jobs that must not start (blocked), and do not run, are left out.
        estimates: for each job.
        policies: by the name under which they are shown.
        settings: how the cluster behaves; whether jobs share GPUs, or have uneven numbers of them, the snapshot says.
        states: by the same names, what policies carry from the last round; those that are not there begin afresh.
    """
    settings = replace(settings, sharing=snapshot.sharing, uneven=snapshot.uneven)
    live = [job for job in snapshot.jobs if job.status is not Status.FINISHED]
    jobs = [job for job in live if job.blocked is None or holds_without_effective_stop(job)]
    nodes = (*snapshot.nodes, *_unlisted(snapshot, jobs))
    submissions = tuple(_submission(job, estimates[job.uid]) for job in jobs)
    ends: dict[str, dict[str, float | None]] = {job.uid: {} for job in jobs}
    stops: dict[str, dict[str, int]] = {job.uid: {} for job in jobs}
    for name, policy in policies.items():
        begin = InitialState(snapshot.now, snapshot.round, (states or {}).get(name), snapshot.quotas)
        outcome = simulate(Workload("live", submissions), nodes, policy, settings, begin=begin)
        for found in outcome.jobs:
            ends[found.uid][name] = found.finished
            stops[found.uid][name] = found.preemptions - snapshot.job[found.uid].preemptions
    return [Forecast(job, estimates[job.uid].how, ends[job.uid], stops[job.uid]) for job in jobs]


def _unlisted(snapshot: Snapshot, jobs: Iterable[Job]) -> list[Node]:
    """Nodes on which jobs run, and which the cluster no longer lists: with what is held there, and for nobody else."""
    found: dict[str, Node] = {}
    for job, place in [
        (job, job.placement) for job in jobs if job.placement is not None and holds_without_effective_stop(job)
    ]:
        for name, gpus in place.node_gpus:
            if name not in snapshot.node:
                node = found.setdefault(name, Node(name, place.gpu_type, 0, 0, 0, accepts=False))
                found[name] = replace(
                    node,
                    gpus=node.gpus + gpus,
                    cpus=node.cpus + job.node_cpus(gpus),
                    memory=node.memory + job.node_memory(gpus),
                )
    return list(found.values())


def _submission(job: Job, estimate: Estimate) -> Submission:
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
        declared=estimate.declared,
    )


def estimate_all(store: Store, jobs: Sequence[Job], assumed_seconds: float, exponent: float) -> dict[str, Estimate]:
    """How much work each live job has left, by the best that is known of it.

    In this order: the steps that it has declared, at the speeds that it has reported; what finished jobs of the same
    user and name took; an assumption, or the job's time limit where that is less.

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
    units = job.gpus or job.nodes or 1
    # Who can share GPUs may have made reports beside others, which do not say so: what the daemon has learned does.
    found = curves(store, job.uid, exponent) if job.whole_gpus else learned(job.speed, exponent)
    if job.total_steps and found:
        whole = ScalingTraining(float(job.total_steps), everywhere(found))
        return Estimate(whole, job.progress_steps or 0.0, "its own reports", declared=True)
    services = [service for record in past if (service := sum(record.attained.values())) > 0]
    if services:
        total, count = fmean(services) / units, len(services)
        how = f"{count} earlier job{'' if count == 1 else 's'} of this name"
    elif job.time_limit_seconds is not None and job.time_limit_seconds < assumed_seconds:
        total, how = job.time_limit_seconds, "its time limit"
    else:
        total, how = assumed_seconds, "assumed"
    done = min(job.attained_service / units, 0.9 * total)  # an estimate that was too low leaves a tenth
    return Estimate(ran(total, job.gpus, exponent if job.elastic else None), done, how)
