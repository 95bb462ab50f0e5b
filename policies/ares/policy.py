"""Ares: the job that would end first under fair sharing is served first, with as many GPUs as it uses well.

Source: Liu et al., "Ares: Fair and Efficient Scheduling of Deep Learning Jobs with Elastic Fair Queuing", 2025.
A round, step by step:

1. Demand (``demand``): GPU-seconds that each job still needs, on GPUs of average speed (section 3.5); or not known.
2. Fair-finish queue (``fair_finish_queue``, section 3.2): the reference system (``reference_system``) is advanced to
   now; a job's virtual finish time is fixed when its demand is first known. Earlier finish times preempt later ones.
3. Unknown-demand pool (section 3.5): jobs of unknown demand have GPUs in proportion to their weights, those with the
   largest deficit against fair sharing first. Only GPUs count that jobs can use (``pool_limits``).
4. Queue: each job gets the GPU type and size at which it is fastest, up to the size that scaling control allows
   (``scaling``, section 3.3).
5. Remaining GPUs go to the pool, then to efficient or faster sizes (``leftovers``), of the queue and then of the pool,
   then to sizes without a known speed (``explore``). Jobs without GPUs get CPUs last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import ClassVar, Literal

from pydantic import Field

from metasched.capacity.capacity_pool import CapacityPool, GpuAmount
from metasched.capacity.shapes import CPU_ONLY, NodeSet
from metasched.core.model import Decision, Grant, Job, Preempt, Snapshot, Status
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import holds_unassignable_nodes, is_non_preemptible, is_vacating
from policies.ares.fair_finish_queue import FairFinishQueue, overrun
from policies.ares.pool_limits import PoolLimits
from policies.ares.scaling import ScalingControl, Size

GROWTH = 1.5
"""Least factor by which a running job grows by leftovers: other jobs soon need them, and each change is a restart."""

POOL = Reason(Code.UNKNOWN_DEMAND_POOL)
EXPLORES = Reason(Code.EXPLORES)
NO_GPUS = Reason(Code.CPU_ONLY)
NO_NODE_AGAIN = Reason(Code.NO_NODE_AGAIN)


class AresParameters(PolicyParameters):
    """Parameters of the policy Ares."""

    alpha: float = Field(default=0.75, gt=0, le=1)
    """Least fraction of its speed that each GPU of a job retains when the job has more GPUs than requested."""
    leftovers: Literal["none", "efficient", "faster"] = "efficient"
    """Use of GPUs that remain when all jobs are served: ``none``; ``efficient``, sizes between two doublings that
    scaling control allows; ``faster``, also larger ones, as long as a job becomes faster.
    """
    explore: bool = True
    """Whether GPUs that remain then go to jobs whose speed at twice their GPUs is not known, to measure it."""
    turn_seconds: float = Field(default=1800.0, ge=0)
    """Seconds for which a run of a job of unknown demand keeps its GPUs in the pool."""
    restart_seconds: float = Field(default=60.0, ge=0)
    """Assumed seconds of a restart of a job of which none was measured."""


class Ares(Policy):
    """Elastic fair queuing: earliest virtual finish time first; elastic, preemptive."""

    name: ClassVar[str] = "ares"
    Parameters: ClassVar[type[PolicyParameters]] = AresParameters
    parameters: AresParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Advance the reference system to now, then serve the jobs by virtual finish time."""
        capacity_pool = CapacityPool(snapshot)
        node_sets = {job.uid: usable_groups(capacity_pool, job) for job in snapshot.jobs if job.gpus}
        names = {
            node_set: frozenset(
                node.name for group, nodes in capacity_pool.groups.items() if group & node_set for node in nodes
            )
            for node_set in set(node_sets.values())
        }
        usable = {uid: names[node_set] for uid, node_set in node_sets.items()}
        queue = FairFinishQueue.after(state, snapshot, partial(demand, capacity_pool, snapshot), usable)
        return _Round(self.parameters, snapshot, capacity_pool, node_sets, queue).decision(), queue.state()


def usable_groups(capacity_pool: CapacityPool, job: Job) -> NodeSet:
    """The groups of nodes that a job can use: those of the GPU types on which it could run on an empty cluster.

    No groups where no size of the job could run: it waits outside of queue, pool and reference system.
    """
    scaling = ScalingControl(job, capacity_pool.shape(job), alpha=1.0)  # alpha does not matter for these sizes
    groups = 0
    for gpu_type in scaling.shape.widest:
        if any(scaling.up_to_requested(gpu_type)):
            groups |= capacity_pool.node_set(job, gpu_type)
    return groups


def demand(capacity_pool: CapacityPool, snapshot: Snapshot, job: Job) -> float | None:
    """GPU-seconds that a job still needs on its requested GPUs, of average speed; None where not known (section 3.5).

    The demand follows from the remaining steps and the known speed at the requested size, or else the measured speed of
    the present run. Where the steps are not known, it follows from the service predicted for the job.

    Args:
        capacity_pool: capacity of the snapshot's nodes.
        snapshot: the round's jobs and nodes.
        job: one of these jobs.
    """
    steps = job.remaining_steps
    if steps is not None:
        scaling = ScalingControl(job, capacity_pool.shape(job), alpha=1.0)  # alpha does not matter for speeds
        speeds = {gpu_type: scaling.speed(gpu_type, job.gpus) for gpu_type in scaling.shape.widest}
        known = {gpu_type: speed for gpu_type, speed in speeds.items() if speed}
        if known:
            count = sum(snapshot.capacity[gpu_type] for gpu_type in known)
            total = sum(snapshot.capacity[gpu_type] * speed for gpu_type, speed in known.items())
            return job.gpus * steps * count / total
        if job.steps_per_second and job.placement is not None:
            return job.placement.gpus * steps / job.steps_per_second
    if job.expected_service is not None and not overrun(job):
        return max(job.expected_service - job.attained_service, 0.0)
    return None


class _Round:
    """One round: the capacity, the queue, and the sizes that jobs have been given so far."""

    def __init__(
        self,
        parameters: AresParameters,
        snapshot: Snapshot,
        capacity_pool: CapacityPool,
        node_sets: Mapping[str, NodeSet],
        queue: FairFinishQueue,
    ) -> None:
        self.parameters = parameters
        self.nodes = snapshot.node
        self.capacity_pool = capacity_pool
        self.queue = queue
        self.now = snapshot.now
        self.node_sets = node_sets
        self.unplaceable = [job for job in snapshot.jobs if job.gpus and not node_sets[job.uid]]
        placeable = [job for job in snapshot.jobs if job.gpus and node_sets[job.uid]]
        known = [job for job in placeable if job.uid in queue.finish]
        ends, finish = queue.fair_ends(), queue.finish
        self.known = sorted(known, key=lambda job: (ends[job.uid], finish[job.uid], job.submitted, job.uid))
        unknown = [job for job in placeable if job.uid in queue.since]
        self.unknown = sorted(unknown, key=lambda job: (-queue.deficit(job) / job.weight, job.submitted, job.uid))
        self.without_gpus = [job for job in snapshot.jobs if not job.gpus]
        self.given: dict[str, Size] = {}  # to jobs of the queue, by uid
        self.exploring: set[str] = set()

    def decision(self) -> Decision:
        """Serve the pool, the queue, and then the jobs that can use remaining GPUs."""
        for job in self.unplaceable:  # those that run have no other nodes
            self._serve(job)
        served = self._serve_pool()
        for job in self.known:
            self._serve(job)
        self._continue_turns()
        for job in self.unknown:
            self._serve_up_to_requested(job)
        if self.parameters.leftovers != "none":
            self._give_leftovers(ScalingControl.between)
            if self.parameters.leftovers == "faster":
                self._give_leftovers(ScalingControl.beyond)
            self._grow_pool()
        if self.parameters.explore:
            self._explore()
        for job in self.without_gpus:
            if job.uid not in self.capacity_pool.assigned and (
                holds_unassignable_nodes(job, self.nodes) or self._runs(job)
            ):
                self.capacity_pool.assign(job, GpuAmount(0, CPU_ONLY))
        reasons = [(job, POOL) for job in self.unknown if job.uid in served]
        length = len(self.known)
        for i, job in enumerate(self.known, start=1):
            reasons.append((job, Reason.of_position(Code.FAIR_FINISH_POSITION, i, length)))
        reasons += [(job, POOL) for job in self.unknown if job.uid not in served]
        reasons += [(job, NO_NODE_AGAIN) for job in self.unplaceable]
        reasons += [(job, NO_GPUS) for job in self.without_gpus]
        return self._answer(reasons)

    # -- the queue ------------------------------------------------------------------------------------------------

    def _serve(self, job: Job) -> None:
        """Give a job the GPU type and size at which it is fastest; among equals, its current type."""
        capacity_pool = self.capacity_pool
        if job.uid in capacity_pool.assigned or (
            capacity_pool.exhausted and not holds_unassignable_nodes(job, self.nodes)
        ):
            return
        scaling = self._scaling(job)
        options = [] if (kept := self._kept(job)) is None else [kept]
        for gpu_type in scaling.shape.widest:
            options += islice((one for one in scaling.sizes(gpu_type) if capacity_pool.fits(job, one.amount)), 1)
        if options:
            best = max(options, key=lambda one: (one.speed or 0.0, *self._type_preference(job, one.gpu_type)))
            held = self._held(job, best)
            if held is not None and not self._is_worth_restart(job, held, best):
                best = self._without_growth(job, held, best)
            self.given[job.uid] = best
            capacity_pool.assign(job, best.amount)

    def _without_growth(self, job: Job, held: Size, best: Size) -> Size:
        """The size of a running job that does not restart for its best one.

        The job yields what it holds beyond a size of scaling control, unless it would then restart for more again.
        Leftovers may give that back.
        """
        size = next((one for one in self._scaling(job).sizes(held.gpu_type) if one.gpus <= held.gpus), best)
        between = held.gpu_type == best.gpu_type and size.gpus < held.gpus < best.gpus
        return held if between and self._is_worth_restart(job, size, best) else size

    def _scaling(self, job: Job) -> ScalingControl:
        return ScalingControl(job, self.capacity_pool.shape(job), self.parameters.alpha)

    def _left(self, job: Job, gpu_type: str) -> int:
        """Further GPUs of a type that are left for the job."""
        return self.capacity_pool.unassigned_gpus(self.capacity_pool.node_set(job, gpu_type))

    def _type_preference(self, job: Job, gpu_type: str) -> tuple[bool, int, int, str]:
        """Sort key of a GPU type, larger is better: current or last type, the job's own order, most GPUs left."""
        held = job.placement or job.released or job.last_placement
        order = -job.gpu_types.index(gpu_type) if gpu_type in job.gpu_types else 0
        return held is not None and held.gpu_type == gpu_type, order, self._left(job, gpu_type), gpu_type

    def _preferred_types(self, job: Job) -> list[str]:
        """The GPU types that suit the job, the preferred one first."""
        types = self.capacity_pool.shape(job).widest
        return sorted(types, key=lambda gpu_type: self._type_preference(job, gpu_type), reverse=True)

    def _kept(self, job: Job) -> Size | None:
        """The job's present allocation where its nodes accept no jobs any more; None for other jobs."""
        place = job.placement
        if place is None or not holds_unassignable_nodes(job, self.nodes):
            return None
        gpu_type = place.gpu_type or CPU_ONLY
        if not self.capacity_pool.fits(job, GpuAmount(place.gpus, gpu_type)):
            return None
        known = None if job.speed is None else job.speed.steps_per_second(gpu_type, place.spread)
        return Size(gpu_type, place.gpus, job.steps_per_second if known is None else known)

    def _held(self, job: Job, size: Size | None = None) -> Size | None:
        """The GPUs on which a job runs, with its speed there, where it can continue on them.

        None for other jobs, and where it runs on as many GPUs of that type as ``size``.
        """
        place = job.placement
        if place is None or place.gpu_type is None or job.status is not Status.RUNNING or is_vacating(job):
            return None
        if size is not None and size.amount == GpuAmount(place.gpus, place.gpu_type):
            return None
        if not self.capacity_pool.fits(job, GpuAmount(place.gpus, place.gpu_type)):
            return None
        known = None if job.speed is None else job.speed.steps_per_second(place.gpu_type, place.spread)
        speed = job.steps_per_second if known is None else known
        return None if speed == 0 else Size(place.gpu_type, place.gpus, speed)

    def _is_worth_restart(self, job: Job, held: Size, size: Size) -> bool:
        """Whether a job ends earlier if it restarts for a size than if it continues on what it holds.

        A job whose remaining time is not known is expected to run for as long again as it has run so far.
        """
        remaining = job.ran_seconds
        if job.remaining_steps is not None and held.speed:
            remaining = job.remaining_steps / held.speed
        elif job.uid in self.queue.remaining:
            remaining = self.queue.remaining[job.uid].work / held.gpus
        ratio = size.speed / held.speed if size.speed and held.speed else size.gpus / held.gpus
        restart = self._restart_seconds(job)
        return restart == 0 or restart + remaining / ratio < remaining

    def _grown(self, job: Job, given: Size, more: Size) -> Size | None:
        """The size of a job with leftovers, where it could have ``more``; None if it is to have what it was given.

        A running job continues on what it holds rather than grow by less than ``GROWTH``, or for no gain.
        """
        held = self._held(job)
        if held is None or held.gpu_type != given.gpu_type or not given.gpus <= held.gpus < more.gpus:
            return more
        grows = more.gpus >= GROWTH * held.gpus or not self._restart_seconds(job)
        if grows and self._is_worth_restart(job, held, more):
            return more
        return held if held.gpus > given.gpus else None

    def _restart_seconds(self, job: Job) -> float:
        return self.parameters.restart_seconds if job.restart_seconds is None else job.restart_seconds

    def _give_leftovers(self, grown: Callable[[ScalingControl, Size, int], Size | None]) -> None:
        for job in self.known:
            given = self.given.get(job.uid)
            if given is not None and (left := self._left(job, given.gpu_type)) > 0:
                scaling = self._scaling(job)
                more = grown(scaling, given, given.gpus + left)
                more = None if more is None else self._grown(job, given, more)
                if more is not None and self.capacity_pool.assign(job, more.amount):
                    self.given[job.uid] = more

    def _explore(self) -> None:
        """Grow jobs to sizes without a known speed: jobs of the queue, and those whose profiling runs precede it."""
        tried = [job for job in self.unknown if job.profiled and job.remaining_steps is not None]
        for job in [job for job in (*self.known, *tried) if job.learns_speed and job.preempt is Preempt.CHECKPOINT]:
            amount = self._growable(job)
            if amount is not None and (left := self._left(job, amount.gpu_type)) > 0:
                scaling = self._scaling(job)
                more = scaling.unknown(amount.gpu_type, amount.gpus + left)
                if more is not None and more.gpus > amount.gpus and self.capacity_pool.assign(job, more.amount):
                    self.exploring.add(job.uid)

    def _growable(self, job: Job) -> GpuAmount | None:
        """What a job was given, where that may become more; None for other jobs."""
        amount = self.capacity_pool.assigned.get(job.uid)
        return None if is_non_preemptible(job) or holds_unassignable_nodes(job, self.nodes) else amount

    # -- the pool -------------------------------------------------------------------------------------------------

    def _serve_pool(self) -> set[str]:
        """Give jobs of unknown demand their part of the GPUs, in order; return the uids of the jobs that are served.

        Jobs that have run for less than ``turn_seconds`` are served with what they hold, then jobs with a deficit
        against fair sharing. What remains of the pool's part goes to jobs of the first kind, if all of them keep what
        they hold.
        """
        assigned = self.capacity_pool.assigned
        limits = PoolLimits(self.capacity_pool, self.node_sets, self.known, self.unknown)
        in_turn = [job for job in self.unknown if job.uid not in assigned and self._began_recently(job)]
        for job in in_turn:
            held = self._held(job)
            fits = held is not None and held.gpus <= min(job.gpus, limits.most(job, held.gpu_type))
            if held is not None and fits and self.capacity_pool.assign(job, held.amount):
                limits.charge(job)
        shrinking = [job for job in in_turn if job.uid not in assigned]
        due = [job for job in self.unknown if not self._began_recently(job) and self.queue.deficit(job) >= 0]
        for job in (*shrinking, *due):
            if job.uid not in assigned and self._serve_up_to_requested(job, limits):
                limits.charge(job)
        for job in () if shrinking else in_turn:
            limits.credit(job)
            self._serve_up_to_requested(job, limits)
            limits.charge(job)
        return {job.uid for job in self.unknown if job.uid in assigned}

    def _continue_turns(self) -> None:
        """Let jobs of the pool that have run for less than ``turn_seconds`` keep what they hold of their request."""
        for job in self.unknown:
            held = self._held_in_turn(job)
            if held is not None and self._assigned_gpus(job) < held.gpus <= job.gpus:
                self.capacity_pool.assign(job, held.amount)

    def _grow_pool(self) -> None:
        """Give remaining GPUs to the jobs of the pool, in order, up to the sizes that scaling control allows.

        Jobs that have run for less than ``turn_seconds`` come first, with what they hold.
        """
        for job in self.unknown:
            held = self._held_in_turn(job)
            if held is not None and held.gpus > self._assigned_gpus(job):
                allowed = next(self._larger_sizes(job), None)
                if allowed is not None and allowed.gpu_type == held.gpu_type and allowed.gpus >= held.gpus:
                    self.capacity_pool.assign(job, held.amount)
        for job in self.unknown:
            size = next((one for one in self._larger_sizes(job) if self.capacity_pool.fits(job, one.amount)), None)
            if size is not None:
                more = self._grown(job, Size(size.gpu_type, self._assigned_gpus(job), None), size)
                if more is not None:
                    self.capacity_pool.assign(job, more.amount)

    def _held_in_turn(self, job: Job) -> Size | None:
        """What a job that has run for less than ``turn_seconds`` holds; None for other jobs."""
        return self._held(job) if self._began_recently(job) else None

    def _assigned_gpus(self, job: Job) -> int:
        amount = self.capacity_pool.assigned.get(job.uid)
        return 0 if amount is None else amount.gpus

    def _larger_sizes(self, job: Job) -> Iterator[Size]:
        """The sizes with more GPUs than a job of the pool was given, most GPUs first; none where no GPUs are left."""
        amount = self._growable(job)
        if amount is not None and self._left(job, amount.gpu_type) > 0:
            sizes = self._scaling(job).sizes(amount.gpu_type)
            yield from takewhile(lambda one: one.gpus > amount.gpus, sizes)

    def _began_recently(self, job: Job) -> bool:
        """Whether a job runs, and has for less than ``turn_seconds``."""
        began = job.run_started
        return job.active and (began is None or self.now < began + self.parameters.turn_seconds)

    def _serve_up_to_requested(self, job: Job, limits: PoolLimits | None = None) -> bool:
        """Give a job up to its requested GPUs within the limits, if these are more than it has; return whether so."""
        capacity_pool = self.capacity_pool
        amount = capacity_pool.assigned.get(job.uid)
        gpu_type, gpus = (None, 0) if amount is None else (amount.gpu_type, amount.gpus)
        if amount is not None and (is_non_preemptible(job) or gpus >= job.gpus):
            return False
        scaling = self._scaling(job)
        types = [other for other in self._preferred_types(job) if gpu_type in (None, other)]
        options = [one for other in types for one in scaling.up_to_requested(other)]
        if gpu_type is None and (kept := self._kept(job)) is not None:
            options.insert(0, kept)
        held = self._held(job)
        if held is not None and held.gpus <= job.gpus and gpu_type in (None, held.gpu_type):
            options.insert(0, held)
        most = {one.gpu_type: job.gpus if limits is None else limits.most(job, one.gpu_type) for one in options}
        found = [
            one for one in options if gpus < one.gpus <= most[one.gpu_type] and capacity_pool.fits(job, one.amount)
        ]
        if held is not None and held in options:
            found = [one for one in found if one.gpus <= held.gpus or self._is_worth_restart(job, held, one)]
        if found:
            best = max(found, key=lambda one: one.gpus)  # the first of them
            capacity_pool.assign(job, best.amount)
        return bool(found)

    # -- the decision ---------------------------------------------------------------------------------------------

    def _answer(self, reasons: Sequence[tuple[Job, Reason]]) -> Decision:
        grants, fallback, waits = [], [], {}
        for job, reason in reasons:
            amount = self.capacity_pool.assigned.get(job.uid)
            if amount is not None:
                told = reason.and_also(EXPLORES) if job.uid in self.exploring else reason
                grants.append(self._grant(job, amount, told))
            elif job.gpus and not self.node_sets[job.uid]:
                waits[job.uid] = _exceeds(job)
            elif (most := self._runs(job)) is not None:
                least = min(job.min_gpus, most.gpus)
                others = self._other_types(job, most.gpu_type)
                grant = Grant(job.uid, most.gpus, reason, least, most.gpu_type or None, other_types=others)
                fallback.append(grant)
            else:
                waits[job.uid] = reason.and_also(_exceeds(job))
        return Decision(tuple(grants), tuple(fallback), waits)

    def _grant(self, job: Job, amount: GpuAmount, reason: Reason) -> Grant:
        """The grant of a job's GPUs: rather fewer GPUs than more nodes, because the consolidated speed is known."""
        gpus, gpu_type = amount
        others = self._other_types(job, gpu_type)
        if is_non_preemptible(job) or gpus <= job.min_gpus:
            return Grant(job.uid, gpus, reason, gpus, gpu_type or None, other_types=others)
        spread = self.capacity_pool.shape(job).consolidated(gpu_type, gpus)
        held = len(job.placement.nodes) if job.placement is not None else 0
        most = max(len(spread), held) if spread is not None else None
        return Grant(job.uid, gpus, reason, job.min_gpus, gpu_type or None, max_nodes=most, other_types=others)

    def _other_types(self, job: Job, gpu_type: str) -> tuple[str, ...]:
        """The other GPU types on which the job could run on an empty cluster, preferred ones first."""
        types = [one for one in self.capacity_pool.shape(job).widest if one != gpu_type]
        if not types or not job.gpus or is_non_preemptible(job):
            return ()
        scaling = self._scaling(job)
        return tuple([one for one in self._preferred_types(job) if one in types and any(scaling.up_to_requested(one))])

    def _runs(self, job: Job) -> Size | None:
        """The first size up to the requested GPUs at which the job could run on an empty cluster; None for none."""
        if not job.gpus:
            fits = self.capacity_pool.shape(job).consolidated(CPU_ONLY, 0) is not None
            return Size(CPU_ONLY, 0, None) if fits else None
        scaling = self._scaling(job)
        return next((size for t in self._preferred_types(job) for size in scaling.up_to_requested(t)), None)


def _exceeds(job: Job) -> Reason:
    nodes, cpus = (None, None) if job.gpus else (job.nodes or 1, job.cpus_per_unit)
    return Reason.of(Code.EXCEEDS_NODES, gpus=job.min_gpus, gpu_types=job.gpu_types, nodes=nodes, cpus=cpus)
