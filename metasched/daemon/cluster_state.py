"""The state of the cluster in one poll, after jobs and runs are recorded: the input of decision, plan and status."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse

from metasched.configuration.config import Config, Intake
from metasched.core.declared_work import WorkContradiction
from metasched.core.model import Hold, Job, Node, Quota, Snapshot, Status
from metasched.core.reasons import Reason
from metasched.core.retention import is_blocked_from_start
from metasched.core.reuse import Latest, differing, reuses_results
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
        position: of each job in the snapshot, by uid, in its order; the same object until a job comes or goes.
        not_held_by_us: uids of the jobs of the snapshot that do not just wait under the daemon's hold, in its order.
        blocked: uids of the jobs of the snapshot that hold nothing and must not start.
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
    position: Mapping[str, int]
    not_held_by_us: tuple[str, ...]
    blocked: frozenset[str]
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
        return any(
            job.status in (Status.STOPPING, Status.QUEUED) or (job.active and job.stop_requested is not None)
            for job in [self.jobs[uid].job for uid in self.not_held_by_us]
        )


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """What follows from the jobs and nodes, whatever the time.

    Attributes:
        described: all live jobs, by uid.
        changed: uids of the jobs that are described otherwise than in the arrangement before, or have come or gone.
        keys: submission and uid of each job of the snapshot, in its order.
        order: their uids.
        position: of each uid in ``order``.
        live_not_held_by_us: uids of the live jobs that do not just wait under the daemon's hold, and so may hold an
            allocation.
        live_blocked: uids of the live jobs that hold nothing and must not start.
        unplannable: uids of the live jobs that are left out of the snapshot.
        not_held_by_us: those of ``live_not_held_by_us`` that are in the snapshot, in its order.
        blocked: those of ``live_blocked`` that are in the snapshot.
        holding: uids of the jobs of the snapshot that hold an allocation, in its order.
        others: the jobs that hold resources and are not in the snapshot.
        quotas: the limits that hold under every policy.
    """

    described: Mapping[str, ObservedJob] = field(default_factory=dict)
    changed: Collection[str] = ()
    keys: Sequence[tuple[float, str]] = ()
    order: tuple[str, ...] = ()
    position: Mapping[str, int] = field(default_factory=dict)
    live_not_held_by_us: frozenset[str] = frozenset()
    live_blocked: frozenset[str] = frozenset()
    unplannable: frozenset[str] = frozenset()
    not_held_by_us: tuple[str, ...] = ()
    blocked: frozenset[str] = frozenset()
    holding: tuple[str, ...] = ()
    others: Sequence[SlurmJob] = ()
    quotas: tuple[Quota, ...] = ()


class ClusterStateBuilder:
    """Builds the state of a poll from the observation and the records; writes nothing."""

    def __init__(self, store: Store, intake: JobIntake, estimates: JobEstimates, reports: ReportReader) -> None:
        self._described = DescribedJobs(store, intake, estimates, reports)
        self._intake = intake
        self._reuses = reuses = reuses_results()
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
        before = self._arranged.latest if self._reuses else None
        arranged = self._arranged.of(
            lambda: _arranged(described, observation, config.intake, before),
            *(self._jobs_version, observation.others, observation.quotas, config.intake),
        )
        unplannable = arranged.unplannable
        live = {uid: one for uid, one in described.items() if uid not in unplannable} if unplannable else described
        if observation.racks != self._racks:
            self._racks = observation.racks
        if observation.leaked != self._leaked:
            self._leaked = observation.leaked
        nodes = self._nodes.of(
            lambda: _nodes(live, observation, arranged),
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
            position=arranged.position,
            not_held_by_us=arranged.not_held_by_us,
            blocked=arranged.blocked,
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
        before = self._jobs_arranged
        if arranged is not before:
            jobs_of = {} if before is None else dict(zip(before.order, self._jobs, strict=True))
            jobs_of |= {uid: live[uid].job for uid in arranged.changed if uid in live}
            self._jobs, self._jobs_arranged = tuple(map(jobs_of.__getitem__, arranged.order)), arranged
        elif self._described.aged:
            jobs = list(self._jobs)
            for uid in self._described.aged:
                if uid in arranged.position:
                    jobs[arranged.position[uid]] = live[uid].job
            self._jobs = tuple(jobs)
        return self._jobs


def _arranged(
    described: Mapping[str, ObservedJob], observation: Observation, limits: Intake, before: _Arrangement | None
) -> _Arrangement:
    """Arrange the live jobs; only those that are described otherwise than before are looked at."""
    if before is None:
        before = _Arrangement()
    changed = differing(before.described, described)
    again = [(uid, described[uid].job) for uid in changed if uid in described]
    live_not_held_by_us = before.live_not_held_by_us - changed | {
        uid for uid, job in again if job.status is not Status.HELD or job.hold is Hold.USER
    }
    live_blocked = before.live_blocked - changed | {uid for uid, job in again if is_blocked_from_start(job)}
    unplannable = frozenset([uid for uid in live_not_held_by_us if holds_unplannable_allocation(described[uid])])
    live = {uid: one for uid, one in described.items() if uid not in unplannable} if unplannable else described
    others = [*observation.others, *(described[uid].slurm for uid in described if uid in unplannable)]
    stale = {(before.described[uid].job.submitted, uid) for uid in before.position.keys() & changed}
    came = {(live[uid].job.submitted, uid) for uid in changed if uid in live}
    keys, order, position = before.keys, before.order, before.position
    if stale != came:
        keys = sorted([*filterfalse(stale.__contains__, keys), *came])
        order = tuple([uid for _, uid in keys])
        position = dict(zip(order, range(len(order)), strict=True))
    not_held_by_us = tuple(sorted(live_not_held_by_us - unplannable, key=position.__getitem__))
    limited = observation.quotas.limits_jobs or limits.limits
    pairs = [(observed.job, observed.slurm) for observed in live.values()] if limited else ()
    return _Arrangement(
        described=described,
        changed=changed,
        keys=keys,
        order=order,
        position=position,
        live_not_held_by_us=live_not_held_by_us,
        live_blocked=live_blocked,
        unplannable=unplannable,
        not_held_by_us=not_held_by_us,
        blocked=live_blocked - unplannable,
        holding=tuple([uid for uid in not_held_by_us if live[uid].job.placement is not None]),
        others=others,
        quotas=observation.quotas.limits(pairs, others) + non_preemptible_quotas(pairs, limits),
    )


def _nodes(live: Mapping[str, ObservedJob], observation: Observation, arranged: _Arrangement) -> tuple[Node, ...]:
    slurm_jobs = [live[uid].slurm for uid in arranged.not_held_by_us]
    our_gpus = {(node, gpu) for job in slurm_jobs for node, indices in job.gpu_indices.items() for gpu in indices}
    holders: dict[str, list[SlurmJob]] = {}
    for job in arranged.others:
        for name in job.allocated:
            holders.setdefault(name, []).append(job)
    reservations = observation.inventory.reservations
    jobs = [observed.job for observed in live.values()] if reservations.phase else ()
    asked = {job.reservation for job in jobs if job.blocked is None}
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
