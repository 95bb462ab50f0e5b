"""Reports: JSON lines for the daemon, written by rank 0. A report that cannot be written never harms the training."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

VERSION = 1
INTERVAL = 1.0  # seconds between `steps` lines

_MOST_BUFFERED = 1 << 20  # bytes that wait for a file system that takes none; older lines are worth less than memory

log = logging.getLogger("trainer_shim")


class Reporter:
    """Appends lines to one incarnation's file; does nothing where `directory` is None."""

    def __init__(self, directory: Path | None, incarnation: int) -> None:
        self._directory = directory
        self._name = f"incarnation-{incarnation}.jsonl"
        self._file: int | None = None
        self._waiting = b""
        self._warned = False

    def emit(self, kind: str, **values: Any) -> None:
        """Write one line of this kind; a number that JSON does not know (a loss of NaN) becomes null."""
        if self._directory is None:
            return
        plain = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
        line = json.dumps({"v": VERSION, "t": time.time(), "kind": kind, **plain})
        if len(self._waiting) < _MOST_BUFFERED:
            self._waiting += line.encode() + b"\n"
        try:
            if self._file is None:
                self._directory.mkdir(mode=0o755, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._directory / self._name, flags, 0o644)
            # What a full disk leaves of a line is continued by the next write, so a line is never broken for good.
            self._waiting = self._waiting[os.write(self._file, self._waiting) :]
        except OSError as error:
            if not self._warned:
                log.warning("reports cannot be written, training goes on without them: %s", error)
            self._warned = True


def process_age() -> float | None:
    """Seconds since this process started, None where /proc does not tell."""
    try:
        # The second field is the command in parentheses, which may itself hold spaces and parentheses.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
