"""What goes into a simulation and what comes out of it: frozen, plain data.

Times are seconds on the simulation's own clock, which begins at the trace's 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from metasched.core.model import Job, Node, Placement, Quota
from metasched.core.policy import PolicyState
from metasched.throughput.training import Training


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of a workload.

    Attributes:
        job: as it is submitted: held, without history; ``submitted`` is when it arrives, ``uid`` is unique.
        training: how much work it is, and how fast it goes.
        start_seconds: from getting its GPUs to its first step in its first run; None for the simulation's own.
        restart_seconds: the same in every later run.
        checkpoint_seconds: for which it still holds its GPUs after a stop.
        declared: whether policies are told how much work it is, and how much of that is done.
    """

    job: Job
    training: Training
    start_seconds: float | None = None
    restart_seconds: float | None = None
    checkpoint_seconds: float | None = None
    declared: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs by (arrival, uid), and where they come from, in words."""

    source: str
    submissions: tuple[Submission, ...]


@dataclass(frozen=True, slots=True)
class InitialState:
    """What a simulation goes on from.

    Attributes:
        at: when it begins, with all jobs that were submitted before. Those that run then go on where they are.
        round: the number of the last round before.
        state: what the policy carries from that; None where it begins afresh.
        quotas: that hold for the jobs all the time, whatever the policy decides.
    """

    at: float = -math.inf
    round: int = 0
    state: PolicyState | None = None
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True)
class Failures:
    """Nodes that fail by chance, independently: times between failures are exponential.

    Attributes:
        mean_seconds: between two failures of one node, while it is up.
        repair_seconds: that a node is then away for.
    """

    mean_seconds: float
    repair_seconds: float


@dataclass(frozen=True, slots=True)
class Locality:
    """Factors on the speed of a job whose GPUs are further apart than one node, where its training does not say so.

    Attributes:
        rack: several nodes of one rack.
        cluster: several racks.
    """

    rack: float = 1.0
    cluster: float = 1.0

    def factor(self, racks: Collection[str | None]) -> float:
        """On the speed of a job on nodes of these racks, one for each node."""
        if len(racks) == 1:
            return 1.0
        return self.rack if len(set(racks)) == 1 else self.cluster


@dataclass(frozen=True, slots=True)
class Settings:
    """How the simulated cluster behaves.

    Attributes:
        round_seconds: a round's length.
        min_round_seconds: a round that an arrival or a completion asks for comes this long after the last one, or
            later; as in the daemon.
        early_rounds: whether arrivals, completions and failures begin a round early, as in the daemon; else the GPUs of
            a job that ends within a round are idle for the rest of it.
        start_seconds: from getting its GPUs to the first step of a job's first run.
        restart_seconds: the same in its later runs.
        checkpoint_seconds: for which a stopped job still holds its GPUs.
        checkpoint_every: between periodic checkpoints: what a failure costs at most; None where every step is saved.
        failures: of nodes; None for none.
        locality: what distance costs.
        uneven: whether jobs may have other numbers of GPUs on each of their nodes.
        sharing: whether two jobs may run on the same GPUs.
        seed: of all chance.
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
    uneven: bool = False
    sharing: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RunInterval:
    """One allocation of a job: what it held, from when to when (overheads included).

    Attributes:
        began: when.
        ended: when.
        placement: what it held.
        shared: from when to when another job had the same GPUs.
    """

    began: float
    ended: float
    placement: Placement
    shared: tuple[tuple[float, float], ...] = ()

    def gpu_seconds(self, began: float = -math.inf, ended: float = math.inf) -> float:
        """GPU time within a span; while two jobs had the same GPUs, each counts for half of them."""
        began, ended = max(began, self.began), min(ended, self.ended)
        halved = sum(max(min(until, ended) - max(since, began), 0.0) for since, until in self.shared) / 2
        return (max(ended - began, 0.0) - halved) * self.placement.gpus


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of one job.

    Attributes:
        uid: the job.
        submitted: when it arrived.
        first_started: when it first got its GPUs; None if never.
        finished: when it was done; None if it was not when the simulation ended.
        stays: its allocations, in order.
        preemptions: stops that it suffered before it was done.
        failures: of nodes under it.
        lost_seconds: of training that failures cost.
        overhead_seconds: for which it held GPUs without training (starts, restarts and checkpoints).
        contention: the mean, over its life, of the GPUs that all live jobs had asked for over those of the cluster.
    """

    uid: str
    submitted: float
    first_started: float | None
    finished: float | None
    stays: tuple[RunInterval, ...]
    preemptions: int = 0
    failures: int = 0
    lost_seconds: float = 0.0
    overhead_seconds: float = 0.0
    contention: float = 0.0

    @property
    def jct(self) -> float | None:
        """Job completion time: from arrival to end."""
        return None if self.finished is None else self.finished - self.submitted

    @property
    def gpu_seconds(self) -> float:
        """GPU time held; of GPUs that it shared, half."""
        return sum(stay.gpu_seconds() for stay in self.stays)


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One round.

    Attributes:
        at: when.
        jobs: live ones.
        running: those with a target.
        gpus: in targets, shared ones once.
    """

    at: float
    jobs: int
    running: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation.

    Attributes:
        source: the workload's.
        policy: its name.
        parameters: the policy's.
        settings: the cluster's behaviour.
        manner: ``honest``, or the artifact whose loop was followed.
        nodes: the cluster.
        jobs: in the workload's order; those that had not arrived when it ended are left out.
        rounds: all of them, in order.
        ended: when the last thing happened.
        policy_seconds: real time spent in the policy.
        engine_seconds: real time spent in the engine besides (checks, placement).
        total_seconds: real time of all.
    """

    source: str
    policy: str
    parameters: Mapping[str, object]
    settings: Settings
    manner: str
    nodes: tuple[Node, ...]
    jobs: tuple[JobOutcome, ...]
    rounds: tuple[RoundOutcome, ...]
    ended: float
    policy_seconds: float
    engine_seconds: float
    total_seconds: float
