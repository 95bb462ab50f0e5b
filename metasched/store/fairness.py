"""Finish-time fairness (rho) and GPU time of jobs that have ended, by job, user and account.

The row of a job is written in the transaction that finishes the job. docs/researcher/METRICS.md has the definitions,
and says which of them a running cluster can know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from metasched.core.batching import BatchControl
from metasched.core.finish_time_fairness import LIVE_DEFINITIONS, UNFAIR, rho_by_definition
from metasched.store.load_rows import LoadRows
from metasched.store.records import JobRecord

_COLUMNS = ("uid", "user", "account", "finished", "gpu_seconds", "alone", "measured", *LIVE_DEFINITIONS)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM fairness"  # noqa: S608  constants
FOREVER = 9e15
"""An instant, unix seconds, after all others."""


@dataclass(frozen=True, slots=True)
class FairnessRecord:
    """The fairness of one job that has ended.

    Attributes:
        uid: the job.
        user: name of the job's owner.
        account: Slurm's account; None where accounting is off.
        finished: when it ended, unix seconds.
        gpu_seconds: GPU-seconds that it held.
        alone: seconds of its training alone on the GPUs that it requests, of the fastest type; None where not known.
        measured: whether ``alone`` is from a measured speed; else it is the service over the GPUs.
        rho: rho by definition; empty for a job that did not complete by itself, and for one without GPUs.
    """

    uid: str
    user: str
    account: str | None
    finished: float
    gpu_seconds: float
    alone: float | None
    measured: bool
    rho: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FairnessSummary:
    """The fairness of the jobs of one user or account that ended in a window of time.

    Attributes:
        name: of the user or account; None for jobs without an account.
        jobs: jobs that ended.
        rated: those of them with a rho.
        rho_mean: mean rho; None where ``rated`` is 0.
        rho_worst: largest rho; None where ``rated`` is 0.
        unfair: fraction of the rated jobs with a rho above the definition's threshold; None where ``rated`` is 0.
        gpu_seconds: GPU-seconds that all the jobs held.
    """

    name: str | None
    jobs: int
    rated: int
    rho_mean: float | None
    rho_worst: float | None
    unfair: float | None
    gpu_seconds: float


def isolated_seconds(job: JobRecord, speeds: Mapping[str, float], gpus: int) -> tuple[dict[str, float], bool]:
    """Seconds of a completed job's training alone on the GPUs that it requests, by GPU type.

    Without a measured speed at that size, the service of the job counts as if training scaled linearly: its GPU-seconds
    over its GPUs, starts and checkpoints included.

    Args:
        job: the job.
        speeds: measured optimizer steps per second on as many GPUs as it requests, by type.
        gpus: GPUs that it requests, at least 1.

    Returns:
        the seconds, and whether they are from measured speeds.
    """
    if job.progress_steps and speeds:
        return {gpu_type: job.progress_steps / speed for gpu_type, speed in speeds.items() if speed > 0}, True
    service = {gpu_type: seconds for gpu_type, seconds in job.attained.items() if gpu_type and seconds > 0}
    if not service:
        return {}, False
    most = max(service, key=lambda gpu_type: (service[gpu_type], gpu_type))
    return {most: sum(service.values()) / gpus}, False


class Fairness(LoadRows):
    """Reads and writes of the table ``fairness``."""

    def fairness(self, uid: str) -> FairnessRecord | None:
        """The fairness of a job; None for a job that lives, and for one that was imported from Slurm's accounting."""
        row = self._row(f"{_SELECT} WHERE uid = ?", [uid])
        return None if row is None else _record(row)

    def recent_fairness(
        self,
        limit: int = 100,
        *,
        since: float = 0.0,
        until: float = FOREVER,
        user: str | None = None,
        account: str | None = None,
        offset: int = 0,
    ) -> list[FairnessRecord]:
        """The fairness of the jobs that ended from ``since`` until before ``until``, the latest first.

        Args:
            limit: most records.
            since: unix seconds.
            until: unix seconds.
            user: only jobs of this user.
            account: only jobs of this account; not together with ``user``.
            offset: records to leave out.
        """
        of_one, parameters = ("", [])
        if user is not None:
            of_one, parameters = "user = ? AND ", [user]
        elif account is not None:
            of_one, parameters = "account = ? AND ", [account]
        condition = f"WHERE {of_one}finished >= ? AND finished < ? ORDER BY finished DESC LIMIT ? OFFSET ?"
        rows = self._rows(f"{_SELECT} {condition}", [*parameters, since, until, limit, offset])
        return [_record(row) for row in rows]

    def fairness_by(
        self,
        group: Literal["user", "account"],
        *,
        since: float = 0.0,
        until: float = FOREVER,
        definition: str = LIVE_DEFINITIONS[0],
    ) -> list[FairnessSummary]:
        """The fairness by user or account of the jobs that ended from ``since`` until before ``until``.

        Args:
            group: the column.
            since: unix seconds.
            until: unix seconds.
            definition: of rho, one of ``LIVE_DEFINITIONS``.

        Returns:
            The largest mean rho first; those without a rho come last.

        Raises:
            ValueError: no such column or definition.
        """
        if definition not in LIVE_DEFINITIONS or group not in {"user", "account"}:
            raise ValueError(f"no fairness {definition!r} by {group!r}")
        rows = self._rows(
            f"SELECT {group}, count(*), count({definition}), avg({definition}), max({definition}), "  # noqa: S608  checked above
            f"avg({definition} > ?), sum(gpu_seconds) FROM fairness WHERE finished >= ? AND finished < ? "
            f"GROUP BY {group} ORDER BY avg({definition}) DESC NULLS LAST, {group}",
            [UNFAIR[definition], since, until],
        )
        return [FairnessSummary(*row) for row in rows]

    def _record_fairness(self, job: JobRecord, at: float, *, completed: bool) -> None:
        """Record the fairness of a job that ends now; in the transaction that finishes it."""
        gpus = int(job.requirements.get("gpus", 0))
        seconds: Mapping[str, float] = {}
        measured, rho = False, dict[str, float]()
        now, submitted = self.load_integrals(at), self.load_integrals(job.submitted)
        if completed and gpus > 0 and job.end_reason is None and now is not None and submitted is not None:
            seconds, measured = isolated_seconds(job, self._speeds_alone(job, gpus), gpus)
            capacity = now.load.capacity
            rho = rho_by_definition(at - job.submitted, seconds, gpus, capacity, now.mean_since(submitted))
            if job.requirements.get("app") or "_" in job.slurm_job_id:
                rho.pop("themis", None)
        held = sum(amount for gpu_type, amount in job.attained.items() if gpu_type)
        alone = min(seconds.values(), default=None)
        self._write(
            f"INSERT OR REPLACE INTO fairness ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",  # noqa: S608  constants
            [job.uid, job.user, job.account, at, held, alone, int(measured), *map(rho.get, LIVE_DEFINITIONS)],
        )

    def _speeds_alone(self, job: JobRecord, gpus: int) -> dict[str, float]:
        """The fastest measured speed on a number of GPUs without a co-runner, by GPU type.

        Empty for a job whose batch size changed, since its steps are not all alike.
        """
        batching = job.batching
        if batching is None or batching.control is not BatchControl.FIXED or batching.has_changed:
            return {}
        model = job.requirements.get("model")
        rows = self._rows(
            "SELECT gpu_type, spread, steps_per_second FROM speeds WHERE subject = ? AND batch = ? AND co_runner = ''",
            [job.uid if model is None else f"{job.user}/{model}", batching.global_batch],
        )
        found: dict[str, float] = {}
        for gpu_type, spread, speed in rows:
            if sum(json.loads(spread)) == gpus:
                found[gpu_type] = max(found.get(gpu_type, 0.0), speed)
        return found


def _record(row: tuple[Any, ...]) -> FairnessRecord:
    uid, user, account, finished, gpu_seconds, alone, measured, *values = row
    rho = {name: value for name, value in zip(LIVE_DEFINITIONS, values, strict=True) if value is not None}
    return FairnessRecord(uid, user, account, finished, gpu_seconds, alone, bool(measured), rho)
