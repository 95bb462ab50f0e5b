"""PyTorch Lightning under metasched: a training stops after any step, and resumes at any world size.

    shim = ElasticLightning("checkpoints", global_batch=64, max_per_gpu=8, seed=1)
    trainer = pl.Trainer(**shim.options(max_epochs=3))
    trainer.fit(module, shim.loader(dataset), ckpt_path=shim.resume)

Copy this file into the directory of the script, or put its directory on PYTHONPATH. docs/user/INTEGRATIONS.md says
what holds and what does not.
"""

# ruff: noqa: ARG002  a framework gives its hooks more than they need

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

# Of the two packages, the one that the script has imported; their classes are not those of one another.
if importlib.util.find_spec("lightning") is not None and (
    "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules
):
    import lightning.pytorch as pl
    from lightning.fabric.plugins import ClusterEnvironment, TorchCheckpointIO
    from lightning.pytorch.loggers import Logger
else:
    import pytorch_lightning as pl
    from lightning_fabric.plugins import ClusterEnvironment, TorchCheckpointIO
    from pytorch_lightning.loggers import Logger

from trainer_shim import attach
from trainer_shim.checkpointing.trusted_load import load_states
from trainer_shim.errors import SupersededError, UsageError

if TYPE_CHECKING:
    from trainer_shim.session.companion import Companion
    from trainer_shim.trackers.tracker import Tracker

log = logging.getLogger("trainer_shim")


class ElasticLightning:
    """Everything that a `Trainer` needs. Make it at the top of the script, before the Trainer.

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
        self.resume = None if self.companion.resume is None else str(self.companion.resume)
        self._seed = seed
        self._trusted = trust_checkpoints

    def loader(self, dataset: Any, *, shuffle: bool = True, **options: Any) -> DataLoader[Any]:
        """Return the loader of a map-style data set; further options (`num_workers`, ...) are DataLoader's."""
        batches = self.companion.batches(len(dataset), seed=self._seed, shuffle=shuffle)
        loader = DataLoader(dataset, batch_sampler=batches, **options)
        self.companion.ignore_stop_signals(loader)
        return loader

    def tracker(self, kind: str, **options: Any) -> TrackerLogger:
        """Return a logger for `options(logger=...)`, whose run continues after stops; see `Context.tracker`."""
        return TrackerLogger(kind, self.companion.tracker(kind, **options))

    def options(self, **own: Any) -> dict[str, Any]:
        """Return the options for a Trainer: the script's own, and those that the shim needs."""
        environment = Environment(self.companion)
        fixed = {
            "num_nodes": 1,  # the environment knows the ranks; see there
            "devices": environment.devices,
            "accumulate_grad_batches": self.plan.accumulation,
            "use_distributed_sampler": False,
        }
        taken = fixed.keys() & own.keys()
        if taken:
            raise UsageError(f"Trainer({', '.join(sorted(taken))}=...): the shim fixes these")
        mine = {
            "strategy": "ddp" if self.companion.size > 1 else "auto",
            "callbacks": [*_listed(own.pop("callbacks", None)), ElasticCallback(self.companion, self._seed)],
            "plugins": [
                *_listed(own.pop("plugins", None)),
                environment,
                CheckpointFiles(self.companion, self.plan.accumulation, trusted=self._trusted),
            ],
            "enable_checkpointing": False,  # Lightning's own ModelCheckpoint; a script may add one
        }
        return mine | own | fixed


class OfThisProcess:
    """Base of the parts that hold this process's companion: a copy is the object itself.

    LightningCLI copies the defaults of a Trainer, and the locks of a process group cannot be copied.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> OfThisProcess:
        return self


class Environment(OfThisProcess, ClusterEnvironment):
    """The world as the shim has found it, under srun, torchrun or neither.

    It takes the place of Lightning's SLURMEnvironment, so that nobody but metasched requeues the job. Lightning derives
    ranks from equal numbers of devices on all nodes; here they are what they are, and the nodes need not be equal.
    """

    def __init__(self, companion: Companion) -> None:
        super().__init__()
        self._companion = companion
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0")) if companion.size > 1 else 0
        visible = torch.cuda.device_count()
        self._device = self._local_rank % visible if visible else self._local_rank
        self.devices = visible if visible and companion.size > 1 else self._device + 1

    @property
    def creates_processes_externally(self) -> bool:
        """Return True: the launcher of this process has started the other ranks."""
        return True

    @property
    def main_address(self) -> str:
        """Return the address of the host of rank 0."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Return the port of rank 0; the process group exists already."""
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    def detect() -> bool:
        """Return False: the environment is passed to the Trainer, and not detected."""
        return False

    def world_size(self) -> int:
        """Return the number of processes of the job."""
        return self._companion.size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the world size is known."""

    def global_rank(self) -> int:
        """Return this process's rank."""
        return self._companion.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the rank is known."""

    def local_rank(self) -> int:
        """Return the index of this process's device among those that it sees."""
        return self._device

    def node_rank(self) -> int:
        """Return 0: the node is not known, and not needed with `num_nodes=1`."""
        return 0


class CheckpointFiles(OfThisProcess, TorchCheckpointIO):
    """Checkpoint files that are complete or absent, and not written by a superseded trainer.

    A full disk is an error in the log, and no end of the training. A checkpoint that is loaded at another world size
    has its counts of micro-batches converted.
    """

    def __init__(self, companion: Companion, accumulation: int, *, trusted: bool = False) -> None:
        super().__init__()
        self._trusted = trusted
        self._companion = companion
        self._accumulation = accumulation

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the file; a full disk or a newer generation leaves no file, and a line in the log."""
        if storage_options is not None:
            raise TypeError("storage_options are not supported")
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._companion.atomic_file(path) as file:
                torch.save(checkpoint, file)
        except OSError as error:
            log.error("no checkpoint %s: %s", path, error)  # noqa: TRY400  the message says it
        except SupersededError:
            log.warning("no checkpoint %s: a newer trainer has started", path)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:  # noqa: FBT001  Lightning's
        """Read the file; in the one to resume from, convert the counts of micro-batches to this world size."""
        # Hyperparameters and callbacks may keep objects of any class.
        checkpoint: dict[str, Any]
        if weights_only:
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
        else:
            checkpoint = load_states(Path(path), map_location, trusted=self._trusted)
        if Path(path) == self._companion.resume:
            then, now = self._companion.resumed_metadata["accumulation"], self._accumulation
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
            for counts in (progress["total"], progress["current"]):
                behind = counts["ready"] - counts["completed"]  # 1 if it was saved by a hook of the last batch
                for name in ("ready", "started", "processed"):
                    counts[name] = counts[name] * now // then
                counts["completed"] = counts["ready"] - behind
        return checkpoint


class TrackerLogger(OfThisProcess, Logger):
    """A logger of Lightning that logs to the job's run of a tracker."""

    def __init__(self, kind: str, tracker: Tracker) -> None:
        super().__init__()
        self._kind = kind
        self._tracker = tracker

    @property
    def name(self) -> str:
        """Return the kind of tracker."""
        return self._kind

    @property
    def version(self) -> str:
        """Return an empty name: there is one run."""
        return ""

    @property
    def experiment(self) -> Any:
        """Return the library's own object, None on ranks but rank 0."""
        return self._tracker.handle

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log the metrics that no earlier run has logged at this step."""
        self._tracker.log(metrics, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the options of `ElasticLightning.tracker` have them (`config=` of W&B, `params=` of MLflow)."""


class ElasticCallback(OfThisProcess, pl.Callback):
    """The Lightning callback that stops and saves at the ends of steps."""

    def __init__(self, companion: Companion, seed: int) -> None:
        self._companion = companion
        self._seed = seed
        self._loss: torch.Tensor | float = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the start, and take the stop signals back from Lightning, which has just taken SIGTERM."""
        if not isinstance(trainer, pl.Trainer):
            raise UsageError(
                f"the Trainer is of the package {type(trainer).__module__.partition('.')[0]}, and metasched_lightning "
                f"has found {pl.__name__}: import Lightning before metasched_lightning"
            )
        if trainer.global_step != self._companion.step:
            raise UsageError("call trainer.fit(..., ckpt_path=shim.resume); one optimizer, automatic optimization")
        total = trainer.estimated_stepping_batches
        self._companion.begin(int(total) if total != float("inf") else None)
        # After early stopping, Lightning would train on.
        trainer.should_stop = trainer.should_stop or self._companion.finished

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let dropout draw the same numbers after a restart: Lightning's checkpoints hold no generator's state."""
        self._companion.seed(self._seed, batch_idx % trainer.accumulate_grad_batches)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """At the end of a step, though not of an epoch, agree with the other ranks, save and stop."""
        if isinstance(outputs, dict) and "loss" in outputs:
            self._loss = self._loss + outputs["loss"].detach()  # divided by the accumulation already
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and batch_idx + 1 < trainer.num_training_batches:
            self._boundary(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """At the end of an epoch, after the validation, agree with the other ranks, save and stop."""
        self._boundary(trainer, epoch_ends=True)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the time of the validation out of the reports."""
        self._companion.restart_timer()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the final checkpoint."""
        if not self._companion.checkpoint_is_current:
            self._save(trainer, final=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the end, also for a job that was finished before."""
        self._companion.begin()
        self._companion.finish()

    def _boundary(self, trainer: pl.Trainer, *, epoch_ends: bool = False) -> None:
        stops = self._companion.should_stop(self._loss)
        self._loss = 0.0
        if self._companion.should_save:
            self._save(trainer)
        if stops:
            # Lightning would log the metrics of this step, or epoch, after the hook that a stop leaves.
            connector = trainer._logger_connector  # noqa: SLF001
            if epoch_ends:
                connector.on_epoch_end()
                connector.update_train_epoch_metrics()
            else:
                connector.update_train_step_metrics()
            self._companion.stop()

    def _save(self, trainer: pl.Trainer, *, final: bool = False) -> None:
        path = self._companion.directory / f"step-{self._companion.step}.ckpt"
        trainer.save_checkpoint(path)
        self._companion.saved(path, final=final)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
