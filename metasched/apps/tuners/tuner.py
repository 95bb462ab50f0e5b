"""The contract between the round of apps and a tuner.

A tuner is pure: the same search gives the same answer, whatever the order of jobs in the snapshot. It knows one app.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from metasched.core.apps import Bracket, LossPoint, TrialOrder
from metasched.core.errors import MetaschedError
from metasched.core.model import Job
from metasched.core.reasons import Reason


class TunerError(MetaschedError):
    """An app's tuner cannot work; the message says what to change in the tags of the app's jobs."""


class TunerOptions(BaseModel):
    """Base of a tuner's options: what follows its name in the tag, all of them numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Search:
    """The trials of one app in one round.

    Attributes:
        trials: live trials that were not ended, in order of submission.
        entrants: uids of all trials that there were, in order of submission.
        ended: uids of the trials that the tuner has ended, live or gone.
        completed: uids of jobs that have completed by themselves.
        orders: what the app's driver asks for.
        state: JSON-compatible data that the tuner returned in the last round; empty at first.
    """

    trials: Sequence[Job]
    entrants: Sequence[str]
    ended: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()
    orders: Sequence[TrialOrder] = ()
    state: Mapping[str, Any] = field(default_factory=dict)

    def steps(self, option: float | None) -> float | None:
        """Progress steps of a whole training.

        Args:
            option: the tuner's option ``steps``, which comes first.

        Returns:
            the fewest that a live trial declares, where the option is not given; None where none declares any.
        """
        declared = (trial.total_steps for trial in self.trials if trial.total_steps)
        return option if option is not None else min(declared, default=None)

    def required_steps(self, option: float | None) -> float:
        """Like ``steps``, for tuners that cannot work without.

        Raises:
            TunerError: neither the option nor a trial says how long a training is.
        """
        if (steps := self.steps(option)) is None:
            raise TunerError("it needs the steps of a training: add total_steps=N, or the tuner's option steps=N")
        return steps


@dataclass(frozen=True, slots=True)
class TunerAnswer:
    """What a tuner decides in one round.

    Attributes:
        state: JSON-compatible data for the next round.
        caps: the most GPUs of a trial, by uid; none for trials that are not in it.
        holds: why a trial must not train for now, by uid.
        ends: why a trial is ended for good, by uid.
        brackets: the present brackets, for tuners that work in phases.
        problem: which orders of the app's driver were ignored, and why.
    """

    state: Mapping[str, Any] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, Reason] = field(default_factory=dict)
    ends: Mapping[str, Reason] = field(default_factory=dict)
    brackets: tuple[Bracket, ...] = ()
    problem: Reason | None = None


class Tuner(ABC):
    """Base of all tuners.

    Attributes:
        name: the tuner's name in tags.
        Options: the class of its options.
    """

    name: ClassVar[str]
    Options: ClassVar[type[TunerOptions]] = TunerOptions

    def __init__(self, options: TunerOptions | None = None) -> None:
        self.options = options if options is not None else self.Options()

    @abstractmethod
    def step(self, search: Search) -> TunerAnswer:
        """Decide one round of one app's search.

        A tuner ends no trial twice, and never the last live one that it would rank best.

        Raises:
            TunerError: the tuner cannot work with these trials; the app then runs without it.
        """


def loss_at(losses: Sequence[LossPoint], steps: float) -> float:
    """The loss when ``steps`` were done, linear between two points; infinite for a diverged or silent training.

    Before the first point it is the first loss, and after the last point the last.
    """
    index = bisect_right(losses, steps, key=lambda point: point.progress_steps)
    if index == 0:
        return _finite(losses[0].loss) if losses else math.inf
    before, after = losses[index - 1], losses[min(index, len(losses) - 1)]
    if after is before or not math.isfinite(before.loss + after.loss):
        return _finite(before.loss)
    passed = (steps - before.progress_steps) / (after.progress_steps - before.progress_steps)
    return _finite(before.loss + passed * (after.loss - before.loss))


def best_loss(losses: Sequence[LossPoint]) -> float:
    """The least loss; infinite for a silent training, and for one whose last loss is not finite."""
    if not losses or not math.isfinite(losses[-1].loss):
        return math.inf
    return min(_finite(point.loss) for point in losses)


def shown_loss(loss: float) -> float:
    """A finite loss with as many digits as its reason shows."""
    return float(f"{loss:.4g}")


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
