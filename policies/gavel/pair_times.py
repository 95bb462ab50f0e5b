"""From the time of two classes of jobs together to the times of pairs of their jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metasched.core.model import Job
from metasched.time_shares.round_mechanism import Combination, pair_of

ROUNDING = 1e-6
"""Time shares up to this are a solver's rounding."""

JobTime = tuple[Job, float]
"""A job, and the fraction of the time that it spends in pairs of a pool."""


def divide_pair(first: Sequence[Job], second: Sequence[Job], total: float) -> Iterator[tuple[Combination, float]]:
    """Divide the time of two classes together among pairs of their jobs, equally for the jobs of each class.

    Args:
        first: jobs of the first class.
        second: jobs of the second class; the same object for pairs within one class.
        total: fraction of the time, summed over all pairs.

    Returns:
        Pairs, the job that was submitted first named first, with the time of each.
    """
    if first is second:
        ring = zip(first, (*first[1:], first[0]), strict=True)
        pairs = dict.fromkeys(pair_of(one, other) for one, other in ring)
        yield from ((pair, total / len(pairs)) for pair in pairs)
        return
    # Both classes divide the same interval into equal parts, one for each job; overlapping parts are a pair.
    i = j = at = 0
    parts = len(first) * len(second)
    while at < parts:
        end = min((i + 1) * len(second), (j + 1) * len(first))
        yield pair_of(first[i], second[j]), total * (end - at) / parts
        i, j, at = end // len(second), end // len(first), end


def split_in_halves(times: Sequence[JobTime]) -> tuple[list[JobTime], list[JobTime]]:
    """Split a sequence of times at half of their sum; the time of at most one job is divided."""
    first: list[JobTime] = []
    second: list[JobTime] = []
    left = sum(share for _, share in times) / 2
    for job, share in times:
        before = min(share, max(left, 0.0))
        left -= before
        if before > 0:
            first.append((job, before))
        if share > before:
            second.append((job, share - before))
    return first, second


def pair_off(first: Sequence[JobTime], second: Sequence[JobTime]) -> Iterator[tuple[Combination, float]]:
    """Lay two sequences of times along one interval; jobs whose times overlap are a pair for the overlap.

    Returns:
        Combinations with their times: pairs, and jobs alone for time without a co-runner. Where both sequences have the
        same job at once, it is alone for both times.
    """
    sides = [list(reversed(times)) for times in (first, second)]
    while all(sides):
        (one, mine), (other, others) = (side.pop() for side in sides)
        share = min(mine, others)
        if one is other:
            yield (one.uid,), 2 * share
        else:
            yield pair_of(one, other), share
        for side, job, left in zip(sides, (one, other), (mine - share, others - share), strict=True):
            if left > ROUNDING:
                side.append((job, left))
    yield from (((job.uid,), share) for side in sides for job, share in side)
