"""The face of the shim: what a training script calls."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, NoReturn, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer_shim.batch import plan_batch
from trainer_shim.checkpointing.checkpoint_saver import CheckpointSaver
from trainer_shim.checkpointing.checkpoint_store import CheckpointStore, Progress
from trainer_shim.checkpointing.generation import highest_generation
from trainer_shim.checkpointing.tracked_objects import Stateful, TrackedObjects
from trainer_shim.data.evaluation import lockstep_batches
from trainer_shim.data.loader_factory import make_loader
from trainer_shim.data.loader_workers import prefetch_ignoring_signals, workers_ignoring_signals
from trainer_shim.data.sample_order import MicroBatch
from trainer_shim.data.stream import check_same_stream, next_batch_votes
from trainer_shim.data.train_loader import TrainLoader
from trainer_shim.environment.launcher import write_exit_code
from trainer_shim.errors import CheckpointError, SupersededError, UsageError
from trainer_shim.preemption.exit import process_exit
from trainer_shim.preemption.lease import LeaseWatch
from trainer_shim.preemption.stop_requests import (
    CAUSES,
    POLL_INTERVAL,
    agreed_cause,
    exit_code,
    has_time_to_save,
    ignore_stop_signals,
    release_stop_signals,
)
from trainer_shim.process_groups.ddp import resume_buffer_broadcasts, stop_buffer_broadcasts
from trainer_shim.process_groups.fsdp import fully_shard
from trainer_shim.process_groups.trainer_group import PendingVote, TrainerGroup
from trainer_shim.reporting.profiling_run import ProfilingRun, read_profiling_results
from trainer_shim.reporting.report_writer import REPORT_SECONDS, ReportWriter, process_age
from trainer_shim.reporting.step_metrics import StepMetrics
from trainer_shim.session.usage_checks import (
    check_gradients_kept,
    check_same_data,
    handlers,
    warn_of_replaced_handlers,
    warn_of_unwrapped_modules,
)
from trainer_shim.session.vote_interval import VoteInterval

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from trainer_shim.checkpointing.checkpoint_store import Checkpoint, States
    from trainer_shim.data.prefetch import Prefetcher
    from trainer_shim.environment.job import Job
    from trainer_shim.preemption.stop_requests import StopRequests

LONG_EVALUATION = 5.0  # seconds from which on it is worth a checkpoint, so that a stop need not await its end

T = TypeVar("T")

log = logging.getLogger("trainer_shim")


class Context:
    """One trainer: a process among `size`, which trains one job from where its last generation left it.

    Made by `trainer_shim.init`. At step boundaries the ranks agree on whether to stop, so all of them leave the loop
    after the same step, by SystemExit. Where steps are short, some boundaries have no vote (see `vote_interval`).
    """

    def __init__(
        self,
        *,
        group: TrainerGroup,
        job: Job,
        store: CheckpointStore,
        stop: StopRequests,
        generation: int,
        resumed: Checkpoint | None,
        checkpoint_every: float,
    ) -> None:
        self._group = group
        self._job = job
        self._store = store
        self._stop = stop
        self._generation = generation
        self._resumed = resumed
        self._checkpoint_every = checkpoint_every
        self._progress = resumed.progress if resumed else Progress()
        first, is_profiling_run = group.rank == 0, job.profiling_steps is not None
        self._profiling_run = (
            ProfilingRun(job.profiling_steps, job.profiling_file if first else None)
            if job.profiling_steps is not None
            else None
        )
        self._report = ReportWriter(job.reports if first and not is_profiling_run else None, generation)
        self._saver = CheckpointSaver(
            store, generation, resumed, self._check_fence, self._report, is_rank_zero=first, disabled=is_profiling_run
        )
        self._lease = LeaseWatch(job.lease, job.run) if job.lease and job.run else None

        self._tracked: dict[str, Stateful] = {}
        self._contents: TrackedObjects | None = None  # the same, as a checkpoint sees it
        self._modules: list[torch.nn.Module] = []  # tracked
        self._wrapped: list[Any] = []  # their parts that exchange gradients
        self._loader: TrainLoader | None = None
        self._iterable = False
        self._begun = self._ended = False
        self._warned = False
        self._handlers = handlers(self._deaf)

        self._micro: MicroBatch | None = None
        self._vote_interval = VoteInterval(checkpoint_every)
        self._ballot: PendingVote | None = None  # of the boundary that comes, if it has a vote
        self._stepped = False  # for the global batch in hand
        self._weighed = False  # whether `backward` was called for it
        self._summed = False  # and this for micro-batches of it before the one in hand
        self._hinted = False
        self._data: Prefetcher[Any] | None = None  # where the loop's batches come from
        self._data_late = False  # on any rank, when the last boundary was voted on
        self._evaluation = 0.0  # seconds of evaluation since the last boundary
        self._between: float | None = None  # the same between the last two epochs
        self._before_stop: list[Callable[[str], object]] = []
        self._after_stop: list[Callable[[str], object]] = []
        self._metrics = StepMetrics(group)
        self._mark = self._polled = 0.0
        atexit.register(self._leave)

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self._group.rank

    @property
    def size(self) -> int:
        """How many processes train together."""
        return self._group.size

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._group.device

    @property
    def generation(self) -> int:
        """How many trainers, this one included, have started on the checkpoint directory."""
        return self._generation

    @property
    def step_count(self) -> int:
        """Optimizer steps since the beginning of the job, over all its runs."""
        return self._progress.step

    @property
    def is_profiling_run(self) -> bool:
        """Whether this is a trial: some steps to measure their speed, from the beginning, of which nothing is kept."""
        return self._profiling_run is not None

    @property
    def boundary(self) -> bool:
        """Whether the micro-batch in hand ends its global batch: after `backward`, the gradients are then complete."""
        return self._micro is not None and self._micro.last

    def wrap(self, module: torch.nn.Module, **options: Any) -> DistributedDataParallel:
        """Move `module` to this rank's device and wrap it in DDP, whose further options pass through."""
        on_gpu = self.device.type == "cuda"
        devices = [self.device] if on_gpu else None
        with self._group.watchdog.armed("ctx.wrap"):
            return DistributedDataParallel(module.to(self.device), device_ids=devices, **options)

    def shard(self, module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Apply FSDP2 (`fully_shard`) to `module` in place, over all ranks; its further options pass through.

        As with `fully_shard` itself, the blocks of a model come before the whole, and the optimizer after it.
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
        **options: Any,
    ) -> TrainLoader:
        """The training data, as micro-batches of this rank.

        Args:
            dataset: map-style, or a stream (iterable-style); the same on every rank.
            global_batch: samples in an optimizer step, over all ranks, at every world size.
            seed: of the order, and of the generators of torch, `random` and NumPy, for each sample and micro-batch.
            shuffle: whether each epoch has an order of its own: by default it has, and a stream has its own order.
            max_per_gpu: the most samples that fit on a GPU at once; beyond them, gradients are accumulated.
            **options: torch's DataLoader's own (`num_workers`, `collate_fn`, `pin_memory`, ...). `drop_last` leaves out
                the last global batch of an epoch where it is not whole.

        Raises:
            BatchError: the global batch cannot be split over this world.
            CheckpointError: the checkpoint was made in another order, so samples would be lost or repeated.
            UsageError: there is a training loader already, an option has no meaning here, or the ranks' data differ.
        """
        if self._loader is not None:
            raise UsageError(
                "ctx.loader() is for the training data, once: evaluate with ctx.evaluate(...), and give two training "
                "sets as one that returns samples of both"
            )
        plan = plan_batch(global_batch, self.size, max_per_gpu)
        options["worker_init_fn"] = workers_ignoring_signals(self._deaf, options.get("worker_init_fn"))
        loader = make_loader(dataset, self._iterate, options, seed=seed, shuffle=shuffle, plan=plan, rank=self.rank)
        check_same_data(loader.order._asdict() | {"global_batch": global_batch}, self._group)
        if self._resumed and self._resumed.order != loader.order._asdict():
            raise CheckpointError(
                f"{self._resumed.data}: made with {self._resumed.order}, and this script has {loader.order._asdict()}; "
                "use another checkpoint directory for other data"
            )
        self._loader = loader
        return loader

    def track(self, **objects: Stateful) -> None:
        """Name what a checkpoint holds; where there is one, its states are loaded here. All ranks call this alike.

        Raises:
            CheckpointError: the checkpoint holds other names, or states that do not fit, or cannot be read.
            UsageError: called twice, or with an object that has no state_dict.
        """
        if self._tracked:
            raise UsageError("ctx.track() names everything in one call")
        with self._group.watchdog.busy():
            contents = TrackedObjects(objects, is_rank_zero=self.rank == 0)
            self._modules = contents.modules
            self._wrapped = contents.gradient_sync_modules()
            self._saver.collective = contents.sharded
            if self._resumed is not None:
                resumed = self._resumed
                states = self._everywhere(lambda: contents.read(self._store, resumed))
                self._everywhere(lambda: contents.restore(states, resumed))
        self._tracked, self._contents = contents.objects, contents

    def epochs(self, total: int) -> Iterator[int]:
        """The epochs that are left of `total`, the first perhaps in its middle; ends the training after the last.

        A finished job has none left, and its script runs on behind the loop at once.

        Raises:
            UsageError: before `loader` and `track`, or for more epochs when the training has ended.
            CheckpointError: the final checkpoint cannot be written.
            SystemExit: a stop was agreed.
        """
        process_exit.repeat()
        if self._ended:
            if total > self._progress.epoch and not self._progress.finished:
                raise UsageError("ctx.epochs(...) is for the whole training: its end is saved, and nothing after it")
            return
        self._begin(total)
        while self._progress.epoch < total and not self._progress.finished:
            self._ballot = None  # an older one, where the script has left its loop right after a step
            self._vote_interval.force_vote()
            self._close_step()
            self._iterable = True
            yield self._progress.epoch
            process_exit.repeat()  # where the script caught our exit
            self._iterable = False
            self._progress = self._progress._replace(epoch=self._progress.epoch + 1, cursor=0)
            self._between, self._evaluation = self._evaluation, 0.0
        self._end()

    def evaluate(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, for an evaluation; the ranks may have different numbers of them.

        The ranks go in step and agree before every batch on whether to stop. They stop at once where a checkpoint says
        all that was trained: in a long evaluation behind the loop over the training batches. Elsewhere a stop waits for
        the end of the evaluation, unless its deadline or a SIGTERM after the first signal says otherwise. A
        DataLoader's workers do not hear the stop signals. All ranks call this alike.

        Raises:
            SystemExit: a stop was agreed.
        """
        process_exit.repeat()
        if self._ended:
            yield from batches
            return
        with self._evaluating():
            source = prefetch_ignoring_signals(batches, self._deaf)
            yield from lockstep_batches(
                source, lambda *flags: self._look_away(*flags, 0), lambda: self._vote(0, 0, 0, 0, 1)
            )

    def poll(self) -> None:
        """Stop if that was asked: for long work outside the loops. Called by all ranks alike.

        It stops as `evaluate` does: where a checkpoint says all that was trained, or where there is no time left.

        Raises:
            SystemExit: a stop was agreed.
        """
        process_exit.repeat()
        if not self._ended:
            self._look_away()

    def on_stop(
        self, before: Callable[[str], object] | None = None, after: Callable[[str], object] | None = None
    ) -> None:
        """Have functions called at a stop, on every rank, with its cause: `before` and `after` the checkpoint.

        What `before` changes is in the checkpoint. It is not called where nothing may or can be saved. An exception is
        logged, and changes nothing.
        """
        self._before_stop += [before] if before else []
        self._after_stop += [after] if after else []

    def backward(self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None = None) -> None:
        """Add the gradient of `loss`, the mean over the micro-batch in hand, with its weight in the global batch.

        With a `scaler` the gradient is scaled by it; the reports have the loss as it is.

        Raises:
            UsageError: outside a loop over the training loader, or the script has cleared the gradients that this one
                is to be added to.
        """
        micro = self._in_hand()
        if self._summed and not self._saver.collective:  # FSDP keeps sums elsewhere until they are exchanged
            check_gradients_kept(self._modules)
        self._weighed = True
        if micro.last:
            self._call_vote()  # here, because the votes are counted while the gradients are computed
        self._metrics.add_loss(loss, micro.samples)
        weighted = loss if micro.weight == 1 else loss * micro.weight
        (weighted if scaler is None else scaler.scale(weighted)).backward()  # type: ignore[no-untyped-call]

    def step(self, *optimizers: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> bool:
        """At the end of a global batch, step and clear the optimizers, and return True; else do nothing.

        With a `scaler` the steps go through it, and it is updated. A step that it skips, because gradients overflowed,
        counts like any other: its batch was trained on, to no effect.

        Stops and checkpoints happen when the loop asks for its next batch, so that they include what the script does
        after a step, such as a schedule's own step.

        Raises:
            UsageError: outside a loop over the training loader, or a second time for one batch.
        """
        micro = self._in_hand()
        if not micro.last:
            return False
        if self._stepped:
            raise UsageError(
                "ctx.step() is called once for a batch: give it all optimizers in one call, "
                "or step the others where ctx.boundary is true"
            )
        self._stepped = True
        self._call_vote()  # for a script that has a `backward` of its own
        if not (self._weighed or self._hinted) and micro.weight != 1:
            self._hinted = True
            log.warning("ctx.backward(loss) was not called: micro-batches are not weighted by their samples")
        self._group.watchdog.disarm()  # the rest of the loop's body is the script's own affair
        for optimizer in optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
            optimizer.zero_grad()
        if scaler is not None:
            scaler.update()
        self._progress = self._progress._replace(
            cursor=self._progress.cursor + micro.global_samples,
            step=self._progress.step + 1,
            samples=self._progress.samples + micro.global_samples,
        )
        self._vote_interval.count_step()
        self._metrics.add_step(micro.global_samples)
        return True

    def finish(self) -> None:
        """End the training before its last epoch (early stopping), for good: started again, the job trains no more.

        Raises:
            CheckpointError: the final checkpoint cannot be written.
        """
        if not self._ended:
            self._progress = self._progress._replace(finished=True)
        self._end()

    def __enter__(self) -> Context:  # noqa: PYI034  Self is not in Python 3.9's typing
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    @property
    def _deaf(self) -> tuple[int, ...]:
        """What a loader's workers do not hear."""
        return signal.SIGTERM, self._job.signal

    def _begin(self, total: int) -> None:
        if self._loader is None or not self._tracked:
            raise UsageError("ctx.loader(...) and ctx.track(...) come before ctx.epochs(...)")
        warn_of_replaced_handlers(self._handlers)
        if self.rank == 0 and not self._wrapped:
            warn_of_unwrapped_modules(self._modules)
        self._begun = True
        self._report.emit(
            "start",
            run=self._job.run,
            incarnation=self._generation,
            world_size=self.size,
            step=self._progress.step,
            samples=self._progress.samples,
            resumed=self._resumed is not None,
            init_seconds=process_age(),
        )
        for line in read_profiling_results(
            self._job.profiling_file if self.rank == 0 and not self.is_profiling_run else None
        ):
            self._report.emit("trial", **line)
        self._report.emit(
            "declare",
            total_steps=_times(total, self._loader.steps_per_epoch),
            total_samples=_times(total, self._loader.samples_per_epoch),
            global_batch=self._loader.plan.global_batch,
        )

    def _iterate(self, loader: TrainLoader) -> Iterator[Any]:
        process_exit.repeat()
        if not self._iterable:
            raise UsageError("iterate over the training loader inside `for epoch in ctx.epochs(...)`")
        self._weighed = self._summed = False
        self._mark = time.monotonic()
        asked = self._mark
        self._data_late = True  # as far as anybody knows
        pairs = loader.micro_batches(self._progress.epoch, self._progress.cursor, self._await_data)
        for micro, batch in pairs:
            self._metrics.data_seconds += time.monotonic() - asked
            self._micro = micro
            self._group.watchdog.arm(f"step {self._progress.step + 1}")
            try:
                with contextlib.nullcontext() if micro.last else self._gradients_held_back():
                    yield batch
            finally:  # also when the script leaves its loop here
                self._micro = None
                self._summed = self._weighed and not micro.last
                self._group.watchdog.disarm()
            if micro.last:
                if not self._stepped:
                    raise UsageError(
                        "the loop asks for its next batch before ctx.step(optimizer): call it for every batch, also "
                        "where `continue` leaves one out, and take out accumulation and prefetching of the script's own"
                    )
                self._weighed = False
                self._metrics.seconds += time.monotonic() - self._mark
                self._close_step()
                self._close_profiling_step(loader)
                self._evaluation = 0.0
                self._mark = time.monotonic()
            asked = time.monotonic()
        self._data = None
        self._metrics.synchronize()
        worth_it = self._between is None or self._between >= LONG_EVALUATION
        if self._group.on_rank_zero(lambda: worth_it):
            with self._group.watchdog.busy():
                self._saver.start(self._states, self._progress, loader.order._asdict())

    def _close_profiling_step(self, loader: TrainLoader) -> None:
        """Leave after the last step of a trial; all ranks count alike."""
        plan, done = loader.plan, self._progress
        if self._profiling_run is not None and self._profiling_run.record_step(
            done.step,
            done.samples,
            self._drained,
            world_size=self.size,
            global_batch=plan.global_batch,
            per_gpu_batch=plan.per_gpu_batch,
            accumulation=plan.accumulation,
        ):
            self._ended = True
            ignore_stop_signals(self._job.signal)
            process_exit.start(0)

    @contextlib.contextmanager
    def _gradients_held_back(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for wrapped in self._wrapped:
                stack.enter_context(wrapped.no_sync())
            yield

    def _await_data(self, data: Prefetcher[Any]) -> None:
        """Wait until every rank has its next batch, or a stop is agreed: this is still the boundary."""
        self._data = data
        is_stream = self._loader is not None and self._loader.is_stream
        self._data_late |= is_stream  # whose end has to be agreed on
        while self._data_late:
            waits = not data.ready(POLL_INTERVAL)
            ballot = self._vote(int(waits), *(next_batch_votes(data) if is_stream and not waits else (0, 0)))
            cause, urgent, (late, *sums) = _counted(ballot.result())
            if cause:
                self._metrics.synchronize()
                self._report_steps()
                self._stop_now(cause, urgent=urgent)
            self._data_late = late > 0
        if is_stream:
            check_same_stream(sums, self.size)

    def _in_hand(self) -> MicroBatch:
        if self._micro is None:
            raise UsageError("ctx.backward() and ctx.step() belong in `for ... in loader`")
        return self._micro

    def _vote(self, *flags: int) -> PendingVote:
        """Begin to sum over the ranks who has been asked to stop, who to hurry, and `flags`."""
        now = time.monotonic()
        if self.rank == 0 and now - self._polled >= POLL_INTERVAL:
            self._polled = now
            try:
                self._watch_fence()
            except OSError as error:  # a hiccup of the file system: nothing is written until the fence can be read
                if not self._warned:
                    log.warning("the fence cannot be read, training goes on: %s", error)
                self._warned = True
            cause = self._lease.stop_cause() if self._lease else None
            if cause:
                self._stop.request(cause)
        return self._group.vote([*self._stop.flags(), int(self._stop.urgent), *flags])

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A block that is no part of the training's time, and whose forward passes need no other rank."""
        self._group.synchronize()
        started = time.monotonic()
        with self._group.watchdog.armed("the start of an evaluation"):
            settled = stop_buffer_broadcasts(self._wrapped)
        try:
            yield
            self._group.synchronize()
        finally:
            resume_buffer_broadcasts(settled)
            seconds = time.monotonic() - started
            self._evaluation += seconds
            self._mark += seconds

    def _call_vote(self) -> None:
        """Begin to agree with the other ranks on what to do at this boundary, if it is one with a vote."""
        if self._ballot is not None or not self._vote_interval.due:
            return
        now = time.monotonic()
        first = self.rank == 0
        report_due = first and now - self._metrics.summarized_at >= REPORT_SECONDS
        save_due = first and self._saver.due(self._checkpoint_every)
        data_late = self._data is not None and not self._data.ready(0)
        data_short = not self._has_data(self._vote_interval.steps)
        proposal = self._vote_interval.start_vote(now)
        self._ballot = self._vote(
            int(report_due), int(save_due), int(data_late), int(data_short), proposal if first else 0
        )

    def _has_data(self, steps: int) -> bool:
        """Whether this rank need not wait for data in so many steps: in them nobody would hear of a stop meanwhile."""
        if self._data is None or self._loader is None or self._loader.is_stream:
            return False
        return self._data.ready(0, (steps - 1) * self._loader.plan.accumulation + 1)

    def _close_step(self) -> None:
        """Do what was agreed on for this boundary, if it is one with a vote."""
        self._call_vote()  # unless it was called in time: an evaluation has come in between
        self._stepped = False
        self._group.watchdog.first_step_done = self._metrics.steps > 0 or self._group.watchdog.first_step_done
        if self._ballot is None:
            self._vote_interval.skip_boundary()
            return
        asked = time.monotonic()
        cause, urgent, (report_due, save_due, data_late, data_short, proposal) = _counted(self._ballot.result())
        waited = time.monotonic() - asked
        self._metrics.sync_seconds += waited
        self._metrics.seconds += waited
        self._ballot = None
        self._vote_interval.finish_vote(proposal, ready=not data_short)
        self._data_late = data_late > 0
        if report_due or save_due or cause:
            self._metrics.synchronize()
        if report_due or cause:
            self._report_steps()
        if cause:
            self._stop_now(cause, urgent=urgent)
        if self._loader is not None:
            self._saver.settle(wait=False)
            if save_due:
                self._saver.start(self._states, self._progress, self._loader.order._asdict())

    def _look_away(self, *flags: int) -> list[int]:
        """Stop between two boundaries, if that was asked and is right; else return the sums of `flags`.

        The script may have changed what is tracked since the last boundary, so nothing can be saved here.
        """
        self._vote_interval.force_vote()
        first = self.rank == 0
        safe = first and self._saver.covers(self._progress)
        late = first and self._seconds_left() < (self._saver.slowest_seconds or 0)
        cause, urgent, (is_safe, is_late, *sums) = _counted(self._vote(int(safe), int(late), *flags).result())
        someone_left = len(sums) == 3 and sums[2]  # noqa: PLR2004  who is not there to hear the outcome
        if cause and not someone_left and (is_safe or is_late or urgent or cause == "superseded"):
            self._report_steps()
            self._stop_now(cause, may_save=False)
        return sums

    def _seconds_left(self) -> float:
        """Until the deadline of the stop request, as far as rank 0 knows of one."""
        return self._lease.seconds_to_deadline(self._stop.first_signal) if self._lease else math.inf

    def _drained(self) -> float:
        """The time, when the device has done what it was given."""
        self._group.synchronize()
        return time.monotonic()

    def _report_steps(self) -> None:
        """Write the `steps` line; collective, because the loss is everybody's."""
        line = self._metrics.summarize()
        if line is None:
            return
        assert self._loader is not None  # noqa: S101  there was a step
        plan = self._loader.plan
        self._report.emit(
            "steps",
            step=self._progress.step,
            **line,
            peak_bytes=self._group.peak_bytes(),
            world_size=self.size,
            global_batch=plan.global_batch,
            per_gpu_batch=plan.per_gpu_batch,
            accumulation=plan.accumulation,
        )

    def _watch_fence(self) -> None:
        if highest_generation(self._store.directory / "incarnations") > self._generation:
            self._stop.request("superseded")

    def _check_fence(self) -> None:
        """Raise SupersededError when this is not the newest generation any more."""
        self._watch_fence()
        if self._stop.superseded:
            raise SupersededError("a newer generation has started on this checkpoint directory")

    def _everywhere(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank; a CheckpointError of one is an error of all."""
        try:
            result, failure = action(), None
        except CheckpointError as error:
            failure = error
        failed = self._group.vote([int(failure is not None)]).result()
        if failure is not None:
            raise failure
        if any(failed):
            raise CheckpointError(f"{self._store.directory}: another rank could not load the checkpoint, and says why")
        return result

    def _states(self) -> States:
        assert self._contents is not None  # noqa: S101  `_begin` has seen to that
        return self._contents.states()

    def _together(self, action: Callable[[], T]) -> T:
        """Save on rank 0, or where states are sharded on all ranks; the same outcome on all of them."""
        return action() if self._saver.collective else self._group.on_rank_zero(action)

    def _save(self, cause: str) -> None:
        if self._loader is not None:
            self._saver.save(self._states, self._progress, self._loader.order._asdict(), cause)

    def _save_for_stop(self) -> bool:
        try:
            self._save("stop")
        except SupersededError:
            return False  # the next vote ends it
        except OSError as error:
            if self.rank == 0:
                log.error("no checkpoint at step %d, the last one stays: %s", self._progress.step, error)  # noqa: TRY400
            return False
        return True

    def _stop_now(self, cause: str, *, urgent: bool = False, may_save: bool = True) -> NoReturn:
        noticed = self._group.earliest(self._stop.noticed)
        with self._group.watchdog.busy():
            self._saver.settle()

        def decide() -> bool:
            return may_save and cause != "superseded" and self._worth_saving(urgent)

        saves = self._group.on_rank_zero(decide)
        if saves:
            for callback in self._before_stop:
                _call(callback, cause)

        saved = saves and self._together(self._save_for_stop)

        def outcome() -> tuple[str, bool]:
            covered = saved or (not saves and cause != "superseded" and self._progress == self._saver.saved_progress)
            return ("superseded" if self._stop.superseded else cause), covered

        cause, saved = self._group.on_rank_zero(outcome)
        for callback in self._after_stop:
            _call(callback, cause)
        step = self._progress.step
        self._report.emit("stop", step=step, cause=cause, noticed=noticed, checkpointed=saved)
        code = exit_code(cause, self._job.exit_code)
        if self.rank == 0:
            log.info("stopped after step %d (%s), checkpointed: %s, exit code %d", step, cause, saved, code)
        self._ended = True
        ignore_stop_signals(self._job.signal)
        # Torchrun would take the code for a failure.
        process_exit.start(0 if write_exit_code(code, os.environ) else code)

    def _worth_saving(self, urgent: bool) -> bool:  # noqa: FBT001  as in the vote
        """Whether there is something to save, and time for it as far as the earlier checkpoints tell."""
        if self._progress == self._saver.saved_progress:
            return False
        return has_time_to_save(self._seconds_left(), self._saver.slowest_seconds, self._saver.age, urgent=urgent)

    def _end(self) -> None:
        if self._ended:
            return
        if self._ballot is not None:  # the script left its loop right after a step
            self._ballot.result()
            self._ballot = None
        self._metrics.synchronize()
        self._report_steps()

        def save() -> bool:
            try:
                self._save("final")
            except SupersededError:
                return False
            except OSError as error:
                raise CheckpointError(f"the final checkpoint cannot be written: {error}") from error
            return True

        if not self._together(save):
            self._stop_now("superseded")
        with self._group.watchdog.armed("the end of the training"):
            stop_buffer_broadcasts(self._wrapped)  # from here on the ranks need not evaluate alike
        self._group.watchdog.close()
        self._report.emit("end", step=self._progress.step, samples=self._progress.samples, loss=self._metrics.loss)
        self._ended = True
        release_stop_signals(self._job.signal)
        if self.rank == 0:
            log.info("finished after step %d", self._progress.step)

    def _leave(self) -> None:
        """Leave the process group, at the very end: a script may do so itself before, or still need it.

        A rank that failed leaves by dying: a farewell could wait for the others in vain.
        """
        if self._ended:
            self._group.close()
        elif self._begun and self.rank == 0 and not hasattr(sys, "last_value"):
            log.warning(
                "the script has ended before its epochs: there is no final checkpoint, and started again it would "
                "go on. Call ctx.finish() to end a training early"
            )


def _counted(sums: list[int]) -> tuple[str | None, bool, list[int]]:
    """What a vote's sums say: the cause to stop if any, whether to hurry, and the sums of the other flags."""
    causes, (urgent, *flags) = sums[: len(CAUSES)], sums[len(CAUSES) :]
    return agreed_cause(causes), urgent > 0, flags


def _times(epochs: int, each: int | None) -> int | None:
    return None if each is None else epochs * each


def _call(callback: Callable[[str], object], cause: str) -> None:
    try:
        callback(cause)
    except Exception:
        log.exception("a function given to ctx.on_stop() failed")
