"""Reports: JSON lines for the daemon, written by rank 0. A report that cannot be written never harms the training."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

VERSION = 1
REPORT_SECONDS = 1.0  # seconds between `steps` lines

# Seconds to wait for the file system: for a line that further lines follow, and for the last line of a process.
_WRITE_SECONDS = 0.1
_FINAL_WRITE_SECONDS = 5.0
_FINAL_KINDS = {"stop", "end"}
# Bytes that wait for a file system that does not respond; further lines are dropped to save memory.
_MAX_BUFFERED_BYTES = 1 << 20

log = logging.getLogger("trainer_shim")


class ReportWriter:
    """Appends lines to the report file of one generation, in a thread.

    A line is in the file when `emit` returns, so that it survives the end of the process, unless the file system does
    not respond in time: then training continues.

    Args:
        directory: the directory of the job's report files, None to write no reports.
        generation: the generation of this trainer.
    """

    def __init__(self, directory: Path | None, generation: int) -> None:
        self._directory = directory
        self._name = f"incarnation-{generation}.jsonl"
        self._file: int | None = None
        self._warned = False
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()
        self._pending = b""
        self._lines = 0  # lines that were emitted
        self._attempted = 0  # lines that the thread has tried to write
        self._stalled = False

    def emit(self, kind: str, **values: Any) -> None:
        """Write one line of this kind; a number that is not finite, which JSON lacks (a loss of NaN), becomes null."""
        if self._directory is None:
            return
        plain = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
        line = json.dumps({"v": VERSION, "t": time.time(), "kind": kind, **plain}).encode() + b"\n"
        with self._turn:
            if len(self._pending) < _MAX_BUFFERED_BYTES:
                self._pending += line
            self._lines += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(self._directory,), name="trainer_shim reports", daemon=True
                )
                self._thread.start()
            self._turn.notify_all()
            timeout = _FINAL_WRITE_SECONDS if kind in _FINAL_KINDS else 0 if self._stalled else _WRITE_SECONDS
            self._stalled = not self._turn.wait_for(lambda: self._attempted == self._lines, timeout)

    def _work(self, directory: Path) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._attempted < self._lines)
                lines, text, self._pending = self._lines, self._pending, b""
            unwritten = self._write_some(directory, text)
            with self._turn:
                # The next write continues a line that a full disk has cut, so no line stays broken.
                self._pending = unwritten + self._pending
                self._attempted = lines
                self._turn.notify_all()

    def _write_some(self, directory: Path, text: bytes) -> bytes:
        """Write as many bytes as possible, and return the rest."""
        try:
            if self._file is None:
                _make_directory(directory)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(directory / self._name, flags, 0o644)
                os.fchmod(self._file, 0o644)  # independent of the user's umask: the directory's mode restricts access
            return text[os.write(self._file, text) :]
        except OSError as error:
            if not self._warned:
                log.warning("reports cannot be written, training continues without them: %s", error)
            self._warned = True
            return text


def _make_directory(directory: Path) -> None:
    """Make the directory of a job's reports, readable for its owner and for the daemon.

    The parent is setgid, so the directory inherits the daemon's group. Where a file system does not support that, all
    users may read, because the daemon must.
    """
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EACCES, "made by another user; the daemon moves it aside", str(directory))
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        return  # opened by an earlier trainer, or not a directory
    parent = directory.parent.stat()
    has_group = parent.st_mode & stat.S_ISGID and found.st_gid == parent.st_gid
    directory.chmod(0o750 if has_group else 0o755)


def process_age() -> float | None:
    """Return the seconds since this process started, None where /proc cannot be read."""
    try:
        # The second field is the command in parentheses, which may contain spaces and parentheses.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
