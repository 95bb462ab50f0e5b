"""The state of the cluster in one poll, after jobs and runs are recorded: the input of decision, plan and status."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from metasched.configuration.config import Config, Intake
from metasched.core.declared_work import WorkContradiction
from metasched.core.model import Job, Node, Quota, Snapshot, Status
from metasched.core.reasons import Reason
from metasched.core.reuse import Latest, reuses_results
from metasched.daemon.described_jobs import DescribedJobs
from metasched.intake.job_intake import JobIntake
from metasched.intake.preemption_limits import non_preemptible_quotas
from metasched.intake.report_reading import ReportReader
from metasched.intake.run_tracking import TrackedRuns
from metasched.learning.job_estimates import JobEstimates
from metasched.observe.node_inventory import usable_node
from metasched.observe.observed_job import ObservedJob, holds_unplannable_allocation
from metasched.observe.observer import Observation
from metasched.observe.reservations import Reservations
from metasched.scheduling.gpu_shards import GpuShards
from metasched.slurm.client import SlurmJob, SlurmNode
from metasched.store import Store


@dataclass(frozen=True)
class ClusterState:
    """The cluster in one poll.

    Attributes:
        snapshot: nodes and jobs as policies and the plan see them.
        jobs: the jobs of the snapshot as Slurm and the store describe them, by uid.
        gpu_shards: which job holds shards of which GPU; None where Slurm gives away whole GPUs only.
        arrived: number of jobs that are new in this poll.
        completed: number of jobs that ended since the last poll.
        slurm_nodes: the nodes as Slurm lists them, by name.
        reservations: Slurm's reservations at the instant of the poll.
        jobs_are_private: whether Slurm shows users their own jobs alone.
        version: the same object while no job changes by more than the time, comes or goes.
        holding: the jobs of the snapshot that hold an allocation.
        shared_records: see ``Observation``.
        leaked: GPUs that Slurm counts as allocated although no job holds them, by node; other nodes are missing.
    """

    snapshot: Snapshot
    jobs: Mapping[str, ObservedJob]
    gpu_shards: GpuShards | None = None
    arrived: int = 0
    completed: int = 0
    slurm_nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    reservations: Reservations = field(default_factory=Reservations, compare=False)
    jobs_are_private: bool = False
    leaked: Mapping[str, int] = field(default_factory=dict)
    shared_records: frozenset[int] = frozenset()
    version: object = field(default_factory=object, compare=False)
    holding: tuple[Job, ...] = field(default=(), compare=False)

    def shared_record(self, uid: str) -> str | None:
        """Slurm's id of the record that a job shares with other array tasks; None for a job with its own record."""
        job_id = self.jobs[uid].slurm.job_id
        return str(job_id) if job_id in self.shared_records else None

    @property
    def changes_soon(self) -> bool:
        """Whether a run is being started or stopped, so that the next poll should come soon."""
        held = Status.HELD
        return any(
            job.status in (Status.STOPPING, Status.QUEUED) or (job.active and job.stop_requested is not None)
            for job in [job for job in self.snapshot.jobs if job.status is not held]
        )


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """What follows from the jobs and nodes, whatever the time.

    Attributes:
        order: uids of the jobs of the snapshot, in its order.
        position: of each uid in ``order``.
        holding: those of them that hold an allocation.
        unplannable: uids of the live jobs that are left out of it.
        others: the jobs that hold resources and are not in the snapshot.
        quotas: the limits that hold under every policy.
    """

    order: tuple[str, ...]
    position: Mapping[str, int]
    holding: tuple[str, ...]
    unplannable: frozenset[str]
    others: Sequence[SlurmJob]
    quotas: tuple[Quota, ...]


class ClusterStateBuilder:
    """Builds the state of a poll from the observation and the records; writes nothing."""

    def __init__(self, store: Store, intake: JobIntake, estimates: JobEstimates, reports: ReportReader) -> None:
        self._described = DescribedJobs(store, intake, estimates, reports)
        self._intake = intake
        reuses = reuses_results()
        self._jobs_version: object = None  # another object whenever a job has changed by more than the time
        self._arranged = Latest[_Arrangement](reuses=reuses)
        self._nodes = Latest[tuple[Node, ...]](reuses=reuses)
        self._jobs: tuple[Job, ...] = ()  # of the latest snapshot, in the order of ...
        self._jobs_arranged: _Arrangement | None = None
        self._racks: Mapping[str, str] = {}
        self._leaked: Mapping[str, int] = {}

    @property
    def all_losses(self) -> bool:
        """Whether all jobs get their losses, and not only those of apps."""
        return self._described.all_losses

    @all_losses.setter
    def all_losses(self, wanted: bool) -> None:
        self._described.all_losses = wanted

    @property
    def contradicted(self) -> Mapping[str, WorkContradiction]:
        """How the declared steps of jobs of the latest poll are contradicted, by uid; no policy sees those steps."""
        return self._described.contradicted

    @property
    def subjects(self) -> Mapping[str, str]:
        """The subject of each live job's speed, by uid; the same object while the jobs are the same."""
        return self._described.subjects

    @property
    def ends(self) -> Mapping[str, Reason]:
        """Why jobs are to end for good, by uid, as their records say."""
        return self._described.ends

    def take_described(self) -> Collection[str]:
        """Return the uids of the jobs that changed by more than the time since the last call."""
        return self._described.take_described()

    def build(self, observation: Observation, tracked: TrackedRuns, config: Config, round_number: int) -> ClusterState:
        """Build the state.

        A job whose allocation no plan can ask for keeps it until it ends, like a job that is not metasched's.

        Args:
            observation: of this poll.
            tracked: the live jobs after run tracking.
            config: the configuration in force.
            round_number: the present round.
        """
        described = self._described.of(tracked.live, observation, config.intake)
        if self._described.changed:
            self._jobs_version = object()
        arranged = self._arranged.of(
            lambda: _arranged(described, observation, config.intake),
            *(self._jobs_version, observation.others, observation.quotas, config.intake),
        )
        unplannable = arranged.unplannable
        live = {uid: one for uid, one in described.items() if uid not in unplannable} if unplannable else described
        if observation.racks != self._racks:
            self._racks = observation.racks
        if observation.leaked != self._leaked:
            self._leaked = observation.leaked
        nodes = self._nodes.of(
            lambda: _nodes(live, observation, arranged.others),
            *(arranged, observation.nodes, observation.inventory, self._racks, self._leaked),
        )
        inventory = observation.inventory
        snapshot = Snapshot(
            now=observation.now,
            round=round_number,
            round_seconds=config.schedule.round_seconds,
            nodes=nodes,
            jobs=self._in_order(live, arranged),
            sharing=inventory.shards is not None and config.sharing.enabled,
            quotas=arranged.quotas,
        )
        return ClusterState(
            snapshot,
            live,
            gpu_shards=inventory.gpu_shards,
            arrived=self._intake.arrived,
            completed=tracked.ended,
            slurm_nodes={node.name: node for node in observation.nodes},
            reservations=inventory.reservations,
            jobs_are_private=observation.hides_jobs,
            version=arranged,
            holding=tuple([live[uid].job for uid in arranged.holding]),
            leaked=observation.leaked,
            shared_records=observation.shared_records,
        )

    def _in_order(self, live: Mapping[str, ObservedJob], arranged: _Arrangement) -> tuple[Job, ...]:
        """Return the jobs of the snapshot; of an unchanged arrangement, only those are replaced that have aged."""
        if arranged is not self._jobs_arranged:
            self._jobs, self._jobs_arranged = tuple([live[uid].job for uid in arranged.order]), arranged
        elif self._described.aged:
            jobs = list(self._jobs)
            for uid in self._described.aged:
                if uid in arranged.position:
                    jobs[arranged.position[uid]] = live[uid].job
            self._jobs = tuple(jobs)
        return self._jobs


def _arranged(described: Mapping[str, ObservedJob], observation: Observation, limits: Intake) -> _Arrangement:
    held = Status.HELD  # most jobs are, and hold no allocation
    active = [(uid, one) for uid, one in described.items() if one.job.status is not held]
    unplannable = {uid: one for uid, one in active if holds_unplannable_allocation(one)}
    live = {uid: one for uid, one in described.items() if uid not in unplannable} if unplannable else described
    others = [*observation.others, *(one.slurm for one in unplannable.values())]
    order = tuple([uid for _, uid in sorted([(one.job.submitted, uid) for uid, one in live.items()])])
    limited = observation.quotas.limits_jobs or limits.limits
    pairs = [(observed.job, observed.slurm) for observed in live.values()] if limited else ()
    return _Arrangement(
        order=order,
        position={uid: position for position, uid in enumerate(order)},
        holding=tuple([uid for uid in order if live[uid].job.placement is not None]),
        unplannable=frozenset(unplannable),
        others=others,
        quotas=observation.quotas.limits(pairs, others) + non_preemptible_quotas(pairs, limits),
    )


def _nodes(live: Mapping[str, ObservedJob], observation: Observation, others: Sequence[SlurmJob]) -> tuple[Node, ...]:
    holding = [observed.slurm.gpu_indices for observed in live.values() if observed.slurm.gpu_indices]
    our_gpus = {(node, gpu) for held in holding for node, indices in held.items() for gpu in indices}
    holders: dict[str, list[SlurmJob]] = {}
    for job in others:
        for name in job.allocated:
            holders.setdefault(name, []).append(job)
    asked = {observed.job.reservation for observed in live.values() if observed.job.blocked is None}
    reservations = observation.inventory.reservations
    return tuple(
        reservations.on(
            usable_node(
                node,
                holders.get(node.name, ()),
                our_gpus,
                observation.racks.get(node.name),
                observation.leaked.get(node.name, 0),
            ),
            asked,
            reserved=node.reserved,
        )
        for node in observation.nodes
        if len(node.gpus) <= 1
    )
