"""TensorBoard: a directory of event files, one for each run of the job, which TensorBoard shows as one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import SummaryWriter

if TYPE_CHECKING:
    from collections.abc import Mapping


class TensorboardRun:
    """A directory of event files; see `TrackerRun`."""

    def __init__(self, run_id: str, options: dict[str, Any]) -> None:
        self.handle = SummaryWriter(**{"log_dir": str(Path("runs", run_id)), **options})

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write values at an optimizer step to the file."""
        for name, value in values.items():
            self.handle.add_scalar(name, value, step)
        self.handle.flush()

    def close(self, outcome: str) -> None:  # noqa: ARG002  an event file has no outcome
        """Close the event file of this run; the outcome has no place in it."""
        self.handle.close()


def open_run(run_id: str, options: dict[str, Any]) -> TensorboardRun:
    """Return the run with this id, in `runs/ID` by default; the options are those of `SummaryWriter`."""
    return TensorboardRun(run_id, options)
