"""Rows of the cluster's load: live jobs, live apps and requested GPUs over time, with their integrals.

A round that finds another load than the round before adds a row. Each row has the integrals until its instant, so that
a mean over any span needs the rows at its two ends alone. Before the first row the load counts as that of the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from metasched.core.finish_time_fairness import MeanLoad
from metasched.store.history_queries import HistoryQueries
from metasched.store.row_conversion import as_json

_COLUMNS = "at, jobs, apps, requested, capacity, job_seconds, app_seconds, contention_seconds"


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The load at an instant.

    Attributes:
        jobs: live jobs.
        apps: live apps, apps of one included.
        requested: GPUs that the live jobs request.
        capacity: GPUs that metasched's jobs may use, by type.
    """

    jobs: int
    apps: int
    requested: int
    capacity: Mapping[str, int]

    @property
    def contention(self) -> float:
        """The requested GPUs over all GPUs; over one GPU where there is none."""
        return self.requested / max(sum(self.capacity.values()), 1)


@dataclass(frozen=True, slots=True)
class LoadIntegrals:
    """The load at an instant, and its integrals over time since the first row, in seconds times each quantity.

    Attributes:
        at: unix seconds.
        load: at that instant.
        job_seconds: integral of the live jobs.
        app_seconds: integral of the live apps.
        contention_seconds: integral of the contention.
    """

    at: float
    load: ClusterLoad
    job_seconds: float
    app_seconds: float
    contention_seconds: float

    def until(self, at: float) -> LoadIntegrals:
        """The integrals at another instant between which the load does not change."""
        seconds = at - self.at
        return LoadIntegrals(
            at,
            self.load,
            self.job_seconds + seconds * self.load.jobs,
            self.app_seconds + seconds * self.load.apps,
            self.contention_seconds + seconds * self.load.contention,
        )

    def mean_since(self, before: LoadIntegrals) -> MeanLoad:
        """The means between an earlier instant and this one; the load itself where they are the same."""
        seconds = self.at - before.at
        if seconds <= 0:
            return MeanLoad(self.load.jobs, self.load.apps, self.load.contention)
        return MeanLoad(
            (self.job_seconds - before.job_seconds) / seconds,
            (self.app_seconds - before.app_seconds) / seconds,
            (self.contention_seconds - before.contention_seconds) / seconds,
        )


class LoadRows(HistoryQueries):
    """Reads and writes of the table ``load``."""

    def load_integrals(self, at: float) -> LoadIntegrals | None:
        """The load and its integrals at an instant, unix seconds; None before the first round with a load."""
        row = self._row(f"SELECT {_COLUMNS} FROM load WHERE at <= ? ORDER BY at DESC LIMIT 1", [at])  # noqa: S608  constants
        row = row or self._row(f"SELECT {_COLUMNS} FROM load ORDER BY at LIMIT 1")  # noqa: S608  constants
        if row is None:
            return None
        since, jobs, apps, requested, capacity, *integrals = row
        return LoadIntegrals(since, ClusterLoad(jobs, apps, requested, json.loads(capacity)), *integrals).until(at)

    def _commit_load(self, at: float, load: ClusterLoad) -> None:
        """Add the load of a round, unless it is that of the round before."""
        latest = self.load_integrals(at)
        if latest is None:
            latest = LoadIntegrals(at, load, 0.0, 0.0, 0.0)
        elif latest.load == load:
            return
        self._insert_load(latest, load)

    def _set_load_back(self, now: float) -> None:
        """Replace the rows after an instant by one of that instant, after the clock was set back."""
        row = self._row("SELECT max(at) FROM load WHERE at > ?", [now])
        if row is None or row[0] is None:
            return
        latest = self.load_integrals(row[0])
        self._write("DELETE FROM load WHERE at > ?", [now])
        if latest is not None:
            integrals = latest.job_seconds, latest.app_seconds, latest.contention_seconds
            self._insert_load(LoadIntegrals(now, latest.load, *integrals), latest.load)

    def _insert_load(self, integrals: LoadIntegrals, load: ClusterLoad) -> None:
        values = [load.jobs, load.apps, load.requested, as_json(load.capacity)]
        totals = [integrals.job_seconds, integrals.app_seconds, integrals.contention_seconds]
        sql = f"INSERT OR REPLACE INTO load ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  constants
        self._write(sql, [integrals.at, *values, *totals])
