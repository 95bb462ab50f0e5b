"""A job's requirements, which never change: from its request, as Slurm shows it at first, and from its tag. Pure.

Requirements are read once, before the first update of the job: an update rewrites the request in Slurm's record.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

from metasched.core.apps import TunerSettings
from metasched.core.batching import AdaptationRule, BatchControl
from metasched.core.model import Job, Placement, Preempt
from metasched.slurm.client import Geometry, SlurmJob
from metasched.slurm.errors import TagError
from metasched.slurm.tags import Tag, is_tagged, quote

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Requirements:
    """The part of a ``model.Job`` that never changes; fields have the names and units of ``model.Job``.

    Attributes:
        gpu_type: the type that the request itself names (``--gres=gpu:v100:2``), which Slurm can never change.
        tasks: Slurm's number of tasks of a rigid job, because its script may depend on it; None for an elastic job,
            where the wrapper starts one process per GPU.
        slo_seconds, model, trials, adapts, regimes, app, tuner: as in the tag.
        adaptive_batch: whether metasched may change the batch size, where the training script consents, too.
        own_batch: whether the script changes the batch size by a rule of its own.
        shards: whether the request is for shards of GPUs, so that another job may get the rest of a GPU.
    """

    gpus: int = 0
    min_gpus: int = 0
    max_gpus: int = 0
    sizes: tuple[int, ...] = ()
    nodes: int | None = None
    max_nodes: int | None = None
    gpu_types: tuple[str, ...] = ()
    cpus_per_unit: int = 1
    memory_per_unit: int = 0
    features: frozenset[str] = frozenset()
    only_nodes: frozenset[str] = frozenset()
    excluded_nodes: frozenset[str] = frozenset()
    weight: float = 1.0
    preempt: Preempt = Preempt.CHECKPOINT
    total_steps: int | None = None
    gpu_type: str | None = None
    tasks: int | None = None
    slo_seconds: float | None = None
    model: str | None = None
    shards: bool = False
    trials: bool = False
    adaptive_batch: bool = False
    own_batch: bool = False
    adapts: AdaptationRule | None = None
    regimes: int | None = None
    app: str | None = None
    tuner: TunerSettings | None = None


def is_managed(job: SlurmJob, partitions: Collection[str] = (), qos: Collection[str] = ()) -> bool:
    """Whether metasched schedules the job: by the tag in its comment, or by a partition or QOS that ``[intake]`` names.

    A job without a batch script (salloc, srun) is never scheduled: it cannot be requeued.
    """
    return job.batch and (
        is_tagged(job.comment)
        or any(name in partitions for name in job.partition.split(","))
        or job.qos.lower() in map(str.lower, qos)  # Slurm's names of QOS have no case
    )


def resizable(job: SlurmJob) -> str | None:
    """Return why Slurm cannot give the job another number of GPUs, as a clause for its owner; None where Slurm can."""
    if job.het:
        return "it is part of a heterogeneous job"
    if job.gpus_per_socket is not None:
        return "it asks for --gpus-per-socket"
    if job.exclusive:
        return "it asks for whole nodes (--exclusive)"
    return None


def requirements(
    job: SlurmJob, tag: Tag, cluster_gpu_types: Collection[str] | None = None, shards_per_gpu: int | None = None
) -> Requirements:
    """Derive a job's requirements from its request and its tag, which must fit each other.

    Args:
        job: the job as first read, pending.
        tag: the job's tag (``Tag()`` for a job of an intake partition or QOS).
        cluster_gpu_types: the types of GPUs in the cluster; None where they are not known, and then not checked.
        shards_per_gpu: shards of each GPU; None where Slurm allocates whole GPUs only.

    Raises:
        TagError: the tag and the request do not fit; the message says how to change them.
    """
    if job.het:
        raise TagError("heterogeneous jobs are not supported: submit one job, or leave the tag out")
    if job.gpus_per_socket is not None:
        raise TagError("--gpus-per-socket is not supported: ask for --gpus-per-node or --gpus")
    if 0 < len(job.required_nodes) < job.nodes_requested:
        raise TagError(
            f"--nodelist names {len(job.required_nodes)} of the {job.nodes_requested} nodes that the job asks for: "
            "name all the nodes that it may use, or none"
        )
    if len(job.gpu_types) > 1:
        raise TagError(
            f"the job asks for GPUs of several types ({', '.join(map(quote, job.gpu_types))}), which metasched "
            "does not give to one job: ask for one type, or leave the tag out"
        )
    gpus = _gpus(job)
    if gpus == 0:  # options such as --cpus-per-gpu mean nothing then
        job = replace(job, gpu_type=None, cpus_per_gpu=None, memory_per_gpu=None)
    _check_tag_suits(job, tag, gpus, shards_per_gpu)
    low, high = _range(job, tag, gpus)
    elastic = low != high
    # The unit of CPUs and memory is a GPU; of a job without GPUs, a node.
    units = gpus or max(job.nodes_requested, 1)
    cpus_per_unit = max(job.cpus_per_gpu or 0, ceil(Fraction(job.cpus, units)), 1)
    return Requirements(
        gpus=gpus,
        min_gpus=low,
        max_gpus=high,
        sizes=tuple(size for size in tag.sizes if low <= size <= high),
        nodes=None if elastic else _rigid_nodes(job, tag, gpus),
        max_nodes=_max_nodes(job, tag, elastic=elastic) if gpus else units,
        gpu_types=_types(job, tag, cluster_gpu_types),
        cpus_per_unit=cpus_per_unit,
        memory_per_unit=_memory_per_unit(job, units, cpus_per_unit),
        features=job.features,
        only_nodes=frozenset(job.required_nodes),
        excluded_nodes=frozenset(job.excluded_nodes),
        weight=tag.weight,
        preempt=tag.preempt,
        total_steps=tag.total_steps,
        gpu_type=job.gpu_type,
        tasks=None if elastic else job.tasks,
        slo_seconds=tag.slo_seconds,
        model=tag.model,
        shards=job.shards_per_node is not None,
        trials=tag.trials,
        adaptive_batch=tag.batch is BatchControl.SCHEDULER,
        own_batch=tag.batch is BatchControl.SCRIPT,
        adapts=tag.adapts,
        regimes=tag.regimes,
        app=tag.app,
        tuner=tag.tuner,
    )


def geometry(
    job: Job, placement: Placement, required: Requirements, delay: int = 0, shards: int | None = None
) -> Geometry:
    """Return the size and nodes that make Slurm start the job on a placement.

    CPUs and memory are proportional to GPUs. A rigid job has its own number of tasks where they spread evenly over the
    nodes, because its script may depend on it; else there is one task for each GPU (CPU-only: node).

    Args:
        job: the job.
        placement: its nodes and GPUs.
        required: its requirements.
        delay: seconds from now to the earliest start.
        shards: shards of each GPU, for a request of shards; not used for others.
    """
    nodes, units = len(placement.nodes), max(placement.gpus_per_node, 1)
    cpus = job.node_cpus(placement.gpus_per_node) * nodes
    own = required.tasks is not None and required.tasks % nodes == 0
    tasks = required.tasks if required.tasks is not None and own else nodes * units
    return Geometry(
        nodes=placement.nodes,
        gpus_per_node=placement.gpus_per_node,
        tasks=tasks,
        cpus=max(cpus // tasks, 1) * tasks,
        memory_per_node=job.node_memory(placement.gpus_per_node) or None,
        delay=delay,
        gpu_type=required.gpu_type,
        shards_per_node=shards if required.shards else None,
    )


def _gpus(job: SlurmJob) -> int:
    if job.gpus_total is not None:
        return job.gpus_total
    if job.gpus_per_node is not None:
        return job.gpus_per_node * max(job.nodes_requested, 1)
    if job.gpus_per_task is not None:
        return job.gpus_per_task * max(job.tasks, 1)
    if job.shards_per_node is not None:
        return max(job.nodes_requested, 1)  # all shards on a node are of one GPU
    return 0


def _check_tag_suits(job: SlurmJob, tag: Tag, gpus: int, shards_per_gpu: int | None) -> None:
    """Raise TagError where the tag does not suit the resources of the request: none, whole GPUs, or shards of GPUs."""
    sizes = (("min_gpus", tag.min_gpus), ("max_gpus", tag.max_gpus))
    if gpus == 0:
        adaptive = tag.batch is BatchControl.SCHEDULER
        for key, value in (
            *sizes,
            ("sizes", tag.sizes),
            ("gpu_types", tag.gpu_types),
            ("trials", tag.trials),
            ("batch", adaptive),
        ):
            if value:
                raise TagError(
                    f"'{key}' does not suit a job without GPUs: leave it out, or ask for GPUs (--gres=gpu:1)"
                )
        return
    if tag.preempt is Preempt.SUSPEND:
        raise TagError(
            "'preempt=suspend' does not suit a GPU job, because Slurm does not free the GPUs of a suspended job: "
            "write preempt=checkpoint or preempt=no"
        )
    if job.shards_per_node is None:
        return
    if shards_per_gpu is None or job.shards_per_node > shards_per_gpu:
        most = (
            "none in this cluster that metasched can use" if shards_per_gpu is None else f"{shards_per_gpu} of each GPU"
        )
        raise TagError(
            f"the job asks for {job.shards_per_node} shards on each node, and there are {most}: ask for one GPU "
            f"(--gres=gpu:1), or for --gres=shard:{shards_per_gpu or 2}, which is one GPU that may be shared"
        )
    for key, value in sizes:
        if value is not None and value != gpus:
            raise TagError(
                f"'{key}={value}' does not suit a job that asks for shards, which has one GPU on each of its nodes: "
                "leave it out, or ask for GPUs (--gres=gpu:1)"
            )


def _range(job: SlurmJob, tag: Tag, gpus: int) -> tuple[int, int]:
    low = tag.min_gpus or min(tag.sizes, default=gpus)
    high = tag.max_gpus or max(tag.sizes, default=gpus)
    if tag.sizes:
        if gpus not in tag.sizes:
            shown = ",".join(map(str, tag.sizes))
            raise TagError(
                f"the job asks for {gpus} GPUs, which {quote(f'sizes={shown}')} leaves out: ask for one of its numbers"
            )
        low, high = min(size for size in tag.sizes if size >= low), max(size for size in tag.sizes if size <= high)
    if gpus < low:
        raise TagError(
            f"the job asks for {gpus} GPUs, fewer than 'min_gpus={low}': ask for at least {low}, or lower min_gpus"
        )
    if gpus > high:
        raise TagError(
            f"the job asks for {gpus} GPUs, more than 'max_gpus={high}': ask for at most {high}, or raise max_gpus"
        )
    if low != high and (why := resizable(job)) is not None:
        raise TagError(
            f"the tag lets the number of GPUs change from {low} to {high}, but Slurm cannot resize this job, "
            f"because {why}: write min_gpus={gpus} max_gpus={gpus}, or change the request"
        )
    return low, high


def _rigid_nodes(job: SlurmJob, tag: Tag, gpus: int) -> int | None:
    """Return the exact number of nodes of a rigid job; None where its request for GPUs names no number of nodes."""
    named = (
        gpus == 0
        or job.gpus_per_node is not None
        or job.shards_per_node is not None
        or job.nodes_requested > 1
        or job.nodes_max == 1
    )
    if not named:
        return None
    nodes = max(job.nodes_requested, 1)
    if job.gpus_total is not None and job.gpus_per_node:
        nodes = max(nodes, ceil(Fraction(gpus, job.gpus_per_node)))
    if gpus % nodes:
        raise TagError(
            f"{gpus} GPUs do not spread evenly over {nodes} nodes: ask for a multiple of {nodes}, "
            "or leave the number of nodes out"
        )
    if tag.max_nodes is not None and tag.max_nodes < nodes:
        raise TagError(
            f"'max_nodes={tag.max_nodes}' is less than the {nodes} nodes that the job asks for: "
            "raise it or leave it out"
        )
    return nodes


def _max_nodes(job: SlurmJob, tag: Tag, *, elastic: bool) -> int | None:
    """Return the most nodes that the user allows; an elastic job's ``-N`` is its first size only, and no limit."""
    limits = [limit for limit in (tag.max_nodes, None if elastic else job.nodes_max) if limit]
    return min(limits, default=None)


def _types(job: SlurmJob, tag: Tag, known: Collection[str] | None) -> tuple[str, ...]:
    if job.gpu_type is not None and tag.gpu_types and job.gpu_type not in tag.gpu_types:
        raise TagError(
            f"the job asks for GPUs of type {quote(job.gpu_type)}, which 'gpu_types={','.join(tag.gpu_types)}' "
            "leaves out: ask without a type (--gres=gpu:2), or name it in gpu_types"
        )
    if known is not None:
        for name in (*tag.gpu_types, *((job.gpu_type,) if job.gpu_type else ())):
            if name not in known:
                raise TagError(
                    f"there is no GPU type {quote(name)} in this cluster: "
                    f"name some of {', '.join(sorted(known)) or '(no node has typed GPUs)'}"
                )
    return (job.gpu_type,) if job.gpu_type is not None else tag.gpu_types


def _memory_per_unit(job: SlurmJob, units: int, cpus_per_unit: int) -> int:
    """Return bytes for each unit in whole MiB, rounded down, so that a whole node's memory still fits."""
    if job.memory_per_gpu is not None:
        return job.memory_per_gpu
    if job.memory_per_node is not None:
        per_unit = Fraction(job.memory_per_node * max(job.nodes_requested, 1), units)
    else:
        per_unit = Fraction((job.memory_per_cpu or 0) * cpus_per_unit)
    return floor(per_unit / MIB) * MIB
