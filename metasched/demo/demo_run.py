"""The demo from set-up to clean-up."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from metasched.core.policy import installed_policies
from metasched.demo.demo_cluster import DemoCluster, DemoError, stage
from metasched.demo.jobs import JOBS, LAS, ChosenPolicy
from metasched.demo.outcomes import Outcome, outcomes, problems
from metasched.devcluster.errors import tail
from metasched.devcluster.processes import INTERRUPTS, handling
from metasched.replay.replay import replay
from metasched.shared_dir.published_status import Status
from metasched.store import Store

_POLL_SECONDS = 0.25
_LONGEST_SECONDS = 900.0
_ALL_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's result.

    Attributes:
        outcomes: the outcome of each job.
        rounds: number of rounds that were decided, and replayed from their recorded snapshots.
        problems: events that the demo should show and did not, in words.
        logs: the last lines of each log, if there are problems.
    """

    outcomes: list[Outcome]
    rounds: int
    problems: list[str]
    logs: list[str]


def run(
    show: Callable[[Status], None],
    base: Path,
    announce: Callable[[str | None], None],
    *,
    keep: bool,
    hold: bool,
    seconds_per_step: float,
    policy: ChosenPolicy = LAS,
) -> DemoResult:
    """Run the demo in the empty directory ``base``.

    Args:
        show: is called with every new status.
        base: for all files.
        announce: is called with the address of the web page; with None where there is no page.
        keep: whether the files stay.
        hold: whether cluster and page stay after the jobs' ends, until SIGINT, SIGTERM or SIGHUP.
        seconds_per_step: pause in each training step.
        policy: the policy's name and parameters.

    Under another policy than the default one the jobs need not preempt and resize each other.

    Raises:
        MetaschedError: the demo could not run to its end, and everything is cleaned up; or there is no torch.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came; everything is cleaned up.
    """
    if importlib.util.find_spec("torch") is None:
        raise DemoError("the demo trains with PyTorch, which is not installed here: pip install 'metasched[shim]'")
    with _interruptible() as ignore, stage(base, policy, keep=keep) as cluster:
        try:
            announce(cluster.page)
            submitted = _run_jobs(cluster, show, seconds_per_step)
            if hold:
                _wait_for_interrupt(cluster, show)
            return _result(cluster, submitted, moves=policy == LAS)
        finally:
            ignore()


def _result(cluster: DemoCluster, slurm_job_ids: Sequence[str], *, moves: bool) -> DemoResult:
    with Store.open(cluster.database, read_only=True) as store:
        found = outcomes(store, slurm_job_ids)
        replayed = list(replay(store, installed_policies(), _ALL_ROUNDS))
    different = [each.record.round for each in replayed if each.differences]
    missing = problems(found, len(JOBS), moves=moves) + [
        f"a replay decides round {number} differently" for number in different
    ]
    logs = [tail(path) for path in cluster.logs] if missing else []
    return DemoResult(found, len(replayed), missing, logs)


def _run_jobs(cluster: DemoCluster, show: Callable[[Status], None], seconds_per_step: float) -> list[str]:
    """Submit each job when it is due, wait until all have ended, and return their Slurm job ids."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    submitted: dict[str, str] = {}
    while time.monotonic() < deadline:
        status = cluster.status()
        if status is not None:
            show(status)
            for job in JOBS:
                if job.name not in submitted and job.due(status):
                    submitted[job.name] = cluster.submit(job, seconds_per_step)
            if {job.slurm_job_id for job in status.finished} >= set(submitted.values()):
                return list(submitted.values())
        time.sleep(_POLL_SECONDS)
    logs = "\n".join(tail(path) for path in cluster.logs)
    raise DemoError(f"not done after {_LONGEST_SECONDS:.0f} s\n{logs}")


def _wait_for_interrupt(cluster: DemoCluster, show: Callable[[Status], None]) -> None:
    try:
        while True:
            if (status := cluster.status()) is not None:
                show(status)
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Let the first SIGINT, SIGTERM or SIGHUP unwind the block, and ignore the later ones.

    Yields:
        A function that makes the rest of the block ignore these signals.
    """

    def ignore() -> None:
        """Ignore these signals from now on, so that they do not interrupt the cleanup."""
        for number in INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Handle the first of these signals as Ctrl-C is handled."""
        del number, frame
        ignore()
        raise KeyboardInterrupt

    with handling(interrupt):
        yield ignore
