"""The allocation that the baselines share: GPUs are assigned in the order of a queue.

Non-preemptible jobs retain what they hold. Then every job's minimum is served in the order of the queue, gangs whole.
Then, in the same order, jobs grow to the GPUs that they requested, and at last to the most that they can use. GPUs are
counted on the nodes that suit each job. The placement chooses the nodes, so a job that does not fit by count is a
fallback.
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

TypedNodes = tuple[str, NodeSet]
"""A GPU type, and the nodes of it that suit a job."""
_SizesKey = tuple[ShapeCapacity, int, int]


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
        snapshot: the round's jobs and nodes.
        queue: all jobs of the snapshot, first to be served first.
        order: a further reason for a job's position in the queue.
        strict: whether a job that does not fit keeps later jobs from the GPUs that it waits for.
        elastic: whether jobs may get other numbers of GPUs than they requested.
    """
    allocator = Allocator(snapshot, queue, elastic=elastic)
    behind = allocator.serve_minimum(strict=strict)
    if elastic:
        growing = [job for job in queue if job.elastic]
        for job in growing:
            allocator.grow(job, job.gpus)
        for job in growing:
            allocator.grow(job, job.max_gpus)
    return allocator.decision(order, behind if strict else None)


class Allocator:
    """Assigns GPUs to the jobs of a queue.

    Args:
        snapshot: the round's jobs and nodes.
        queue: all jobs of the snapshot, first to be served first.
        elastic: whether jobs may get other numbers of GPUs than they requested.
        is_retained: whether a job keeps its allocation in this round; its GPUs are assigned to it from the beginning.
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
        self._sizes: dict[_SizesKey, Mapping[str, tuple[int, ...]]] = {}

    def decision(self, order: Callable[[Job], Reason | None], behind: Mapping[str, str | None] | None) -> Decision:
        """Grants of all assigned amounts, in the order of the queue.

        Args:
            order: a further reason for a job's position in the queue.
            behind: the result of ``serve_minimum``, where jobs without GPUs are to wait; None to make them fallback.
        """
        grants, fallback, waits = [], [], {}
        reason_at = functools.partial(Reason.of_position, Code.QUEUE_POSITION, length=len(self.queue))
        waits_behind = functools.cache(lambda head: Reason.of(Code.WAITS_BEHIND, job=head))
        for position, job in enumerate(self.queue, start=1):
            more = order(job)
            also = () if more is None else (more,)
            amount = self.pool.assigned.get(job.uid)
            least = self.least(job)
            sizes = self.sizes(job) if amount is None else {}
            if amount is not None:
                shrinks = self.elastic and not is_non_preemptible(job)
                at_least = min(least, amount.gpus) if shrinks else amount.gpus
                others = self.other_types(job, amount) if behind is None else ()
                reason, gpu_type = reason_at(position, also=also), amount.gpu_type or None
                grants.append(Grant(job.uid, amount.gpus, reason, at_least, gpu_type, other_types=others))
            elif not sizes:
                waits[job.uid] = reason_at(position, also=(*also, self.exceeds(job)))
            elif behind is None:
                most = max(amounts[-1] for amounts in sizes.values())  # a request may be beyond all nodes
                gpus, reason = min(job.gpus, most) if self.elastic else least, reason_at(position, also=also)
                fallback.append(Grant(job.uid, gpus, reason, least))
            elif (head := behind.get(job.uid)) is None:
                waits[job.uid] = reason_at(position, also=(*also, self.missing(job)))
            else:
                waits[job.uid] = reason_at(position, also=(*also, waits_behind(head)))
        return Decision(tuple(grants), tuple(fallback), waits)

    def other_types(self, job: Job, amount: GpuAmount) -> tuple[str, ...]:
        """The GPU types, but for that of an amount, on which a preemptible job could be given as many GPUs."""
        if is_non_preemptible(job):
            return ()
        return tuple(
            [one for one, amounts in self.sizes(job).items() if one != amount.gpu_type and amount.gpus in amounts]
        )

    # -- sizes on an empty cluster --------------------------------------------------------------------------------

    def sizes(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """By GPU type, the amounts that the job could be given on an empty cluster, ascending; empty for none.

        Beyond the smallest amount these are amounts on one node or on whole nodes; where a cluster realises uneven
        placements, all amounts. A job without GPUs has the amount 0.
        """
        key = self._sizes_key(job)
        if key not in self._sizes:
            self._sizes[key] = self._find_sizes(job)
        return self._sizes[key]

    def _sizes_key(self, job: Job) -> _SizesKey:
        """What ``sizes`` depends on."""
        return self.pool.shape(job), self.least(job), job.max_gpus

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

    def least(self, job: Job) -> int:
        """The fewest GPUs that the job may be given."""
        return job.min_gpus if self.elastic else job.gpus

    # -- assignment -----------------------------------------------------------------------------------------------

    def serve_minimum(self, *, strict: bool) -> Mapping[str, str | None]:
        """Assign the minimum to every job, in the order of the queue.

        Args:
            strict: whether a job that does not fit keeps later jobs from the GPUs that it waits for.

        Returns:
            With ``strict``, by uid of each job without GPUs, the Slurm job id of the job that it waits behind, if any.
        """
        heads: dict[TypedNodes, str] = {}  # Slurm job ids of the first jobs that do not fit
        behind: dict[str, str | None] = {}
        alike: dict[_SizesKey, str | None] = {}  # what waiting jobs wait behind whose nodes are all heads', by kind
        for job in self.queue:
            if job.uid in self.pool.assigned:
                continue
            if not strict and job.gpus and job.placement is None and self.pool.exhausted:
                continue  # no GPU is left, and none comes free before the end of the queue
            kind = self._sizes_key(job) if job.gpus and job.latest_placement is None else None
            if kind in alike:
                behind[job.uid] = alike[kind]
                continue
            assigned = self._assign_present(job, heads) or any(
                self.pool.assign(job, one, nodes_of_type(heads, one.gpu_type)) for one in self.options(job)
            )
            if assigned:
                alike.clear()  # another type may have most unassigned GPUs now, and so be wanted first
            if assigned or not strict:
                continue
            wanted = [self.typed_nodes(job, one.gpu_type) for one in self.options(job)]
            behind[job.uid] = _first_competing(wanted, heads)
            for gpu_type, node_set in wanted:
                if more := node_set & ~nodes_of_type(heads, gpu_type):
                    heads[gpu_type, more] = job.slurm_job_id
            if kind is not None:
                alike[kind] = _first_competing(wanted, heads)
        return behind

    def typed_nodes(self, job: Job, gpu_type: str) -> TypedNodes:
        """The nodes of a GPU type that suit the job, for which it competes with other jobs."""
        return gpu_type, self.pool.node_set(job, gpu_type)

    def _assign_present(self, job: Job, heads: Iterable[TypedNodes]) -> bool:
        """Assign its present amount again to a job that holds its minimum, which is the first of its ``options``."""
        held = job.placement
        if held is None or held.gpus != self.least(job) or not job.active:
            return False
        amount = GpuAmount(held.gpus, held.gpu_type or CPU_ONLY)
        return self.pool.assign(job, amount, nodes_of_type(heads, amount.gpu_type))

    def options(self, job: Job) -> list[GpuAmount]:
        """The minimum on each GPU type: present or last type first, then by the job's order, else most free first."""
        last = job.latest_placement
        sizes = dict(self.sizes(job))
        if job.placement is not None and job.active and job.placement.gpus >= self.least(job):
            # A present allocation remains possible even where its nodes accept no jobs: then the job keeps all of it.
            held, gpus = job.placement.gpu_type or CPU_ONLY, job.placement.gpus
            only = holds_unassignable_nodes(job, self.snapshot.node)
            sizes[held] = (gpus if only else min((gpus, *sizes.get(held, ()))),)
        if len(sizes) == 1:
            return [GpuAmount(amounts[0], gpu_type) for gpu_type, amounts in sizes.items()]
        order = {gpu_type: i for i, gpu_type in enumerate(job.gpu_types)}

        def preference(gpu_type: str) -> tuple[bool, int, int, str]:
            """The sort key of a GPU type: the least is the type that the job prefers."""
            unassigned = self.pool.unassigned_gpus(self.pool.node_set(job, gpu_type))
            return (last is None or gpu_type != last.gpu_type, order.get(gpu_type, 0), -unassigned, gpu_type)

        return [GpuAmount(sizes[gpu_type][0], gpu_type) for gpu_type in sorted(sizes, key=preference)]

    def larger_amount(self, job: Job) -> GpuAmount | None:
        """The next larger amount on the GPU type that is assigned to the job; None where there is none."""
        amount = self.pool.assigned.get(job.uid)
        if amount is None:
            return None
        larger = (gpus for gpus in self.sizes(job).get(amount.gpu_type, ()) if gpus > amount.gpus)
        return next((GpuAmount(gpus, amount.gpu_type) for gpus in larger), None)

    def grow(self, job: Job, goal: int) -> None:
        """Assign a served job the largest amount up to a goal that is unassigned on its GPU type."""
        amount = self.pool.assigned.get(job.uid)
        if amount is None or amount.gpus >= goal or is_non_preemptible(job):
            return
        for gpus in reversed(self.sizes(job).get(amount.gpu_type, ())):
            if amount.gpus < gpus <= goal and self.pool.assign(job, GpuAmount(gpus, amount.gpu_type)):
                return

    # -- reasons --------------------------------------------------------------------------------------------------

    def exceeds(self, job: Job) -> Reason:
        """The reason for a job that even an empty cluster could not hold."""
        nodes, cpus = (None, None) if job.gpus else (job.nodes or 1, job.cpus_per_unit)
        return Reason.of(Code.EXCEEDS_NODES, gpus=self.least(job), gpu_types=job.gpu_types, nodes=nodes, cpus=cpus)

    def missing(self, job: Job) -> Reason:
        """The reason for a job that does not fit now: its minimum, and how much of that is unassigned."""
        node_sets = [self.pool.node_set(job, gpu_type) for gpu_type in self.sizes(job)]
        cpus = sum(max(self.pool.unassigned_cpus(node_set), 0) for node_set in node_sets)
        if not job.gpus:
            nodes, memory = job.nodes or 1, job.node_memory(0)
            return Reason.of(Code.WAITS_FOR_CPUS, nodes=nodes, cpus=job.node_cpus(0), memory=memory, cpus_free=cpus)
        gpus, left = self.least(job), sum(max(self.pool.unassigned_gpus(node_set), 0) for node_set in node_sets)
        waits = Reason.of(Code.WAITS_FOR_GPUS, gpus=gpus, gpu_types=job.gpu_types, free=left)
        need = gpus * job.cpus_per_unit
        return waits if cpus >= need else waits._replace(facts=(*waits.facts, ("cpus", need), ("cpus_free", cpus)))


def _first_competing(wanted: Sequence[TypedNodes], heads: Mapping[TypedNodes, str]) -> str | None:
    """The Slurm job id of the first head that competes for the first of the wanted nodes, or for the next; if any."""
    return next((head for mine in wanted for theirs, head in heads.items() if compete(mine, theirs)), None)


def compete(one: TypedNodes, other: TypedNodes) -> bool:
    """Whether two jobs could have the same GPUs (CPU-only: nodes)."""
    return one[0] == other[0] and bool(one[1] & other[1])


def nodes_of_type(found: Iterable[TypedNodes], gpu_type: str) -> NodeSet:
    """All nodes of one GPU type among these."""
    return functools.reduce(operator.or_, [node_set for other, node_set in found if other == gpu_type], 0)


def _even(job: Job, amounts: Iterable[int], units_of: Sequence[int]) -> list[int]:
    """The amounts that nodes with these units, descending, hold evenly spread; see ``Allocator.sizes``."""
    found: list[int] = []
    for gpus in amounts:
        if any(not found or k in (1, job.nodes) or g == units_of[0] for k, g in even_spreads(job, gpus, units_of)):
            found.append(gpus)
    return found
