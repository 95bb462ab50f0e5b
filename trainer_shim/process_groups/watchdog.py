"""The watchdog: a rank ends when it has waited too long for a hung rank, and logs which rank failed first."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from torch.distributed.distributed_c10d import Store

HUNG_EXIT_CODE = 75
# The factor on the limit until the first step is done, because ranks load, compile and warm up at different speeds, and
# in the script's own code, which may compute for long.
RELAXED_FACTOR = 6
TICK = 1.0  # seconds between two checks, less where the limit is short
ANSWER_SECONDS = 5.0  # seconds that the store, and the file system, have to answer

_LIBRARY_PATHS = (
    str(Path(__file__).parents[1]),
    str(Path(torch.__file__).parent),
    str(Path(threading.__file__).parent),
)

T = TypeVar("T")

log = logging.getLogger("trainer_shim")


class _Wait(NamedTuple):
    """A wait of the main thread: the activity, its begin on the watchdog's clock, and the factor on the limit."""

    what: str
    since: float
    factor: int


class Watchdog:
    """Ends this process when its main thread has waited for the other ranks for `limit` seconds.

    Only the time in which this process runs counts, so a suspended job does not end. When half of the limit is over,
    each waiting rank publishes its position in the script in the process group's store. A rank that has published
    nothing by the end of the limit is the hung one. The script's own code outside the steps is watched, too, from the
    first step to the end of the training.

    Args:
        limit: seconds of waiting, None to watch nothing.
        rank: this process's number, from 0.
        size: the number of processes.

    Attributes:
        first_step_done: whether the first step is done; until then the limit is relaxed.
        store: the store of the process group, None before it exists.
        exit_code: a function that returns the exit code of a process that ends itself.
    """

    def __init__(self, limit: float | None, rank: int, size: int) -> None:
        self._limit = limit
        self._tick = TICK if limit is None else min(TICK, limit / 10)
        self._rank = rank
        self._size = size
        self._clock = 0.0  # seconds that this process has run
        self._wait: _Wait | None = None
        self._busy = False
        self._closed = threading.Event()
        self.first_step_done = False
        self.store: Store | None = None
        self.exit_code: Callable[[], int] = lambda: HUNG_EXIT_CODE
        if limit is not None:
            threading.Thread(target=self._run, name="trainer_shim watchdog", daemon=True).start()

    def arm(self, what: str) -> None:
        """Note that the main thread begins an activity, described by `what`, that needs the other ranks."""
        self._wait = _Wait(what, self._clock, 1 if self.first_step_done else RELAXED_FACTOR)

    def disarm(self) -> None:
        """Note that the main thread runs the script's own code from now on."""
        self._wait = _Wait("the script's own code", self._clock, RELAXED_FACTOR) if self.first_step_done else None

    @contextlib.contextmanager
    def armed(self, what: str) -> Iterator[None]:
        """Context manager: arm the watchdog for a block."""
        before = self._wait
        self.arm(what)
        try:
            yield
        finally:
            self._wait = before and before._replace(since=self._clock)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Context manager: while a rank that is alive is in such a block, no rank's limit ends."""
        before, self._wait = self._wait, None
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._wait = before and before._replace(since=self._clock)

    def close(self) -> None:
        """Disarm the watchdog and end its thread."""
        self._closed.set()

    def _run(self) -> None:
        assert self._limit is not None  # noqa: S101  else there is no thread
        last = time.monotonic()
        reported: _Wait | None = None
        while not self._closed.wait(self._tick):
            now = time.monotonic()
            self._clock += min(now - last, 2 * self._tick)
            last = now
            if self._busy:
                self._publish("busy", str(now))
            wait = self._wait
            if reported is not None and wait is not reported:
                reported = None
                self._publish(self._key(self._rank), "")
            if wait is None:
                continue
            waited, limit = self._clock - wait.since, self._limit * wait.factor
            if reported is None and waited >= limit / 2:
                reported = wait
                place = self._location(wait.what)
                log.warning("rank %d has been in %s for %.0f s, of at most %.0f s", self._rank, place, waited, limit)
                self._publish(self._key(self._rank), place)
            if waited >= limit:
                self._end_unless_busy(wait, waited)

    def _end_unless_busy(self, wait: _Wait, waited: float) -> None:
        """End the process, unless a rank is busy or the wait has just ended."""
        answer = _with_timeout(ANSWER_SECONDS, self._locate_ranks)
        if self._wait is not wait:
            return
        if answer == "busy":
            log.warning("rank %d continues to wait: a checkpoint is being written or read", self._rank)
            self._wait = wait._replace(since=self._clock)
            return
        places = answer or "the store does not answer, so its process (as a rule rank 0) hangs, is stopped or gone"
        self._exit(
            "whose wait timed out; its output says for what" if answer else None,
            f"after {waited:.0f} s in {self._location(wait.what)}. The ranks: {places}",
        )

    def end_for_data(self, happened: str, data: str = "training data") -> NoReturn:
        """End this process, because its batches do not come; the exit code is that of a hang.

        Args:
            happened: what the loader's workers do.
            data: whose batches these are.
        """
        self._exit(f"whose {data} do not come: {happened}", f"its {data} do not come: {happened}")

    def _exit(self, announced: str | None, why: str) -> NoReturn:
        """End this process with the stacks of its threads.

        Args:
            announced: what the other ranks log of this rank, None where the store does not answer.
            why: what this rank logs.
        """
        code = _with_timeout(ANSWER_SECONDS, self.exit_code) or HUNG_EXIT_CODE
        # A hung thread may hold a lock of stderr or of logging.
        last_resort = threading.Timer(ANSWER_SECONDS, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
        store = self.store
        if announced and store is not None:
            with contextlib.suppress(RuntimeError):  # rank 0, and the store with it, may have ended just now
                store.compare_set("failed", "", f"rank {self._rank}, {announced}")
        log.error("rank %d ends with exit code %d, %s", self._rank, code, why)
        faulthandler.dump_traceback(2)
        os._exit(code)

    def _locate_ranks(self) -> str | None:
        """Return the positions of the ranks in words, or `busy` where a rank is busy."""
        store = self.store
        if store is None:
            return "not known before the process group has started"
        before = self._last_busy(store)
        time.sleep(3 * self._tick)
        if self._last_busy(store) != before:
            return "busy"
        places: dict[str, list[int]] = {}
        for rank in range(self._size):
            key = self._key(rank)
            place = store.get(key).decode() if store.check([key]) else ""
            places.setdefault(place or "silent (hung, stopped, or not waiting)", []).append(rank)
        return "; ".join(f"{', '.join(map(str, ranks))}: {place}" for place, ranks in places.items())

    def _publish(self, key: str, value: str) -> None:
        """Set a key in a thread of its own: a store whose process is stopped does not answer."""
        if self.store is not None:
            threading.Thread(target=_set, args=(self.store, key, value), daemon=True).start()

    @staticmethod
    def _last_busy(store: Store) -> bytes | None:
        return store.get("busy") if store.check(["busy"]) else None

    @staticmethod
    def _key(rank: int) -> str:
        return f"waits/{rank}"

    @staticmethod
    def _location(what: str) -> str:
        """Return the activity of the main thread, with the line of the script that led to it."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  documented for debuggers
        while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY_PATHS):
            frame = frame.f_back
        return what if frame is None else f"{what} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def announce_first_failure(store: Store, rank: int) -> None:
    """Have the exception that ends this rank logged by the other ranks, whose own errors only follow from it."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        usual(kind, error, traceback)
        own = f"rank {rank}, with {kind.__name__}: {error}"

        def first() -> str:
            if _is_consequence(error):
                return store.get("failed").decode() if store.check(["failed"]) else ""
            return store.compare_set("failed", "", own).decode()

        found = _with_timeout(ANSWER_SECONDS, first)
        if found:
            if found != own:
                log.error("the first to fail was %s", found)
        elif _is_consequence(error):
            log.error(
                "rank %d fails because another rank is gone%s",
                rank,
                "" if found is not None else ", probably rank 0: the store does not answer",
            )

    sys.excepthook = hook


def _is_consequence(error: BaseException) -> bool:
    """Whether an error says no more than that another rank has ended."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _set(store: Store, key: str, value: str) -> None:
    with contextlib.suppress(RuntimeError):  # raised where the store's process has ended
        store.set(key, value)


def _with_timeout(seconds: float, action: Callable[[], T]) -> T | None:
    """Return the result of `action`, None if it fails or takes longer than `seconds`."""
    results: list[T] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError):
            results.append(action())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
