"""Bare Slurm: what a cluster does without metasched. Priorities by several factors, EASY backfill, no preemption.

Priority (Slurm's priority/multifactor): age, fair share and size, each a factor in [0, 1] times a weight. Fair share is
Fair Tree: users are ranked by the decayed usage of their account by its shares first, then by their own usage; accounts
whose shares are not known have the average of the others, and users of an account have equal shares. Backfill
(EASY; Lifka 1995): the first job that does not fit has its GPUs reserved for when the running ones' time limits free
them, and later jobs start where they do not delay it. There is one reservation for each GPU type, and for each part of
the cluster where jobs do not compete.
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
from policies.baselines.gpu_allocator import Allocator, Kind, compete, within

STATE_VERSION = 1
DAY = 86400.0
RUNS_TO_END = Reason(Code.RUNS_TO_END)
BACKFILLED = Reason(Code.BACKFILLED)

Owner = tuple[str, str]
"""Account (empty where there is none) and user."""


class SlurmParameters(PolicyParameters):
    """Parameters of bare Slurm.

    Attributes:
        age_weight: of the time since submission.
        fairshare_weight: of the rank by past usage.
        size_weight: of the share of the cluster that is asked for.
        favor_small: whether small jobs have the larger size factor.
        max_age_seconds: age beyond which priority grows no more.
        half_life_seconds: in which past usage counts half.
        default_limit_seconds: the time limit of jobs that have none.
        backfill: whether later jobs may start where they do not delay the first that waits for their GPU type.
    """

    age_weight: float = Field(default=1000.0, ge=0)
    fairshare_weight: float = Field(default=10000.0, ge=0)
    size_weight: float = Field(default=1000.0, ge=0)
    favor_small: bool = False
    max_age_seconds: float = Field(default=7 * DAY, gt=0)
    half_life_seconds: float = Field(default=7 * DAY, gt=0)
    default_limit_seconds: float = Field(default=365 * DAY, gt=0)
    backfill: bool = True


class Slurm(Policy):
    """Multifactor priority with EASY backfill; jobs get what they asked for, and keep it to their end."""

    name: ClassVar[str] = "slurm"
    Parameters: ClassVar[type[PolicyParameters]] = SlurmParameters
    parameters: SlurmParameters

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """What live jobs have had is all the usage that we know of."""
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
        return _Easy(snapshot, started, waiting, self.parameters).decision(), usage.state()

    def _priorities(self, snapshot: Snapshot, fair: Mapping[Owner, float]) -> Mapping[str, float]:
        given = self.parameters
        gpus, nodes = sum(snapshot.capacity.values()), len(snapshot.nodes)
        found = {}
        for job in snapshot.jobs:
            age = min(max(snapshot.now - job.submitted, 0.0) / given.max_age_seconds, 1.0)
            part = job.gpus / gpus if job.gpus and gpus else (job.nodes or 1) / max(nodes, 1)
            size = 1.0 - min(part, 1.0) if given.favor_small else min(part, 1.0)
            factors = (given.age_weight * age, given.fairshare_weight * fair[_owner(job)], given.size_weight * size)
            found[job.uid] = sum(factors)
        return found


def _owner(job: Job) -> Owner:
    return job.account or "", job.user


@dataclass(slots=True)
class _UsageRecord:
    """Decayed usage.

    Attributes:
        at: when it was last brought up to date.
        usage: GPU-seconds (CPU-only: node-seconds) by owner.
        seen: by job, its owner, its service by then, and the GPUs that it had.
    """

    at: float
    usage: dict[Owner, float] = field(default_factory=dict)
    seen: dict[str, tuple[Owner, float, float]] = field(default_factory=dict)

    def charge(self, snapshot: Snapshot, half_life: float) -> None:
        """Let old usage decay, and add what jobs have had since; who is gone had what it had until now."""
        passed = max(snapshot.now - self.at, 0.0)
        fade = math.pow(0.5, passed / half_life)
        usage = {owner: amount * fade for owner, amount in self.usage.items()}
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
        """Fair Tree: 1 for the first in rank; equals have the same. ``shares`` are those of accounts, where known."""
        of_account: dict[str, float] = {}
        for (account, _), amount in self.usage.items():
            of_account[account] = of_account.get(account, 0.0) + amount
        average = sum(shares.values()) / len(shares) if shares else 1.0

        def level(account: str) -> float:
            used, share = of_account.get(account, 0.0), shares.get(account, average)
            return used / share if share else math.inf

        everybody = {*owners, *self.usage}
        keys = {owner: (level(owner[0]), self.usage.get(owner, 0.0)) for owner in everybody}
        ranks: dict[tuple[float, float], int] = {}
        for rank, key in enumerate(sorted(keys.values())):
            ranks.setdefault(key, rank)
        return {owner: 1.0 - ranks[key] / len(keys) for owner, key in keys.items()}

    def state(self) -> PolicyState:
        """As JSON-compatible data."""
        data = {
            "at": self.at,
            "usage": [[*owner, amount] for owner, amount in sorted(self.usage.items())],
            "seen": {uid: [*owner, service, gpus] for uid, (owner, service, gpus) in sorted(self.seen.items())},
        }
        return PolicyState(STATE_VERSION, data)

    @classmethod
    def of(cls, state: PolicyState) -> _UsageRecord | None:
        """What ``state`` wrote; None for anything else."""
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
    """For the first job that does not fit: when its resources will be there, and how much more is free then."""

    job: Job
    kind: Kind
    at: float
    extra: int


class _Easy:
    """One round."""

    def __init__(
        self, snapshot: Snapshot, started: Sequence[Job], waiting: Sequence[Job], parameters: SlurmParameters
    ) -> None:
        self.now = snapshot.now
        self.parameters = parameters
        self.waiting = waiting
        self.started = started
        self.allocator = Allocator(snapshot, [*started, *waiting], elastic=False, is_retained=holds_or_is_released)
        self.running: list[Job] = []
        self.reserved: dict[Kind, _Reservation] = {}
        self.grants: list[Grant] = []
        self.waits: dict[str, Reason] = {}

    def decision(self) -> Decision:
        """Who runs on, starts, is backfilled, or waits."""
        for job in self.started:
            place = job.placement if job.active else job.released
            assert place is not None  # noqa: S101  that is what started means
            self.running.append(job)
            self.grants.append(Grant(job.uid, place.gpus, RUNS_TO_END, None, place.gpu_type, exact=place))
        for position, job in enumerate(self.waiting, start=1):
            turn = Reason.of(Code.PRIORITY_POSITION, position=position, length=len(self.waiting))
            options = self.allocator.options(job)
            if not options:
                self.waits[job.uid] = turn.and_also(self.allocator.exceeds(job))
            elif not any(self._start(job, share, turn) for share in options):
                self._wait(job, options, turn)
        return Decision(tuple(self.grants), (), self.waits)

    def _end(self, job: Job) -> float:
        """When its time limit ends it, at the latest; a limit counts anew in every run."""
        limit = job.time_limit_seconds
        begun = job.run_started if job.active and job.run_started is not None else self.now
        return max(begun + (self.parameters.default_limit_seconds if limit is None else limit), self.now)

    def _reserve(self, job: Job, share: GpuAmount) -> _Reservation:
        """When so much will be free of that kind, by everybody's time limit."""
        kind = self.allocator.kind(job, share.gpu_type)
        pool, (gpu_type, reach) = self.allocator.pool, kind
        need = _units(pool.costs(job, share), kind)
        free = pool.unassigned_cpus(reach) if gpu_type == CPU_ONLY else pool.unassigned_gpus(reach)
        at = self.now
        ends = sorted((self._end(one), _units(pool.assigned_costs(one), kind)) for one in self.running)
        for end, units in ends:
            if free >= need and end > at:
                break
            free, at = free + units, end
        return _Reservation(job, kind, at if free >= need else math.inf, max(free - need, 0))

    def _first(self, job: Job, share: GpuAmount) -> Job | None:
        """Who waits for what the share is of, with a reservation."""
        mine = self.allocator.kind(job, share.gpu_type)
        return next((reserved.job for kind, reserved in self.reserved.items() if compete(mine, kind)), None)

    def _start(self, job: Job, share: GpuAmount, turn: Reason) -> bool:
        """Grant it, if it fits and no reservation suffers: it is counted beside those that leave too little over."""
        late, costs, ends = {}, self.allocator.pool.costs(job, share), self._end(job)
        kept_free: NodeSet = 0
        for kind, reserved in self.reserved.items():
            units = _units(costs, kind) if ends > reserved.at else 0
            if units > reserved.extra:
                kept_free |= reserved.kind[1]
            elif units:
                late[kind] = replace(reserved, extra=reserved.extra - units)
        if not self.allocator.pool.assign(job, share, kept_free):
            return False
        reason = turn if self._first(job, share) is None else turn.and_also(BACKFILLED)
        self.running.append(job)
        self.grants.append(Grant(job.uid, share.gpus, reason, None, share.gpu_type or None))
        self.reserved |= late
        return True

    def _wait(self, job: Job, options: Sequence[GpuAmount], turn: Reason) -> None:
        """Have it wait; the first that waits for GPUs gets a reservation, or all of them where nobody may pass it."""
        first = next((found for share in options if (found := self._first(job, share)) is not None), None)
        if first is not None:
            self.waits[job.uid] = turn.and_also(Reason.of(Code.WAITS_BEHIND_RESERVED, job=first.slurm_job_id))
        else:
            self.waits[job.uid] = turn.and_also(self.allocator.missing(job))
        if not self.parameters.backfill:
            for gpu_type, reach in [self.allocator.kind(job, share.gpu_type) for share in options]:
                if more := reach & ~within(self.reserved, gpu_type):
                    self.reserved[gpu_type, more] = _Reservation(job, (gpu_type, more), -math.inf, 0)
        elif first is None:
            soonest = min((self._reserve(job, share) for share in options), key=lambda found: found.at)
            self.reserved[soonest.kind] = soonest


def _units(costs: Iterable[CapacityCost], kind: Kind) -> int:
    """What a share takes of one kind: GPUs of a type, or CPUs."""
    gpu_type, reach = kind
    return sum([cost.cpus if gpu_type == CPU_ONLY else cost.gpus for cost in costs if cost.node_set & reach])
