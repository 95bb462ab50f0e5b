"""The training session of `Context` and `Companion`: votes, stop requests, the fence, reports, and the end."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Any, Callable, NoReturn

from trainer_shim.checkpointing.generation import generations_directory, highest_generation
from trainer_shim.checkpointing.save_history import SaveHistory
from trainer_shim.environment.torchrun import write_exit_code
from trainer_shim.errors import SupersededError
from trainer_shim.preemption.exit import process_exit
from trainer_shim.preemption.lease import LeaseWatch
from trainer_shim.preemption.stop_requests import (
    POLL_INTERVAL,
    exit_code,
    has_time_to_save,
    ignore_stop_signals,
    release_stop_signals,
)
from trainer_shim.reporting.report_writer import REPORT_SECONDS, ReportWriter, process_age
from trainer_shim.reporting.step_metrics import StepMetrics
from trainer_shim.session.vote import PendingVote, Vote
from trainer_shim.session.vote_interval import VoteInterval
from trainer_shim.trackers.tracker import Tracker, open_tracker

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.even_split import EvenSplit
    from trainer_shim.environment.job import Job
    from trainer_shim.preemption.lease import LeaseBatch
    from trainer_shim.preemption.stop_requests import StopRequests
    from trainer_shim.process_groups.rank_group import RankGroup
    from trainer_shim.session.data_supply import DataSupply

log = logging.getLogger("trainer_shim")


class TrainerSession:
    """One trainer from its startup to its end, for training loops of scripts and of frameworks.

    At step boundaries the ranks vote on whether to stop, to save and to report. Rank 0 watches the lease and the fence
    (the highest generation on the checkpoint directory) for all ranks; every rank receives the signals. Methods that
    vote are collective: all ranks call them alike.

    Args:
        group: the processes of the training.
        job: the job as the wrapper describes it.
        stop_requests: the stop requests that this process has received.
        checkpoints: the checkpoint directory.
        generation: the fencing token that this trainer has claimed on the directory.
        resumed: whether the training resumes from a checkpoint.
        checkpoint_every: seconds between periodic checkpoints.
        measures_data: whether the waits of the ranks for data are measured.

    Attributes:
        metrics: the step metrics of the next report.
        report: the writer of the job's report file.
        save_history: the history of this trainer's checkpoints.
        vote_interval: the steps between two votes.
        ended: whether the training has ended, or stopped.
    """

    def __init__(
        self,
        *,
        group: RankGroup,
        job: Job,
        stop_requests: StopRequests,
        checkpoints: Path,
        generation: int,
        resumed: bool,
        checkpoint_every: float,
        measures_data: bool,
    ) -> None:
        self.group = group
        self.job = job
        self.stop_requests = stop_requests
        self.generation = generation
        self.resumed = resumed
        reports = job.reports if group.rank == 0 and job.profiling_steps is None else None
        self.report = ReportWriter(reports, generation)
        self.metrics = StepMetrics(group, measures_data=measures_data)
        self.save_history = SaveHistory(resumed=resumed)
        self.vote_interval = VoteInterval(checkpoint_every)
        self.ended = False
        self._checkpoints = checkpoints
        self._trackers: list[Tracker] = []
        self._generations = generations_directory(checkpoints)
        self._checkpoint_every = checkpoint_every
        self._lease = LeaseWatch(job.lease, job.run) if job.lease and job.run else None
        self._boundary_vote: PendingVote | None = None
        self._polled_at = 0.0  # the last reading of the lease and the fence, seconds on the monotonic clock
        self._fence_warned = False

    # Votes

    def start_vote(self, vote: Vote) -> PendingVote:
        """Start to sum the ranks' votes; this rank's stop requests are added to its vote."""
        self._poll_stop_requests()
        return PendingVote(self.group.start_sum(vote.with_requests(self.stop_requests).pack()))

    def start_boundary_vote(
        self, supply: DataSupply | None = None, wants_plan: Callable[[LeaseBatch | None], bool] | None = None
    ) -> None:
        """Start the vote of the next boundary, if that boundary has a vote that was not started yet.

        Args:
            supply: the training data that this rank has fetched; None where a framework fetches them.
            wants_plan: returns whether the ranks have to agree on a batch plan, from that of the lease; asked on rank
                0. None where the batch is fixed.
        """
        if self._boundary_vote is not None or not self.vote_interval.due:
            return
        vote = Vote()
        if supply is not None:
            vote = Vote(data_late=supply.next_is_late(), data_short=not supply.covers(self.vote_interval.steps))
        now = time.monotonic()
        proposal = self.vote_interval.propose(now)
        if self.group.rank == 0:
            vote = vote._replace(
                report_due=now - self.metrics.summarized_at >= REPORT_SECONDS,
                save_due=self.save_history.due(self._checkpoint_every),
                proposed_interval=proposal,
                deadline_near=self.seconds_to_deadline()
                < (self.save_history.slowest_seconds or 0) + 2 * self.metrics.seconds_per_step,
                plan_due=wants_plan is not None and wants_plan(self._lease.batch if self._lease else None),
            )
        self._boundary_vote = self.start_vote(vote)

    def finish_boundary_vote(self) -> Vote | None:
        """Wait for the vote of this boundary, and return its sum, None at a boundary without a vote."""
        if self._boundary_vote is None:
            self.vote_interval.skip_boundary()
            return None
        started = time.monotonic()
        vote = self._boundary_vote.result()
        self.metrics.add_sync_wait(time.monotonic() - started)
        self._boundary_vote = None
        self.vote_interval.finish_vote(vote.proposed_interval, ready=not vote.data_short)
        return vote

    def drain_boundary_vote(self) -> None:
        """Wait for a vote that was started for a boundary that the training does not reach."""
        if self._boundary_vote is not None:
            self._boundary_vote.result()
            self._boundary_vote = None

    def read_lease_batch(self) -> LeaseBatch | None:
        """Return the lease's batch plan, None where the job's batch is fixed, and on all ranks but rank 0."""
        if self._lease is None or self.group.rank != 0:
            return None
        self._lease.stop_cause()  # reads the lease; the next poll requests the stop
        return self._lease.batch

    # Stop requests and the fence

    def seconds_to_deadline(self) -> float:
        """Return the seconds until the deadline in the lease's stop request, infinity without one.

        Only rank 0's answer counts, because only rank 0 reads the lease.
        """
        return self._lease.seconds_to_deadline(self.stop_requests.first_signal) if self._lease else math.inf

    def has_time_to_save(self, *, urgent: bool) -> bool:
        """Return whether a stop leaves time for a checkpoint, judged by the duration of the last ones."""
        history = self.save_history
        return has_time_to_save(self.seconds_to_deadline(), history.slowest_seconds, history.age, urgent=urgent)

    def check_generation(self) -> None:
        """Check that no newer generation has claimed the checkpoint directory.

        Raises:
            SupersededError: a newer generation has claimed it: this trainer must write nothing more.
            OSError: the directory of the claimed generations cannot be read.
        """
        self._watch_generation()
        if self.stop_requests.superseded:
            raise SupersededError("a newer generation has started on this checkpoint directory")

    def _watch_generation(self) -> None:
        if highest_generation(self._generations) > self.generation:
            self.stop_requests.request("superseded")

    def _poll_stop_requests(self) -> None:
        """On rank 0, read the fence and the lease, at most once in POLL_INTERVAL."""
        now = time.monotonic()
        if self.group.rank != 0 or now - self._polled_at < POLL_INTERVAL:
            return
        self._polled_at = now
        try:
            self._watch_generation()
        except OSError as error:  # nothing is written until the fence can be read
            if not self._fence_warned:
                log.warning("the fence cannot be read, training continues: %s", error)
            self._fence_warned = True
        cause = self._lease.stop_cause() if self._lease else None
        if cause:
            self.stop_requests.request(cause)

    # Reports

    def report_start(self, *, step: int, samples: int, progress: float | None = None) -> None:
        """Write the `start` line; its key `incarnation` is the generation.

        Args:
            step: the optimizer steps so far.
            samples: the samples so far.
            progress: the steps at the first batch so far, None where the batch never adapted.
        """
        self.report.emit(
            "start",
            run=self.job.run,
            incarnation=self.generation,
            world_size=self.group.size,
            step=step,
            samples=samples,
            resumed=self.resumed,
            init_seconds=process_age(),
            **_known(progress=progress),
        )

    def report_steps(
        self, step: int, plan: BatchPlan | EvenSplit, adaptive_values: dict[str, Any] | None = None
    ) -> None:
        """Write the `steps` line of the steps since the last one, if there were any. Collective.

        Args:
            step: the optimizer steps so far.
            plan: the split of the global batch.
            adaptive_values: further values of a training whose batch adapts, None for a fixed batch.
        """
        line = self.metrics.summarize()
        if line is None:
            return
        self.report.emit(
            "steps",
            step=step,
            **line,
            peak_bytes=self.group.peak_bytes(),
            world_size=self.group.size,
            global_batch=plan.global_batch,
            per_gpu_batch=plan.per_gpu_batch,
            accumulation=plan.accumulation,
            **(adaptive_values or {}),
        )

    # Trackers

    def open_tracker(self, kind: str, options: dict[str, Any], present_step: Callable[[], int]) -> Tracker:
        """Return a tracker, which logs on rank 0 alone, and nothing in a profiling run; see `open_tracker`.

        Args:
            kind: `wandb`, `mlflow` or `tensorboard`.
            options: options of the library.
            present_step: returns the optimizer steps so far.
        """

        def superseded() -> bool:
            return self.stop_requests.superseded

        if self.group.rank != 0 or self.job.profiling_steps is not None:
            return Tracker(None, None, present_step, superseded)
        tracker = open_tracker(
            kind,
            options,
            directory=self._checkpoints,
            uid=self.job.uid,
            present_step=present_step,
            superseded=superseded,
        )
        if not self._trackers:
            atexit.register(self._close_trackers_at_exit)
        self._trackers.append(tracker)
        return tracker

    def _close_trackers(self, outcome: str) -> None:
        for tracker in self._trackers:
            tracker.close(outcome)

    def _close_trackers_at_exit(self) -> None:
        self._close_trackers("finished" if self.ended else "failed")

    # The end

    def exit_for_stop(
        self, cause: str, *, step: int, noticed: float | None, checkpointed: bool, progress: float | None = None
    ) -> NoReturn:
        """Report the stop, and exit with its code.

        Args:
            cause: the agreed cause.
            step: the optimizer steps so far.
            noticed: the first request on any rank in unix seconds.
            checkpointed: whether a checkpoint has the present position.
            progress: the steps at the first batch so far, None where the batch never adapted.

        Raises:
            SystemExit: always.
        """
        line = {"step": step, "cause": cause, "noticed": noticed, "checkpointed": checkpointed}
        self.report.emit("stop", **line, **_known(progress=progress))
        code = exit_code(cause, self.job.exit_code)
        if self.group.rank == 0:
            log.info("stopped after step %d (%s), checkpointed: %s, exit code %d", step, cause, checkpointed, code)
        self._mark_ended()
        self._close_trackers("finished" if cause == "finish" else "stopped")
        # torchrun exits with 1 for any code but 0: where the wrapper has the code from its file, this process exits
        # with 0
        process_exit.start(0 if write_exit_code(code, os.environ) else code)

    def exit_finished(self) -> NoReturn:
        """Exit with code 0: after a profiling run, or after a training that was asked to end for good.

        Raises:
            SystemExit: always.
        """
        self._mark_ended()
        process_exit.start(0)

    def _mark_ended(self) -> None:
        self.ended = True
        ignore_stop_signals(self.job.signal)

    def report_finished(self, *, step: int, samples: int, progress: float | None = None) -> None:
        """Report that the training is complete and saved, and give the stop signals back to the script.

        Args:
            step: the optimizer steps of the training.
            samples: the samples of the training.
            progress: the steps at the first batch, None where the batch never adapted.
        """
        metric = self.metrics.unreported_metric
        last = {} if metric is None else {"metric": metric}
        self.report.emit("end", step=step, samples=samples, loss=self.metrics.loss, **_known(progress=progress), **last)
        self.ended = True
        release_stop_signals(self.job.signal)
        if self.group.rank == 0:
            log.info("finished after step %d", step)


def _known(**values: float | None) -> dict[str, float]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
