"""One round of a shadow policy: its decision on the live snapshot, and an estimate of where the decision leads. Pure.

A shadow policy is synchronised with the cluster at each round: it sees the jobs, their service and their placements as
they are, and carries only its own state from round to round. A continuation of its own would drift away from the
cluster within hours, because the true work of most jobs is not known, and its decisions could then no longer be
compared with those of the live policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from metasched.core.model import Placement
from metasched.core.policy import Policy, PolicyState
from metasched.forecast.queue_forecast import Situation, TooSlowError, initial_state, simulation_settings
from metasched.scheduling.engine import run_round
from metasched.simulator.metrics import IsolatedDurations
from metasched.simulator.records import JobOutcome, Outcome, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.simulator.what_if import live_submission, schedulable_jobs, unlisted_nodes


@dataclass(frozen=True, slots=True)
class ShadowDecision:
    """The decision of a shadow policy.

    Attributes:
        gpus: GPUs that it gives to jobs that have them not in the live decision.
        would_run: uids of jobs that it runs and the live policy does not, sorted.
        would_not_run: uids of jobs that the live policy runs and it does not, sorted.
        state: its state after the round.
    """

    gpus: int
    would_run: tuple[str, ...]
    would_not_run: tuple[str, ...]
    state: PolicyState


@dataclass(frozen=True, slots=True)
class Prospect:
    """Where a policy leads the live jobs, by simulation with the estimated work of each, and without later arrivals.

    Attributes:
        jct: the mean job completion time, from submission on, in seconds; None where no job completes.
        worst_rho: the worst finish-time fairness as Pollux defines it, with the contention from now on; likewise.
    """

    jct: float | None
    worst_rho: float | None


def decide(situation: Situation, live: Mapping[str, Placement], policy: Policy) -> ShadowDecision:
    """Decide the round of a situation under a shadow policy.

    Args:
        situation: the round; ``state`` is that of the shadow policy.
        live: the live decision: the placements of the jobs that are to run, by uid.
        policy: the shadow policy.
    """
    result = run_round(situation.snapshot, policy, situation.state, situation.apps)
    targets = result.targets
    gpus = sum(max(place.gpus - (live[uid].gpus if uid in live else 0), 0) for uid, place in targets.items())
    return ShadowDecision(
        gpus, tuple(sorted(targets.keys() - live.keys())), tuple(sorted(live.keys() - targets.keys())), result.state
    )


def prospect(situation: Situation, proceed: Callable[[], bool], horizon_seconds: float) -> Prospect:
    """Simulate the live jobs of a situation under its policy.

    Raises:
        TooSlowError: ``proceed``, which is asked after each simulated round, answered False.
    """
    snapshot = situation.snapshot
    jobs = [job for job in schedulable_jobs(snapshot) if job.uid in situation.estimates]
    submissions = tuple(live_submission(job, situation.estimates[job.uid]) for job in jobs)

    def watch(*_: object) -> None:
        if not proceed():
            raise TooSlowError

    outcome = simulate(
        Workload("live", submissions),
        (*snapshot.nodes, *unlisted_nodes(snapshot, jobs)),
        situation.policy,
        simulation_settings(situation),
        watch=watch,
        begin=initial_state(situation),
        until=snapshot.now + horizon_seconds,
    )
    return _measured(outcome, submissions, snapshot.now)


def shadow_situation(situation: Situation, policy: Policy, state: PolicyState | None) -> Situation:
    """Return a situation as a shadow policy sees it."""
    return replace(situation, policy=policy, state=state)


def _measured(outcome: Outcome, submissions: tuple[Submission, ...], now: float) -> Prospect:
    isolated = IsolatedDurations(outcome.nodes, outcome.settings.locality)
    alone = {one.job.uid: min(isolated.by_type(one).values(), default=None) for one in submissions}
    jcts, rhos = [], []
    for job in outcome.jobs:
        if job.finished is None or job.jct is None:
            continue
        jcts.append(job.jct)
        if time := alone.get(job.uid):
            rhos.append(job.jct / (time * max(_contention(job, job.finished, now), 1.0)))
    return Prospect(fmean(jcts) if jcts else None, max(rhos, default=None))


def _contention(job: JobOutcome, finished: float, now: float) -> float:
    """Return the mean contention from now on; the simulation counts none before."""
    seen = finished - max(job.submitted, now)
    return job.contention * (finished - job.submitted) / seen if seen > 0 else 1.0
