"""The use of a job's time on its resources: training, waiting for data or ranks, starting, standing still. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metasched.store.records import RunRecord


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Seconds of a job's runs by use, as its trainers reported them.

    The uses need not add up to ``held``: a trainer's last steps before a kill are not reported, and clocks differ.

    Attributes:
        held: wall time of the runs that started, without suspensions.
        starting: from each start by Slurm to the first step; of a run without a step, all of it.
        trained: steps without their waits; None where no trainer reported steps.
        data: waits for data within steps; None where not measured.
        sync: waits of ranks for other ranks within steps; None where not measured.
        stalled: training that stood still for checkpoints; None where not measured.
        peak_bytes: largest memory that rank 0 used in any run, in bytes; None where not reported.
    """

    held: float
    starting: float
    trained: float | None
    data: float | None
    sync: float | None
    stalled: float | None
    peak_bytes: int | None


def time_use(runs: Iterable[RunRecord], now: float) -> TimeUse:
    """Sum up the runs of one job until ``now``, unix seconds."""
    begun = [run for run in runs if run.started is not None]
    data, sync = _total(run.data_seconds for run in begun), _total(run.sync_seconds for run in begun)
    steps = _total(run.step_seconds for run in begun)
    return TimeUse(
        held=sum(run.seconds_at(now) for run in begun),
        starting=sum(_start_seconds(run, now) for run in begun),
        trained=None if steps is None else max(0.0, steps - (data or 0.0) - (sync or 0.0)),
        data=data,
        sync=sync,
        stalled=_total(run.stall_seconds for run in begun),
        peak_bytes=max((run.peak_bytes for run in begun if run.peak_bytes is not None), default=None),
    )


def _start_seconds(run: RunRecord, now: float) -> float:
    held = run.seconds_at(now)
    if run.first_step_at is None or run.started is None:
        return held
    return min(held, max(0.0, run.first_step_at - run.started))


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
