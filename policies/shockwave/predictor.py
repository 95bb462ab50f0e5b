"""Batch size regimes to come, predicted from those that are over (Shockwave, NSDI 2023, section 5).

The rule by which a training changes its batch size is known, so the batches to come are known, and only the lengths of
their regimes are random. These have a Dirichlet prior with equal parts. The restatement rule replaces the parts of
regimes that are over by their lengths, and divides the work that is left evenly among the others.

All work is counted in steps at the first batch size.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from metasched.core.batching import OVERDUE, AdaptationRule, BatchRegime

MOST_FOLLOWING = 64
"""Regimes to come that are predicted, at most: a user may declare a million, of batches that double each time."""


class Estimator(enum.Enum):
    """How the lengths of regimes are estimated."""

    RESTATEMENT = "restatement"  # the paper's rule
    BAYES = "bayes"  # the standard posterior, as if the steps of all regimes were drawn independently
    GREEDY = "greedy"  # the present batch to the end


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What a training's user has declared of its batch size.

    Attributes:
        rule: the rule by which the batch size changes.
        total: the whole training, in steps, above 0.
        first_batch: the global batch at the begin.
        max_batch: the largest global batch; None where it is not known.
        most_regimes: the largest number of regimes, at least 1 (K).
        schedule: the declared regimes in order, the first one from 0; for ``SCHEDULE`` alone.
    """

    rule: AdaptationRule
    total: float
    first_batch: int
    max_batch: int | None = None
    most_regimes: int = 1
    schedule: tuple[BatchRegime, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total) and self.total > 0):
            raise ValueError(f"total is {self.total}; give the steps of the whole training, above 0")
        if self.first_batch < 1 or self.most_regimes < 1:
            raise ValueError(f"first_batch is {self.first_batch}, most_regimes {self.most_regimes}; both are from 1")


class PredictedRegime(NamedTuple):
    """A span of the training with one global batch, and its steps, over or to come."""

    batch: int
    steps: float


Trajectory = tuple[PredictedRegime, ...]
"""The regimes of a training in order."""


def predict(
    adaptation: Adaptation,
    regimes: Sequence[BatchRegime],
    done: float,
    estimator: Estimator = Estimator.RESTATEMENT,
) -> Trajectory:
    """The mean trajectory of the whole training.

    What the reports contradict is not believed any more: then the present batch is expected to the end.

    Args:
        adaptation: what is declared.
        regimes: the regimes so far; empty where no trainer has reported.
        done: steps done, at least the begin of the last regime.
        estimator: how the lengths of regimes are estimated.
    """
    past = _Past(adaptation, regimes, done)
    following = [] if estimator is Estimator.GREEDY else past.following
    if not following:
        return past.trajectory([past.left])
    if adaptation.rule is AdaptationRule.SCHEDULE:
        return past.trajectory(past.declared_lengths())
    if estimator is Estimator.BAYES:
        prior = adaptation.total / (len(past.batches) + len(following))
        observed = np.array([*past.lengths, past.elapsed, *([0.0] * len(following))])
        means = (observed + prior) * adaptation.total / (adaptation.total + past.done)
        return tuple(map(PredictedRegime, [*past.batches, *following], means.tolist()))
    part, running = past.left / (1 + len(following)), 0.0
    if past.elapsed > part:  # it has outlasted its mean: only what is left after it is divided
        running, part = past.elapsed, (past.left - past.elapsed) / (1 + len(following))
    return past.trajectory([running + part] + [part] * len(following))


def sample_trajectories(
    adaptation: Adaptation,
    regimes: Sequence[BatchRegime],
    done: float,
    *,
    epochs: float,
    count: int,
    seed: int,
) -> list[Trajectory]:
    """Trajectories of the whole training, drawn from the restated posterior (Appendix F).

    The running regime is drawn on the condition that it lasts at least as long as it has already.

    Args:
        adaptation: what is declared.
        regimes: the regimes so far; empty where no trainer has reported.
        done: steps done, at least the begin of the last regime.
        epochs: epochs of the whole training: the sum of the prior's parameters, which decides how far draws differ.
        count: how many to draw.
        seed: the seed. Equal arguments give equal trajectories.
    """
    past = _Past(adaptation, regimes, done)
    following = len(past.following)
    if not following or adaptation.rule is AdaptationRule.SCHEDULE:
        return [predict(adaptation, regimes, done)] * count
    rng = np.random.default_rng(seed)
    part = epochs * past.left / adaptation.total / (1 + following)
    least = special.betainc(part, part * following, past.elapsed / past.left) if past.left > 0 else 0.0
    running = special.betaincinv(part, part * following, least + (1.0 - least) * rng.random(count))
    running = np.clip(running * past.left, past.elapsed, past.left)
    rest = rng.dirichlet([part] * following, count) * (past.left - running)[:, None]
    return [past.trajectory([first, *others]) for first, others in zip(running.tolist(), rest.tolist(), strict=True)]


def remaining(trajectory: Trajectory, done: float) -> Trajectory:
    """The part of a trajectory that begins after ``done`` steps; empty at its end."""
    found, begin = [], 0.0
    for batch, steps in trajectory:
        left = min(steps, begin + steps - done)
        begin += steps
        if left > 0:
            found.append(PredictedRegime(batch, left))
    return tuple(found)


class _Past:
    """The regimes so far and the batches that may follow.

    Attributes:
        done: steps done, within the training.
        batches: the batches so far, the last one in force.
        lengths: steps of the regimes that are over.
        elapsed: steps of the running regime so far.
        left: steps from the begin of the running regime to the end of the training.
        following: the batches that may follow.
    """

    def __init__(self, adaptation: Adaptation, regimes: Sequence[BatchRegime], done: float) -> None:
        self._adaptation = adaptation
        self.done = min(max(done, 0.0), adaptation.total)
        self.batches = [one.batch for one in regimes] or [adaptation.first_batch]
        begins = [0.0, *(one.began for one in regimes[1:]), self.done]
        begins = [min(begin, self.done) for begin in itertools.accumulate(begins, max)]
        *self.lengths, self.elapsed = (end - begin for begin, end in itertools.pairwise(begins))
        self.left = adaptation.total - begins[-2]
        self.following = self._following()

    def trajectory(self, lengths: Sequence[float]) -> Trajectory:
        """The whole trajectory, by the lengths of the running regime and of those that follow."""
        batches = [*self.batches, *self.following[: len(lengths) - 1]]
        return tuple(map(PredictedRegime, batches, [*self.lengths, *lengths]))

    def declared_lengths(self) -> list[float]:
        """The lengths of the running regime and of those that follow, as declared; what is late begins now."""
        total = self._adaptation.total
        begins = [min(max(one.began, self.done), total) for one in self._declared()]
        ends = [total - self.left, *begins, total]
        return [end - begin for begin, end in itertools.pairwise(ends)]

    def _declared(self) -> tuple[BatchRegime, ...]:
        return self._adaptation.schedule[len(self.batches) :]

    def _following(self) -> list[int]:
        asked, now = self._adaptation, self.batches[-1]
        match asked.rule:
            case AdaptationRule.SCHEDULE:
                expected = [one.batch for one in asked.schedule[: len(self.batches)]]
                to_come = self._declared()
                late = bool(to_come) and self.done - to_come[0].began > OVERDUE * asked.total
                return [] if late or expected != self.batches else [one.batch for one in to_come]
            case AdaptationRule.ACCORDION:
                sizes = {asked.first_batch, *self.batches} | ({asked.max_batch} if asked.max_batch else set())
                small, large = min(sizes), max(sizes)
                believed = len(sizes) == 2  # noqa: PLR2004  small and large
                endless: Iterator[int] = itertools.cycle([small, large] if now == large else [large, small])
            case AdaptationRule.GNS:
                limit = asked.max_batch or math.inf
                believed = all(later > former for former, later in itertools.pairwise(self.batches))
                doublings = math.ceil(math.log2(limit / now)) if now < limit < math.inf else MOST_FOLLOWING
                sizes_up = (int(min(now << step, limit)) for step in range(1, doublings + 1))
                endless = sizes_up if now < limit else iter(())
            case AdaptationRule.STATIC:
                return []
        most = min(max(asked.most_regimes - len(self.batches), 0), MOST_FOLLOWING)
        return list(itertools.islice(endless, most)) if believed else []
