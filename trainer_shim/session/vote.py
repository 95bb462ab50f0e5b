"""The record that the ranks of a training sum up to agree on what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from trainer_shim.preemption.stop_requests import CAUSES

if TYPE_CHECKING:
    from trainer_shim.preemption.stop_requests import StopRequests
    from trainer_shim.process_groups.rank_group import PendingSum


class Vote(NamedTuple):
    """One rank's vote, or the sum of all ranks' votes.

    A flag is 0 or 1 in a rank's vote, and the number of ranks that have set it in the sum.

    Attributes:
        superseded, finish, signal, mailbox, sigterm: flags, the stop requests by cause.
        urgent: flag, the stop leaves no time for a checkpoint.
        report_due: flag of rank 0, the step metrics are to be reported.
        save_due: flag of rank 0, a periodic checkpoint is to be written.
        proposed_interval: rank 0's proposal for the steps between two votes; other ranks vote 0.
        data_late: flag, the rank waits for its next batch.
        data_short: flag, the rank may wait for data before the next vote.
        batch_samples, batch_samples_squared: the size of the next global batch of a stream, and its square.
        progress_saved: flag of rank 0, a checkpoint has the present position.
        deadline_near: flag of rank 0, a checkpoint takes longer than the time to the stop's deadline; at a boundary, a
            checkpoint and two more steps.
        evaluation_unfinished: flag, the rank has further batches of the evaluation.
        evaluation_left: flag, the rank has left its evaluation loop early.
        plan_due: flag of rank 0, the ranks are to agree on a batch plan.
    """

    superseded: int = 0
    finish: int = 0
    signal: int = 0
    mailbox: int = 0
    sigterm: int = 0
    urgent: int = 0
    report_due: int = 0
    save_due: int = 0
    proposed_interval: int = 0
    data_late: int = 0
    data_short: int = 0
    batch_samples: int = 0
    batch_samples_squared: int = 0
    progress_saved: int = 0
    deadline_near: int = 0
    evaluation_unfinished: int = 0
    evaluation_left: int = 0
    plan_due: int = 0

    @property
    def stop_cause(self) -> str | None:
        """The agreed cause to stop, the first of `CAUSES` that any rank has voted for; None to continue."""
        return next((cause for cause in CAUSES if getattr(self, cause)), None)

    def with_requests(self, stop: StopRequests) -> Vote:
        """Return this vote with the rank's stop requests in it."""
        return self._replace(urgent=stop.urgent, **stop.flags())

    def pack(self) -> torch.Tensor:
        """Return the vote as an int64 tensor on the CPU, one element for each field."""
        return torch.tensor(self, dtype=torch.int64)

    @classmethod
    def unpack(cls, packed: torch.Tensor) -> Vote:
        """Return the vote, or the sum of votes, that a tensor of `pack` holds."""
        return cls(*packed.tolist())


class PendingVote:
    """A vote of all ranks that is under way while the caller does other work."""

    def __init__(self, pending: PendingSum) -> None:
        self._pending = pending

    def result(self) -> Vote:
        """Wait for every rank's vote, and return their sum, the same on all ranks."""
        return Vote.unpack(self._pending.result())
