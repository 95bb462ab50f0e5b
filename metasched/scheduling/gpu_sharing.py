"""GPU sharing: when the two jobs of a pair may start, which jobs must restart, and whose time slice it is. Pure.

Slurm chooses the GPU itself (``gpu_shards.py``), so a pair gets onto one GPU in one of two ways:

    both jobs wait: start them in one poll, where the next half that Slurm assigns is of an empty GPU
    one job runs on half GPUs: start the other where the next half is the other half of those GPUs
    neither is possible: restart the job that holds the wrong GPUs

A job whose co-runner has ended keeps its GPUs; of two co-runners that are no longer a pair, one restarts.

A job's *partner* is the job that should be on its GPUs, its *co-runner* the one that is there now. A *half* is half of
a GPU's shards.

Pairs in time slices (Gandiva, OSDI 2018, section 3.1):

    both run: suspend the one with more attained service
    one is paused: after ``slice_seconds``, suspend the other and resume it
    both are paused: resume the one that was suspended first
    the pair is dissolved: resume the paused job, since a suspended job cannot be stopped
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from metasched.core.model import Action, Job, Placement, Resume, Snapshot, Status, Suspend
from metasched.core.reasons import Code, Reason
from metasched.core.retention import holds_without_stop, is_blocked_from_start, is_stoppable_at, is_vacating
from metasched.scheduling.gpu_shards import GpuShards


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """The pairs of jobs that should share GPUs, and the GPU shards that jobs hold.

    Attributes:
        partners: by uid, the other job that should be on the same GPUs, for both jobs of each pair.
        time_slicing: uids of the jobs of pairs of which only one should run at a time.
        shards: the GPU shards of the cluster; None where Slurm assigns whole GPUs only.
    """

    partners: Mapping[str, str] = field(default_factory=dict)
    time_slicing: frozenset[str] = frozenset()
    shards: GpuShards | None = None


class GpuSharingPlan:
    """The part of one poll's plan that GPU sharing requires.

    Args:
        snapshot: jobs and nodes as observed.
        targets: by uid, the placement that each job should have, most important job first.
        sharing: the pairs that should share GPUs, and the shards that jobs hold.
        slice_seconds: the length of a time slice.

    Attributes:
        restarts: by uid, why a job on its target placement must restart.
        slice_actions: by uid, the suspensions and resumptions that time slices require now.
        paused: uids of the jobs of time-sliced pairs that are suspended.
    """

    def __init__(
        self, snapshot: Snapshot, targets: Mapping[str, Placement], sharing: GpuSharing, slice_seconds: float
    ) -> None:
        self._snapshot = snapshot
        self._targets = targets
        self._sharing = sharing
        self._slice_seconds = slice_seconds
        self._rank = {uid: rank for rank, uid in enumerate(targets)}
        self._starting_nodes: set[str] = set()  # nodes on which a pair starts in this poll
        self._starting_pairs: set[frozenset[str]] = set()  # pairs that start in this poll
        self.restarts: dict[str, Reason] = {}
        self.slice_actions: dict[str, Action] = {}
        self.paused: set[str] = set()
        if sharing.shards is not None:
            self.restarts.update(self._find_restarts(sharing.shards))
            self.slice_actions.update((action.uid, action) for action in self._slice_actions(sharing.shards))

    def partner(self, job: Job) -> Job | None:
        """The other job that should be on the job's GPUs, if both jobs should run there and neither is blocked."""
        other = self._snapshot.job.get(self._sharing.partners.get(job.uid, ""))
        if other is None or self._sharing.shards is None:
            return None
        if is_blocked_from_start(job) or is_blocked_from_start(other):
            return None
        return other if self._targets.get(job.uid) == self._targets.get(other.uid) is not None else None

    def try_start(self, job: Job, place: Placement) -> bool:
        """Whether Slurm would assign the right GPUs to a job if it were released for a placement now.

        If so, a pair's nodes are reserved for it in this poll.
        """
        other, shards = self.partner(job), self._sharing.shards
        if shards is None:
            return True
        if other is None:
            return not any(self._half_used_gpus_assigned_as_whole(shards, job, place))
        pair = frozenset((job.uid, other.uid))
        if pair in self._starting_pairs:
            return True
        nodes = set(place.nodes)
        if nodes & (self._starting_nodes | shards.unsettled):
            return False
        if any(self._changes_shards(job, nodes, pair) for job in self._snapshot.jobs if job.half_gpus):
            return False
        if other.active:
            ready = self._holds_half(other, place) and self._next_halves_are_of(shards, other.uid)
        else:
            ready = other.status in (Status.HELD, Status.QUEUED) and self._next_halves_are_empty(shards, nodes)
        if ready:
            self._starting_nodes |= nodes
            self._starting_pairs.add(pair)
        return ready

    @staticmethod
    def _changes_shards(job: Job, nodes: set[str], pair: frozenset[str]) -> bool:
        """Whether a job on half GPUs is vacating one of the nodes, or, if not of the pair, is queued for one."""
        if job.status is Status.QUEUED:
            return job.uid not in pair and job.released is not None and not nodes.isdisjoint(job.released.nodes)
        return is_vacating(job) and job.placement is not None and not nodes.isdisjoint(job.placement.nodes)

    def _holds_half(self, job: Job, place: Placement) -> bool:
        """Whether a job holds half of each GPU of a placement, and neither stops nor restarts."""
        half = job.half_gpus and job.placement == place and job.uid not in self.restarts
        return half and holds_without_stop(job)

    def _next_halves_are_of(self, shards: GpuShards, uid: str) -> bool:
        """Whether Slurm would assign the other halves of a job's GPUs to the next job.

        On each node, the job's GPU has to be the first with a free half, and no job may be vacating the node: a GPU
        with a lower index that becomes free would be assigned instead.
        """
        held = shards.held.get(uid, {})
        vacating = {
            node
            for job in self._snapshot.jobs
            if job.placement is not None and job.stop_requested is not None
            for node in job.placement.nodes
        }
        return bool(held) and all(shards.next_half(node) == gpu and node not in vacating for node, gpu in held.items())

    @staticmethod
    def _next_halves_are_empty(shards: GpuShards, nodes: set[str]) -> bool:
        """Whether Slurm would assign halves of empty GPUs on each of the nodes, or finds no free half there."""
        return all((gpu := shards.next_half(node)) is None or shards.is_empty(node, gpu) for node in nodes)

    # -- restarts ----------------------------------------------------------------------------------------------------

    def _is_stoppable(self, uid: str) -> bool:
        """Whether a job has its target placement, and could be asked to stop there."""
        job = self._snapshot.job.get(uid)
        return job is not None and is_stoppable_at(job, self._targets.get(uid))

    def _least_important(self, *uids: str) -> str:
        """The uid of the least important of some jobs."""
        return max(uids, key=lambda uid: (self._rank.get(uid, len(self._rank)), uid))

    def _find_restarts(self, shards: GpuShards) -> Iterator[tuple[str, Reason]]:
        """The uids of all jobs that must restart, each with the reason."""
        jobs = self._snapshot.job
        yield from ((uid, Reason(Code.GPU_GIVEN_AWAY)) for uid in shards.overlapping if self._is_stoppable(uid))
        for uid, other in shards.co_runners.items():
            if uid < other and self._is_stoppable(uid) and self._is_stoppable(other):
                yield from self._restart_of_former_pair(jobs[uid], jobs[other])
        for uid in self._targets:
            job = jobs.get(uid)
            other_job = None if job is None else self.partner(job)
            if job is not None and job.status is Status.HELD and job.blocked is None and other_job is None:
                yield from self._restarts_for_whole_gpu_job(shards, job)
            if job is None or other_job is None:
                continue
            if self._is_stoppable(uid):
                yield from self._unreachable_by_partner(shards, job, other_job)
            elif job.status is Status.HELD and other_job.status is Status.HELD and job.uid < other_job.uid:
                yield from self._restarts_for_new_pair(shards, job)

    def _restart_of_former_pair(self, one: Job, other: Job) -> Iterator[tuple[str, Reason]]:
        """The restart of one of two jobs on the same GPUs that should not share them.

        If exactly one of the two has a partner, the other restarts; otherwise the less important one.
        """
        if self.partner(one) is other:
            return
        single = [job.uid for job in (one, other) if self.partner(job) is None]
        restarted = single[0] if len(single) == 1 else self._least_important(one.uid, other.uid)
        retained = other if restarted == one.uid else one
        yield restarted, Reason.of(Code.CO_RUNNER_CHANGED, co_runner=retained.slurm_job_id)

    def _unreachable_by_partner(self, shards: GpuShards, job: Job, other: Job) -> Iterator[tuple[str, Reason]]:
        """The restart of a job on the GPUs of its pair, if Slurm would not assign the other halves to its partner."""
        if not job.half_gpus:
            yield job.uid, Reason.of(Code.HOLDS_WHOLE_GPU, co_runner=other.slurm_job_id)
        elif self._is_stoppable(other.uid):
            if (
                other.half_gpus
                and shards.co_runners.get(job.uid) != other.uid
                and self._least_important(job.uid, other.uid) == job.uid
            ):
                yield job.uid, Reason.of(Code.ON_OTHER_GPU, co_runner=other.slurm_job_id)
        elif not other.active and job.placement is not None and shards.unsettled.isdisjoint(job.placement.nodes):
            for node, gpu in shards.held.get(job.uid, {}).items():
                first = shards.next_half(node)
                lower_gpu_is_next = first is not None and first < gpu
                # no half is free, although the job is the only holder that is ours: a job of others has the other half
                other_half_taken = shards.free[node][gpu] < shards.half and len(shards.holders(node, gpu)) == 1
                if lower_gpu_is_next or other_half_taken:
                    yield job.uid, Reason.of(Code.CO_RUNNER_CANNOT_JOIN, co_runner=other.slurm_job_id)
                    return

    def _restarts_for_new_pair(self, shards: GpuShards, job: Job) -> Iterator[tuple[str, Reason]]:
        """Restarts of single jobs whose other half GPU Slurm would assign to a job of a new pair."""
        for node in self._targets[job.uid].nodes:
            gpu = shards.next_half(node)
            if node not in shards.unsettled and gpu is not None and not shards.is_empty(node, gpu):
                yield from self._restart_single_jobs(
                    shards, node, gpu, Reason.of(Code.HALF_GPU_TAKEN_FOR_PAIR, job=job.slurm_job_id)
                )

    def _restart_single_jobs(
        self, shards: GpuShards, node: str, gpu: int, reason: Reason
    ) -> Iterator[tuple[str, Reason]]:
        """The restarts of stoppable jobs without a partner that have half of a GPU."""
        for uid in shards.holders(node, gpu):
            if self._is_stoppable(uid) and self.partner(self._snapshot.job[uid]) is None:
                yield uid, reason

    @staticmethod
    def _half_used_gpus_assigned_as_whole(shards: GpuShards, job: Job, place: Placement) -> Iterator[tuple[str, int]]:
        """The GPUs with a half in use that Slurm would wrongly assign to a job that asks for whole GPUs.

        Returns:
            pairs of a node's name and a GPU's index.
        """
        if job.gpus > 0 and job.whole_gpus and shards.assigns_half_free:
            for node, gpus in place.node_gpus:
                for gpu in shards.next_whole(node, gpus):
                    if not shards.is_empty(node, gpu):
                        yield node, gpu

    def _restarts_for_whole_gpu_job(self, shards: GpuShards, job: Job) -> Iterator[tuple[str, Reason]]:
        """Restarts of single jobs with half a GPU that Slurm would wrongly assign to a job that asks for whole GPUs."""
        reason = Reason.of(Code.HALF_GPU_TAKEN_FOR_WHOLE, job=job.slurm_job_id)
        for node, gpu in self._half_used_gpus_assigned_as_whole(shards, job, self._targets[job.uid]):
            yield from self._restart_single_jobs(shards, node, gpu, reason)

    # -- time slices ---------------------------------------------------------------------------------------------------

    def _slice_actions(self, shards: GpuShards) -> Iterator[Action]:
        """The suspensions and resumptions of all time-sliced pairs."""
        jobs = self._snapshot.job
        for uid, other_uid in shards.co_runners.items():
            if uid > other_uid or not {uid, other_uid} <= self._sharing.time_slicing:
                continue
            restarts = uid in self.restarts or other_uid in self.restarts
            stoppable = self._is_stoppable(uid) and self._is_stoppable(other_uid)
            if stoppable and not restarts and self.partner(jobs[uid]) is jobs[other_uid]:
                yield from self._next_slice(jobs[uid], jobs[other_uid])

    def _next_slice(self, one: Job, other: Job) -> Iterator[Action]:
        """The suspensions and resumptions after which exactly one job of a pair runs.

        The iterator adds the suspended jobs to ``paused``.
        """
        paused = [job for job in (one, other) if job.status is Status.SUSPENDED]
        self.paused.update(job.uid for job in paused)
        if not paused:
            first = max((one, other), key=lambda job: (job.attained_service, self._rank.get(job.uid, 0)))
            second = other if first is one else one
            yield Suspend(first.uid, Reason.of(Code.TIME_SLICING_BEGINS, co_runner=second.slurm_job_id))
            return
        resumed = min(paused, key=lambda job: job.suspended_at or 0.0)
        co_runner = other if resumed is one else one
        if len(paused) > 1:
            yield Resume(resumed.uid, Reason.of(Code.BOTH_SUSPENDED, co_runner=co_runner.slurm_job_id))
        elif self._snapshot.now - (resumed.suspended_at or 0.0) >= self._slice_seconds:
            yield Suspend(co_runner.uid, Reason.of(Code.SLICE_ENDS, co_runner=resumed.slurm_job_id))
            yield Resume(resumed.uid, Reason.of(Code.SLICE_BEGINS, co_runner=co_runner.slurm_job_id))
