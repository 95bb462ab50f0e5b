"""Which processes of this host have locks on a database, for messages to an administrator.

The kernel's list of locks is read, and no file of the database is opened: closing one would release SQLite's own locks
of this process. Processes of other hosts and of other containers are not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_LOCKS = Path("/proc/locks")
_READER_BYTES = range(123, 128)
"""Bytes of the file ``-shm`` that readers lock during a transaction (SQLite's WAL format, section 2.3.1)."""


def writers(database: Path) -> list[str]:
    """Return the other processes that keep writers out, such as ``process 123 (sqlite3)``."""
    files = {_key(database), _key(_shared_memory(database))}
    return _named({pid for kind, pid, file, _ in _locks() if kind == "WRITE" and file in files})


def readers(database: Path) -> list[str]:
    """Return the other processes that are in a transaction, and so keep the write-ahead log from being emptied."""
    file = _key(_shared_memory(database))
    return _named({pid for _, pid, locked, first in _locks() if locked == file and first in _READER_BYTES})


def _locks() -> Iterator[tuple[str, int, str, int]]:
    """Iterate over the locks that are held: kind, pid, device with inode, first byte."""
    try:
        lines = _LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:  # `1: POSIX  ADVISORY  WRITE 123 08:01:4711 120 120`; of awaited locks the second word is `->`
        words = line.split()
        if len(words) == 8 and words[4].isdigit() and words[6].isdigit():  # noqa: PLR2004
            yield words[3], int(words[4]), words[5], int(words[6])


def _shared_memory(database: Path) -> Path:
    return database.with_name(f"{database.name}-shm")


def _key(path: Path) -> str | None:
    """Return device and inode as the kernel's list has them; None for no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _named(pids: set[int]) -> list[str]:
    return [f"process {pid} ({_name(pid)})" for pid in sorted(pids - {0, os.getpid()})]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "not known"
