"""The wrapper's word that a script has failed on a number of GPUs that is new to it: ``reports/<uid>/failed-run.json``.

The format is in ``docs/developer/PROTOCOL.md``. The file is the user's: hostile until it is parsed here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from metasched.shared_dir.owned_files import RefusedFileError, owned_directory, owned_file

FILE_NAME = "failed-run.json"
MAX_BYTES = 4096
"""No more is read of the file."""


class FailedRun(msgspec.Struct, frozen=True):
    """The run whose script failed, and its exit code."""

    v: Literal[1]
    run: Annotated[int, Meta(ge=1)]
    exit_code: Annotated[int, Meta(ge=1, le=255)]


_DECODER = msgspec.json.Decoder(FailedRun)


def read_failed_run(reports: Path, uid: str, owner: int) -> FailedRun | None:
    """Read which run of a job has failed.

    Args:
        reports: the ``reports`` directory of the shared tree.
        uid: the job.
        owner: numeric user id of the job's owner; directory and file must be theirs.

    Returns:
        The latest such run; None where there is none, or where the file is not what the protocol says.
    """
    try:
        with owned_directory(reports, uid, owner) as directory, owned_file(FILE_NAME, directory, owner) as (file, _):
            return _DECODER.decode(os.pread(file, MAX_BYTES, 0))  # a longer file is no JSON
    except (OSError, RefusedFileError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
