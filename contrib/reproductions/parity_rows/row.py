"""Rows of the parity table.

Each other module of the package has a function ``rows(data) -> list[Row]``, where ``data`` is the data folder.
It raises ``OSError`` or ``TraceError`` where the folder lacks the artifact's data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

EQUAL, EXPLAINED, DIFFERENT = "equal", "explained", "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Measure:
    """One published figure, and how far ours may be from it.

    Attributes:
        name: the metric and its unit.
        theirs: the artifact's figure.
        decimals: the number of its known decimals, all of which must agree.
        without: the artifact's figure without the behaviour that the row's reason names; None if it was not run so.
        at_most: whether the row's reason explains smaller figures only: ours are to be at least as good.
        within: the largest relative difference that the row's reason explains; None for no limit of this kind.
    """

    name: str
    theirs: float
    decimals: int
    without: float | None = None
    at_most: bool = False
    within: float | None = None

    def verdict(self, ours: float, reason: str) -> str:
        """``EQUAL``, ``EXPLAINED`` (another figure that the row's reason allows) or ``DIFFERENT``."""
        if round(ours, self.decimals) == round(self.theirs, self.decimals):
            return EQUAL
        bounds = []
        if self.without is not None:
            bounds.append(round(ours, self.decimals) == round(self.without, self.decimals))
        if self.at_most:
            bounds.append(ours <= self.theirs)
        if self.within is not None:
            bounds.append(abs(ours - self.theirs) <= self.within * self.theirs)
        return EXPLAINED if reason and bounds and all(bounds) else DIFFERENT


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one workload of an artifact.

    Attributes:
        artifact: the published simulator.
        workload: the trace and the cluster, in words.
        policy: our policy, with the parameters that matter.
        measures: the published figures.
        run: simulates in the artifact's loop; returns our figures, in the order of ``measures``.
        reason: the artifact's behaviour that makes figures differ; empty where all figures must be equal.
    """

    artifact: str
    workload: str
    policy: str
    measures: tuple[Measure, ...]
    run: Callable[[], tuple[float, ...]]
    reason: str = ""
