"""Successive halving within brackets: after each phase the better part of a bracket's trials continues.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.

Of n trials, ceil(n / eta^k) continue into phase k (the first phase is 0) while that many live: a trial that dies takes
the place of a loser. A phase is over when each of its live trials has done the phase's steps; until then, those that
have are held. A bracket's last phase ends nobody.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
from pydantic import Field

from metasched.apps.tuners.tuner import Search, Tuner, TunerAnswer, TunerError, TunerOptions, loss_at, shown_loss
from metasched.core.apps import Bracket, Phase
from metasched.core.model import Job
from metasched.core.reasons import Code, Reason


@dataclass(frozen=True)
class BracketState:
    """One bracket between rounds.

    Attributes:
        trials: uids of the trials that began.
        steps: progress steps at the end of each phase.
        phase: index of the present phase.
    """

    trials: list[str]
    steps: list[float]
    phase: int = 0


class BracketOptions(TunerOptions):
    """Options of tuners that work in brackets.

    Attributes:
        eta: of so many trials one continues; each phase has as many times the steps and GPUs of the one before.
        steps: steps at the end of the last phase; else those that the trials declare.
    """

    eta: Annotated[int, Field(ge=2, le=64)] = 2
    steps: Annotated[float, Field(ge=1)] | None = None


class BracketTuner(Tuner):
    """Base of tuners that divide trials into brackets.

    Brackets are laid out anew, over all trials so far, until the first phase of one of them is over. Trials that are
    submitted later are laid out in brackets of their own.
    """

    Options: ClassVar[type[TunerOptions]] = BracketOptions
    options: BracketOptions

    @abstractmethod
    def layout(self, trials: Sequence[str], steps: float) -> list[BracketState]:
        """Brackets at their first phase, for trials in order of submission.

        Raises:
            TunerError: the steps are too few for so many trials.
        """

    def step(self, search: Search) -> TunerAnswer:
        """Close the phases that are over, end their losers, and hold trials whose phase is not over."""
        fixed = [msgspec.convert(bracket, BracketState) for bracket in search.state.get("brackets", ())]
        placed = {uid for bracket in fixed for uid in bracket.trials}
        new = [uid for uid in search.entrants if uid not in placed]
        laid_out = self.layout(new, search.required_steps(self.options.steps)) if new else []
        steps_of = [self._step(bracket, search) for bracket in (*fixed, *laid_out)]
        begun = any(step.bracket.phase for step in steps_of[len(fixed) :])
        stored = [step.bracket for step in (steps_of if begun else steps_of[: len(fixed)])]
        return TunerAnswer(
            {"brackets": msgspec.to_builtins(stored)},
            {uid: cap for step in steps_of for uid, cap in step.caps.items()},
            {uid: why for step in steps_of for uid, why in step.holds.items()},
            {uid: why for step in steps_of for uid, why in step.ends.items()},
            tuple(step.shown for step in steps_of),
        )

    def _step(self, bracket: BracketState, search: Search) -> _Step:
        """One round of one bracket."""
        eta, began, last = self.options.eta, len(bracket.trials), len(bracket.steps) - 1
        members = set(bracket.trials)
        live = [trial for trial in search.trials if trial.uid in members]
        phase = bracket.phase
        ends: dict[str, Reason] = {}
        while phase < last:
            kept = continuing(began, eta, phase + 1)
            if len(live) > kept:
                if not all(_has_done(trial, bracket.steps[phase]) for trial in live):
                    break
                live, losers = _ranked(live, bracket.steps[phase], kept)
                ends |= losers
            phase += 1
        steps = bracket.steps[phase]
        awaited = [trial.uid for trial in live if phase < last and not _has_done(trial, steps)]
        holds = {}
        if awaited:
            why = Reason.of(Code.TRIAL_PHASE_DONE, phase=phase + 1, phases=last + 1, steps=steps, job=awaited[-1])
            holds = {trial.uid: why for trial in live if _has_done(trial, steps)}
        caps = {} if len(live) < 2 else {trial.uid: trial.gpus * eta**phase for trial in live}  # noqa: PLR2004  alone
        return _Step(
            BracketState(bracket.trials, bracket.steps, phase),
            Bracket(tuple(bracket.trials), _phases(bracket, live, eta), phase),
            caps,
            holds,
            ends,
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """One bracket after a round: for the next round, for policies, and what it asks for its trials."""

    bracket: BracketState
    shown: Bracket
    caps: Mapping[str, int]
    holds: Mapping[str, Reason]
    ends: Mapping[str, Reason]


def continuing(trials: int, eta: int, phase: int) -> int:
    """How many of a bracket's trials continue into a phase, counted from 0."""
    groups: int = eta**phase
    return -(-trials // groups)


def phase_steps(steps: float, eta: int, phases: int, trials: int) -> list[float]:
    """Steps at the end of each phase: each time eta times as many, the last time ``steps``.

    Raises:
        TunerError: the first phase would be shorter than a step.
    """
    fewest = eta ** (phases - 1)
    if steps < fewest:
        raise TunerError(
            f"{steps:g} steps are too few for {phases} phases of {trials} trials: give at least steps={fewest}"
        )
    return [steps / eta ** (phases - 1 - phase) for phase in range(phases)]


def _has_done(trial: Job, steps: float) -> bool:
    return (trial.progress_steps or 0.0) >= steps


def _ranked(live: Sequence[Job], steps: float, kept: int) -> tuple[list[Job], dict[str, Reason]]:
    """The trials that continue, in order of submission, and why each other one is ended.

    Ties go to the earlier submission.

    Raises:
        TunerError: no trial has a loss, so that nothing tells losers from winners.
    """
    losses = {trial.uid: loss_at(trial.losses, steps) for trial in live}
    order = sorted(live, key=lambda trial: (losses[trial.uid], trial.submitted, trial.uid))
    if math.isinf(losses[order[0].uid]):
        raise TunerError(
            f"none of its {len(live)} trials has reported a finite loss by step {steps:g}, so they cannot be compared: "
            "report the loss"
        )
    ends = {}
    for rank, trial in enumerate(order[kept:], kept + 1):
        facts = {"rank": rank, "trials": len(live), "kept": kept, "steps": steps}
        if math.isinf(losses[trial.uid]):
            ends[trial.uid] = Reason.of(Code.TRIAL_WITHOUT_LOSS, **facts)
        else:
            ends[trial.uid] = Reason.of(Code.TRIAL_OUTRANKED, **facts, loss=shown_loss(losses[trial.uid]))
    return [trial for trial in live if trial.uid not in ends], ends


def _phases(bracket: BracketState, live: Sequence[Job], eta: int) -> tuple[Phase, ...]:
    """All phases of a bracket, with the most GPUs that one of its live trials may have in each."""
    began = len(bracket.trials)
    phases = []
    for phase, steps in enumerate(bracket.steps):
        trials = continuing(began, eta, phase)
        most = [job.max_gpus if trials == 1 else min(job.max_gpus, job.gpus * eta**phase) for job in live]
        phases.append(Phase(trials, steps, max(most, default=0)))
    return tuple(phases)
