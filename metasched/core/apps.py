"""Apps: trainings of one user that search one thing together, with the tuner that compares and ends them.

Sources: Mahajan et al., "Themis", NSDI 2020, sections 2.1 and 4.3 (apps, phases, the interface to tuners); Golovin et
al., "Google Vizier", KDD 2017 (trials). Pure.

A job array is an app, and so are the jobs of one user whose tags say ``app=NAME``. Every other job is an app of one.
A *trial* is a member whose own tag names the app's tuner; only trials are capped, held and ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from metasched.core.reasons import Reason

MOST_LOSS_POINTS = 64
"""The most loss points of one job in a snapshot."""
NO_OPTIONS: Mapping[str, float] = MappingProxyType({})


class LossPoint(NamedTuple):
    """The loss of a training, or another metric of which less is better, at one instant.

    Attributes:
        progress_steps: optimizer steps done, in the unit of ``Job.progress_steps``.
        loss: the mean since the previous point; not finite where the training has diverged.
    """

    progress_steps: float
    loss: float


def thinned(points: Sequence[LossPoint], most: int = MOST_LOSS_POINTS) -> tuple[LossPoint, ...]:
    """At most ``most`` of the points (2 or more), evenly spaced by rank, the first and the last among them."""
    if len(points) <= most:
        return tuple(points)
    last = len(points) - 1
    return tuple(points[rank * last // (most - 1)] for rank in range(most))


@dataclass(frozen=True, slots=True)
class TunerSettings:
    """The tuner that a job's tag names: ``tuner=halving,eta=3``.

    Attributes:
        name: the tuner's name.
        options: its options; each tuner has defaults for those that are not given.
    """

    name: str
    options: Mapping[str, float] = field(default_factory=lambda: NO_OPTIONS)

    @property
    def tag(self) -> str:
        """The settings as the tag writes them, options by name."""
        options = (f"{name}={value:.17g}" for name, value in sorted(self.options.items()))
        return ",".join((f"tuner={self.name}", *options))


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """What an app's driver asks for one trial, under the tuner ``outside``.

    Attributes:
        app: uid of the app whose driver says so.
        uid: the trial's uid, as the driver gives it: perhaps of a job that is none of its trials.
        max_gpus: the most GPUs that the trial is to have; None for no cap.
        end: whether the trial is to be ended for good.
        words: the driver's explanation (hostile text).
    """

    app: str
    uid: str
    max_gpus: int | None = None
    end: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a bracket: its trials train until each has done the phase's steps, then the best ones continue.

    Attributes:
        trials: the number of trials with which it begins, while that many live.
        steps: progress steps of each trial at its end, counted from the beginning of the training.
        max_gpus: the most GPUs of one trial in it.
    """

    trials: int
    steps: float
    max_gpus: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """Trials of an app that are compared with one another, phase by phase.

    Attributes:
        trials: uids of the trials that began, in order of submission; ended ones included.
        phases: all phases, the first one first.
        phase: index of the present phase.
    """

    trials: tuple[str, ...]
    phases: tuple[Phase, ...]
    phase: int


@dataclass(frozen=True, slots=True)
class App:
    """One app with at least one live member.

    Attributes:
        uid: ``app:<user>/<NAME>``, ``array:<uid of the array>``, or the job's uid for an app of one.
        name: NAME, or the name of the first member (hostile text).
        user: name of its owner.
        members: uids of all trials that there were, then of the other live members, each in order of submission.
        first_submitted: first submission of a member, unix seconds.
        attained_service: GPU-seconds that all members have received, those that are gone included.
        live_integral: seconds since the first submission, times the number of live apps of the cluster.
        tuner: the tuner that the members' tags name; None where they name none, or several.
        brackets: the brackets of tuners that work in phases; empty for others.
        problem: why the app runs without the tuner that its tags name, or which orders of its driver were ignored.
    """

    uid: str
    name: str
    user: str
    members: tuple[str, ...]
    first_submitted: float
    attained_service: float
    live_integral: float
    tuner: TunerSettings | None = None
    brackets: tuple[Bracket, ...] = ()
    problem: Reason | None = None

    def mean_live_apps(self, now: float) -> float:
        """Mean number of live apps since the first submission, at least 1 (N_avg of Themis, section 4.3.1).

        Args:
            now: the snapshot's ``now``, unix seconds.
        """
        age = now - self.first_submitted
        return max(1.0, self.live_integral / age) if age > 0 else 1.0


@dataclass(frozen=True, slots=True)
class AppsState:
    """The apps' state between rounds, committed to the store together with the decision.

    Attributes:
        version: version of the layout of ``data``; another version's state is not read.
        data: JSON-compatible data.
    """

    version: int = 1
    data: Mapping[str, Any] = field(default_factory=dict)
