"""Pipes to processes, read with a deadline."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterator
from typing import IO

_CHUNK = 65536


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
