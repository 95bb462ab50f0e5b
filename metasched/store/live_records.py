"""The records of the live jobs in memory, kept as the database has them.

Temporary triggers note the uid of every job whose row, or a run of which, this connection inserts, changes or deletes.
So the records of other jobs need not be read again, whichever method has written. A transaction that is rolled back
rolls its notes back, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.store.job_rows import JobRows
from metasched.store.records import JobRecord
from metasched.store.row_conversion import JOBS_WITH_RUNS, job_of

_CHANGES = ("INSERT", "UPDATE", "DELETE")
_NOTES = (
    "CREATE TEMP TABLE changed_jobs (uid TEXT PRIMARY KEY) WITHOUT ROWID",
    *(
        f"CREATE TEMP TRIGGER {table}_{change.lower()} AFTER {change} ON main.{table} "  # noqa: S608  our own names
        f"BEGIN INSERT OR IGNORE INTO changed_jobs VALUES ({'old' if change == 'DELETE' else 'new'}.uid); END"
        for table in ("jobs", "runs")
        for change in _CHANGES
    ),
)
MOST_SINGLE_READS = 500
"""Changed jobs beyond which all live jobs are read again, where fewer have not changed."""


class LiveRecords(JobRows):
    """Reads of the live jobs that cost what has changed since the last one."""

    _live: dict[str, JobRecord] | None = None
    _data_version: int | None = None  # SQLite's number, which changes with every commit of another connection

    def live_records(self) -> Mapping[str, JobRecord]:
        """The jobs that have not finished, by uid, ordered by (submitted, uid).

        The record of an unchanged job is the same object as in the last call, and so is the whole where no job has
        changed. The caller must not change it.
        """
        live = self._live
        if live is None:
            self._note(*_NOTES)
        version = int(self._rows("PRAGMA main.data_version")[0][0])
        changed = [uid for (uid,) in self._rows("SELECT uid FROM temp.changed_jobs")]
        if live is None or version != self._data_version or len(changed) > max(MOST_SINGLE_READS, len(live)):
            self._live = {job.uid: job for job in self.live_jobs()}
        elif changed:
            self._live = self._updated(live, changed)
        self._data_version = version
        if changed:
            self._note("DELETE FROM temp.changed_jobs")
        return self._live or {}

    def _note(self, *statements: str) -> None:
        """Change the notes, which needs no lock on the database file."""
        in_transaction = self._db.in_transaction
        for sql in statements if in_transaction else ("BEGIN", *statements, "COMMIT"):
            self._write(sql)

    def _updated(self, live: dict[str, JobRecord], changed: list[str]) -> dict[str, JobRecord]:
        """Return the live jobs after the rows of some jobs have changed."""
        rows = self._rows(f"{JOBS_WITH_RUNS} WHERE jobs.uid IN (SELECT uid FROM temp.changed_jobs)")  # noqa: S608  our own names
        found = {job.uid: job for job in map(job_of, rows) if job.finished is None}
        updated = {**live, **found}
        for uid in changed:
            if uid not in found:
                updated.pop(uid, None)
        new = found.keys() - live.keys()
        if not new:
            return updated
        newest = next(reversed(live.values()), None)
        if newest is None or (newest.submitted, newest.uid) < min((found[uid].submitted, uid) for uid in new):
            came = sorted(new, key=lambda uid: (found[uid].submitted, uid))  # most often: no earlier job moves
            return {uid: job for uid, job in updated.items() if uid not in new} | {uid: found[uid] for uid in came}
        return {job.uid: job for job in sorted(updated.values(), key=lambda job: (job.submitted, job.uid))}
