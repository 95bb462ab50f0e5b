"""Starts a script's ranks on this host's CPU, waits for their end, and leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trainer_shim
from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoints
from trainer_shim.rehearse.errors import RehearsalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.rehearse.plan import Start

STOPPED = 85

_GRACE = 5.0  # seconds that the other ranks have to fail by themselves, and show why
_TAIL = 20  # lines of output shown of a script that failed
_POLL = 0.02  # seconds between two checks of the exit codes
_ROOT = Path(trainer_shim.__file__).resolve().parent.parent
# The driver may be killed and must leave no trainers behind: Linux kills them at its end (a trainer that starts later
# ends itself). Torch is imported before the shim, as in most scripts, so the exit hooks of multiprocessing run last.
_BOOT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv.pop(1)):
    os._exit(1)
import torch
sys.path[0] = sys.argv.pop(1)
from trainer_shim.rehearse.probe import main
main()
"""


class RunSetup(NamedTuple):
    """The values that all starts of one run share.

    Attributes:
        directory: the directory of the checkpoints, records and outputs.
        script: the script.
        arguments: the arguments of the script.
        cwd: the directory in which the script runs.
        timeout: seconds for each start.
    """

    directory: Path
    script: Path
    arguments: list[str]
    cwd: Path
    timeout: float

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory, which replaces the one that the script names."""
        return self.directory / "checkpoints"

    def records(self, number: int, rank: int) -> Path:
        """Return the path of the records of a rank in start `number`, from 1."""
        return self.directory / f"start-{number}-rank-{rank}.jsonl"

    def output(self, number: int, rank: int) -> Path:
        """Return the path of the output of a rank in start `number`, from 1."""
        return self.directory / f"start-{number}-rank-{rank}.txt"


def run_start(setup: RunSetup, number: int, start: Start, plain_steps: int | None = None) -> bool:
    """Make start `number` of the script, wait for its end, and return whether it ended before its event.

    Args:
        setup: the values that all starts share.
        number: the start, from 1.
        start: its world size and event.
        plain_steps: for a script without the shim, the steps after which it is ended; None for one with the shim.

    Raises:
        RehearsalError: the script failed, hung, or did not stop at a stop request.
    """
    with _started(setup, number, start, plain_steps) as processes:
        codes, first = _wait(setup, start, processes)
    event = start.event
    if event and event.kill and codes[event.rank] == -signal.SIGKILL:
        return False
    if event and not event.kill and set(codes) == {STOPPED}:
        return False
    if set(codes) == {0}:
        return True
    if None in codes:
        rank = first if first is not None else codes.index(None)
        failure = f"did not end within {setup.timeout:g} s" if first is None else _describe_end(codes[rank])
    else:
        rank = first if first is not None else next(rank for rank, code in enumerate(codes) if code)
        failure = _describe_end(codes[rank])
    lines = setup.output(number, rank).read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
    output = "\n".join(f"    {line}" for line in lines) or "    (no output)"
    raise RehearsalError(f"the script {failure}: start {number}, rank {rank} of {start.size}\n{output}")


def _describe_end(code: int | None) -> str:
    if code is None:
        return "did not end"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _wait(
    setup: RunSetup, start: Start, processes: list[subprocess.Popen[bytes]]
) -> tuple[list[int | None], int | None]:
    """Return the exit codes by rank, None for a rank that still runs, and the first rank that failed."""
    first, end = None, time.monotonic() + setup.timeout
    while True:
        codes = [process.poll() for process in processes]
        if first is None:
            first = next((rank for rank, code in enumerate(codes) if code not in (None, 0, STOPPED)), None)
            if first is not None:
                end = min(end, time.monotonic() + _GRACE)
                if start.event and start.event.kill and first == start.event.rank:
                    return codes, first  # the other ranks are killed, too, as by srun --kill-on-bad-exit
        if None not in codes or time.monotonic() > end:
            return codes, first
        time.sleep(_POLL)


@contextlib.contextmanager
def _started(
    setup: RunSetup, number: int, start: Start, plain_steps: int | None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Context manager: the processes by rank, each in a session of its own; the sessions are killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    event = start.event
    # A start from the beginning has the seed of the first start, so that random initial weights make no difference. A
    # start that resumes has a seed of its own, as in reality, so that unsaved random values are discovered.
    seed = number if ScriptCheckpoints(setup.checkpoints).latest() else 1
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(start.size):
            is_hit = event is not None and event.rank == rank
            orders = {
                "records": str(setup.records(number, rank)),
                "checkpoints": str(setup.checkpoints),
                "seed": seed * 1000 + rank,
                "stop_at": event.step if event and is_hit and not event.kill else None,
                "plain_steps": plain_steps,
                "kill_at": event.step if event and is_hit and event.kill else None,
            }
            boot = [sys.executable, "-c", _BOOT, str(os.getpid()), str(_ROOT)]
            command = [*boot, json.dumps(orders), str(setup.script), *setup.arguments]
            with setup.output(number, rank).open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command,
                        env=_environment(setup, number, seed, (rank, start.size, port)),
                        cwd=setup.cwd,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # loader workers may have outlived their trainer
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(setup: RunSetup, run: int, seed: int, world: tuple[int, int, int]) -> dict[str, str]:
    """Return torchrun's variables for a rank on a CPU, with the loopback interface only and one thread."""
    rank, size, port = world
    foreign = ("METASCHED_", "SLURM_", "TORCHELASTIC_", "PYTHONSAFEPATH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    if "PYTHONPATH" in environ:  # the script may run in another directory
        paths = environ["PYTHONPATH"].split(os.pathsep)
        environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths if path)
    return {
        **environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "METASCHED_RUN": str(run),
        "METASCHED_EXIT_CODE": str(STOPPED),
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TMPDIR": str(setup.directory / "tmp"),
        "PYTHONHASHSEED": str(seed),
        "PYTHONUNBUFFERED": "1",
    }
