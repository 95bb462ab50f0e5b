"""The end of a trainer: at an agreed stop, or at the end of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from trainer_shim.process_groups.ddp_evaluation import stop_buffer_broadcasts
from trainer_shim.session.stop_callbacks import StopCallbacks

if TYPE_CHECKING:
    from trainer_shim.process_groups.script_group import ScriptGroup
    from trainer_shim.session.gradient_accumulation import GradientAccumulation
    from trainer_shim.session.script_checkpointing import ScriptCheckpointing
    from trainer_shim.session.trainer_session import TrainerSession
    from trainer_shim.session.training_position import TrainingPosition
    from trainer_shim.session.vote import Vote


class TrainingEnd:
    """Stops or ends a training: its last report, its last checkpoint, and its exit.

    Args:
        session: the session of this trainer.
        group: the processes of the training.
        checkpointing: its checkpoints.
        position: its position.
        accumulation: its modules that exchange gradients.

    Attributes:
        callbacks: the functions that the script has registered for a stop.
    """

    def __init__(
        self,
        session: TrainerSession,
        group: ScriptGroup,
        checkpointing: ScriptCheckpointing,
        position: TrainingPosition,
        accumulation: GradientAccumulation,
    ) -> None:
        self._session = session
        self._group = group
        self._checkpointing = checkpointing
        self._position = position
        self._accumulation = accumulation
        self.callbacks = StopCallbacks()

    def report_steps(self) -> None:
        """Report the steps since the last report, of a training whose data are named. Collective."""
        position = self._position
        if position.loader is not None:
            values = position.adaptation.step_values() if position.adaptation is not None else None
            self._session.report_steps(position.progress.step, position.loader.plan, values)

    def stop_between_boundaries(self, vote: Vote) -> Vote:
        """Stop where a requested stop loses no progress, or has no time left; else return the sum of the ranks' votes.

        The script may have changed tracked objects since the last boundary, so nothing can be saved here.

        Raises:
            SystemExit: the ranks have voted to stop.
        """
        self._session.vote_interval.force_vote()
        if self._group.rank == 0:
            vote = vote._replace(
                progress_saved=self._checkpointing.saver.covers(self._position.progress),
                deadline_near=self._session.seconds_to_deadline() < (self._session.save_history.slowest_seconds or 0),
            )
        found = self._session.start_vote(vote).result()
        # a training that is to end for good continues to its next boundary, where its final checkpoint can be saved
        saved = found.progress_saved and not found.finish
        stops_now = saved or found.deadline_near or found.urgent or found.superseded
        # a rank that left its evaluation early does not wait for this vote's result, and would not stop with the others
        if found.stop_cause and stops_now and not found.evaluation_left:
            self.report_steps()
            self.stop(found.stop_cause, may_save=False)
        return found

    def stop(self, cause: str, *, urgent: bool = False, may_save: bool = True) -> NoReturn:
        """Save if there is a new position to save and time to save it, and exit. Collective.

        A request to finish ends the training as `finish` does: its final checkpoint is saved, and a later start trains
        no more.

        Args:
            cause: the agreed cause.
            urgent: whether a SIGTERM after the first signal asks for haste.
            may_save: whether the tracked objects have the states of the position.

        Raises:
            SystemExit: always.
            CheckpointError: the final checkpoint cannot be written.
        """
        if cause == "finish" and may_save:
            self.callbacks.run_before(cause)
            self.finish()
            self.callbacks.run_after(cause)
            self._session.exit_finished()
        noticed = self._group.earliest(self._session.stop_requests.noticed)
        saver, progress = self._checkpointing.saver, self._position.progress
        with self._group.watchdog.busy():
            saver.settle()

        def decide() -> bool:
            return may_save and self._checkpointing.worth_saving(progress, cause, urgent=urgent)

        should_save = self._group.on_rank_zero(decide)
        if should_save:
            self.callbacks.run_before(cause)

        saved = should_save and self._checkpointing.save_for_stop(progress)

        def outcome() -> tuple[str, bool]:
            unchanged = progress == saver.saved_progress
            # without a save the stop is checkpointed if the newest checkpoint has this position already
            checkpointed = saved or (not should_save and cause != "superseded" and unchanged)
            return ("superseded" if self._session.stop_requests.superseded else cause), checkpointed

        cause, checkpointed = self._group.on_rank_zero(outcome)
        self.callbacks.run_after(cause)
        self._session.exit_for_stop(
            cause,
            step=progress.step,
            noticed=noticed,
            checkpointed=checkpointed,
            progress=self._position.adaptive_progress,
        )

    def finish(self) -> None:
        """End the training for good, before its last epoch perhaps: a later start trains no more. Collective.

        Raises:
            CheckpointError: the final checkpoint cannot be written.
        """
        if not self._session.ended:
            self._position.finish()
        self.end()

    def end(self) -> None:
        """Save the final checkpoint, and end the training; nothing where it has ended already. Collective.

        Raises:
            CheckpointError: the final checkpoint cannot be written.
        """
        if self._session.ended:
            return
        self._session.drain_boundary_vote()  # of a step right after which the script has left its loop
        self._session.metrics.time_last_step()
        self._session.metrics.synchronize()
        self.report_steps()
        progress = self._position.progress
        if not self._checkpointing.save_at_end(progress):
            self.stop("superseded")
        with self._group.watchdog.armed("the end of the training"):
            stop_buffer_broadcasts(self._accumulation.synchronized)  # later evaluations may differ between ranks
        self._group.watchdog.close()
        self._session.report_finished(
            step=progress.step, samples=progress.samples, progress=self._position.adaptive_progress
        )
