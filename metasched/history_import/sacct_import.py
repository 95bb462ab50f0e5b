"""The import of ended jobs from ``sacct`` into the store, as history: jobs that metasched did not schedule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from metasched.core.model import Placement
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.rows import Row
from metasched.simulator.traces.sacct import COLUMNS, gpu_type_of, gpus_of, instant, records
from metasched.slurm import hostlist
from metasched.slurm.admin_comment import Stamp
from metasched.store import IMPORTED, EndCause, JobRecord, RunRecord, Store

NEEDED = (*(name for name in COLUMNS if name != "JobName"), "Partition", "Start", "End", "State", "NodeList", "JobName")
"""The columns that an import needs; the job's name, a user's text, comes last."""

UNKNOWN_TYPE = "gpu"
"""The type of GPUs whose type accounting does not record; None would mean a job without GPUs."""

_JOB_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?", re.ASCII)
_ENDED_OR_REQUEUED = frozenset({"PREEMPTED", "NODE_FAIL"})  # the state of an ended job, or of a run before a requeue
_REQUEUED = _ENDED_OR_REQUEUED | {"REQUEUED"}
_ENDED = _ENDED_OR_REQUEUED | {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}
_NO_TIME = ("", "Unknown", "None")


@dataclass
class Imported:
    """The result of an import: counts of jobs and unreadable lines.

    Attributes:
        jobs: number of jobs added to the store.
        skipped: number of jobs and lines left out, by reason.
        unreadable: the error of the first line that could not be read; None if there was none.
    """

    jobs: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unreadable: TraceError | None = None

    @property
    def read(self) -> int:
        """The number of jobs and unreadable lines that the import read."""
        return self.jobs + self.skipped.total()


def import_jobs(
    store: Store, path: Path, delimiter: str = "|", progress: Callable[[int, int], object] | None = None
) -> Imported:
    """Import the GPU jobs that have ended; a job that the store knows already is skipped.

    Args:
        store: the store to write.
        path: the file with sacct's output, which has the columns ``NEEDED``.
        delimiter: the text between columns.
        progress: is called with the number of records that were imported or skipped so far, and of all.

    Raises:
        TraceError: the file cannot be read, or lacks a column.
        StoreError: the store cannot be written.
    """
    result = Imported()
    readable: list[Row] = []
    for row in records(path, NEEDED, delimiter):
        if isinstance(row, TraceError):
            _note_unreadable(result, row)
        else:
            readable.append(row)
    done = 0
    with store.transaction():
        for rows in _by_job(readable, result):
            done += len(rows)
            if progress is not None:
                progress(done, len(readable))
            try:
                why = _import(store, rows)
            except TraceError as error:
                _note_unreadable(result, error)
            else:
                result.skipped.update([why] if why else [])
                result.jobs += why is None
    return result


def _note_unreadable(result: Imported, error: TraceError) -> None:
    result.skipped["could not be read"] += 1
    result.unreadable = result.unreadable or error


def _by_job(rows: Iterable[Row], result: Imported) -> Iterator[list[Row]]:
    """Yield the rows of each job, one for each run, in order of submission: Slurm reuses job ids."""
    by_id: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        try:
            submitted = instant(row, "Submit")
            by_id.setdefault(row.text("JobID"), []).append((submitted, row))
        except TraceError as error:
            _note_unreadable(result, error)
    for found in by_id.values():
        ordered = [row for _, row in sorted(found, key=lambda one: one[0])]
        job = ordered[:1]
        for before, row in pairwise(ordered):
            if _state(before) not in _REQUEUED:
                yield job
                job = []
            job.append(row)
        yield job


def _import(store: Store, rows: Sequence[Row]) -> str | None:
    """Import one job from its rows; return why the job is left out, or None."""
    last = rows[-1]
    slurm_job_id = last.text("JobID")
    if _state(last) not in _ENDED or last.values["End"].strip() in _NO_TIME:
        return "not ended"
    ran = [row for row in rows if row.number("ElapsedRaw") > 0]
    if not ran:
        return "never ran"
    if not _JOB_ID.fullmatch(slurm_job_id):
        raise last.refusal("JobID", f"{slurm_job_id!a} is not a job id", "give the output of sacct --allocations")
    if _is_ours(store, last, slurm_job_id):
        return "known already"
    gpus = gpus_of(ran[-1])
    if not gpus:
        return "without GPUs"
    uid = f"{IMPORTED}{slurm_job_id}:{instant(last, 'Submit'):.0f}"
    runs = [_run(uid, number, row, more=row is not last) for number, row in enumerate(ran, start=1)]
    attained: dict[str, float] = {}
    for row in ran:
        gpu_type = gpu_type_of(row) or UNKNOWN_TYPE
        attained[gpu_type] = attained.get(gpu_type, 0.0) + gpus_of(row) * row.number("ElapsedRaw")
    job = JobRecord(
        uid=uid,
        slurm_job_id=slurm_job_id,
        name=last.values["JobName"],
        user=last.text("User"),
        submitted=instant(rows[0], "Submit"),
        account=last.values["Account"].strip() or None,
        partition=last.values["Partition"].strip(),
        requirements={"gpus": gpus, "min_gpus": gpus, "max_gpus": gpus},
        status="finished",
        run=len(runs),
        attained=attained,
        ran_seconds=sum(row.number("ElapsedRaw") for row in ran),
        last_placement=runs[-1].placement,
        last_ended=runs[-1].ended,
        finished=instant(last, "End"),
        end_state=_state(last),
    )
    return None if store.import_job(job, runs) else "known already"


def _is_ours(store: Store, row: Row, slurm_job_id: str) -> bool:
    """Whether metasched scheduled the job (by its stamp), so that the store has its whole history."""
    stamp = Stamp.read(row.values.get("AdminComment", ""))
    if stamp is None:
        return False
    _, array, task = slurm_job_id.partition("_")
    return store.job(f"{stamp.uid}{array}{task}") is not None


def _run(uid: str, number: int, row: Row, *, more: bool) -> RunRecord:
    """The record of one run; ``more`` is whether another run came after it."""
    ended = EndCause.FINISHED if _state(row) == "COMPLETED" else EndCause.FAILED
    placement = _placement(row)
    started = instant(row, "Start")
    return RunRecord(
        uid=uid,
        run=number,
        placement=placement,
        started=started,
        ended=started + row.number("ElapsedRaw"),
        cause=EndCause.LOST if more else ended,
    )


def _placement(row: Row) -> Placement | None:
    """The allocation of a run; None where it was uneven, because accounting records no GPUs by node."""
    try:
        nodes = tuple(hostlist.expand(row.values["NodeList"].strip()))
    except ValueError:
        return None
    gpus = gpus_of(row)
    if not nodes or len(set(nodes)) < len(nodes) or gpus % len(nodes):
        return None
    return Placement(nodes, gpus // len(nodes), gpu_type_of(row) or UNKNOWN_TYPE)


def _state(row: Row) -> str:
    """The state of a row without additions, such as CANCELLED of ``CANCELLED by 1000``."""
    return next(iter(row.values["State"].split()), "").rstrip("+")
