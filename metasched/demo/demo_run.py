"""The demo from set-up to clean-up."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from metasched.core.policy import installed_policies
from metasched.demo.demo_cluster import DemoCluster, DemoError, stage, tail
from metasched.demo.jobs import JOBS
from metasched.demo.result import Outcome, outcomes, problems
from metasched.devcluster.processes import INTERRUPTS, handling
from metasched.replay.replay import replay
from metasched.shared_dir.published_status import Status
from metasched.store import Store

_LOOK_SECONDS = 0.25
_LONGEST_SECONDS = 300.0
_ALL_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's result.

    Attributes:
        outcomes: a row for each job.
        rounds: number of rounds that were decided, and replayed from their recorded snapshots.
        problems: what the demo should show and did not, in words.
        logs: the last lines of all logs, if there are problems.
    """

    outcomes: list[Outcome]
    rounds: int
    problems: list[str]
    logs: list[str]


def run(show: Callable[[Status], None], base: Path, *, keep: bool, seconds_per_step: float) -> DemoResult:
    """Run the demo in the empty directory ``base``, and call ``show`` with every new status.

    Raises:
        MetaschedError: the demo could not run to its end; everything is cleaned up.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came; everything is cleaned up.
    """
    with _interruptible() as ignore, stage(base, keep=keep) as pieces:
        try:
            addresses = _watch(pieces, show, seconds_per_step)
            return _judge(pieces, list(addresses.values()))
        finally:
            ignore()


def _judge(pieces: DemoCluster, addresses: list[str]) -> DemoResult:
    with Store.open(pieces.database, read_only=True) as store:
        found = outcomes(store, addresses)
        replayed = list(replay(store, installed_policies(), _ALL_ROUNDS))
    otherwise = [each.record.round for each in replayed if each.differences]
    broken = problems(found, len(JOBS)) + [f"round {number} is decided otherwise by a replay" for number in otherwise]
    logs = [tail(path) for path in pieces.logs] if broken else []
    return DemoResult(found, len(replayed), broken, logs)


def _watch(pieces: DemoCluster, show: Callable[[Status], None], seconds_per_step: float) -> Mapping[str, str]:
    """Submit each job when it is due, until all have ended, and return their Slurm job ids by name."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    addresses: dict[str, str] = {}
    while time.monotonic() < deadline:
        status = pieces.status()
        if status is not None:
            show(status)
            for job in JOBS:
                if job.name not in addresses and job.due(status):
                    addresses[job.name] = pieces.submit(job, seconds_per_step)
            if {job.slurm_job_id for job in status.finished} >= set(addresses.values()):
                break
        time.sleep(_LOOK_SECONDS)
    else:
        logs = "\n".join(tail(path) for path in pieces.logs)
        raise DemoError(f"not done after {_LONGEST_SECONDS:.0f} s\n{logs}")
    return addresses


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Let the first SIGINT, SIGTERM or SIGHUP unwind the block, and ignore the later ones.

    Gives what has all of them ignored for the rest of the block.
    """

    def ignore() -> None:
        for number in INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        ignore()
        raise KeyboardInterrupt

    with handling(interrupt):
        yield ignore
