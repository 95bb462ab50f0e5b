"""Which of the published jobs a caller selects, by user, account and state, and in which order."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.core.errors import MetaschedError
from metasched.shared_dir.published_status import JobStatus, Status

WAITING = ("held", "queued")
_LIVE = (*WAITING, "running", "stopping", "suspended")
_STATES: Mapping[str, tuple[str, ...]] = {"waiting": WAITING, **{state: (state,) for state in _LIVE}}

_ENDED = ("completed", "failed", "cancelled", "timeout", "gone")
KNOWN_STATES = (*_STATES, *_ENDED)
"""What callers may ask for; Slurm has more states of ended jobs, which may be asked for where one is published."""

ORDERS: Mapping[str, Callable[[JobStatus], tuple[object, ...]]] = {
    "state": lambda job: (not job.nodes,),
    "waited": lambda job: (-job.waited_seconds,),
    "ran": lambda job: (-job.ran_seconds,),
    "gpus": lambda job: (-sum(job.nodes.values()), -job.max_gpus),
    "service": lambda job: (-job.attained_service,),
    "submitted": lambda job: (job.submitted,),
    "user": lambda job: (job.user, not job.nodes),
    "account": lambda job: (job.account or "", not job.nodes),
    "name": lambda job: (job.name,),
}
"""Keys of the orders of live jobs; equal jobs stay in the published order."""


class UnknownStateError(MetaschedError):
    """No job of metasched can be in the state that was asked for; the message has the near misses."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs to show; None and empty select all.

    Attributes:
        user: only jobs of this user.
        account: only jobs of this account.
        states: only jobs in these states: those of Slurm and metasched in lower case, or ``waiting``.
    """

    user: str | None = None
    account: str | None = None
    states: tuple[str, ...] = ()

    def of(self, status: Status) -> Status:
        """Return the status with the selected jobs; nodes and headline stay.

        Raises:
            UnknownStateError: no job of metasched can be in one of the states.
        """
        if self == Selection():
            return status
        accepted = self._states(status)

        def selects(job: JobStatus) -> bool:
            return (
                self.user in (None, job.user)
                and self.account in (None, job.account)
                and (not accepted or job.status in accepted)
            )

        jobs = tuple(job for job in status.jobs if selects(job))
        apps = {job.app for job in jobs}
        by_user_alone = self.account is None and not accepted
        return replace(
            status,
            jobs=jobs,
            finished=tuple(job for job in status.finished if selects(job)),
            apps=tuple(app for app in status.apps if (app.user == self.user if by_user_alone else app.uid in apps)),
            deferred=tuple(one for one in status.deferred if by_user_alone and one.user == self.user),
        )

    def _states(self, status: Status) -> set[str]:
        """Return the published words for the selected states."""
        seen = {job.status for job in (*status.jobs, *status.finished)}
        accepted: set[str] = set()
        for asked in map(str.lower, self.states):
            if asked not in KNOWN_STATES and asked not in seen:
                known = sorted({*KNOWN_STATES, *seen})
                raise UnknownStateError(f"no state {asked!r}; {suggestion(asked, known)}")
            accepted.update(_STATES.get(asked, (asked,)))
        return accepted


def in_order(jobs: Sequence[JobStatus], order: str) -> list[JobStatus]:
    """Return live jobs in one of ``ORDERS``."""
    return sorted(jobs, key=ORDERS[order])


def suggestion(asked: str, known: Sequence[str]) -> str:
    """Return ``did you mean a or b?`` for the near misses, else the known words."""
    near = difflib.get_close_matches(asked, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
