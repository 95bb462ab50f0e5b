"""Inputs and outcomes of a simulation: frozen, plain data.

Instants are seconds on the simulation's clock, whose 0 is the trace's 0; durations are seconds, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from metasched.core.apps import AppsState, LossPoint, TrialOrder
from metasched.core.distance import Level, distance
from metasched.core.model import Job, Node, Placement, Quota, Speed
from metasched.core.policy import PolicyState
from metasched.throughput.training import Training


def trace_job(
    uid: str, name: str, submitted: float, gpus: int, *, min_gpus: int | None = None, max_gpus: int | None = None
) -> Job:
    """A job of a trace, as submitted: without CPUs, and rigid unless ``min_gpus`` or ``max_gpus`` is given.

    The uid of a numbered job has leading zeros, so that uids sort by number; its Slurm job id has none.
    """
    return Job(
        uid=uid,
        slurm_job_id=str(int(uid)) if uid.isdecimal() else uid,
        name=name,
        user="trace",
        submitted=submitted,
        gpus=gpus,
        min_gpus=gpus if min_gpus is None else min_gpus,
        max_gpus=gpus if max_gpus is None else max_gpus,
        cpus_per_unit=0,
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of a workload.

    Attributes:
        job: the job as submitted: held, and without history unless the simulation has an ``InitialState``;
            ``submitted`` is its arrival, ``uid`` is unique.
        training: the job's work and its true speed.
        start_seconds: from getting GPUs to the first step of the first run; None for that of ``Settings``.
        restart_seconds: likewise in later runs.
        checkpoint_seconds: how long a stopped job still holds its GPUs; None for that of ``Settings``.
        declared: whether policies see the job's total steps and its progress.
        declared_ratio: the total steps that policies see, over the true ones; 1.0 for an exact declaration.
        losses: the hidden learning curve: the losses that the training reports, ascending in progress. Tuners and
            policies see those up to the job's progress.
        locality: what the distance of its GPUs costs this job; None for that of ``Settings``.
    """

    job: Job
    training: Training
    start_seconds: float | None = None
    restart_seconds: float | None = None
    checkpoint_seconds: float | None = None
    declared: bool = True
    declared_ratio: float = 1.0
    losses: tuple[LossPoint, ...] = ()
    locality: Locality | None = None

    def stop_cost(self, settings: Settings) -> float:
        """Seconds for which the job still holds its GPUs when it is stopped."""
        return settings.checkpoint_seconds if self.checkpoint_seconds is None else self.checkpoint_seconds

    def start_cost(self, settings: Settings, *, first: bool) -> float:
        """Seconds from getting GPUs to the first step, of the first run or of a later one."""
        if first:
            return settings.start_seconds if self.start_seconds is None else self.start_seconds
        return settings.restart_seconds if self.restart_seconds is None else self.restart_seconds

    def restart_cost(self, settings: Settings) -> float:
        """Seconds in which the job holds GPUs without training when it is stopped and started again.

        It is what policies see as ``Job.restart_seconds`` from the job's arrival on: what a daemon that knows the
        user's earlier jobs would have measured.
        """
        return self.stop_cost(settings) + self.start_cost(settings, first=False)


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs to simulate.

    Attributes:
        source: where the jobs come from, in words.
        submissions: the jobs, ordered by (arrival, uid).
        at_once: how many jobs there are at a time, at most: a further one, in order, arrives when one has ended, and
            not before its own arrival (a closed loop, such as a search for hyper-parameters). None for no limit.
    """

    source: str
    submissions: tuple[Submission, ...]
    at_once: int | None = None


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state of a live cluster from which a simulation continues.

    Attributes:
        at: the instant at which the simulation begins; jobs submitted before arrive then, and running ones continue.
        round: the number of the last round before.
        state: the policy's state after that round; None for its initial state.
        apps: the apps' state after that round.
        completed_trials: uids of trials of live apps that have completed before.
        trial_orders: what the drivers of apps ask for, during the whole simulation.
        quotas: the quotas in force, constant during the simulation.
    """

    at: float = -math.inf
    round: int = 0
    state: PolicyState | None = None
    apps: AppsState = field(default_factory=AppsState)
    completed_trials: frozenset[str] = frozenset()
    trial_orders: tuple[TrialOrder, ...] = ()
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True)
class Failures:
    """Random, independent node failures, with exponentially distributed times between failures.

    Attributes:
        mean_seconds: the mean uptime of a node between two of its failures.
        repair_seconds: how long a failed node is down.
    """

    mean_seconds: float
    repair_seconds: float


@dataclass(frozen=True, slots=True)
class Locality:
    """Factors on the speed of jobs by the distance of their GPUs, on top of what their ``Training`` says.

    Attributes:
        rack: for nodes of one rack.
        cluster: for nodes of several racks.
        node: for one node, beyond one slot.
        slot_gpus: GPUs of one slot of a node.
    """

    rack: float = 1.0
    cluster: float = 1.0
    node: float = 1.0
    slot_gpus: int = 1

    @property
    def costs_nothing(self) -> bool:
        """Whether all factors are 1."""
        return self.node == self.rack == self.cluster == 1.0

    def at(self, level: Level) -> float:
        """The factor at a distance."""
        return (1.0, self.node, self.rack, self.cluster)[level]

    def factor(self, gpus: int, racks: Collection[str | None]) -> float:
        """The factor for a job with so many GPUs on nodes of these racks, one for each node (None: not known)."""
        return self.at(distance(gpus, racks, self.slot_gpus))


@dataclass(frozen=True, slots=True)
class LocatedSpeed:
    """The speed of a job that has a ``Locality`` of its own, as policies know it: a ``Speed`` and ``SpeedByDistance``.

    Attributes:
        speed: the speed as the job's ``Training`` tells it.
        locality: the cost of distance.
    """

    speed: Speed
    locality: Locality

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The speed without the cost of distance."""
        return self.speed.steps_per_second(gpu_type, spread)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The speed with a co-runner, without the cost of distance."""
        alone = other.speed if isinstance(other, LocatedSpeed) else other
        return self.speed.steps_per_second_with(alone, gpu_type, spread)

    def steps_per_second_at(self, gpu_type: str, spread: tuple[int, ...], level: Level) -> float | None:
        """The speed at a distance."""
        rate = self.steps_per_second(gpu_type, spread)
        return None if rate is None else rate * self.locality.at(level)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the simulated cluster behaves. The ``[settings]`` of a scenario file have the same names and meanings.

    Attributes:
        round_seconds: the length of a round.
        min_round_seconds: the least time between two rounds; an early round waits for it, as in the daemon.
        early_rounds: whether arrivals, completions and failures trigger an early round, as in the daemon; else the GPUs
            of a job that ends within a round are idle for the rest of it.
        start_seconds: from getting GPUs to the first step of a job's first run.
        restart_seconds: likewise in later runs.
        checkpoint_seconds: how long a stopped job still holds its GPUs.
        checkpoint_every: seconds between periodic checkpoints; a failure loses at most the steps in between. None if
            every step is saved.
        failures: random node failures; None for none.
        locality: the cost in speed of the distance between a job's GPUs.
        interference_factor: factor on the speed of a job on several nodes while another such job runs on one of its
            nodes, on other GPUs. 1.0 for no interference.
        uneven: whether a job may have other numbers of GPUs on each of its nodes. Simulation only: Slurm gives a job
            the same number on each node, and ``Snapshot.uneven`` is False on real clusters.
        sharing: whether two jobs may be co-located on the same GPUs.
        seed: of the random failures.
    """

    round_seconds: float = 300.0
    min_round_seconds: float = 5.0
    early_rounds: bool = True
    start_seconds: float = 0.0
    restart_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    checkpoint_every: float | None = None
    failures: Failures | None = None
    locality: Locality = field(default_factory=Locality)
    interference_factor: float = 1.0
    uneven: bool = False
    sharing: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RunInterval:
    """An interval in which a job held an allocation, overheads included.

    Attributes:
        began: its start.
        ended: its end.
        placement: the GPUs held.
        shared: when another job was on the same GPUs: (from, to).
    """

    began: float
    ended: float
    placement: Placement
    shared: tuple[tuple[float, float], ...] = ()

    def gpu_seconds(self, began: float = -math.inf, ended: float = math.inf) -> float:
        """GPU-seconds held between two instants; co-located jobs count for half of their GPUs each."""
        began, ended = max(began, self.began), min(ended, self.ended)
        halved = sum(max(min(until, ended) - max(since, began), 0.0) for since, until in self.shared) / 2
        return (max(ended - began, 0.0) - halved) * self.placement.gpus


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The record of one job at the end of a simulation.

    Attributes:
        uid: the job's uid.
        submitted: its arrival.
        first_started: when its first run began; None if it never ran.
        finished: its completion; None if it was not complete when the simulation ended.
        steps: steps done.
        ended: when it was gone after its app's tuner had ended it for good; None where no tuner did.
        intervals: its allocations, in order.
        preemptions: stops before its completion.
        failures: node failures under it.
        lost_seconds: training that failures undid.
        overhead_seconds: how long it held GPUs without training (starts, restarts and checkpoints).
        contention: the mean, over its life, of the GPUs asked for by all live jobs, over the cluster's GPUs.
    """

    uid: str
    submitted: float
    first_started: float | None
    finished: float | None
    intervals: tuple[RunInterval, ...]
    preemptions: int = 0
    failures: int = 0
    lost_seconds: float = 0.0
    overhead_seconds: float = 0.0
    contention: float = 0.0
    ended: float | None = None
    steps: float = 0.0

    @property
    def left(self) -> float | None:
        """When it left the cluster, complete or ended for good; None while it is live."""
        return self.finished if self.ended is None else self.ended

    @property
    def jct(self) -> float | None:
        """The job completion time in seconds, from arrival to completion; None if it is not complete."""
        return None if self.finished is None else self.finished - self.submitted

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds held; shared GPUs count for half."""
        return sum(interval.gpu_seconds() for interval in self.intervals)


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One round.

    Attributes:
        at: its instant, in seconds.
        jobs: the number of live jobs.
        running: the number of jobs with a target.
        gpus: the number of GPUs in targets, each counted once.
    """

    at: float
    jobs: int
    running: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation.

    Attributes:
        source: the workload's source.
        policy: the policy's name.
        parameters: the policy's parameters.
        settings: the cluster's behaviour.
        loop: ``metasched``, or the published simulator whose event loop was followed.
        nodes: the cluster.
        jobs: records in the workload's order, without jobs that had not arrived at the end.
        rounds: the rounds, in order.
        ended: the instant of the last event.
        policy_seconds: wall time spent in the policy.
        engine_seconds: wall time spent in the rest of the engine (checks, placement).
        total_seconds: wall time of the whole simulation.
    """

    source: str
    policy: str
    parameters: Mapping[str, object]
    settings: Settings
    loop: str
    nodes: tuple[Node, ...]
    jobs: tuple[JobOutcome, ...]
    rounds: tuple[RoundOutcome, ...]
    ended: float
    policy_seconds: float
    engine_seconds: float
    total_seconds: float
