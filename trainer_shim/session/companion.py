"""The public interface of the shim for frameworks that own the training loop.

The framework trains and saves. A `Companion`, which the framework calls at every optimizer step, decides when to stop,
and which checkpoints count. At these step boundaries, or at some of them where steps are short, the ranks vote on
whether to stop and whether to save. A file of the framework counts as a checkpoint when `Companion.saved` has returned.
`contrib/integrations` has Lightning, the Hugging Face Trainer and Accelerate.
"""

from __future__ import annotations

import atexit
import logging
import time
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from trainer_shim.checkpointing.atomic_files import atomic_file
from trainer_shim.data.even_split import GlobalOrder, RankBatches, even_sizes, plan_even_split
from trainer_shim.data.loader_workers import workers_ignoring_signals
from trainer_shim.data.sample_order import SampleOrder, order_difference
from trainer_shim.data.seeding import derive_seed
from trainer_shim.errors import BatchError, CheckpointError, SupersededError, UsageError
from trainer_shim.preemption.exit import wait_for_gloo_threads
from trainer_shim.preemption.stop_requests import handle_stop_signals

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch.utils.data import DataLoader

    from trainer_shim.checkpointing.atomic_files import ChecksummedFile
    from trainer_shim.checkpointing.formats.framework_checkpoints import FrameworkCheckpoint, FrameworkCheckpoints
    from trainer_shim.data.even_split import EvenSplit
    from trainer_shim.session.trainer_session import TrainerSession
    from trainer_shim.trackers.tracker import Tracker

log = logging.getLogger("trainer_shim")


class Companion:
    """One trainer: a process among `size`, whose loop belongs to a framework.

    Made by `trainer_shim.attach`. All methods but `metric`, `tracker`, `seed`, `ignore_stop_signals`, `restart_timer`
    and `atomic_file` are collective: every rank calls them alike.

    Attributes:
        rank: this process's number, from 0.
        size: the number of processes that train together.
        generation: the fencing token of this trainer on the checkpoint directory, from 1.
        directory: the directory in which this generation saves.
        resume: the checkpoint to load, None for a fresh start.
        resumed_metadata: the metadata that was saved with that checkpoint, empty for a fresh start.
        step: optimizer steps over all runs.
        should_save: whether the last boundary asks for a checkpoint.
    """

    def __init__(
        self, *, session: TrainerSession, checkpoints: FrameworkCheckpoints, resumed: FrameworkCheckpoint | None
    ) -> None:
        self.rank = session.group.rank
        self.size = session.group.size
        self.generation = session.generation
        self.directory = checkpoints.generation_directory(session.generation)
        self.resume = resumed.path if resumed else None
        self.resumed_metadata: dict[str, Any] = resumed.metadata if resumed else {}
        self.step = resumed.step if resumed else 0
        self.should_save = False

        self._session = session
        self._checkpoints = checkpoints
        self._plan: EvenSplit | None = None
        self._order: dict[str, Any] | None = None
        self._cause: str | None = None  # of the stop that `should_stop` has announced
        self._noticed: float | None = None  # its first request, unix seconds
        self._saved_step = self.step if self.finished else None
        self._unmarked: tuple[Path, Collection[Path]] | None = None  # this trainer's newest checkpoint, if not final
        self._begun = False
        atexit.register(self._close)

    @property
    def finished(self) -> bool:
        """Whether the job was finished when this trainer started."""
        return bool(self.resumed_metadata.get("finished"))

    @property
    def checkpoint_is_current(self) -> bool:
        """Whether a checkpoint has the present position."""
        return self._saved_step == self.step

    def plan(self, global_batch: int, max_per_gpu: int | None = None) -> EvenSplit:
        """Set the global batch of the job, and return its split over the ranks.

        Raises:
            BatchError: the global batch cannot be split evenly.
            CheckpointError: the checkpoint was made with another global batch.
        """
        self._check_unchanged("global_batch", global_batch)
        self._plan = plan_even_split(global_batch, self.size, max_per_gpu)
        return self._plan

    def order(self, samples: int, *, seed: int = 0, shuffle: bool = True) -> GlobalOrder:
        """Return a sampler with the order of a data set of `samples` samples, for all ranks together.

        It is for frameworks that distribute batches to the ranks themselves, and skip trained samples when they resume.
        The samples after the last full global batch are dropped; with `shuffle`, other samples in each epoch.

        Raises:
            BatchError: the data set is smaller than one global batch.
            CheckpointError: the checkpoint has another order.
            UsageError: called before `plan`.
        """
        return GlobalOrder(self, self._fix_order(samples, seed, shuffle), samples, self._planned())

    def batches(self, samples: int, *, seed: int = 0, shuffle: bool = True) -> RankBatches:
        """Return a batch_sampler with this rank's micro-batches of the same order, from the training's position on.

        It is for frameworks that use every batch of their loader, and skip none. Errors are those of `order`.
        """
        return RankBatches(self, self._fix_order(samples, seed, shuffle), samples, self._planned())

    def begin(self, total_steps: int | None = None) -> None:
        """Begin to train: write the first report lines, and handle the stop signals, also where a framework did so.

        Raises:
            UsageError: called before `plan`.
        """
        plan = self._planned()
        handle_stop_signals(self._session.stop_requests, self._session.job.signal)
        if not self._begun:
            self._begun = True
            self._session.report_start(step=self.step, samples=self.step * plan.global_batch)
            totals = {} if total_steps is None else {"total_steps": total_steps}
            if total_steps:
                totals["total_samples"] = total_steps * plan.global_batch
            sizes = even_sizes(plan.global_batch)
            self._session.report.emit("declare", **totals, global_batch=plan.global_batch, sizes=sizes)
        self._session.metrics.reset()
        self.restart_timer()

    def should_stop(self, loss: torch.Tensor | float | None = None) -> bool:
        """Count an optimizer step, and return whether all ranks are to stop now.

        Where steps are short the ranks vote at some boundaries only; at the others this returns False.

        After a stop the framework writes a checkpoint and calls `saved`, if `should_save` is true, and then calls
        `stop`. Without a stop, `should_save` means that a periodic checkpoint is due.

        Args:
            loss: the mean over this rank's samples of the step, for the reports.

        Raises:
            UsageError: called before `begin`.
        """
        if not self._begun:
            raise UsageError("companion.begin() comes before the first step")
        session, metrics = self._session, self._session.metrics
        self.step += 1
        metrics.add_step(self._planned().global_batch)
        if loss is not None:
            metrics.add_loss(loss, 1)
        session.vote_interval.count_step()
        self.should_save = False
        metrics.stop_timer()
        session.start_boundary_vote()
        vote = session.finish_boundary_vote()
        self.restart_timer()
        if vote is None:
            return False
        self._cause = vote.stop_cause
        if vote.report_due or vote.save_due or self._cause:
            metrics.synchronize()
            self.restart_timer()
        if vote.report_due or self._cause:
            session.report_steps(self.step, self._planned())
        self.should_save = vote.save_due > 0
        if self._cause:
            self._noticed = session.group.earliest(session.stop_requests.noticed)
            self.should_save = session.group.on_rank_zero(lambda: self._worth_saving(urgent=vote.urgent > 0))
        return self._cause is not None

    def metric(self, value: torch.Tensor | float) -> None:
        """Report a value by which the app's tuner compares this training with others; see `Context.metric`."""
        self._session.metrics.add_metric(float(value))

    def tracker(self, kind: str, **options: Any) -> Tracker:
        """Open this job's run of a tracker, by default at the companion's `step`; see `Context.tracker`."""
        return self._session.open_tracker(kind, options, lambda: self.step)

    def saved(self, path: Path, *, final: bool = False, protected: Collection[Path] = ()) -> bool:
        """Publish a checkpoint that the framework has written, a file or a directory in `directory`.

        Each rank calls this after it has written its part. Older checkpoints are removed, except for the newest two and
        the protected ones. Returns whether the checkpoint counts now; if not, the log has the error of the disk.

        Args:
            path: the checkpoint.
            final: whether the training is complete.
            protected: checkpoints to be retained, such as the best one.

        Raises:
            UsageError: the path is not in `directory`.
            SystemExit: a newer generation has started.
        """
        if path.resolve().parent != self.directory.resolve():
            raise UsageError(f"{path}: a checkpoint of this trainer belongs directly in {self.directory}")
        final = final or self._cause == "finish"
        cause = "final" if final else "stop" if self._cause else "periodic"
        plan, session = self._planned(), self._session
        metadata = {
            "global_batch": plan.global_batch,
            "accumulation": plan.accumulation,
            "order": self._order,
            "finished": final,
        }
        session.group.sum([0])  # every rank has written

        def publish() -> tuple[bool, bool]:
            started = session.metrics.timer_started
            try:
                size = self._checkpoints.publish(path, self.generation, self.step, metadata, session.check_generation)
            except SupersededError:
                return True, False
            except OSError as error:
                log.error("no checkpoint at step %d, the last one stays: %s", self.step, error)  # noqa: TRY400
                return False, False
            self._checkpoints.remove_old(self.generation, protected)
            seconds = time.monotonic() - started
            session.save_history.note_save(seconds)
            session.report.emit(
                "checkpoint", step=self.step, seconds=seconds, bytes=size, cause=cause, stall_seconds=seconds
            )
            return False, True

        superseded, saved = session.group.on_rank_zero(publish)
        session.save_history.note_attempt()
        if superseded:
            self._cause = "superseded"
            self.stop()
        if saved:
            self._saved_step = self.step
            self._unmarked = None if final else (path, protected)
        self.restart_timer()
        return saved

    def stop(self) -> NoReturn:
        """Exit with the code of the stop that `should_stop` has announced.

        Raises:
            SystemExit: always.
            UsageError: `should_stop` has announced no stop.
        """
        if self._cause is None:
            raise UsageError("companion.stop() comes after companion.should_stop() has returned True")
        if self._cause == "finish":
            self._mark_final()
        self._session.exit_for_stop(
            self._cause,
            step=self.step,
            noticed=self._noticed or time.time(),
            checkpointed=self._cause != "superseded" and self.checkpoint_is_current,
        )

    def finish(self) -> None:
        """End a complete training after its last checkpoint, which becomes the final one if this trainer wrote it.

        Raises:
            SystemExit: a newer generation has started.
        """
        if self._session.ended:
            return
        self._mark_final()
        plan = self._planned()
        self._session.report_steps(self.step, plan)
        self._session.report_finished(step=self.step, samples=self.step * plan.global_batch)

    def _mark_final(self) -> None:
        """Publish the newest checkpoint again, as the final one, if this trainer wrote it and has not trained since."""
        if self._unmarked and self.checkpoint_is_current:
            path, protected = self._unmarked
            self.saved(path, final=True, protected=protected)

    def restart_timer(self) -> None:
        """Exclude the time since the last boundary, such as an evaluation, from the reported seconds."""
        self._session.metrics.restart_timer()

    def seed(self, number: int, *more: int) -> None:
        """Seed torch for the next step from a seed of the job, this rank and `more`; so no generator need be saved."""
        torch.manual_seed(derive_seed(number, self.step, self.rank, *more))

    def ignore_stop_signals(self, loader: DataLoader[Any]) -> None:
        """Make the workers of a loader ignore the stop signals, which reach every process of a Slurm step."""
        signals = (SIGTERM, self._session.job.signal)
        loader.worker_init_fn = workers_ignoring_signals(signals, loader.worker_init_fn)

    def atomic_file(self, path: Path) -> AbstractContextManager[ChecksummedFile]:
        """Return a context manager: a file for torch.save that is renamed to `path` when it is complete and on disk.

        Raises:
            SupersededError: a newer generation has started; the file is removed.
            OSError: the file cannot be written.
        """
        return atomic_file(path, self._session.check_generation)

    def _planned(self) -> EvenSplit:
        if self._plan is None:
            raise UsageError("companion.plan(global_batch) comes first")
        return self._plan

    def _fix_order(self, samples: int, seed: int, shuffle: bool) -> SampleOrder:  # noqa: FBT001  both callers name it
        if samples < self._planned().global_batch:
            raise BatchError(f"the data set has {samples} samples, and global_batch is {self._planned().global_batch}")
        order = SampleOrder(seed, samples, shuffle)
        before = self.resumed_metadata.get("order")
        difference = None if before is None else order_difference(before, order._asdict())
        if difference is not None:
            raise CheckpointError(f"{self.resume}: {difference}")
        self._order = order._asdict()
        return order

    def _check_unchanged(self, name: str, value: Any) -> None:
        before = self.resumed_metadata.get(name)
        if before is not None and before != value:
            raise CheckpointError(
                f"{self.resume}: made with {name} {before}, and this script has {value}; "
                "use another checkpoint directory for another training"
            )

    def _worth_saving(self, *, urgent: bool) -> bool:
        """Return whether a stop has a new position to save, and time to save it, judged by earlier checkpoints."""
        if self._cause == "superseded" or self.checkpoint_is_current:
            return False
        return self._session.has_time_to_save(urgent=urgent)

    def _close(self) -> None:
        if self._session.ended:
            self._session.group.close()
            wait_for_gloo_threads()
