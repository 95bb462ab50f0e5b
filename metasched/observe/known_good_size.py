"""Numbers of GPUs on which a job's script has trained, to which it is put back where it fails on another one. Pure."""

from __future__ import annotations

from metasched.store import JobRecord, RunRecord


def known_good_size(record: JobRecord) -> int | None:
    """The number of GPUs of the job's latest closed run that trained.

    Returns:
        None before such a run, for a job without GPUs, and where its request no longer allows that number.
    """
    gpus, needed = record.known_good_gpus, record.requirements
    if not gpus or not needed.get("min_gpus", 0) <= gpus <= needed.get("max_gpus", 0) or gpus in record.failed_sizes:
        return None
    return gpus


def may_be_put_back(record: JobRecord, run: RunRecord) -> bool:
    """Whether a job is put back where its script fails in this run: its number of GPUs is new, and it has not trained.

    A size is new where the latest run that trained had another one. A run on the size to which the job was put back has
    that size, so a script that fails there, too, ends the job.
    """
    placement, good = run.placement or run.released, known_good_size(record)
    return placement is not None and good is not None and placement.gpus != good and not run.has_trained
