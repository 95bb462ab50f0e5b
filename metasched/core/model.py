"""The records that flow from a poll to a plan: all frozen, all plain data.

Units everywhere: instants are unix seconds (float), durations seconds, memory bytes, attained service GPU-seconds.
"Not known" is ``None``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol, Self

import msgspec

from metasched.core.apps import App, LossPoint, TrialOrder, TunerSettings
from metasched.core.batching import Batching, BatchPlan, GradientNoise
from metasched.core.reasons import Reason

NO_SERVICE: Mapping[str, float] = MappingProxyType({})
NO_PARAMETERS: Mapping[str, tuple[float, ...]] = MappingProxyType({})
NO_SPEEDS: Mapping[int, Speed] = MappingProxyType({})


class Preempt(enum.Enum):
    """How the daemon may stop a running job, by the job's tag: checkpoint and requeue, suspend, or not at all."""

    CHECKPOINT = "checkpoint"
    SUSPEND = "suspend"
    NO = "no"


class Status(enum.Enum):
    """A job's status for scheduling, which merges Slurm's states."""

    # Enum's own is a call of Python, for each of thousands of jobs. Sets of members have another order in each process:
    # they serve to look members up, not to iterate over.
    __hash__ = object.__hash__

    HELD = "held"  # pending, and Slurm must not start it
    QUEUED = "queued"  # released: Slurm starts it as soon as its resources are free
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"  # Slurm is ending the run, its resources are not free yet
    FINISHED = "finished"


class Hold(enum.Enum):
    """The kind of a job's hold, which decides who can release the job."""

    NONE = "none"
    USER = "user"  # the job's owner can release it
    ADMIN = "admin"  # only the daemon, root and operators can release it


class Speed(Protocol):
    """The known speeds of one job at its present batch size; pure, and cheap to ask."""

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Optimizer steps per second on GPUs of a type.

        Args:
            gpu_type: the type.
            spread: GPUs on each node, descending.

        Returns:
            None where the speed is not known; 0.0 where the job is known not to run there.
        """

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Optimizer steps per second while a job with the speeds ``other`` runs on the same GPUs; None if not known."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, without the resources that jobs of others hold there.

    Attributes:
        name: Slurm's node name.
        gpu_type: the type of its GPUs; None for a node without GPUs.
        gpus: GPUs that metasched's jobs may use or use now.
        cpus: CPUs that metasched's jobs may use or use now.
        memory: bytes that metasched's jobs may use or use now.
        features: Slurm's features.
        partitions: names of the partitions it belongs to.
        accepts: whether a new job may be placed here (up, not drained, not reserved for others).
        rack: the name of its switch or rack; None where the cluster's topology is not known.
        reservation: the only reservation whose jobs may start here now; "" for none.
        open_seconds: seconds until the node is reserved for other jobs; None where it is not.
    """

    name: str
    gpu_type: str | None
    gpus: int
    cpus: int
    memory: int
    features: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    accepts: bool = True
    rack: str | None = None
    reservation: str = ""
    open_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """An allocation for one job: GPUs of one type, usually the same number on each node.

    k nodes x g GPUs of one type is what Slurm can realise for every kind of request; a CPU-only job has
    ``gpus_per_node == 0`` and ``gpu_type is None``. Nodes are kept sorted by name, so equal allocations are equal.

    Attributes:
        nodes: names of the nodes.
        gpus_per_node: GPUs on each node; where they differ, the most.
        gpu_type: the type of the GPUs; None without GPUs.
        uneven: GPUs on each node, in the order of ``nodes``, where they differ; else empty. Only clusters that say so
            (``Snapshot.uneven``) can realise it.
    """

    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_type: str | None
    uneven: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.uneven:
            pairs = sorted(zip(self.nodes, self.uneven, strict=True))
            counts = tuple(count for _, count in pairs)
            object.__setattr__(self, "nodes", tuple(node for node, _ in pairs))
            object.__setattr__(self, "gpus_per_node", max(counts))
            object.__setattr__(self, "uneven", counts if min(counts) < max(counts) else ())
        elif len(self.nodes) > 1:
            object.__setattr__(self, "nodes", tuple(sorted(self.nodes)))

    @property
    def gpus(self) -> int:
        """The number of GPUs on all nodes."""
        return sum(self.uneven) if self.uneven else len(self.nodes) * self.gpus_per_node

    @property
    def spread(self) -> tuple[int, ...]:
        """The number of GPUs on each node, descending."""
        return tuple(sorted(self.uneven, reverse=True)) if self.uneven else (self.gpus_per_node,) * len(self.nodes)

    @property
    def node_gpus(self) -> tuple[tuple[str, int], ...]:
        """Each node's name with the number of GPUs there, by name."""
        return tuple(zip(self.nodes, self.uneven or (self.gpus_per_node,) * len(self.nodes), strict=True))


# A job is a msgspec.Struct: a third of the memory of a dataclass, and made and compared several times as fast. Structs
# cannot have several bases with fields, so each part of a job adds its fields to those of the part before.
class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's request at submission, within Slurm's limits.

    The resource unit of a job is one GPU; of a CPU-only job, one node.

    Attributes:
        uid: the job's identity for life. Slurm's job id is no identity: a crashed controller may reuse it.
        name: the job's name as the user wrote it (hostile text).
        user: name of the job's owner.
        submitted: first submission, unix seconds.
        gpus: GPUs asked for at submission; 0 for a CPU-only job.
        min_gpus: fewest GPUs that the job can run on; equals ``gpus`` for a rigid job.
        max_gpus: most GPUs that the job can use; equals ``gpus`` for a rigid job.
        sizes: the numbers of GPUs on which the job can run, ascending; empty for all from ``min_gpus`` to ``max_gpus``.
        account: Slurm's account, which is Gavel's entity; None where accounting is off.
        fair_share: the account's share of the cluster by Slurm's associations, in (0, 1]; None where not known.
        partition: Slurm's partition, or several, ``a,b``; "" for any.
        nodes: exact number of nodes; None where any number will do.
        max_nodes: most nodes that the job may be spread over; None for no limit.
        gpu_types: GPU types that the job accepts; empty for any.
        cpus_per_unit: CPUs for each resource unit.
        memory_per_unit: bytes for each resource unit.
        features: node features that the job needs, all of them.
        only_nodes: names of the nodes that the job may use; empty for any.
        excluded_nodes: names of the nodes that the job must not use.
        whole_gpus: whether the job accepts whole GPUs only, and shares them with no co-runner.
        reservation: the reservation that the job asks for, or several, ``a,b``; "" for none. An empty name among
            several stands for nodes that are not reserved.
        open_seconds: how long a node must stay open to the job, by its time limit; 0 where all nodes are.
        weight: the job's weight relative to other jobs, in (0, 1]; a tag's is at least ``tags.LEAST_WEIGHT``.
        preempt: how a run may be stopped.
        profiled: whether smaller world sizes are profiled before each run.
        adaptive_batch: whether the user lets metasched change the batch size; ``batching.control`` says whether the
            training script consents, too.
        total_steps: optimizer steps that the job needs, if declared; at its first batch where the batch size changes.
        slo_seconds: time from submission within which the job should finish, if its user has declared one.
        time_limit_seconds: longest duration of one run, if there is a limit.
        app: uid of the job's app; None for an app of one.
        tuner: the tuner that the job's tag names; None for a job that no tuner may cap, hold or end.
    """

    uid: str
    name: str
    user: str
    submitted: float
    gpus: int
    min_gpus: int
    max_gpus: int
    sizes: tuple[int, ...] = ()
    account: str | None = None
    fair_share: float | None = None
    partition: str = ""
    nodes: int | None = None
    max_nodes: int | None = None
    gpu_types: tuple[str, ...] = ()
    cpus_per_unit: int = 1
    memory_per_unit: int = 0
    features: frozenset[str] = frozenset()
    only_nodes: frozenset[str] = frozenset()
    excluded_nodes: frozenset[str] = frozenset()
    whole_gpus: bool = False
    reservation: str = ""
    open_seconds: float = 0.0
    weight: float = 1.0
    preempt: Preempt = Preempt.CHECKPOINT
    profiled: bool = False
    adaptive_batch: bool = False
    total_steps: float | None = None
    slo_seconds: float | None = None
    time_limit_seconds: float | None = None
    app: str | None = None
    tuner: TunerSettings | None = None


class JobSituation(JobRequest, frozen=True, kw_only=True):
    """The job's present state in Slurm and in the shared directory.

    Attributes:
        slurm_job_id: Slurm's present id of the job, or ``array_task``.
        status: the job's status for scheduling.
        hold: who could release the job; NONE unless ``status`` is HELD.
        placement: present allocation (RUNNING, SUSPENDED, STOPPING), else None.
        half_gpus: whether the job holds, or was released for, one half of each GPU, so that a co-runner may have the
            other half.
        co_runner: uid of the job that holds the very same GPUs now, if there is one.
        released: the placement that the daemon released the job for, while QUEUED; None if somebody else released it.
        released_at: when the daemon released the job, unix seconds, while QUEUED.
        run_started: start of the present run, unix seconds.
        trainer_ready: whether the present run's trainer has reported that it listens to stop requests.
        stop_requested: when the daemon asked the present run to stop, unix seconds, else None.
        suspended_by_us: whether the daemon suspended the job, and may resume it.
        suspended_at: start of the present suspension, unix seconds; None while the job is not suspended.
        requested_batch: the batch plan that the present run was asked to take up; None for none.
        blocked: why the job must not start at all (dependency, begin time, bad tag); None if it may.
    """

    slurm_job_id: str
    status: Status = Status.HELD
    hold: Hold = Hold.NONE
    placement: Placement | None = None
    half_gpus: bool = False
    co_runner: str | None = None
    released: Placement | None = None
    released_at: float | None = None
    run_started: float | None = None
    trainer_ready: bool = False
    stop_requested: float | None = None
    suspended_by_us: bool = False
    suspended_at: float | None = None
    requested_batch: BatchPlan | None = None
    blocked: Reason | None = None


class JobHistory(JobSituation, frozen=True, kw_only=True):
    """The service that the job has received and its progress so far.

    Attributes:
        run: number of times that the daemon released the job.
        last_placement: allocation of the previous run, if there was one.
        last_ended: end of the previous run, unix seconds.
        attained: GPU-seconds received, by GPU type ("" for CPU-only node-seconds), the present run included.
        ran_seconds: wall time of all runs, the present one included.
        preemptions: runs that the daemon ended before the job was done.
        progress_steps: optimizer steps done, if reported; in steps at the first batch where the batch size changes.
        most_gpus: most GPUs that a run had, the present one included.
        losses: reported losses, ascending in progress, at most ``MOST_LOSS_POINTS``.
    """

    run: int = 0
    last_placement: Placement | None = None
    last_ended: float | None = None
    attained: Mapping[str, float] = NO_SERVICE
    ran_seconds: float = 0.0
    preemptions: int = 0
    progress_steps: float | None = None
    most_gpus: int = 0
    losses: tuple[LossPoint, ...] = ()


class JobKnowledge(JobHistory, frozen=True, kw_only=True):
    """Measurements and predictions of the job's speed and service.

    Attributes:
        steps_per_second: latest measured speed of the present run, if reported.
        speed: the job's speed on other GPU types, at other sizes and with co-runners, as far as it is known.
        learns_speed: whether running somewhere makes an unknown speed known; False in simulations that know all speeds.
        expected_service: GPU-seconds that the job should need in all on the GPUs it asked for, predicted from similar
            jobs.
        restart_seconds: seconds in which the job holds GPUs without training when it is stopped and started again:
            from the stop request to the end of the run, and from the start of the next run to its first step. The mean
            of the job's latest restarts, or of those of its user's other jobs; None where none was measured.
        cut_start_seconds: seconds of the job's longest start that a stop request ended before the first step, after the
            last run with a first step; None where there is none.
        batching: its batch size, who changes it, and its limits; None where no trainer has reported.
        noise: its gradient noise; None where that was not measured.
        iteration_parameters: by GPU type, the parameters of the time of its iterations
            (``throughput.iteration_time.IterationParameters``), where the policy asks for them
            (``Policy.fits_iterations``).
        batch_speeds: by global batch, the speed in optimizer steps with that batch, where the training script changes
            the batch: measured for this job or for others of its user's model.
    """

    steps_per_second: float | None = None
    speed: Speed | None = None
    learns_speed: bool = False
    expected_service: float | None = None
    restart_seconds: float | None = None
    cut_start_seconds: float | None = None
    batching: Batching | None = None
    noise: GradientNoise | None = None
    iteration_parameters: Mapping[str, tuple[float, ...]] = NO_PARAMETERS
    batch_speeds: Mapping[int, Speed] = NO_SPEEDS


class Job(JobKnowledge, frozen=True, kw_only=True):
    """One job of metasched: its request, situation, history and knowledge."""

    def evolve(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def waited_seconds(self, now: float) -> float:
        """Seconds since submission in which the job did not run."""
        return max(0.0, now - self.submitted - self.ran_seconds)

    @property
    def remaining_steps(self) -> float | None:
        """Optimizer steps until the job is done; None where the total is not known."""
        return None if self.total_steps is None else max(0.0, self.total_steps - (self.progress_steps or 0))

    @property
    def predicted_service_left(self) -> float | None:
        """GPU-seconds until the predicted service is received; None where none is predicted, or all was received."""
        if self.expected_service is None or self.expected_service <= self.attained_service:
            return None
        return self.expected_service - self.attained_service

    @property
    def elastic(self) -> bool:
        """Whether the job can run on different numbers of GPUs."""
        return self.min_gpus != self.max_gpus

    @property
    def held_or_released(self) -> Placement | None:
        """The placement that the job holds, or that it was released for; None where it has neither."""
        return self.placement or self.released

    @property
    def latest_placement(self) -> Placement | None:
        """The placement that the job holds, is released for, or held in its previous run; None for none."""
        return self.held_or_released or self.last_placement

    @property
    def active(self) -> bool:
        """Whether the job holds an allocation now: it runs, is suspended, or is stopping."""
        return self.status in (Status.RUNNING, Status.SUSPENDED, Status.STOPPING)

    @property
    def attained_service(self) -> float:
        """GPU-seconds received so far over all types (Tiresias, section 3.1: GPUs x time)."""
        return sum(self.attained.values())

    @property
    def constraints(self) -> tuple[object, ...]:
        """All fields that ``matches`` depends on: jobs with equal constraints match the same nodes."""
        nodes = self.only_nodes, self.excluded_nodes
        return self.gpu_types, self.features, self.partition, *nodes, self.reservation, self.open_seconds

    def matches(self, node: Node) -> bool:
        """Whether the node's name, partition, reservation, features and GPU type suit the job, free or not."""
        if node.reservation != self.reservation and node.reservation not in self.reservation.split(","):
            return False
        if node.open_seconds is not None and node.open_seconds < self.open_seconds:
            return False
        if node.name in self.excluded_nodes or (self.only_nodes and node.name not in self.only_nodes):
            return False
        if self.gpus > 0 and (node.gpu_type is None or (self.gpu_types and node.gpu_type not in self.gpu_types)):
            return False
        in_partition = not self.partition or not node.partitions.isdisjoint(self.partition.split(","))
        return in_partition and self.features <= node.features

    def spreads(self, gpus: int) -> tuple[tuple[int, int], ...]:
        """Even spreads of a number of GPUs, as (nodes, GPUs per node), fewest nodes first; one for a CPU-only job."""
        if self.gpus == 0:
            return ((self.nodes or 1, 0),) if gpus == 0 else ()
        most = gpus if self.max_nodes is None else min(gpus, self.max_nodes)
        counts = range(1, most + 1) if self.nodes is None else (self.nodes,)
        return tuple((k, gpus // k) for k in counts if gpus >= k and gpus % k == 0)

    def node_cpus(self, gpus_per_node: int) -> int:
        """CPUs that the job needs on each node, by its GPUs there (CPU-only: 0)."""
        return self.cpus_per_unit * max(gpus_per_node, 1)

    def node_memory(self, gpus_per_node: int) -> int:
        """Bytes of memory that the job needs on each node, by its GPUs there (CPU-only: 0)."""
        return self.memory_per_unit * max(gpus_per_node, 1)


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on the GPUs or running jobs of some of metasched's jobs together, net of the use by other jobs.

    Attributes:
        name: the limit as admins know it.
        members: uids of the jobs that count against it.
        left: GPUs (with ``of_jobs``: running jobs) that the members may have; negative where the limit is exceeded.
        of_jobs: whether running jobs are counted instead of GPUs.
        gpu_type: the only type of GPUs that is counted; None for all types.
    """

    name: str
    members: frozenset[str]
    left: int
    of_jobs: bool = False
    gpu_type: str | None = None

    def counts(self, gpu_type: str | None) -> bool:
        """Whether a member that runs on GPUs of this type (CPU-only: None) counts against the quota."""
        return self.of_jobs or self.gpu_type in (None, gpu_type)

    def use(self, gpus: int) -> int:
        """GPUs of the quota (of a quota of jobs: jobs) that a member with so many GPUs uses, if it counts."""
        return 1 if self.of_jobs else gpus


@dataclass(frozen=True)
class Snapshot:
    """The queue and the cluster at one instant: the input of a round.

    Attributes:
        now: unix seconds.
        round: number of the round, from 1.
        round_seconds: regular time from one round to the next.
        nodes: all nodes that metasched's jobs may use.
        jobs: metasched's live jobs, ordered by (submitted, uid).
        uneven: whether the cluster can realise placements with different numbers of GPUs on each node.
        sharing: whether two jobs can run on the same GPUs.
        precomputed: result of the policy's ``precompute`` that arrived since the last round, JSON-compatible; empty
            for no result, None where ``precompute`` is not called.
        quotas: limits that hold under every policy.
        completed_trials: uids of trials of live apps that have ended as completed, by themselves.
        trial_orders: what the drivers of live apps ask for their trials, under the tuner ``outside``.
        apps: the live apps, by first submission, in the snapshot that a policy sees (``apps.app_round``). Apps of one
            are among them only for a policy that asks for them (``Policy.reads_apps``).
    """

    now: float
    round: int
    round_seconds: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    uneven: bool = False
    sharing: bool = False
    precomputed: Mapping[str, Any] | None = None
    quotas: tuple[Quota, ...] = ()
    completed_trials: frozenset[str] = frozenset()
    trial_orders: tuple[TrialOrder, ...] = ()
    apps: tuple[App, ...] = ()

    @cached_property
    def job(self) -> Mapping[str, Job]:
        """The jobs by their uids."""
        return dict(zip(map(attrgetter("uid"), self.jobs), self.jobs, strict=True))

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """The number of GPUs of each type on nodes that accept jobs."""
        total: dict[str, int] = {}
        for node in self.nodes:
            if node.gpu_type is not None and node.accepts:
                total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
        return total


@dataclass(frozen=True, slots=True)
class Grant:
    """The GPUs that a policy grants to one job for a round.

    Attributes:
        uid: the job's uid.
        gpus: number of GPUs; 0 for a CPU-only job.
        at_least: placement may give fewer where ``gpus`` does not fit, down to this; None means exactly ``gpus``.
        gpu_type: the type; None for any type that the job accepts.
        reason: why; a policy without a code of its own says ``Reason.text(...)``.
        exact: the placement, where the policy chooses it; ``gpus`` and ``gpu_type`` are then its own. It is realised
            as it is, or not at all.
        co_runner: uid of the job, granted before this one, whose GPUs this job gets, too; where the cluster can share.
        max_nodes: most nodes in this round; None for the job's own limit.
        time_slicing: with ``co_runner``, whether the two jobs alternate, one suspended while the other runs (time
            slices of Gandiva, OSDI 2018, section 3.1). A simulation runs them at once.
        batch: the batch plan that the job's trainer should take up, where metasched changes the job's batch size
            (``BatchControl.SCHEDULER``); None to leave the batch size to the trainer.
        consolidate: whether the job, where it runs on more nodes than it needs, is moved to free GPUs on fewer, if that
            gains clearly more time than its restart costs.
        sizes: the only numbers of GPUs that placement may give, which the engine takes from the job; empty for all.
        other_types: GPU types, best first, that the job gets GPUs of where no placement of ``gpu_type`` is found and
            some would be idle otherwise; for a grant of neither a prescribed placement nor another job's GPUs.
    """

    uid: str
    gpus: int
    reason: Reason
    at_least: int | None = None
    gpu_type: str | None = None
    exact: Placement | None = None
    co_runner: str | None = None
    max_nodes: int | None = None
    time_slicing: bool = False
    batch: BatchPlan | None = None
    consolidate: bool = False
    sizes: tuple[int, ...] = ()
    other_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeAdvice:
    """A policy's advice on the number of nodes of one GPU type, for clusters whose size can change.

    Attributes:
        gpu_type: the type.
        nodes: nodes of the type that accept jobs.
        advised: the advised number of nodes; equal to ``nodes`` where it is right.
        utility: the utility of the present nodes, 0 to 1, by the policy's definition.
        predicted: the predicted utility of the advised nodes.
    """

    gpu_type: str
    nodes: int
    advised: int
    utility: float
    predicted: float


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The next span of time in which a policy plans to run a job, as far as its plan reaches.

    Attributes:
        begins: the begin, unix seconds; the instant of the round for a job that runs in it.
        seconds: the length of the span, above 0.
    """

    begins: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's answer for one round.

    Attributes:
        grants: the jobs that should run, most important first.
        fallback: the jobs that may run where grants leave nodes free, most important first.
        waits: why each other job waits, by uid.
        degraded: why a substitute decided instead of the policy's own method, which has no answer; None where the
            method itself decided. The engine adds it to the reason of every job.
        advice: how many nodes would suit the jobs, by GPU type; empty where the policy gives no advice.
        planned: by uid, when a job is to run next and for how long; without the jobs that are not planned, and empty
            where the policy does not plan ahead.
    """

    grants: tuple[Grant, ...] = ()
    fallback: tuple[Grant, ...] = ()
    waits: Mapping[str, Reason] = field(default_factory=dict)
    degraded: Reason | None = None
    advice: tuple[NodeAdvice, ...] = ()
    planned: Mapping[str, PlannedRun] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """One change to one job; every kind is idempotent, and the next poll verifies it.

    Attributes:
        uid: the job's uid.
        reason: why.
    """

    uid: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class HoldJob(Action):
    """Put a pending job under an admin hold, in place of any other hold."""


@dataclass(frozen=True, slots=True)
class Start(Action):
    """Give a held job its nodes and sizes, and release it for a new run.

    Attributes:
        placement: the nodes and GPUs of the run.
        half_gpus: whether the job gets one half of each GPU only, so that a co-runner may have the other.
        batch: the batch plan that the run's trainer should take up; None to leave the batch size to the trainer.
    """

    placement: Placement
    half_gpus: bool = False
    batch: BatchPlan | None = None


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """Ask the present run to checkpoint and end.

    Attributes:
        deadline: unix seconds at which the run counts as not answering.
        successors: uids of the jobs that get GPUs of the run, most important first.
    """

    deadline: float
    successors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Requeue(Action):
    """End a run that did not answer a request to stop in time, and hold the job."""


@dataclass(frozen=True, slots=True)
class End(Action):
    """End a job for good: it is never requeued.

    Attributes:
        deadline: unix seconds until which the running trainer may write its final checkpoint and exit with 0; None to
            cancel the job now.
    """

    deadline: float | None


@dataclass(frozen=True, slots=True)
class Suspend(Action):
    """Suspend the present run, which keeps its memory and GPUs."""


@dataclass(frozen=True, slots=True)
class Retune(Action):
    """Ask the present run to take up another batch plan; it is neither stopped nor restarted.

    Attributes:
        batch: the plan.
    """

    batch: BatchPlan


@dataclass(frozen=True, slots=True)
class Resume(Action):
    """Resume a run that the daemon suspended."""
