"""The step metrics of a report: steps, samples, seconds and loss since the last report."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainer_shim.process_groups.rank_group import RankGroup


class StepMetrics:
    """Counts and times of the steps since the last summary.

    Args:
        group: the processes of the training.
        measures_data: whether the waits for data are measured; otherwise the summary has no `data_seconds`.

    Attributes:
        steps: the optimizer steps since the last summary.
        data_seconds: the seconds in which this rank waited for data; they are part of the steps' time.
        loss: the mean loss of the last summary, None where the shim does not know it.
        summarized_at: the time of the last summary on the monotonic clock, 0 before the first one.
        timer_started: the time up to which the seconds are counted, on the monotonic clock.
    """

    def __init__(self, group: RankGroup, *, measures_data: bool) -> None:
        self._group = group
        self._measures_data = measures_data
        self._loss_sum: torch.Tensor | None = None  # over this rank's samples whose loss is a tensor
        self.loss: float | None = None
        self.summarized_at = 0.0
        self.timer_started = time.monotonic()
        self._step_untimed = False  # whether the time of the last step is still to be counted
        self.reset()

    def reset(self) -> None:
        """Discard the counts since the last summary."""
        self.steps = self._samples = 0
        self._known = 0  # this rank's samples whose loss is known
        self._seconds = self._sync_seconds = self.data_seconds = 0.0
        self._metric_sum, self._metrics = 0.0, 0  # of this rank's values of the script's own metric
        self._plain_loss_sum = 0.0  # over this rank's samples whose loss is a number
        if self._loss_sum is not None:
            self._loss_sum.zero_()

    def add_loss(self, loss: torch.Tensor | float, samples: int) -> None:
        """Add a loss that is the mean over `samples` samples of this rank; a tensor remains on its device."""
        self._known += samples
        if not isinstance(loss, torch.Tensor):
            self._plain_loss_sum += loss * samples
            return
        if self._loss_sum is None:
            self._loss_sum = torch.zeros((), dtype=torch.float64, device=loss.device)
        self._loss_sum.add_(loss.detach(), alpha=samples)

    def add_metric(self, value: float) -> None:
        """Add a value of the script's own metric."""
        self._metric_sum += value
        self._metrics += 1

    @property
    def unreported_metric(self) -> float | None:
        """The mean of this rank's values of the script's own metric since the last summary with steps; None without."""
        return self._metric_sum / self._metrics if self._metrics else None

    def add_step(self, samples: int) -> None:
        """Add an optimizer step over `samples` samples of all ranks."""
        self.steps += 1
        self._samples += samples
        self._step_untimed = True

    def add_sync_wait(self, seconds: float) -> None:
        """Add seconds for which this rank has waited for the other ranks, after the step's time was counted."""
        self._sync_seconds += seconds
        self._seconds += seconds

    def restart_timer(self) -> None:
        """Count the seconds from now on: the time since the last step was no training."""
        self.timer_started = time.monotonic()

    def exclude(self, seconds: float) -> None:
        """Exclude `seconds` of the time since the timer was started."""
        self.timer_started += seconds

    def stop_timer(self) -> None:
        """Count the seconds since the timer was started, or stopped last."""
        now = time.monotonic()
        self._seconds += now - self.timer_started
        self.timer_started = now
        self._step_untimed = False

    def time_last_step(self) -> None:
        """Count the seconds of a step right after which the script leaves its loop; nothing after any other step."""
        if self._step_untimed:
            self.stop_timer()

    def synchronize(self) -> None:
        """Wait for the device to finish the steps so far; the wait is part of their time."""
        started = time.monotonic()
        self._group.synchronize()
        self._seconds += time.monotonic() - started

    def summarize(self) -> dict[str, Any] | None:
        """Return the values of a `steps` report line, None without steps, and reset the counts. Collective.

        Seconds of waiting are the mean over the ranks, and the loss is the mean over all ranks' samples.
        """
        self.summarized_at = time.monotonic()
        if not self.steps:
            kept = self._metric_sum, self._metrics  # for the next line
            self.reset()
            self._metric_sum, self._metrics = kept
            return None
        own_loss = self._plain_loss_sum + (0.0 if self._loss_sum is None else self._loss_sum.item())
        own = [own_loss, self._known, self._sync_seconds, self.data_seconds, self._metric_sum, self._metrics]
        loss_sum, known, sync_seconds, data_seconds, metric_sum, metrics = self._group.sum(own)
        self.loss = loss_sum / known if known else None
        found = {
            "steps": self.steps,
            "samples": self._samples,
            "seconds": self._seconds,
            "sync_seconds": sync_seconds / self._group.size,
            "loss": self.loss,
        }
        if self.loss is not None and not math.isfinite(self.loss):
            found["diverged"] = True  # JSON has no such number, so `loss` becomes null
        if metrics:
            found["metric"] = metric_sum / metrics
        if self._measures_data:
            found["data_seconds"] = data_seconds / self._group.size
        self.reset()
        return found
