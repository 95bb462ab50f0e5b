"""The position of a training over all its runs, with the data and the adaptive batch to which it refers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_shim.session.rule_adaptation import RuleAdaptation

if TYPE_CHECKING:
    from trainer_shim.batch import BatchPlan
    from trainer_shim.checkpointing.formats.script_checkpoints import Progress
    from trainer_shim.data.train_loader import TrainLoader
    from trainer_shim.session.batch_adaptation import BatchAdaptation


class TrainingPosition:
    """The position of a training, the same on all ranks.

    Args:
        progress: the position of the last checkpoint.

    Attributes:
        progress: the position.
        loader: the training data, None before the script has named them.
        adaptation: the adaptive batch, None where the batch is fixed.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.loader: TrainLoader | None = None
        self.adaptation: BatchAdaptation | None = None

    @property
    def adaptive_progress(self) -> float | None:
        """Steps at M0 since the beginning of the job, None where the batch never adapted."""
        return None if self.progress.adaptive is None else self.progress.adaptive.progress

    @property
    def data_pass(self) -> int:
        """The number of the present pass over the data, from 0; that of the epoch where the batch is fixed."""
        return self.progress.epoch if self.adaptation is None else self.adaptation.position.data_pass

    @property
    def splits_measurement(self) -> bool:
        """Whether a checkpoint here would lose a measurement on which the script's rule depends."""
        adaptation = self.adaptation
        return isinstance(adaptation, RuleAdaptation) and adaptation.splits_measurement(self.progress.step)

    def adapt(self, adaptation: BatchAdaptation | None) -> None:
        """Begin to adapt the batch, unless it is fixed."""
        self.adaptation = adaptation
        if adaptation is not None:
            self.progress = self.progress._replace(adaptive=adaptation.position)

    def add_step(self, samples: int) -> None:
        """Count an optimizer step over so many samples of all ranks."""
        cursor = self.progress.cursor + samples
        if self.adaptation is not None:
            self.adaptation.add_step(samples, cursor)
        self.progress = self.progress._replace(
            cursor=cursor,
            step=self.progress.step + 1,
            samples=self.progress.samples + samples,
            adaptive=None if self.adaptation is None else self.adaptation.position,
        )

    def end_pass(self, adaptation: BatchAdaptation) -> None:
        """End a pass over the data within an epoch of a training whose batch adapts."""
        adaptation.end_pass()
        self.progress = self.progress._replace(cursor=0, adaptive=adaptation.position)

    def end_window(self) -> BatchPlan | None:
        """Let the script's rule choose the next batch where a window of it is over, within an epoch.

        Returns:
            The plan where the batch changes: the data are then read anew from the present position.
        """
        adaptation = self.adaptation
        if not isinstance(adaptation, RuleAdaptation) or adaptation.epoch_over:
            return None
        plan = adaptation.end_window()
        self.progress = self.progress._replace(adaptive=adaptation.position)
        return plan

    def end_epoch(self) -> None:
        """Move to the beginning of the next epoch."""
        epoch = self.progress.epoch + 1
        if self.adaptation is None:
            self.progress = self.progress._replace(epoch=epoch, cursor=0)
            return
        cursor = self.progress.cursor if self.adaptation.end_epoch() else 0
        self.progress = self.progress._replace(epoch=epoch, cursor=cursor, adaptive=self.adaptation.position)

    def finish(self) -> None:
        """Mark the training as finished, before its last epoch perhaps."""
        self.progress = self.progress._replace(finished=True)
