"""Accelerate under metasched: a training stops after any step, and resumes at any world size.

    shim = ElasticAccelerate("checkpoints", global_batch=64, max_per_gpu=8, seed=1)
    accelerator = Accelerator(**shim.options())
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, shim.loader(dataset), schedule)
    shim.start(accelerator, epochs=3)
    for epoch in shim.epochs():
        for x, y in shim.batches(loader):
            with accelerator.accumulate(model):
                loss = loss_fn(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
            shim.step(loss)

Copy this file into the directory of the script, or put its directory on PYTHONPATH. docs/user/INTEGRATIONS.md says
what holds and what does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import Accelerator, skip_first_batches
from accelerate.tracking import GeneralTracker
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader

from trainer_shim import attach
from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from trainer_shim.data.even_split import GlobalOrder
    from trainer_shim.trackers.tracker import Tracker


class ElasticAccelerate:
    """Stops, checkpoints and the order of the data. Make it at the top of the script, before the Accelerator.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share.
        global_batch: samples in an optimizer step, at every world size.
        max_per_gpu: the most samples that fit on a GPU at once.
        seed: of the order of the samples, and of torch's generator in the steps.
        checkpoint_every: seconds between periodic checkpoints.
        trust_checkpoints: whether to load checkpoints of any class, whoever else may write to the directory.

    Raises:
        BatchError: the global batch cannot be split evenly over this world.
        CheckpointError: the directory cannot be used.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        *,
        global_batch: int,
        max_per_gpu: int | None = None,
        seed: int = 0,
        checkpoint_every: float = 600.0,
        trust_checkpoints: bool = False,
    ) -> None:
        self.companion = attach(checkpoint_dir, checkpoint_every=checkpoint_every, trust_checkpoints=trust_checkpoints)
        self.plan = self.companion.plan(global_batch, max_per_gpu)
        self._seed = seed
        self._order: GlobalOrder | None = None
        self._accelerator: Accelerator | None = None
        self._total = 0  # epochs
        self._micro = 0  # micro-batches of the step in hand
        self._loss: torch.Tensor | float = 0.0

    def options(self, **own: Any) -> dict[str, Any]:
        """Return the options for an Accelerator: the script's own, and those that the shim needs."""
        fixed = {
            "gradient_accumulation_plugin": GradientAccumulationPlugin(
                num_steps=self.plan.accumulation, sync_with_dataloader=False
            ),
            # Accelerate would step a schedule once for each process, so that it would depend on the world size.
            "step_scheduler_with_optimizer": False,
        }
        taken = (fixed.keys() | {"gradient_accumulation_steps"}) & own.keys()
        if taken:
            raise UsageError(f"Accelerator({', '.join(sorted(taken))}=...): the shim fixes these")
        return own | fixed

    def tracker(self, kind: str, **options: Any) -> AcceleratedTracker:
        """Return a tracker for `options(log_with=...)`, whose run continues after stops; see `Context.tracker`."""
        return AcceleratedTracker(kind, self.companion.tracker(kind, **options))

    def loader(self, dataset: Any, *, shuffle: bool = True, **options: Any) -> DataLoader[Any]:
        """Return the loader of a map-style data set for `accelerator.prepare`; further options are DataLoader's."""
        self._order = self.companion.order(len(dataset), seed=self._seed, shuffle=shuffle)
        loader = DataLoader(dataset, batch_size=self.plan.per_gpu_batch, sampler=self._order, **options)
        self.companion.ignore_stop_signals(loader)
        return loader

    def start(self, accelerator: Accelerator, *, epochs: int) -> None:
        """Load the checkpoint, if there is one, when everything is prepared or registered, and report the start.

        Raises:
            UsageError: the Accelerator was made without `options`, or there is no loader yet.
        """
        if accelerator.gradient_accumulation_steps != self.plan.accumulation or accelerator.split_batches:
            raise UsageError("make the Accelerator from shim.options(...), without split_batches")
        if self._order is None:
            raise UsageError("shim.loader(dataset) comes before shim.start(accelerator)")
        if self.companion.resume is not None:
            accelerator.load_state(str(self.companion.resume))
            accelerator.step = 0  # it counts micro-batches, of which a step may have had more or fewer then
        self._accelerator, self._total = accelerator, epochs
        self.companion.begin(epochs * self._order.steps_per_epoch)

    def epochs(self) -> Iterator[int]:
        """Iterate over the epochs that are left, the first perhaps in its middle; then write the final checkpoint.

        A finished job has no epochs left.

        Raises:
            SystemExit: a stop was agreed in the last epoch's last step.
        """
        first = self._where()[0]
        if not self.companion.finished:
            yield from range(first, self._total)
        self.finish()

    def finish(self) -> None:
        """Save what was trained, and end; for scripts that leave `epochs` before its end (early stopping)."""
        if not self.companion.checkpoint_is_current:
            self._save(final=True)
        self.companion.finish()

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over the batches of a prepared loader that are left of the epoch."""
        done = self._where()[1]
        rest = skip_first_batches(loader, done * self.plan.accumulation) if done else loader
        for batch in rest:
            self.companion.seed(self._seed, self._micro)  # after the random draws of the loader
            yield batch

    def step(self, loss: torch.Tensor) -> None:
        """Count a micro-batch; at the end of a step the ranks vote on whether to stop, and save and stop.

        Raises:
            SystemExit: a stop was agreed.
        """
        self._loss = self._loss + loss.detach() / self.plan.accumulation
        self._micro += 1
        if self._micro == self.plan.accumulation:
            stops = self.companion.should_stop(self._loss)
            self._micro, self._loss = 0, 0.0
            if self.companion.should_save:
                self._save()
            if stops:
                self.companion.stop()

    def _where(self) -> tuple[int, int]:
        """Return the present epoch, and the number of its steps that are done."""
        if self._order is None or self._accelerator is None:
            raise UsageError("shim.start(accelerator, epochs=...) comes first")
        return divmod(self.companion.step, self._order.steps_per_epoch)

    def _save(self, *, final: bool = False) -> None:
        assert self._accelerator is not None  # noqa: S101  `start` came first
        path = self.companion.directory / f"step-{self.companion.step}"
        self._accelerator.save_state(str(path))
        self.companion.saved(path, final=final)


class AcceleratedTracker(GeneralTracker):  # type: ignore[misc]
    """A tracker of Accelerate that logs to the job's run of a tracker."""

    requires_logging_directory = False

    def __init__(self, kind: str, tracker: Tracker) -> None:
        self.name = kind
        self._tracker = tracker
        super().__init__()

    @property
    def tracker(self) -> Any:
        """Return the library's own object, None on ranks but rank 0."""
        return self._tracker.handle

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Log the values that no earlier run has logged at this step."""
        self._tracker.log(values, step)
