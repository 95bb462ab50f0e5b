"""Runs a training script as `__main__`, paces its optimizer steps, and halts the rank before one until a file exists.

The driver (`training_starts`) starts it in each rank with its orders as JSON, the script and the script's arguments.
"""

from __future__ import annotations

import collections
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

POLL_SECONDS = 0.005


class StepGate:
    """Counts the optimizer steps of this start, before each; of several optimizers, those of the busiest one.

    Args:
        halt_at: the step before which the rank waits, None for no such step.
        pace: seconds to wait before each step, so that short steps are not over before a signal arrives.
        arrived: the file that the rank makes when it has halted.
        go: the file whose existence ends the wait.
    """

    def __init__(self, halt_at: int | None, pace: float, arrived: Path, go: Path) -> None:
        self._halt_at = halt_at
        self._pace = pace
        self._arrived, self._go = arrived, go
        self._steps: collections.Counter[int] = collections.Counter()

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Count a step of `optimizer`, and wait."""
        self._steps[id(optimizer)] += 1
        time.sleep(self._pace)
        if self._halt_at is None or max(self._steps.values()) < self._halt_at or self._arrived.exists():
            return
        self._arrived.touch()
        while not self._go.exists():
            time.sleep(POLL_SECONDS)


def run_script() -> None:
    """Run the script in the place of this module."""
    orders, script, *arguments = sys.argv[1:]
    given = json.loads(orders)
    gate = StepGate(given["halt_at"], given["pace"], Path(given["arrived"]), Path(given["go"]))
    register_optimizer_step_pre_hook(gate)
    torch.set_num_threads(1)
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    run_script()
