"""The part that the loops of published simulators share: live jobs with one interval at a time, and their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from metasched.core.model import Job, Placement, Status
from metasched.simulator.records import JobOutcome, RunInterval, Submission
from metasched.simulator.round_loop import RoundLoop


@dataclass(slots=True)
class LiveJob:
    """A job that has arrived and not ended. Times are seconds.

    Attributes:
        submission: the job as it was submitted.
        job: the job as snapshots show it.
        demand_at_arrival: ``PublishedLoop.demand_integral`` at the job's arrival.
        began: the start of the present interval.
        intervals: earlier intervals.
        first_started: when the first run began; None before that.
        overhead_seconds: how long the job held GPUs without training.
    """

    submission: Submission
    job: Job
    demand_at_arrival: float
    began: float = 0.0
    intervals: list[RunInterval] = field(default_factory=list)
    first_started: float | None = None
    overhead_seconds: float = 0.0

    def stop(self, now: float, held: Placement) -> None:
        """End the present interval; the job holds no GPUs from here on."""
        self.intervals.append(RunInterval(self.began, now, held))
        self.job = self.job.evolve(
            status=Status.HELD,
            placement=None,
            last_placement=held,
            last_ended=now,
            run_started=None,
            trainer_ready=False,
            preemptions=self.job.preemptions + 1,
        )

    def start(self, now: float, target: Placement) -> None:
        """Begin a run interval on a placement, at ``now`` (unix seconds)."""
        self.began = now
        self.first_started = now if self.first_started is None else self.first_started
        self.job = self.job.evolve(
            status=Status.RUNNING, placement=target, run=self.job.run + 1, run_started=now, trainer_ready=True
        )

    def receive(self, seconds: float, *, steps: float = 0.0) -> None:
        """Add time on the held GPUs, and steps done, to the job's service and progress."""
        job, placement = self.job, self.job.placement
        assert placement is not None  # noqa: S101  only jobs that hold GPUs receive time
        gpu_type = placement.gpu_type or ""
        self.job = job.evolve(
            progress_steps=(job.progress_steps or 0) + steps,
            attained={**job.attained, gpu_type: job.attained.get(gpu_type, 0.0) + placement.gpus * seconds},
            ran_seconds=job.ran_seconds + seconds,
        )


LiveT = TypeVar("LiveT", bound=LiveJob)


class PublishedLoop(RoundLoop, Generic[LiveT]):
    """Base of the loops of published simulators; for its parameters see ``RoundLoop``.

    Attributes:
        live: jobs that have arrived and not ended, by uid.
        demand_integral: the integral over time of the GPUs that all live jobs ask for.
    """

    def prepare(self) -> None:
        """Set up the live jobs, of which there are none before the first event."""
        self.live: dict[str, LiveT] = {}
        self.demand_integral = 0.0
        self._capacity = sum(node.gpus for node in self.nodes)

    def move_to(self, now: float) -> None:
        """Advance the clock to ``now`` (unix seconds)."""
        self.demand_integral += sum(live.job.gpus for live in self.live.values()) * (now - self.now)
        self.now = now

    def set_targets(self, targets: Mapping[str, Placement]) -> None:
        """Stop the jobs whose placement is not their target, and start all jobs with a new target."""
        for uid, live in self.live.items():
            held, target = live.job.placement, targets.get(uid)
            if held == target:
                continue
            if held is not None:
                live.stop(self.now, held)
            if target is not None:
                live.start(self.now, target)

    def end(self, live: LiveT, at: float, *, finished: bool = True) -> None:
        """End a job; ``finished`` is False for a job that is dropped before its completion."""
        del self.live[live.job.uid]
        self.record_end(self.outcome_of(live, at, at if finished else None))

    def outcome_of(self, live: LiveT, at: float, finished: float | None) -> JobOutcome:
        """A job's record at an instant; ``finished`` is None for a job that is not complete."""
        job, life = live.job, at - live.job.submitted
        present = [] if job.placement is None else [RunInterval(live.began, at, job.placement)]
        demand = self.demand_integral - live.demand_at_arrival
        return JobOutcome(
            uid=job.uid,
            submitted=job.submitted,
            first_started=live.first_started,
            finished=finished,
            intervals=(*live.intervals, *present),
            preemptions=job.preemptions,
            overhead_seconds=live.overhead_seconds,
            contention=demand / life / self._capacity if life > 0 else 0.0,
        )

    def unfinished(self) -> Iterable[JobOutcome]:
        """The records, up to now, of the jobs that have arrived and not ended."""
        return [self.outcome_of(live, self.now, None) for live in self.live.values()]
