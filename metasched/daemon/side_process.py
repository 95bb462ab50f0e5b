"""A process beside the daemon, such as that of forecasts: started, supervised and ended by the daemon.

The daemon never waits for the process: results lie in a file that polls look at. A process that has ended is started
again after a pause, which grows while it keeps ending; one without a sign of life is killed first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import structlog

from metasched.core.child_processes import stop
from metasched.forecast.round_follower import Task, alive_path

SILENT_SECONDS = 900.0
"""A process without a sign of life for this time hangs. Its priority is the lowest: on a busy host it may be slow."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0
END_SECONDS = 5.0
MOST_BYTES = 64 << 20
"""The most bytes of a file of results that are read."""

log = structlog.get_logger()


class SideProcess:
    """Keeps one process running.

    Args:
        module: the module that the process runs.
        task: what it is to do.
    """

    def __init__(self, module: str, task: Task) -> None:
        self._module = module
        self._task = task
        self._results = Path(task.results)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._pause = FIRST_PAUSE
        self._due = 0.0
        self._seen: tuple[int, int, int] | None = self._version()
        self.problem = ""

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._process is None else self._process.pid

    def tend(self) -> None:
        """Start the process, or start it again where it has ended or hangs; returns at once."""
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._note_end(f"its process has ended ({_ending(code)})", now)
            elif self._silent_seconds(now) > SILENT_SECONDS:
                self._process.kill()
                self._note_end(f"its process gave no sign of life for {SILENT_SECONDS:.0f} s and was killed", now)
        if self._process is None and now >= self._due:
            self._start(now)

    def collect(self) -> bytes | None:
        """Return the content of the file of results, where it has changed since the last call."""
        version = self._version()
        if version is None or version == self._seen:
            return None
        self._seen = version
        try:
            with self._results.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            log.warning("side_work_not_read", path=str(self._results), error=error.strerror)
            return None
        if len(content) > MOST_BYTES:
            log.warning("side_work_not_read", path=str(self._results), error=f"more than {MOST_BYTES} bytes")
            return None
        self._pause, self.problem = FIRST_PAUSE, ""
        return content

    def close(self) -> None:
        """End the process; it loses nothing that the daemon has read."""
        process, self._process = self._process, None
        if process is not None:
            stop(process, END_SECONDS)

    def _start(self, now: float) -> None:
        argv = [sys.executable, "-m", self._module, json.dumps(asdict(self._task))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        except OSError as error:
            self._note_end(f"its process cannot be started ({error.strerror})", now)
        else:
            self._started_at = now

    def _note_end(self, problem: str, now: float) -> None:
        self._process = None
        self.problem = f"{problem}; it is started again in {self._pause:.0f} s"
        log.warning("side_process_ended", module=self._module, error=problem, again_in_seconds=self._pause)
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _silent_seconds(self, now: float) -> float:
        try:
            since = time.time() - alive_path(self._results).stat().st_mtime
        except OSError:
            since = SILENT_SECONDS + 1.0
        return min(since, now - self._started_at)

    def _version(self) -> tuple[int, int, int] | None:
        """Return what changes when the file of results is replaced; None where there is none."""
        try:
            found = self._results.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
