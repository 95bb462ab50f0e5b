"""The owner of a checkpoint directory: two jobs in one directory would continue each other's checkpoints.

The first owner writes its uid to the file `job`. Each job that takes the directory over writes the next of `job.2`,
`job.3`, ...; the last file counts. The files are created exclusively and never changed, so of jobs that start at once
one becomes the owner. An empty file, of a process that died in between, means no owner.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING

from trainer_shim.checkpointing.atomic_files import create_exclusively
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_shim.environment.job import Job

END_SECONDS = 90.0
"""Time in which the daemon finds out that a job has ended that Slurm has forgotten, and some more.

A job that is submitted again right after that may start earlier.
"""
LOOK_SECONDS = 0.5
_UID = re.compile(r"[0-9a-f]{16}(_[0-9]+)?")

log = logging.getLogger("trainer_shim")


def claim_directory(directory: Path, job: Job) -> None:
    """Make the job the owner of the directory; without metasched there is no owner, and no check.

    The directory of an owner that has ended, and so is gone from the mailbox, passes to the next job: a job that failed
    is submitted again under a new uid. The end of an owner is awaited for ``END_SECONDS``.

    Raises:
        CheckpointError: the directory belongs to another job, which has not ended.
        OSError: the directory cannot be made, read or written.
    """
    if job.uid is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        owners = _owners(directory)
        if owners and owners[-1] == job.uid:
            return
        if owners and owners[-1] and not _ends_soon(owners[-1], job, directory):
            raise CheckpointError(
                f"{directory}: belongs to job {owners[-1]}, which has not ended as far as is known, and this is job "
                f"{job.uid}: give each job a directory of its own; to have this job continue the other's training, "
                f"end that one, or remove {_owner_file(directory, len(owners))}"
            )
        with contextlib.suppress(FileExistsError):  # another job was faster
            create_exclusively(_owner_file(directory, len(owners) + 1), f"{job.uid}\n")
            if owners and owners[-1]:
                log.info("%s: taken over from job %s, which has ended", directory, owners[-1])


def _owner_file(directory: Path, number: int) -> Path:
    return directory / ("job" if number == 1 else f"job.{number}")


def _owners(directory: Path) -> list[str]:
    """Return the uids of the owners so far, the present owner last."""
    owners: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        while True:
            owners.append(_owner_file(directory, len(owners) + 1).read_text(errors="replace").strip())
    return owners


def _ends_soon(owner: str, job: Job, directory: Path) -> bool:
    """Return whether the daemon has removed the owner's mailbox, a sibling of this job's mailbox, or does so soon."""
    if job.lease is None or _UID.fullmatch(owner) is None:
        return False
    mailbox, of_owner = job.lease.parent, job.lease.parent.with_name(owner)
    if mailbox.exists() and of_owner.exists():
        log.warning(
            "%s: belongs to job %s, which has not ended as far as is known; waiting %g s for its end",
            *(directory, owner, END_SECONDS),
        )
        deadline = time.monotonic() + END_SECONDS
        while of_owner.exists() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    return mailbox.exists() and not of_owner.exists()
