"""One daemon for one cluster: a lock in shared storage, held for life."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from metasched.errors import MetaschedError


class LockHeldError(MetaschedError):
    """Another daemon schedules this cluster."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"another metasched daemon runs for this cluster ({holder or 'unknown holder'}, lock {path}); stop it first"
        )


class LockLostError(MetaschedError):
    """The lock file was replaced under us, so another daemon may have taken over."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"the lock {path} is no longer ours; nothing more is done to Slurm")


class LockFileError(MetaschedError):
    """The lock file cannot be made."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot lock {path}: {error.strerror}; check that [paths] shared exists and is writable")


class DaemonLock:
    """A POSIX record lock (they work on NFS as well), released by the kernel however the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LockFileError(path, error) from None
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.read(self._fd, 200).decode(errors="replace").strip()
            os.close(self._fd)
            raise LockHeldError(path, holder) from None
        except OSError as error:  # a file system without locks
            os.close(self._fd)
            raise LockFileError(path, error) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"host {socket.gethostname()} pid {os.getpid()}\n".encode(), 0)

    def check(self) -> None:
        """Make sure, before a batch of writes, that the file on disk is still the one that we hold.

        Raises:
            LockLostError: it is not.
        """
        try:
            there = self._path.stat()
        except OSError:
            raise LockLostError(self._path) from None
        ours = os.fstat(self._fd)
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise LockLostError(self._path)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
