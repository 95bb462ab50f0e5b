"""A queue forecast: the live queue simulated several times from the snapshot of a round, with uncertain inputs drawn.

Each simulation begins with the round itself: the same snapshot and states give the same decision as the daemon's. The
seed of its random numbers is the number of the round, so that a forecast can be made again. Pure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from metasched.core.apps import AppsState
from metasched.core.model import Job, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.forecast.calibration import Calibration
from metasched.forecast.durations import DrawnDurations, EarlierJobs
from metasched.forecast.records import HIGH, LOW, InstantRange, JobForecast, QueueForecast
from metasched.forecast.uncertainty import (
    LEAST_SPAN_SECONDS,
    common_factor,
    drawn_submission,
    later_arrivals,
)
from metasched.simulator.records import InitialState, JobOutcome, Settings, Workload
from metasched.simulator.simulation import simulate
from metasched.simulator.what_if import Estimate, schedulable_jobs, unlisted_nodes

DAY = 86400.0
ROUNDS_OF_A_JOB = 50
"""Regular rounds, at most, in the median remaining time of the jobs."""
LEAST_SAMPLES = 5
"""Fewer simulations than this number tell no range."""


class TooSlowError(Exception):
    """A simulation was abandoned, because the time of the forecast is over."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of one forecast.

    Attributes:
        samples: simulations.
        jobs: most live jobs that are simulated.
        arrivals: most later arrivals of a simulation.
        horizon_seconds: simulated time.
        exponent: the exponent of speed over the number of GPUs, beyond the measured sizes.
    """

    samples: int = 20
    jobs: int = 500
    arrivals: int = 1000
    horizon_seconds: float = 7 * DAY
    exponent: float = 0.9


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a queue forecast: a round and what is known of its jobs.

    Attributes:
        snapshot: the snapshot of the round.
        policy: the policy of the round.
        state: the policy's state before the round; None for its initial state.
        apps: the apps' state before the round.
        estimates: of the work of the live jobs, by uid.
        earlier: the jobs of the last days.
        settings: how the cluster behaves; GPU sharing is that of the snapshot.
        starts: the calibration of starts.
        ends: the calibration of ends.
    """

    snapshot: Snapshot
    policy: Policy
    state: PolicyState | None
    apps: AppsState
    estimates: Mapping[str, Estimate]
    earlier: EarlierJobs
    settings: Settings
    starts: Calibration = field(default_factory=Calibration)
    ends: Calibration = field(default_factory=Calibration)


def forecast_queue(
    situation: Situation, effort: Effort, proceed: Callable[[], bool] = lambda: True
) -> QueueForecast | None:
    """Forecast the start and the end of each live job.

    Args:
        situation: the round.
        effort: the limits of the forecast.
        proceed: is asked after each simulated round; once it answers False, the simulation is abandoned, and the
            forecast is made from those that are complete.

    Returns:
        The forecast; None where fewer than ``LEAST_SAMPLES`` simulations were complete.
    """
    snapshot = situation.snapshot
    live = schedulable_jobs(snapshot)
    chosen = nearest_jobs(live, effort.jobs)
    starts: dict[str, list[float]] = {job.uid: [] for job in chosen}
    ends: dict[str, list[float]] = {job.uid: [] for job in chosen}
    samples = 0
    for sample in range(effort.samples):
        rng = random.Random(f"{snapshot.round} {sample}")  # noqa: S311  no secret
        try:
            outcomes = _continuation(situation, chosen, effort, rng, proceed)
        except TooSlowError:
            break
        samples += 1
        for job in chosen:
            outcome = outcomes.get(job.uid)
            starts[job.uid].append(_next_start(outcome, snapshot.now))
            ends[job.uid].append(math.inf if outcome is None or outcome.finished is None else outcome.finished)
    if samples < min(LEAST_SAMPLES, effort.samples):
        return None
    at = snapshot.now
    forecasts = tuple(
        JobForecast(
            job.uid,
            None if holds_gpus(job) else _range(starts[job.uid], situation.starts, at),
            _range(ends[job.uid], situation.ends, at),
            situation.estimates[job.uid].how,
        )
        for job in chosen
    )
    left_out = len(live) - len(chosen)
    said = assumptions(situation, effort, samples, left_out)
    return QueueForecast(
        snapshot.round, at, situation.policy.name, samples, forecasts, left_out=left_out, assumptions=said
    )


def holds_gpus(job: Job) -> bool:
    """Whether a job runs or is suspended, so that no start of it is forecast."""
    return job.placement is not None and job.status in {Status.RUNNING, Status.SUSPENDED}


def nearest_jobs(jobs: Sequence[Job], most: int) -> list[Job]:
    """Return the jobs that are nearest to their start, in the order of the snapshot.

    Jobs that hold GPUs are first, then released ones, then the others in the order of their submission.

    Args:
        jobs: live jobs.
        most: the number of jobs to return.
    """
    if len(jobs) <= most:
        return list(jobs)

    def rank(job: Job) -> tuple[bool, bool, float, str]:
        return job.placement is None, job.status is not Status.QUEUED, job.submitted, job.uid

    kept = {job.uid for job in sorted(jobs, key=rank)[:most]}
    return [job for job in jobs if job.uid in kept]


def assumptions(situation: Situation, effort: Effort, samples: int, left_out: int) -> tuple[str, ...]:
    """Return what a forecast assumes, in sentences for people."""
    span = situation.earlier.until - situation.earlier.since
    days = f"{span / DAY:.1f} days" if span >= DAY else f"{span / 3600:.1f} hours"
    work = (
        "Jobs without declared work take as long as the others of their burst, else as earlier jobs of their user and "
        "name, else of their user and number of GPUs, else of their user, else of all users."
    )
    goes_on = (
        f"Policy {situation.policy.name} goes on as configured; {samples} simulations from round "
        f"{situation.snapshot.round} on."
    )
    found = [
        goes_on,
        work,
        f"Jobs arrive as in the last {days}." if span >= LEAST_SPAN_SECONDS else "No further jobs arrive.",
        "No node fails, and nobody cancels, holds or changes a job.",
    ]
    if left_out:
        found.append(f"{left_out} waiting jobs that are far from their start are left out.")
    if samples < effort.samples:
        found.append(f"{effort.samples - samples} of {effort.samples} simulations were left out for lack of time.")
    return tuple(found)


def _continuation(
    situation: Situation, jobs: Sequence[Job], effort: Effort, rng: random.Random, proceed: Callable[[], bool]
) -> dict[str, JobOutcome]:
    """Simulate the queue once with drawn inputs, and return the outcomes of the live jobs by uid."""
    snapshot = situation.snapshot
    until = snapshot.now + effort.horizon_seconds
    earlier, factor = situation.earlier, common_factor(rng)
    drawn = DrawnDurations(earlier, rng)
    live = [drawn_submission(job, situation.estimates[job.uid], drawn, rng, factor) for job in jobs]
    later = later_arrivals(earlier, snapshot.now, until, effort.arrivals, effort.exponent, rng, factor)

    def watch(*_: object) -> None:
        if not proceed():
            raise TooSlowError

    outcome = simulate(
        Workload("live", (*live, *later)),
        (*snapshot.nodes, *unlisted_nodes(snapshot, jobs)),
        situation.policy,
        simulation_settings(situation),
        window=range(len(live)),  # they were submitted before the later ones
        watch=watch,
        begin=initial_state(situation),
        until=until,
    )
    return {found.uid: found for found in outcome.jobs}


def simulation_settings(situation: Situation) -> Settings:
    """Return the settings of simulations: GPU sharing as in the snapshot, and rounds that are not too short.

    A regular round lasts at least a part of the jobs' median remaining time, so that a simulation has a bounded number
    of rounds. Arrivals and completions start rounds early in any case.
    """
    snapshot = situation.snapshot
    gpu_type = next((node.gpu_type for node in snapshot.nodes if node.gpu_type is not None), "")
    left = []
    for job in snapshot.jobs:
        if (found := situation.estimates.get(job.uid)) is not None:
            rate = found.training.speed.steps_per_second(gpu_type, (job.gpus,))
            left.append((found.training.total - found.done) / rate if rate else 0.0)
    least = median(left) / ROUNDS_OF_A_JOB if left else 0.0
    return replace(
        situation.settings,
        round_seconds=max(situation.settings.round_seconds, least),
        sharing=snapshot.sharing,
        uneven=snapshot.uneven,
    )


def initial_state(situation: Situation) -> InitialState:
    """Return the state from which simulations continue, so that their first round is that of the snapshot."""
    snapshot = situation.snapshot
    return InitialState(
        at=snapshot.now,
        round=snapshot.round - 1,
        state=situation.state,
        apps=situation.apps,
        completed_trials=snapshot.completed_trials,
        trial_orders=snapshot.trial_orders,
        quotas=snapshot.quotas,
    )


def _next_start(outcome: JobOutcome | None, at: float) -> float:
    """Return when the next run starts; infinite where it does not."""
    if outcome is None:
        return math.inf
    return next((one.began for one in outcome.intervals if one.began >= at), math.inf)


def _range(instants: Sequence[float], calibration: Calibration, at: float) -> InstantRange | None:
    """Return the calibrated range of simulated instants; None where the median lies beyond the horizon."""
    ordered = sorted(instants)
    middle = _quantile(ordered, 0.5)
    if math.isinf(middle):
        return None
    high = _quantile(ordered, HIGH)
    found = InstantRange(_quantile(ordered, LOW), middle, None if math.isinf(high) else high)
    return calibration.applied(found, at)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return a quantile by linear interpolation; infinite where it lies above a finite and below an infinite value.

    The k-th of n values is the quantile k / (n + 1), the probability that a further value of the same distribution lies
    below it: of ten values, numpy's quantiles of 10 % and 90 % lie around 65 % of further ones. numpy has NaN next to
    infinite values. A quantile below 1 / (n + 1) is the first value, and one above n / (n + 1) the last one: of fewer
    than nine values those of 10 % and 90 %.
    """
    rank = min(max(fraction * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    below, above = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return above if math.isinf(above) else below + (above - below) * (rank % 1.0)
