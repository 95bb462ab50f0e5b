"""A live job of the simulated cluster: its steps, its checkpoints, its service, and the GPUs that it holds.

A job's progress is piecewise linear. ``done_steps`` holds at ``updated_at``, and from then on the job trains at
``pace``. While a run still starts, ``updated_at`` is the instant of its first step, which is in the future.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from metasched.core.apps import LossPoint
from metasched.core.model import Job, Placement, Status
from metasched.simulator.agent import Agent
from metasched.simulator.records import JobOutcome, LocatedSpeed, RunInterval, Submission
from metasched.throughput.training import Pace, ScriptedTraining, is_scripted

STOPPED = Pace(0.0, math.inf)
MAX_JOBS_PER_GPU = 2


@dataclass(slots=True, eq=False)
class HeldGpus:
    """A set of GPUs that is held by one job, or by two co-located jobs.

    Attributes:
        placement: the GPUs.
        jobs: the jobs that hold them.
        joined_at: when the latest of these jobs got them, in seconds.
    """

    placement: Placement
    jobs: list[LiveJob] = field(default_factory=list)
    joined_at: float = math.inf

    def co_runner(self, live: LiveJob) -> LiveJob | None:
        """The other job on these GPUs; None where ``live`` has them to itself."""
        for other in self.jobs:
            if other is not live:
                return other
        return None


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job that has arrived and is not finished. Instants are seconds on the simulation's clock.

    Attributes:
        submission: the job as it was submitted.
        job: the job as the latest snapshot shows it.
        total_steps: steps in all.
        demand_at_arrival: the integral over time of the GPUs asked for by all live jobs, at this job's arrival.
        done_steps: steps done at ``updated_at``.
        phase_end: steps at which the trial's phase ends, if that is an event; infinite otherwise.
        updated_at: the instant of ``done_steps``; the run's first step while the run still starts.
        saved_steps: steps in the newest checkpoint.
        saved_at: when the newest checkpoint was taken, or the run's first step was done.
        pace: the present speed.
        trains_from: the first step of the present run.
        start_left: seconds from the resumption of a suspended run to its first step.
        began: the start of the present interval.
        gpu_type: the type of the held GPUs; empty for a job without GPUs.
        units: the number of held GPUs, or of nodes for a job without GPUs.
        earlier_attained: service in earlier intervals, in unit-seconds by GPU type.
        earlier_ran: seconds of earlier intervals.
        intervals: earlier intervals, in order.
        first_started: when the first run began; None before that.
        gpus: the held GPUs; None for a job that holds none.
        shared: when another job was on the same GPUs in the present interval: (from, to).
        failures: node failures under the job.
        lost_seconds: training that failures undid.
        overhead_seconds: how long the job held GPUs without training.
        version: the number of the job's latest predicted event; earlier events are void.
        agent: the trainer's side of a job whose batch size metasched may change; None for another job.
        scripted: the training, where its script changes the batch size by itself; None for another job.
        ends: whether the job is to end for good.
    """

    submission: Submission
    demand_at_arrival: float
    job: Job = field(init=False)
    total_steps: float = field(init=False)
    done_steps: float = field(init=False)
    phase_end: float = math.inf
    updated_at: float = 0.0
    saved_steps: float = field(init=False)
    saved_at: float = 0.0
    pace: Pace = STOPPED
    trains_from: float = math.inf
    start_left: float = 0.0
    began: float = 0.0
    gpu_type: str = ""
    units: int = 0
    earlier_attained: Mapping[str, float] = field(init=False)
    earlier_ran: float = field(init=False)
    intervals: list[RunInterval] = field(default_factory=list)
    first_started: float | None = None
    gpus: HeldGpus | None = None
    shared: tuple[tuple[float, float], ...] = ()
    failures: int = 0
    lost_seconds: float = 0.0
    overhead_seconds: float = 0.0
    version: int = 0
    agent: Agent | None = None
    ends: bool = False
    scripted: ScriptedTraining | None = field(init=False)

    def __post_init__(self) -> None:
        job, training = self.submission.job, self.submission.training
        self.scripted = training if is_scripted(training) else None
        self.total_steps = self.submission.training.total
        self.done_steps = self.saved_steps = job.progress_steps or 0.0
        self.earlier_attained = dict(job.attained)
        self.earlier_ran = job.ran_seconds
        self.job = job.evolve(
            status=Status.HELD,
            placement=None,
            co_runner=None,
            total_steps=self.total_steps * self.submission.declared_ratio if self.submission.declared else None,
            progress_steps=self.declared_steps,
            losses=self.losses_at(self.done_steps),
        )
        self.update_speed()

    @property
    def declared_steps(self) -> float | None:
        """Steps done, for policies; None for a job that does not declare its work."""
        return self.done_steps if self.submission.declared else None

    @property
    def co_runner(self) -> LiveJob | None:
        """The other job on the same GPUs; None where there is none."""
        return None if self.gpus is None else self.gpus.co_runner(self)

    def steps_at(self, instant: float) -> float:
        """Steps done at an instant, if the pace stays the same until then."""
        if instant <= self.updated_at:
            return self.done_steps
        rate, until = self.pace
        done = self.done_steps + (instant - self.updated_at) * rate
        return done if done <= until and done <= self.total_steps else min(until, self.total_steps)

    def losses_at(self, done: float) -> tuple[LossPoint, ...]:
        """The losses that the training has reported after ``done`` steps; earlier ones without a learning curve."""
        losses = self.submission.losses
        if not losses:
            return self.submission.job.losses
        return losses[: bisect_right(losses, done, key=lambda point: point.progress_steps)]

    def advance(self, now: float, checkpoint_every: float | None) -> None:
        """Set ``done_steps`` and the newest checkpoint to ``now``; only running jobs change."""
        if now > self.updated_at and self.job.status is Status.RUNNING:
            self.take_checkpoints(now, checkpoint_every)
            self.done_steps = self.steps_at(now)
            self.updated_at = now

    def take_checkpoints(self, now: float, every: float | None) -> None:
        """Take the newest periodic checkpoint between ``updated_at`` and ``now``.

        Args:
            now: the present instant.
            every: seconds between periodic checkpoints, counted from the run's first step; None to save every step.
        """
        newest = now
        if every is not None:
            newest = self.trains_from + math.floor(max(now - self.trains_from, 0.0) / every) * every
        if self.updated_at < newest <= now:
            self.saved_steps, self.saved_at = self.steps_at(newest), newest

    def roll_back(self) -> None:
        """Undo the steps since the newest checkpoint, as a node failure does."""
        self.failures += 1
        self.lost_seconds += self.updated_at - self.saved_at if self.done_steps > self.saved_steps else 0.0
        self.done_steps = self.saved_steps

    def update_service(self, now: float) -> None:
        """Set attained service, running time and progress of ``job`` to ``now``, for a job that holds GPUs."""
        before, gpu_type = self.earlier_attained, self.gpu_type
        held = now - self.began
        done = self.steps_at(now)
        self.job = self.job.evolve(
            attained={**before, gpu_type: before.get(gpu_type, 0.0) + self.units * held},
            ran_seconds=self.earlier_ran + held,
            progress_steps=done if self.submission.declared else None,
            losses=self.losses_at(done),
        )

    def update_speed(self) -> None:
        """Set the speed that policies see, and what the trainer reports, to those after ``done_steps``."""
        speed, locality = self.submission.training.known(self.done_steps), self.submission.locality
        if speed is not None and locality is not None:
            before = self.job.speed
            same = isinstance(before, LocatedSpeed) and before.speed is speed
            speed = before if same else LocatedSpeed(speed, locality)
        if speed is not self.job.speed:
            self.job = self.job.evolve(speed=speed)
        if self.scripted is not None:
            self.job = self.job.evolve(
                batching=self.scripted.reported_batching(self.done_steps), batch_speeds=self.scripted.batch_speeds
            )
        if self.agent is not None:
            self.job = self.agent.report(self.job, self.done_steps)

    def begin_interval(self, now: float, placement: Placement, start_seconds: float) -> None:
        """Begin an interval on GPUs on which the first step follows after ``start_seconds``."""
        self.first_started = now if self.first_started is None else self.first_started
        self.began, self.shared = now, ()
        self.gpu_type, self.units = placement.gpu_type or "", placement.gpus or len(placement.nodes)
        self.job = self.job.evolve(most_gpus=max(self.job.most_gpus, placement.gpus))
        self.updated_at = self.saved_at = self.trains_from = now + start_seconds

    def interval(self, now: float) -> RunInterval:
        """The present interval, from its start to ``now``."""
        gpus = self.gpus
        assert gpus is not None  # noqa: S101  only a job with GPUs has an interval
        shared = self.shared if gpus.co_runner(self) is None else (*self.shared, (gpus.joined_at, now))
        return RunInterval(self.began, now, gpus.placement, shared)

    def end_interval(self, now: float) -> None:
        """Add the present interval to ``intervals``, and its part without training to the overhead."""
        self.update_service(now)
        stop = self.job.stop_requested
        trained_until = now if stop is None else stop
        self.overhead_seconds += min(self.trains_from, trained_until) - self.began + now - trained_until
        self.intervals.append(self.interval(now))
        self.earlier_attained, self.earlier_ran = self.job.attained, self.job.ran_seconds

    def outcome(self, now: float, finished: float | None, contention: float, ended: float | None = None) -> JobOutcome:
        """The job's record at ``now``.

        Args:
            now: the present instant.
            finished: when the job finished; None for a job that did not.
            ended: when it was gone after a tuner had ended it; None for another job.
            contention: see ``JobOutcome``.
        """
        intervals = self.intervals
        if self.gpus is not None and self.job.status is not Status.SUSPENDED:
            intervals = [*intervals, self.interval(now)]
        return JobOutcome(
            uid=self.job.uid,
            submitted=self.job.submitted,
            first_started=self.first_started,
            finished=finished,
            intervals=tuple(intervals),
            preemptions=self.job.preemptions,
            failures=self.failures,
            lost_seconds=self.lost_seconds,
            overhead_seconds=self.overhead_seconds,
            contention=contention,
            ended=ended,
            steps=self.steps_at(now),
        )
