"""The rule that the baselines share: GPUs are given away in the order of a queue.

Jobs that cannot be preempted keep what they hold. Then everybody's minimum is served in order, gangs whole; then, still
in order, jobs grow to what they asked for, and at last to the most that they can use. GPUs are counted, for each job
those of nodes that suit it; which nodes they are on is the placement's business, so a job that does not fit by count is
offered as fallback.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from metasched.capacity.capacity_pool import CapacityPool, GpuAmount
from metasched.capacity.shapes import CPU_ONLY, NodeSet, ShapeCapacity, even_spreads
from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.reasons import Code, Reason
from metasched.core.retention import holds_unassignable_nodes, is_non_preemptible

Kind = tuple[str, NodeSet]
"""A GPU type, and the nodes of it that suit a job."""


def allocate(
    snapshot: Snapshot,
    queue: Sequence[Job],
    order: Callable[[Job], Reason | None],
    *,
    strict: bool,
    elastic: bool,
) -> Decision:
    """Serve the jobs of a queue in its order.

    Args:
        snapshot: the round's; ``queue`` holds all of its jobs.
        queue: first comes first.
        order: what else to say of a job than its position in the queue.
        strict: whether a job that does not fit keeps later ones from the GPUs that it waits for.
        elastic: whether jobs may get other amounts than they asked for.
    """
    allocator = Allocator(snapshot, queue, elastic=elastic)
    behind = allocator.serve_minimum(strict=strict)
    if elastic:
        growing = [job for job in queue if job.min_gpus < job.max_gpus]
        for job in growing:
            allocator.grow(job, job.gpus)
        for job in growing:
            allocator.grow(job, job.max_gpus)
    return allocator.decision(order, behind if strict else None)


class Allocator:
    """GPUs being given away, in the order of a queue that holds all jobs of the snapshot.

    Jobs that can neither stop nor move have what they hold from the beginning: ``is_retained`` says who, by
    default those that are non-preemptible in this round.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        queue: Sequence[Job],
        *,
        elastic: bool,
        is_retained: Callable[[Job], bool] = is_non_preemptible,
    ) -> None:
        self.snapshot = snapshot
        self.queue = queue
        self.elastic = elastic
        self.pool = CapacityPool(snapshot, is_retained)
        self._sizes: dict[tuple[ShapeCapacity, int, int], Mapping[str, tuple[int, ...]]] = {}

    def decision(self, order: Callable[[Job], Reason | None], behind: Mapping[str, str | None] | None) -> Decision:
        """Grants for all who have a share, in the order of the queue.

        Args:
            order: what else to say of a job than its position in the queue.
            behind: what ``serve_minimum`` said, if those without a share wait; if None, they are offered as fallback.
        """
        grants, fallback, waits = [], [], {}
        length = len(self.queue)
        for position, job in enumerate(self.queue, start=1):
            more = order(job)
            facts = (("position", position), ("length", length))
            reason = Reason(Code.QUEUE_POSITION, facts, () if more is None else (more,))
            share = self.pool.assigned.get(job.uid)
            least = self.least(job)
            if share is not None:
                at_least = (
                    min(least, share.gpus)
                    if least < share.gpus and self.elastic and not is_non_preemptible(job)
                    else share.gpus
                )
                grants.append(Grant(job.uid, share.gpus, reason, at_least, share.gpu_type or None))
            elif not self.possible(job):
                waits[job.uid] = reason.and_also(self.exceeds(job))
            elif behind is None:
                most = max(amounts[-1] for amounts in self.sizes(job).values())  # a request may be beyond all nodes
                fallback.append(Grant(job.uid, min(job.gpus, most) if self.elastic else least, reason, least))
            elif behind.get(job.uid) is None:
                waits[job.uid] = reason.and_also(self.missing(job))
            else:
                waits[job.uid] = reason.and_also(Reason.of(Code.WAITS_BEHIND, job=behind[job.uid]))
        return Decision(tuple(grants), tuple(fallback), waits)

    # -- what a job could be given on an empty cluster ------------------------------------------------------------

    def sizes(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """By type, the amounts that nodes could hold, ascending; beyond the smallest only whole nodes or one.

        Where a cluster realises uneven placements, all amounts between.

        A job without GPUs has the one amount 0 where enough nodes could hold it.
        """
        key = (self.pool.shape(job), self.least(job), job.max_gpus)
        if key not in self._sizes:
            self._sizes[key] = self._find_sizes(job)
        return self._sizes[key]

    def _find_sizes(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        sizes = {}
        uneven = self.snapshot.uneven and job.gpus > 0 and job.nodes is None and job.max_nodes is None
        for gpu_type, units_of in self.pool.shape(job).units.items():
            most = job.max_gpus if self.elastic else job.gpus
            amounts = range(self.least(job), min(most, sum(units_of)) + 1)
            found = list(amounts) if uneven else _even(job, amounts, units_of)
            if found:
                sizes[gpu_type] = tuple(found)
        return sizes

    def possible(self, job: Job) -> bool:
        """Whether it could run if nothing else did."""
        return bool(self.sizes(job))

    def least(self, job: Job) -> int:
        """The fewest GPUs that it may be given."""
        return job.min_gpus if self.elastic else job.gpus

    # -- giving ---------------------------------------------------------------------------------------------------

    def serve_minimum(self, *, strict: bool) -> Mapping[str, str | None]:
        """Give everybody the minimum, in order; by uid of those left out, the job that they wait behind."""
        heads: dict[Kind, str] = {}
        behind: dict[str, str | None] = {}
        for job in self.queue:
            if job.uid in self.pool.assigned or self._keep_type(job, heads):
                continue
            options = self.options(job)
            if any(self.pool.assign(job, share, within(heads, share.gpu_type)) for share in options) or not strict:
                continue
            kinds = [self.kind(job, share.gpu_type) for share in options]
            ahead = (slurm_job_id for mine in kinds for theirs, slurm_job_id in heads.items() if compete(mine, theirs))
            behind[job.uid] = next(ahead, None)
            for gpu_type, reach in kinds:
                if more := reach & ~within(heads, gpu_type):
                    heads[gpu_type, more] = job.slurm_job_id
        return behind

    def kind(self, job: Job, gpu_type: str) -> Kind:
        """What it competes for when it is to have GPUs (CPU-only: nodes) of a type."""
        return gpu_type, self.pool.node_set(job, gpu_type)

    def _keep_type(self, job: Job, heads: Iterable[Kind]) -> bool:
        """Give a job that holds its minimum the same again: the first of its options, without a look at the others."""
        held = job.placement
        if held is None or held.gpus != self.least(job) or not job.active:
            return False
        share = GpuAmount(held.gpus, held.gpu_type or CPU_ONLY)
        return self.pool.assign(job, share, within(heads, share.gpu_type))

    def options(self, job: Job) -> list[GpuAmount]:
        """The minimum in each type: first the type that it has or had, then by its own order, else most free first."""
        last = job.placement or job.released or job.last_placement
        sizes = dict(self.sizes(job))
        if job.placement is not None and job.active and job.placement.gpus >= self.least(job):
            # What it holds is possible, whatever its nodes accept now; what others could not use it need not give back.
            held, gpus = job.placement.gpu_type or CPU_ONLY, job.placement.gpus
            only = holds_unassignable_nodes(job, self.snapshot.node)
            sizes[held] = (gpus if only else min((gpus, *sizes.get(held, ()))),)
        if len(sizes) == 1:
            return [GpuAmount(amounts[0], gpu_type) for gpu_type, amounts in sizes.items()]
        order = {gpu_type: i for i, gpu_type in enumerate(job.gpu_types)}
        types = sorted(
            sizes,
            key=lambda t: (last is None or t != last.gpu_type, order.get(t, 0), -self.left(job, t), t),
        )
        return [GpuAmount(sizes[t][0], t) for t in types]

    def left(self, job: Job, gpu_type: str) -> int:
        """GPUs of a type that are left to give to jobs like this."""
        return self.pool.unassigned_gpus(self.pool.node_set(job, gpu_type))

    def grow(self, job: Job, goal: int) -> None:
        """Give a served job the largest amount up to a goal that is left in its type."""
        share = self.pool.assigned.get(job.uid)
        if share is None or share.gpus >= goal or is_non_preemptible(job):
            return
        for gpus in reversed(self.sizes(job).get(share.gpu_type, ())):
            if share.gpus < gpus <= goal and self.pool.assign(job, GpuAmount(gpus, share.gpu_type)):
                return

    # -- reasons --------------------------------------------------------------------------------------------------

    def exceeds(self, job: Job) -> Reason:
        """For a job that even empty nodes could not hold."""
        nodes, cpus = (None, None) if job.gpus else (job.nodes or 1, job.cpus_per_unit)
        return Reason.of(Code.EXCEEDS_NODES, gpus=self.least(job), gpu_types=job.gpu_types, nodes=nodes, cpus=cpus)

    def missing(self, job: Job) -> Reason:
        """What the job waits for at least, and how much of that is left."""
        reaches = [self.pool.node_set(job, gpu_type) for gpu_type in self.sizes(job)]
        cpus = sum(max(self.pool.unassigned_cpus(reach), 0) for reach in reaches)
        if not job.gpus:
            nodes, memory = job.nodes or 1, job.node_memory(0)
            return Reason.of(Code.WAITS_FOR_CPUS, nodes=nodes, cpus=job.node_cpus(0), memory=memory, cpus_free=cpus)
        gpus, left = self.least(job), sum(max(self.pool.unassigned_gpus(reach), 0) for reach in reaches)
        waits = Reason.of(Code.WAITS_FOR_GPUS, gpus=gpus, gpu_types=job.gpu_types, free=left)
        need = gpus * job.cpus_per_unit
        return waits if cpus >= need else waits._replace(facts=(*waits.facts, ("cpus", need), ("cpus_free", cpus)))


def compete(one: Kind, other: Kind) -> bool:
    """Whether two jobs could have the same GPUs (CPU-only: nodes)."""
    return one[0] == other[0] and bool(one[1] & other[1])


def within(kinds: Iterable[Kind], gpu_type: str) -> NodeSet:
    """The nodes of a type that are in any of these."""
    return functools.reduce(operator.or_, [reach for kind, reach in kinds if kind == gpu_type], 0)


def _even(job: Job, amounts: Iterable[int], units_of: Sequence[int]) -> list[int]:
    """The amounts that nodes with so many units, descending, hold in equal parts; see ``Allocator.sizes``."""
    found: list[int] = []
    for gpus in amounts:
        if any(not found or k in (1, job.nodes) or g == units_of[0] for k, g in even_spreads(job, gpus, units_of)):
            found.append(gpus)
    return found
