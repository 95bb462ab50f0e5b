"""The demo from curtain to curtain."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from metasched.demo.jobs import JOBS
from metasched.demo.result import Outcome, outcomes, problems
from metasched.demo.stage import DemoError, Stage, stage, tail
from metasched.policy import installed_policies
from metasched.replay import replay
from metasched.status import Status
from metasched.store import Store

_LOOK_SECONDS = 0.25
_LONGEST_SECONDS = 300.0
_ALL_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Played:
    """How it went.

    Attributes:
        outcomes: a row for each job.
        rounds: how many were decided, and then replayed on what was recorded of them.
        problems: what was promised and did not happen, in words.
        logs: the ends of all logs, if there are problems.
        base: where the files are, if they were to be kept.
    """

    outcomes: list[Outcome]
    rounds: int
    problems: list[str]
    logs: list[str]
    base: str | None


def run(show: Callable[[Status], None], *, keep: bool, seconds_per_step: float) -> Played:
    """Play it; ``show`` is called with every new status.

    Raises:
        MetaschedError: it could not go on to the end; everything is cleaned up.
        KeyboardInterrupt: SIGINT or SIGTERM came; everything is cleaned up.
    """
    with _interruptible(), stage(keep=keep) as pieces:
        addresses = _watch(pieces, show, seconds_per_step)
        with Store.open(pieces.database, read_only=True) as store:
            found = outcomes(store, list(addresses.values()))
            replayed = list(replay(store, installed_policies(), _ALL_ROUNDS))
        otherwise = [each.record.round for each in replayed if each.differences]
        broken = problems(found, len(JOBS)) + [
            f"round {number} is decided otherwise by a replay" for number in otherwise
        ]
        logs = [tail(path) for path in pieces.logs] if broken else []
        return Played(found, len(replayed), broken, logs, str(pieces.base) if keep else None)


def _watch(pieces: Stage, show: Callable[[Status], None], seconds_per_step: float) -> Mapping[str, str]:
    """Submit each job when it is due, until all have ended; their addresses by name."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    addresses: dict[str, str] = {}
    while time.monotonic() < deadline:
        status = pieces.status()
        if status is not None:
            show(status)
            for job in JOBS:
                if job.name not in addresses and job.due(status):
                    addresses[job.name] = pieces.submit(job, seconds_per_step)
            if {job.address for job in status.finished} >= set(addresses.values()):
                break
        time.sleep(_LOOK_SECONDS)
    else:
        logs = "\n".join(tail(path) for path in pieces.logs)
        raise DemoError(f"not done after {_LONGEST_SECONDS:.0f} s\n{logs}")
    return addresses


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM unwind everything as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
