"""Plain Slurm, a cluster without metasched: multifactor priorities, EASY backfill, no preemption.

Priority (Slurm's priority/multifactor): age, fair share and size, each a factor in [0, 1] times a weight. Fair share is
Fair Tree: users are ranked by the decayed usage of their account over its shares first, then by their own usage.
Accounts whose shares are not known have the average of the others, and users of an account have equal shares. Backfill
(EASY; Lifka 1995): GPUs are reserved for the first job that does not fit, from the instant at which the time limits of
running jobs free them, and later jobs start where they do not delay it. There is one reservation for each GPU type and
each set of nodes for which jobs do not compete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import Field

from metasched.capacity.capacity_pool import CapacityCost, GpuAmount
from metasched.capacity.shapes import CPU_ONLY, NodeSet
from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import holds_or_is_released
from policies.baselines.gpu_allocator import Allocator, TypedNodes, compete, nodes_of_type

STATE_VERSION = 1
DAY = 86400.0
RUNS_TO_END = Reason(Code.RUNS_TO_END)
BACKFILLED = Reason(Code.BACKFILLED)

Owner = tuple[str, str]
"""Account (empty where there is none) and user."""


class SlurmParameters(PolicyParameters):
    """Parameters of plain Slurm."""

    age_weight: float = Field(default=1000.0, ge=0)
    """Weight of the time since submission."""
    fairshare_weight: float = Field(default=10000.0, ge=0)
    """Weight of the rank by past usage."""
    size_weight: float = Field(default=1000.0, ge=0)
    """Weight of the requested fraction of the cluster."""
    favor_small: bool = False
    """Whether small jobs have the larger size factor."""
    max_age_seconds: float = Field(default=7 * DAY, gt=0)
    """Age beyond which priority grows no more."""
    half_life_seconds: float = Field(default=7 * DAY, gt=0)
    """Time in which the weight of past usage halves."""
    default_limit_seconds: float = Field(default=365 * DAY, gt=0)
    """The time limit of jobs that have none."""
    backfill: bool = True
    """Whether later jobs may start where they do not delay the first that waits for their GPU type."""


class Slurm(Policy):
    """Multifactor priority with EASY backfill; jobs get the GPUs that they requested, and keep them to their end."""

    name: ClassVar[str] = "slurm"
    Parameters: ClassVar[type[PolicyParameters]] = SlurmParameters
    parameters: SlurmParameters

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """A state in which the attained service of live jobs is all past usage."""
        usage = _UsageRecord(snapshot.now)
        usage.charge(snapshot, self.parameters.half_life_seconds)
        return usage.state()

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Charge usage, order the queue, start what fits, and backfill."""
        usage = _UsageRecord.of(state) or _UsageRecord(snapshot.now)
        usage.charge(snapshot, self.parameters.half_life_seconds)
        shares = {job.account or "": job.fair_share for job in snapshot.jobs if job.fair_share is not None}
        priority = self._priorities(snapshot, usage.factors({_owner(job) for job in snapshot.jobs}, shares))
        started = [job for job in snapshot.jobs if holds_or_is_released(job)]
        waiting = [job for job in snapshot.jobs if not holds_or_is_released(job)]
        waiting.sort(key=lambda job: (-priority[job.uid], job.submitted, job.uid))
        return _Backfill(snapshot, started, waiting, self.parameters).decision(), usage.state()

    def _priorities(self, snapshot: Snapshot, fairshare: Mapping[Owner, float]) -> Mapping[str, float]:
        given = self.parameters
        gpus, nodes = sum(snapshot.capacity.values()), len(snapshot.nodes)
        found = {}
        for job in snapshot.jobs:
            age = min(max(snapshot.now - job.submitted, 0.0) / given.max_age_seconds, 1.0)
            part = job.gpus / gpus if job.gpus and gpus else (job.nodes or 1) / max(nodes, 1)
            size = 1.0 - min(part, 1.0) if given.favor_small else min(part, 1.0)
            factors = (
                given.age_weight * age,
                given.fairshare_weight * fairshare[_owner(job)],
                given.size_weight * size,
            )
            found[job.uid] = sum(factors)
        return found


def _owner(job: Job) -> Owner:
    return job.account or "", job.user


@dataclass(slots=True)
class _UsageRecord:
    """Decayed usage of all owners.

    Attributes:
        at: unix seconds of the last ``charge``.
        usage: GPU-seconds (CPU-only: node-seconds) by owner.
        seen: at the last ``charge``, by uid, the job's owner, its attained service, and the GPUs that it held.
    """

    at: float
    usage: dict[Owner, float] = field(default_factory=dict)
    seen: dict[str, tuple[Owner, float, float]] = field(default_factory=dict)

    def charge(self, snapshot: Snapshot, half_life: float) -> None:
        """Let earlier usage decay, and add the service that jobs received since the last call.

        A job that is gone is charged for the GPUs that it held then, for all of the time since.
        """
        passed = max(snapshot.now - self.at, 0.0)
        decay = math.pow(0.5, passed / half_life)
        usage = {owner: amount * decay for owner, amount in self.usage.items()}
        seen = {}
        for job in snapshot.jobs:
            owner, service = _owner(job), job.attained_service
            before = self.seen.pop(job.uid, (owner, 0.0, 0.0))[1]
            usage[owner] = usage.get(owner, 0.0) + max(service - before, 0.0)
            holds = (job.placement.gpus or len(job.placement.nodes)) if job.active and job.placement else 0
            seen[job.uid] = (owner, service, float(holds))
        for owner, _, holding in self.seen.values():
            usage[owner] = usage.get(owner, 0.0) + holding * passed
        self.at, self.seen = snapshot.now, seen
        self.usage = {owner: amount for owner, amount in usage.items() if amount >= 1.0}

    def factors(self, owners: Iterable[Owner], shares: Mapping[str, float]) -> Mapping[Owner, float]:
        """Fair Tree's factor in (0, 1] by owner: 1 for the first in rank; equal ranks have equal factors.

        Args:
            owners: the owners of live jobs; owners of past usage have factors, too.
            shares: Slurm's shares of accounts, where known.
        """
        of_account: dict[str, float] = {}
        for (account, _), amount in self.usage.items():
            of_account[account] = of_account.get(account, 0.0) + amount
        average = sum(shares.values()) / len(shares) if shares else 1.0

        def level(account: str) -> float:
            """Return an account's usage over its share, in GPU-seconds; infinite for one without a share."""
            used, share = of_account.get(account, 0.0), shares.get(account, average)
            return used / share if share else math.inf

        keys = {owner: (level(owner[0]), self.usage.get(owner, 0.0)) for owner in {*owners, *self.usage}}
        ranks: dict[tuple[float, float], int] = {}
        for rank, key in enumerate(sorted(keys.values())):
            ranks.setdefault(key, rank)
        return {owner: 1.0 - ranks[key] / len(keys) for owner, key in keys.items()}

    def state(self) -> PolicyState:
        """The record as the policy's state, JSON-compatible, for ``of`` to read in the next round."""
        data = {
            "at": self.at,
            "usage": [[*owner, amount] for owner, amount in sorted(self.usage.items())],
            "seen": {uid: [*owner, service, gpus] for uid, (owner, service, gpus) in sorted(self.seen.items())},
        }
        return PolicyState(STATE_VERSION, data)

    @classmethod
    def of(cls, state: PolicyState) -> _UsageRecord | None:
        """The record that ``state`` returned; None where the state is of another version or damaged."""
        if state.version != STATE_VERSION:
            return None
        try:
            usage = {(str(account), str(user)): float(amount) for account, user, amount in state.data["usage"]}
            seen = {
                uid: ((str(account), str(user)), float(service), float(gpus))
                for uid, (account, user, service, gpus) in state.data["seen"].items()
            }
            return cls(float(state.data["at"]), usage, seen)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class _Reservation:
    """GPUs (CPU-only: CPUs) that are reserved for the first job that does not fit.

    Attributes:
        job: the job.
        nodes: the GPU type and the nodes of the reservation.
        at: unix seconds at which the resources are free at the latest; infinity where running jobs never free enough,
            minus infinity where no later job may start.
        extra: resources beyond the job's that are free at that instant.
    """

    job: Job
    nodes: TypedNodes
    at: float
    extra: int


class _Backfill:
    """One round of EASY backfill."""

    def __init__(
        self, snapshot: Snapshot, started: Sequence[Job], waiting: Sequence[Job], parameters: SlurmParameters
    ) -> None:
        self.now = snapshot.now
        self.parameters = parameters
        self.waiting = waiting
        self.started = started
        self.allocator = Allocator(snapshot, [*started, *waiting], elastic=False, is_retained=holds_or_is_released)
        self.running = list(started)
        self.reserved: dict[TypedNodes, _Reservation] = {}
        self.grants: list[Grant] = []
        self.waits: dict[str, Reason] = {}

    def decision(self) -> Decision:
        """Retain started jobs, then start or reserve for waiting jobs in the order of their priority."""
        for job in self.started:
            place = job.placement if job.active else job.released
            assert place is not None  # noqa: S101  started jobs are those that have one
            self.grants.append(Grant(job.uid, place.gpus, RUNS_TO_END, None, place.gpu_type, exact=place))
        for position, job in enumerate(self.waiting, start=1):
            rank = Reason.of_position(Code.PRIORITY_POSITION, position, len(self.waiting))
            options = self.allocator.options(job)
            if not options:
                self.waits[job.uid] = rank.and_also(self.allocator.exceeds(job))
            elif not any(self._start(job, amount, rank) for amount in options):
                self._wait(job, options, rank)
        return Decision(tuple(self.grants), (), self.waits)

    def _end(self, job: Job) -> float:
        """Unix seconds at which the job's time limit ends its run; each run has the full limit."""
        limit = job.time_limit_seconds
        begun = job.run_started if job.active and job.run_started is not None else self.now
        return max(begun + (self.parameters.default_limit_seconds if limit is None else limit), self.now)

    def _reserve(self, job: Job, amount: GpuAmount) -> _Reservation:
        """The reservation of an amount for a job, by the time limits of running jobs."""
        nodes = self.allocator.typed_nodes(job, amount.gpu_type)
        pool, (gpu_type, node_set) = self.allocator.pool, nodes
        need = _units(pool.costs(job, amount), nodes)
        free = pool.unassigned_cpus(node_set) if gpu_type == CPU_ONLY else pool.unassigned_gpus(node_set)
        at = self.now
        ends = sorted((self._end(one), _units(pool.assigned_costs(one), nodes)) for one in self.running)
        for end, units in ends:
            if free >= need and end > at:
                break
            free, at = free + units, end
        return _Reservation(job, nodes, at if free >= need else math.inf, max(free - need, 0))

    def _reserved_for(self, job: Job, amount: GpuAmount) -> Job | None:
        """The job with a reservation of nodes on which the amount could be; None where there is no reservation."""
        mine = self.allocator.typed_nodes(job, amount.gpu_type)
        return next((reserved.job for nodes, reserved in self.reserved.items() if compete(mine, nodes)), None)

    def _start(self, job: Job, amount: GpuAmount, rank: Reason) -> bool:
        """Grant the amount if it fits and delays no reservation; return whether it was granted.

        A job that ends before a reservation begins, or that needs no more than the reservation leaves, may be charged
        to the reservation's nodes; other jobs only to the rest of their own nodes.
        """
        late, costs, ends = {}, self.allocator.pool.costs(job, amount), self._end(job)
        kept_free: NodeSet = 0
        for nodes, reserved in self.reserved.items():
            units = _units(costs, nodes) if ends > reserved.at else 0
            if units > reserved.extra:
                kept_free |= nodes[1]
            elif units:
                late[nodes] = replace(reserved, extra=reserved.extra - units)
        if not self.allocator.pool.assign(job, amount, kept_free):
            return False
        reason = rank if self._reserved_for(job, amount) is None else rank.and_also(BACKFILLED)
        self.running.append(job)
        self.grants.append(Grant(job.uid, amount.gpus, reason, None, amount.gpu_type or None))
        self.reserved |= late
        return True

    def _wait(self, job: Job, options: Sequence[GpuAmount], rank: Reason) -> None:
        """Let the job wait, and reserve GPUs for it if it is the first that waits for them.

        Without backfill, all nodes that suit the job are reserved at once.
        """
        first = next((found for amount in options if (found := self._reserved_for(job, amount)) is not None), None)
        if first is not None:
            self.waits[job.uid] = rank.and_also(Reason.of(Code.WAITS_BEHIND_RESERVED, job=first.slurm_job_id))
        else:
            self.waits[job.uid] = rank.and_also(self.allocator.missing(job))
        if not self.parameters.backfill:
            for gpu_type, node_set in [self.allocator.typed_nodes(job, amount.gpu_type) for amount in options]:
                if more := node_set & ~nodes_of_type(self.reserved, gpu_type):
                    self.reserved[gpu_type, more] = _Reservation(job, (gpu_type, more), -math.inf, 0)
        elif first is None:
            soonest = min((self._reserve(job, amount) for amount in options), key=lambda found: found.at)
            self.reserved[soonest.nodes] = soonest


def _units(costs: Iterable[CapacityCost], nodes: TypedNodes) -> int:
    """GPUs of a type (CPU-only: CPUs) that costs take of some nodes."""
    gpu_type, node_set = nodes
    return sum([cost.cpus if gpu_type == CPU_ONLY else cost.gpus for cost in costs if cost.node_set & node_set])
