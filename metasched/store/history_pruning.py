"""Deletion of old rows: on request by ``db prune``, a few at each poll of the daemon, and by the limit on snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from metasched.store.connection import Connection
from metasched.store.history_queries import IS_IMPORTED
from metasched.store.row_conversion import as_json

PRUNED_AT_ONCE = 1000
"""Most rows of each table that one call of ``prune_some`` deletes, so that a poll of the daemon is not delayed."""
_NO_LIMIT = 2**63 - 1
_SNAPSHOT_BYTES = "SELECT TOTAL(LENGTH(data) + state_bytes) FROM snapshots"
_STATE_BYTES = (
    "SELECT coalesce(sum(LENGTH(data)), 0) FROM (SELECT data FROM policy_state WHERE round = :round "
    "UNION ALL SELECT data FROM apps WHERE round = :round)"
)

# Rounds and jobs before the cutoff, the oldest first. The latest round is never deleted: the next number follows it.
_OLD_ROUNDS = (
    "SELECT round FROM rounds WHERE at < :before AND round < (SELECT max(round) FROM rounds) "
    "ORDER BY at, round LIMIT :most"
)
_OLD_JOBS = "SELECT uid FROM jobs WHERE finished < :before AND pruned = 0 ORDER BY finished, uid LIMIT :most"
_OF_OLD_ROUND = f"round IN ({_OLD_ROUNDS})"
_OF_OLD_JOB = f"uid IN ({_OLD_JOBS})"
_OLDEST_SNAPSHOT = f"(SELECT coalesce(min(round), {_NO_LIMIT}) FROM snapshots)"  # noqa: S608  constants


def _deletion(table: str, key: str, condition: str) -> str:
    """A statement that deletes at most ``:most`` rows (``DELETE ... LIMIT`` is not in every SQLite)."""
    return f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {condition} LIMIT :most)"  # noqa: S608  constants


# Deletions of details, by table, in the order of execution.
_DETAILS = {
    "snapshots": _deletion("snapshots", "round", _OF_OLD_ROUND),
    "rounds": _deletion("rounds", "round", _OF_OLD_ROUND),
    # A replay begins at a snapshot: of the states before the oldest one, only each policy's newest is needed.
    "policy_state": _deletion(
        "policy_state",
        "policy, round",
        f"round < {_OLDEST_SNAPSHOT} AND EXISTS (SELECT 1 FROM policy_state AS later "  # noqa: S608  constants
        "WHERE later.policy = policy_state.policy AND later.round > policy_state.round "
        f"AND later.round < {_OLDEST_SNAPSHOT})",
    ),
    "apps": _deletion(
        "apps",
        "round",
        f"round < {_OLDEST_SNAPSHOT} AND EXISTS (SELECT 1 FROM apps AS later "  # noqa: S608  constants
        f"WHERE later.round > apps.round AND later.round < {_OLDEST_SNAPSHOT})",
    ),
    "decisions": _deletion("decisions", "id", f"last_round < (SELECT min(round) FROM rounds) OR {_OF_OLD_JOB}"),  # noqa: S608  constants
    "actions": _deletion("actions", "id", _OF_OLD_JOB),
    "events": _deletion("events", "id", f"(uid IS NULL AND at < :before) OR {_OF_OLD_JOB}"),
    "throughput": _deletion("throughput", "id", _OF_OLD_JOB),
    "checkpoints": _deletion("checkpoints", "id", _OF_OLD_JOB),
    "losses": _deletion("losses", "uid", _OF_OLD_JOB),
    "report_files": _deletion("report_files", "uid, generation", _OF_OLD_JOB),
    # The fairness of a live job needs the load since its submission.
    "load": _deletion(
        "load",
        "at",
        "at < :before AND at < (SELECT max(at) FROM load WHERE at <= "
        "(SELECT min(coalesce((SELECT min(submitted) FROM jobs WHERE finished IS NULL), 9e99), :before)))",
    ),
    "forecasts": _deletion("forecasts", "uid, kind, halfway", _OF_OLD_JOB),
    "shadows": _deletion("shadows", "round, policy", "at < :before"),
}
# Deletions on request only: old measurements of speeds, and imported jobs, which Slurm's accounting still has.
_ON_REQUEST = {
    "speeds": _deletion("speeds", "subject, batch, gpu_type, spread, co_runner", "at < :before"),
    "iterations": _deletion("iterations", "subject, gpu_type, gpus, multi_node, per_gpu, accumulation", "at < :before"),
    "gpu_use": _deletion(
        "gpu_use",
        "uid, at",
        f"uid IN (SELECT uid FROM jobs WHERE {IS_IMPORTED} AND finished < :before)",  # noqa: S608  constants
    ),
    "runs": _deletion(
        "runs",
        "uid, run",
        f"uid IN (SELECT uid FROM jobs WHERE {IS_IMPORTED} AND finished < :before)",  # noqa: S608  constants
    ),
    "jobs": _deletion("jobs", "uid", f"{IS_IMPORTED} AND finished < :before"),
}
_OF_JOBS = (
    *("events", "actions", "decisions", "throughput", "checkpoints", "losses", "report_files", "planned_runs"),
    *("fairness", "gpu_use"),
    *("forecasts", "targets", "runs", "jobs"),
)
"""Tables with rows of jobs, those that refer to others first."""


class HistoryPruning(Connection):
    """Deletes the details of jobs and rounds that are over."""

    _snapshot_bytes: float | None = None  # of all committed snapshots; None: not counted yet

    def prune(self, before: float) -> dict[str, int]:
        """Delete the details of jobs that finished, and of rounds that were decided, before an instant.

        Jobs and runs remain, except imported ones. Deleted are: rounds, with their snapshots and the decisions and
        policy states that no other round needs; actions, events, reports and decisions of finished jobs; events of the
        cluster; speeds and iterations last measured before the instant.

        Args:
            before: unix seconds.

        Returns:
            The number of deleted rows by table.
        """
        return self._prune(_DETAILS | _ON_REQUEST, before, _NO_LIMIT)

    def prune_some(self, before: float, most: int = PRUNED_AT_ONCE) -> None:
        """Delete a few rows of each table; speeds, iterations, jobs and runs remain, imported ones included.

        Args:
            before: unix seconds; as for ``prune``.
            most: rows to delete of each table.
        """
        self._prune(_DETAILS, before, most)

    def delete_some_jobs(self, before: float, most: int = PRUNED_AT_ONCE) -> int:
        """Delete a few jobs that finished before an instant, with their runs; imported ones included.

        A job whose details are not deleted yet remains.

        Args:
            before: unix seconds.
            most: jobs to delete.

        Returns:
            The number of deleted jobs.
        """
        sql = "SELECT uid FROM jobs WHERE finished < ? AND pruned = 1 ORDER BY finished, uid LIMIT ?"
        with self.transaction():
            uids = [uid for (uid,) in self._rows(sql, [before, most])]
            for table in _OF_JOBS if uids else ():
                self._write(f"DELETE FROM {table} WHERE uid IN (SELECT value FROM json_each(?))", [as_json(uids)])  # noqa: S608  constants
        return len(uids)

    def delete_some_speeds(self, before: float, most: int = PRUNED_AT_ONCE) -> None:
        """Delete a few speeds and iterations that were last measured before an instant.

        Args:
            before: unix seconds.
            most: rows to delete of each table.
        """
        with self.transaction():
            for table in ("speeds", "iterations"):
                self._write(_ON_REQUEST[table], {"before": before, "most": most})

    def keep_snapshot(self, number: int, snapshot: bytes, most_bytes: int) -> None:
        """Store the snapshot of the latest round, and delete what no replay can use any more.

        Args:
            number: of the round.
            snapshot: the engine's input, encoded; empty for none.
            most_bytes: of all snapshots with their rounds' states of policies and apps; the oldest are deleted.
        """
        with self.transaction():
            added = 0
            if snapshot:
                states = self._rows(_STATE_BYTES, {"round": number})[0][0]
                added = len(snapshot) + states
                sql = "INSERT INTO snapshots (round, data, state_bytes) VALUES (?, ?, ?)"
                self._write(sql, [number, snapshot, states])
            # the sum reads the whole table, so it is computed once
            held = self._rows(_SNAPSHOT_BYTES)[0][0] if self._snapshot_bytes is None else self._snapshot_bytes + added
            while held > most_bytes:
                sql = "SELECT round, LENGTH(data) + state_bytes FROM snapshots ORDER BY round LIMIT 1"
                ((oldest, size),) = self._rows(sql)
                self._write("DELETE FROM snapshots WHERE round = ?", [oldest])
                held -= size
            for table in ("policy_state", "apps"):
                self._write(_DETAILS[table], {"most": PRUNED_AT_ONCE})
        self._snapshot_bytes = held  # after the commit, which may fail

    def _prune(self, statements: Mapping[str, str], before: float, most: int) -> dict[str, int]:
        """Delete at most ``most`` rows of each table, and return the numbers of deleted rows."""
        values = {"before": before, "most": most}
        with self.transaction():
            [(freed,)] = self._rows(f"{_SNAPSHOT_BYTES} WHERE {_OF_OLD_ROUND}", values)
            deleted = {table: self._write(sql, values).rowcount for table, sql in statements.items()}
            if max(deleted.values()) < most:  # no details of these jobs are left
                self._write(f"UPDATE jobs SET pruned = 1 WHERE {_OF_OLD_JOB}", values)  # noqa: S608  constants
        if self._snapshot_bytes is not None:
            self._snapshot_bytes -= freed
        return deleted
