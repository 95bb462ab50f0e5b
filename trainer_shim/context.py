"""The face of the shim: what a training script calls."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Protocol, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer_shim.batch import plan_batch
from trainer_shim.checkpoint import CheckpointStore, Progress
from trainer_shim.data import MicroBatch, Order, TrainLoader, deaf_iterator, ignore_in_worker
from trainer_shim.errors import CheckpointError, SupersededError, UsageError
from trainer_shim.group import Ballot, Group
from trainer_shim.incarnation import claim, highest
from trainer_shim.job import Job, read_job
from trainer_shim.lease import LeaseWatch
from trainer_shim.leave import departure
from trainer_shim.report import INTERVAL, Reporter, process_age
from trainer_shim.saver import Saver
from trainer_shim.stop import CAUSES, StopFlag, agreed_cause, exit_code, listen, stop_listening, turn_deaf
from trainer_shim.world import find_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized
    from types import TracebackType

    from trainer_shim.ahead import Ahead
    from trainer_shim.checkpoint import Checkpoint

POLL_INTERVAL = 0.5  # seconds between looks at the lease and at the fence
YOUNG = 60.0  # seconds of age up to which a checkpoint will do for a stop in a hurry
LONG_EVALUATION = 5.0  # seconds from which on it is worth a checkpoint, so that a stop need not await its end
GOODBYE_SECONDS = 0.1  # between the last collective and the end of a process

T = TypeVar("T")

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
        self.data_seconds = 0.0  # of `seconds`, those that waited for data, and for the other ranks
        self.sync_seconds = 0.0


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
        self._progress = resumed.progress if resumed else Progress()
        self._report = Reporter(job.reports if group.rank == 0 else None, incarnation)
        self._saver = Saver(store, incarnation, resumed, self._check_fence, self._report)
        self._lease = LeaseWatch(job.lease, job.run) if job.lease and job.run else None

        self._tracked: dict[str, Stateful] = {}
        self._wrapped: list[DistributedDataParallel] = []  # what is in them
        self._loader: TrainLoader | None = None
        self._iterable = False
        self._ended = False
        self._warned = False

        self._micro: MicroBatch | None = None
        self._ballot: Ballot | None = None
        self._data: Ahead[Any] | None = None  # where the loop's batches come from
        self._data_late = False  # on any rank, when the last boundary was voted on
        self._evaluation = 0.0  # seconds of evaluation since the last boundary
        self._between: float | None = None  # the same between the last two epochs
        self._before_stop: list[Callable[[str], object]] = []
        self._after_stop: list[Callable[[str], object]] = []
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=group.device)
        self._loss: float | None = None  # the mean over the last window
        self._window = _Window()
        self._mark = self._polled = self._reported = 0.0
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
            raise UsageError("ctx.loader() is for the training data, once; evaluate with ctx.evaluate(...)")
        plan = plan_batch(global_batch, self.size, max_per_gpu)
        order = Order(seed, len(dataset), shuffle)
        if self._resumed and self._resumed.order != order._asdict():
            raise CheckpointError(
                f"{self._resumed.data}: made with {self._resumed.order}, and this script has {order._asdict()}; "
                "use another checkpoint directory for other data"
            )
        options["worker_init_fn"] = functools.partial(ignore_in_worker, self._deaf, options.get("worker_init_fn"))
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
        if self._ended:
            yield from batches
            return
        started = time.monotonic()
        source = deaf_iterator(batches, self._deaf)
        together = True  # until a rank has left its loop early: then nobody waits for it
        try:
            while True:
                everybody_done = False
                while together:
                    waiting = not source.ready(POLL_INTERVAL)
                    done = not waiting and source.ended
                    waits, unfinished, left = self._look_away(int(waiting), int(not done), 0)
                    together = not left
                    everybody_done = not unfinished
                    if not waits:
                        break
                if everybody_done:
                    break
                if not source.ended:
                    yield source.take()
                elif not together:
                    break
        except GeneratorExit:  # the script has left its loop
            if together:
                self._vote(0, 0, 0, 0, 1)  # the others hear it in their next vote, which is this one
            source.close(wait=True)
            raise
        finally:
            seconds = time.monotonic() - started
            self._evaluation += seconds
            self._mark += seconds  # it is no part of the training's throughput

    def poll(self) -> None:
        """Stop if that was asked: for long work outside the loops. Called by all ranks alike.

        It stops as `evaluate` does: where a checkpoint says all that was trained, or where there is no time left.

        Raises:
            SystemExit: a stop was agreed.
        """
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
            UsageError: outside a loop over the training loader.
        """
        micro = self._in_hand()
        self._loss_sum += loss.detach() * micro.samples
        weighted = loss * micro.weight
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
        if self._ballot is not None:
            raise UsageError("ctx.step() is called once for a batch: give it all optimizers in one call")
        self._call_vote()
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

    @property
    def _deaf(self) -> tuple[int, ...]:
        """What a loader's workers do not hear."""
        return signal.SIGTERM, self._job.signal

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
        asked = self._mark
        self._data_late = True  # as far as anybody knows
        for micro, batch in loader.pairs(self._progress.epoch, self._progress.cursor, self.rank, self._await_data):
            self._window.data_seconds += time.monotonic() - asked
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
                self._evaluation = 0.0
                self._mark = time.monotonic()
            asked = time.monotonic()
        self._data = None
        if self.rank == 0 and (self._between is None or self._between >= LONG_EVALUATION):
            self._saver.begin(self._states, self._progress, loader.order._asdict())

    def _await_data(self, data: Ahead[Any]) -> None:
        """Wait until every rank has its next batch, or a stop is agreed: this is still the boundary."""
        self._data = data
        while self._data_late:
            waits = not data.ready(POLL_INTERVAL)
            ballot = self._vote(int(waits))
            cause, hurried, (late,) = _counted(ballot.result())
            if cause:
                self._report_steps()
                self._stop_now(cause, hurried=hurried)
            self._data_late = late > 0

    def _in_hand(self) -> MicroBatch:
        if self._micro is None:
            raise UsageError("ctx.backward() and ctx.step() belong in `for ... in loader`")
        return self._micro

    def _vote(self, *flags: int) -> Ballot:
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
            cause = self._lease.cause() if self._lease else None
            if cause:
                self._stop.request(cause)
        return self._group.vote([*self._stop.votes(), int(self._stop.hurried), *flags])

    def _call_vote(self) -> None:
        """Begin to agree with the other ranks on what to do at this boundary; `_close_step` awaits the answer."""
        now = time.monotonic()
        first = self.rank == 0
        report_due = first and now - self._reported >= INTERVAL
        save_due = first and self._saver.due(self._checkpoint_every)
        data_late = self._data is not None and not self._data.ready(0)
        self._ballot = self._vote(int(report_due), int(save_due), int(data_late))

    def _close_step(self) -> None:
        """Do what was agreed on for this boundary."""
        assert self._ballot is not None  # noqa: S101  every caller has called the vote
        asked = time.monotonic()
        cause, hurried, (report_due, save_due, data_late) = _counted(self._ballot.result())
        waited = time.monotonic() - asked
        self._window.sync_seconds += waited
        self._window.seconds += waited
        self._ballot = None
        self._data_late = data_late > 0
        if report_due or cause:
            self._report_steps()
        if cause:
            self._stop_now(cause, hurried=hurried)
        if self.rank == 0 and self._loader:
            self._saver.settle(wait=False)
            if save_due:
                self._saver.begin(self._states, self._progress, self._loader.order._asdict())

    def _look_away(self, *flags: int) -> list[int]:
        """Stop between two boundaries, if that was asked and is right; else return the sums of `flags`.

        The script may have changed what is tracked since the last boundary, so nothing can be saved here.
        """
        first = self.rank == 0
        safe = first and self._saver.covers(self._progress)
        late = first and self._seconds_left() < (self._saver.slowest or 0)
        cause, hurried, (is_safe, is_late, *sums) = _counted(self._vote(int(safe), int(late), *flags).result())
        someone_left = len(sums) == 3 and sums[2]  # noqa: PLR2004  who is not there to hear the outcome
        if cause and not someone_left and (is_safe or is_late or hurried or cause == "superseded"):
            self._report_steps()
            self._stop_now(cause, may_save=False)
        return sums

    def _seconds_left(self) -> float:
        """Until the deadline of the stop request, as far as rank 0 knows of one."""
        deadline = self._lease.deadline if self._lease else None
        return math.inf if deadline is None else deadline - time.time()

    def _report_steps(self) -> None:
        """Write the `steps` line; collective, because the loss is everybody's."""
        window, self._window = self._window, _Window()
        self._reported = time.monotonic()
        if not window.steps:
            return
        assert self._loader is not None  # noqa: S101  there was a step
        waits = torch.tensor([window.data_seconds, window.sync_seconds], dtype=torch.float64, device=self.device)
        loss_sum, data_seconds, sync_seconds = self._group.totals(torch.cat((self._loss_sum.reshape(1), waits)))
        self._loss = loss_sum / window.samples
        self._loss_sum.zero_()
        plan = self._loader.plan
        self._report.emit(
            "steps",
            step=self._progress.step,
            steps=window.steps,
            samples=window.samples,
            seconds=window.seconds,
            data_seconds=data_seconds / self.size,
            sync_seconds=sync_seconds / self.size,
            peak_bytes=self._group.peak_bytes(),
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

    def _states(self) -> dict[str, Any]:
        return {name: item.state_dict() for name, item in self._tracked.items()}

    def _save(self, cause: str) -> None:
        if self._loader:
            self._saver.save(self._states, self._progress, self._loader.order._asdict(), cause)

    def _save_for_stop(self) -> bool:
        try:
            self._save("stop")
        except SupersededError:
            return False  # the next vote ends it
        except OSError as error:
            log.error("no checkpoint at step %d, the last one stays: %s", self._progress.step, error)  # noqa: TRY400
            return False
        return True

    def _stop_now(self, cause: str, *, hurried: bool = False, may_save: bool = True) -> NoReturn:
        noticed = self._group.earliest(self._stop.noticed)

        def decide() -> bool:
            self._saver.settle()
            return may_save and cause != "superseded" and self._worth_saving(hurried)

        saves = self._group.from_first(decide)
        if saves:
            for callback in self._before_stop:
                _call(callback, cause)

        def save() -> tuple[str, bool]:
            saved = self._save_for_stop() if saves else cause != "superseded" and self._progress == self._saver.saved
            return ("superseded" if self._stop.superseded else cause), saved

        cause, saved = self._group.from_first(save)
        for callback in self._after_stop:
            _call(callback, cause)
        step = self._progress.step
        self._report.emit("stop", step=step, cause=cause, noticed=noticed, checkpointed=saved)
        code = exit_code(cause, self._job.exit_code)
        if self.rank == 0:
            log.info("stopped after step %d (%s), checkpointed: %s, exit code %d", step, cause, saved, code)
        self._ended = True
        turn_deaf(self._job.signal)
        departure.begin(code)

    def _worth_saving(self, hurried: bool) -> bool:  # noqa: FBT001  as in the vote
        """Whether there is something to save, and time for it as far as the earlier checkpoints tell."""
        if self._progress == self._saver.saved:
            return False
        left, slowest, age = self._seconds_left(), self._saver.slowest, self._saver.age
        if slowest is not None and left < slowest:
            log.warning("no checkpoint: one took %.1f s, and the deadline is %.1f s away", slowest, left)
            return False
        if hurried and age < YOUNG:
            log.warning("no checkpoint: SIGTERM came after the first signal, and the last one is %.1f s old", age)
            return False
        return True

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
            if not departure.begun:
                # gloo's threads let go of the last collective's tensors a moment after it is done, and need Python for
                # that: an interpreter that is taken apart meanwhile aborts (seen on a crowded machine).
                time.sleep(GOODBYE_SECONDS)


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


def _counted(sums: list[int]) -> tuple[str | None, bool, list[int]]:
    """What a vote's sums say: the cause to stop if any, whether to hurry, and the sums of the other flags."""
    causes, (hurried, *flags) = sums[: len(CAUSES)], sums[len(CAUSES) :]
    return agreed_cause(causes), hurried > 0, flags


def _call(callback: Callable[[str], object], cause: str) -> None:
    try:
        callback(cause)
    except Exception:
        log.exception("a function given to ctx.on_stop() failed")


def _log_somewhere() -> None:
    """Let the shim's few lines be seen in the job's output where the script has not set up logging."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("trainer_shim: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.INFO)
