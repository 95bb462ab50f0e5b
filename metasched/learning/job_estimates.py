"""The measured speed, the predicted service and the restart cost of each live job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from metasched.configuration.config import Sharing
from metasched.core.batching import BatchControl
from metasched.core.model import NO_PARAMETERS, NO_SPEEDS, Job
from metasched.learning.restart_cost import RestartCosts
from metasched.learning.service_prediction import ServicePrediction
from metasched.learning.throughput_learning import ThroughputLearning, speed_subject
from metasched.shared_dir.reports import ProfilingReport
from metasched.store import JobRecord, Store


class JobEstimates:
    """Adds measured speeds, predicted service and restart costs to jobs, and learns from reports.

    Args:
        store: of the daemon; holds what was learnt before.
        sharing: the configuration of GPU sharing, which says how speeds with co-runners are estimated.

    Attributes:
        fits_iterations: whether jobs get the parameters of the time of their iterations.
    """

    def __init__(self, store: Store, sharing: Sharing) -> None:
        self._store = store
        self._sharing = sharing
        self.fits_iterations = False
        self._throughput = ThroughputLearning(store, sharing.untried_part, sharing.table)
        self._service = ServicePrediction(store)
        self._restarts = RestartCosts(store)

    def reconfigure(self, sharing: Sharing) -> None:
        """Estimate speeds anew where the configuration of GPU sharing has changed."""
        if sharing != self._sharing:
            self._sharing = sharing
            self._throughput = ThroughputLearning(self._store, sharing.untried_part, sharing.table)

    def begin_poll(self) -> None:
        """Read the earlier jobs again for jobs that come in this poll."""
        self._service.begin_poll()
        self._restarts.begin_poll()

    def take_changes(self) -> Collection[str] | None:
        """Return the subjects of which more is known than at the last call; None where that may be all subjects."""
        return self._throughput.take_changes()

    def add_to(self, job: Job, record: JobRecord, model: str | None) -> Job:
        """Return the job with its speed, its expected service, its restart cost and its longest cut start.

        Args:
            job: as observed.
            record: the job as the store has it.
            model: the model that the job's tag names; None for none.
        """
        subject = speed_subject(job.uid, job.user, model)
        speed = self._throughput.speed(subject, None if job.batching is None else job.batching.global_batch)
        fitted = self._throughput.iteration_parameters(subject) if self.fits_iterations else NO_PARAMETERS
        restart = self._restarts.cost(record, model)
        by_script = job.batching is not None and job.batching.control is BatchControl.SCRIPT
        return job.evolve(
            speed=speed,
            iteration_parameters=fitted,
            expected_service=self._service.expected_service(record),
            restart_seconds=restart.restart_seconds,
            cut_start_seconds=restart.cut_start_seconds,
            batch_speeds=self._throughput.batch_speeds(subject) if by_script else NO_SPEEDS,
        )

    def learn(
        self,
        jobs: Sequence[Job],
        subjects: Mapping[str, str],
        reported: Collection[str],
        profiling_reports: Mapping[str, Sequence[ProfilingReport]],
        now: float,
    ) -> None:
        """Learn speeds from the reports of this poll; later polls use them.

        Args:
            jobs: the live ones that hold an allocation.
            subjects: the subject of each live job's speed, by uid; the same object while the jobs are the same.
            reported: uids of the jobs with new reports.
            profiling_reports: new reports of profiling runs, by uid.
            now: unix seconds.
        """
        self._throughput.learn(jobs, subjects, reported, profiling_reports, now)

    def forget(self, uid: str) -> None:
        """Drop the measurements and the prediction of a job that has ended."""
        self._service.forget(uid)
        self._restarts.forget(uid)
        self._throughput.forget(uid)
