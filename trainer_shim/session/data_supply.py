"""The batches that a rank has fetched: a rank that waits for data must still take part in votes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_shim.data.prefetch import Prefetcher
    from trainer_shim.data.train_loader import TrainLoader


class DataSupply:
    """The training data that this rank has fetched.

    Attributes:
        late: whether any rank waited for its next batch at the last vote.
        prefetcher: the source of the epoch's batches, None between the epochs.
    """

    def __init__(self) -> None:
        self.late = False
        self.prefetcher: Prefetcher[Any] | None = None
        self._loader: TrainLoader | None = None

    def start_epoch(self, loader: TrainLoader) -> None:
        """Begin an epoch of a loader; no rank knows yet whether its first batch is there."""
        self._loader = loader
        self.late = True

    def next_is_late(self) -> bool:
        """Return whether this rank's next batch is not there yet; does not wait."""
        return self.prefetcher is not None and not self.prefetcher.ready(0)

    def covers(self, steps: int) -> bool:
        """Return whether the batches of this number of steps are there; does not wait.

        A rank learns of a stop at a vote only, so no rank may wait for data between two votes.
        """
        if self.prefetcher is None or self._loader is None or self._loader.is_stream:
            return False
        return self.prefetcher.ready(0, (steps - 1) * self._loader.plan.accumulation + 1)
