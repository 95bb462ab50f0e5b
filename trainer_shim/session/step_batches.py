"""Loops over the micro-batches of one optimizer step, for scripts that count steps or accumulate by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from trainer_shim.data.sample_order import MicroBatch
    from trainer_shim.session.gradient_accumulation import GradientAccumulation


class StepBatches:
    """The micro-batches of one optimizer step. The last one stays the current one after the loop.

    Args:
        fetch: returns the data of the step's next micro-batch, which it makes the current one.
        accumulation: the state of the optimizer step.
        seed: seeds the generators for a micro-batch, as `fetch` does.
        passes: how often the script may loop over the micro-batches. With more than one, their data are kept until
            the step's end.
    """

    def __init__(
        self,
        fetch: Callable[[], Any],
        accumulation: GradientAccumulation,
        seed: Callable[[MicroBatch], None],
        passes: int,
    ) -> None:
        if passes < 1:
            raise UsageError(f"passes={passes}: a step has one pass over its micro-batches at least")
        self._fetch = fetch
        self._accumulation = accumulation
        self._seed = seed
        self._passes = passes
        self._begun = 0  # passes so far
        self._kept: list[tuple[MicroBatch, Any]] = []

    def __iter__(self) -> Iterator[Any]:
        if self._begun == self._passes:
            raise UsageError(
                f"a second loop over the micro-batches of a step: say passes={self._passes + 1} in ctx.steps(...) or "
                "ctx.accumulate(...), which keeps them until the step's end"
            )
        self._begun += 1
        return self._first_pass() if self._begun == 1 else self._further_pass()

    def check_complete(self) -> None:
        """Check that the script has looped over all micro-batches.

        Raises:
            UsageError: the script has left the loop early, or has not begun it.
        """
        micro = self._accumulation.micro
        if micro is None or not micro.last:
            raise UsageError(
                "a step ended before the loop over its micro-batches did: loop over all of them in every step, "
                "without `break`"
            )

    def _first_pass(self) -> Iterator[Any]:
        last = False
        while not last:
            batch = self._fetch()
            micro = self._accumulation.current()
            if self._passes > 1:
                self._kept.append((micro, batch))
            last = micro.last
            yield batch

    def _further_pass(self) -> Iterator[Any]:
        self._accumulation.start_loop()
        for micro, batch in self._kept:
            self._accumulation.start_micro_batch(micro)
            try:
                self._seed(micro)
                yield batch
            finally:
                if not micro.last:
                    self._accumulation.end_micro_batch(micro)


class StepEvents:
    """The events of a training that counts steps, from epoch to epoch.

    Args:
        read: returns the events of the present epoch.
        next_pass: begins the next epoch.
    """

    def __init__(self, read: Callable[[], Generator[Any, None, None]], next_pass: Callable[[], None]) -> None:
        self._read = read
        self._next_pass = next_pass
        self._events = read()

    def fetch(self) -> Any:
        """Return the next micro-batch's data, of the next epoch where this one is over.

        Raises:
            UsageError: an epoch has no data.
        """
        for _ in range(2):  # an epoch that was resumed at its end is over at once
            for event in self._events:
                return event
            self._next_pass()
            self._events = self._read()
        for event in self._events:
            return event
        raise UsageError("ctx.steps(...): the training data has no sample, or drop_last leaves none")

    def pass_boundary(self) -> None:
        """Pass the boundary after a step. Collective."""
        next(self._events)

    def close(self) -> None:
        """End the read of the data."""
        self._events.close()
