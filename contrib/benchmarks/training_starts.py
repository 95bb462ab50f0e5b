"""Starts training scripts on this host's CPU as torchrun would, and stops them by a signal at a chosen step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
GATE = Path(__file__).with_name("step_gate.py")
POLL_SECONDS = 0.01
TIMEOUT_SECONDS = 180.0
MOMENT_SECONDS = 5.0
STACKS_SECONDS = 10.0
REQUEUE = 85
"""The exit code by which a trainer of the shim asks for another run."""


class StartError(Exception):
    """A start of a script that failed, hung, or did not stop. The message has the end of its output."""


class Process(Protocol):
    """A rank: what `subprocess.Popen` and the processes of the tests' fork server have in common."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""


StartProcess = Callable[[Sequence[str], Mapping[str, str], Path, Path], Process]
"""A function of (arguments of Python, environment, output file, working directory)."""


def start_python(argv: Sequence[str], environ: Mapping[str, str], output: Path, directory: Path) -> Process:
    """Return a new Python process in a session of its own, with `environ` besides this process's environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "METASCHED_"))}
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *argv],
            env={**kept, **environ},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a script: how many ranks it has, and where a signal stops it.

    Attributes:
        size: the number of ranks.
        stop_at: the optimizer step of this start before which the last rank gets the signal, None for no signal.
        number: the signal.
        to_all: whether every rank gets the signal, as from `scancel --signal`, or the last rank alone.
        ended_by: a file whose existence ends all ranks by SIGKILL, as Slurm does at a requeue; where this is given, the
            end of any rank after the signal has the same effect.
    """

    size: int
    stop_at: int | None = None
    number: signal.Signals = signal.SIGUSR2
    to_all: bool = False
    ended_by: Path | None = None


class Training:
    """A directory in which one script is started again and again.

    Args:
        directory: an empty directory, the working directory of every start.
        argv: the script and its arguments.
        environ: variables of every rank.
        pace: seconds between two optimizer steps of a start that a signal stops.
        start_process: the function that starts a rank.
    """

    def __init__(
        self,
        directory: Path,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        pace: float = 0.01,
        start_process: StartProcess = start_python,
    ) -> None:
        self.directory = directory
        self._argv = list(argv)
        self._environ = dict(environ or {})
        self._pace = pace
        self._start_process = start_process
        self._starts = 0

    def run(self, start: Start) -> tuple[list[int], float | None]:
        """Make one start, and wait for its end.

        Returns:
            The exit codes by rank, and the seconds from the signal to the end of the last rank; None without a signal.

        Raises:
            StartError: a rank did not reach the step, or the ranks did not end in time.
        """
        self._starts += 1
        with self._ranks(start) as processes:
            signalled = self._signal(start, processes) if start.stop_at is not None else None
            if start.ended_by is not None:
                self._await_requeue(processes, start.ended_by)
            codes = self._wait(processes)
            return codes, None if signalled is None else time.monotonic() - signalled

    def output(self, rank: int = 0) -> str:
        """Return what a rank of the last start has written."""
        return self._path("output", rank).read_text(errors="replace")

    def describe(self, codes: Sequence[int | None]) -> str:
        """Return the exit codes of the last start, and the end of the output of the first rank that failed."""
        failed = next((rank for rank, code in enumerate(codes) if code not in (0, REQUEUE)), 0)
        lines = self.output(failed).splitlines()[-40:]
        return f"{self._argv[0]}, start {self._starts}: exit codes {list(codes)}\n" + "\n".join(lines)

    def _path(self, kind: str, rank: int | str) -> Path:
        return self.directory / f"{kind}-{self._starts}-{rank}.txt"

    @contextlib.contextmanager
    def _ranks(self, start: Start) -> Iterator[list[Process]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes: list[Process] = []
        try:
            for rank in range(start.size):
                orders = {
                    "halt_at": start.stop_at,
                    "pace": 0.0 if start.stop_at is None else self._pace,
                    "arrived": str(self._path("arrived", rank)),
                    "go": str(self._path("go", "all")),
                }
                environ = self._rank_environ(rank, start.size, port)
                argv = [str(GATE), json.dumps(orders), *self._argv]
                processes.append(self._start_process(argv, environ, self._path("output", rank), self.directory))
            yield processes
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):  # loader workers may have outlived their trainer
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(StartError):
                    self._wait([process], seconds=10.0)

    def _rank_environ(self, rank: int, size: int, port: int) -> dict[str, str]:
        world = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        return {
            **{name: str(value) for name, value in world.items()},
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "contrib" / "integrations"), *_inherited_paths()]),
            "METASCHED_RUN": str(self._starts),
            "METASCHED_EXIT_CODE": str(REQUEUE),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **self._environ,
        }

    def _signal(self, start: Start, processes: Sequence[Process]) -> float:
        """Wait until every rank has halted, send the signal, let the ranks continue, and return the time of the signal.

        Raises:
            StartError: a rank ended before.
        """
        end = time.monotonic() + TIMEOUT_SECONDS
        while not all(self._path("arrived", rank).exists() for rank in range(start.size)):
            codes = [process.poll() for process in processes]
            if any(code is not None for code in codes) or time.monotonic() > end:
                raise StartError(f"step {start.stop_at} was not reached: {self.describe(codes)}")
            time.sleep(POLL_SECONDS)
        signalled = time.monotonic()
        for process in processes if start.to_all else processes[-1:]:
            os.kill(process.pid, start.number)
        self._path("go", "all").touch()
        return signalled

    def _await_requeue(self, processes: Sequence[Process], requeued: Path) -> None:
        """Wait until a rank has ended or has asked for a requeue, give the others a moment, and kill them.

        Raises:
            StartError: neither has happened in time.
        """
        end = time.monotonic() + TIMEOUT_SECONDS
        while not requeued.exists() and all(process.poll() is None for process in processes):
            if time.monotonic() > end:
                raise StartError(f"no rank has ended: {self.describe([])}")
            time.sleep(POLL_SECONDS)
        if not requeued.exists():
            with contextlib.suppress(StartError):  # ranks that save, too
                self._wait(processes, seconds=MOMENT_SECONDS)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _wait(self, processes: Sequence[Process], seconds: float = TIMEOUT_SECONDS) -> list[int]:
        end = time.monotonic() + seconds
        while True:
            codes = [process.poll() for process in processes]
            ended = [code for code in codes if code is not None]
            if len(ended) == len(codes):
                return ended
            if any(code not in (0, REQUEUE) for code in ended):
                end = min(end, time.monotonic() + 20.0)  # the other ranks may fail by themselves, and say why
            if time.monotonic() > end:
                _print_stacks([process for process, code in zip(processes, codes, strict=True) if code is None])
                raise StartError(f"ranks did not end: {self.describe(codes)}")
            time.sleep(POLL_SECONDS)


def _print_stacks(hanging: Sequence[Process]) -> None:
    """End processes that hang; faulthandler writes to their outputs what each of their threads does."""
    for process in hanging:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGABRT)
    end = time.monotonic() + STACKS_SECONDS
    while any(process.poll() is None for process in hanging) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def _inherited_paths() -> list[str]:
    return [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
