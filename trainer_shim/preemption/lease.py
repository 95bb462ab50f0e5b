"""The lease (lease.json), which the daemon writes: its parser, and a watch that notices requests in it."""

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
THETA_LENGTH = 7  # alpha and beta of the gradient, of one node, and of several nodes; gamma

log = logging.getLogger("trainer_shim")


class LeaseBatch(NamedTuple):
    """The key `batch` of a lease: the daemon's word that the job's batch adapts, and its plan.

    Attributes:
        plan: the number of the plan; 0 where the daemon has none, so that the trainer's own plan holds.
        per_gpu: the samples that a GPU processes at once, None without a plan.
        accumulation: the passes of an optimizer step, None without a plan.
        theta: the parameters of the iteration time on the job's GPUs, None while they are not known.
        several_nodes: whether the job's GPUs are on more than one node.
    """

    plan: int
    per_gpu: int | None
    accumulation: int | None
    theta: tuple[float, ...] | None
    several_nodes: bool


class Request(NamedTuple):
    """A request of a lease to one run.

    Attributes:
        run: the run.
        requested, deadline: unix seconds of the daemon's clock, None where the lease does not tell.
    """

    run: int
    requested: float | None
    deadline: float | None


class Lease(NamedTuple):
    """The fields of a lease that a trainer needs.

    Attributes:
        run: the number of the job's present run, from 1.
        stop: the request to stop until the next run, None without one.
        finish: the request to end the training for good, None without one.
        content: the whole lease, of which the keys above are checked.
    """

    run: int
    stop: Request | None
    finish: Request | None
    content: dict[str, Any]

    def batch(self, path: Path) -> LeaseBatch | None:
        """Return the key `batch`, None where the job's batch is fixed.

        Raises:
            LeaseError: the key violates the protocol; the message names the file, which is `path`, and the key.
        """
        batch = self.content.get("batch")
        if batch is None:
            return None
        if not isinstance(batch, dict):
            raise LeaseError(f"{path}: key 'batch' must be null or an object")
        plan = _read_count(path, batch, "plan", 0)
        nodes = self.content.get("nodes")
        return LeaseBatch(
            plan=plan,
            per_gpu=_read_count(path, batch, "per_gpu", 1) if plan else None,
            accumulation=_read_count(path, batch, "accumulation", 1) if plan else None,
            theta=_read_theta(path, batch.get("theta")),
            several_nodes=isinstance(nodes, dict) and len(nodes) > 1,
        )


def read_lease(path: Path) -> Lease:
    """Read lease.json.

    Raises:
        OSError: the file cannot be read.
        LeaseError: the content violates the protocol; the message names the file and the key.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise LeaseError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise LeaseError(f"{path}: key 'format' must be {FORMAT}")
    return Lease(
        run=_read_run(path, content),
        stop=_read_request(path, content, "stop"),
        finish=_read_request(path, content, "finish"),
        content=content,
    )


def _read_request(path: Path, content: dict[str, Any], key: str) -> Request | None:
    request = content.get(key)
    if request is not None and not isinstance(request, dict):
        raise LeaseError(f"{path}: key {key!r} must be null or an object")
    if not request:
        return None
    instants = [_read_instant(path, request, name) for name in ("requested", "deadline")]
    return Request(_read_run(path, request), *instants)


def _read_run(path: Path, content: dict[str, Any]) -> int:
    run = content.get("run")
    if type(run) is not int or run < 1:
        raise LeaseError(f"{path}: key 'run' is {run!r}: it must be a whole number from 1 on")
    return run


def _read_count(path: Path, batch: dict[str, Any], key: str, least: int) -> int:
    count = batch.get(key)
    if type(count) is not int or count < least:
        raise LeaseError(f"{path}: key 'batch.{key}' is {count!r}: it must be a whole number from {least} on")
    return count


def _read_theta(path: Path, theta: Any) -> tuple[float, ...] | None:
    if theta is None:
        return None
    numbers = theta if isinstance(theta, list) else []
    # The bounds come before the conversion: an integer may lie beyond the range of a float.
    fits = all(type(each) in (int, float) and 0 <= each < 1e300 for each in numbers)  # noqa: PLR2004
    if not fits or len(numbers) != THETA_LENGTH or not 1 <= numbers[-1] <= 10:  # noqa: PLR2004  the range of gamma
        raise LeaseError(
            f"{path}: key 'batch.theta' is {theta!r}: it must be {THETA_LENGTH} numbers from 0 on, of which the last, "
            "gamma, is from 1 to 10"
        )
    return tuple(map(float, numbers))


def _read_instant(path: Path, request: dict[str, Any], key: str) -> float | None:
    instant: Any = request.get(key)
    if instant is None:
        return None
    # The bounds come before the conversion: an integer may lie beyond the range of a float.
    if type(instant) not in (int, float) or not -1e300 < instant < 1e300:  # noqa: PLR2004  beyond every clock
        raise LeaseError(f"{path}: key {key!r} is {instant!r}: it must be unix seconds")
    return float(instant)


class LeaseWatch:
    """Watches a lease for requests to this run. An unreadable lease requests nothing: the signal still arrives.

    Args:
        path: the lease.
        run: the number of this run, from 1.

    Attributes:
        batch: the key `batch` of the last readable lease, None where the job's batch is fixed.
    """

    def __init__(self, path: Path, run: int) -> None:
        self.batch: LeaseBatch | None = None
        self._path = path
        self._run = run
        self._last_status: tuple[int, int, int] | None = None
        self._cause: str | None = None
        # Instants in seconds on the monotonic clock.
        self._last_clear = time.monotonic()  # the last reading without a request
        self._requested = self._noticed = 0.0  # the first request, and the reading that noticed it
        self._grace: float | None = None
        self._warned = self._batch_warned = False

    def stop_cause(self) -> str | None:
        """Return `superseded`, `finish`, `mailbox`, or None for no stop; costs one stat when the file is the same."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._last_status:
                lease = read_lease(self._path)
                self._cause = self._stop_cause(lease)
                self._read_batch(lease)
                self._last_status = seen
            if self._cause is None:
                self._last_clear = time.monotonic()
        except (OSError, LeaseError) as error:
            if not self._warned:
                log.warning("the lease cannot be read, training continues without it: %s", error)
            self._warned = True
        return self._cause

    def seconds_to_deadline(self, first_signal: float | None) -> float:
        """Return the seconds to the deadline of the first request, infinity without one.

        The grace is counted on this host's clock, because the daemon's clock may differ by more than the grace. It
        begins with the signal that accompanies the request, or with the request itself where no signal came before.

        Args:
            first_signal: the first stop signal in seconds on the monotonic clock, None before one.
        """
        if self._grace is None:
            return math.inf
        begin = self._requested if first_signal is None or first_signal > self._noticed else first_signal
        return self._grace - (time.monotonic() - begin)

    def _read_batch(self, lease: Lease) -> None:
        """Read the batch plan; the last one stays where the new one violates the protocol: stops must still arrive."""
        try:
            self.batch = lease.batch(self._path)
        except LeaseError as error:
            if not self._batch_warned:
                log.warning("the lease's batch plan cannot be used, training continues with the last one: %s", error)
            self._batch_warned = True

    def _stop_cause(self, lease: Lease) -> str | None:
        if lease.run > self._run:
            return "superseded"
        for cause, request in (("finish", lease.finish), ("mailbox", lease.stop)):
            if request is not None and request.run == self._run:
                self._start_grace(request)
                return cause
        return None

    def _start_grace(self, request: Request) -> None:
        if self._grace is None and request.requested is not None and request.deadline is not None:
            self._grace = request.deadline - request.requested
            self._noticed = time.monotonic()
            # The age of the request depends on both clocks. The request is not older than the last reading without it.
            self._requested = max(self._noticed - max(time.time() - request.requested, 0.0), self._last_clear)
