"""The checkpoints of a script: what they hold, which ranks save, and whether a stop has a checkpoint."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from trainer_shim.checkpointing.async_saver import AsyncSaver
from trainer_shim.checkpointing.batch_record import BatchRecord, check_batch_change
from trainer_shim.checkpointing.formats.script_checkpoints import Progress
from trainer_shim.checkpointing.tracked_objects import TrackedObjects
from trainer_shim.data.sample_order import SampleOrder, order_difference
from trainer_shim.errors import CheckpointError, SupersededError
from trainer_shim.session.sample_checks import check_samples

if TYPE_CHECKING:
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint, ScriptCheckpoints, States
    from trainer_shim.checkpointing.tracked_objects import Stateful
    from trainer_shim.data.train_loader import TrainLoader
    from trainer_shim.session.trainer_session import TrainerSession

T = TypeVar("T")

log = logging.getLogger("trainer_shim")


class ScriptCheckpointing:
    """Decides and runs the checkpoints of a training whose script has named their objects.

    Rank 0 saves alone; where states are sharded, all ranks save together. The outcome is the same on all ranks.

    Args:
        session: the session of this trainer.
        checkpoints: the checkpoints of the directory.
        resumed: the checkpoint from which the training resumes, None for a fresh start.

    Attributes:
        checkpoints: the checkpoints of the directory.
        saver: the saver of this trainer's checkpoints.
        tracked: the objects that a checkpoint holds, None before `track`.
    """

    def __init__(
        self, session: TrainerSession, checkpoints: ScriptCheckpoints, resumed: ScriptCheckpoint | None
    ) -> None:
        self._session = session
        self._group = session.group
        self.checkpoints = checkpoints
        self._resumed = resumed
        self._order: dict[str, Any] | None = None
        self.tracked: TrackedObjects | None = None
        self.saver = AsyncSaver(
            checkpoints,
            session.generation,
            resumed,
            session.check_generation,
            session.report,
            history=session.save_history,
            is_rank_zero=session.group.rank == 0,
            disabled=session.job.profiling_steps is not None,
        )

    def set_order(self, order: dict[str, Any]) -> None:
        """Set the order of the samples, to which a checkpoint's position refers.

        Raises:
            CheckpointError: the checkpoint has another order, so samples would be lost or repeated.
        """
        difference = order_difference(self._resumed.order, order) if self._resumed else None
        if self._resumed and difference is not None:
            raise CheckpointError(f"{self._resumed.data}: {difference}")
        self._order = order

    def set_batch(self, global_batch: int, batch_change: int | None) -> None:
        """Set the global batch, which is that of the checkpoint, or changes with consent.

        Args:
            global_batch: the global batch that the script gives.
            batch_change: the earlier global batch whose change the script consents to, None without consent.

        Raises:
            CheckpointError: the batch has changed without consent.
            VariableError: the variable of the consent is no number.
        """
        now = BatchRecord(global_batch, self._group.size)
        if self._resumed is not None:
            check_batch_change(self._resumed.batch, now, batch_change, os.environ, str(self._resumed.data))
        self.checkpoints.batch = now

    def check_samples(self, dataset: Any, loader: TrainLoader, options: dict[str, Any]) -> None:
        """Check that some samples of a data set are the same on all ranks, and as in the checkpoint. Collective.

        Args:
            dataset: the data set.
            loader: its loader; streams are not checked.
            options: the options of the DataLoader.

        Raises:
            UsageError: the ranks have different samples.
            CheckpointError: the checkpoint was made with other samples.
        """
        if isinstance(loader.order, SampleOrder):
            found = check_samples(dataset, loader.order, options, self._group, self._resumed)
            self.checkpoints.samples = {index: list(each) for index, each in found.items()}

    def track(self, objects: dict[str, Stateful]) -> TrackedObjects:
        """Name the objects that a checkpoint holds, load their states where there is one, and return them. Collective.

        Raises:
            CheckpointError: the checkpoint holds other names, or states that do not fit, or cannot be read.
            UsageError: an object has no state_dict.
        """
        with self._group.watchdog.busy():
            tracked = TrackedObjects(objects, is_rank_zero=self._group.rank == 0)
            self.saver.collective = tracked.sharded
            if self._resumed is not None:
                resumed = self._resumed
                states = self._on_every_rank(lambda: tracked.read(self.checkpoints, resumed))
                self._on_every_rank(lambda: tracked.restore(states, self.checkpoints, resumed))
            elif tracked.sharded:  # before the training, and not after hours of it
                self._on_every_rank(lambda: self.checkpoints.require_trusted_shards(None))
        self.tracked = tracked
        return tracked

    def states(self) -> States:
        """Return the present states of the tracked objects."""
        assert self.tracked is not None  # noqa: S101  nothing is saved before `track`
        return self.tracked.states()

    def start(self, progress: Progress) -> None:
        """Save in the background, unless the newest checkpoint has the same position."""
        assert self._order is not None  # noqa: S101  nothing is saved before `set_order`
        self.saver.start(self.states, progress, self._order)

    def worth_saving(self, progress: Progress, cause: str, *, urgent: bool) -> bool:
        """Return whether a stop for this cause has a new position to save, and time to save it; rank 0 decides."""
        if cause == "superseded" or progress == self.saver.saved_progress:
            return False
        return self._session.has_time_to_save(urgent=urgent)

    def save_for_stop(self, progress: Progress) -> bool:
        """Save now, and return whether that succeeded; an error is logged. Collective."""

        def save() -> bool:
            try:
                self._save(progress, "stop")
            except SupersededError:
                return False  # the next vote ends the trainer
            except OSError as error:
                if self._group.rank == 0:
                    log.error("no checkpoint at step %d, the last one stays: %s", progress.step, error)  # noqa: TRY400
                return False
            return True

        return self._on_saving_ranks(save)

    def save_at_end(self, progress: Progress) -> bool:
        """Save the final checkpoint, and return whether this trainer may still write. Collective.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """

        def save() -> bool:
            try:
                self._save(progress, "final")
            except SupersededError:
                return False
            except OSError as error:
                raise CheckpointError(f"the final checkpoint cannot be written: {error}") from error
            return True

        return self._on_saving_ranks(save)

    def _save(self, progress: Progress, cause: str) -> None:
        if self._order is not None:
            self.saver.save(self.states, progress, self._order, cause)

    def _on_saving_ranks(self, action: Callable[[], T]) -> T:
        return action() if self.saver.collective else self._group.on_rank_zero(action)

    def _on_every_rank(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank; a CheckpointError of one is an error of all. Collective."""
        try:
            result, failure = action(), None
        except CheckpointError as error:
            failure = error
        failed = self._group.any_rank(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            directory = self.checkpoints.directory
            raise CheckpointError(f"{directory}: another rank could not load the checkpoint, and says why")
        return result
