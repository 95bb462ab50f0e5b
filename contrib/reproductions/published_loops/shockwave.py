"""The loop of Shockwave's public simulator, a fork of Gavel's, driving our engine.

It differs from Gavel's loop as follows:

- A job that did not run in the round before pays a restart: it does fewer steps, and the restart does not count as time
  received. Work that is shorter than nearly a round pays no restart, and no job pays one in the first round.
- Batch sizes are reviewed at the end of every round, and change at the end of the job's next work. Completed steps are
  then rounded up to whole epochs, the number of epochs stays the same, and policies see the speed at the new batch
  size, in its steps.
- Accordion's rule for running jobs is not the rule by which the trace's durations were computed: the later regimes of
  recommendation jobs are missing, and so is the least part of a job that keeps the small batch size.
- A job that has run for 1.5 times its isolated duration ends, as if it were complete; so does a job that makes no
  progress in five rounds in a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contrib.reproductions.published_loops.gavel import MAX_FAILED_ROUNDS, GavelJob, GavelLoop, RoundWork
from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchRegime
from metasched.core.model import Job
from metasched.simulator.records import Submission
from metasched.throughput.batch_size_regimes import DOUBLINGS, FAMILIES, Mode, RegimeTraining, batch_at, model_name
from metasched.throughput.throughput_table import TableSpeed
from metasched.time_shares.round_mechanism import ACCOUNTS, COMPUTED_FOR, PRIOR_ROUNDS, TimeAccounts

RESTART_SECONDS = 20.0
NEARLY = 5.0  # s: work that is shorter than a round by more than this pays no restart
MAX_SLOWDOWN = 1.5  # of the running time, over the isolated duration
REFERENCE = "v100"  # the name of the only type in the artifact's table that its cluster has
ENDLESS = 760  # epochs: longer than any job, so that no rule for the last epoch applies


@dataclass(slots=True)
class Adaptation:
    """How the batch size of a job adapts.

    Attributes:
        training: as it was submitted.
        gpus: the job's GPUs.
        isolated_seconds: the job's isolated duration, as the artifact computes it.
        batch: the present batch size.
        next_batch: the batch size after the job's next work; None if it stays the same.
    """

    training: RegimeTraining
    gpus: int
    isolated_seconds: float
    batch: int
    next_batch: int | None = None

    @classmethod
    def of(cls, submission: Submission) -> Adaptation:
        """The adaptation of a job at its arrival."""
        training = submission.training
        assert isinstance(training, RegimeTraining)  # noqa: S101  the trace's reader makes no others
        return cls(training, submission.job.gpus, isolated_seconds(submission), training.regimes[0].batch)

    @property
    def first_batch(self) -> int:
        """The batch size at the start."""
        return self.training.regimes[0].batch

    @property
    def speed(self) -> TableSpeed:
        """The speed that policies see: that of the table at the present batch size, in its steps."""
        return TableSpeed(self.training.table, model_name(self.training.family, self.batch))

    def steps_per_second(self, gpu_type: str) -> float:
        """The job's true speed on its GPUs of a type, at the present batch size; 0.0 where it does not run."""
        return self.speed.steps_per_second(gpu_type, (self.gpus,)) or 0.0

    def review(self, done: float) -> None:
        """Set ``next_batch``, after ``done`` steps of the present batch size."""
        family = FAMILIES[self.training.family]
        epoch = math.ceil(done / family.steps(self.batch))
        if family.largest is None or self.first_batch >= family.largest:
            return
        if self.training.mode is Mode.GNS:
            grown = batch_at(
                Mode.GNS, self.training.family, self.first_batch, self.gpus, epoch=epoch + 1, epochs=ENDLESS
            )
            if grown > self.batch:
                self.next_batch = min(2 * self.batch, family.largest)
        elif self.training.mode is Mode.ACCORDION:
            critical = _critical(self.training.family, self.first_batch, epoch)
            if self.batch == self.first_batch and not critical:
                self.next_batch = family.largest
            elif self.batch != self.first_batch and critical:
                self.next_batch = self.first_batch

    def change_batch(self, job: Job) -> Job:
        """Change to ``next_batch``; returns the job in the new steps."""
        old, new, self.next_batch = self.batch, self.next_batch, None
        model = self.training.family
        if new is None or (model_name(model, new), self.gpus) not in self.training.table.job_types:
            return job
        old_steps, new_steps = FAMILIES[model].steps(old), FAMILIES[model].steps(new)
        assert job.total_steps is not None  # noqa: S101  a trace has them of all jobs
        factor = 1 / (new / old)
        epochs = math.ceil(job.total_steps / old_steps)
        total = math.ceil(job.total_steps * factor)
        if math.ceil(total / new_steps) != epochs:
            total = epochs * new_steps
        self.batch = new
        done = math.ceil((job.progress_steps or 0) / old_steps) * new_steps
        return job.evolve(total_steps=total, progress_steps=done, speed=self.speed)


def _critical(family: str, batch: int, epoch: int) -> bool:
    """Whether a running job is in one of Accordion's critical regimes."""
    rule = FAMILIES[family].critical
    later = family == "Recommendation" and epoch >= 60  # noqa: PLR2004  where the rule for durations has more regimes
    return rule is not None and not later and rule(epoch, batch)


def isolated_seconds(submission: Submission) -> float:
    """A job's isolated duration, as the artifact computes it: in whole epochs of samples / batch size steps.

    With the gradient noise scale, a last epoch for which the batch size has doubled more than once has the first one.
    """
    training, gpus = submission.training, submission.job.gpus
    assert isinstance(training, RegimeTraining)  # noqa: S101  the trace's reader makes no others
    family, first = training.family, training.regimes[0].batch
    epochs = math.ceil(training.total / FAMILIES[family].steps(first))
    batches = [batch_at(training.mode, family, first, gpus, epoch=epoch, epochs=epochs) for epoch in range(epochs)]
    doublings = DOUBLINGS.get((family, first, gpus), ())
    if training.mode is Mode.GNS and len(doublings) > 1 and epochs > doublings[1]:
        batches[-1] = first
    seconds = 0.0
    for batch in batches:
        speed = training.table.speed(model_name(family, batch), REFERENCE, (gpus,))
        seconds += FAMILIES[family].samples / batch / speed if speed else math.inf
    return seconds


class ArtifactAccounts:
    """The times that the round mechanism decides by, added up as the artifact does.

    Equal jobs often have the same time but for the last bits of sums of floating-point numbers, and these bits decide
    which job is first.

    Attributes:
        times: seconds received since the time shares were computed, plus the prior, by uid.
        deficit: seconds that were missing when earlier time shares ended, by uid.
    """

    def __init__(self, prior: float, recompute_seconds: float) -> None:
        self.prior = prior
        self.recompute_seconds = recompute_seconds
        self.times: dict[str, float] = {}
        self.deficit: dict[str, float] = {}
        self._computed_at = 0.0

    def into(self, data: Mapping[str, Any], jobs: Sequence[Job], now: float) -> dict[str, Any]:
        """A policy state's data with these times in its time accounts."""
        accounts, computed_for = TimeAccounts.from_json(data[ACCOUNTS]), data[COMPUTED_FOR]
        (gpu_type,) = computed_for["gpus"]
        shares, age = accounts.shares, now - self._computed_at
        if [job.uid for job in jobs] != computed_for["jobs"] and (accounts.expired or age >= self.recompute_seconds):
            for job in jobs:
                due = shares.get((job.uid,), {}).get(gpu_type, 0.0) * age
                received = self.times.get(job.uid, self.prior) - self.prior
                self.deficit[job.uid] = self.deficit.get(job.uid, 0.0) + (due - received)
                self.times[job.uid] = self.prior
            self._computed_at, shares = now, {}
        exact = replace(
            accounts,
            shares=shares,
            received={(job.uid,): {gpu_type: self.times.get(job.uid, self.prior) - self.prior} for job in jobs},
            deficit={(job.uid,): {gpu_type: self.deficit.get(job.uid, 0.0)} for job in jobs},
            attained={job.uid: dict(job.attained) for job in jobs},
        )
        return {**data, ACCOUNTS: exact.to_json()}


class ShockwaveLoop(GavelLoop):
    """One simulation as in Shockwave's public simulator; the jobs' trainings are ``RegimeTraining``."""

    name = "shockwave"
    restart_seconds = RESTART_SECONDS

    def prepare(self) -> None:
        """Set up the batch sizes of the jobs, and the time accounts of the artifact."""
        super().prepare()
        self.adaptations: dict[str, Adaptation] = {}
        recompute_seconds = getattr(self.policy.parameters, "recompute_seconds", 0.0)
        self.accounts = ArtifactAccounts(PRIOR_ROUNDS * self.settings.round_seconds, recompute_seconds)
        self.ran_before: frozenset[str] = frozenset()  # uids of the jobs of the round before the present one
        self.runs: frozenset[str] = frozenset()  # uids of the jobs of the present round

    def arrive(self) -> None:
        """Review the batch sizes of all live jobs, then add the jobs whose arrival is reached."""
        for uid, live in self.live.items():
            self.adaptations[uid].review(live.job.progress_steps or 0)
        super().arrive()
        for uid, live in self.live.items():
            if uid not in self.adaptations:
                self.adaptations[uid] = found = Adaptation.of(live.submission)
                live.job = live.job.evolve(speed=found.speed)

    def play_round(self) -> None:
        """Play a round as in Gavel's loop, with the artifact's own sums in the policy's time accounts."""
        if self.state is not None and ACCOUNTS in self.state.data:
            jobs = [live.job for live in self.live.values()]
            self.state = replace(self.state, data=self.accounts.into(self.state.data, jobs, self.now))
        super().play_round()
        self.ran_before = self.runs
        self.runs = frozenset(live.job.uid for work in self.work for live in work.jobs)

    def round_work(self, jobs: tuple[GavelJob, ...]) -> RoundWork:
        """As many whole steps at the present batch size as fit in a round; ``complete`` subtracts restarts."""
        (live,) = jobs
        placement = live.job.placement
        assert placement is not None  # noqa: S101  jobs with targets hold GPUs
        speed = self.adaptations[live.job.uid].steps_per_second(placement.gpu_type or "")
        left = (live.job.total_steps or 0) - (live.job.progress_steps or 0)  # below 0 after rounding up to epochs
        steps = min(int(speed * self.settings.round_seconds), left)
        until = self.now + steps / speed if speed > 0 else self.now
        return RoundWork(jobs, placement, (steps,), max(self.now, until))

    def complete(self, work: RoundWork) -> None:
        """Add the work of a round to its job's progress, less a restart, and change the batch size."""
        (live,), (steps,) = work.jobs, work.steps
        seconds = work.until - self.round_began
        uid, adaptation = live.job.uid, self.adaptations[live.job.uid]
        restarted = len(self.rounds) > 1 and uid not in self.ran_before
        if restarted and seconds > self.settings.round_seconds - NEARLY:
            steps = int(steps * ((seconds - RESTART_SECONDS) / seconds))
            seconds -= RESTART_SECONDS
            live.overhead_seconds += RESTART_SECONDS
        if steps <= 0 and seconds <= 0:
            live.failed += 1
            ends = live.failed >= MAX_FAILED_ROUNDS
        else:
            live.failed = 0
            live.receive(seconds, steps=steps)
            self.accounts.times[uid] = self.accounts.times.get(uid, self.accounts.prior) + seconds
            slowest = int(MAX_SLOWDOWN * int(adaptation.isolated_seconds))
            ends = not live.job.remaining_steps or live.job.ran_seconds > slowest
        live.job = adaptation.change_batch(live.job)
        if ends:
            self.end(live, work.until)


class ForecastShockwaveLoop(ShockwaveLoop):
    """The loop for policies that forecast batch sizes: what jobs declare and have reported of them is shown.

    Work is shown in steps at the first batch size. Of the batches to come, the rule and the largest batch are declared,
    and nothing else.
    """

    def prepare(self) -> None:
        """Set up the regimes so far."""
        super().prepare()
        self.regimes: dict[str, tuple[BatchRegime, ...]] = {}

    def shown_jobs(self) -> tuple[Job, ...]:
        """The live jobs, with their batch sizes so far and the table's speeds at every batch size of their models."""
        return tuple(self._shown(live.job) for live in self.live.values())

    def _shown(self, job: Job) -> Job:
        adaptation = self.adaptations[job.uid]
        family, first = FAMILIES[adaptation.training.family], adaptation.first_batch
        ratio = family.steps(first) / family.steps(adaptation.batch)
        done = (job.progress_steps or 0) * ratio
        regimes = self.regimes.get(job.uid, ())
        if not regimes or regimes[-1].batch != adaptation.batch:
            regimes = (*regimes, BatchRegime(adaptation.batch, done if regimes else 0.0))
            self.regimes[job.uid] = regimes
        most = max(first, family.largest or first)
        batching = Batching(
            first,
            BatchControl.SCRIPT,
            global_batch=adaptation.batch,
            max_batch=most,
            regimes=regimes,
            adapts=AdaptationRule(adaptation.training.mode.value),
        )
        return job.evolve(
            total_steps=(job.total_steps or 0) * ratio,
            progress_steps=done,
            batching=batching,
            batch_speeds=adaptation.training.batch_speeds,
        )
