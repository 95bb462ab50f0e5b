"""One daemon for one cluster: a lock in shared storage, held for life."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from metasched.errors import MetaschedError


class LockHeldError(MetaschedError):
    """Another daemon schedules this cluster.

    Attributes:
        holder: in its own words, "" where it has not said yet.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(
            f"another metasched daemon runs for this cluster ({holder or 'unknown holder'}, lock {path}); "
            "stop it first, or stand by for it with --standby"
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
    """A POSIX record lock (they work on NFS as well), released by the kernel however the process ends.

    Raises:
        LockHeldError: another process has it.
        LockFileError: the file cannot be made, or its file system has no locks.
    """

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
        since = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        self._words = f"host {socket.gethostname()} pid {os.getpid()} since {since}\n".encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._words, 0)

    @classmethod
    def wait(cls, path: Path, seconds: float, waiting: Callable[[str], None]) -> Self:
        """Stand by until nobody else has the lock; ``waiting`` hears of the holder at every look, seconds apart.

        Raises:
            LockFileError: as when it is taken at once.
        """
        while True:
            try:
                return cls(path)
            except LockHeldError as error:
                waiting(error.holder)
            time.sleep(seconds)

    def check(self) -> None:
        """Make sure, before a batch of writes, that the file on disk is still the one that we hold.

        A network file system may have given the lock to another host while we were cut off: then either the file
        cannot be read any more, or that host has written its own name.

        Raises:
            LockLostError: it is not.
        """
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
            words = os.pread(self._fd, 200, 0)
        except OSError:
            raise LockLostError(self._path) from None
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino) or words != self._words:
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
