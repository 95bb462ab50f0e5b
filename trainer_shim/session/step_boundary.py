"""The boundary after an optimizer step, or before an epoch, at which the ranks do what they have voted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_shim.process_groups.script_group import ScriptGroup
    from trainer_shim.session.data_supply import DataSupply
    from trainer_shim.session.script_checkpointing import ScriptCheckpointing
    from trainer_shim.session.trainer_session import TrainerSession
    from trainer_shim.session.training_end import TrainingEnd
    from trainer_shim.session.training_position import TrainingPosition


class StepBoundary:
    """The boundaries of a training.

    Args:
        session: the session of this trainer.
        group: the processes of the training.
        checkpointing: its checkpoints.
        position: its position.
        supply: the data that this rank has fetched.
        ending: what ends the training.
    """

    def __init__(
        self,
        *,
        session: TrainerSession,
        group: ScriptGroup,
        checkpointing: ScriptCheckpointing,
        position: TrainingPosition,
        supply: DataSupply,
        ending: TrainingEnd,
    ) -> None:
        self._session = session
        self._group = group
        self._checkpointing = checkpointing
        self._position = position
        self._supply = supply
        self._ending = ending

    def start_vote(self) -> None:
        """Start the vote of the next boundary, if that boundary has one that was not started yet."""
        adaptation = self._position.adaptation
        self._session.start_boundary_vote(self._supply, adaptation.wants_plan if adaptation is not None else None)

    def pass_boundary(self) -> None:
        """Pass the boundary after a step, or before an epoch: do what the ranks have voted for. Collective.

        Raises:
            SystemExit: the ranks have voted to stop.
        """
        self.start_vote()  # not started by `step` where an evaluation has forced a vote
        watchdog, metrics, position = self._group.watchdog, self._session.metrics, self._position
        watchdog.first_step_done = metrics.steps > 0 or watchdog.first_step_done
        vote = self._session.finish_boundary_vote()
        if vote is None:
            return
        stop_cause, save_due = vote.stop_cause, vote.save_due > 0
        if position.splits_measurement and not (vote.urgent or vote.superseded or vote.deadline_near):
            stop_cause, save_due = None, False  # until the next boundary
            self._session.vote_interval.force_vote()
        self._supply.late = vote.data_late > 0
        if vote.report_due or save_due or stop_cause:
            metrics.synchronize()
        if vote.report_due or stop_cause:
            self._ending.report_steps()
        if stop_cause:
            self._ending.stop(stop_cause, urgent=vote.urgent > 0)
        if position.loader is not None:
            self._checkpointing.saver.settle(wait=False)
            if save_due:
                self._checkpointing.start(position.progress)
        if vote.plan_due and position.adaptation is not None:
            position.adaptation.agree_on_plan()
