"""The probe in each rank: runs the user's script with a context that records, and that stops or dies at a given step.

The driver starts `main` with its orders as JSON, the script and the script's arguments. Records are JSON lines: a
`ready` line when the training loop begins, then a `step` line before each optimizer step.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, NoReturn

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from trainer_shim.errors import UsageError
from trainer_shim.rehearse.plain import gradient_norm, record_plain_steps
from trainer_shim.session import companion_startup, context_startup
from trainer_shim.session.context import Context
from trainer_shim.session.vote_interval import VoteInterval

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Orders(NamedTuple):
    """The orders of the driver to a rank.

    Attributes:
        records: the path of the rank's records.
        checkpoints: the checkpoint directory.
        seed: the seed of the global generators.
        stop_at, kill_at: the step after which the rank requests a stop, or dies; None for no such step.
        plain_steps: None for a script with the shim; else the steps after which the plain script ends.
    """

    records: str
    checkpoints: str
    seed: int
    stop_at: int | None
    kill_at: int | None
    plain_steps: int | None = None


class RecordingContext(Context):
    """A context that records the training."""

    def __init__(self, orders: Orders, **options: Any) -> None:
        super().__init__(**options)
        self._session.vote_interval = VoteInterval(max_seconds=0.0)  # both runs have to stop at the same steps
        self._orders = orders
        self._records = Path(orders.records).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115  open until the process ends
        self._loss_total = 0.0
        self._trained: list[int] = []
        self._remarked: set[str] = set()
        self._stop_requested = False
        _watch_calls(self._note_call)

    def epochs(self, total: int) -> Iterator[int]:
        """Write a `ready` record, then do as `Context.epochs`."""
        self._record_ready()
        yield from super().epochs(total)

    def steps(self, total: int, **options: Any) -> Iterator[int]:
        """Write a `ready` record, then do as `Context.steps`."""
        self._record_ready()
        yield from super().steps(total, **options)

    def _record_ready(self) -> None:
        self._record(
            "ready",
            step=self.step_count,
            global_batch=getattr(self._position.loader, "first_batch", None),
            samples=getattr(getattr(self._position.loader, "order", None), "size", None),  # a stream has none
            tracked={name: type(item).__name__ for name, item in self._objects().items()},
            remarks=sorted(self._remarks()),
        )

    def backward(self, loss: torch.Tensor, *rest: Any, **options: Any) -> None:
        """Do as `Context.backward`, and note the loss and the trained samples."""
        self._request_stop()
        super().backward(loss, *rest, **options)
        self._note_loss(loss)

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Do as `Context.weighted`, and note the loss and the trained samples."""
        self._request_stop()
        found = super().weighted(loss)
        self._note_loss(loss)
        return found

    def _request_stop(self) -> None:
        """Request a stop at the ordered step, before the vote that `backward` starts. A later step is late, too."""
        at = self._orders.stop_at
        if at is not None and self.boundary and self.step_count + 1 >= at and not self._stop_requested:
            self._stop_requested = True
            signal.raise_signal(self._session.job.signal)

    def _note_loss(self, loss: torch.Tensor) -> None:
        micro = self._accumulation.current()
        self._loss_total += loss.item() * micro.samples
        if micro.samples:  # otherwise a filler
            self._trained += micro.indices or range(micro.position, micro.position + micro.samples)

    def step(self, *optimizers: torch.optim.Optimizer, **options: Any) -> bool:
        """Write a `step` record, do as `Context.step`, and stop or die at the ordered step."""
        if self.boundary:
            step = self.step_count + 1
            # Before the step's vote, so that all ranks have recorded every step of a checkpoint.
            self._record(
                "step",
                step=step,
                epoch=self._position.progress.epoch,
                indices=self._trained,
                loss=self._loss_total,
                lr=[float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups],
                gradient=gradient_norm(optimizers),
            )
            self._loss_total, self._trained = 0.0, []
            self._request_stop()  # of a script that calls no ctx.backward
        stepped = super().step(*optimizers, **options)
        if stepped and self.step_count == self._orders.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return stepped

    def _note_call(self, topic: str, name: str) -> None:
        """Note a call of a function within a global batch that belongs to its end."""
        if self._accumulation.micro is not None and not self.boundary and topic not in self._remarked:
            self._remarked.add(topic)
            self._record("remark", text=f"{topic}: {name}")

    def _record(self, kind: str, **values: Any) -> None:
        self._records.write(json.dumps({"kind": kind, **values}) + "\n")

    def _objects(self) -> dict[str, Any]:
        tracked = self._checkpointing.tracked
        return {} if tracked is None else dict(tracked.objects)

    def _remarks(self) -> Iterator[str]:
        """Yield properties of the script that may make runs differ, `topic: detail`, with the topics of `causes`."""
        tracked = list(self._objects().values())
        modules = [item for item in tracked if isinstance(item, torch.nn.Module)]
        for module in modules:
            for name, part in module.named_modules():
                kind = type(part).__name__
                if isinstance(part, _BatchNorm) and not isinstance(part, torch.nn.SyncBatchNorm):
                    yield f"batchnorm: {kind} {name!r}"
                if isinstance(part, _DropoutNd) and part.p > 0:
                    yield f"dropout: {kind} {name!r}"
        for name in _untracked(tracked):
            yield f"untracked: {name}"


def _watch_calls(note: Callable[[str, str], None]) -> None:
    """Call `note` with a topic and a name before each call of a function that belongs to the end of a global batch."""
    clipping = torch.nn.utils.clip_grad
    for owner, name, topic in (
        (clipping, "clip_grad_norm_", "clipping"),
        (clipping, "clip_grad_value_", "clipping"),
        (AveragedModel, "update_parameters", "averaging"),
    ):
        watched = _watched(getattr(owner, name), topic, name, note)
        setattr(owner, name, watched)
        if owner is clipping:
            setattr(torch.nn.utils, name, watched)


def _watched(
    function: Callable[..., Any], topic: str, name: str, note: Callable[[str, str], None]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        note(topic, name)
        return function(*arguments, **options)

    return call


def _untracked(tracked: list[Any]) -> Iterator[str]:
    """Yield the classes of live objects that training changes and that no tracked object holds."""
    held, open_ends = set(), list(tracked)
    while open_ends:
        item = open_ends.pop()
        if id(item) in held:
            continue
        held.add(id(item))
        if isinstance(item, LRScheduler):  # it refers to its optimizer, and does not save it
            open_ends += getattr(item, "_schedulers", [])
        elif isinstance(item, torch.nn.Module):
            held.update(id(part) for part in item.modules())
        elif hasattr(item, "__dict__"):  # an object of the script's own, which may hold such objects
            open_ends += _contents(vars(item).values())

    living = gc.get_objects()
    nested = {
        id(part) for item in living if issubclass(type(item), LRScheduler) for part in getattr(item, "_schedulers", [])
    }
    for item in living:
        kind = type(item)
        if id(item) in held or id(item) in nested:
            continue
        if issubclass(kind, (torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, AveragedModel)):
            yield kind.__name__
        elif issubclass(kind, DistributedDataParallel) and id(item.module) not in held:
            yield f"{type(item.module).__name__} in DistributedDataParallel"


def _contents(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer, LRScheduler)):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _contents(value)
        elif isinstance(value, dict):
            yield from _contents(value.values())


def _seed(seed: int) -> None:
    """Seed the global generators, which a script may leave unseeded."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")  # torch imports it where it is installed
    if numpy is not None:
        numpy.random.seed(seed)


def _refuse(*_: object, **__: object) -> NoReturn:
    """Refuse `attach`: the trained samples and the checkpoints of a framework's loop are not known."""
    raise UsageError("a script that uses attach() (Lightning, Transformers, Accelerate) cannot be rehearsed")


def main() -> None:
    """Run the script as `__main__`, in the place of this module."""
    encoded, script, *arguments = sys.argv[1:]
    orders = Orders(**json.loads(encoded))
    start = context_startup.start_context
    # The directory that the script names is never used.
    context_startup.start_context = lambda _, *rest, **options: start(orders.checkpoints, *rest, **options)
    context_startup.Context = lambda **options: RecordingContext(orders, **options)  # type: ignore[assignment,attr-defined]
    companion_startup.start_companion = _refuse
    if orders.plain_steps is not None:
        record_plain_steps(Path(orders.records), orders.plain_steps)
    _seed(orders.seed)

    module = sys.modules["__main__"]
    module.__dict__.update(__file__=script, __spec__=None, __cached__=None)
    sys.argv[:] = [script, *arguments]
    sys.path.append(sys.path[0])  # the directory of the driver's trainer_shim
    sys.path[0] = str(Path(script).parent)
    code = compile(Path(script).read_bytes(), script, "exec")
    exec(code, module.__dict__)  # noqa: S102  the user's own script
