"""Child processes on pipes: started, read with a deadline, and ended."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from metasched.slurm.errors import SlurmUnavailableError

_CHUNK = 65536


def start(
    argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process with a pipe to its standard input; ``stdout`` and ``stderr`` are as in ``subprocess.Popen``.

    Raises:
        SlurmUnavailableError: the process cannot be started.
    """
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            bufsize=0,
            process_group=0,  # Ctrl-C at the terminal does not reach the process
        )
    except OSError as error:
        raise SlurmUnavailableError(f"cannot start {argv[0]}: {error}") from error


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and close its pipes."""
    process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return the pipe of a process; raises EOFError where the process has none."""
    if pipe is None:
        raise EOFError("closed")
    return pipe


def chunks(pipe: IO[bytes] | None, deadline: float) -> Iterator[bytes]:
    """Yield the bytes of a pipe in chunks as they arrive, until the caller stops.

    Args:
        pipe: the pipe to read from.
        deadline: seconds on the monotonic clock.

    Raises:
        TimeoutError: nothing more arrived before the deadline.
        EOFError: the other end was closed.
    """
    source = stream(pipe)
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimeoutError
            chunk = os.read(source.fileno(), _CHUNK)
            if not chunk:
                raise EOFError
            yield chunk
