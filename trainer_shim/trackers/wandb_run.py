"""Weights & Biases: a run with a fixed id, which each run of the job resumes.

W&B's own step only grows, and drops what comes below it. So the optimizer step is a value of its own, which is the x
axis of all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wandb

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP = "trainer/global_step"
"""The name of the x axis."""


class WandbRun:
    """A run of W&B; see `TrackerRun`."""

    def __init__(self, run_id: str, options: dict[str, Any]) -> None:
        self.handle = wandb.init(**{"id": run_id, "resume": "allow", **options})
        self.handle.define_metric(STEP)
        self.handle.define_metric("*", step_metric=STEP)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values at an optimizer step; W&B writes them in the background."""
        self.handle.log({**values, STEP: step})

    def close(self, outcome: str) -> None:
        """Flush, and mark a stopped run as preempted.

        W&B has no end without an exit code. That of a superseded trainer is 0: its run goes on in the newer one, and
        neither waits nor has failed.
        """
        if outcome == "stopped":
            self.handle.mark_preempting()
        self.handle.finish(exit_code=0 if outcome in {"finished", "superseded"} else 1)


def open_run(run_id: str, options: dict[str, Any]) -> WandbRun:
    """Return the run with this id; the options are those of `wandb.init`."""
    return WandbRun(run_id, options)
