"""What is reported of the steps: a window of them at a time, which ends when the device has done them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainer_shim.process_groups.trainer_group import TrainerGroup


class StepMetrics:
    """What has been trained since the last `steps` line.

    Attributes:
        steps, samples: trained, the samples over all ranks.
        seconds: that they took, to the end of the device's work where the window ends.
        data_seconds, sync_seconds: of `seconds`, those in which this rank waited for data, and for the other ranks.
        loss: the mean over the window that was closed last, None where the shim does not know it.
        summarized_at: when that was, on the monotonic clock.
    """

    def __init__(self, group: TrainerGroup) -> None:
        self._group = group
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=group.device)
        self.loss: float | None = None
        self.summarized_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self.steps = self.samples = 0
        self._known = 0  # this rank's samples whose loss is known
        self.seconds = self.data_seconds = self.sync_seconds = 0.0
        self._loss_sum.zero_()

    def add_loss(self, loss: torch.Tensor, samples: int) -> None:
        """A loss that is the mean over so many samples of this rank."""
        self._loss_sum.add_(loss.detach(), alpha=samples)
        self._known += samples

    def add_step(self, samples: int) -> None:
        """An optimizer step over so many samples of all ranks."""
        self.steps += 1
        self.samples += samples

    def synchronize(self) -> None:
        """Let the device end the steps so far, which is part of their time."""
        asked = time.monotonic()
        self._group.synchronize()
        self.seconds += time.monotonic() - asked

    def summarize(self) -> dict[str, Any] | None:
        """What there is to report, None without steps; a new window begins. Collective: the loss is everybody's."""
        self.summarized_at = time.monotonic()
        if not self.steps:
            self._clear()
            return None
        rest = [self._known, self.data_seconds, self.sync_seconds]
        mine = torch.cat((self._loss_sum.reshape(1), self._loss_sum.new_tensor(rest)))
        loss_sum, known, data_seconds, sync_seconds = self._group.sum_tensor(mine)
        self.loss = loss_sum / known if known else None
        found = {
            "steps": self.steps,
            "samples": self.samples,
            "seconds": self.seconds,
            "data_seconds": data_seconds / self._group.size,
            "sync_seconds": sync_seconds / self._group.size,
            "loss": self.loss,
        }
        self._clear()
        return found
