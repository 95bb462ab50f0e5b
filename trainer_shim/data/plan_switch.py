"""Changes of the batch plan within a pass over the data, beyond the samples that a rank has requested already."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from trainer_shim.batch import BatchPlan


class PlanSwitch:
    """The batch plan of each position in one pass over the data.

    Loader workers request samples long before they are trained on, each rank at its own pace. All ranks switch at one
    position, the end of what any of them has requested; up to there they keep the earlier plan.

    Args:
        plan: the plan from the beginning on.

    Attributes:
        changed: whether the plan changes, or has changed, in this pass.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.changed = False
        self._plan = plan
        self._next: list[tuple[int, BatchPlan]] = []  # agreed changes beyond the requested samples
        self._requested = 0  # the end of the last requested global batch
        self._lock = threading.Lock()  # the loader requests samples in a thread of its own

    def plan_at(self, start: int, end: int) -> BatchPlan:
        """Return the plan of the global batch that begins at `start`, which the caller requests now.

        Args:
            start: the position of the first sample.
            end: the position at which the pass ends.
        """
        with self._lock:
            while self._next and start >= self._next[0][0]:
                self._plan = self._next.pop(0)[1]
            self._requested = min(start + self._plan.global_batch, end)
            return self._plan

    def switch(self, plan: BatchPlan, latest: Callable[[int], int]) -> None:
        """Use `plan` from a position on that all ranks agree on. Collective; nothing is requested meanwhile.

        Args:
            plan: the new plan.
            latest: returns the highest of the ranks' positions, on every rank.
        """
        with self._lock:
            self.changed = True
            self._next.append((latest(self._requested), plan))
