"""For frameworks that own the training loop: they train and save, and a `Companion` says when to stop, and what counts.

The framework calls it at every optimizer step. At those boundaries, or where steps are short at some of them, the ranks
agree on whether to stop and whether to save. What the framework has saved is a checkpoint from when the companion says
so. `contrib/integrations` has Lightning, the Hugging Face Trainer and Accelerate.
"""

from __future__ import annotations

import atexit
import collections
import logging
import math
import os
import resource
import time
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from trainer_shim.checkpointing.atomic_files import atomic_file
from trainer_shim.checkpointing.directory_owner import claim_directory
from trainer_shim.checkpointing.generation import claim_generation, highest_generation
from trainer_shim.checkpointing.manifests import FrameworkCheckpoints
from trainer_shim.data.even_split import GlobalOrder, RankBatches, plan_even_split
from trainer_shim.data.loader_workers import workers_ignoring_signals
from trainer_shim.data.sample_order import SampleOrder
from trainer_shim.data.seeding import derive_seed
from trainer_shim.environment.launcher import write_exit_code
from trainer_shim.errors import BatchError, CheckpointError, SupersededError, UsageError
from trainer_shim.preemption.exit import process_exit, wait_for_gloo_threads
from trainer_shim.preemption.lease import LeaseWatch
from trainer_shim.preemption.stop_requests import (
    CAUSES,
    POLL_INTERVAL,
    SAVE_HISTORY,
    agreed_cause,
    exit_code,
    handle_stop_signals,
    has_time_to_save,
    ignore_stop_signals,
    release_stop_signals,
)
from trainer_shim.process_groups.framework_group import FrameworkGroup
from trainer_shim.reporting.report_writer import REPORT_SECONDS, ReportWriter, process_age
from trainer_shim.session.process_startup import log_start, start_process
from trainer_shim.session.vote_interval import VoteInterval

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from trainer_shim.checkpointing.atomic_files import ChecksummedFile
    from trainer_shim.checkpointing.manifests import FrameworkCheckpoint
    from trainer_shim.data.even_split import EvenSplit
    from trainer_shim.environment.job import Job
    from trainer_shim.preemption.stop_requests import StopRequests

log = logging.getLogger("trainer_shim")


class Companion:
    """One trainer: a process among `size`, whose loop belongs to a framework.

    Made by `trainer_shim.attach`. All methods but `seed`, `ignore_stop_signals`, `restart_timer` and `atomic_file` are
    collective: every rank calls them alike.

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
        self,
        *,
        group: FrameworkGroup,
        job: Job,
        checkpoints: FrameworkCheckpoints,
        stop: StopRequests,
        generation: int,
        resumed: FrameworkCheckpoint | None,
        checkpoint_every: float,
    ) -> None:
        self.rank = group.rank
        self.size = group.size
        self.generation = generation
        self.directory = checkpoints.generation_directory(generation)
        self.resume = resumed.path if resumed else None
        self.resumed_metadata: dict[str, Any] = resumed.metadata if resumed else {}
        self.step = resumed.step if resumed else 0
        self.should_save = False  # as of the last boundary

        self._group = group
        self._job = job
        self._checkpoints = checkpoints
        self._stop = stop
        self._checkpoint_every = checkpoint_every
        self._report = ReportWriter(job.reports if group.rank == 0 else None, generation)
        self._lease = LeaseWatch(job.lease, job.run) if job.lease and job.run else None
        self._plan: EvenSplit | None = None
        self._order: dict[str, Any] | None = None
        self._cause: str | None = None
        self._noticed: float | None = None
        self._saved_step = self.step if self.finished else None
        self._unmarked: tuple[Path, Collection[Path]] | None = None  # this trainer's newest checkpoint, if not final
        self._saved_at = time.monotonic() if resumed else -math.inf
        self._tried = time.monotonic()
        self._durations: collections.deque[float] = collections.deque(maxlen=SAVE_HISTORY)  # of checkpoints, seconds
        self._vote_interval = VoteInterval(checkpoint_every)
        self._begun = False
        self._ended = False
        self._loss: float | None = None
        self._polled = self._reported = 0.0
        self._steps = 0  # since the last `steps` line, as are the next four
        self._seconds = self._sync_seconds = 0.0
        self._loss_sum: torch.Tensor | float = 0.0
        self._losses = 0
        self._mark = time.monotonic()
        atexit.register(self._leave)

    @property
    def finished(self) -> bool:
        """Whether the job was finished when this trainer started."""
        return bool(self.resumed_metadata.get("finished"))

    @property
    def checkpoint_is_current(self) -> bool:
        """Whether a checkpoint says all that was trained."""
        return self._saved_step == self.step

    def plan(self, global_batch: int, max_per_gpu: int | None = None) -> EvenSplit:
        """Fix the global batch of the job, and say how this world splits it.

        Raises:
            BatchError: it cannot be split evenly.
            CheckpointError: the checkpoint was made with another global batch.
        """
        self._compare("global_batch", global_batch)
        self._plan = plan_even_split(global_batch, self.size, max_per_gpu)
        return self._plan

    def order(self, samples: int, *, seed: int = 0, shuffle: bool = True) -> GlobalOrder:
        """The order of a data set of so many samples, as a sampler of all ranks together.

        For frameworks that deal batches out to the ranks themselves, and skip what was trained when they resume. What
        is left of an epoch behind its last whole global batch is dropped; with `shuffle`, other samples in each epoch.

        Raises:
            BatchError: not even one global batch.
            CheckpointError: the checkpoint was made in another order.
            UsageError: before `plan`.
        """
        return GlobalOrder(self, self._fix_order(samples, seed, shuffle), samples, self._planned())

    def batches(self, samples: int, *, seed: int = 0, shuffle: bool = True) -> RankBatches:
        """The same order as this rank's micro-batches, from where the training stands on: a DataLoader's batch_sampler.

        For frameworks that take their batches as they come, and skip nothing. Raises as `order` does.
        """
        return RankBatches(self, self._fix_order(samples, seed, shuffle), samples, self._planned())

    def begin(self, total_steps: int | None = None) -> None:
        """The training begins: write the first report lines, and hear the stop signals, whoever has taken them over.

        Raises:
            UsageError: before `plan`.
        """
        plan = self._planned()
        handle_stop_signals(self._stop, self._job.signal)
        if not self._begun:
            self._begun = True
            self._report.emit(
                "start",
                run=self._job.run,
                incarnation=self.generation,
                world_size=self.size,
                step=self.step,
                samples=self.step * plan.global_batch,
                resumed=self.resume is not None,
                init_seconds=process_age(),
            )
            totals = {} if total_steps is None else {"total_steps": total_steps}
            totals |= {name: steps * plan.global_batch for name, steps in [("total_samples", total_steps)] if steps}
            self._report.emit("declare", **totals, global_batch=plan.global_batch)
        self._clear_metrics()
        self.restart_timer()

    def should_stop(self, loss: torch.Tensor | float | None = None) -> bool:
        """An optimizer step was made; whether all ranks are to stop now. Then `should_save` says whether to save.

        Where steps are short the ranks ask each other at some boundaries only; at the others nothing is to be done.

        A stop is to be followed by a checkpoint and `saved`, if `should_save`, and by `stop`. Without a stop,
        `should_save` says that a periodic checkpoint is due. `loss` is the mean over this rank's share of the step.

        Raises:
            UsageError: before `begin`.
        """
        if not self._begun:
            raise UsageError("companion.begin() comes before the first step")
        self.step += 1
        self._steps += 1
        if loss is not None:
            self._losses += 1
            self._loss_sum = self._loss_sum + (loss.detach() if isinstance(loss, torch.Tensor) else loss)
        self._vote_interval.count_step()
        self.should_save = False
        asked = time.monotonic()
        self._seconds += asked - self._mark
        self._mark = asked
        if not self._vote_interval.due:
            self._vote_interval.skip_boundary()
            return False
        first = self.rank == 0
        report_due = first and asked - self._reported >= REPORT_SECONDS
        save_due = first and asked - self._tried >= self._checkpoint_every
        proposal = self._vote_interval.start_vote(asked)
        self._look()
        flags = [self._stop.urgent, report_due, save_due, proposal if first else 0]
        sums = self._group.sum([*self._stop.flags(), *flags])
        now = time.monotonic()
        self._seconds += now - asked
        self._sync_seconds += now - asked
        self._mark = now
        urgent, report, save, proposal = map(int, sums[len(CAUSES) :])
        self._vote_interval.finish_vote(proposal, ready=True)
        self._cause = agreed_cause([int(count) for count in sums[: len(CAUSES)]])
        if report or save or self._cause:
            self._drain()
        if report or self._cause:
            self._report_steps()
        self.should_save = save > 0
        if self._cause:
            self._noticed = self._group.earliest(self._stop.noticed)
            self.should_save = self._group.on_rank_zero(lambda: self._worth_saving(urgent=urgent > 0))
        return self._cause is not None

    def saved(self, path: Path, *, final: bool = False, protected: Collection[Path] = ()) -> bool:
        """The framework has written a checkpoint, a file or a directory in `directory`: from now on it counts.

        All ranks have written their parts when they call this. Older checkpoints are removed, except for the newest two
        and `protected`. Returns False, with an error in the log, where the disk did not take it.

        Args:
            path: the checkpoint.
            final: the training is complete.
            protected: checkpoints to be retained, such as the best one.

        Raises:
            UsageError: the path lies elsewhere.
            SystemExit: a newer generation has started.
        """
        if path.resolve().parent != self.directory.resolve():
            raise UsageError(f"{path}: a checkpoint of this trainer belongs directly in {self.directory}")
        cause = "stop" if self._cause else "final" if final else "periodic"
        plan = self._planned()
        metadata = {
            "global_batch": plan.global_batch,
            "accumulation": plan.accumulation,
            "order": self._order,
            "finished": final,
        }
        self._group.sum([0])  # every rank has written

        def enter() -> tuple[bool, bool]:
            began = self._mark
            try:
                size = self._checkpoints.publish(path, self.generation, self.step, metadata, self.check_fence)
            except SupersededError:
                return True, False
            except OSError as error:
                log.error("no checkpoint at step %d, the last one stays: %s", self.step, error)  # noqa: TRY400
                return False, False
            self._checkpoints.remove_old(self.generation, protected)
            seconds = time.monotonic() - began
            self._durations.append(seconds)
            self._report.emit(
                "checkpoint", step=self.step, seconds=seconds, bytes=size, cause=cause, stall_seconds=seconds
            )
            return False, True

        superseded, saved = self._group.on_rank_zero(enter)
        self._tried = time.monotonic()
        if superseded:
            self._cause = "superseded"
            self.stop()
        if saved:
            self._saved_step, self._saved_at = self.step, self._tried
            self._unmarked = None if final else (path, protected)
        self.restart_timer()
        return saved

    def stop(self) -> NoReturn:
        """Leave, with the exit code of the stop that `should_stop` has announced.

        Raises:
            SystemExit: always.
            UsageError: no stop was announced.
        """
        if self._cause is None:
            raise UsageError("companion.stop() comes after companion.should_stop() has said so")
        cause, saved = self._cause, self._cause != "superseded" and self.checkpoint_is_current
        self._report.emit("stop", step=self.step, cause=cause, noticed=self._noticed or time.time(), checkpointed=saved)
        code = exit_code(cause, self._job.exit_code)
        if self.rank == 0:
            log.info("stopped after step %d (%s), checkpointed: %s, exit code %d", self.step, cause, saved, code)
        self._ended = True
        ignore_stop_signals(self._job.signal)
        # Torchrun would take the code for a failure.
        process_exit.start(0 if write_exit_code(code, os.environ) else code)

    def finish(self) -> None:
        """The training is complete, and its last checkpoint is written: if this trainer made it, it is the final one.

        Raises:
            SystemExit: a newer generation has started.
        """
        if self._ended:
            return
        if self._unmarked and self.checkpoint_is_current:
            path, protected = self._unmarked
            self.saved(path, final=True, protected=protected)
        self._report_steps()
        self._report.emit("end", step=self.step, samples=self.step * self._planned().global_batch, loss=self._loss)
        self._ended = True
        release_stop_signals(self._job.signal)
        if self.rank == 0:
            log.info("finished after step %d", self.step)

    def restart_timer(self) -> None:
        """What happened since the last boundary was no training: an evaluation, a checkpoint."""
        self._mark = time.monotonic()

    def seed(self, number: int, *more: int) -> None:
        """Seed torch for the step that comes, from a seed of the job, this rank and `more`: no state need be saved."""
        torch.manual_seed(derive_seed(number, self.step, self.rank, *more))

    def ignore_stop_signals(self, loader: DataLoader[Any]) -> None:
        """Let the workers of a loader not hear the stop signals, which reach every process of a Slurm step."""
        signals = (SIGTERM, self._job.signal)
        loader.worker_init_fn = workers_ignoring_signals(signals, loader.worker_init_fn)

    def atomic_file(self, path: Path) -> AbstractContextManager[ChecksummedFile]:
        """A file for torch.save that takes the name `path` when it is on disk, and no newer generation has started."""
        return atomic_file(path, self.check_fence)

    def check_fence(self) -> None:
        """Raise SupersededError when this is not the newest generation any more."""
        if highest_generation(self._checkpoints.root / "incarnations") > self.generation:
            self._stop.request("superseded")
        if self._stop.superseded:
            raise SupersededError("a newer generation has started on this checkpoint directory")

    def _planned(self) -> EvenSplit:
        if self._plan is None:
            raise UsageError("companion.plan(global_batch) comes first")
        return self._plan

    def _fix_order(self, samples: int, seed: int, shuffle: bool) -> SampleOrder:  # noqa: FBT001  both callers name it
        if samples < self._planned().global_batch:
            raise BatchError(f"the data set has {samples} samples, and global_batch is {self._planned().global_batch}")
        order = SampleOrder(seed, samples, shuffle)
        self._compare("order", order._asdict())
        self._order = order._asdict()
        return order

    def _compare(self, name: str, value: Any) -> None:
        before = self.resumed_metadata.get(name)
        if before is not None and before != value:
            raise CheckpointError(
                f"{self.resume}: made with {name} {before}, and this script has {value}; "
                "use another checkpoint directory for another training"
            )

    def _look(self) -> None:
        """Rank 0 looks at the fence and the lease now and then."""
        now = time.monotonic()
        if self.rank or now - self._polled < POLL_INTERVAL:
            return
        self._polled = now
        try:
            self.check_fence()
        except (SupersededError, OSError) as error:  # the vote says it, or the next look will
            log.debug("%s", error)
        cause = self._lease.stop_cause() if self._lease else None
        if cause:
            self._stop.request(cause)

    def _worth_saving(self, *, urgent: bool) -> bool:
        """Whether there is something to save, and time for it as far as the earlier checkpoints tell."""
        if self._cause == "superseded" or self.checkpoint_is_current:
            return False
        left = self._lease.seconds_to_deadline(self._stop.first_signal) if self._lease else math.inf
        slowest = max(self._durations, default=None)
        return has_time_to_save(left, slowest, time.monotonic() - self._saved_at, urgent=urgent)

    def _drain(self) -> None:
        """Let the GPU end the steps so far, which is part of their time: the host runs prefetcher of it."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        now = time.monotonic()
        self._seconds += now - self._mark
        self._mark = now

    def _clear_metrics(self) -> None:
        self._steps = 0
        self._seconds = self._sync_seconds = 0.0
        self._loss_sum = 0.0
        self._losses = 0

    def _report_steps(self) -> None:
        """Write the `steps` line; collective, because the loss is everybody's."""
        self._reported = time.monotonic()
        if not self._steps:
            return
        plan = self._planned()
        mine = [float(self._loss_sum), self._losses, self._sync_seconds]
        loss_sum, losses, sync_seconds = self._group.sum(mine)
        self._loss = loss_sum / losses if losses else None
        self._report.emit(
            "steps",
            step=self.step,
            steps=self._steps,
            samples=self._steps * plan.global_batch,
            seconds=self._seconds,
            sync_seconds=sync_seconds / self.size,
            peak_bytes=_peak_bytes(),
            loss=self._loss,
            world_size=self.size,
            global_batch=plan.global_batch,
            per_gpu_batch=plan.per_gpu_batch,
            accumulation=plan.accumulation,
        )
        self._clear_metrics()

    def _leave(self) -> None:
        if self._ended:
            self._group.close()
            wait_for_gloo_threads()


def _peak_bytes() -> int:
    """The most memory that this process has used so far: of its GPU, or without one what was resident."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def start(checkpoint_dir: str | os.PathLike[str], checkpoint_every: float) -> Companion:
    """See `trainer_shim.attach`."""
    job, stop, world = start_process()
    if job.profiling_steps is not None:
        log.info("no profiling run: the training loop belongs to a framework")
        process_exit.start(0)
    group = FrameworkGroup(world)
    checkpoints = FrameworkCheckpoints(Path(checkpoint_dir).resolve())

    def enter() -> tuple[int, FrameworkCheckpoint | None]:
        if any(checkpoints.root.glob("incarnation-*-step-*.json")):
            raise CheckpointError(
                f"{checkpoints.root}: holds checkpoints of trainer_shim.init(); use another directory"
            )
        try:
            claim_directory(checkpoints.root, job)
            generation = claim_generation(checkpoints.root / "incarnations", checkpoints.newest_generation())
            checkpoints.generation_directory(generation).mkdir()
        except OSError as error:
            raise CheckpointError(f"{checkpoints.root}: the checkpoint directory cannot be written: {error}") from error
        return generation, checkpoints.latest()

    generation, resumed = group.on_rank_zero(enter)
    log_start(group, job, generation, f"resumes from step {resumed.step}" if resumed else "from the beginning")
    return Companion(
        group=group,
        job=job,
        checkpoints=checkpoints,
        stop=stop,
        generation=generation,
        resumed=resumed,
        checkpoint_every=checkpoint_every,
    )
