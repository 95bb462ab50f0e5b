"""Why a grant has no placement, in words for the job's user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metasched.core.model import Job, Node, Placement
from metasched.placement.free_resources import FreeResources, Resources


def suspended(place: Placement) -> str:
    """The reason for a suspended job, which can be resumed only where it is."""
    return f"it is suspended on {', '.join(place.nodes)}, cannot move, and there its resources are taken"


def exact(free: FreeResources, job: Job, place: Placement) -> str:
    """The reason for a job whose placement is prescribed: which node lacks what."""
    for name, gpus in place.node_gpus:
        i, load = free.number.get(name), Resources.of(job, gpus)
        if i is None:
            return f"{name}, where it is to be, is not in the cluster"
        node = free.nodes[i]
        if not node.accepts:
            return f"{name}, where it is to be, accepts no jobs now"
        if not job.matches(node) or (gpus and node.gpu_type != place.gpu_type):
            return f"{name}, where it is to be, does not suit it"
        if free.gpus[i] < gpus:
            return f"{name}, where it is to have {count(gpus, 'GPU')}, has {max(free.gpus[i], 0)} free"
        if not free.fits(i, load):
            return f"{name}, where it is to be, has too few free CPUs or too little memory"
    return "the place where it is to be was taken"


def search(free: FreeResources, job: Job, gpus: int, types: Sequence[str | None], *, uneven: bool) -> str:
    """The reason for any other job: what it needs, what is free, and what is missing."""
    groups = [group for group in free.matching(job) if not job.gpus or group.gpu_type in types]
    kind = f" of type {' or '.join(t for t in types if t)}" if job.gpu_types or len(types) == 1 else ""
    if not groups:
        wanted = [f"GPUs of type {' or '.join(job.gpu_types)}"] if job.gpu_types else ["GPUs"] if job.gpus else []
        wanted += [f"feature {feature}" for feature in sorted(job.features)]
        having = f" with {', '.join(wanted)}" if wanted else ""
        where = [f"partition {job.partition}"] if job.partition else []
        where += [f"reservation {name}" for name in job.reservation.split(",") if name]
        return f"no node{having}{' in ' if where else ''}{' and '.join(where)} accepts jobs now"
    numbers = [i for group in groups for i in group.numbers]
    if not job.gpus:
        cpus = sum(max(free.cpus[i], 0) for i in numbers)
        k = job.nodes or 1
        each = f"{count(k, 'node')} with {count(job.node_cpus(0), 'free CPU')}"
        memory = f" and {_gib(job.node_memory(0))} of memory" if job.memory_per_unit else ""
        return f"needs {each}{memory}{' each' if k > 1 else ''}; {count(cpus, 'CPU')} are free in all"
    spreads = job.spreads(gpus)
    if not spreads and not uneven:
        return f"{count(gpus, 'GPU')} cannot be spread evenly over {_nodes_asked(job)}"
    left = sum(max(free.gpus[i], 0) for i in numbers)
    if left < gpus:
        return f"needs {count(gpus, 'GPU')}{kind}; {left} {'is' if left == 1 else 'are'} free"
    lacking = any(sum(free.gpus[i] >= g for i in numbers) >= k for k, g in spreads)
    ways = " or ".join(f"{g} on {count(k, 'node')}{' each' if k > 1 else ''}" for k, g in spreads[:3])
    missing = "whose CPUs or memory suffice" if lacking or not ways else f"that can take {ways}"
    return f"{count(left, 'GPU')}{kind} {'is' if left == 1 else 'are'} free, but not on nodes {missing}"


def closing(jobs: Iterable[Job], nodes: Sequence[Node]) -> Mapping[str, str]:
    """Reservations that keep jobs from nodes, as their time limits are too long: by uid, in words."""
    found: dict[object, int] = {}
    told = {}
    for job in jobs:
        if not job.open_seconds:
            continue
        kind = (job.gpus > 0, job.constraints)
        if kind not in found:
            short = job.evolve(open_seconds=0.0)
            found[kind] = sum(node.accepts and short.matches(node) and not job.matches(node) for node in nodes)
        if found[kind]:
            there = count(found[kind], "node")
            told[job.uid] = f"on {there} that would suit it a reservation begins before its time limit (--time) is over"
    return told


def count(n: int, noun: str) -> str:
    """A number with its noun, in the plural where necessary: ``1 GPU``, ``2 GPUs``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _nodes_asked(job: Job) -> str:
    return f"exactly {count(job.nodes, 'node')}" if job.nodes is not None else f"at most {job.max_nodes} nodes"
