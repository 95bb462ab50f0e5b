"""The bound on waits for loader workers: one that is stuck ends the trainer, one that is slow is named.

Votes do not end such a wait, so the watchdog, which each vote disarms, does not see the wait as a whole.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.process
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, NoReturn

from trainer_shim.data.worker_progress import NO_EPOCH, WorkerState

if TYPE_CHECKING:
    from types import TracebackType

    from trainer_shim.data.prefetch import Prefetcher
    from trainer_shim.data.worker_progress import WorkerProgress

START_SECONDS = 60.0  # that a forked worker has to come up, unless the bound on waits is shorter
_TICK = 1.0  # seconds between two looks at the workers, and the most that one look adds to the wait

log = logging.getLogger("trainer_shim")


class DataWait:
    """Watches this rank's waits for the next batch. Its methods are called in the main thread.

    The wait counts from the last sign of progress: a worker has begun another sample, or has read bytes. Only time in
    which this process runs counts, so that a suspended job does not end.

    Args:
        limit: seconds without progress after which `end` is called, None for no limit.
        rank: this process's number, from 0.
        end: ends this process; takes what has happened in words.
        clock: seconds that pass.
    """

    def __init__(
        self,
        limit: float | None,
        rank: int,
        end: Callable[[str], NoReturn],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._rank = rank
        self._end = end
        self._clock = clock
        self._tick = _TICK if limit is None else min(_TICK, limit / 10)
        self._looked: float | None = None  # the last look of the present wait
        self._waited = self._stalled = 0.0  # seconds, in all and since the last progress
        self._seen: tuple[Any, ...] = ()
        self._warned = False
        self._replaced = False

    def ready(self, prefetcher: Prefetcher[Any], seconds: float) -> bool:
        """Return whether the next batch is there, waiting at most `seconds` for it; the whole wait is bounded."""
        if prefetcher.ready(seconds):
            self.finish()
            return True
        self.check(prefetcher)
        return False

    def close(self, prefetcher: Prefetcher[Any], seconds: float) -> None:
        """Fetch no more batches, and wait until the thread no longer uses the iterator, looking every `seconds`."""
        prefetcher.close(wait=False)
        while not prefetcher.closed(seconds):
            self.check(prefetcher)
        self.finish()

    def finish(self) -> None:
        """Note that the batch has come."""
        if self._warned:
            log.warning("rank %d has its next batch, after %.0f s", self._rank, self._waited)
        self._looked, self._waited, self._stalled, self._warned = None, 0.0, 0.0, False

    def check(self, prefetcher: Prefetcher[Any]) -> None:
        """Look at the workers that this rank waits for, at most once in a second.

        Workers that have not come up in time are replaced, once in the training. A wait without progress ends the
        process, after a warning at half of the limit; a long wait with progress is a warning only.
        """
        progress, now = prefetcher.progress, self._clock()
        if progress is None or self._limit is None:
            return
        states = progress.states()
        if self._looked is None:
            self._looked, self._seen = now, _signs(states)
        passed = now - self._looked
        if passed < self._tick:
            return
        passed = min(passed, 2 * self._tick)
        self._looked = now
        self._waited += passed
        signs = _signs(states)
        self._stalled = 0.0 if signs != self._seen else self._stalled + passed
        self._seen = signs
        missing = [number for number, state in enumerate(states) if not state.pid]
        if missing and not self._replaced and self._stalled >= self._start_limit(progress):
            self._replaced = True
            self._replace(prefetcher, missing)
        elif self._stalled >= self._limit:
            self._kill_workers(states)
            self._end(f"stuck for {self._stalled:.0f} s: {describe(states)}")
        elif self._waited >= self._limit / 2 and not self._warned:
            self._warned = True
            moves = self._stalled < self._limit / 4
            log.warning(
                "rank %d has waited %.0f s for data, %s: %s",
                self._rank,
                self._waited,
                "which come slowly (a slow file system?)" if moves else f"of at most {self._limit:.0f} s",
                describe(states),
            )

    def _start_limit(self, progress: WorkerProgress) -> float:
        half = (self._limit or 0.0) / 2
        return min(START_SECONDS, half) if progress.forks else half

    def _replace(self, prefetcher: Prefetcher[Any], missing: list[int]) -> None:
        numbers = ", ".join(map(str, missing))
        if prefetcher.restart():
            log.warning(
                "rank %d: loader worker %s has not come up in %.0f s, and is replaced, with all workers of the loader",
                self._rank, numbers, self._stalled,
            )  # fmt: skip
            self._stalled = 0.0

    def _kill_workers(self, states: list[WorkerState]) -> None:
        """Let the workers at fault write the stacks of their threads to stderr, and kill all workers.

        A worker that survives this process would keep its connections to the other ranks open, which would wait.
        """
        for state in states:
            if state.pid and state.fetching:
                _signal(state.pid, STACKS_SIGNAL)
        time.sleep(self._tick / 2)
        workers = {state.pid for state in states if state.pid}
        if len(workers) < len(states):
            workers |= _unknown_workers(states)
        for worker in workers:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise an error for the worker's death
            _signal(worker, signal.SIGKILL)


STACKS_SIGNAL = signal.SIGUSR1  # to a worker: write the stacks of all threads to stderr


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _signs(states: list[WorkerState]) -> tuple[Any, ...]:
    """Return numbers that change as the workers make progress; a spawned worker first reads the modules it imports."""
    known = tuple((state.pid, state.begun, state.bytes_read()) for state in states)
    if all(state.pid for state in states):
        return known
    return *known, sum(WorkerState(pid).bytes_read() for pid in _unknown_workers(states))


def _unknown_workers(states: list[WorkerState]) -> set[int]:
    """Return this process's daemonic children, which end with it, but for the workers that have come up."""
    # multiprocessing.active_children() would take the exit codes of dead workers, which torch asks for
    children = list(multiprocessing.process._children)  # type: ignore[attr-defined]  # noqa: SLF001
    return {child.pid for child in children if child.daemon and child.pid} - {state.pid for state in states}


def describe(states: list[WorkerState]) -> str:
    """Return what the workers do, in words; workers without work are left out, if any has work."""
    named = [
        f"worker {number} has not come up"
        if not state.pid
        else f"worker {number} (process {state.pid}) is at sample {_place(state)}"
        for number, state in enumerate(states)
        if state.fetching or not state.pid
    ]
    return "; ".join(named) or "its loader workers have delivered what was asked for, or wait for the collate_fn"


def _place(state: WorkerState) -> str:
    """Return the sample of a worker in words."""
    return str(state.sample) if state.epoch == NO_EPOCH else f"{state.sample} of epoch {state.epoch}"


def announce_dead_workers(progress: WorkerProgress, rank: int) -> None:
    """Have the death of a loader worker logged with rank, worker, epoch and sample: torch names the process alone."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error):
            for number, state in enumerate(progress.states()):
                if state.pid and not _is_alive(state.pid):
                    log.error(
                        "rank %d: loader worker %d (process %d) has died at sample %s",
                        rank, number, state.pid, _place(state),
                    )  # fmt: skip
        usual(kind, error, traceback)

    sys.excepthook = hook


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123  as short as it gets
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
