"""Who may read the store: its owner, and the group where an administrator has given it read access.

A state directory with the set-group-ID bit that its group may enter (mode 2750) lets this group read the database. New
files get the directory's group then, also the two that SQLite makes beside the database, with the database's mode. A
reader needs all three, and writes none.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

NOT_FOR_OTHERS = 0o027
"""The permissions that nobody but the owner has: a reader's lock can keep the daemon from writing."""


_GROUP_READS = stat.S_ISGID | 0o050


def make_private(directory: Path, database: Path) -> None:
    """Make the state directory if it is missing, and take every access from others, and write access from the group.

    In a directory whose group may read the database, the group gets read access to it.

    Raises:
        OSError: the directory cannot be made, or belongs to another user.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    given = 0
    for path in (directory, database, *log_files(database)):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
            wanted = mode & ~NOT_FOR_OTHERS | given
            if mode != wanted:
                path.chmod(wanted)
        given = 0o040 if _lets_group_read(directory) else 0


def log_files(database: Path) -> tuple[Path, Path]:
    """The paths of the two files that SQLite keeps beside an open database: the write-ahead log and its index."""
    return database.with_name(f"{database.name}-wal"), database.with_name(f"{database.name}-shm")


def _lets_group_read(directory: Path) -> bool:
    return directory.stat().st_mode & _GROUP_READS == _GROUP_READS


def create_private(database: Path) -> None:
    """Create an empty file for a new database, for its owner and a group that may read; leave an existing file.

    An existing file is not opened: closing it would release SQLite's locks of this process.

    Raises:
        OSError: the file cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if _lets_group_read(database.parent):
                os.fchmod(descriptor, 0o640)  # under any umask
        finally:
            os.close(descriptor)
