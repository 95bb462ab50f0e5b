"""What each module of rows gives: ``rows(data) -> list[Row]``, where ``data`` is the folder of the public data.

A module that lacks its part of the data raises ``OSError`` or ``TraceError``; its rows are then told as missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

EQUAL, EXPLAINED, DIFFERENT = "equal", "explained", "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure.

    Attributes:
        name: what it is.
        theirs: what the artifact gives.
        decimals: so many of them are known, and must agree.
        without: what the artifact gives without the behaviour that the row's reason names, where that was tried.
        at_most: whether the row's reason explains only figures that are less: ours are to be at least as good.
        within: the row's reason explains no more than this, relative to theirs; None where another bound says so.
    """

    name: str
    theirs: float
    decimals: int
    without: float | None = None
    at_most: bool = False
    within: float | None = None

    def verdict(self, ours: float, reason: str) -> str:
        """In one word, whether ours agrees; or is explained by the row's reason, within what that allows."""
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
    """One policy on one of the artifact's workloads.

    Attributes:
        artifact: whose simulator gave the figures.
        workload: trace and cluster, in a few words.
        policy: ours, with the parameters that matter.
        measures: the figures to be met.
        run: runs our simulator in the artifact's manner, and returns our figures, in the order of ``measures``.
        reason: why a figure differs (the artifact's behaviour that causes it); empty where all must agree.
    """

    artifact: str
    workload: str
    policy: str
    measures: tuple[Measure, ...]
    run: Callable[[], tuple[float, ...]]
    reason: str = ""


Rows = Callable[[Path], list[Row]]
