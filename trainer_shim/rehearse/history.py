"""The surviving history of a run: the steps that its checkpoints build on, read from the records of its ranks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoints
from trainer_shim.rehearse.errors import RehearsalError
from trainer_shim.rehearse.state import flatten, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint
    from trainer_shim.rehearse.launch import RunSetup
    from trainer_shim.rehearse.plan import Start


class Step(NamedTuple):
    """One optimizer step over all ranks.

    Attributes:
        epoch: the epoch, from 0.
        indices: the indices of the trained samples, sorted.
        loss: the mean over the global batch.
        lr: the learning rate of each parameter group.
        start: the start of the script that has trained the step, from 1.
        gradient: the norm of rank 0's gradient, None where it is not known.
    """

    epoch: int
    indices: list[int]
    loss: float
    lr: list[float]
    start: int
    gradient: float | None = None


class History(NamedTuple):
    """All starts of a run.

    Attributes:
        starts: the starts, as they were planned.
        resumed_from: the step that each start resumed from.
        steps: the surviving steps by number, from 1.
        samples: the size of the data set, None for a stream.
        tracked: the class name of each tracked object, by its name.
        remarks: the remarks of the probe, `topic: detail`.
        state: the leaves of each tracked object's state in the last checkpoint, by name and path.
        global_batches: the global batch of each start, None where it is not known.
    """

    starts: list[Start]
    resumed_from: list[int]
    steps: dict[int, Step]
    samples: int | None
    tracked: dict[str, str]
    remarks: list[str]
    state: dict[str, dict[str, Any]]
    global_batches: Sequence[int | None] = ()

    def undisturbed_until(self, step: int) -> bool:
        """Return whether the start that trained `step` had resumed from no checkpoint."""
        return self.resumed_from[self.steps[step].start - 1] == 0

    @property
    def last_steps(self) -> list[int]:
        """The last step of each epoch, ascending."""
        return sorted({step.epoch: number for number, step in sorted(self.steps.items())}.values())


def read_history(setup: RunSetup, starts: list[Start]) -> History:
    """Read the records and the last checkpoint of a run.

    Raises:
        RehearsalError: the script does not train with the shim, or left no checkpoint.
    """
    steps: dict[int, Step] = {}
    resumed_from: list[int] = []
    remarks: set[str] = set()
    ready: dict[str, Any] = {}
    global_batches: list[int | None] = []
    for number, start in enumerate(starts, start=1):
        ranks = [_read(setup.records(number, rank)) for rank in range(start.size)]
        if not ranks[0]:
            raise RehearsalError(
                f"start {number} ended without a call of `ctx.epochs` or `ctx.steps`: does the script use trainer_shim?"
            )
        ready = ranks[0][0]
        resumed_from.append(ready["step"])
        global_batches.append(ready["global_batch"])
        steps = {step: seen for step, seen in steps.items() if step <= ready["step"]}  # later steps were lost
        for begin, *lines in ranks:
            remarks.update(begin["remarks"])
            remarks.update(line["text"] for line in lines if line["kind"] == "remark")
            for line in (line for line in lines if line["kind"] == "step"):
                blank = Step(line["epoch"], [], 0.0, line["lr"], number, line["gradient"])
                before = steps.get(line["step"], blank)
                steps[line["step"]] = before._replace(
                    indices=before.indices + line["indices"], loss=before.loss + line["loss"]
                )
    if not steps:
        raise RehearsalError("the script trained no step: does it call ctx.step(optimizer)?")
    steps = {
        number: step._replace(indices=sorted(step.indices), loss=step.loss / max(len(step.indices), 1))
        for number, step in steps.items()
    }
    checkpoint = ScriptCheckpoints(setup.checkpoints).latest()
    if checkpoint is None or checkpoint.progress.step != max(steps):
        raise RehearsalError(f"the script ended without a checkpoint of its last step, {max(steps)}")
    return History(
        starts=starts,
        resumed_from=resumed_from,
        steps=steps,
        samples=ready["samples"],
        tracked=ready["tracked"],
        remarks=sorted(remarks),
        global_batches=global_batches,
        state={name: flatten(state) for name, state in {**load(checkpoint.data), **_unsharded(checkpoint)}.items()},
    )


def _unsharded(checkpoint: ScriptCheckpoint) -> dict[str, Any]:
    """Return the sharded states of a checkpoint, each put together from its parts."""
    if not checkpoint.sharded:
        return {}
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: PLC0415  slow to import

    with tempfile.TemporaryDirectory() as scratch:
        merged = Path(scratch, "merged.pt")
        dcp_to_torch_save(checkpoint.shards, merged)
        return load(merged)


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a record; a rank that was killed may have left half a line."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
