"""The face of the shim: what a training script calls."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer_shim.batch import plan_batch
from trainer_shim.checkpoint import CheckpointStore, Progress
from trainer_shim.data import MicroBatch, Order, TrainLoader, ignore_in_worker
from trainer_shim.errors import CheckpointError, SupersededError, UsageError
from trainer_shim.group import Ballot, Group
from trainer_shim.incarnation import claim, highest
from trainer_shim.job import Job, read_job
from trainer_shim.lease import LeaseWatch
from trainer_shim.leave import departure
from trainer_shim.report import INTERVAL, Reporter, process_age
from trainer_shim.stop import StopFlag, agreed_cause, exit_code, listen, stop_listening, turn_deaf
from trainer_shim.world import find_world

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized
    from types import TracebackType

    from trainer_shim.checkpoint import Checkpoint

POLL_INTERVAL = 0.5  # seconds between looks at the lease and at the fence

log = logging.getLogger("trainer_shim")


class Stateful(Protocol):
    """Anything that a checkpoint can hold."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Take a state back."""


class _Window:
    """What has been trained since the last `steps` line."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.seconds = 0.0


class Context:
    """One trainer: a process among `size`, which trains one job from where its last incarnation left it.

    Made by `trainer_shim.init`. At every step boundary the ranks agree on whether to stop, so all of them leave the
    loop after the same step, by SystemExit.
    """

    def __init__(
        self,
        *,
        group: Group,
        job: Job,
        store: CheckpointStore,
        stop: StopFlag,
        incarnation: int,
        resumed: Checkpoint | None,
        checkpoint_every: float,
    ) -> None:
        self._group = group
        self._job = job
        self._store = store
        self._stop = stop
        self._incarnation = incarnation
        self._resumed = resumed
        self._checkpoint_every = checkpoint_every
        self._progress = self._saved = resumed.progress if resumed else Progress()
        self._report = Reporter(job.reports if group.rank == 0 else None, incarnation)
        self._lease = LeaseWatch(job.lease, job.run) if job.lease and job.run else None

        self._tracked: dict[str, Stateful] = {}
        self._wrapped: list[DistributedDataParallel] = []  # what is in them
        self._loader: TrainLoader | None = None
        self._iterable = False
        self._ended = False
        self._warned = False

        self._micro: MicroBatch | None = None
        self._ballot: Ballot | None = None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=group.device)
        self._loss: float | None = None  # the mean over the last window
        self._window = _Window()
        self._mark = self._polled = self._reported = 0.0
        self._checkpointed = time.monotonic()
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
    def incarnation(self) -> int:
        """How many trainers, this one included, have started on the checkpoint directory."""
        return self._incarnation

    @property
    def step_count(self) -> int:
        """Optimizer steps since the beginning of the job, over all its runs."""
        return self._progress.step

    @property
    def boundary(self) -> bool:
        """Whether the micro-batch in hand ends its global batch: after `backward`, the gradients are then complete."""
        return self._micro is not None and self._micro.last

    def wrap(self, module: torch.nn.Module, **options: Any) -> DistributedDataParallel:
        """Move `module` to this rank's device and wrap it in DDP, whose further options pass through."""
        on_gpu = self.device.type == "cuda"
        return DistributedDataParallel(module.to(self.device), device_ids=[self.device] if on_gpu else None, **options)

    def loader(
        self,
        dataset: Sized,
        *,
        global_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        max_per_gpu: int | None = None,
        **options: Any,
    ) -> TrainLoader:
        """The training data, as micro-batches of this rank.

        Args:
            dataset: map-style, the same on every rank.
            global_batch: samples in an optimizer step, over all ranks, at every world size.
            seed: of the order and of torch's generator.
            shuffle: whether each epoch has an order of its own.
            max_per_gpu: the most samples that fit on a GPU at once; beyond them, gradients are accumulated.
            **options: torch's DataLoader's own (`num_workers`, `collate_fn`, `pin_memory`, ...).

        Raises:
            BatchError: the global batch cannot be split over this world.
            CheckpointError: the checkpoint was made in another order, so samples would be lost or repeated.
            UsageError: there is a training loader already.
        """
        if self._loader is not None:
            raise UsageError("ctx.loader() is for the training data, once; evaluate with a plain DataLoader")
        plan = plan_batch(global_batch, self.size, max_per_gpu)
        order = Order(seed, len(dataset), shuffle)
        if self._resumed and self._resumed.order != order._asdict():
            raise CheckpointError(
                f"{self._resumed.data}: made with {self._resumed.order}, and this script has {order._asdict()}; "
                "use another checkpoint directory for other data"
            )
        deaf = (signal.SIGTERM, self._job.signal)
        options["worker_init_fn"] = functools.partial(ignore_in_worker, deaf, options.get("worker_init_fn"))
        self._loader = TrainLoader(dataset, order, plan, self._iterate, options)
        return self._loader

    def track(self, **objects: Stateful) -> None:
        """Name what a checkpoint holds; where there is one, its states are loaded here.

        Raises:
            CheckpointError: the checkpoint holds other names.
            UsageError: called twice, or with an object that has no state_dict.
        """
        if self._tracked:
            raise UsageError("ctx.track() names everything in one call")
        for name, item in objects.items():
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UsageError(
                    f"ctx.track({name}=...): a {type(item).__name__} has no state_dict and load_state_dict"
                )
            if isinstance(item, torch.nn.Module):
                self._wrapped += [part for part in item.modules() if isinstance(part, DistributedDataParallel)]
            # Saved without DDP's prefix, so that any script can load it.
            self._tracked[name] = item.module if isinstance(item, DistributedDataParallel) else item
        if self._resumed is None:
            return
        states = self._store.load(self._resumed)
        if states.keys() != self._tracked.keys():
            raise CheckpointError(
                f"{self._resumed.data}: holds {sorted(states)}, and ctx.track() was given {sorted(self._tracked)}"
            )
        for name, item in self._tracked.items():
            item.load_state_dict(states[name])

    def epochs(self, total: int) -> Iterator[int]:
        """The epochs that are left of `total`, the first perhaps in its middle; ends the training after the last.

        A finished job has none left, and its script runs on behind the loop at once.

        Raises:
            UsageError: before `loader` and `track`.
            CheckpointError: the final checkpoint cannot be written.
            SystemExit: a stop was agreed.
        """
        self._begin(total)
        while self._progress.epoch < total and not self._progress.finished:
            self._call_vote()
            self._close_step()
            self._iterable = True
            yield self._progress.epoch
            self._iterable = False
            self._progress = self._progress._replace(epoch=self._progress.epoch + 1, cursor=0)
        self._end()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss`, the mean over the micro-batch in hand, with its weight in the global batch.

        Raises:
            UsageError: outside a loop over the training loader.
        """
        micro = self._in_hand()
        self._loss_sum += loss.detach() * micro.samples
        (loss * micro.weight).backward()  # type: ignore[no-untyped-call]

    def step(self, *optimizers: torch.optim.Optimizer) -> bool:
        """At the end of a global batch, step and clear the optimizers, and return True; else do nothing.

        Stops and checkpoints happen when the loop asks for its next batch, so that they include what the script does
        after a step, such as a schedule's own step.

        Raises:
            UsageError: outside a loop over the training loader, or a second time for one batch.
        """
        micro = self._in_hand()
        if not micro.last:
            return False
        if self._ballot is not None:
            raise UsageError("ctx.step() is called once for a batch: give it all optimizers in one call")
        self._call_vote()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._progress = self._progress._replace(
            cursor=self._progress.cursor + micro.global_samples,
            step=self._progress.step + 1,
            samples=self._progress.samples + micro.global_samples,
        )
        self._window.steps += 1
        self._window.samples += micro.global_samples
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

    def _begin(self, total: int) -> None:
        if self._loader is None or not self._tracked:
            raise UsageError("ctx.loader(...) and ctx.track(...) come before ctx.epochs(...)")
        self._report.emit(
            "start",
            run=self._job.run,
            incarnation=self._incarnation,
            world_size=self.size,
            step=self._progress.step,
            samples=self._progress.samples,
            resumed=self._resumed is not None,
            init_seconds=process_age(),
        )
        self._report.emit(
            "declare",
            total_steps=total * self._loader.steps_per_epoch,
            total_samples=total * self._loader.order.size,
            global_batch=self._loader.plan.global_batch,
        )

    def _iterate(self, loader: TrainLoader) -> Iterator[Any]:
        if not self._iterable:
            raise UsageError("iterate over the training loader inside `for epoch in ctx.epochs(...)`")
        self._mark = time.monotonic()
        for micro, batch in loader.pairs(self._progress.epoch, self._progress.cursor, self.rank):
            self._micro = micro
            with contextlib.ExitStack() as stack:
                stack.callback(setattr, self, "_micro", None)  # also when the script leaves its loop here
                if not micro.last:
                    for wrapped in self._wrapped:
                        stack.enter_context(wrapped.no_sync())
                yield batch
            if micro.last:
                if self._ballot is None:
                    raise UsageError("call ctx.step(optimizer) after every ctx.backward(loss)")
                self._window.seconds += time.monotonic() - self._mark
                self._close_step()
                self._mark = time.monotonic()

    def _in_hand(self) -> MicroBatch:
        if self._micro is None:
            raise UsageError("ctx.backward() and ctx.step() belong in `for ... in loader`")
        return self._micro

    def _call_vote(self) -> None:
        """Begin to agree with the other ranks on what to do at this boundary; `_close_step` awaits the answer."""
        now = time.monotonic()
        first = self.rank == 0
        if first and now - self._polled >= POLL_INTERVAL:
            self._polled = now
            try:
                self._watch_fence()
            except OSError as error:  # a hiccup of the file system: nothing is written until the fence can be read
                if not self._warned:
                    log.warning("the fence cannot be read, training goes on: %s", error)
                self._warned = True
            cause = self._lease.cause() if self._lease else None
            if cause:
                self._stop.request(cause)
        report_due = first and now - self._reported >= INTERVAL
        save_due = first and now - self._checkpointed >= self._checkpoint_every
        self._ballot = self._group.vote([*self._stop.votes(), int(report_due), int(save_due)])

    def _close_step(self) -> None:
        """Do what was agreed on for this boundary."""
        assert self._ballot is not None  # noqa: S101  every caller has called the vote
        *causes, report_due, save_due = self._ballot.result()
        self._ballot = None
        cause = agreed_cause(causes)
        if report_due or cause:
            self._report_steps()
        if cause:
            self._stop_now(cause)
        if save_due and self.rank == 0:
            self._save_or_warn("periodic")

    def _report_steps(self) -> None:
        """Write the `steps` line; collective, because the loss is everybody's."""
        window, self._window = self._window, _Window()
        self._reported = time.monotonic()
        if not window.steps:
            return
        assert self._loader is not None  # noqa: S101  there was a step
        self._loss = self._group.total(self._loss_sum) / window.samples
        self._loss_sum.zero_()
        plan = self._loader.plan
        self._report.emit(
            "steps",
            step=self._progress.step,
            steps=window.steps,
            samples=window.samples,
            seconds=window.seconds,
            loss=self._loss,
            world_size=self.size,
            global_batch=plan.global_batch,
            per_gpu_batch=plan.per_gpu_batch,
            accumulation=plan.accumulation,
        )

    def _watch_fence(self) -> None:
        if highest(self._store.directory / "incarnations") > self._incarnation:
            self._stop.request("superseded")

    def _check_fence(self) -> None:
        """Raise SupersededError when this is not the newest incarnation any more."""
        self._watch_fence()
        if self._stop.superseded:
            raise SupersededError("a newer incarnation has started on this checkpoint directory")

    def _save(self, cause: str) -> None:
        """Write a checkpoint, unless the last one says the same."""
        self._checkpointed = time.monotonic()
        if self._progress == self._saved or not self._loader:
            return
        self._check_fence()
        states = {name: item.state_dict() for name, item in self._tracked.items()}
        order = self._loader.order._asdict()
        size = self._store.save(states, self._incarnation, self._progress, order, self._check_fence)
        self._saved = self._progress
        seconds = time.monotonic() - self._checkpointed
        self._checkpointed = time.monotonic()
        self._report.emit("checkpoint", step=self._progress.step, seconds=seconds, bytes=size, cause=cause)

    def _save_or_warn(self, cause: str) -> bool:
        try:
            self._save(cause)
        except SupersededError:
            return False  # the next vote ends it
        except OSError as error:
            log.error("no checkpoint at step %d, the last one stays: %s", self._progress.step, error)  # noqa: TRY400
            return False
        return True

    def _stop_now(self, cause: str) -> NoReturn:
        noticed = self._group.earliest(self._stop.noticed)

        def save() -> tuple[str, bool]:
            saved = cause != "superseded" and self._save_or_warn("stop")
            return ("superseded" if self._stop.superseded else cause), saved

        cause, saved = self._group.from_first(save)
        step = self._progress.step
        self._report.emit("stop", step=step, cause=cause, noticed=noticed, checkpointed=saved)
        code = exit_code(cause, self._job.exit_code)
        if self.rank == 0:
            log.info("stopped after step %d (%s), checkpointed: %s, exit code %d", step, cause, saved, code)
        self._ended = True
        turn_deaf(self._job.signal)
        departure.begin(code)

    def _end(self) -> None:
        if self._ended:
            return
        if self._ballot is not None:  # the script left its loop right after a step
            self._ballot.result()
            self._ballot = None
        self._report_steps()

        def save() -> bool:
            try:
                self._save("final")
            except SupersededError:
                return False
            except OSError as error:
                raise CheckpointError(f"the final checkpoint cannot be written: {error}") from error
            return True

        if not self._group.from_first(save):
            self._stop_now("superseded")
        self._report.emit("end", step=self._progress.step, samples=self._progress.samples, loss=self._loss)
        self._ended = True
        stop_listening(self._job.signal)
        if self.rank == 0:
            log.info("finished after step %d", self._progress.step)

    def _leave(self) -> None:
        """Leave the process group, at the very end: a script may do so itself before, or still need it.

        A rank that failed leaves by dying: a farewell could wait for the others in vain.
        """
        if self._ended:
            self._group.close()


def start(checkpoint_dir: str | os.PathLike[str], checkpoint_every: float) -> Context:
    """See `trainer_shim.init`."""
    _log_somewhere()
    job = read_job(os.environ)
    stop = StopFlag()
    listen(stop, job.signal)
    group = Group(find_world(os.environ))
    store = CheckpointStore(Path(checkpoint_dir))

    def enter() -> tuple[int, Checkpoint | None]:
        try:
            incarnation = claim(store.directory / "incarnations", store.newest_incarnation())
        except OSError as error:
            raise CheckpointError(f"{store.directory}: the checkpoint directory cannot be written: {error}") from error
        return incarnation, store.latest()

    incarnation, resumed = group.from_first(enter)
    if group.rank == 0:
        log.info(
            "incarnation %d, run %s, world size %d, %s",
            incarnation,
            job.run or "unknown",
            group.size,
            f"resumed from step {resumed.progress.step}" if resumed else "from the beginning",
        )
    return Context(
        group=group,
        job=job,
        store=store,
        stop=stop,
        incarnation=incarnation,
        resumed=resumed,
        checkpoint_every=checkpoint_every,
    )


def _log_somewhere() -> None:
    """Let the shim's few lines be seen in the job's output where the script has not set up logging."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("trainer_shim: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.INFO)
