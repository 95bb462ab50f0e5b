"""The Hugging Face Trainer under metasched: a training stops after any step, and resumes at any world size.

    shim = ElasticCallback("checkpoints", global_batch=64, max_per_gpu=8, seed=1)
    args = TrainingArguments(**shim.arguments(num_train_epochs=3, learning_rate=1e-4))
    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[shim])
    trainer.train(resume_from_checkpoint=shim.resume)

Copy this file into the directory of the script, or put its directory on PYTHONPATH. docs/user/INTEGRATIONS.md says
what holds and what does not.
"""

# ruff: noqa: ARG002  a framework gives its hooks more than they need

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import RandomSampler, SequentialSampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import rewrite_logs

from trainer_shim import attach
from trainer_shim.errors import BatchError, UsageError

if TYPE_CHECKING:
    from trainer_shim.trackers.tracker import Tracker

log = logging.getLogger("trainer_shim")


class ElasticCallback(TrainerCallback):
    """Stops, checkpoints and the order of the data, for a Trainer that does the rest.

    Make it at the top of the script, before anything of Transformers or Accelerate that looks for a process group.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share.
        global_batch: samples in an optimizer step, at every world size.
        max_per_gpu: the most samples that fit on a GPU at once.
        seed: of the order of the samples.
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
        self._max_per_gpu = max_per_gpu
        self.plan = self.companion.plan(global_batch, max_per_gpu)
        self.resume = None if self.companion.resume is None else str(self.companion.resume)
        self._seed = seed
        # By default TensorBoard's files are in `output_dir`, and go with this generation. Transformers 5 looks here.
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(self.companion.directory.parent / "runs"))
        self._stopping = False
        self._loss: float | None = None

    def tracker(self, kind: str, **options: Any) -> TrackerCallback:
        """Return a callback for the Trainer that logs to a run which continues after stops; see `Context.tracker`.

        Leave the tracker out of `report_to`.
        """
        return TrackerCallback(self.companion.tracker(kind, **options))

    def arguments(self, **own: Any) -> dict[str, Any]:
        """Return the options for TrainingArguments: the script's own, and those that the shim needs."""
        fixed = {
            "output_dir": str(self.companion.directory),
            "per_device_train_batch_size": self.plan.per_gpu_batch,
            "gradient_accumulation_steps": self.plan.accumulation,
        }
        taken = fixed.keys() & own.keys()
        if taken:
            raise UsageError(f"TrainingArguments({', '.join(sorted(taken))}=...): the callback fixes these")
        defaults = {"save_strategy": "no"}
        if "logging_dir" in {field.name for field in dataclasses.fields(TrainingArguments)}:  # Transformers 4
            defaults["logging_dir"] = os.environ["TENSORBOARD_LOGGING_DIR"]
        return defaults | own | fixed

    def apply(self, args: TrainingArguments) -> TrainingArguments:
        """Set what the shim needs in arguments that were made already, as by HfArgumentParser, and return them.

        A `per_device_train_batch_size` of the user's is the most samples on a GPU at once, unless the callback has a
        `max_per_gpu` of its own.

        Raises:
            UsageError: the arguments have a batch or an accumulation that `global_batch` does not allow.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
        most, steps = args.per_device_train_batch_size, args.gradient_accumulation_steps
        chosen = most != defaults["per_device_train_batch_size"]
        if chosen and self._max_per_gpu is None:
            self.plan = self.companion.plan(self.plan.global_batch, most)
        elif chosen and self._max_per_gpu != most:
            raise UsageError(
                f"per_device_train_batch_size is {most}, and max_per_gpu of the callback {self._max_per_gpu}: leave "
                "one of them out"
            )
        if steps not in (defaults["gradient_accumulation_steps"], self.plan.accumulation):
            raise UsageError(
                f"gradient_accumulation_steps is {steps}, and follows from global_batch={self.plan.global_batch}: "
                f"{self.plan.accumulation} at this world size. Leave it out"
            )
        if (self.plan.per_gpu_batch, self.plan.accumulation) != (most, steps):
            log.info(
                "per_device_train_batch_size %d -> %d, gradient_accumulation_steps %d -> %d, by global_batch=%d",
                *(most, self.plan.per_gpu_batch, steps, self.plan.accumulation, self.plan.global_batch),
            )
        log.info("output_dir %s -> %s: save the final model elsewhere", args.output_dir, self.companion.directory)
        args.per_device_train_batch_size = self.plan.per_gpu_batch
        args.gradient_accumulation_steps = self.plan.accumulation
        args.output_dir = str(self.companion.directory)
        return args

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the arguments, set the order of the samples, and report the start."""
        self._check(args, state)
        loader = kwargs["train_dataloader"]
        batches = loader.batch_sampler
        while hasattr(batches, "batch_sampler"):  # Accelerate's wrapper, which selects a rank's batches
            batches = batches.batch_sampler
        sampler = batches.sampler
        if not isinstance(sampler, (RandomSampler, SequentialSampler)):
            raise UsageError(f"a {type(sampler).__name__} has an order that depends on the world size")
        samples, batch = len(loader.dataset), self.plan.global_batch
        if samples % batch:
            raise BatchError(
                f"the data set has {samples} samples, and global_batch is {batch}: the Trainer would repeat some at "
                f"the end of an epoch, others at each world size. Give it torch.utils.data.Subset(dataset, "
                f"range({samples - samples % batch}))"
            )
        loader.set_sampler(self.companion.order(samples, seed=self._seed, shuffle=isinstance(sampler, RandomSampler)))
        self.companion.ignore_stop_signals(loader)
        self.companion.begin(state.max_steps)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any], **_: Any
    ) -> None:
        """Note the logged loss for the reports."""
        self._loss = logs.get("loss", self._loss)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Agree with the other ranks on whether to stop, and let the Trainer save where that is due."""
        self._stopping = self.companion.should_stop(self._loss)
        if self._stopping:
            if not self.companion.should_save:
                self.companion.stop()
            control.should_save, control.should_evaluate = True, False  # an evaluation may take longer than there is
        elif self.companion.should_save or control.should_training_stop:
            control.should_save = True
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Save where the evaluation ends the training (early stopping), and leave its time out of the reports."""
        control.should_save = control.should_save or control.should_training_stop
        self.companion.restart_timer()
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Publish the checkpoint; then stop, if that was agreed."""
        best = [Path(state.best_model_checkpoint).resolve()] if state.best_model_checkpoint else []
        self.companion.saved(
            self.companion.directory / f"checkpoint-{state.global_step}",
            final=not self._stopping and (control.should_training_stop or state.global_step >= state.max_steps),
            protected=best,
        )
        if self._stopping:
            self.companion.stop()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Keep the Trainer from writing over the last step's checkpoint."""
        control.should_save = control.should_save and not self.companion.checkpoint_is_current
        return control

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the end of the training."""
        self.companion.finish()

    def _check(self, args: TrainingArguments, state: TrainerState) -> None:
        split = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if split != self.plan.global_batch or args.accelerator_config.split_batches:
            raise UsageError(
                "make TrainingArguments from shim.arguments(...), or shim.apply(...), without split_batches"
            )
        if args.save_total_limit is not None:
            raise UsageError(
                "save_total_limit would remove checkpoints that are needed: the newest two are retained anyway"
            )
        if args.save_only_model or args.ignore_data_skip or args.auto_find_batch_size:
            raise UsageError("save_only_model, ignore_data_skip and auto_find_batch_size make no exact resuming")
        if getattr(args, "enable_jit_checkpoint", False):
            raise UsageError("enable_jit_checkpoint handles SIGTERM by itself: leave that to this callback")
        if state.global_step != self.companion.step:
            raise UsageError("call trainer.train(resume_from_checkpoint=shim.resume)")


class TrackerCallback(TrainerCallback):
    """Logs what the Trainer logs to the job's run of a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any], **_: Any
    ) -> None:
        """Log the numbers that no earlier run has logged at this step."""
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        self._tracker.log(rewrite_logs(numbers), state.global_step)
