"""GPU time, waits and preemptions of past and present jobs in a window of time, by user, account, month or GPU type."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from metasched.store.connection import Connection
from metasched.store.history_queries import IS_IMPORTED
from metasched.store.records import OURS, RunRecord
from metasched.store.row_conversion import RUN_COLUMNS, run_of

Grouping = Literal["user", "account", "month", "gpu_type"]
GROUPINGS: tuple[Grouping, ...] = ("user", "account", "month", "gpu_type")
NO_ACCOUNT = "(no account)"
NO_GPUS = "(no GPUs)"
UNTYPED = "(untyped)"
_HOUR = 3600.0
_DECILE_OF_P90 = 8
_FEW = 2  # quantiles need two values


@dataclass(frozen=True, slots=True)
class Usage:
    """The jobs of one group in a window of time.

    Attributes:
        group: name of the user, account or GPU type, or the month as ``2025-03``.
        jobs: jobs with a run, a first start or an end in the window.
        completed: those that ended in the window by completing; None of a GPU type, because a job may have had several.
        failed: those that ended in the window otherwise; likewise.
        gpu_hours: GPU-hours held in the window, suspensions excluded.
        preemptions: runs that the daemon ended in the window, to give the GPUs to other jobs or another size.
        wait_mean: mean seconds from submission to the first start, of jobs that first started in the window; None for
            none.
        wait_median: the median of the same.
        wait_p90: the ninetieth percentile of the same; None for fewer than two.
        rho_mean: mean finish-time fairness of jobs that ended in the window; None where not known.
        rho_worst: largest of the same.
    """

    group: str
    jobs: int
    completed: int | None
    failed: int | None
    gpu_hours: float
    preemptions: int
    wait_mean: float | None
    wait_median: float | None
    wait_p90: float | None
    rho_mean: float | None = None
    rho_worst: float | None = None


@dataclass(slots=True)
class _Sums:
    """What is counted of one group."""

    jobs: set[str]
    waits: list[float]
    rhos: list[float]
    completed: int = 0
    failed: int = 0
    gpu_seconds: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class _Owner:
    user: str
    account: str | None


class UsageQueries(Connection):
    """Queries on the use of the cluster; nothing here writes."""

    def usage(
        self, grouping: Grouping, since: float, until: float, *, imported: bool = False, rho: str = "pollux"
    ) -> list[Usage]:
        """Return the use of the cluster by group; the largest GPU time first, months in their order.

        Args:
            grouping: what a group is. Months are those of this host's time zone.
            since: begin of the window, unix seconds.
            until: end of the window, unix seconds; open runs count up to it.
            imported: whether jobs that were imported from Slurm's accounting count.
            rho: definition of finish-time fairness.
        """
        sums: dict[str, _Sums] = defaultdict(lambda: _Sums(set(), [], []))
        no_imports = "1" if imported else f"NOT {IS_IMPORTED}"
        owners = self._count_runs(sums, grouping, (since, until), no_imports)
        has_ends = grouping != "gpu_type"
        if has_ends:
            rhos = self._rhos(rho)
            rows = self._rows(
                "SELECT jobs.uid, user, account, finished, end_state FROM jobs "  # noqa: S608  constants
                f"WHERE finished >= ? AND finished < ? AND {no_imports}",
                [since, until],
            )
            for uid, user, account, finished, end_state in rows:
                found = sums[_name(grouping, _Owner(user, account), finished)]
                found.jobs.add(uid)
                found.completed += end_state == "COMPLETED"
                found.failed += end_state != "COMPLETED"
                if uid in rhos:
                    found.rhos.append(rhos[uid])
            self._count_waits(sums, grouping, (since, until), owners)
        usage = [_usage(group, sums[group], has_ends=has_ends) for group in sorted(sums)]
        return usage if grouping == "month" else sorted(usage, key=lambda one: -one.gpu_hours)

    def _count_runs(
        self, sums: dict[str, _Sums], grouping: Grouping, window: tuple[float, float], no_imports: str
    ) -> Mapping[str, _Owner]:
        """Add the runs of a window to the sums, and return the owners of their jobs by uid."""
        since, until = window
        columns = ", ".join(f"runs.{name}" for name in RUN_COLUMNS)
        rows = self._rows(
            f"SELECT jobs.user, jobs.account, {columns} FROM runs JOIN jobs USING (uid) "  # noqa: S608  constants
            f"WHERE runs.started < ? AND (runs.ended IS NULL OR runs.ended > ?) AND {no_imports}",
            [until, since],
        )
        owners: dict[str, _Owner] = {}
        for user, account, *values in rows:
            run = run_of(tuple(values))
            owner = owners.setdefault(run.uid, _Owner(user, account))
            gpus = 0 if run.placement is None else run.placement.gpus
            gpu_type = _type_name(None if run.placement is None else run.placement.gpu_type)
            held = _held_part(run, until)
            for at, seconds in _spans(run, since, until, by_month=grouping == "month"):
                found = sums[gpu_type if grouping == "gpu_type" else _name(grouping, owner, at)]
                found.jobs.add(run.uid)
                found.gpu_seconds += gpus * held * seconds
            if run.cause in OURS and run.ended is not None and since <= run.ended < until:
                sums[gpu_type if grouping == "gpu_type" else _name(grouping, owner, run.ended)].preemptions += 1
        return owners

    def _count_waits(
        self, sums: dict[str, _Sums], grouping: Grouping, window: tuple[float, float], owners: Mapping[str, _Owner]
    ) -> None:
        rows = self._rows(
            "SELECT runs.uid, min(runs.started) AS first, jobs.submitted FROM runs JOIN jobs USING (uid) "
            "WHERE runs.started IS NOT NULL GROUP BY runs.uid HAVING first >= ? AND first < ?",
            list(window),
        )
        for uid, first, submitted in rows:
            if uid in owners:
                sums[_name(grouping, owners[uid], first)].waits.append(max(first - submitted, 0.0))

    def _rhos(self, definition: str) -> Mapping[str, float]:
        """Return the finish-time fairness of ended jobs by uid; empty where none is stored."""
        columns = {name for _, name, *_ in self._rows("PRAGMA table_info(fairness)")}
        if definition not in columns or "uid" not in columns:
            return {}
        rows = self._rows(f"SELECT uid, {definition} FROM fairness WHERE {definition} IS NOT NULL")  # noqa: S608  a column
        return {str(uid): float(value) for uid, value in rows}


def _name(grouping: Grouping, owner: _Owner, at: float) -> str:
    if grouping == "month":
        return datetime.fromtimestamp(at).strftime("%Y-%m")  # noqa: DTZ006  the host's time zone
    return owner.user if grouping == "user" else owner.account or NO_ACCOUNT


def _type_name(gpu_type: str | None) -> str:
    return NO_GPUS if gpu_type is None else gpu_type or UNTYPED


def _held_part(run: RunRecord, until: float) -> float:
    """Return the part of a run, 0 to 1, in which it was not suspended."""
    whole = min(run.ended or until, until) - (run.started or until)
    return min(run.seconds_at(until) / whole, 1.0) if whole > 0 else 0.0


def _spans(run: RunRecord, since: float, until: float, *, by_month: bool) -> Iterator[tuple[float, float]]:
    """Yield an instant and the seconds of the run in the window, or in each month of the window."""
    begin, end = max(run.started or until, since), min(run.ended or until, until)
    while begin < end:
        at = datetime.fromtimestamp(begin)  # noqa: DTZ006  the host's time zone
        following = datetime(at.year + at.month // 12, at.month % 12 + 1, 1).timestamp()  # noqa: DTZ001  likewise
        span_end = min(following, end) if by_month else end
        yield begin, span_end - begin
        begin = span_end


def _usage(group: str, sums: _Sums, *, has_ends: bool) -> Usage:
    return Usage(
        group=group,
        jobs=len(sums.jobs),
        completed=sums.completed if has_ends else None,
        failed=sums.failed if has_ends else None,
        gpu_hours=sums.gpu_seconds / _HOUR,
        preemptions=sums.preemptions,
        wait_mean=statistics.fmean(sums.waits) if sums.waits else None,
        wait_median=statistics.median(sums.waits) if sums.waits else None,
        wait_p90=_p90(sums.waits),
        rho_mean=statistics.fmean(sums.rhos) if sums.rhos else None,
        rho_worst=max(sums.rhos, default=None),
    )


def _p90(values: Sequence[float]) -> float | None:
    return statistics.quantiles(values, n=10, method="inclusive")[_DECILE_OF_P90] if len(values) >= _FEW else None
