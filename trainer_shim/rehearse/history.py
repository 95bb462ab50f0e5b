"""The surviving history of a run: what its checkpoints build on, from the records of its ranks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoints
from trainer_shim.rehearse.errors import RehearsalError
from trainer_shim.rehearse.state import flatten, load

if TYPE_CHECKING:
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint
    from trainer_shim.rehearse.launch import RunSetup
    from trainer_shim.rehearse.plan import Start


class Step(NamedTuple):
    """One optimizer step, over all ranks. `loss` is the mean over the global batch; `start` counts from 1."""

    epoch: int
    indices: list[int]
    loss: float
    lr: list[float]
    start: int


class History(NamedTuple):
    """A whole run.

    `begins` is the step that each start resumed from. `state` maps each tracked name to its leaves in the last
    checkpoint, by path. `samples` is None for a stream. `remarks` are the probe's, `topic: detail`.
    """

    starts: list[Start]
    resumed_from: list[int]
    steps: dict[int, Step]
    samples: int | None
    tracked: dict[str, str]
    remarks: list[str]
    state: dict[str, dict[str, Any]]

    def undisturbed_until(self, step: int) -> bool:
        """Whether the start that trained `step` had begun at the beginning, so that nothing was resumed."""
        return self.resumed_from[self.steps[step].start - 1] == 0

    @property
    def last_steps(self) -> list[int]:
        """The last step of each epoch, ascending."""
        return sorted({step.epoch: number for number, step in sorted(self.steps.items())}.values())


def read_history(setup: RunSetup, starts: list[Start]) -> History:
    """Read what the `starts` of a run have left.

    Raises:
        RehearsalError: the script does not train with the shim, or left no checkpoint.
    """
    steps: dict[int, Step] = {}
    resumed_from: list[int] = []
    remarks: set[str] = set()
    ready: dict[str, Any] = {}
    for number, start in enumerate(starts, start=1):
        ranks = [_read(setup.records(number, rank)) for rank in range(start.size)]
        if not ranks[0]:
            raise RehearsalError(
                f"start {number} ended well and never came to `ctx.epochs(...)`: does the script use trainer_shim?"
            )
        ready = ranks[0][0]
        resumed_from.append(ready["step"])
        steps = {step: seen for step, seen in steps.items() if step <= ready["step"]}  # the others were lost
        for begin, *lines in ranks:
            remarks.update(begin["remarks"])
            for line in (line for line in lines if line["kind"] == "step"):
                before = steps.get(line["step"], Step(line["epoch"], [], 0.0, line["lr"], number))
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
        raise RehearsalError(f"the script ended well and left no checkpoint of its last step, {max(steps)}")
    return History(
        starts=starts,
        resumed_from=resumed_from,
        steps=steps,
        samples=ready["samples"],
        tracked=ready["tracked"],
        remarks=sorted(remarks),
        state={name: flatten(state) for name, state in {**load(checkpoint.data), **_gathered(checkpoint)}.items()},
    )


def _gathered(checkpoint: ScriptCheckpoint) -> dict[str, Any]:
    """The sharded states as a single process would have them."""
    if not checkpoint.sharded:
        return {}
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: PLC0415  slow to import

    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole.pt")
        dcp_to_torch_save(checkpoint.shards, whole)
        return load(whole)


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines; a rank that was killed may have left half of one."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
