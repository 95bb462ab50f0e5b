"""Rows of jobs and of their runs: the writes of intake, of observation and of actions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Unpack

from metasched.core.batching import BatchPlan
from metasched.core.model import Placement
from metasched.core.reasons import to_text
from metasched.store.errors import RunOrderError, UnknownJobError
from metasched.store.fairness import Fairness
from metasched.store.records import IMPORTED, OURS, EndCause, JobChanges, JobRecord, RunRecord
from metasched.store.row_conversion import (
    JOB_COLUMNS,
    JOBS_WITH_RUNS,
    RUN_COLUMNS,
    as_json,
    job_of,
    placement_json,
    record_json,
)

_ADD_JOB = f"INSERT INTO jobs ({', '.join(JOB_COLUMNS)}) VALUES ({', '.join('?' * len(JOB_COLUMNS))})"  # noqa: S608  ours
_ADD_RUN = f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({', '.join('?' * len(RUN_COLUMNS))})"  # noqa: S608  ours


class JobRows(Fairness):
    """Reads and writes of the tables ``jobs`` and ``runs``."""

    def add_job(self, job: JobRecord) -> None:
        """Insert a job; its ``current`` is ignored, since runs begin with ``release`` or ``run_started``."""
        self.add_jobs([job])

    def add_jobs(self, jobs: Iterable[JobRecord]) -> None:
        """Insert jobs, as ``add_job`` does."""
        with self.transaction():
            self._write_many(_ADD_JOB, map(_job_row, jobs))

    def known_jobs(self, uids: Collection[str]) -> frozenset[str]:
        """Those of the uids of which there is a job, live or ended."""
        rows = self._rows("SELECT uid FROM jobs WHERE uid IN (SELECT value FROM json_each(?))", [as_json(list(uids))])
        return frozenset([uid for (uid,) in rows])

    def import_job(self, job: JobRecord, runs: Collection[RunRecord]) -> bool:
        """Insert a finished job of Slurm's accounting, with its runs.

        Returns:
            Whether the job was inserted; False where it is stored already.

        Raises:
            ValueError: the job has not finished, or its uid does not begin with ``IMPORTED``.
        """
        if job.finished is None or not job.uid.startswith(IMPORTED):
            raise ValueError(job.uid)
        with self.transaction():
            if self.job(job.uid) is not None:
                return False
            self.add_job(job)
            values = [{name: getattr(run, name) for name in RUN_COLUMNS} for run in runs]
            for value in values:
                value["placement"] = placement_json(value["placement"])
                value["batch"] = record_json(value["batch"])
                value["stopped_for"] = as_json(value["stopped_for"])
            self._write_many(_ADD_RUN, [list(value.values()) for value in values])
        return True

    def job(self, uid: str) -> JobRecord | None:
        """The job of a uid; None if there is none."""
        return self._job("jobs.uid = ?", [uid])

    def require_job(self, uid: str) -> JobRecord:
        """The job of a uid.

        Raises:
            UnknownJobError: there is no such job.
        """
        job = self.job(uid)
        if job is None:
            raise UnknownJobError(self.path, uid)
        return job

    def live_jobs(self) -> list[JobRecord]:
        """The jobs that have not finished, ordered by (submitted, uid)."""
        rows = self._rows(f"{JOBS_WITH_RUNS} WHERE jobs.finished IS NULL ORDER BY jobs.submitted, jobs.uid")
        return [job_of(row) for row in rows]

    def update_job(self, uid: str, **changes: Unpack[JobChanges]) -> None:
        """Change fields of a job that intake sets.

        Raises:
            UnknownJobError: there is no such job.
        """
        values: dict[str, Any] = dict(changes)
        unknown = values.keys() - JobChanges.__annotations__.keys()
        if unknown:
            message = f"update_job cannot change {', '.join(sorted(unknown))}"
            raise TypeError(message)
        if "requirements" in values:
            values["requirements"] = as_json(values["requirements"])
        assignments = ", ".join(f"{name} = ?" for name in values) or "uid = uid"
        with self.transaction():
            if self._write(f"UPDATE jobs SET {assignments} WHERE uid = ?", [*values.values(), uid]).rowcount == 0:  # noqa: S608  names checked above
                raise UnknownJobError(self.path, uid)

    def finish_job(self, uid: str, at: float, state: str, exit_code: int | None) -> None:
        """Record that a job finished, and close its open run, its target and its decision; a repeat does nothing.

        An open run ends as finished when Slurm's ``state`` is COMPLETED, as withdrawn if it never started, else as
        failed.

        Raises:
            UnknownJobError: there is no such job.
        """
        with self.transaction():
            job = self.require_job(uid)
            if job.finished is not None:
                return
            if job.current is not None:
                done = EndCause.FINISHED if state == "COMPLETED" else EndCause.FAILED
                self.run_ended(uid, job.run, at, EndCause.WITHDRAWN if job.current.started is None else done)
            self._write(
                "UPDATE jobs SET finished = ?, end_state = ?, exit_code = ?, status = 'finished' WHERE uid = ?",
                [at, state, exit_code, uid],
            )
            self._write("DELETE FROM targets WHERE uid = ?", [uid])
            self._write(
                "UPDATE decisions SET last_round = (SELECT max(round) FROM rounds) "
                "WHERE uid = ? AND last_round IS NULL",
                [uid],
            )
            self._record_fairness(self.require_job(uid), at, completed=state == "COMPLETED")

    def revive_job(self, uid: str) -> None:
        """Record that a finished job is in the queue again; its history remains.

        Raises:
            UnknownJobError: there is no such job.
        """
        sql = (
            "UPDATE jobs SET finished = NULL, end_state = NULL, exit_code = NULL, status = 'held', pruned = 0 "
            "WHERE uid = ?"
        )
        with self.transaction():
            if self._write(sql, [uid]).rowcount == 0:
                raise UnknownJobError(self.path, uid)
            self._write("DELETE FROM fairness WHERE uid = ?", [uid])

    def release(self, uid: str, run: int, placement: Placement, at: float, batch: BatchPlan | None = None) -> None:
        """Record, before Slurm is called, that a job is released for a placement: run ``run`` begins.

        Releasing the same run again, before it started, replaces its placement. An earlier run that never started
        is closed as withdrawn.

        Raises:
            UnknownJobError: there is no such job.
            RunOrderError: the run has started or ended, or a later one began, or an earlier one has not ended.
        """
        with self.transaction(durable=True):  # Slurm and a trainer see the run's number next
            current = self._begin_run(uid, run)
            if current is None or current.started is not None:
                raise RunOrderError(self.path, uid, run, run)
            self._write(
                "UPDATE runs SET released = ?, released_at = ?, batch = NULL WHERE uid = ? AND run = ?",
                [placement_json(placement), at, uid, run],
            )
            if batch is not None:
                self.batch_requested(uid, run, batch)

    def batch_requested(self, uid: str, run: int, batch: BatchPlan) -> bool:
        """Record, before the lease is written, that a run is asked to take up a batch plan.

        Returns:
            Whether that is another plan than the run was asked for before.
        """
        sql = (
            "UPDATE runs SET batch = :batch, "
            "batch_number = 1 + (SELECT max(batch_number) FROM runs AS earlier WHERE earlier.uid = :uid) "
            "WHERE uid = :uid AND run = :run AND ended IS NULL AND batch IS NOT :batch"
        )
        with self.transaction():
            return self._write(sql, {"uid": uid, "run": run, "batch": record_json(batch)}).rowcount > 0

    def run_started(self, uid: str, run: int, at: float, placement: Placement) -> bool:
        """Record that Slurm started a run on a placement.

        For a start that the daemon did not ask for, ``run`` is the next number; such a run has no release.

        Returns:
            Whether the start was not recorded before.

        Raises:
            UnknownJobError: there is no such job.
            RunOrderError: a later run began, or an earlier one has not ended.
        """
        with self.transaction():
            if self._begin_run(uid, run) is None:
                return False
            self._write("UPDATE jobs SET most_gpus = max(most_gpus, ?) WHERE uid = ?", [placement.gpus, uid])
            sql = "UPDATE runs SET started = ?, placement = ?, gpus = ? WHERE uid = ? AND run = ? AND started IS NULL"
            return self._write(sql, [at, placement_json(placement), placement.gpus, uid, run]).rowcount > 0

    def stop_requested(self, uid: str, run: int, at: float, stopped_for: Sequence[str] = ()) -> bool:
        """Record that a run is asked to stop, and the uids of the jobs that get its GPUs.

        Returns:
            Whether no earlier request was recorded; the jobs of an earlier request remain.
        """
        with self.transaction():
            is_new = self._change_run("stop_requested = :at", "stop_requested IS NULL", uid, run, at)
            if is_new and stopped_for:
                sql = "UPDATE runs SET stopped_for = ? WHERE uid = ? AND run = ?"
                self._write(sql, [as_json(list(stopped_for)), uid, run])
        return is_new

    def run_suspended(self, uid: str, run: int, at: float, *, by_us: bool) -> bool:
        """Record that a run is suspended, by the daemon or by somebody else.

        The daemon records its suspension before it asks Slurm: after a crash in between, the suspension would otherwise
        count as somebody else's.

        Returns:
            Whether the suspension was not recorded before.
        """
        change = f"suspended_at = :at, suspended_by_us = {int(by_us)}"
        return self._change_run(change, "started IS NOT NULL AND suspended_at IS NULL", uid, run, at)

    def run_resumed(self, uid: str, run: int, at: float) -> bool:
        """Record that a suspended run is resumed; returns whether it was suspended until now."""
        change = (
            "suspended_seconds = suspended_seconds + max(0, :at - suspended_at), suspended_at = NULL, "
            "suspended_by_us = 0"
        )
        return self._change_run(change, "suspended_at IS NOT NULL", uid, run, at)

    def size_failed(self, uid: str, run: int, exit_code: int) -> bool:
        """Record, before the job is put back, that a run's script failed on a number of GPUs that was new to it.

        Returns:
            Whether the failure was not recorded before.
        """
        sql = (
            "UPDATE runs SET size_exit_code = ? WHERE uid = ? AND run = ? AND ended IS NULL AND size_exit_code IS NULL"
        )
        with self.transaction():
            return self._write(sql, [exit_code, uid, run]).rowcount > 0

    def run_ended(self, uid: str, run: int, at: float, cause: EndCause) -> bool:
        """Record the end of a run and add its service to the job, exactly once; returns whether the run was open.

        A run that trained makes its number of GPUs the job's known good one; a run that ends as ``SIZE_FAILED`` adds
        its own to those that failed.
        """
        with self.transaction():
            job = self.job(uid)
            if job is None or job.current is None or job.run != run:
                return False
            record = job.current
            self._write("UPDATE runs SET ended = ?, cause = ? WHERE uid = ? AND run = ?", [at, cause.value, uid, run])
            self._write(
                "UPDATE jobs SET attained = ?, ran_seconds = ran_seconds + ?, preemptions = preemptions + ?, "
                "last_placement = coalesce(?, last_placement), last_ended = coalesce(?, last_ended) WHERE uid = ?",
                [
                    as_json(job.attained_at(at)),
                    record.seconds_at(at),
                    int(cause in OURS),
                    placement_json(record.placement),
                    None if record.started is None else at,
                    uid,
                ],
            )
            self._tell_size(job, record, cause)
        return True

    def _tell_size(self, job: JobRecord, run: RunRecord, cause: EndCause) -> None:
        """Note on the job whether its script trained, or failed, on the number of GPUs of a run that has ended."""
        if run.placement is None:
            return
        gpus = run.placement.gpus
        if run.has_trained and (job.known_good_gpus != gpus or job.put_back):
            self._write("UPDATE jobs SET known_good_gpus = ?, put_back = 0 WHERE uid = ?", [gpus, job.uid])
        elif cause is EndCause.SIZE_FAILED:
            failed = dict.fromkeys((*job.failed_sizes, gpus))
            self._write(
                "UPDATE jobs SET failed_sizes = ?, put_back = 1 WHERE uid = ?", [as_json(list(failed)), job.uid]
            )

    def clock_set_back(self, now: float) -> None:
        """Lower instants in the future to ``now``, after the clock was set back.

        These are the releases, stop requests and suspensions of open runs, and the instants before which a job must
        not be released again.
        """
        earlier = ", ".join(f"{name} = min({name}, :now)" for name in ("released_at", "stop_requested", "suspended_at"))
        with self.transaction():
            self._write(f"UPDATE runs SET {earlier} WHERE ended IS NULL", {"now": now})  # noqa: S608  ours
            retries = "UPDATE jobs SET not_before = min(not_before, :now) WHERE finished IS NULL AND run > 0"
            self._write(retries, {"now": now})
            self._set_load_back(now)

    def _job(self, condition: str, parameters: list[Any]) -> JobRecord | None:
        row = self._row(f"{JOBS_WITH_RUNS} WHERE {condition}", parameters)
        return None if row is None else job_of(row)

    def _begin_run(self, uid: str, run: int) -> RunRecord | None:
        """Begin a run unless it has begun, and return it; None where it has ended. It must be the job's latest."""
        job = self.require_job(uid)
        earlier_started = run > job.run and job.current is not None and job.current.started is not None
        if run < max(job.run, 1) or earlier_started:
            raise RunOrderError(self.path, uid, run, job.run)
        if run == job.run:
            return job.current
        self._write(
            "UPDATE runs SET ended = released_at, cause = ? WHERE uid = ? AND run = ? AND ended IS NULL",
            [EndCause.WITHDRAWN.value, uid, job.run],
        )
        self._write("INSERT INTO runs (uid, run) VALUES (?, ?)", [uid, run])
        self._write("UPDATE jobs SET run = ? WHERE uid = ?", [run, uid])
        return RunRecord(uid, run)

    def _change_run(self, change: str, condition: str, uid: str, run: int, at: float) -> bool:
        sql = f"UPDATE runs SET {change} WHERE uid = :uid AND run = :run AND ended IS NULL AND {condition}"  # noqa: S608  ours
        with self.transaction():
            return self._write(sql, {"uid": uid, "run": run, "at": at}).rowcount > 0


def _job_row(job: JobRecord) -> list[Any]:
    """The job as a row of ``JOB_COLUMNS``."""
    values = {name: getattr(job, name) for name in JOB_COLUMNS}
    values["requirements"] = as_json(job.requirements)
    values["attained"] = as_json(job.attained)
    values["last_placement"] = placement_json(job.last_placement)
    values["batching"], values["noise"] = record_json(job.batching), record_json(job.noise)
    values["end_reason"] = None if job.end_reason is None else to_text(job.end_reason)
    values["failed_sizes"] = as_json(job.failed_sizes)
    return list(values.values())
