"""The public interface of the shim for scripts that own their training loop."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer_shim.adaptive_batch.lr_scaling import scaled_learning_rates
from trainer_shim.batch import plan_batch
from trainer_shim.checkpointing.formats.exports import export_modules
from trainer_shim.checkpointing.formats.script_checkpoints import Progress, ScriptCheckpoints
from trainer_shim.checkpointing.tracked_objects import Stateful
from trainer_shim.data.data_wait import announce_dead_workers
from trainer_shim.data.evaluation_workers import prefetch_evaluation
from trainer_shim.data.loader_factory import check_draw_options, check_multiple_of, make_loader
from trainer_shim.data.loader_workers import workers_ignoring_signals
from trainer_shim.data.lockstep_batches import lockstep_batches
from trainer_shim.data.random_batches import DrawOrder, RandomSource
from trainer_shim.data.train_loader import TrainLoader
from trainer_shim.errors import UsageError
from trainer_shim.preemption.exit import process_exit
from trainer_shim.process_groups.ddp_evaluation import resume_buffer_broadcasts, stop_buffer_broadcasts
from trainer_shim.process_groups.fsdp import fully_shard
from trainer_shim.reporting.profiling_run import ProfilingRun, read_profiling_results
from trainer_shim.session.batch_adaptation import read_consent
from trainer_shim.session.batch_declaration import BatchDeclaration
from trainer_shim.session.batchnorm_statistics import BatchNormStatistics
from trainer_shim.session.data_loop import BOUNDARY, DataLoop
from trainer_shim.session.data_supply import DataSupply
from trainer_shim.session.gradient_accumulation import GradientAccumulation
from trainer_shim.session.script_checkpointing import ScriptCheckpointing
from trainer_shim.session.step_batches import StepBatches, StepEvents
from trainer_shim.session.step_boundary import StepBoundary
from trainer_shim.session.training_end import TrainingEnd
from trainer_shim.session.training_position import TrainingPosition
from trainer_shim.session.usage_checks import (
    check_same_data,
    signal_handlers,
    warn_of_replaced_handlers,
    warn_of_unwrapped_modules,
)
from trainer_shim.session.vote import Vote

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from trainer_shim.adaptive_batch.adapt import BatchRule
    from trainer_shim.adaptive_batch.lr_scaling import RuleOrName
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint
    from trainer_shim.data.data_wait import DataWait
    from trainer_shim.process_groups.script_group import ScriptGroup
    from trainer_shim.session.stop_callbacks import StopCallback
    from trainer_shim.session.trainer_session import TrainerSession
    from trainer_shim.trackers.tracker import Tracker

T = TypeVar("T")

log = logging.getLogger("trainer_shim")


class Context:
    """One trainer: a process among `size`, which trains a job from the checkpoint of its last generation on.

    Made by `trainer_shim.init`. At step boundaries the ranks agree on whether to stop, so all of them leave the loop
    after the same step, by SystemExit. Where steps are short, some boundaries have no vote (see `vote_interval`).
    """

    def __init__(
        self,
        *,
        session: TrainerSession,
        group: ScriptGroup,
        checkpoints: ScriptCheckpoints,
        resumed: ScriptCheckpoint | None,
        data_wait: DataWait,
        evaluation_wait: DataWait,
    ) -> None:
        self._session = session
        self._group = group
        self._evaluation_wait = evaluation_wait
        self._checkpointing = ScriptCheckpointing(session, checkpoints, resumed)
        self._position = TrainingPosition(resumed.progress if resumed else Progress())
        self._profiling_run = ProfilingRun.of_job(session.job, writes=group.rank == 0)
        self._declaration = BatchDeclaration()
        self._accumulation = GradientAccumulation()
        self._statistics: BatchNormStatistics | None = None
        self._ending = TrainingEnd(session, group, self._checkpointing, self._position, self._accumulation)
        supply = DataSupply()
        self._boundary = StepBoundary(
            session=session,
            group=group,
            checkpointing=self._checkpointing,
            position=self._position,
            supply=supply,
            ending=self._ending,
        )
        self._loop = DataLoop(
            session=session,
            group=group,
            checkpointing=self._checkpointing,
            position=self._position,
            supply=supply,
            accumulation=self._accumulation,
            boundary=self._boundary,
            ending=self._ending,
            data_wait=data_wait,
            profiling_run=self._profiling_run,
        )
        self._handlers = signal_handlers(self._stop_signals)
        self._begun = False
        self._step_batches: StepBatches | None = None  # of the present step, inside `steps`
        atexit.register(self._close)

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self._group.rank

    @property
    def size(self) -> int:
        """The number of processes that train together."""
        return self._group.size

    @property
    def device(self) -> torch.device:
        """The device on which this rank computes."""
        return self._group.device

    @property
    def generation(self) -> int:
        """This trainer's fencing token on the checkpoint directory: the number of its claim, from 1."""
        return self._session.generation

    @property
    def step_count(self) -> int:
        """Optimizer steps since the beginning of the job, over all its runs."""
        return self._position.progress.step

    @property
    def progress(self) -> float:
        """Steps at M0 since the beginning of the job: more than `step_count` after steps at larger batches."""
        adaptive = self._position.adaptive_progress
        return float(self._position.progress.step) if adaptive is None else adaptive

    @property
    def is_profiling_run(self) -> bool:
        """Whether this is a profiling run: it times some steps from the beginning, and saves nothing."""
        return self._profiling_run is not None

    @property
    def boundary(self) -> bool:
        """Whether the current micro-batch ends its global batch: after `backward`, the gradients are then complete."""
        return self._accumulation.micro is not None and self._accumulation.micro.last

    def wrap(self, module: torch.nn.Module, **options: Any) -> DistributedDataParallel:
        """Move `module` to this rank's device, and return it wrapped in DDP, to which further options are passed."""
        on_gpu = self.device.type == "cuda"
        devices = [self.device] if on_gpu else None
        with self._group.watchdog.armed("ctx.wrap"):
            return DistributedDataParallel(module.to(self.device), device_ids=devices, **options)

    def average_statistics(self, *modules: torch.nn.Module) -> None:
        """Update the running statistics of BatchNorm layers once in each step, by the mean over the global batch.

        See `batchnorm_statistics`; to be called once, before the training.

        Raises:
            UsageError: called twice, or the modules have no such layer.
        """
        if self._statistics is not None:
            raise UsageError("ctx.average_statistics(...) names all models in one call")
        self._statistics = BatchNormStatistics(modules, self._accumulation)

    def shard(self, module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Apply FSDP2 (`fully_shard`) with further options to `module` in place, over all ranks, and return it.

        As with `fully_shard` itself, shard the blocks of a model before the model, and make the optimizer after that.
        """
        with self._group.watchdog.armed("ctx.shard"):
            return fully_shard(module, self.device.type, self.size, options)

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int,
        seed: int = 0,
        shuffle: bool | None = None,
        max_per_gpu: int | None = None,
        max_batch: int | None = None,
        lr_scale: RuleOrName | None = None,
        multiple_of: int = 1,
        batch_change: int | None = None,
        check_samples: bool = True,
        **options: Any,
    ) -> TrainLoader:
        """Return the training data, as micro-batches of this rank.

        Args:
            dataset: map-style, or a stream (iterable-style); the same on every rank.
            global_batch: samples in an optimizer step, over all ranks, at every world size; M0 where the batch adapts.
            seed: the seed of the order, and of the generators of torch, `random` and NumPy, for each sample and
                micro-batch.
            shuffle: whether each epoch has an order of its own, the default for a data set; a stream has its own order.
            max_per_gpu: the most samples that fit on a GPU at once; beyond them, gradients are accumulated.
            max_batch: the largest global batch; with `lr_scale` the script's consent to a batch that adapts where the
                job's tag has batch=adaptive.
            lr_scale: the rule for the factor on the learning rates of a step at a larger batch: `adascale`, `linear`,
                `sqrt`, `trainer_shim.legw(...)`, or a function of a `ScalingInputs`.
            multiple_of: every micro-batch has a multiple of so many samples (2 for a mixup of pairs). The last global
                batch of an epoch must have, too: use `drop_last=True` where the data set's size is no multiple.
            batch_change: the earlier `global_batch`, whose change to the present one at a resume is meant.
            check_samples: whether some samples of a data set are compared between ranks and with the checkpoint.
            **options: options of torch's DataLoader (`num_workers`, `collate_fn`, `pin_memory`, ...). `drop_last`
                leaves out the last global batch of an epoch where it is not full.

        Raises:
            BatchError: the global batch cannot be split over this world, or `max_batch` is below it.
            CheckpointError: the checkpoint has another order, so samples would be lost or repeated; or another
                `global_batch` without consent; or it was made with other samples.
            UsageError: there is a training loader already, an option has no meaning here, the ranks' data differ, only
                one of `max_batch` and `lr_scale` is given, there is no such rule, or the batches of a stream are to
                adapt.
        """
        if self._position.loader is not None:
            raise UsageError(
                "ctx.loader() is for the training data, once: evaluate with ctx.evaluate(...), and give two training "
                "sets as one that returns samples of both"
            )
        consent = read_consent(global_batch, max_batch, max_per_gpu, lr_scale)
        # more ranks than samples are possible where the batch adapts
        least = min(self.size, consent.limits.max_batch) if consent else 0
        plan = plan_batch(max(global_batch, least), self.size, max_per_gpu, multiple_of)
        check_multiple_of(multiple_of, dataset, adapts=consent is not None, drop_last=options.get("drop_last"))
        options["worker_init_fn"] = workers_ignoring_signals(self._stop_signals, options.get("worker_init_fn"))
        loader = make_loader(
            dataset,
            self._iterate,
            options,
            seed=seed,
            shuffle=shuffle,
            plan=plan,
            rank=self.rank,
            first_batch=global_batch,
        )
        if consent is not None and loader.is_stream:
            raise UsageError("ctx.loader(max_batch=...): the batches of a stream do not adapt; leave it out")
        self._continue_data(loader, global_batch, batch_change)
        if check_samples:
            self._checkpointing.check_samples(dataset, loader, options)
        announce_dead_workers(loader.progress, self.rank)
        self._position.loader, self._declaration.consent = loader, consent
        return loader

    def random_batches(
        self,
        draw: Callable[[int], Any],
        *,
        global_batch: int,
        seed: int = 0,
        max_per_gpu: int | None = None,
        multiple_of: int = 1,
        batch_change: int | None = None,
        **options: Any,
    ) -> TrainLoader:
        """Return training data without an end, drawn at random by a function, as micro-batches of this rank.

        For `ctx.steps`. Each sample's generators (torch, `random`, NumPy) are seeded from the seed and its position in
        the training, so the global batch of a step is the same at every world size and after every stop.

        Args:
            draw: `draw(n)` returns `n` random samples, along the first dimension of a tensor or of a tuple, list or
                dict of tensors. It is called with 1, for each sample.
            global_batch: samples in an optimizer step, over all ranks, at every world size.
            seed: the seed of the draws, and of the generators for each micro-batch.
            max_per_gpu: the most samples that fit on a GPU at once; beyond them, gradients are accumulated.
            multiple_of: every micro-batch has a multiple of so many samples.
            batch_change: the earlier `global_batch`, whose change to the present one at a resume is meant.
            **options: options of torch's DataLoader (`num_workers`, `pin_memory`, ...).

        Raises:
            BatchError: the global batch cannot be split over this world.
            CheckpointError: the checkpoint has other data, or another `global_batch` without consent.
            UsageError: there is a training loader already, an option has no meaning here, or the ranks' arguments
                differ.
        """
        if self._position.loader is not None:
            raise UsageError("ctx.random_batches() and ctx.loader() are for the training data: call one, once")
        check_draw_options(options)
        order, plan = DrawOrder(seed), plan_batch(global_batch, self.size, max_per_gpu, multiple_of)
        options["worker_init_fn"] = workers_ignoring_signals(self._stop_signals, options.get("worker_init_fn"))
        source = RandomSource(draw, order, plan, self.rank, options)
        loader = TrainLoader(order, plan, source, self._iterate, global_batch)
        self._continue_data(loader, global_batch, batch_change)
        announce_dead_workers(loader.progress, self.rank)
        self._position.loader = loader
        return loader

    def _continue_data(self, loader: TrainLoader, global_batch: int, batch_change: int | None) -> None:
        """Check that all ranks have the loader's order and batch, and that the checkpoint is continued with them."""
        order = loader.order._asdict()
        check_same_data(order | {"global_batch": global_batch}, self._group)
        self._checkpointing.set_order(order)
        self._checkpointing.set_batch(global_batch, batch_change)

    def adapts(self, rule: BatchRule | str, *, regimes: int | None = None) -> None:
        """Let the batch change by a rule of the script, and tell metasched the rule; before `epochs`.

        The limits and the rule for the learning rate are those of `loader`: `max_batch`, `lr_scale`.

        Args:
            rule: a `trainer_shim.Accordion`, `trainer_shim.NoiseScale` or `trainer_shim.BatchSchedule`, or the name of
                one with its defaults, `accordion` or `gns`; or `static`, where the batch never changes.
            regimes: the most spans with one batch that the whole training can have, where the script knows that.

        Raises:
            UsageError: called twice or too late, or there is no such rule, or `regimes` is less than 1.
        """
        if self._begun:
            raise UsageError("ctx.adapts(...) names one rule, once, before ctx.epochs(...)")
        self._declaration.set_rule(rule, regimes)

    def track(self, **objects: Stateful) -> None:
        """Name the objects that a checkpoint holds; where there is one, their states are loaded here. Collective.

        Raises:
            CheckpointError: the checkpoint holds other names, or states that do not fit, or cannot be read.
            UsageError: called twice, or with an object that has no state_dict.
        """
        if self._checkpointing.tracked is not None:
            raise UsageError("ctx.track() names everything in one call")
        tracked = self._checkpointing.track(objects)
        self._accumulation.modules = tracked.modules
        self._accumulation.synchronized = tracked.gradient_sync_modules()

    def epochs(self, total: int) -> Iterator[int]:
        """Iterate over the epochs that are left of `total`, the first perhaps from its middle; then end the training.

        A finished job has no epochs left, and its script continues after the loop at once.

        Raises:
            UsageError: called before `loader` and `track`, or for more epochs after the end of the training.
            CheckpointError: the final checkpoint cannot be written.
            SystemExit: a stop was agreed.
        """
        process_exit.raise_if_started()
        if self._session.ended:
            if total > self._position.progress.epoch and not self._position.progress.finished:
                raise UsageError("ctx.epochs(...) is for the whole training: its end is saved, and nothing after it")
            return
        self._begin(epochs=total)
        while self._position.progress.epoch < total and not self._position.progress.finished:
            self._session.drain_boundary_vote()  # of a step right after which the script has left its loop
            self._session.vote_interval.force_vote()
            self._boundary.pass_boundary()
            self._accumulation.start_epoch()
            self._loop.in_epoch = True
            yield self._position.progress.epoch
            process_exit.raise_if_started()  # where the script caught the exit
            self._loop.in_epoch = False
            self._loop.end_epoch()
        self._ending.end()

    def steps(self, total: int, *, passes: int = 1) -> Iterator[int]:
        """Iterate over the optimizer steps that are left of `total`, counted from 0; then end the training.

        In the body, a loop over the training loader has the micro-batches of this step alone, and `step` comes in the
        loop or after it. A data set or a stream that ends begins its next epoch. The training stops at a step's
        boundary, where the loop asks for the next step. A finished job has no steps left, unless `total` has grown.

        Args:
            total: optimizer steps of the whole training.
            passes: how often each step may loop over its micro-batches, for several backward passes with optimizer
                steps between them; with more than one, the data of a step are kept until its end.

        Raises:
            UsageError: called before `loader` and `track`, or for more steps after the end of the training, or the
                batch is to adapt; or a step's loop over the loader was left early.
            CheckpointError: the final checkpoint cannot be written.
            SystemExit: a stop was agreed.
        """
        process_exit.raise_if_started()
        if self._session.ended:
            if total > self._position.progress.step and not self._position.progress.finished:
                raise UsageError("ctx.steps(...) is for the whole training: its end is saved, and nothing after it")
            return
        loader = self._position.loader
        self._declaration.check_steps_keep_batch(self._position.progress)
        self._begin(steps=total)
        assert loader is not None  # noqa: S101  `_begin` has checked it
        self._session.drain_boundary_vote()
        self._session.vote_interval.force_vote()
        self._boundary.pass_boundary()
        self._accumulation.start_epoch()
        self._loop.in_epoch = True
        with contextlib.closing(StepEvents(lambda: self._loop.events(loader), self._loop.next_pass)) as events:
            while self._position.progress.step < total and not self._position.progress.finished:
                batches = StepBatches(events.fetch, self._accumulation, self._loop.seed_micro_batch, passes)
                self._step_batches = batches
                yield self._position.progress.step
                process_exit.raise_if_started()  # where the script caught the exit
                batches.check_complete()
                events.pass_boundary()
        self._step_batches = None
        self._loop.in_epoch = False
        self._ending.end()

    def accumulate(self, loader: TrainLoader, *, passes: int = 1) -> Iterator[StepBatches]:
        """Iterate over the optimizer steps of an epoch; each is an iterable of this rank's micro-batches of the step.

        For scripts with a loop over micro-batches: clipping and `step` may then come after that loop.

        Args:
            loader: the training loader.
            passes: how often each step may loop over its micro-batches; see `steps`.

        Raises:
            UsageError: outside `for epoch in ctx.epochs(...)`, or a step's loop over its micro-batches was left early.
            SystemExit: a stop was agreed.
        """
        if self._step_batches is not None:
            raise UsageError("inside ctx.steps(...) loop over the loader itself, which has the step's micro-batches")
        with contextlib.closing(self._loop.events(loader)) as events:
            for event in events:
                if event is not BOUNDARY:
                    first = itertools.chain([event], events)
                    batches = StepBatches(first.__next__, self._accumulation, self._loop.seed_micro_batch, passes)
                    yield batches
                    batches.check_complete()

    def evaluate(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over the batches of an evaluation; the ranks may have different numbers of them. Collective.

        The ranks proceed in lockstep and vote before every batch on whether to stop. They stop at once where a
        checkpoint has the present position: in a long evaluation after the loop over the training batches. Elsewhere a
        stop waits for the end of the evaluation, unless its deadline is near or a SIGTERM after the first signal makes
        it urgent. A DataLoader's workers ignore the stop signals, and waits for them have the bound `data_timeout`.

        Raises:
            SystemExit: a stop was agreed.
        """
        process_exit.raise_if_started()
        if self._session.ended:
            yield from batches
            return

        def vote_on_batch(waits: int, unfinished: int) -> tuple[int, int, int]:
            vote = self._ending.stop_between_boundaries(Vote(data_late=waits, evaluation_unfinished=unfinished))
            return vote.data_late, vote.evaluation_unfinished, vote.evaluation_left

        with self._evaluating():
            source = prefetch_evaluation(batches, self._stop_signals)
            yield from lockstep_batches(
                source,
                vote_on_batch,
                lambda: self._session.start_vote(Vote(evaluation_left=1)),
                self._evaluation_wait,
            )

    def poll(self) -> None:
        """Stop if a stop was requested; for long work outside the loops. Collective.

        The conditions are those of `evaluate`: a checkpoint has the present position, or there is no time left.

        Raises:
            SystemExit: a stop was agreed.
        """
        process_exit.raise_if_started()
        if not self._session.ended:
            self._ending.stop_between_boundaries(Vote())

    def on_stop(self, before: StopCallback | None = None, after: StopCallback | None = None) -> None:
        """Register functions for a stop, called on every rank with its cause: `before` and `after` the checkpoint.

        The checkpoint includes the changes of `before`, which is called only where a checkpoint is saved. An exception
        is logged, and changes nothing.
        """
        self._ending.callbacks.add(before, after)

    def metric(self, value: torch.Tensor | float) -> None:
        """Report a value by which the app's tuner compares this training with others; less is better.

        From the first call on, the values count instead of the loss. Of several values between two reports, and of
        those of several ranks, the mean counts; ranks may leave the call out. A value that is not finite says that the
        training has diverged.

        Args:
            value: the number, or a tensor with one element.
        """
        self._session.metrics.add_metric(float(value))

    def tracker(self, kind: str, **options: Any) -> Tracker:
        """Open this job's run of a tracker: the same run after each stop, and no point of it twice.

        Every rank calls this, and the tracker's methods; rank 0 logs. A point has the present `step_count`, and is left
        out where an earlier run of the job has logged one of its name at this step or a later one: after a kill, a
        training repeats the steps since its last checkpoint.

        Args:
            kind: `wandb`, `mlflow` or `tensorboard`; the package of that name must be installed.
            **options: those of `wandb.init`; for MLflow `experiment`, `tracking_uri`, `run_name`, `params` and `tags`;
                for TensorBoard those of `SummaryWriter`, in whose `log_dir` all runs of the job write.

        Raises:
            UsageError: there is no such tracker, or its package is not installed.
        """
        return self._session.open_tracker(kind, options, lambda: self.step_count)

    def backward(self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None = None) -> None:
        """Add the gradient of `loss`, the mean over the current micro-batch, with its weight in the global batch.

        With a `scaler` the gradient is scaled; the reports have the unscaled loss.

        Raises:
            UsageError: outside a loop over the training loader, or the script has cleared the gradients of the earlier
                micro-batches.
        """
        micro = self._accumulation.add_gradient(check=not self._checkpointing.saver.collective)
        if micro.last:
            self._boundary.start_vote()  # the votes are summed while the gradients are computed
        if self._position.adaptation is not None:
            self._position.adaptation.begin_backward(self._position.progress.step, micro)
        self._session.metrics.add_loss(loss, micro.samples)
        weighted = loss if micro.weight == 1 else loss * micro.weight
        (weighted if scaler is None else scaler.scale(weighted)).backward()  # type: ignore[no-untyped-call]
        if self._position.adaptation is not None:
            self._position.adaptation.end_backward(scaler)

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return `loss`, the mean over the current micro-batch, times its weight in the global batch.

        For scripts whose backward pass is not `backward`: run it on the returned loss, once. Optimizers then step at
        `boundary` only, followed by `step()` without them.

        Raises:
            UsageError: outside a loop over the training loader, or the batch adapts, or the script has cleared the
                gradients of the earlier micro-batches.
        """
        if self._position.adaptation is not None:
            raise UsageError("ctx.weighted(loss): a batch that adapts is measured by ctx.backward(loss): call that")
        micro = self._accumulation.add_gradient(check=not self._checkpointing.saver.collective)
        if micro.last:
            self._boundary.start_vote()
        self._session.metrics.add_loss(loss, micro.samples)
        return loss if micro.weight == 1 else loss * micro.weight

    def step(self, *optimizers: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> bool:
        """At the end of a global batch, step and clear the optimizers, and return True; else do nothing.

        With a `scaler`, the scaler makes the steps, and is updated. A step that it skips, because gradients overflowed,
        counts like any other step.

        This call starts the vote of the step's boundary, and never raises SystemExit. The training stops, and saves,
        where the loop requests its next batch (`StepBoundary`), so a checkpoint includes what the script does after a
        step, such as a schedule's step.

        Raises:
            UsageError: outside a loop over the training loader, or a second time for one batch.
        """
        micro = self._accumulation.current()
        if not micro.last:
            return False
        self._accumulation.mark_stepped(micro)
        if self._statistics is not None:
            self._statistics.finish_step()
        self._boundary.start_vote()  # for a script that calls no ctx.backward
        adaptation = self._position.adaptation
        factor = 1.0
        if adaptation is not None:
            factor = adaptation.finish_gradients(self._position.progress.step, micro.global_samples)
        self._group.watchdog.disarm()  # what follows in the loop's body is the script's own code
        with scaled_learning_rates(optimizers, factor):
            for optimizer in optimizers:
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                optimizer.zero_grad()
        if scaler is not None:
            scaler.update()
        self._position.add_step(micro.global_samples)
        self._session.vote_interval.count_step()
        self._session.metrics.add_step(micro.global_samples)
        return True

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the tracked modules into a directory, in formats that are read without the shim. Collective.

        See `trainer_shim.checkpointing.formats.exports`. A profiling run writes nothing.

        Args:
            path: a directory that does not exist, or an earlier export, which is replaced.

        Raises:
            CheckpointError: the directory has other files, or cannot be written.
            UsageError: called before `track`, or no module is tracked.
        """
        process_exit.raise_if_started()
        tracked = self._checkpointing.tracked
        objects = {} if tracked is None else tracked.objects
        modules = {name: item for name, item in objects.items() if isinstance(item, torch.nn.Module)}
        if not modules:
            raise UsageError("ctx.export(path): there is no model in ctx.track(...)")
        if not self.is_profiling_run:
            with self._group.watchdog.busy() if not self._session.ended else contextlib.nullcontext():
                export_modules(Path(path), modules, self._group, self._position.progress.step)

    def finish(self) -> None:
        """End the training for good before its last epoch (early stopping): a later start of the job trains no more.

        Raises:
            CheckpointError: the final checkpoint cannot be written.
        """
        self._ending.finish()

    def __enter__(self) -> Context:  # noqa: PYI034  Self is not in Python 3.9's typing
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    @property
    def _stop_signals(self) -> tuple[int, ...]:
        """The signals that the processes of a Slurm step receive for a stop; a loader's workers ignore them."""
        return signal.SIGTERM, self._session.job.signal

    def _begin(self, *, epochs: int | None = None, steps: int | None = None) -> None:
        """Check the script's earlier calls, and write the first report lines.

        Args:
            epochs: the epochs of the training, None where it counts steps.
            steps: the optimizer steps of the training, None where it counts epochs.
        """
        position = self._position
        loader = position.loader
        if loader is None or not self._checkpointing.tracked or not self._checkpointing.tracked.objects:
            loop = "ctx.steps(...)" if epochs is None else "ctx.epochs(...)"
            raise UsageError(f"ctx.loader(...) and ctx.track(...) come before {loop}")
        if epochs is not None and isinstance(loader.order, DrawOrder):
            raise UsageError("ctx.epochs(...): random batches have no epochs; use ctx.steps(...)")
        warn_of_replaced_handlers(self._handlers)
        if self.rank == 0 and not self._accumulation.synchronized:
            warn_of_unwrapped_modules(self._accumulation.modules)
        self._begun = True
        if epochs is not None and not self.is_profiling_run:
            adaptation = self._declaration.start_adaptation(
                self._session,
                self._group,
                loader,
                self._checkpointing.tracked,
                start=position.progress,
                total=epochs,
            )
            position.adapt(adaptation)
        self._session.report_start(
            step=position.progress.step, samples=position.progress.samples, progress=position.adaptive_progress
        )
        file = self._session.job.profiling_file if self.rank == 0 and not self.is_profiling_run else None
        for line in read_profiling_results(file):
            self._session.report.emit("trial", **line)
        adapts = position.adaptation is not None
        declared = self._declaration.declare_line(loader, epochs=epochs, steps=steps, adapts=adapts)
        self._session.report.emit("declare", **declared)

    def _iterate(self, loader: TrainLoader) -> Iterator[Any]:
        """Yield the micro-batches that are left of the epoch, inside `steps` those of the step. Collective."""
        if self._step_batches is not None:
            yield from self._step_batches
            return
        with contextlib.closing(self._loop.events(loader)) as events:
            for event in events:
                if event is not BOUNDARY:
                    yield event

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Context manager: the time of the block is no training time, and its forward passes need no other rank."""
        self._group.synchronize()
        started = time.monotonic()
        with self._group.watchdog.armed("the start of an evaluation"):
            stopped = stop_buffer_broadcasts(self._accumulation.synchronized)
        try:
            yield
            self._group.synchronize()
        finally:
            resume_buffer_broadcasts(stopped)
            seconds = time.monotonic() - started
            self._loop.evaluation_time.add(seconds)
            self._session.metrics.exclude(seconds)

    def _close(self) -> None:
        """Destroy the process group when the interpreter exits, because the script may need it until then.

        A rank that failed only exits: destroying the group could wait for the other ranks for ever.
        """
        if self._session.ended:
            self._group.close()
        elif self._begun and self.rank == 0 and not hasattr(sys, "last_value"):
            log.warning(
                "the script has ended before its epochs: there is no final checkpoint, and another start would "
                "continue the training. Call ctx.finish() to end a training early"
            )
