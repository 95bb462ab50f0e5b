"""Pipes to processes that answer within a time."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterator
from typing import IO

_CHUNK = 65536


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    """The pipe; raises EOFError where there is none."""
    if pipe is None:
        raise EOFError("closed")
    return pipe


def chunks(pipe: IO[bytes] | None, deadline: float) -> Iterator[bytes]:
    """What comes through a pipe, as it comes, until the reader has enough.

    Args:
        pipe: to read from.
        deadline: on the monotonic clock, in seconds.

    Raises:
        TimeoutError: nothing more came in time.
        EOFError: its other end was closed.
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
