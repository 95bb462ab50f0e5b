"""Hyperband: brackets of successive halving that begin with more or fewer steps, side by side.

Source: Li et al., "Hyperband", JMLR 2018, algorithm 1. Its brackets follow one another and draw their trials. Here the
number of trials is given, so they are divided in the proportions of the algorithm's brackets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from metasched.apps.tuners.brackets import BracketState, BracketTuner, phase_steps


class Hyperband(BracketTuner):
    """Hyperband: a late bloomer that halving would end early has its chance in a bracket with fewer phases."""

    name: ClassVar[str] = "hyperband"

    def layout(self, trials: Sequence[str], steps: float) -> list[BracketState]:
        """As many brackets as trials and steps suffice for, the one of the most phases first.

        Trials are dealt in order of submission to the bracket that lacks the most (Sainte-Lague), because neighbours in
        a job array often have similar hyper-parameters.
        """
        eta, highest = self.options.eta, 0
        while sum(_sizes(highest + 1, eta)) <= len(trials) and eta ** (highest + 1) <= steps:
            highest += 1
        sizes = _sizes(highest, eta)
        dealt: list[list[str]] = [[] for _ in sizes]
        for uid in trials:
            lacking = max(range(len(sizes)), key=lambda index: (sizes[index] / (2 * len(dealt[index]) + 1), -index))
            dealt[lacking].append(uid)
        return [
            BracketState(uids, phase_steps(steps, eta, highest - index + 1, len(uids)))
            for index, uids in enumerate(dealt)
            if uids
        ]


def _sizes(highest: int, eta: int) -> list[int]:
    """The trials of each bracket in Hyperband, that of the most phases (``highest`` + 1) first."""
    return [-(-(highest + 1) * eta**phases // (phases + 1)) for phases in range(highest, -1, -1)]
