"""Computations of a policy that take too long for a round, done by another process while rounds continue.

The result is an input of the round in which it arrives (``Snapshot.precomputed``), and is stored with that round. So
rounds stay pure and can be replayed, however long the computation took.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
import signal
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any

import structlog

from metasched.core.errors import MetaschedError
from metasched.core.model import Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.scheduling.engine import precompute

LIMIT_SECONDS = 3600.0
"""A computation that takes longer is abandoned: the cluster has changed too much since it began."""
END_SECONDS = 5.0
"""Time for the process to end after SIGTERM, and again after SIGKILL."""
BEGUN_AGAIN = "the computation begins again after the next round"

log = structlog.get_logger()


class NotPortableError(MetaschedError):
    """A policy cannot be sent to the process that computes for it."""

    def __init__(self, policy: Policy, error: Exception) -> None:
        super().__init__(
            f"policy {policy.name!r} solves in a background process and cannot be sent there "
            f"({type(error).__name__}: {error}): let its instance hold nothing but its parameters, and define its "
            "classes at the top of a module"
        )


def check_portable(policy: Policy) -> None:
    """Check that a policy can be sent to another process.

    Raises:
        NotPortableError: it cannot be pickled.
    """
    try:
        pickle.loads(_pickled(policy))  # noqa: S301  pickled on this line
    except Exception as error:  # a policy may be third-party code
        raise NotPortableError(policy, error) from error


class BackgroundSolver:
    """Runs one computation of a policy at a time; starts the process for the first one."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._busy_since: float | None = None

    def begin(self, snapshot: Snapshot, policy: Policy, state: PolicyState) -> bool:
        """Begin the policy's computation for a round, unless an earlier one is still running.

        Args:
            snapshot: the input of the round, or a newer one.
            policy: the policy in force.
            state: the policy's state after the round.

        Returns:
            False where an earlier computation is still running, else True, also where this one could not begin.
        """
        if self._busy_since is not None and time.monotonic() - self._busy_since > LIMIT_SECONDS:
            log.warning("background_solve_abandoned", policy=policy.name, seconds=LIMIT_SECONDS)
            self.close()
        if self._busy_since is not None:
            return False
        try:
            task = _pickled((snapshot, policy, state))
        except Exception:  # a policy may be third-party code
            log.exception("background_solve_failed", policy=policy.name, effect=BEGUN_AGAIN)
            return True
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), name="metasched-solver", daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send_bytes(task)
            self._busy_since = time.monotonic()
        except OSError as error:
            self._lost(error)
        return True

    @property
    def has_answer(self) -> bool:
        """Whether ``collect`` would return, or log, what has arrived since its last call."""
        try:
            return self._pipe is not None and self._busy_since is not None and self._pipe.poll()
        except OSError:
            return True

    def collect(self) -> Mapping[str, Any]:
        """Return the result that has arrived since the last call, JSON-compatible; empty if none has."""
        if self._pipe is None or self._busy_since is None:
            return {}
        try:
            if not self._pipe.poll():
                return {}
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            self._lost(error)
            return {}
        self._busy_since = None
        if "error" in answer:
            log.error("background_solve_failed", error=answer["error"], effect=BEGUN_AGAIN)
        return answer.get("result") or {}

    def close(self) -> None:
        """End the process and its computation, if there is one."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = self._busy_since = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.terminate()
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join(END_SECONDS)

    def _lost(self, error: Exception) -> None:
        log.warning("background_solver_lost", error=str(error) or "its process has ended", effect=BEGUN_AGAIN)
        self.close()


class _Pickler(pickle.Pickler):
    """Pickles the read-only mappings of the model as dicts.

    The picklers of multiprocessing would also send a socket, by a server thread in the daemon.
    """

    def reducer_override(self, found: Any) -> Any:
        """Return how an object is pickled; NotImplemented leaves it to Python."""
        return (dict, (dict(found),)) if isinstance(found, MappingProxyType) else NotImplemented


def _pickled(found: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(found)
    return buffer.getvalue()


def _serve(pipe: Connection) -> None:
    """Compute for each task from the pipe until its other end is closed; runs in the other process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the daemon closes the pipe
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:
            return
        try:
            snapshot, policy, state = pickle.loads(task)  # noqa: S301  sent by the daemon itself
            answer = json.dumps({"result": precompute(snapshot, policy, state)})
        except Exception as error:  # noqa: BLE001  a policy may be third-party code, and the next task may succeed
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        pipe.send_bytes(answer.encode())
