"""Read-only queries over a window of time: runs and rounds, with few rows however long the history is.

Jobs that were imported from Slurm's accounting are left out: metasched did not schedule them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from metasched.core.model import Placement
from metasched.core.reasons import Reason, from_text
from metasched.store.connection import Connection
from metasched.store.records import IMPORTED, EndCause, RoundRecord
from metasched.store.row_conversion import as_json, placement_of

_OURS = f"(uid < '{IMPORTED}' OR uid >= '{IMPORTED[:-1]};')"  # ";" follows ":" in ASCII
_CLOSED = f"FROM runs WHERE ended > :begin AND started < :end AND {_OURS}"
_OPEN = f"FROM runs WHERE ended IS NULL AND started < :end AND {_OURS}"
_HELD = "(min({ended}, :end) - max(started, :begin))"
HELD_CLOSED = _HELD.format(ended="ended")
HELD_OPEN = _HELD.format(ended=":now")
"""SQL of the seconds that a run held its GPUs within ``:begin`` and ``:end``: of an ended run, and of an open one."""
_LONGEST = f"""
  SELECT uid, run, {HELD_CLOSED} AS held {_CLOSED}
  UNION ALL SELECT uid, run, {HELD_OPEN} {_OPEN}
  ORDER BY held DESC, uid, run LIMIT :most
"""


@dataclass(frozen=True, slots=True)
class RunSpan:
    """One run that held resources in a window.

    Attributes:
        uid: the job.
        run: number of the run.
        placement: the allocation.
        started: unix seconds.
        ended: unix seconds; None while the run is open.
        cause: why it ended; None while it is open.
    """

    uid: str
    run: int
    placement: Placement
    started: float
    ended: float | None
    cause: EndCause | None


@dataclass(frozen=True, slots=True)
class RunsInWindow:
    """The longest runs of a window, by start, and the number of the shorter runs that were left out."""

    runs: tuple[RunSpan, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class JobLabel:
    """The words by which people know a job; ``finished`` in unix seconds, None for a live job."""

    uid: str
    slurm_job_id: str
    name: str
    user: str
    account: str | None
    submitted: float
    finished: float | None


@dataclass(frozen=True, slots=True)
class RoundChange:
    """One decision that began in a round.

    Attributes:
        uid: the job.
        before: the placement that the decision before it granted; None where the job waited or was new.
        granted: the placement from this round on; None where the job waits.
        reason: why.
    """

    uid: str
    before: Placement | None
    granted: Placement | None
    reason: Reason

    @property
    def moved(self) -> bool:
        """Whether the granted resources changed, and not the reason alone."""
        return self.before != self.granted


@dataclass(frozen=True, slots=True)
class RoundChanges:
    """Some of a round's changes, those of resources first, and the numbers of all changes and all moves."""

    changes: tuple[RoundChange, ...]
    total: int
    moved: int


class WindowQueries(Connection):
    """Queries over windows of time. Every window is ``begin < end``, unix seconds."""

    def runs_between(self, begin: float, end: float, now: float, most: int) -> RunsInWindow:
        """The at most ``most`` runs that held resources longest within a window.

        An open run lasts until ``now``.
        """
        window = {"begin": begin, "end": end, "now": now, "most": most}
        rows = self._rows(
            "SELECT runs.uid, runs.run, placement, started, ended, cause "  # noqa: S608  constants
            f"FROM ({_LONGEST}) AS longest CROSS JOIN runs ON runs.uid = longest.uid AND runs.run = longest.run "
            "ORDER BY started, runs.uid",
            window,
        )
        found = len(rows)
        if found == most:
            found = sum(self._rows(f"SELECT count(*) {part}", window)[0][0] for part in (_CLOSED, _OPEN))
        spans = [
            RunSpan(uid, run, placed, started, ended, None if cause is None else EndCause(cause))
            for uid, run, text, started, ended, cause in rows
            if (placed := placement_of(text)) is not None
        ]
        return RunsInWindow(tuple(spans), found - len(rows))

    def job_labels(self, uids: Collection[str]) -> dict[str, JobLabel]:
        """The labels of those jobs that the store knows, by uid."""
        rows = self._rows(
            "SELECT jobs.uid, slurm_job_id, name, user, account, submitted, finished "
            "FROM json_each(?) AS asked CROSS JOIN jobs ON jobs.uid = asked.value",
            [as_json(sorted(uids))],
        )
        return {row[0]: JobLabel(*row) for row in rows}

    def round_of(self, number: int) -> RoundRecord | None:
        """The round of a number; None where the store has none."""
        return self._round("WHERE round = ?", number)

    def round_at(self, instant: float) -> RoundRecord | None:
        """The latest round at or before an instant, else the first round; None before the first round of all."""
        before = self._round("WHERE at <= ? ORDER BY at DESC LIMIT 1", instant)
        return before or self._round("WHERE at > ? ORDER BY at LIMIT 1", instant)

    def round_before(self, number: int) -> RoundRecord | None:
        """The latest round of a lower number."""
        return self._round("WHERE round < ? ORDER BY round DESC LIMIT 1", number)

    def round_after(self, number: int) -> RoundRecord | None:
        """The first round of a higher number."""
        return self._round("WHERE round > ? ORDER BY round LIMIT 1", number)

    def round_numbers(self) -> tuple[int, int] | None:
        """The numbers of the first and the latest stored round; None where there is none."""
        first, last = self._rows("SELECT (SELECT min(round) FROM rounds), (SELECT max(round) FROM rounds)")[0]
        return None if first is None else (first, last)

    def round_instants(self, begin: float, end: float, most: int) -> list[tuple[int, float]]:
        """Number and instant of the rounds of a window; every k-th one where there are more than ``most``."""
        (count,) = self._rows("SELECT count(*) FROM rounds WHERE at >= ? AND at < ?", [begin, end])[0]
        every = -(-count // most) or 1
        return self._rows(
            "SELECT round, at FROM (SELECT round, at, row_number() OVER (ORDER BY at) AS position FROM rounds "
            "WHERE at >= ? AND at < ?) WHERE position % ? = 0 ORDER BY at",
            [begin, end, every],
        )

    def round_changes(self, number: int, most: int, skip: int = 0) -> RoundChanges:
        """The decisions that began in a round; ``skip`` of them left out, at most ``most`` returned."""
        source = (
            "SELECT now.uid, now.granted, now.reason, (SELECT granted FROM decisions AS before "
            "WHERE before.uid = now.uid AND before.id < now.id ORDER BY before.id DESC LIMIT 1) AS earlier "
            "FROM decisions AS now WHERE now.first_round = ?"
        )
        total, moved = self._rows(f"SELECT count(*), total(granted IS NOT earlier) FROM ({source})", [number])[0]  # noqa: S608  constants
        rows = self._rows(
            f"SELECT uid, earlier, granted, reason FROM ({source}) "  # noqa: S608  constants
            "ORDER BY granted IS earlier, granted IS NULL, uid LIMIT ? OFFSET ?",
            [number, most, skip],
        )
        changes = [
            RoundChange(uid, placement_of(before), placement_of(granted), from_text(reason))
            for uid, before, granted, reason in rows
        ]
        return RoundChanges(tuple(changes), total, int(moved))

    def _round(self, condition: str, parameter: float) -> RoundRecord | None:
        row = self._row(
            f"SELECT round, at, policy, parameters, decide_seconds, summary FROM rounds {condition}",  # noqa: S608  constants
            [parameter],
        )
        if row is None:
            return None
        number, at, policy, parameters, seconds, summary = row
        return RoundRecord(number, at, policy, json.loads(parameters), seconds, json.loads(summary))
