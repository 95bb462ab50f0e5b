"""Prefetching: a thread fetches the next items, so that the main thread can take part in votes meanwhile."""

from __future__ import annotations

import collections
import queue
import threading
from typing import TYPE_CHECKING, Callable, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.data.worker_progress import WorkerProgress

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """The items of an iterator, one or more of them prefetched in a thread.

    Args:
        items: the iterator.
        waits: whether the iterator waits for other processes. Otherwise there is no thread and no prefetching, because
            an iterator that computes its items may use torch's generator, which belongs to the main thread.
        progress: what the processes do that the iterator waits for, None where that is not known.
        again: makes an iterator over the items that were not removed yet, from other processes; returns None where
            that is impossible.
    """

    def __init__(
        self,
        items: Iterator[T],
        *,
        waits: bool,
        progress: WorkerProgress | None = None,
        again: Callable[[], Iterator[T] | None] = lambda: None,
    ) -> None:
        self.progress = progress
        self._items = items
        self._again = again
        self._depth = 1  # items that are prefetched
        self._thread: threading.Thread | None = None
        self._fetched: collections.deque[tuple[list[T], BaseException | None]] = collections.deque()
        if waits:
            self._start()

    def _start(self) -> None:
        self._results: queue.SimpleQueue[tuple[list[T], BaseException | None]] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = threading.Event()
        work = (self._items, self._requests, self._results, self._closed)
        self._thread = threading.Thread(target=_work, args=work, name="trainer_shim data", daemon=True)
        for _ in range(self._depth):
            self._requests.put("next")
        self._thread.start()

    def restart(self) -> bool:
        """Fetch the items anew that were not removed yet, from other processes; return whether that is possible.

        The thread of the earlier iterator is left alone: the thread ends with the processes that it waits for.
        """
        again = self._again() if self._thread else None
        if again is None:
            return False
        self._closed.set()
        self._requests.put("end")
        self._items = again
        self._fetched.clear()
        self._start()
        return True

    def ready(self, seconds: float, count: int = 1) -> bool:
        """Return whether `count` items, or the end or an error, are there; always True without a thread.

        From now on at least `count` items are prefetched.

        Args:
            seconds: the longest wait for one item.
            count: the number of items.
        """
        if not self._thread:
            return True
        for _ in range(count - self._depth):
            self._requests.put("next")
        self._depth = max(count, self._depth)
        try:
            while len(self._fetched) < count and (not self._fetched or self._fetched[-1][1] is None):
                self._fetched.append(self._results.get(timeout=seconds))
        except queue.Empty:
            return False
        return True

    @property
    def exhausted(self) -> bool:
        """Whether there is no further item; waits for the item or the end."""
        return isinstance(self._head()[1], StopIteration)

    def peek(self) -> T | None:
        """Wait for the next item, and return it without removing it; None at the end.

        Raises:
            BaseException: the error that the iterator raised instead.
        """
        items, error = self._head()
        if error is not None and not isinstance(error, StopIteration):
            raise error
        return items[0] if items else None

    def pop(self) -> T:
        """Wait for the next item, remove and return it.

        Raises:
            StopIteration: there is no further item.
            BaseException: the error that the iterator raised instead.
        """
        if self.exhausted:
            # A new error: the stored one would hold its traceback, and by it the caller's frame with the last item.
            raise StopIteration
        items, error = self._head()
        if error is not None:
            raise error
        self._fetched.popleft()
        if self._thread:
            self._requests.put("next")
        return items[0]

    def close(self, *, wait: bool) -> None:
        """Fetch no more items; with `wait`, wait until the thread no longer uses the iterator."""
        if self._thread:
            self._closed.set()
            self._requests.put("end")
            if wait:
                self._thread.join()

    def closed(self, seconds: float) -> bool:
        """Return, after `close`, whether the thread no longer uses the iterator; waits for that, at most `seconds`."""
        if self._thread:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _head(self) -> tuple[list[T], BaseException | None]:
        if not self._fetched:
            self._fetched.append(self._results.get() if self._thread else _fetch(self._items))
        return self._fetched[0]


def _fetch(items: Iterator[T]) -> tuple[list[T], BaseException | None]:
    try:
        return [next(items)], None
    except StopIteration:
        return [], StopIteration()  # without a traceback, whose frames would keep a loader and its workers alive
    except BaseException as error:  # noqa: BLE001  raised again by `pop` and `peek`
        return [], error


def _work(
    items: Iterator[T],
    requests: queue.SimpleQueue[str],
    results: queue.SimpleQueue[tuple[list[T], BaseException | None]],
    closed: threading.Event,
) -> None:
    while requests.get() == "next" and not closed.is_set():
        fetched = _fetch(items)
        results.put(fetched)
        if fetched[1] is not None:
            return
