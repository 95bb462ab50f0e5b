"""The store as the daemon uses it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Unpack

from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason, from_text, to_text
from metasched.store.errors import RoundOrderError, RunOrderError, UnknownJobError
from metasched.store.history_queries import IS_IMPORTED, History
from metasched.store.records import (
    IMPORTED,
    OURS,
    EndCause,
    JobChanges,
    JobRecord,
    RoundRecord,
    RunRecord,
    SpeedRecord,
    service,
)
from metasched.store.report_rows import ReportRows
from metasched.store.rows import (
    JOB_COLUMNS,
    JOBS_WITH_RUNS,
    RUN_COLUMNS,
    as_json,
    job_of,
    placement_json,
    placement_of,
    run_of,
)

_ADD_JOB = f"INSERT INTO jobs ({', '.join(JOB_COLUMNS)}) VALUES ({', '.join('?' * len(JOB_COLUMNS))})"  # noqa: S608  ours
_ADD_RUN = f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({', '.join('?' * len(RUN_COLUMNS))})"  # noqa: S608  ours
_OPEN_RUN = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE uid = ? AND run = ? AND ended IS NULL"  # noqa: S608  ours

_EVERY = 2**63 - 1  # as a limit of rows, none
_AT_ONCE = 1000  # rows of each table that are forgotten beside other work: no poll is to take long for it
_SNAPSHOT_BYTES = "SELECT TOTAL(LENGTH(data) + state_bytes) FROM snapshots"

# What is over, the longest first; the latest round never is: numbers go on from it.
_ROUNDS_OVER = (
    "SELECT round FROM rounds WHERE at < :before AND round < (SELECT max(round) FROM rounds) "
    "ORDER BY at, round LIMIT :most"
)
_JOBS_OVER = "SELECT uid FROM jobs WHERE finished < :before AND forgotten = 0 ORDER BY finished, uid LIMIT :most"
_OF_ROUND = f"round IN ({_ROUNDS_OVER})"
_OF_JOB = f"uid IN ({_JOBS_OVER})"
_OLDEST_SNAPSHOT = f"(SELECT coalesce(min(round), {_EVERY}) FROM snapshots)"  # noqa: S608  ours


def _forgetting(table: str, key: str, condition: str) -> str:
    """A statement that deletes at most ``:most`` rows (``DELETE ... LIMIT`` is not in every SQLite)."""
    return f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {condition} LIMIT :most)"  # noqa: S608  ours


# What retention means, by table and in this order.
_DETAILS = {
    "snapshots": _forgetting("snapshots", "round", _OF_ROUND),
    "rounds": _forgetting("rounds", "round", _OF_ROUND),
    # no replay begins with them: of those before the oldest snapshot, all but each policy's newest
    "policy_state": _forgetting(
        "policy_state",
        "policy, round",
        f"round < {_OLDEST_SNAPSHOT} AND EXISTS (SELECT 1 FROM policy_state AS later "  # noqa: S608  ours
        "WHERE later.policy = policy_state.policy AND later.round > policy_state.round "
        f"AND later.round < {_OLDEST_SNAPSHOT})",
    ),
    "decisions": _forgetting("decisions", "id", f"last_round < (SELECT min(round) FROM rounds) OR {_OF_JOB}"),  # noqa: S608  ours
    "actions": _forgetting("actions", "id", _OF_JOB),
    "events": _forgetting("events", "id", f"(uid IS NULL AND at < :before) OR {_OF_JOB}"),
    "throughput": _forgetting("throughput", "id", _OF_JOB),
    "checkpoints": _forgetting("checkpoints", "id", _OF_JOB),
    "report_files": _forgetting("report_files", "uid, generation", _OF_JOB),
}
# Only who asks for it loses what was learnt long ago and what was imported: Slurm's accounting has that still.
_MORE = {
    "speeds": _forgetting("speeds", "subject, gpu_type, spread, co_runner", "at < :before"),
    "runs": _forgetting(
        "runs",
        "uid, run",
        f"uid IN (SELECT uid FROM jobs WHERE {IS_IMPORTED} AND finished < :before)",  # noqa: S608  ours
    ),
    "jobs": _forgetting("jobs", "uid", f"{IS_IMPORTED} AND finished < :before"),
}


class Store(History, ReportRows):
    """Everything that metasched remembers: ``Store.open(path)`` in the daemon, ``read_only=True`` elsewhere.

    Each method is one transaction; ``with store.transaction():`` makes one of many. Every writing method raises a
    ``StoreError`` when the file cannot be written, and then nothing of it was. Use it in the thread that opened it.
    """

    _snapshot_bytes: float | None = None  # of all snapshots, as last committed; None: not counted yet

    # jobs

    def add_job(self, job: JobRecord) -> None:
        """Take a job in; its ``current`` is ignored (runs begin by ``release`` or ``run_started``)."""
        values = {name: getattr(job, name) for name in JOB_COLUMNS}
        values["requirements"] = as_json(job.requirements)
        values["attained"] = as_json(job.attained)
        values["last_placement"] = placement_json(job.last_placement)
        with self.transaction():
            self._write(_ADD_JOB, list(values.values()))

    def import_job(self, job: JobRecord, runs: Collection[RunRecord]) -> bool:
        """Take in a job that ended without us, with its runs; whether it is new. It never becomes a live one.

        Raises:
            ValueError: it has not ended, or its uid is not that of an imported job.
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
            self._write_many(_ADD_RUN, [list(value.values()) for value in values])
        return True

    def job(self, uid: str) -> JobRecord | None:
        """The job of that uid, if there is one."""
        return self._job("jobs.uid = ?", [uid])

    def known_job(self, uid: str) -> JobRecord:
        """The job of that uid.

        Raises:
            UnknownJobError: there is no such job.
        """
        job = self.job(uid)
        if job is None:
            raise UnknownJobError(self.path, uid)
        return job

    def live_jobs(self) -> list[JobRecord]:
        """Jobs that have not finished for good, ordered by (submitted, uid)."""
        rows = self._rows(f"{JOBS_WITH_RUNS} WHERE jobs.finished IS NULL ORDER BY jobs.submitted, jobs.uid")
        return [job_of(row) for row in rows]

    def find_unstamped(self, slurm_job_id: str, submitted: float) -> JobRecord | None:
        """The live job that was taken in from there, for a Slurm job whose stamp is missing.

        The daemon may have died between ``add_job`` and the stamp. A Slurm job id alone is no proof: Slurm reuses them.
        """
        condition = "jobs.slurm_job_id = ? AND jobs.submitted = ? AND jobs.finished IS NULL"
        return self._job(condition, [slurm_job_id, submitted])

    def update_job(self, uid: str, **changes: Unpack[JobChanges]) -> None:
        """Change what intake knows of a job.

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

    def finish_job(self, uid: str, at: float, state: str, exit_code: int | None) -> bool:
        """The job ended for good: close its open run, its target and its decision; whether this was news.

        The open run, if the daemon has not ended it already, ends as finished when Slurm's ``state`` is COMPLETED,
        as withdrawn if it never started, else as failed.
        """
        with self.transaction():
            job = self.known_job(uid)
            if job.finished is not None:
                return False
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
        return True

    def revive_job(self, uid: str) -> None:
        """A job that had finished is in the queue again: it lives, with the history that it has.

        Raises:
            UnknownJobError: there is no such job.
        """
        sql = (
            "UPDATE jobs SET finished = NULL, end_state = NULL, exit_code = NULL, status = 'held', forgotten = 0 "
            "WHERE uid = ?"
        )
        with self.transaction():
            if self._write(sql, [uid]).rowcount == 0:
                raise UnknownJobError(self.path, uid)

    # runs

    def release(self, uid: str, run: int, placement: Placement, at: float) -> None:
        """The job is about to be released for a placement: run ``run`` begins, before Slurm hears of it.

        Releasing the same run again, before it started, replaces its placement. An earlier run that never started
        is closed as withdrawn.

        Raises:
            UnknownJobError: there is no such job.
            RunOrderError: the run has started or ended, or a later one began, or an earlier one is still going on.
        """
        with self.transaction():
            present = self._open_run(uid, run)
            if not present or self._started(uid, run):
                raise RunOrderError(self.path, uid, run, self._latest_run(uid))
            self._write(
                "UPDATE runs SET released = ?, released_at = ? WHERE uid = ? AND run = ?",
                [placement_json(placement), at, uid, run],
            )

    def run_started(self, uid: str, run: int, at: float, placement: Placement) -> bool:
        """Slurm started a run on a placement; whether this was news.

        For a start that nobody here asked for, ``run`` is the next number: the run is then kept without a release.

        Raises:
            UnknownJobError: there is no such job.
            RunOrderError: a later run began, or an earlier one is still going on.
        """
        with self.transaction():
            if not self._open_run(uid, run):
                return False
            sql = "UPDATE runs SET started = ?, placement = ? WHERE uid = ? AND run = ? AND started IS NULL"
            return self._write(sql, [at, placement_json(placement), uid, run]).rowcount > 0

    def stop_requested(self, uid: str, run: int, at: float) -> bool:
        """The run is asked to stop; whether this was the first time."""
        return self._change_run("stop_requested = :at", "stop_requested IS NULL", uid, run, at)

    def run_suspended(self, uid: str, run: int, at: float, *, by_us: bool) -> bool:
        """The run is suspended, by us or by somebody else; whether this was news.

        Record a suspension of ours before asking Slurm for it: else a crash in between makes it look like theirs.
        """
        change = f"suspended_at = :at, suspended_by_us = {int(by_us)}"
        return self._change_run(change, "started IS NOT NULL AND suspended_at IS NULL", uid, run, at)

    def run_resumed(self, uid: str, run: int, at: float) -> bool:
        """The run goes on after a suspension; whether this was news."""
        change = (
            "suspended_seconds = suspended_seconds + max(0, :at - suspended_at), suspended_at = NULL, "
            "suspended_by_us = 0"
        )
        return self._change_run(change, "suspended_at IS NOT NULL", uid, run, at)

    def run_ended(self, uid: str, run: int, at: float, cause: EndCause) -> bool:
        """A run ended: close it and add what it received to the job, exactly once; whether this was news."""
        with self.transaction():
            row = self._row(_OPEN_RUN, [uid, run])
            job = self.job(uid)
            if row is None or job is None:
                return False
            record = run_of(row)
            attained = dict(job.attained)
            seconds = record.seconds_at(at)
            for gpu_type, amount in service(record.placement, seconds).items():
                attained[gpu_type] = attained.get(gpu_type, 0.0) + amount
            self._write("UPDATE runs SET ended = ?, cause = ? WHERE uid = ? AND run = ?", [at, cause.value, uid, run])
            self._write(
                "UPDATE jobs SET attained = ?, ran_seconds = ran_seconds + ?, preemptions = preemptions + ?, "
                "last_placement = coalesce(?, last_placement), last_ended = coalesce(?, last_ended) WHERE uid = ?",
                [
                    as_json(attained),
                    seconds,
                    int(cause in OURS),
                    placement_json(record.placement),
                    None if record.started is None else at,
                    uid,
                ],
            )
        return True

    def clock_set_back(self, now: float) -> None:
        """The clock shows less than it did: what open runs were asked or given later than that, they were now.

        A job that was to be tried again later may be tried now.
        """
        earlier = ", ".join(f"{name} = min({name}, :now)" for name in ("released_at", "stop_requested", "suspended_at"))
        with self.transaction():
            self._write(f"UPDATE runs SET {earlier} WHERE ended IS NULL", {"now": now})  # noqa: S608  ours
            retries = "UPDATE jobs SET not_before = min(not_before, :now) WHERE finished IS NULL AND run > 0"
            self._write(retries, {"now": now})

    # rounds

    def commit_round(
        self,
        number: int,
        *,
        at: float,
        policy: str,
        parameters: Mapping[str, Any],
        state: PolicyState,
        targets: Mapping[str, Placement],
        reasons: Mapping[str, Reason],
        decide_seconds: float,
        summary: Mapping[str, Any] | None = None,
        snapshot: bytes = b"",
        keep_snapshots_bytes: int = 0,
        shares: Mapping[str, str] | None = None,
        time_slicing: Collection[str] = (),
        renewed: Collection[str] = (),
    ) -> None:
        """Commit one round whole: what the policy carries on, who should run where, and why.

        Decisions are kept by the change: a job whose target and reason are those of the round before costs no row.
        The policy's state costs a row when it changed, and is kept as long as a replay of a snapshot needs it.

        Args:
            number: greater than the last round's.
            at: unix seconds.
            policy: its name.
            parameters: the policy's, JSON-compatible.
            state: what the policy carries on.
            targets: where each job that should run belongs, most important first.
            reasons: for each live job; those that are also in ``targets`` run.
            decide_seconds: how long the policy took.
            summary: of the snapshot, JSON-compatible.
            snapshot: what the engine saw, encoded; empty to keep none.
            keep_snapshots_bytes: what all snapshots and their rounds' policy states may take; the oldest go first.
            shares: by uid, the other job that is to be on the same GPUs, for both of each pair.
            time_slicing: of these, the jobs of pairs of which one is to run at a time.
            renewed: the jobs whose run goes on with what it holds.

        Raises:
            RoundOrderError: the number is not new.
        """
        with self.transaction():
            last = self.last_round()
            if last is not None and number <= last.round:
                raise RoundOrderError(self.path, number, last.round)
            self._write(
                "INSERT INTO rounds (round, at, policy, parameters, decide_seconds, summary) VALUES (?, ?, ?, ?, ?, ?)",
                [number, at, policy, as_json(parameters), decide_seconds, as_json(summary or {})],
            )
            placed = {uid: placement_json(placement) for uid, placement in targets.items()}
            self._commit_targets(placed, shares or {}, time_slicing)
            self._write_many(
                "UPDATE runs SET renewals = renewals + 1 WHERE uid = ? AND ended IS NULL AND started IS NOT NULL",
                [(uid,) for uid in renewed],
            )
            self._commit_decisions(
                number,
                last.round if last else 0,
                {
                    uid: (placed.get(uid), to_text(reasons[uid]) if uid in reasons else "")
                    for uid in {**reasons, **placed}
                },
            )
            written = self._commit_state(number, policy, state)
            held = self._commit_snapshot(number, snapshot, written, keep_snapshots_bytes)
            self._write(_DETAILS["policy_state"], {"most": _AT_ONCE})
        self._snapshot_bytes = held

    def last_round(self) -> RoundRecord | None:
        """The latest committed round."""
        return next(iter(self.recent_rounds(1)), None)

    def targets(self) -> dict[str, Placement]:
        """Where each job that should run belongs, as the latest round wants it, most important first."""
        rows = self._rows("SELECT uid, placement FROM targets ORDER BY rank")
        return {uid: placement for uid, text in rows if (placement := placement_of(text)) is not None}

    def target_shares(self) -> tuple[dict[str, str], frozenset[str]]:
        """By uid, the other job that is to be on the same GPUs; and the jobs that take turns there."""
        rows = self._rows("SELECT uid, co_runner, time_slicing FROM targets WHERE co_runner IS NOT NULL")
        return {uid: other for uid, other, _ in rows}, frozenset(uid for uid, _, turns in rows if turns)

    def learn_speed(self, record: SpeedRecord) -> None:
        """Keep what is known of one speed, in place of what was known."""
        key = (record.subject, record.gpu_type, as_json(record.spread), record.co_runner or "")
        with self.transaction():
            self._write(
                "INSERT OR REPLACE INTO speeds (subject, gpu_type, spread, co_runner, steps_per_second, at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [*key, record.steps_per_second, record.at],
            )

    def forget_speeds(self, subject: str) -> None:
        """Forget what is known of a subject's speeds, and of others' beside it."""
        with self.transaction():
            self._write("DELETE FROM speeds WHERE subject = ? OR co_runner = ?", [subject, subject])

    def current_reasons(self) -> dict[str, Reason]:
        """For each job that the latest round decided about and that still lives, why it runs or waits."""
        rows = self._rows("SELECT uid, reason FROM decisions WHERE last_round IS NULL")
        return {uid: from_text(reason) for uid, reason in rows}

    def policy_state(self, policy: str, number: int | None = None) -> PolicyState | None:
        """What a policy carries: its latest state, or (for replay) the one that it left in round ``number``."""
        row = self._row(
            "SELECT version, data FROM policy_state WHERE policy = ? AND round <= ? ORDER BY round DESC LIMIT 1",
            [policy, 2**63 - 1 if number is None else number],
        )
        return None if row is None else PolicyState(row[0], json.loads(row[1]))

    def snapshot(self, number: int) -> bytes | None:
        """What the engine saw in a round, encoded; None where it was not kept, or is kept no more."""
        row = self._row("SELECT data FROM snapshots WHERE round = ?", [number])
        return None if row is None else bytes(row[0])

    # actions and events

    def begin_action(self, uid: str, kind: str, detail: Mapping[str, Any], number: int, at: float) -> int:
        """Record an action of round ``number`` before doing it; its id.

        If the daemon dies before ``end_action``, the action stays in ``unfinished_actions``.
        """
        with self.transaction():
            cursor = self._write(
                "INSERT INTO actions (round, at, uid, kind, detail) VALUES (?, ?, ?, ?, ?)",
                [number, at, uid, kind, as_json(detail)],
            )
        return int(cursor.lastrowid or 0)

    def end_action(self, action: int, outcome: str, latency_seconds: float | None) -> None:
        """Record how an action went: ``ok``, or what went wrong."""
        with self.transaction():
            self._write(
                "UPDATE actions SET outcome = ?, latency_seconds = ? WHERE id = ?", [outcome, latency_seconds, action]
            )

    def event(self, kind: str, text: str, uid: str | None = None, *, at: float) -> None:
        """Record something worth telling."""
        with self.transaction():
            self._write("INSERT INTO events (at, uid, kind, text) VALUES (?, ?, ?, ?)", [at, uid, kind, text])

    # retention

    def prune(self, before: float) -> dict[str, int]:
        """Forget the details of what was over before an instant; rows deleted, by table.

        Jobs and runs stay, imported ones apart. Rounds go, with their snapshots and the decisions and policy states
        that only they needed; actions, events, reports and decisions go with their job, when it finished before; so do
        events of the cluster, and speeds that nobody has measured since.
        """
        return self._forget(_DETAILS | _MORE, before, _EVERY)

    def forget_some(self, before: float, most: int = _AT_ONCE) -> None:
        """Forget a little of the details of what was over before an instant, in passing: some rows of each table.

        It is for the daemon to call again and again. Speeds stay, and jobs and runs, imported ones too.
        """
        self._forget(_DETAILS, before, most)

    # inside

    def _job(self, condition: str, parameters: list[Any]) -> JobRecord | None:
        row = self._row(f"{JOBS_WITH_RUNS} WHERE {condition}", parameters)
        return None if row is None else job_of(row)

    def _latest_run(self, uid: str) -> int:
        row = self._row("SELECT run FROM jobs WHERE uid = ?", [uid])
        if row is None:
            raise UnknownJobError(self.path, uid)
        return int(row[0])

    def _started(self, uid: str, run: int) -> bool:
        return self._row("SELECT 1 FROM runs WHERE uid = ? AND run = ? AND started IS NOT NULL", [uid, run]) is not None

    def _open_run(self, uid: str, run: int) -> bool:
        """Make sure that the run is the job's latest, beginning it if it is new; whether it is open."""
        latest = self._latest_run(uid)
        if run < max(latest, 1) or (
            run > latest and self._row(_OPEN_RUN, [uid, latest]) and self._started(uid, latest)
        ):
            raise RunOrderError(self.path, uid, run, latest)
        if run > latest:
            self._write(
                "UPDATE runs SET ended = released_at, cause = ? WHERE uid = ? AND run = ? AND ended IS NULL",
                [EndCause.WITHDRAWN.value, uid, latest],
            )
            self._write("INSERT INTO runs (uid, run) VALUES (?, ?)", [uid, run])
            self._write("UPDATE jobs SET run = ? WHERE uid = ?", [run, uid])
        return self._row(_OPEN_RUN, [uid, run]) is not None

    def _change_run(self, change: str, condition: str, uid: str, run: int, at: float) -> bool:
        sql = f"UPDATE runs SET {change} WHERE uid = :uid AND run = :run AND ended IS NULL AND {condition}"  # noqa: S608  ours
        with self.transaction():
            return self._write(sql, {"uid": uid, "run": run, "at": at}).rowcount > 0

    def _commit_targets(
        self, placed: Mapping[str, str | None], shares: Mapping[str, str], time_slicing: Collection[str]
    ) -> None:
        self._write("DELETE FROM targets")
        self._write_many(
            "INSERT INTO targets (rank, uid, placement, co_runner, time_slicing) VALUES (?, ?, ?, ?, ?)",
            [
                (rank, uid, text, shares.get(uid), int(uid in time_slicing))
                for rank, (uid, text) in enumerate(placed.items())
            ],
        )

    def _commit_decisions(self, number: int, last: int, decisions: Mapping[str, tuple[str | None, str]]) -> None:
        rows = self._rows("SELECT uid, granted, reason FROM decisions WHERE last_round IS NULL")
        held = {uid: (granted, reason) for uid, granted, reason in rows}
        changed = [uid for uid, decision in decisions.items() if held.get(uid) != decision]
        closed: Iterator[str] = (uid for uid, decision in held.items() if decisions.get(uid) != decision)
        self._write_many(
            "UPDATE decisions SET last_round = ? WHERE uid = ? AND last_round IS NULL", [(last, uid) for uid in closed]
        )
        self._write_many(
            "INSERT INTO decisions (uid, first_round, granted, reason) VALUES (?, ?, ?, ?)",
            [(uid, number, *decisions[uid]) for uid in changed],
        )

    def _commit_snapshot(self, number: int, snapshot: bytes, state_bytes: int, keep_bytes: int) -> float:
        """Keep this one, drop the oldest beyond the limit, and return how many bytes are then held."""
        added = 0
        if snapshot:
            added = len(snapshot) + state_bytes
            sql = "INSERT INTO snapshots (round, data, state_bytes) VALUES (?, ?, ?)"
            self._write(sql, [number, snapshot, state_bytes])
        # read once: that goes through the whole table
        held = self._rows(_SNAPSHOT_BYTES)[0][0] if self._snapshot_bytes is None else self._snapshot_bytes + added
        while held > keep_bytes:
            sql = "SELECT round, LENGTH(data) + state_bytes FROM snapshots ORDER BY round LIMIT 1"
            ((oldest, size),) = self._rows(sql)
            self._write("DELETE FROM snapshots WHERE round = ?", [oldest])
            held -= size
        return held

    def _forget(self, statements: Mapping[str, str], before: float, most: int) -> dict[str, int]:
        """Delete at most so many rows of each table; how many it were."""
        values = {"before": before, "most": most}
        with self.transaction():
            [(freed,)] = self._rows(f"{_SNAPSHOT_BYTES} WHERE {_OF_ROUND}", values)
            deleted = {table: self._write(sql, values).rowcount for table, sql in statements.items()}
            if max(deleted.values()) < most:  # nothing of these jobs is left
                self._write(f"UPDATE jobs SET forgotten = 1 WHERE {_OF_JOB}", values)  # noqa: S608  ours
        if self._snapshot_bytes is not None:
            self._snapshot_bytes -= freed
        return deleted

    def _commit_state(self, number: int, policy: str, state: PolicyState) -> int:
        """Keep a state that is not that of the last round; the bytes that this takes."""
        data = as_json(state.data)
        latest = self._row(
            "SELECT version, data FROM policy_state WHERE policy = ? ORDER BY round DESC LIMIT 1", [policy]
        )
        if latest == (state.version, data):
            return 0
        self._write(
            "INSERT INTO policy_state (policy, round, version, data) VALUES (?, ?, ?, ?)",
            [policy, number, state.version, data],
        )
        return len(data)
