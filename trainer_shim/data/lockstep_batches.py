"""Evaluations in lockstep: the ranks may have different numbers of batches, and still vote before each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, TypeVar

from trainer_shim.preemption.stop_requests import POLL_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.data.data_wait import DataWait
    from trainer_shim.data.prefetch import Prefetcher

T = TypeVar("T")


def lockstep_batches(
    source: Prefetcher[T],
    vote_on_batch: Callable[[int, int], tuple[int, int, int]],
    leave: Callable[[], object],
    data_wait: DataWait,
) -> Iterator[T]:
    """Yield this rank's batches, each after a vote of all ranks, until every rank has had its batches.

    Args:
        source: this rank's batches.
        vote_on_batch: makes the ranks vote. Takes whether this rank waits for a batch and whether it has batches left,
            as 0 or 1; returns the numbers of ranks that wait, that have batches left, and that have left their loop
            early.
        leave: tells the other ranks that this rank leaves its loop early.
        data_wait: bounds each wait for a batch.
    """
    together = True  # until a rank has left its loop: no rank waits for it after that
    try:
        while True:
            all_done = False
            while together:
                waiting = not data_wait.ready(source, POLL_INTERVAL)
                done = not waiting and source.exhausted
                waits, unfinished, left = vote_on_batch(int(waiting), int(not done))
                together = not left
                all_done = not unfinished
                if not waits:
                    break
            if all_done:
                break
            while not data_wait.ready(source, POLL_INTERVAL):
                pass  # the other ranks no longer wait for this one
            if not source.exhausted:
                yield source.pop()
            elif not together:
                break
    except GeneratorExit:  # the script has left its loop
        if together:
            leave()  # this vote is the other ranks' next one
        data_wait.close(source, POLL_INTERVAL)
        raise
