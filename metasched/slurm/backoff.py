"""When what failed may be tried again: ever more seldom, so that it neither hammers Slurm nor keeps others waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RETRY_SECONDS = 5.0  # after a first failure; each time that it fails again, twice as long
MOST_RETRY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Something has failed so often in a row; since the last time it rests for so many seconds."""

    times: int
    last: float
    rest: float


class Backoff:
    """A short memory of what failed: for whom (a job), and what (an action). Instants are unix seconds."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], Failures] = {}

    def rests(self, whose: str, what: str, now: float) -> bool:
        """Whether it failed so lately that it is to be left alone; not where the clock was set back."""
        failures = self._failures.get((whose, what))
        return failures is not None and 0 <= now - failures.last < failures.rest

    def failed(self, whose: str, what: str, now: float, outage: float = 0.0) -> Failures:
        """It has failed once more; that it rests.

        Args:
            whose: the job.
            what: the action.
            now: when it was tried.
            outage: seconds from then on in which nothing else is done either: after them it is the others' turn.
        """
        before = self._failures.get((whose, what))
        times = 1 if before is None else before.times + 1
        rest = min(RETRY_SECONDS * 2 ** min(times - 1, 10), MOST_RETRY_SECONDS)
        self._failures[whose, what] = failures = Failures(times, now, rest + outage)
        return failures

    def went_well(self, whose: str, what: str) -> None:
        """Its failures are over."""
        self._failures.pop((whose, what), None)

    def keep(self, lasts: Callable[[str, str], bool]) -> None:
        """Forget the failures that do not last: of jobs that are gone, say."""
        self._failures = {key: failures for key, failures in self._failures.items() if lasts(*key)}
