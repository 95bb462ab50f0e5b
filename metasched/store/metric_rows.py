"""The counters of the metrics, which triggers advance with the rows that they count (store/counting_triggers.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from metasched.core.finish_time_fairness import LIVE_DEFINITIONS
from metasched.store.connection import Connection

MAX_ACCOUNTS = 100
"""Accounts with metrics of their own: the first that held GPUs, for good, so that no counter ever falls."""


class CounterKey(NamedTuple):
    """A counter: its name, its label's value and its GPU type, "" for none."""

    name: str
    label: str
    gpu_type: str


class MetricRows(Connection):
    """Reads the counters, and stores which accounts have metrics of their own."""

    def metric_counters(self) -> Mapping[CounterKey, float]:
        """Return the value of each counter since the store was made."""
        rows = self._rows("SELECT name, label, gpu_type, value FROM metric_counters")
        return {CounterKey(name, label, gpu_type): value for name, label, gpu_type, value in rows}

    def metric_accounts(self, accounts: Iterable[str]) -> frozenset[str]:
        """Return the accounts that have metrics of their own; ``accounts`` join them while there are few."""
        known = {account for (account,) in self._rows("SELECT account FROM metric_accounts")}
        new = sorted(set(accounts) - known)[: MAX_ACCOUNTS - len(known)]
        if new:
            with self.transaction():
                for account in new:
                    self._write("INSERT INTO metric_accounts VALUES (?)", [account])
        return frozenset([*known, *new])

    def worst_rhos(self, since: float) -> Mapping[str, tuple[float, int, int]]:
        """Return finish-time fairness of the jobs that ended since an instant, by definition.

        Returns:
            The largest rho, the number of jobs with a rho above 1, and the number of jobs with a rho; empty where none
            is stored.
        """
        found = {}
        for name in LIVE_DEFINITIONS:
            row = self._row(
                f"SELECT max({name}), coalesce(sum({name} > 1), 0), count({name}) FROM fairness WHERE finished >= ?",  # noqa: S608
                [since],
            )
            if row is not None and row[2]:
                found[name] = (float(row[0]), int(row[1]), int(row[2]))
        return found
