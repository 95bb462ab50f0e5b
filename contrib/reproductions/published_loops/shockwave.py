"""The loop of Shockwave's public simulator, a fork of Gavel's, driving our engine.

What it does otherwise than Gavel's loop:

- A job that did not run in the round before pays a restart: it makes fewer steps in its part, and the time does not
  count as received. Parts that are shorter than nearly a round pay nothing, nor does anybody in the very first round.
- Who came after shares of time were made does not run before they are made anew, though GPUs are kept idle for them.
- Batch sizes are looked at at the end of every round, and change at the end of the next part that the job runs. Steps
  done are then rounded up to whole epochs, steps in all are kept at the same number of epochs, and the speed that
  policies see is the one at the new batch, in its steps.
- Accordion's rule while running is not the one by which durations were made: its later regimes of recommendation jobs
  are missing, and so is the least part of a job that keeps the small batch.
- A job that has run for one and a half times as long as it would alone is done, whatever is left of it; so is one that
  makes no progress five times in a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contrib.reproductions.published_loops.gavel import FAILED_PARTS, GavelLoop, Live, Part
from metasched.core.model import Job, Node
from metasched.core.policy import Policy
from metasched.scheduling.engine import RoundResult
from metasched.simulator.records import Outcome, Settings, Submission, Workload
from metasched.simulator.simulation import RoundObserver
from metasched.throughput.batch_size_regimes import DOUBLINGS, FAMILIES, Mode, RegimeTraining, batch_at, model_name
from metasched.throughput.throughput_table import TableSpeed
from metasched.time_shares.round_mechanism import ACCOUNTS, COMPUTED_FOR, PRIOR_ROUNDS, TimeAccounts

RESTART_SECONDS = 20.0
NEARLY = 5.0  # s: parts that are shorter than a round by more than this pay no restart
PATIENCE = 1.5  # times the duration alone
REFERENCE = "v100"  # the name of the only type in the artifact's table that its cluster has
LONG = 760  # epochs: longer than any job, so that no rule meets a last epoch


@dataclass(slots=True)
class Adaptation:
    """What the artifact keeps of a job beside Gavel's simulator.

    Attributes:
        training: as it was submitted.
        gpus: that it takes.
        alone: seconds that it would run alone, as the artifact reckons.
        batch: now.
        wanted: another batch, to be taken up at the end of the job's next part.
    """

    training: RegimeTraining
    gpus: int
    alone: float
    batch: int
    wanted: int | None = None

    @classmethod
    def of(cls, submission: Submission) -> Adaptation:
        """That of a job as it arrives."""
        training = submission.training
        assert isinstance(training, RegimeTraining)  # noqa: S101  the trace's reader makes no others
        return cls(training, submission.job.gpus, seconds_alone(submission), training.regimes[0].batch)

    @property
    def first(self) -> int:
        """The batch at the start."""
        return self.training.regimes[0].batch

    @property
    def speed(self) -> TableSpeed:
        """What policies see: the table at the present batch, in its own steps."""
        return TableSpeed(self.training.table, model_name(self.training.family, self.batch))

    def steps_per_second(self, gpu_type: str) -> float:
        """The true speed."""
        return self.speed.steps_per_second(gpu_type, (self.gpus,)) or 0.0

    def look(self, done: float) -> None:
        """See after ``done`` of its present steps which batch it wants."""
        family = FAMILIES[self.training.family]
        epoch = math.ceil(done / family.steps(self.batch))
        if family.largest is None or self.first >= family.largest:
            return
        if self.training.mode is Mode.GNS:
            grown = batch_at(Mode.GNS, self.training.family, self.first, self.gpus, epoch=epoch + 1, epochs=LONG)
            if grown > self.batch:
                self.wanted = min(2 * self.batch, family.largest)
        elif self.training.mode is Mode.ACCORDION:
            critical = _critical(self.training.family, self.first, epoch)
            if self.batch == self.first and not critical:
                self.wanted = family.largest
            elif self.batch != self.first and critical:
                self.wanted = self.first

    def change(self, job: Job) -> Job:
        """Take up the batch that it wants, if it does."""
        old, new, self.wanted = self.batch, self.wanted, None
        model = self.training.family
        if new is None or (model_name(model, new), self.gpus) not in self.training.table.job_types:
            return job
        was, now = FAMILIES[model].steps(old), FAMILIES[model].steps(new)
        assert job.total_steps is not None  # noqa: S101  a trace tells them all
        factor = 1 / (new / old)
        epochs = math.ceil(job.total_steps / was)
        total = math.ceil(job.total_steps * factor)
        if math.ceil(total / now) != epochs:
            total = epochs * now
        self.batch = new
        done = math.ceil((job.progress_steps or 0) / was) * now
        return job.evolve(total_steps=total, progress_steps=done, speed=self.speed)


def _critical(family: str, batch: int, epoch: int) -> bool:
    """Accordion's critical regimes, as they are while a job runs."""
    rule = FAMILIES[family].critical
    later = family == "Recommendation" and epoch >= 60  # noqa: PLR2004  where the rule for durations has more regimes
    return rule is not None and not later and rule(epoch, batch)


def seconds_alone(submission: Submission) -> float:
    """How long a job would run alone, as the artifact reckons: epochs of samples / batch steps, all of them whole.

    With the gradient noise scale, a last epoch for which the batch has doubled more than once has the first batch.
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


class Accounts:
    """The times that the round mechanism goes by, summed up as the artifact does.

    Jobs of one kind have often had the same time, but for the last bits of sums of floating-point numbers; these bits
    decide who is first.

    Attributes:
        times: by uid, seconds received since shares were made, and the prior.
        deficit: by uid, seconds that were missing when earlier shares ended.
    """

    def __init__(self, prior: float, least: float) -> None:
        self.prior = prior
        self.least = least  # between two makings of shares
        self.times: dict[str, float] = {}
        self.deficit: dict[str, float] = {}
        self._made = 0.0

    def into(self, data: Mapping[str, Any], jobs: Sequence[Job], now: float) -> dict[str, Any]:
        """A policy's data with these times in its time accounts."""
        accounts, made_for = TimeAccounts.from_json(data[ACCOUNTS]), data[COMPUTED_FOR]
        (kind,) = made_for["gpus"]
        shares = accounts.shares
        if [job.uid for job in jobs] != made_for["jobs"] and (accounts.expired or now - self._made >= self.least):
            for job in jobs:
                should = shares.get((job.uid,), {}).get(kind, 0.0) * (now - self._made)
                had = self.times.get(job.uid, self.prior) - self.prior
                self.deficit[job.uid] = self.deficit.get(job.uid, 0.0) + (should - had)
                self.times[job.uid] = self.prior
            self._made, shares = now, {}
        exact = replace(
            accounts,
            shares=shares,
            received={(job.uid,): {kind: self.times.get(job.uid, self.prior) - self.prior} for job in jobs},
            deficit={(job.uid,): {kind: self.deficit.get(job.uid, 0.0)} for job in jobs},
            attained={job.uid: dict(job.attained) for job in jobs},
        )
        return {**data, ACCOUNTS: exact.to_json()}


class ShockwaveLoop(GavelLoop):
    """One simulation as Shockwave's public simulator would run it; its jobs are ``RegimeTraining``."""

    loop = "shockwave"

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[Node],
        policy: Policy,
        settings: Settings,
        *,
        window: range | None = None,
        watch: RoundObserver | None = None,
    ) -> None:
        super().__init__(workload, nodes, policy, settings, window=window, watch=watch)
        self.adaptations: dict[str, Adaptation] = {}
        least = getattr(policy.parameters, "recompute_seconds", 0.0)
        self.accounts = Accounts(PRIOR_ROUNDS * settings.round_seconds, least)
        self.ran: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())  # in the round before, and now

    def arrive(self) -> None:
        """Submissions that are due, after everybody's batch was looked at."""
        for uid, live in self.live.items():
            self.adaptations[uid].look(live.job.progress_steps or 0)
        super().arrive()
        for uid, live in self.live.items():
            if uid not in self.adaptations:
                self.adaptations[uid] = found = Adaptation.of(live.submission)
                live.job = live.job.evolve(speed=found.speed)

    def decide(self) -> None:
        """As in Gavel's, by the artifact's own sums; and remember who runs."""
        if self.state is not None and ACCOUNTS in self.state.data:
            jobs = [live.job for live in self.live.values()]
            self.state = replace(self.state, data=self.accounts.into(self.state.data, jobs, self.now))
        super().decide()
        now = frozenset(live.job.uid for part in self.parts for live in part.members)
        self.ran = (self.ran[1], now)

    def aim(self, result: RoundResult) -> None:
        """Start only who was there when shares were made; others' GPUs stay idle until shares are made anew."""
        super().aim(self._with_shares(result))

    def units(self, result: RoundResult) -> Iterable[tuple[Live, ...]]:
        """Likewise."""
        return super().units(self._with_shares(result))

    def _with_shares(self, result: RoundResult) -> RoundResult:
        if ACCOUNTS not in result.state.data:
            return result
        there = set(result.state.data[COMPUTED_FOR]["jobs"])
        return replace(result, targets={uid: place for uid, place in result.targets.items() if uid in there})

    def part(self, members: tuple[Live, ...]) -> Part:
        """As many whole steps at the present batch as fit in a round; a restart is not counted here."""
        (live,) = members
        place = live.job.placement
        assert place is not None  # noqa: S101  it has just been given one
        speed = self.adaptations[live.job.uid].steps_per_second(place.gpu_type or "")
        left = (live.job.total_steps or 0) - (live.job.progress_steps or 0)  # below 0 after rounding up to epochs
        steps = min(int(speed * self.settings.round_seconds), left)
        until = self.now + steps / speed if speed > 0 else self.now
        return Part(members, place, (steps,), max(self.now, until))

    def credit(self, part: Part) -> None:
        """Write down what a part has brought, and change the batch."""
        (live,), (steps,) = part.members, part.steps
        seconds = part.until - self.round_began
        uid, adaptation = live.job.uid, self.adaptations[live.job.uid]
        pays = len(self.rounds) > 1 and uid not in self.ran[0]
        if pays and seconds > self.settings.round_seconds - NEARLY:
            steps = int(steps * ((seconds - RESTART_SECONDS) / seconds))
            seconds -= RESTART_SECONDS
            live.overhead_seconds += RESTART_SECONDS
        if steps <= 0 and seconds <= 0:
            live.failed += 1
            over = live.failed >= FAILED_PARTS
        else:
            job, kind, gpus = live.job, part.place.gpu_type or "", part.place.gpus
            live.failed = 0
            live.job = job.evolve(
                progress_steps=(job.progress_steps or 0) + steps,
                attained={**job.attained, kind: job.attained.get(kind, 0.0) + gpus * seconds},
                ran_seconds=job.ran_seconds + seconds,
            )
            self.accounts.times[uid] = self.accounts.times.get(uid, self.accounts.prior) + seconds
            over = not live.job.remaining_steps or live.job.ran_seconds > int(PATIENCE * int(adaptation.alone))
        live.job = adaptation.change(live.job)
        if over:
            self.finish(live, part.until)


def simulate_shockwave(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings,
    *,
    window: range | None = None,
    watch: RoundObserver | None = None,
) -> Outcome:
    """Run a workload to its end, as Shockwave's public simulator would.

    Args:
        workload: the jobs, with regimes.
        nodes: the cluster.
        policy: who decides.
        settings: the round's length; everything else is the loop's.
        window: positions in the workload; the simulation ends when these jobs are done. None for all of them.
        watch: is shown every round.
    """
    return ShockwaveLoop(workload, nodes, policy, settings, window=window, watch=watch).run()
