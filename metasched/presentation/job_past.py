"""What the database has of one job, beside its published status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metasched.presentation.job_explanation import explanation, fairness_words, history, time_use_words
from metasched.shared_dir.published_status import JobStatus, Status

if TYPE_CHECKING:  # importing the store imports the policies' mathematics
    from metasched.store import ActionRecord, DecisionRecord, EventRecord, RunRecord
    from metasched.store.fairness import FairnessRecord

_LATEST = 10


@dataclass(frozen=True, slots=True)
class Past:
    """The records of one job in the database: runs in order, all others latest first."""

    runs: Sequence[RunRecord]
    decisions: Sequence[DecisionRecord]
    actions: Sequence[ActionRecord]
    events: Sequence[EventRecord]
    fairness: FairnessRecord | None = None


def read_past(database: Path, uid: str) -> Past:
    """Return the records of a job.

    Raises:
        StoreError: there is no database that the caller may read.
    """
    from metasched.store import Store  # noqa: PLC0415  most hosts have no database, and importing it takes long

    with Store.open(database, read_only=True) as store:
        return Past(
            runs=store.runs(uid),
            decisions=store.recent_decisions(uid, _LATEST),
            actions=store.recent_actions(_LATEST, uid),
            events=store.recent_events(_LATEST, uid),
            fairness=store.fairness(uid),
        )


def sentences(job: JobStatus, status: Status, past: Past | None, now: float) -> list[str]:
    """Return why the job runs or waits and what happened to it, in sentences; ``past`` adds how it used its time."""
    found = [*explanation(job, status, now), *history(job, now)]
    if past is not None:
        from metasched.store.time_use import time_use  # noqa: PLC0415  as in read_past

        found += time_use_words(time_use(past.runs, now))
        if past.fairness is not None:
            found += fairness_words(past.fairness)
    return found
