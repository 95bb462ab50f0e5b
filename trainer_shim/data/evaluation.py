"""Evaluations in which the ranks go in step, though they may have different numbers of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, TypeVar

from trainer_shim.preemption.stop_requests import POLL_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.data.prefetch import Prefetcher

T = TypeVar("T")


def lockstep_batches(
    source: Prefetcher[T], agree: Callable[[int, int], tuple[int, int, int]], leave: Callable[[], object]
) -> Iterator[T]:
    """The batches, each after a vote of all ranks, until all of them have had theirs.

    `agree` has the ranks vote on how many of them wait for a batch, have some left, and have left their loop early;
    `leave` tells the others that this one does.
    """
    together = True  # until a rank has left: then nobody waits for it
    try:
        while True:
            everybody_done = False
            while together:
                waiting = not source.ready(POLL_INTERVAL)
                done = not waiting and source.exhausted
                waits, unfinished, left = agree(int(waiting), int(not done))
                together = not left
                everybody_done = not unfinished
                if not waits:
                    break
            if everybody_done:
                break
            if not source.exhausted:
                yield source.pop()
            elif not together:
                break
    except GeneratorExit:  # the script has left its loop
        if together:
            leave()  # the others hear it in their next vote, which is this one
        source.close(wait=True)
        raise
