"""Successive halving: one bracket, of which each phase ends half the trials (or all but one of eta)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from metasched.apps.tuners.brackets import BracketState, BracketTuner, phase_steps


class Halving(BracketTuner):
    """Successive halving (see ``brackets``), until one trial is left, which trains to its end."""

    name: ClassVar[str] = "halving"

    def layout(self, trials: Sequence[str], steps: float) -> list[BracketState]:
        """One bracket of as many phases as it takes to leave one trial."""
        eta, phases = self.options.eta, 1
        while eta ** (phases - 1) < len(trials):
            phases += 1
        return [BracketState(list(trials), phase_steps(steps, eta, phases, len(trials)))]
