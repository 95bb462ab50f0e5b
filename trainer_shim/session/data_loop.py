"""The loop over the training data: this rank's micro-batches, with the boundaries between the steps."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from trainer_shim.data.seeding import derive_seed, seed_generators
from trainer_shim.data.stream import check_same_stream, next_batch_samples
from trainer_shim.errors import UsageError
from trainer_shim.preemption.exit import process_exit
from trainer_shim.preemption.stop_requests import POLL_INTERVAL
from trainer_shim.session.evaluation_time import EvaluationTime
from trainer_shim.session.vote import Vote

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.data_wait import DataWait
    from trainer_shim.data.prefetch import Prefetcher
    from trainer_shim.data.sample_order import MicroBatch
    from trainer_shim.data.train_loader import TrainLoader
    from trainer_shim.process_groups.script_group import ScriptGroup
    from trainer_shim.reporting.profiling_run import ProfilingRun
    from trainer_shim.session.batch_adaptation import BatchAdaptation
    from trainer_shim.session.data_supply import DataSupply
    from trainer_shim.session.gradient_accumulation import GradientAccumulation
    from trainer_shim.session.script_checkpointing import ScriptCheckpointing
    from trainer_shim.session.step_boundary import StepBoundary
    from trainer_shim.session.trainer_session import TrainerSession
    from trainer_shim.session.training_end import TrainingEnd
    from trainer_shim.session.training_position import TrainingPosition

BOUNDARY = object()
"""An event of the loop: the boundary after a step is passed."""


class DataLoop:
    """The loop of a training over its data, epoch by epoch.

    Args:
        session: the session of this trainer.
        group: the processes of the training.
        checkpointing: its checkpoints.
        position: its position.
        supply: the data that this rank has fetched.
        accumulation: the micro-batches of the present global batch.
        boundary: the boundaries of its steps.
        ending: what ends the training.
        data_wait: the bound on waits for data.
        profiling_run: the profiling run that this training is, None for any other training.

    Attributes:
        in_epoch: whether the script is inside a loop over epochs or steps.
        evaluation_time: the duration of the script's evaluations.
    """

    def __init__(
        self,
        *,
        session: TrainerSession,
        group: ScriptGroup,
        checkpointing: ScriptCheckpointing,
        position: TrainingPosition,
        supply: DataSupply,
        accumulation: GradientAccumulation,
        boundary: StepBoundary,
        ending: TrainingEnd,
        data_wait: DataWait,
        profiling_run: ProfilingRun | None,
    ) -> None:
        self._session = session
        self._group = group
        self._checkpointing = checkpointing
        self._position = position
        self._supply = supply
        self._accumulation = accumulation
        self._boundary = boundary
        self._ending = ending
        self._data_wait = data_wait
        self._profiling_run = profiling_run
        self.in_epoch = False
        self.evaluation_time = EvaluationTime()

    def events(self, loader: TrainLoader) -> Generator[Any, None, None]:
        """Yield the micro-batches that are left of the epoch, and `BOUNDARY` after each boundary. Collective.

        Raises:
            UsageError: the script is in no loop over epochs or steps.
            SystemExit: the ranks have voted to stop.
        """
        process_exit.raise_if_started()
        if not self.in_epoch:
            raise UsageError("iterate over the training loader inside ctx.epochs(...) or ctx.steps(...)")
        self._accumulation.start_loop()
        position, adaptation = self._position, self._position.adaptation
        if adaptation is None:
            yield from self._pass_events(loader, position.progress.epoch)
        else:
            adaptation.observe_schedules()
            self._end_window(loader)
            while not adaptation.epoch_over:
                if loader.is_pass_over(position.progress.cursor):
                    position.end_pass(adaptation)
                    continue
                yield from self._pass_events(loader, adaptation.position.data_pass)
        self._supply.prefetcher = None
        self._session.metrics.synchronize()
        evaluation_is_long = self.evaluation_time.long_between_epochs
        # the ranks may have measured different durations: rank 0's counts
        if self._group.on_rank_zero(lambda: evaluation_is_long):
            with self._group.watchdog.busy():
                self._checkpointing.start(position.progress)

    def end_epoch(self) -> None:
        """End an epoch: the position is then at the beginning of the next one."""
        self._position.end_epoch()
        self.evaluation_time.end_epoch()

    def next_pass(self) -> None:
        """Begin the next epoch of a training that counts steps."""
        self.end_epoch()
        self._accumulation.start_epoch()

    def seed_micro_batch(self, micro: MicroBatch) -> None:
        """Seed the generators for a further pass over a micro-batch, as for the first one."""
        loader = self._position.loader
        assert loader is not None  # noqa: S101  a micro-batch comes from it
        seed_generators(derive_seed(loader.order.seed, self._position.data_pass, micro.position, "micro-batch"))

    def _pass_events(self, loader: TrainLoader, data_pass: int) -> Iterator[Any]:
        """Yield the events that are left of a pass over the data, and of the epoch. Collective."""
        metrics, watchdog, accumulation = self._session.metrics, self._group.watchdog, self._accumulation
        position, adaptation = self._position, self._position.adaptation
        self._supply.start_epoch(loader)
        metrics.restart_timer()
        requested_at = metrics.timer_started
        pairs = loader.micro_batches(data_pass, position.progress.cursor, self._await_data)
        with contextlib.closing(pairs):
            for micro, batch in pairs:
                if adaptation is not None and micro.plan != loader.plan:
                    self._change_plan(adaptation, micro.plan)
                metrics.data_seconds += time.monotonic() - requested_at
                watchdog.arm(f"step {position.progress.step + 1}")
                try:
                    accumulation.start_micro_batch(micro)
                    yield batch
                finally:  # also where the script leaves its loop here
                    metrics.time_last_step()
                    accumulation.end_micro_batch(micro)
                    watchdog.disarm()
                if micro.last:
                    accumulation.end_batch()
                    if adaptation is not None:
                        adaptation.follow_schedules()
                    metrics.stop_timer()
                    read_anew = self._end_window(loader)
                    self._boundary.pass_boundary()  # the training may stop here
                    if self._profiling_run is not None:
                        self._end_profiling_step(self._profiling_run, loader)
                    self.evaluation_time.pass_boundary()
                    metrics.restart_timer()
                    yield BOUNDARY
                    if read_anew or (adaptation is not None and adaptation.epoch_over):
                        return
                requested_at = time.monotonic()

    def _await_data(self, prefetcher: Prefetcher[Any]) -> None:
        """Wait, as a part of the boundary, until every rank has its next batch or a stop is agreed."""
        supply, loader = self._supply, self._position.loader
        supply.prefetcher = prefetcher
        is_stream = loader is not None and loader.is_stream
        supply.late |= is_stream  # the ranks have to agree on the end of a stream
        vote = Vote()
        while supply.late:
            waits = not self._data_wait.ready(prefetcher, POLL_INTERVAL)
            samples = next_batch_samples(prefetcher) if is_stream and not waits else 0
            own = Vote(data_late=waits, batch_samples=samples, batch_samples_squared=samples * samples)
            vote = self._session.start_vote(own).result()
            if vote.stop_cause:
                self._session.metrics.synchronize()
                self._ending.report_steps()
                self._ending.stop(vote.stop_cause, urgent=vote.urgent > 0)
            supply.late = vote.data_late > 0
        if is_stream:
            check_same_stream(vote.batch_samples, vote.batch_samples_squared, self._group.size)

    def _end_window(self, loader: TrainLoader) -> bool:
        """Let the script's rule choose the next batch where a window of it is over, within an epoch. Collective.

        Returns:
            Whether the batch changes: the data are then read anew from the present position.
        """
        plan = self._position.end_window()
        if plan is None:
            return False
        self._session.metrics.synchronize()
        self._ending.report_steps()
        loader.start_with(plan)
        self._session.metrics.request_summary()
        self._session.vote_interval.force_vote()
        return True

    def _change_plan(self, adaptation: BatchAdaptation, plan: BatchPlan) -> None:
        """Report the steps of the last plan apart from those of the new one, which begin now. Collective."""
        started = time.monotonic()
        self._session.metrics.synchronize()
        self._ending.report_steps()
        adaptation.use_plan(plan)
        self._session.metrics.exclude(time.monotonic() - started)

    def _end_profiling_step(self, run: ProfilingRun, loader: TrainLoader) -> None:
        """Exit after the last step of a profiling run; all ranks count alike."""
        plan, done = loader.plan, self._position.progress
        if run.record_step(
            done.step,
            done.samples,
            self._synchronized_time,
            world_size=self._group.size,
            global_batch=plan.global_batch,
            per_gpu_batch=plan.per_gpu_batch,
            accumulation=plan.accumulation,
        ):
            self._session.exit_finished()

    def _synchronized_time(self) -> float:
        """Return the time on the monotonic clock at which the device has finished its work."""
        self._group.synchronize()
        return time.monotonic()
