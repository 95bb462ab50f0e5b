"""Exponential backoff of failed actions: each failure in a row doubles the wait before the next try.

A waiting action neither loads Slurm nor delays other jobs' actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Failures:
    """The consecutive failures of one action on one job.

    Attributes:
        count: failures in a row.
        last: when the last one was, unix seconds.
        wait: seconds from the last failure to the earliest next try.
    """

    count: int
    last: float
    wait: float


class Backoff:
    """Consecutive failures by job and action, kept in memory only. Instants are unix seconds."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], Failures] = {}

    def __bool__(self) -> bool:
        """Whether any action has failed at its latest try."""
        return bool(self._failures)

    def must_wait(self, job: str, action: str, now: float) -> bool:
        """Whether the action's wait since its last failure is not over yet; false where the clock was set back."""
        failures = self._failures.get((job, action))
        return failures is not None and 0 <= now - failures.last < failures.wait

    def record_failure(self, job: str, action: str, now: float, outage: float = 0.0) -> Failures:
        """Count one more failure, and return the failures in a row with the new wait.

        Args:
            job: the job's identity, as in all calls of one ``Backoff``.
            action: the name of the action.
            now: when the action was tried.
            outage: seconds from then on in which no other action is tried either; added to the wait, so that other
                jobs' actions are tried first afterwards.
        """
        before = self._failures.get((job, action))
        count = 1 if before is None else before.count + 1
        wait = min(FIRST_WAIT_SECONDS * 2 ** min(count - 1, 10), LONGEST_WAIT_SECONDS)
        self._failures[job, action] = failures = Failures(count, now, wait + outage)
        return failures

    def record_success(self, job: str, action: str) -> None:
        """Forget the action's failures."""
        self._failures.pop((job, action), None)

    def retain(self, is_current: Callable[[str, str], bool]) -> None:
        """Forget the failures of every job and action for which ``is_current(job, action)`` is false."""
        self._failures = {key: failures for key, failures in self._failures.items() if is_current(*key)}
