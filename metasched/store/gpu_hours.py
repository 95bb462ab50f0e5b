"""GPU hours within a window of time, by user and account, and by job.

A job that was submitted and has ended within the window counts with the sum that its row of ``fairness`` has. Runs are
read of the other jobs alone: those that lived at the window's begin or end. So a month costs little more than a day.
Jobs that were imported from Slurm's accounting are left out: metasched did not schedule them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from metasched.core.finish_time_fairness import LIVE_DEFINITIONS
from metasched.store.connection import Connection
from metasched.store.history_queries import IS_IMPORTED
from metasched.store.row_conversion import as_json
from metasched.store.window_queries import HELD_CLOSED, HELD_OPEN

_RHO = LIVE_DEFINITIONS[0]
# Names one by one, by the index: SELECT DISTINCT reads it whole.
_USERS = """
  WITH RECURSIVE users (name) AS (
    SELECT min(user) FROM fairness
    UNION ALL SELECT (SELECT min(user) FROM fairness WHERE user > name) FROM users WHERE name IS NOT NULL)
  SELECT name FROM users WHERE name IS NOT NULL
"""
_SUMS = f"""
  SELECT account, total(gpu_seconds > 0), total(gpu_seconds), count({_RHO}), total({_RHO}), max({_RHO}) FROM fairness
  WHERE user = :user AND finished > :begin AND finished <= :end GROUP BY account
"""  # noqa: S608  constants
_LARGEST = """
  SELECT uid, gpu_seconds FROM fairness
  WHERE user = :user AND finished > :begin AND finished <= :end AND gpu_seconds > 0
  AND (:whole OR account IN (SELECT value FROM json_each(:accounts))) ORDER BY gpu_seconds DESC, uid LIMIT :most
"""
# Of a suspended time, the part that its run's mean suspension leaves in the window.
_SECONDS = f"""
  CASE WHEN ended IS NULL
    THEN max(0, {HELD_OPEN} - suspended_seconds - max(0, :now - coalesce(suspended_at, :now)))
    ELSE {HELD_CLOSED} * (1 - min(1, suspended_seconds / max(ended - started, 1e-9)))
  END * gpus
"""
_OF_JOBS = f"""
  SELECT uid, user, account, finished, (SELECT gpu_seconds FROM fairness WHERE fairness.uid = jobs.uid),
    (SELECT sum({_SECONDS}) FROM runs
     WHERE runs.uid = jobs.uid AND started < :end AND (ended > :begin OR ended IS NULL))
  FROM jobs WHERE NOT {IS_IMPORTED} AND
"""  # noqa: S608  constants
_CUT = (
    "finished > :begin AND finished <= :end AND submitted < :begin",
    "finished > :end AND submitted < :end",
    "finished IS NULL AND run > 0 AND submitted < :end",
)
"""The jobs of whose runs a part may lie outside of the window."""


class RhoSum(NamedTuple):
    """Rho of the jobs that ended in a window: their number, the sum, and the largest one."""

    rated: int
    total: float
    worst: float


@dataclass(frozen=True, slots=True)
class GpuHours:
    """GPU hours in a window of one job (``uid`` and ``slurm_job_id``), or of a user in an account (both None).

    Attributes:
        user: the owner.
        account: Slurm's account; None without one.
        jobs: jobs that held GPUs.
        gpu_hours: within the window.
        uid: of a job.
        slurm_job_id: of a job.
        name: of a job.
        rho: of a user in an account; None where no job with a rho has ended in the window.
    """

    user: str
    account: str | None
    jobs: int
    gpu_hours: float
    uid: str | None = None
    slurm_job_id: str | None = None
    name: str | None = None
    rho: RhoSum | None = None


@dataclass(frozen=True, slots=True)
class JobsOf:
    """The jobs of some users and those of some accounts."""

    users: Sequence[str] = ()
    accounts: Sequence[str] = ()

    def has(self, user: str, account: str | None) -> bool:
        """Whether the jobs of a user in an account are among them."""
        return user in self.users or account in self.accounts


class _CutJob(NamedTuple):
    """A job that lived at an end of the window; ``whole`` is its sum in ``fairness``, where that counts it."""

    uid: str
    user: str
    account: str | None
    whole: float | None
    gpu_seconds: float


class GpuHourQueries(Connection):
    """Queries of GPU hours. Every window is ``begin < end``, unix seconds; an open run lasts until ``now``."""

    def gpu_hours_by_user(self, begin: float, end: float, now: float) -> list[GpuHours]:
        """GPU hours and rho of each user in each account within a window, most GPU hours first."""
        window = {"begin": begin, "end": end, "now": now}
        jobs = Counter[tuple[str, str | None]]()
        seconds: defaultdict[tuple[str, str | None], float] = defaultdict(float)
        rho = {}
        for user in self._users():
            for account, count, held, rated, total, worst in self._rows(_SUMS, {**window, "user": user}):
                jobs[user, account], seconds[user, account] = int(count), held
                if rated:
                    rho[user, account] = RhoSum(rated, total, worst)
        for one in self._cut_jobs(window):
            key = one.user, one.account
            jobs[key] += (one.gpu_seconds > 0) - bool(one.whole)
            seconds[key] += one.gpu_seconds - (one.whole or 0.0)
        found = [
            GpuHours(*key, count, max(seconds[key], 0.0) / 3600.0, rho=rho.get(key))
            for key, count in jobs.items()
            if count > 0 or key in rho
        ]
        return sorted(found, key=lambda row: (-row.gpu_hours, row.user, row.account or ""))

    def gpu_hours_by_job(
        self, begin: float, end: float, now: float, most: int, only: JobsOf | None = None
    ) -> list[GpuHours]:
        """GPU hours of the jobs with most of them within a window; with ``only``, of these jobs alone."""
        window = {"begin": begin, "end": end, "now": now}
        cut = self._cut_jobs(window)
        of_user = Counter(one.user for one in cut)
        held: dict[str, float] = {}
        accounts = as_json([] if only is None else only.accounts)
        for user in self._users():
            whole = only is None or user in only.users
            if whole or (only is not None and only.accounts):
                asked = {"user": user, "whole": whole, "accounts": accounts, "most": most + of_user[user]}
                held |= dict(self._rows(_LARGEST, {**window, **asked}))
        for one in cut:
            if only is None or only.has(one.user, one.account):
                held[one.uid] = one.gpu_seconds
        largest = sorted((-seconds, uid) for uid, seconds in held.items() if seconds > 0)[:most]
        return self._labelled({uid: -seconds for seconds, uid in largest})

    def _users(self) -> list[str]:
        return [name for (name,) in self._rows(_USERS)]

    def _cut_jobs(self, window: dict[str, Any]) -> list[_CutJob]:
        """The jobs that lived at an end of a window, with the GPU seconds that they held within it."""
        found = []
        for condition in _CUT:
            for uid, user, account, finished, whole, seconds in self._rows(f"{_OF_JOBS} {condition}", window):
                counted = finished is not None and finished <= window["end"]
                found.append(_CutJob(uid, user, account, whole if counted else None, seconds or 0.0))
        return found

    def _labelled(self, seconds: Mapping[str, float]) -> list[GpuHours]:
        """GPU hours of jobs, in their order, from GPU seconds by uid."""
        rows = self._rows(
            "SELECT jobs.user, jobs.account, jobs.uid, jobs.slurm_job_id, jobs.name "
            "FROM json_each(?) AS asked CROSS JOIN jobs ON jobs.uid = asked.value",
            [as_json(list(seconds))],
        )
        found = {
            uid: GpuHours(user, account, 1, seconds[uid] / 3600.0, uid, *words) for user, account, uid, *words in rows
        }
        return [found[uid] for uid in seconds if uid in found]
