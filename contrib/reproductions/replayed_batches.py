"""Trainings that repeat the batches that Pollux chose, as in Figure 11 of Shockwave's paper (NSDI 2023, section 8)."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchRegime
from metasched.core.model import Decision, Placement, Snapshot, Speed
from metasched.core.policy import PolicyState
from metasched.simulator.records import Workload
from metasched.throughput.goodput_profile import GoodputProfile, ProfileSpeed, ProfileTraining
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training
from policies.pollux.policy import Pollux


class RecordingPollux(Pollux):
    """Pollux, and the batches of its jobs as their trainers report them at each round.

    Attributes:
        regimes: by uid, the global batches in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.regimes: dict[str, list[BatchRegime]] = {}

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Pollux's decision."""
        for job in snapshot.jobs:
            batch = None if job.batching is None else job.batching.global_batch
            if batch is None or job.placement is None:
                continue
            found = self.regimes.setdefault(job.uid, [])
            if not found:
                found.append(BatchRegime(batch, 0.0))
            elif found[-1].batch != batch:
                found.append(BatchRegime(batch, job.progress_steps or 0.0))
        return super().decide(snapshot, state)


@dataclass(frozen=True, slots=True)
class EpochSpeed:
    """The speed at a batch in one epoch, in steps whose progress is in proportion to their samples: a ``Speed``."""

    goodput: ProfileSpeed

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The speed; None where the goodput is not known."""
        found, profile = self.goodput.steps_per_second(gpu_type, spread), self.goodput.profile
        return None if found is None else found * profile.first_batch / self.goodput.batch

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """None: co-location was not measured."""
        return self.goodput.steps_per_second_with(other, gpu_type, spread)


@dataclass(frozen=True, slots=True)
class ReplayedTraining:
    """A training of a measured application whose script changes its batch at given points: a ``ScriptedTraining``.

    Attributes:
        profile: the application.
        regimes: the batches in their order, the first one from 0; the user declares them.
    """

    profile: GoodputProfile
    regimes: tuple[BatchRegime, ...]

    @property
    def total(self) -> float:
        """The progress of the whole training, in steps at the application's first batch."""
        return self.profile.ends[-1]

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The goodput, until the epoch or the regime ends; 0.0 outside of the measured sizes."""
        profile, now, epoch = self.profile, self._regime(done), self.profile.epoch(done)
        begins = [one.began for one in self.regimes[now + 1 : now + 2]]
        rate = None
        if placement.gpu_type == profile.gpu_type:
            rate = profile.goodput(placement.spread, self.regimes[now].batch, epoch)
        factor = 1.0 if co_runner is None else COLOCATED_FRACTION
        return Pace((rate or 0.0) * factor, min((profile.ends[epoch], *begins)))

    def known(self, done: float) -> Speed:
        """The true speed in the present epoch, at the batch in force."""
        return self.profile.speed(self.regimes[self._regime(done)].batch, self.profile.epoch(done))

    def reported_batching(self, done: float) -> Batching:
        """The batch in force, and the declared schedule."""
        now = self._regime(done)
        return Batching(
            self.profile.first_batch,
            BatchControl.SCRIPT,
            global_batch=self.regimes[now].batch,
            max_batch=self.profile.most_batch,
            regimes=self.regimes[: now + 1],
            adapts=AdaptationRule.SCHEDULE,
            most_regimes=len(self.regimes),
            schedule=self.regimes,
        )

    @property
    def batch_speeds(self) -> Mapping[int, Speed]:
        """By batch, the speed in the epoch in which it is in force for the first time."""
        found: dict[int, Speed] = {}
        for one in self.regimes:
            found.setdefault(one.batch, EpochSpeed(self.profile.speed(one.batch, self.profile.epoch(one.began))))
        return found

    def _regime(self, done: float) -> int:
        return max(bisect_right(self.regimes, done, key=lambda one: one.began) - 1, 0)


def replayed(workload: Workload, regimes: Mapping[str, Sequence[BatchRegime]]) -> Workload:
    """The jobs with given batches, on exactly the GPUs that they ask for.

    A batch that is too small for the GPUs that a job asks for counts as the smallest one that is not. Jobs of which no
    batch is given keep their own.

    Args:
        workload: jobs that train measured applications.
        regimes: by uid, the batches in their order.
    """
    submissions = []
    for one in workload.submissions:
        training, job = one.training, one.job
        assert isinstance(training, ProfileTraining)  # noqa: S101  by the reader
        profile, least = training.profile, job.gpus * training.profile.least_local
        given = regimes.get(job.uid) or [BatchRegime(training.batch, 0.0)]
        usable = (BatchRegime(max(each.batch, least), each.began) for each in given)
        merged = tuple(next(same) for _, same in itertools.groupby(usable, key=lambda each: each.batch))
        rigid = job.evolve(min_gpus=job.gpus, max_gpus=job.gpus, adaptive_batch=False)
        submissions.append(replace(one, job=rigid, training=ReplayedTraining(profile, merged)))
    return replace(workload, submissions=tuple(submissions))
