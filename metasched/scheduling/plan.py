"""The plan: the actions that are missing now between the observed jobs and their targets. Pure.

The plan is a function of what is observed, not of earlier actions. It is made at every poll, and each of its actions
may be lost or done twice. Successors are queued on their GPUs before the jobs that hold these GPUs are stopped: Slurm
starts a queued job within a tenth of a second of its GPUs becoming free, and needs up to a second otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from metasched.core.model import (
    Action,
    End,
    Hold,
    HoldJob,
    Job,
    Placement,
    Preempt,
    Requeue,
    Resume,
    Snapshot,
    Start,
    Status,
    Stop,
    Suspend,
)
from metasched.core.reasons import Code, Fact, Reason
from metasched.scheduling.gpu_sharing import GpuSharing, GpuSharingPlan

# Withdrawn jobs leave Slurm's queue before others enter it. Successors are queued before Suspend, End, Stop and Requeue
# free resources for them. Resume is last: a job may need what a Suspend of the same plan frees.
ACTION_ORDER: tuple[type[Action], ...] = (HoldJob, Start, Suspend, End, Stop, Requeue, Resume)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the plan waits for runs and for Slurm, in seconds.

    Attributes:
        grace_seconds: time for a run to answer a request to stop.
        start_limit_seconds: longest time from a job's release to its start; then the job is held again, unless a job
            is still vacating its nodes.
        slice_seconds: length of a time slice of two jobs on the same GPUs.
    """

    grace_seconds: float
    start_limit_seconds: float
    slice_seconds: float = 60.0


NO_SHARING = GpuSharing()
NO_ENDS: Mapping[str, Reason] = MappingProxyType({})
NOT_ITS_TURN = Reason(Code.NOT_ITS_TURN)
MAX_NAMED_SUCCESSORS = 3  # in the reason of a preemption


def plan(  # noqa: PLR0917  what is observed, and what was decided
    snapshot: Snapshot,
    targets: Mapping[str, Placement],
    timeouts: Timeouts,
    sharing: GpuSharing = NO_SHARING,
    unsent: Collection[str] = (),
    ends: Mapping[str, Reason] = NO_ENDS,
) -> tuple[Action, ...]:
    """The actions that bring the cluster from the snapshot towards the targets, in the order in which to do them.

    Args:
        snapshot: jobs and nodes as observed.
        targets: by uid, the placement that each job should have now, most important first; other jobs should not run.
        timeouts: how long to wait for runs and for Slurm.
        sharing: the pairs that should share GPUs, and the shards that jobs hold.
        unsent: uids of jobs whose request to stop or to finish may not have reached the trainer.
        ends: by uid, why jobs are to end for good, whatever their targets.
    """
    targets = {uid: target for uid, target in targets.items() if uid not in ends} if ends else targets
    planner = _Planner(snapshot, targets, timeouts, sharing, unsent, ends)
    rank, last = planner.rank, len(targets)
    concerned = [job for job in snapshot.jobs if not _stays_held(job) or job.uid in rank or job.uid in ends]
    jobs = sorted(concerned, key=lambda job: (rank.get(job.uid, last), job.uid))
    actions = [action for job in jobs if (action := planner.missing_action(job)) is not None]
    actions.sort(key=lambda action: ACTION_ORDER.index(type(action)))
    return tuple(actions)


def _stays_held(job: Job) -> bool:
    """Whether a job without a target needs no action, as most jobs of a long queue."""
    return job.status is Status.HELD and job.hold is not Hold.USER


class _Planner:
    """One call of ``plan``."""

    def __init__(  # noqa: PLR0917  as above
        self,
        snapshot: Snapshot,
        targets: Mapping[str, Placement],
        timeouts: Timeouts,
        sharing: GpuSharing,
        unsent: Collection[str],
        ends: Mapping[str, Reason],
    ) -> None:
        self.unsent = unsent
        self.ends = ends
        self.sharing = GpuSharingPlan(snapshot, targets, sharing, timeouts.slice_seconds)
        self.now = snapshot.now
        self.targets = targets
        self.timeouts = timeouts
        self.busy_cpus: dict[str, int] = {}
        self.vacating: set[str] = set()
        self.successors: dict[str, list[Job]] = {}
        self.free_gpus = {node.name: node.gpus for node in snapshot.nodes}  # that nobody holds, less those given away
        self.rank = {uid: place for place, uid in enumerate(targets)}
        self.cpus = {node.name: node.cpus for node in snapshot.nodes}
        for job in snapshot.jobs:
            place, target = job.placement, targets.get(job.uid)
            if place is not None or target is not None:
                self._count(job, place, target)

    def _count(self, job: Job, place: Placement | None, target: Placement | None) -> None:
        """Count what a job holds, and what it is to get."""
        stays = _is_same(place, target)
        held = () if place is None else place.node_gpus
        if place is not None and job.status in (Status.RUNNING, Status.STOPPING):
            self._occupy(job, place)
            if job.status is Status.STOPPING or not stays:
                self.vacating.update(place.nodes)
        for name, gpus in held:
            self.free_gpus[name] = self.free_gpus.get(name, 0) - gpus
        if target is not None and not stays:
            before = dict(held)
            for node in target.nodes:
                self.successors.setdefault(node, []).append(job)
            for name, gpus in target.node_gpus:
                self.free_gpus[name] = self.free_gpus.get(name, 0) - max(0, gpus - before.get(name, 0))

    def missing_action(self, job: Job) -> Action | None:
        """The action that is missing for one job now; None for none."""
        target = self.targets.get(job.uid)
        if (why := self.ends.get(job.uid)) is not None:
            return self._ended(job, why)
        match job.status:
            case Status.HELD:
                return self._held(job, target)
            case Status.QUEUED:
                return self._queued(job, target)
            case Status.RUNNING:
                return self._running(job, target)
            case Status.SUSPENDED:
                return self._suspended(job, target)
            case _:
                return None

    def _held(self, job: Job, target: Placement | None) -> Action | None:
        if target is not None and job.blocked is None and self.sharing.try_start(job, target):
            partner = self.sharing.partner(job)
            co_runner = None if partner is None else partner.slurm_job_id
            reason = Reason.of(Code.STARTS, **_facts(target), co_runner=co_runner)
            return Start(job.uid, reason, target, half_gpus=partner is not None)
        if job.hold is Hold.USER:
            return HoldJob(job.uid, Reason(Code.OWNER_COULD_RELEASE))
        return None

    def _queued(self, job: Job, target: Placement | None) -> Action | None:
        if job.blocked is not None:
            return HoldJob(job.uid, job.blocked)
        if target is None:
            return HoldJob(job.uid, NOT_ITS_TURN)
        if job.released is None:
            return HoldJob(job.uid, Reason(Code.RELEASED_BY_OTHERS))
        if (changed := self._released_otherwise(job, target)) is not None:
            return HoldJob(job.uid, changed)
        waited = self.now - job.released_at if job.released_at is not None else 0.0
        if waited > self.timeouts.start_limit_seconds and self.vacating.isdisjoint(target.nodes):
            return HoldJob(job.uid, Reason.of(Code.NOT_STARTED_IN_TIME, seconds=self.timeouts.start_limit_seconds))
        return None

    def _released_otherwise(self, job: Job, target: Placement) -> Reason | None:
        """Why a queued job must be released again, for another placement or amount; None where nothing changed."""
        if job.released != target:
            return Reason.of(Code.PLACE_CHANGED, **_facts(target))
        if job.half_gpus != (self.sharing.partner(job) is not None):
            return Reason(Code.NOW_ALONE if job.half_gpus else Code.NOW_SHARES)
        return None

    def _running(self, job: Job, target: Placement | None) -> Action | None:
        if job.preempt is Preempt.SUSPEND and job.gpus == 0:
            return Suspend(job.uid, self._why_stopped(job, target)) if target is None else None
        if job.preempt is not Preempt.CHECKPOINT:
            return None  # it runs to its end (preempt=no), or suspension would free no GPUs
        stays = _is_same(job.placement, target)
        stop_reason = self.sharing.restarts.get(job.uid) if stays else self._why_stopped(job, target)
        if job.stop_requested is not None:
            # A request to stop cannot be withdrawn: the trainer may be exiting already. The job starts anew afterwards.
            deadline = job.stop_requested + self.timeouts.grace_seconds
            if self.now > deadline:
                return Requeue(job.uid, Reason.of(Code.STOP_UNANSWERED, seconds=self.timeouts.grace_seconds))
            return Stop(job.uid, stop_reason or Reason(Code.WAS_TO_LEAVE), deadline) if job.uid in self.unsent else None
        if stop_reason is not None:
            got = tuple(successor.uid for successor in self._successors_of(job))
            return Stop(job.uid, stop_reason, self.now + self.timeouts.grace_seconds, got)
        return self.sharing.slice_actions.get(job.uid)

    def _ended(self, job: Job, why: Reason) -> Action | None:
        """The action for a job that is to end for good.

        A running trainer that was asked to stop before is not asked again: its job is cancelled once it is pending, or
        once the grace time is over.
        """
        if job.status in (Status.HELD, Status.QUEUED):
            return End(job.uid, why, None)
        if job.status is Status.RUNNING:
            since = job.stop_requested
            deadline = (self.now if since is None else since) + self.timeouts.grace_seconds
            if since is None or (self.now <= deadline and job.uid in self.unsent):
                return End(job.uid, why, deadline)
            return End(job.uid, why, None) if self.now > deadline else None
        if job.status is Status.SUSPENDED and job.suspended_by_us:
            # A suspended trainer cannot save. With GPUs it waits for its time slice, so it may be resumed at once.
            return Resume(job.uid, why) if job.gpus > 0 else End(job.uid, why, None)
        return None

    def _suspended(self, job: Job, target: Placement | None) -> Action | None:
        if not job.suspended_by_us or job.placement is None:
            return None
        if job.gpus > 0:
            # The job waits for its time slice. A suspended job cannot be stopped, so it is resumed where slicing ends.
            action = self.sharing.slice_actions.get(job.uid)
            waits = action is not None or job.uid in self.sharing.paused
            return action if waits else Resume(job.uid, Reason(Code.TIME_SLICING_ENDS))
        if job.placement != target:
            return None
        needs = {node: self.busy_cpus.get(node, 0) + job.node_cpus(gpus) for node, gpus in target.node_gpus}
        if any(need > self.cpus.get(node, 0) for node, need in needs.items()):
            return None
        self._occupy(job, target)
        return Resume(job.uid, Reason(Code.CPUS_FREE))

    def _occupy(self, job: Job, place: Placement) -> None:
        for node, gpus in place.node_gpus:
            self.busy_cpus[node] = self.busy_cpus.get(node, 0) + job.node_cpus(gpus)

    def _why_stopped(self, job: Job, target: Placement | None) -> Reason:
        """Why a job must give up its allocation."""
        if target is not None:
            return Reason.of(Code.MOVES, **_facts(target))
        successors = sorted(successor.slurm_job_id for successor in self._successors_of(job))
        if not successors:
            return NOT_ITS_TURN
        named = tuple(successors[:MAX_NAMED_SUCCESSORS])
        return Reason.of(Code.PREEMPTED_FOR, jobs=named, more=len(successors) - len(named))

    def _successors_of(self, job: Job) -> list[Job]:
        """The jobs that get what a job gives up, most important first.

        On a node with enough free GPUs for all newcomers, nobody needs the job's GPUs, unless all its nodes are such.
        """
        nodes = job.placement.nodes if job.placement is not None else ()
        taken = [node for node in nodes if self.free_gpus.get(node, 0) < 0] or nodes
        found = {one.uid: one for node in taken for one in self.successors.get(node, ()) if one.uid != job.uid}
        return sorted(found.values(), key=lambda one: self.rank[one.uid])


def _is_same(one: Placement | None, other: Placement | None) -> bool:
    """Whether two placements are equal; of thousands that are compared in a poll, most are the same object."""
    return one is other or one == other


def _facts(place: Placement) -> dict[str, Fact]:
    """A placement as facts of a reason."""
    return {"gpus": place.gpus, "gpu_type": place.gpu_type, "nodes": place.nodes, "uneven": place.uneven}
