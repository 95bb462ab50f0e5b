"""The state of the cluster in one poll, after jobs and runs are recorded: the input of decision, plan and status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from metasched.configuration.config import Config, Intake
from metasched.core.apps import LossPoint
from metasched.core.declared_work import WorkContradiction, work_contradiction
from metasched.core.model import Snapshot, Status
from metasched.core.reasons import Code, Reason, from_text
from metasched.intake.job_intake import JobIntake
from metasched.intake.preemption_limits import non_preemptible_quotas, within_limit
from metasched.intake.report_reading import ReportReader
from metasched.intake.run_tracking import TrackedJob, TrackedRuns
from metasched.learning.job_estimates import JobEstimates
from metasched.observe.node_inventory import usable_node
from metasched.observe.observed_job import (
    NOT_STARTED,
    ObservedJob,
    holds_unplannable_allocation,
    job_of,
    start_deferral,
)
from metasched.observe.observer import Observation
from metasched.scheduling.gpu_shards import GpuShards
from metasched.store import Store

EVENTS = 20
"""Latest events of a job that are searched for the reason why Slurm did not start it."""


@dataclass(frozen=True)
class ClusterState:
    """The cluster in one poll.

    Attributes:
        snapshot: nodes and jobs as policies and the plan see them.
        jobs: the jobs of the snapshot as Slurm and the store describe them, by uid.
        gpu_shards: which job holds shards of which GPU; None where Slurm gives away whole GPUs only.
        arrived: number of jobs that are new in this poll.
        completed: number of jobs that ended since the last poll.
        node_reasons: why nodes were taken out of service, by node name; nodes without a reason are missing.
        shared_records: see ``Observation``.
        leaked: GPUs that Slurm counts as allocated although no job holds them, by node; other nodes are missing.
    """

    snapshot: Snapshot
    jobs: Mapping[str, ObservedJob]
    gpu_shards: GpuShards | None = None
    arrived: int = 0
    completed: int = 0
    node_reasons: Mapping[str, str] = field(default_factory=dict)
    leaked: Mapping[str, int] = field(default_factory=dict)
    shared_records: frozenset[int] = frozenset()

    def shared_record(self, uid: str) -> str | None:
        """Slurm's id of the record that a job shares with other array tasks; None for a job with its own record."""
        job_id = self.jobs[uid].slurm.job_id
        return str(job_id) if job_id in self.shared_records else None

    @property
    def changes_soon(self) -> bool:
        """Whether a run is being started or stopped, so that the next poll should come soon."""
        return any(
            job.status in (Status.STOPPING, Status.QUEUED) or (job.active and job.stop_requested is not None)
            for job in self.snapshot.jobs
        )


class ClusterStateBuilder:
    """Builds the state of a poll from the observation and the records; writes nothing.

    Attributes:
        all_losses: whether all jobs get their losses, and not only those of apps.
        contradicted: how the declared steps of jobs of this poll are contradicted, by uid; no policy sees those steps.
    """

    def __init__(self, store: Store, intake: JobIntake, estimates: JobEstimates, reports: ReportReader) -> None:
        self.all_losses = False
        self.contradicted: dict[str, WorkContradiction] = {}
        self._reports = reports
        self._losses: dict[str, tuple[LossPoint, ...]] = {}  # by uid
        self._store = store
        self._intake = intake
        self._estimates = estimates

    def build(self, observation: Observation, tracked: TrackedRuns, config: Config, round_number: int) -> ClusterState:
        """Build the state.

        A job whose allocation no plan can ask for keeps it until it ends, like a job that is not metasched's.

        Args:
            observation: of this poll.
            tracked: the live jobs after run tracking.
            config: the configuration in force.
            round_number: the present round.
        """
        self.contradicted.clear()
        described = self._with_losses(
            {uid: self._describe(job, observation, config.intake) for uid, job in tracked.live.items()}
        )
        live = {uid: job for uid, job in described.items() if not holds_unplannable_allocation(job)}
        others = [*observation.others, *(job.slurm for uid, job in described.items() if uid not in live)]
        jobs = sorted((observed.job for observed in live.values()), key=lambda job: (job.submitted, job.uid))
        our_gpus = {
            (node, gpu)
            for observed in live.values()
            for node, indices in observed.slurm.gpu_indices.items()
            for gpu in indices
        }
        asked = {job.reservation for job in jobs if job.blocked is None}
        inventory = observation.inventory
        nodes = (
            inventory.reservations.on(
                usable_node(
                    node, others, our_gpus, observation.racks.get(node.name), observation.leaked.get(node.name, 0)
                ),
                asked,
                reserved=node.reserved,
            )
            for node in observation.nodes
            if len(node.gpus) <= 1
        )
        pairs = [(observed.job, observed.slurm) for observed in live.values()]
        snapshot = Snapshot(
            now=observation.now,
            round=round_number,
            round_seconds=config.schedule.round_seconds,
            nodes=tuple(nodes),
            jobs=tuple(jobs),
            sharing=inventory.shards is not None and config.sharing.enabled,
            quotas=observation.quotas.limits(pairs, others) + non_preemptible_quotas(pairs, config.intake),
        )
        return ClusterState(
            snapshot,
            live,
            gpu_shards=inventory.gpu_shards,
            arrived=self._intake.arrived,
            completed=tracked.ended,
            node_reasons={node.name: node.reason for node in observation.nodes if node.reason and not node.accepts},
            leaked=observation.leaked,
            shared_records=observation.shared_records,
        )

    def _describe(self, tracked: TrackedJob, observation: Observation, limits: Intake) -> ObservedJob:
        record, slurm = tracked.record, tracked.slurm
        needed = self._intake.requirements_of(record)
        job = job_of(record, needed, slurm, tracked.status, observation.inventory, observation.now)
        job = self._estimates.add_to(job, record, needed.model)
        if (found := work_contradiction(job)) is not None:
            self.contradicted[record.uid] = found
            job = job.evolve(total_steps=None)
        if (deferral := start_deferral(job)) is not None and (why := self._why_not_started(record.uid)) is not None:
            job = job.evolve(blocked=why if why.code == Code.NOT_LAUNCHED else deferral.and_also(why))
        job = within_limit(observation.quotas.apply(job, slurm), slurm, limits)
        return ObservedJob(job, slurm, record, needed)

    def _with_losses(self, described: dict[str, ObservedJob]) -> dict[str, ObservedJob]:
        """The jobs with their reported losses, which are read from the store where there are new reports."""
        wanted = {uid for uid, one in described.items() if self.all_losses or one.job.app is not None}
        known = {uid: points for uid, points in self._losses.items() if uid in wanted}
        stale = {uid for uid in wanted if uid not in known or uid in self._reports.reported}
        self._losses = known | dict.fromkeys(stale, ()) | (self._store.losses(stale) if stale else {})
        return {
            uid: replace(one, job=one.job.evolve(losses=points)) if (points := self._losses.get(uid)) else one
            for uid, one in described.items()
        }

    def _why_not_started(self, uid: str) -> Reason | None:
        events = self._store.recent_events(EVENTS, uid)
        return next((from_text(event.text) for event in events if event.kind == NOT_STARTED), None)
