"""Who may read the store: its owner, and the group where an administrator has given it read access."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

NOT_FOR_OTHERS = 0o027
"""The permissions that nobody but the owner has: a reader's lock can keep the daemon from writing."""


def make_private(directory: Path, database: Path) -> None:
    """Make the state directory if it is missing, and take every access from others, and write access from the group.

    Raises:
        OSError: the directory cannot be made, or belongs to another user.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in (directory, database):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & NOT_FOR_OTHERS:
                path.chmod(mode & ~NOT_FOR_OTHERS)


def create_private(database: Path) -> None:
    """Create an empty file for a new database, which its owner alone may read; an existing file is left as it is.

    An existing file is not opened: closing it would release SQLite's locks of this process.

    Raises:
        OSError: the file cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
