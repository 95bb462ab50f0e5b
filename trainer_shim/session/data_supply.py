"""What a rank knows of its next batches: a rank that waits for data must still take part in votes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_shim.data.prefetch import Prefetcher
    from trainer_shim.data.train_loader import TrainLoader


class DataSupply:
    """The training data as far as this rank has fetched them.

    Attributes:
        late: whether any rank waited for its next batch at the last vote.
    """

    def __init__(self) -> None:
        self.late = False
        self._loader: TrainLoader | None = None
        self._prefetcher: Prefetcher[Any] | None = None

    def start_epoch(self, loader: TrainLoader) -> None:
        """Begin an epoch of a loader; no rank knows yet whether its first batch is there."""
        self._loader = loader
        self.late = True

    def attach(self, prefetcher: Prefetcher[Any]) -> None:
        """Read from a prefetcher from now on."""
        self._prefetcher = prefetcher

    def end_epoch(self) -> None:
        """Forget the prefetcher, which has no further batches."""
        self._prefetcher = None

    def next_is_late(self) -> bool:
        """Return whether this rank's next batch is not there yet; does not wait."""
        return self._prefetcher is not None and not self._prefetcher.ready(0)

    def covers(self, steps: int) -> bool:
        """Return whether the batches of so many steps are there: without votes no rank hears of a stop meanwhile."""
        if self._prefetcher is None or self._loader is None or self._loader.is_stream:
            return False
        return self._prefetcher.ready(0, (steps - 1) * self._loader.plan.accumulation + 1)
