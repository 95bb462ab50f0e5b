"""Whose a checkpoint directory is: two jobs that train in one would continue each other's checkpoints.

The first owner leaves a note, `job`, and each one that takes the directory over another, `job.2`, `job.3`, ...: the
last one counts. Notes are made exclusively and never changed: so of jobs that come at once, one becomes the owner. An
empty one, of somebody who died as it was written, is nobody's.
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING

from trainer_shim.checkpointing.atomic_files import create_exclusively
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_shim.environment.job import Job

_UID = re.compile(r"[0-9a-f]{16}(_[0-9]+)?")

log = logging.getLogger("trainer_shim")


def claim_directory(directory: Path, job: Job) -> None:
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
    while True:
        owners = _owners(directory)
        if owners and owners[-1] == job.uid:
            return
        if owners and owners[-1] and not _has_ended(owners[-1], job):
            raise CheckpointError(
                f"{directory}: belongs to job {owners[-1]}, which has not ended as far as is known, and this is job "
                f"{job.uid}: give each job a directory of its own; to have this job continue the other's training, "
                f"end that one, or remove {_note(directory, len(owners))}"
            )
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            create_exclusively(_note(directory, len(owners) + 1), f"{job.uid}\n")
            if owners and owners[-1]:
                log.info("%s: taken over from job %s, which has ended", directory, owners[-1])


def _note(directory: Path, number: int) -> Path:
    return directory / ("job" if number == 1 else f"job.{number}")


def _owners(directory: Path) -> list[str]:
    """Who has left a note, the present owner last."""
    owners: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        while True:
            owners.append(_note(directory, len(owners) + 1).read_text(errors="replace").strip())
    return owners


def _has_ended(owner: str, job: Job) -> bool:
    """Whether the daemon has emptied the owner's mailbox, which is beside our own."""
    if job.lease is None or _UID.fullmatch(owner) is None:
        return False
    boxes = job.lease.parent.parent
    return job.lease.parent.exists() and not (boxes / owner).exists()
