"""The loop of Gavel's public simulator, driving our engine.

It differs from ``metasched.simulator.simulation`` as follows:

- A round lasts until the last of its jobs has done its work for the round, which takes at most ``round_seconds``: each
  job does as many whole steps as fit, so most rounds are a fraction of a step shorter.
- The GPUs of a job that ends earlier are idle until the round ends; both jobs of a co-located pair end when the longer
  one ends.
- Arrivals wait for the end of the round. Starts, stops and moves cost nothing.
- If no job runs, the clock jumps to the next arrival, but the next jobs to run count the time as received.
- Jobs that have arrived since the time shares were computed are placed, but do not run: their GPUs are idle.
- Work of fewer steps than GPUs is no progress; a job without progress in five rounds in a row is dropped.
- Time shares that were computed at instant 0, or before a time in which no job ran, are treated as absent: the least
  time between two computations does not apply to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from contrib.reproductions.published_loops.loop import LiveJob, PublishedLoop
from metasched.core.model import Job, Placement, Snapshot
from metasched.scheduling.engine import RoundResult
from metasched.simulator.round_loop import MAX_IDLE_ROUNDS
from metasched.time_shares.round_mechanism import jobs_with_shares, with_expired_shares

MAX_FAILED_ROUNDS = 5


@dataclass(slots=True)
class GavelJob(LiveJob):
    """A live job.

    Attributes:
        failed: rounds without progress in a row.
    """

    failed: int = 0


@dataclass(frozen=True, slots=True)
class RoundWork:
    """The work in one round of one job, or of two co-located jobs.

    Attributes:
        jobs: the jobs.
        placement: their GPUs.
        steps: the steps that each job does.
        until: when the longer one ends.
    """

    jobs: tuple[GavelJob, ...]
    placement: Placement
    steps: tuple[float, ...]
    until: float


class GavelLoop(PublishedLoop[GavelJob]):
    """One simulation as in Gavel's public simulator; of ``settings`` it reads ``round_seconds`` and ``sharing``.

    Loops of simulators that descend from Gavel's override what they do differently.

    Attributes:
        restart_seconds: the cost of a restart that policies see.
    """

    name = "gavel"
    restart_seconds: ClassVar[float] = 0.0

    def prepare(self) -> None:
        """Set up the work of the present round, and begin at the first arrival."""
        super().prepare()
        self.work: list[RoundWork] = []
        self.now = self.next_arrival if self.arrivals else 0.0
        self.round_began = 0.0
        self.round_ended: float | None = None

    def play(self) -> None:
        """Play round after round."""
        while self.awaited and self.idle_rounds <= MAX_IDLE_ROUNDS:
            if not self.work and self.next_arrival == math.inf and self.state is not None:
                self.state = replace(self.state, data=with_expired_shares(self.state.data))
            self.end_round()
            self.arrive()
            if self.awaited:
                self.play_round()

    def end_round(self) -> None:
        """Advance the clock to the end of the longest work, or to the next arrival if no job runs."""
        if not self.work:
            if self.next_arrival < math.inf:
                self.move_to(max(self.now, self.next_arrival))
            return
        if self.round_ended is not None:
            self.round_began = self.round_ended
        self.round_ended = max(work.until for work in self.work)
        self.move_to(self.round_ended)
        for work in sorted(self.work, key=lambda work: -work.until):
            self.complete(work)
        self.work = []

    def complete(self, work: RoundWork) -> None:
        """Add the work of a round to its jobs' progress, and end the jobs that are complete or dropped."""
        seconds = work.until - self.round_began
        if seconds <= 0 or any(steps <= 0 or steps // work.placement.gpus <= 0 for steps in work.steps):
            if len(work.jobs) == 1:
                (live,) = work.jobs
                live.failed += 1
                if live.failed >= MAX_FAILED_ROUNDS:
                    self.end(live, work.until, finished=False)
            return
        for live, steps in zip(work.jobs, work.steps, strict=True):
            live.failed = 0
            live.receive(seconds, steps=steps)
            if not live.job.remaining_steps:
                self.end(live, work.until)

    def arrive(self) -> None:
        """Add the jobs whose arrival is reached."""
        for submission in self.due_arrivals():
            training = submission.training
            job = submission.job.evolve(
                total_steps=training.total,
                progress_steps=0,
                speed=training.known(0),
                restart_seconds=self.restart_seconds,
            )
            self.live[job.uid] = GavelJob(submission, job, self.demand_integral)

    def shown_jobs(self) -> tuple[Job, ...]:
        """The live jobs as policies see them."""
        return tuple(live.job for live in self.live.values())

    def play_round(self) -> None:
        """Run one round of the engine, and compute the work of its jobs."""
        snapshot = Snapshot(
            now=self.now,
            round=len(self.rounds) + 1,
            round_seconds=self.settings.round_seconds,
            nodes=self.nodes,
            jobs=self.shown_jobs(),
            uneven=self.settings.uneven,
            sharing=self.settings.sharing,
        )
        result = self.decide(snapshot)
        if not self.now:
            self.state = replace(result.state, data=with_expired_shares(result.state.data))
        effective = self.effective(result)
        self.set_targets(effective.targets)
        for uid, live in self.live.items():
            co_runner = effective.co_runners.get(uid) if uid in effective.targets else None
            live.job = live.job.evolve(co_runner=co_runner)
        self.work = [self.round_work(jobs) for jobs in self.running(effective)]
        self.idle_rounds = 0 if self.work or self.next_arrival < math.inf else self.idle_rounds + 1
        self.record_round(snapshot, result, sum(work.placement.gpus for work in self.work))

    def effective(self, result: RoundResult) -> RoundResult:
        """The result without the targets of jobs that have no time shares yet."""
        known = jobs_with_shares(result.state.data)
        if known is None:
            return result
        targets = {
            uid: placement
            for uid, placement in result.targets.items()
            if uid in known and result.co_runners.get(uid, uid) in known
        }
        return replace(result, targets=targets)

    def running(self, result: RoundResult) -> Iterable[tuple[GavelJob, ...]]:
        """The jobs with targets, each alone or with its co-runner."""
        yielded: set[str] = set()
        for uid in result.targets:
            if uid not in yielded:
                other = result.co_runners.get(uid)
                uids = (uid,) if other is None else (uid, other)
                yielded.update(uids)
                yield tuple(self.live[each] for each in uids)

    def round_work(self, jobs: tuple[GavelJob, ...]) -> RoundWork:
        """As many whole steps of each job as fit in a round, and no more than are left."""
        placement = jobs[0].job.placement
        assert placement is not None  # noqa: S101  jobs with targets hold GPUs
        now, steps, until = self.now, [], self.now
        for live, other in zip(jobs, jobs[::-1], strict=True):
            co_runner = other.submission.training if other is not live else None
            pace = live.submission.training.pace(live.job.progress_steps or 0, placement, co_runner)
            speed = pace.steps_per_second
            count = min(int(speed * self.settings.round_seconds), live.job.remaining_steps or 0)
            steps.append(count)
            if speed > 0:
                until = max(until, now + count / speed)
        return RoundWork(jobs, placement, tuple(steps), until)
