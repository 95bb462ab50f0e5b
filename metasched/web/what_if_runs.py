"""What-ifs that admins start on the web page: one at a time, each in a process of its own, with its result kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from metasched.core.errors import MetaschedError
from metasched.forecast.what_if_result import WhatIfResult, WhatIfTask, read_result, write_result

KEPT = 20
"""Results that are kept, the latest."""
MOST_SECONDS = 3600.0
"""Time after which a process is killed."""
_MOST_BYTES = 32 << 20
_FILE = re.compile(r"what-if-(\d{1,11})\.json")
_SHOWN_ERROR = 300
_CPU_LIMIT, _KILLED = -24, -9  # SIGXCPU, SIGKILL

log = structlog.get_logger()


class WhatIfError(MetaschedError):
    """A what-if cannot be started; the message may be shown to the admin who asked."""


@dataclass(frozen=True, slots=True)
class RunningWhatIf:
    """The what-if that runs: who asked for which policies, and when, in unix seconds."""

    asked_by: str
    asked: tuple[str, ...]
    started: float


class WhatIfRuns:
    """Starts what-ifs, and reads their results. Safe for threads.

    Args:
        directory: for the results; None where nothing can be started.
        database: the daemon's database, which the process opens to read.
        simulation: arguments of ``metasched.simulator.records.Settings``.
        jobs: most live jobs that are simulated.
    """

    def __init__(self, directory: Path | None, database: Path, simulation: Mapping[str, Any], jobs: int) -> None:
        self._directory = directory
        self._database = database
        self._simulation = simulation
        self._jobs = jobs
        self._lock = threading.Lock()
        self._running: RunningWhatIf | None = None

    @property
    def running(self) -> RunningWhatIf | None:
        """The what-if that runs now; None for none."""
        return self._running

    def start(self, policies: Sequence[str], asked_by: str) -> int:
        """Start a what-if, and return its number.

        Raises:
            WhatIfError: one runs already, or the process cannot be started or keep its result.
        """
        with self._lock:
            if self._running is not None:
                raise WhatIfError(f"A what-if of {self._running.asked_by} runs already. Try again when it has ended.")
            path = self._next_path()
            number = _number(path)
            task = WhatIfTask(
                str(self._database),
                str(path),
                tuple(policies),
                asked_by,
                time.time(),
                dict(self._simulation),
                self._jobs,
            )
            process = _start(task)
            self._running = RunningWhatIf(asked_by, task.policies, task.started)
        log.info("what_if_started", user=asked_by, policies=list(policies), pid=process.pid)
        threading.Thread(target=self._wait, args=(process, task), name="what-if", daemon=True).start()
        return number

    def kept(self) -> list[int]:
        """The numbers of the results that are kept, the latest first."""
        return self._present()[:KEPT]

    def result(self, number: int) -> WhatIfResult | None:
        """A kept result; None where there is none, or where it cannot be read."""
        if self._directory is None:
            return None
        path = self._directory / f"what-if-{number}.json"
        try:
            return read_result(path) if path.stat().st_size <= _MOST_BYTES else None
        except (OSError, MetaschedError) as error:
            log.warning("what_if_unreadable", path=str(path), error=str(error))
            return None

    def _present(self) -> list[int]:
        if self._directory is None:
            return []
        try:
            names = os.listdir(self._directory)  # noqa: PTH208  names alone
        except OSError:
            return []
        return sorted((int(found[1]) for name in names if (found := _FILE.fullmatch(name))), reverse=True)

    def _next_path(self) -> Path:
        """The file of a new result; files beyond ``KEPT`` are removed."""
        if self._directory is None:
            raise WhatIfError("What-ifs cannot be started: the page has no directory for their results.")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            present = self._present()
            for number in present[KEPT - 1 :]:
                (self._directory / f"what-if-{number}.json").unlink(missing_ok=True)
            path = self._directory / f"what-if-{max([0, *present]) + 1}.json"
            with tempfile.TemporaryFile(dir=self._directory):  # fails now rather than after the simulation
                pass
        except OSError as error:
            log.warning("what_if_not_started", path=str(self._directory), error=error.strerror)
            raise WhatIfError(
                f"The result could not be kept: {error.strerror}. Let the page's user write to [web] state."
            ) from None
        return path

    def _wait(self, process: subprocess.Popen[bytes], task: WhatIfTask) -> None:
        """Wait for the end of a process; one that has crashed has a result that says so."""
        try:
            _, said = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        try:
            if process.returncode != 0:
                problem = _crash(process.returncode, said.decode(errors="replace"))
                log.error("what_if_crashed", code=process.returncode, error=said[-4000:].decode(errors="replace"))
                given = task.asked_by, task.policies, task.started, time.time()
                write_result(Path(task.result), WhatIfResult(*given, problem=problem))
            else:
                log.info("what_if_ended", seconds=round(time.time() - task.started, 1))
        except OSError as error:
            log.warning("what_if_not_kept", path=task.result, error=error.strerror)
        finally:
            self._running = None


def _start(task: WhatIfTask) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "metasched.forecast.what_if_run", json.dumps(asdict(task))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        return subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise WhatIfError(f"The process cannot be started: {error.strerror}.") from None


def _crash(code: int, said: str) -> str:
    """Why a process ended without a result, in words."""
    if code == _CPU_LIMIT:
        return "Its process took more CPU time than a what-if may take. Compare fewer policies at once."
    if code == _KILLED:
        return "Its process was killed: it took too long, or the host ran out of memory."
    last = said.strip().rpartition("\n")[2][:_SHOWN_ERROR]
    ending = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"Its process crashed {ending}{f': {last}' if last else ''}."


def _number(path: Path) -> int:
    found = _FILE.fullmatch(path.name)
    return int(found[1]) if found else 0
