"""Whose a checkpoint directory is: two jobs that train in one would continue each other's checkpoints."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_shim.job import Job

_UID = re.compile(r"[0-9a-f]{16}(_[0-9]+)?")

log = logging.getLogger("trainer_shim")


def belong(directory: Path, job: Job) -> None:
    """Note that the directory is the job's; a trainer without metasched leaves no note, and heeds none.

    A job that has ended, and is therefore gone from the mailbox, leaves its directory to whoever comes next: a job that
    failed is submitted again under a new identity.

    Raises:
        CheckpointError: it is another job's.
        OSError: it cannot be made, read or written.
    """
    if job.uid is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / "job"
    try:
        owner = note.read_text(errors="replace").strip()
    except FileNotFoundError:
        owner = ""
    if owner == job.uid:
        return
    if owner and not _has_ended(owner, job):
        raise CheckpointError(
            f"{directory}: belongs to job {owner}, which has not ended as far as is known, and this is job {job.uid}: "
            "give each job a directory of its own; to have this job continue the other's training, end that one, "
            f"or remove {note}"
        )
    if owner:
        log.info("%s: taken over from job %s, which has ended", directory, owner)
    partial = note.with_name(f"job.{os.getpid()}.partial")
    partial.write_text(f"{job.uid}\n")
    partial.replace(note)


def _has_ended(owner: str, job: Job) -> bool:
    """Whether the daemon has emptied the owner's mailbox, which is beside our own."""
    if job.lease is None or _UID.fullmatch(owner) is None:
        return False
    boxes = job.lease.parent.parent
    return job.lease.parent.exists() and not (boxes / owner).exists()
