"""How many apps of the cluster are live, over time: for the contention that an app meets (N_avg of Themis)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Self

MOST_STEPS = 256
"""More steps than this are merged, the older half in pairs, to their mean."""


class LiveApps:
    """A step function of time.

    Attributes:
        steps: instants (unix seconds, ascending), each with the number of live apps since then. The first number holds
            for all time before it, too.
    """

    def __init__(self, steps: Sequence[tuple[float, float]]) -> None:
        self.steps = tuple(steps)
        self._instants = [instant for instant, _ in steps]
        areas = (number * (end - begin) for (begin, number), (end, _) in pairwise(steps))
        self._sums = list(accumulate(areas, initial=0.0))

    def integral(self, begin: float, end: float) -> float:
        """Seconds times the number of live apps between two instants; there must be a step."""
        return self._until(end) - self._until(begin)

    def _until(self, instant: float) -> float:
        """The integral from the first step's instant, negative before it."""
        index = max(bisect_right(self._instants, instant) - 1, 0)
        start, number = self.steps[index]
        return self._sums[index] + number * (instant - start)

    def after(self, now: float, live: int, arrivals: Iterable[float], oldest: float) -> Self:
        """The function with the time up to a round.

        Args:
            now: the round's instant, no earlier than the last step.
            live: number of live apps from then on.
            arrivals: first submissions of apps since the round before; those that have ended since are not known.
            oldest: the earliest instant that is asked for.
        """
        steps = list(self.steps)
        for instant in sorted(arrivals):
            if steps:
                _extend(steps, instant, steps[-1][1] + 1)
        _extend(steps, now, live)
        unused = bisect_right(steps, oldest, key=lambda step: step[0]) - 1
        return type(self)(_merged(steps[max(unused, 0) :]))


def _extend(steps: list[tuple[float, float]], instant: float, number: float) -> None:
    """Append a step; none where the number does not change."""
    if steps and steps[-1][0] >= instant:
        instant = steps.pop()[0]
    if not steps or steps[-1][1] != number:
        steps.append((instant, number))


def _merged(steps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The steps, with the older half merged in pairs where they are too many; integrals over whole pairs remain."""
    if len(steps) <= MOST_STEPS:
        return steps
    older = 2 * (len(steps) // 4)
    ends = [instant for instant, _ in steps[1 : older + 1]]
    merged = []
    for index in range(0, older, 2):
        (begin, first), (middle, second), end = steps[index], steps[index + 1], ends[index + 1]
        merged.append((begin, (first * (middle - begin) + second * (end - middle)) / (end - begin)))
    return merged + steps[older:]
