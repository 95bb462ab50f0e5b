"""The daemon's side of the mailbox: lease.json, read strictly and cheaply."""

from __future__ import annotations

import json
import logging
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_shim.errors import LeaseError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1

log = logging.getLogger("trainer_shim")


class Lease(NamedTuple):
    """What a trainer needs of a lease: its run, and a stop request's run and instants, if any.

    `requested` and `deadline` are unix seconds of the daemon's clock.
    """

    run: int
    stop_run: int | None
    requested: float | None
    deadline: float | None


def read_lease(path: Path) -> Lease:
    """Read lease.json.

    Raises:
        OSError: it cannot be read.
        LeaseError: it is not what the protocol says; the message names the file and the key.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise LeaseError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise LeaseError(f"{path}: key 'format' must be {FORMAT}")
    stop = content.get("stop")
    if stop is not None and not isinstance(stop, dict):
        raise LeaseError(f"{path}: key 'stop' must be null or an object")
    return Lease(
        run=_read_run(path, content),
        stop_run=_read_run(path, stop) if stop else None,
        requested=_read_instant(path, stop, "requested") if stop else None,
        deadline=_read_instant(path, stop, "deadline") if stop else None,
    )


def _read_run(path: Path, content: dict[str, Any]) -> int:
    run = content.get("run")
    if type(run) is not int or run < 1:
        raise LeaseError(f"{path}: key 'run' is {run!r}: it must be a whole number from 1 on")
    return run


def _read_instant(path: Path, stop: dict[str, Any], key: str) -> float | None:
    instant: Any = stop.get(key)
    if instant is None:
        return None
    # The bounds come before the conversion: an integer may lie beyond the range of a float.
    if type(instant) not in (int, float) or not -1e300 < instant < 1e300:  # noqa: PLR2004  no clock shows that
        raise LeaseError(f"{path}: key {key!r} is {instant!r}: it must be unix seconds")
    return float(instant)


class LeaseWatch:
    """Says why a lease asks this run to stop. A lease that cannot be read asks for nothing: the signal still comes."""

    def __init__(self, path: Path, run: int) -> None:
        self._path = path
        self._run = run
        self._last_status: tuple[int, int, int] | None = None
        self._cause: str | None = None
        self._last_clear = time.monotonic()  # when no stop was asked of this run yet, as far as is known
        self._requested = self._noticed = 0.0  # when it was, and when that was found here, on the same clock
        self._grace: float | None = None
        self._warned = False

    def stop_cause(self) -> str | None:
        """Return `superseded`, `mailbox`, or None; costs one stat when the file has not changed."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._last_status:
                self._cause = self._stop_cause(read_lease(self._path))
                self._last_status = seen
            if self._cause is None:
                self._last_clear = time.monotonic()
        except (OSError, LeaseError) as error:
            if not self._warned:
                log.warning("the lease cannot be read, going on without it: %s", error)
            self._warned = True
        return self._cause

    def seconds_to_deadline(self, first_signal: float | None) -> float:
        """Until the deadline of the stop that was asked of this run, infinite where there is none.

        The grace is counted on our own clock, because the daemon's may differ from it by more than that: from the
        signal that goes with the request (`first_signal`, a monotonic instant), or from when the request was written,
        where that was found before a signal came.
        """
        if self._grace is None:
            return math.inf
        asked = self._requested if first_signal is None or first_signal > self._noticed else first_signal
        return self._grace - (time.monotonic() - asked)

    def _stop_cause(self, lease: Lease) -> str | None:
        if lease.run > self._run:
            return "superseded"
        if lease.stop_run != self._run:
            return None
        if self._grace is None and lease.requested is not None and lease.deadline is not None:
            self._grace = lease.deadline - lease.requested
            self._noticed = time.monotonic()
            # How old the request is depends on both clocks; it is no older than our last look.
            self._requested = max(self._noticed - max(time.time() - lease.requested, 0.0), self._last_clear)
        return "mailbox"
