"""Free TCP ports of the loopback interface, reserved until the daemons listen on them."""

import random
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from metasched.devcluster.errors import DevClusterError

# Below the range of outgoing connections, which could otherwise occupy a chosen port.
_LOWEST, _HIGHEST = 10_000, 32_000
_TRIES = 200


class Ports:
    """Successive free ports (`numbers`), reserved while the context is open."""

    def __init__(self, count: int) -> None:
        for _ in range(_TRIES):
            first = random.randrange(_LOWEST, _HIGHEST - count)  # noqa: S311  no secret
            with ExitStack() as stack:
                try:
                    for port in range(first, first + count):
                        holder = stack.enter_context(socket.socket())
                        holder.bind(("127.0.0.1", port))
                        # Bound exclusively against other launchers; shared from now on, so a daemon may listen.
                        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                except OSError:
                    continue
                self.numbers = range(first, first + count)
                self._held = stack.pop_all()
                return
        raise DevClusterError(f"no {count} successive free ports between {_LOWEST} and {_HIGHEST}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
