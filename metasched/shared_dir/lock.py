"""A lock in the shared directory, so that one daemon schedules a cluster; held until the process ends."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from metasched.core.errors import MetaschedError

_MODE = 0o600  # a user who may read the file could lock it against all writers
_FLOCK = struct.Struct("hhqqi0q")  # struct flock of 64-bit Linux: type, whence, start, length, pid


class LockHeldError(MetaschedError):
    """Another process has the lock: a daemon that schedules this cluster, or a process that is no daemon.

    Attributes:
        holder: host, pid and start of the other daemon as it wrote them ("" where it has written nothing yet), or the
            process that is no daemon.
    """

    def __init__(self, message: str, holder: str) -> None:
        self.holder = holder
        super().__init__(message)


class LockLostError(MetaschedError):
    """The lock file is no longer the locked one: another daemon may have the lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process has replaced or taken the lock {path}; nothing more is done to Slurm")


class LockFileError(MetaschedError):
    """The lock file cannot be made."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot lock {path}: {error.strerror}; check that [paths] shared exists and is writable")


class DaemonLock:
    """A POSIX record lock, which works on NFS as well; the kernel releases it however the process ends.

    Args:
        path: path of the lock file, in shared storage.
        advice: the fix that the error names where another daemon has the lock.

    Raises:
        LockHeldError: another process has the lock.
        LockFileError: the file cannot be opened with mode 0600, or its file system has no locks.
    """

    def __init__(self, path: Path, advice: str = "stop it first") -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise LockFileError(path, error) from None
        refusal: MetaschedError | None
        try:
            refusal = None if _try_lock(self._fd) else _refusal(path, self._fd, advice)
        except OSError as error:
            refusal = LockFileError(path, error)
        if refusal is not None:
            os.close(self._fd)
            raise refusal
        since = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        self._holder_text = f"host {socket.gethostname()} pid {os.getpid()} since {since}\n".encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._holder_text, 0)

    @classmethod
    def wait(cls, path: Path, seconds: float, waiting: Callable[[str], None]) -> Self:
        """Take the lock as soon as no other process has it; ``waiting`` is called with the holder every ``seconds``.

        Raises:
            LockFileError: as in the constructor.
        """
        while True:
            try:
                return cls(path)
            except LockHeldError as error:
                waiting(error.holder)
            time.sleep(seconds)

    def check(self) -> None:
        """Check, before a batch of writes, that the file on disk is still the locked one.

        A network file system may have given the lock to another host after a network failure: then either the file
        cannot be read, or that host has written its own name.

        Raises:
            LockLostError: the file is another one, or has another holder.
        """
        try:
            there, locked = self._path.stat(), os.fstat(self._fd)
            words = os.pread(self._fd, 200, 0)
        except OSError:
            raise LockLostError(self._path) from None
        if (there.st_dev, there.st_ino) != (locked.st_dev, locked.st_ino) or words != self._holder_text:
            raise LockLostError(self._path)

    def close(self) -> None:
        """Release the lock and close its file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def holder(path: Path) -> str | None:
    """Return the daemon that has the lock, as it wrote itself ("" for nothing written yet); None for no daemon.

    The call changes nothing and does not block others. The process that has the lock must not call it: POSIX releases
    a process's locks when it closes any descriptor of the file.

    Raises:
        LockFileError: the file cannot be read, or its file system has no locks.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockFileError(path, error) from None
    try:
        kind, _ = _conflicting_lock(file)
        return _holder_text(file) if kind == fcntl.F_WRLCK else None
    except OSError as error:
        raise LockFileError(path, error) from None
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    """Set the file's mode and lock it; returns False where another process has the lock."""
    if stat.S_IMODE(os.fstat(file).st_mode) != _MODE:
        os.fchmod(file, _MODE)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _refusal(path: Path, file: int, advice: str) -> LockHeldError:
    kind, pid = _conflicting_lock(file)
    if kind == fcntl.F_RDLCK:  # daemons take write locks
        other = f"{f'process {pid}' if pid > 0 else 'a process of another host'}, which is no daemon"
        return LockHeldError(f"{other}, keeps {path} locked; end it, or, if no daemon runs, remove that file", other)
    daemon = _holder_text(file)
    message = f"another metasched daemon runs for this cluster ({daemon or 'unknown holder'}, lock {path}); {advice}"
    return LockHeldError(message, daemon)


def _conflicting_lock(file: int) -> tuple[int, int]:
    """Return the kind of the conflicting lock (F_UNLCK: none), and its holder's pid (0 or less: on another host)."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return kind, pid


def _holder_text(file: int) -> str:
    return os.pread(file, 200, 0).decode(errors="replace").strip()
