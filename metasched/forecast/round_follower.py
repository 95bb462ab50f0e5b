"""The loop of a process beside the daemon that works on each new round: of forecasts, and of shadow policies.

The process reads the daemon's database and writes one file of results, which the daemon reads at its polls. So neither
waits for the other: the process may be slow, hang or be killed, and rounds continue. It has the lowest priority, a
bounded share of a CPU and bounded memory, and ends when its daemon has ended.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import replace_file
from metasched.store import Store

LOOK_SECONDS = 1.0
"""Time between looks for a new round."""
ALIVE_SECONDS = 10.0
"""Time between signs of life."""
MOST_CPU_SECONDS = 600.0
"""CPU time after which the work on a round is cut short."""
MEMORY_BYTES = 4 << 30
LOWEST_PRIORITY = 19

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Task:
    """What a process beside the daemon is to do, as the daemon tells it on the command line.

    Attributes:
        database: the path of the daemon's database.
        results: the path of the file of results.
        pause_seconds: least time between two works.
        cpu_share: most part of one CPU in the mean.
        log_format: ``console`` or ``json``.
        options: further options of the work, JSON-compatible.
    """

    database: str
    results: str
    pause_seconds: float
    cpu_share: float
    log_format: str
    options: Mapping[str, Any]


def alive_path(results: Path) -> Path:
    """The path of the file whose time of change is the process's latest sign of life."""
    return results.with_suffix(".alive")


class Budget:
    """The time of the work on one round, with signs of life; the process ends with its daemon."""

    def __init__(self, results: Path) -> None:
        self._alive = alive_path(results)
        self._parent = os.getppid()
        self._alive_at = -ALIVE_SECONDS
        self._begun = 0.0

    def begin(self) -> None:
        """Begin the work on a round."""
        self._begun = time.process_time()

    @property
    def used(self) -> float:
        """CPU seconds since the beginning of the work."""
        return time.process_time() - self._begun

    def proceed(self) -> bool:
        """Whether there is time left for the work on this round."""
        if os.getppid() != self._parent:
            sys.exit(0)
        if time.monotonic() - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = time.monotonic()
            try:
                self._alive.touch()
            except OSError as error:
                log.warning("sign_of_life_not_written", path=str(self._alive), error=error.strerror)
        return self.used < MOST_CPU_SECONDS


class RoundFollower:
    """Does its work on the latest round, whenever there is a new one and its share of the CPU allows.

    Args:
        task: what to do.
        work: makes the content of the file of results from the database.
        on_problem: makes that content from the problem, in words, that kept the work from its end.
    """

    def __init__(
        self, task: Task, work: Callable[[Store, Budget], bytes], on_problem: Callable[[int, str], bytes]
    ) -> None:
        self._task = task
        self._work = work
        self._on_problem = on_problem
        self._results = Path(task.results)
        self._budget = Budget(self._results)
        self._round = 0
        self._problem = ""

    def run(self) -> None:
        """Follow the rounds until the daemon ends."""
        due = 0.0
        while self._budget.proceed():
            begun = time.monotonic()
            if begun >= due and self.step():
                rest = self._budget.used / self._task.cpu_share
                due = begun + max(self._task.pause_seconds, rest)
            self._budget.begin()
            time.sleep(LOOK_SECONDS)

    def step(self) -> bool:
        """Work on the latest round; returns whether there was one that is new."""
        self._budget.begin()
        number = self._round
        try:
            with Store.open(Path(self._task.database), read_only=True) as store:
                last = store.round_to_follow()
                if last is None or last.round == self._round:
                    return False
                number = last.round
                content, problem = self._work(store, self._budget), ""
        except MetaschedError as error:
            content, problem = self._on_problem(number, str(error)), str(error)
        except Exception as error:  # a policy may be third-party code
            problem = f"{type(error).__name__}: {error}"
            content = self._on_problem(number, problem)
            log.exception("side_work_failed", results=self._results.name, round=number)
        if problem and problem != self._problem:
            log.warning("side_work_problem", results=self._results.name, round=number, error=problem)
        self._round, self._problem = number, problem
        self._write(content)
        return True

    def _write(self, content: bytes) -> None:
        try:
            replace_file(self._results, content)
        except OSError as error:
            log.warning("side_work_not_written", path=str(self._results), error=error.strerror, effect="it is lost")


def run_follower(
    work_of: Callable[[Task], Callable[[Store, Budget], bytes]], on_problem: Callable[[int, str], bytes]
) -> None:
    """Run a process beside the daemon; its task is the first argument, as JSON."""
    task = Task(**json.loads(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to all processes; the daemon ends this one
    os.nice(LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    renderer = (
        structlog.processors.JSONRenderer()
        if task.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    RoundFollower(task, work_of(task), on_problem).run()
