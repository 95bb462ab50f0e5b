"""Two jobs on one GPU: when they may start, who must leave, and whose turn it is. Pure.

Slurm chooses the GPU itself (``metasched/seats.py``). So two jobs that are to share start together, on a node where no
GPU is half free; or one joins the other where Slurm would put it on that very GPU. Where Slurm would not, somebody has
to restart. A job whose partner leaves or changes keeps what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from metasched.core.model import Action, Job, Placement, Preempt, Resume, Snapshot, Status, Suspend
from metasched.core.reasons import Code, Reason
from metasched.scheduling.gpu_shards import GpuShards


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """Who should share GPUs, and who does.

    Attributes:
        partners: by uid, the other job that should be on the same GPUs, for both of each pair.
        time_slicing: the jobs of pairs of which only one should run at a time.
        seats: who sits where; None where Slurm gives away whole GPUs only.
    """

    partners: Mapping[str, str] = field(default_factory=dict)
    time_slicing: frozenset[str] = frozenset()
    seats: GpuShards | None = None


class GpuSharingPlan:
    """What sharing asks of one poll's plan.

    Args:
        snapshot: what is.
        targets: where each job that should run belongs, most important first.
        shares: who should share, and who does.
        slice_seconds: how long a turn lasts where two jobs take turns.

    Attributes:
        leave: by uid, why a job must leave though its place is right.
        turns: what those who take turns are to do now.
        resting: the suspended jobs of those who take turns.
    """

    def __init__(
        self, snapshot: Snapshot, targets: Mapping[str, Placement], shares: GpuSharing, slice_seconds: float
    ) -> None:
        self._snapshot = snapshot
        self._targets = targets
        self._shares = shares
        self._slice_seconds = slice_seconds
        self._rank = {uid: rank for rank, uid in enumerate(targets)}
        self._given: set[str] = set()  # nodes on which a pair starts in this poll
        self._pairs: set[frozenset[str]] = set()  # that do
        self.leave: dict[str, Reason] = {}
        self.turns: dict[str, Action] = {}
        self.resting: set[str] = set()
        if shares.seats is not None:
            self.leave.update(self._who_leaves(shares.seats))
            self.turns.update((action.uid, action) for action in self._turns(shares.seats))

    def partner(self, job: Job) -> Job | None:
        """The job that it is to share its GPUs with, if both are to run, and still live."""
        other = self._snapshot.job.get(self._shares.partners.get(job.uid, ""))
        if other is None or self._shares.seats is None or (other.blocked is not None and not other.active):
            return None
        return other if self._targets.get(job.uid) == self._targets.get(other.uid) is not None else None

    def may_start(self, job: Job, place: Placement) -> bool:
        """Whether Slurm would put it on the right GPU if it were released now."""
        other, seats = self.partner(job), self._shares.seats
        if seats is None:
            return True
        if other is None:
            return not any(self._taken_for_free(seats, job, place))
        pair = frozenset((job.uid, other.uid))
        if pair in self._pairs:
            return True
        nodes = set(place.nodes)
        if nodes & (self._given | seats.unsettled) or any(self._moves(there, nodes, pair) for there in self._parts()):
            return False
        if other.active:
            ready = self._sits(other, place) and self._joins(seats, other.uid)
        else:
            ready = other.status in (Status.HELD, Status.QUEUED) and self._land_alone(seats, nodes)
        if ready:
            self._given |= nodes
            self._pairs.add(pair)
        return ready

    def _parts(self) -> Iterator[Job]:
        return (job for job in self._snapshot.jobs if job.half_gpus)

    @staticmethod
    def _moves(job: Job, nodes: set[str], pair: frozenset[str]) -> bool:
        """Whether a job that has a part of a GPU comes to one of the nodes, or leaves it."""
        if job.status is Status.QUEUED:
            return job.uid not in pair and job.released is not None and not nodes.isdisjoint(job.released.nodes)
        leaves = job.status is Status.STOPPING or job.stop_requested is not None
        return leaves and job.placement is not None and not nodes.isdisjoint(job.placement.nodes)

    def _sits(self, job: Job, place: Placement) -> bool:
        """Whether it has its part of the place, and stays."""
        up = job.status in (Status.RUNNING, Status.SUSPENDED) and job.stop_requested is None
        return up and job.half_gpus and job.placement == place and job.uid not in self.leave

    def _joins(self, seats: GpuShards, uid: str) -> bool:
        """Whether a job that is released now lands beside that one: its GPU is the first with room, and stays so.

        A GPU before it that becomes free in the meantime would be taken instead.
        """
        held = seats.held.get(uid, {})
        leaving = {
            node
            for job in self._snapshot.jobs
            if job.placement is not None and job.stop_requested is not None
            for node in job.placement.nodes
        }
        return bool(held) and all(seats.first(node) == gpu and node not in leaving for node, gpu in held.items())

    @staticmethod
    def _land_alone(seats: GpuShards, nodes: set[str]) -> bool:
        """Whether the next part that is given away on each of the nodes is one of a GPU that nobody has."""
        return all((gpu := seats.first(node)) is None or seats.is_empty(node, gpu) for node in nodes)

    # -- who must leave ---------------------------------------------------------------------------------------------

    def _stays(self, uid: str) -> bool:
        """Whether a job runs where it belongs, could be stopped, and has not been asked to."""
        job = self._snapshot.job.get(uid)
        if job is None or job.placement is None or job.placement != self._targets.get(uid):
            return False
        up = job.status is Status.RUNNING or (job.status is Status.SUSPENDED and job.suspended_by_us)
        return up and job.stop_requested is None and job.preempt is Preempt.CHECKPOINT

    def _last(self, *uids: str) -> str:
        """The least important."""
        return max(uids, key=lambda uid: (self._rank.get(uid, len(self._rank)), uid))

    def _who_leaves(self, seats: GpuShards) -> Iterator[tuple[str, Reason]]:
        jobs = self._snapshot.job
        yield from ((uid, Reason(Code.GPU_GIVEN_AWAY)) for uid in seats.doubled if self._stays(uid))
        for uid, other in seats.couples.items():
            if uid < other and self._stays(uid) and self._stays(other):
                yield from self._parted(jobs[uid], jobs[other])
        for uid in self._targets:
            job = jobs.get(uid)
            other_job = None if job is None else self.partner(job)
            if job is not None and job.status is Status.HELD and other_job is None:
                yield from self._before_whole(seats, job)
            if job is None or other_job is None:
                continue
            if self._stays(uid):
                yield from self._unfit(seats, job, other_job)
            elif job.status is Status.HELD and other_job.status is Status.HELD and job.uid < other_job.uid:
                yield from self._in_the_way(seats, job)

    def _parted(self, one: Job, other: Job) -> Iterator[tuple[str, Reason]]:
        """Two on one GPU that are not to be: who has another partner to come stays, if only one has."""
        if self.partner(one) is other:
            return
        lonely = [job.uid for job in (one, other) if self.partner(job) is None]
        goes = lonely[0] if len(lonely) == 1 else self._last(one.uid, other.uid)
        stays = other if goes == one.uid else one
        yield goes, Reason.of(Code.CO_RUNNER_CHANGED, co_runner=stays.slurm_job_id)

    def _unfit(self, seats: GpuShards, job: Job, other: Job) -> Iterator[tuple[str, Reason]]:
        """A job that runs where its pair is to be, if the other cannot come to it."""
        if not job.half_gpus:
            yield job.uid, Reason.of(Code.HOLDS_WHOLE_GPU, co_runner=other.slurm_job_id)
        elif self._stays(other.uid):
            if (
                other.half_gpus
                and seats.couples.get(job.uid) != other.uid
                and self._last(job.uid, other.uid) == job.uid
            ):
                yield job.uid, Reason.of(Code.ON_OTHER_GPU, co_runner=other.slurm_job_id)
        elif not other.active and job.placement is not None and seats.unsettled.isdisjoint(job.placement.nodes):
            for node, gpu in seats.held.get(job.uid, {}).items():
                lower = seats.first(node)
                strange = seats.free[node][gpu] < seats.half and len(seats.on(node, gpu)) == 1
                if (lower is not None and lower < gpu) or strange:
                    yield job.uid, Reason.of(Code.CO_RUNNER_CANNOT_JOIN, co_runner=other.slurm_job_id)
                    return

    def _in_the_way(self, seats: GpuShards, job: Job) -> Iterator[tuple[str, Reason]]:
        """Who has half a GPU on which Slurm would put one of a new pair."""
        for node in self._targets[job.uid].nodes:
            gpu = seats.first(node)
            if node in seats.unsettled or gpu is None or seats.is_empty(node, gpu):
                continue
            for uid in seats.on(node, gpu):
                if self._stays(uid) and self.partner(self._snapshot.job[uid]) is None:
                    yield uid, Reason.of(Code.HALF_GPU_TAKEN_FOR_PAIR, job=job.slurm_job_id)

    @staticmethod
    def _taken_for_free(seats: GpuShards, job: Job, place: Placement) -> Iterator[tuple[str, int]]:
        """The half free GPUs that Slurm would give to a job which asks for whole ones, if it forgets the other half."""
        if job.gpus > 0 and job.whole_gpus and seats.forgets:
            for node, gpus in place.node_gpus:
                for gpu in seats.next_whole(node, gpus):
                    if not seats.is_empty(node, gpu):
                        yield node, gpu

    def _before_whole(self, seats: GpuShards, job: Job) -> Iterator[tuple[str, Reason]]:
        """Who has half a GPU that Slurm would give to a job which asks for whole ones."""
        for node, gpu in self._taken_for_free(seats, job, self._targets[job.uid]):
            for uid in seats.on(node, gpu):
                if self._stays(uid) and self.partner(self._snapshot.job[uid]) is None:
                    yield uid, Reason.of(Code.HALF_GPU_TAKEN_FOR_WHOLE, job=job.slurm_job_id)

    # -- turns -------------------------------------------------------------------------------------------------------

    def _turns(self, seats: GpuShards) -> Iterator[Action]:
        jobs = self._snapshot.job
        for uid, other_uid in seats.couples.items():
            if uid > other_uid or not {uid, other_uid} <= self._shares.time_slicing:
                continue
            leaves = uid in self.leave or other_uid in self.leave
            if leaves or not (self._stays(uid) and self._stays(other_uid)):
                continue
            one, other = jobs[uid], jobs[other_uid]
            if self.partner(one) is other:
                yield from self._turn(one, other)

    def _turn(self, one: Job, other: Job) -> Iterator[Action]:
        """What two that take turns are to do now, so that exactly one of them runs."""
        rests = [job for job in (one, other) if job.status is Status.SUSPENDED]
        self.resting.update(job.uid for job in rests)
        if not rests:
            had_more = max((one, other), key=lambda job: (job.attained_service, self._rank.get(job.uid, 0)))
            had_less = other if had_more is one else one
            yield Suspend(had_more.uid, Reason.of(Code.TIME_SLICING_BEGINS, co_runner=had_less.slurm_job_id))
            return
        waits = min(rests, key=lambda job: job.suspended_at or 0.0)
        runs = other if waits is one else one
        if len(rests) > 1:
            yield Resume(waits.uid, Reason.of(Code.BOTH_SUSPENDED, co_runner=runs.slurm_job_id))
        elif self._snapshot.now - (waits.suspended_at or 0.0) >= self._slice_seconds:
            yield Suspend(runs.uid, Reason.of(Code.SLICE_ENDS, co_runner=waits.slurm_job_id))
            yield Resume(waits.uid, Reason.of(Code.SLICE_BEGINS, co_runner=runs.slurm_job_id))
