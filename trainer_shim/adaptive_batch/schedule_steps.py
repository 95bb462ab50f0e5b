"""Learning-rate schedules by step, which follow the progress of a training whose batch adapts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class ScheduleSteps:
    """Makes the steps of schedules that a step at a larger batch stands for.

    A script steps its schedule once for each optimizer step. Where such a step makes more progress than one step at M0,
    the schedule makes the further whole steps here. Schedules that are stepped between the epochs are left alone,
    because epochs follow the progress, too; so are those that follow a metric.

    Args:
        objects: the tracked objects of the script, of which the schedules are chosen.
        last: the progress at the end of the training, beyond which no schedule makes a step.
    """

    def __init__(self, objects: Iterable[Any], last: float) -> None:
        by_metric = torch.optim.lr_scheduler.ReduceLROnPlateau
        self._schedules = [
            item
            for item in objects
            if isinstance(item, torch.optim.lr_scheduler.LRScheduler) and not isinstance(item, by_metric)
        ]
        self._last = last
        self.observe()

    def observe(self) -> None:
        """Note the positions of the schedules before the script's steps."""
        self._positions = [schedule.last_epoch for schedule in self._schedules]

    def follow(self, before: float, after: float) -> None:
        """Make the further steps of the schedules that the script has stepped once since `observe`.

        Args:
            before: the progress before the optimizer step.
            after: the progress after it.
        """
        due = int(min(after, self._last)) - int(min(before, self._last))
        for schedule, position in zip(self._schedules, self._positions):
            if schedule.last_epoch == position + 1:
                for _ in range(due - 1):
                    schedule.step()
        self.observe()
