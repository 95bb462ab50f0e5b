"""Hypothesis strategies for snapshots and grants, and what a cluster holds, for the tests of the pure core."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import strategies as st

from metasched.model import Decision, Grant, Hold, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.policy import Policy, PolicyState

GPU_TYPES = ("a100", "v100")
NOW = 10_000.0


def load(job, gpus_per_node):
    """GPUs, CPUs and memory that a job takes on each of its nodes."""
    return gpus_per_node, job.node_cpus(gpus_per_node), job.node_memory(gpus_per_node)


def held(job):
    """What a job holds on each node for as long as nothing is done to it, as (placement, load)."""
    if job.placement is None or not job.active:
        return None
    gpus, cpus, memory = load(job, job.placement.gpus_per_node)
    if job.status is Status.SUSPENDED and job.suspended_by_us:
        cpus = 0
    return job.placement, (gpus, cpus, memory)


def overfull(nodes, holdings):
    """Names of nodes on which (placement, load) pairs together exceed what there is."""
    used = defaultdict(lambda: [0, 0, 0])
    for placement, amounts in holdings:
        for name in placement.nodes:
            used[name] = [a + b for a, b in zip(used[name], amounts, strict=True)]
    return [n.name for n in nodes if any(u > c for u, c in zip(used[n.name], (n.gpus, n.cpus, n.memory), strict=True))]


@st.composite
def nodes(draw, index):
    """A node with up to 4 GPUs, or none."""
    gpu_type = draw(st.sampled_from((*GPU_TYPES, "v100", "v100", None)))
    return Node(
        name=f"n{index}",
        gpu_type=gpu_type,
        gpus=draw(st.sampled_from((4, 4, 2, 3))) if gpu_type else 0,
        cpus=draw(st.sampled_from((8, 8, 4))),
        memory=draw(st.sampled_from((64, 64, 8))),
        features=draw(st.sampled_from((frozenset(), frozenset({"ib"})))),
        partitions=frozenset({"p"}),
        accepts=draw(st.sampled_from((True, True, True, True, False))),
    )


@st.composite
def jobs(draw, index):
    """A held job of any kind."""
    gpus = draw(st.sampled_from((0, 1, 1, 2, 2, 3, 4, 4, 8)))
    low = draw(st.integers(1, gpus)) if gpus else 0
    count = draw(st.sampled_from((None, None, None, 1, 2)))
    return Job(
        uid=f"u{index}",
        address=str(100 + index),
        name=f"job{index}",
        user="ann",
        submitted=float(draw(st.integers(0, 5))),
        gpus=gpus,
        min_gpus=low,
        max_gpus=draw(st.integers(gpus, gpus + 4)) if gpus else 0,
        partition=draw(st.sampled_from(("", "p"))),
        nodes=count,
        max_nodes=draw(st.sampled_from((None, None, 2))) if count is None else None,
        gpu_types=draw(st.sampled_from(((), ("v100",), ("a100", "v100")))) if gpus else (),
        cpus_per_unit=draw(st.sampled_from((1, 1, 2, 4))),
        memory_per_unit=draw(st.sampled_from((0, 1, 4, 16))),
        features=draw(st.sampled_from((frozenset(), frozenset(), frozenset({"ib"})))),
        preempt=draw(st.sampled_from((Preempt.CHECKPOINT, Preempt.CHECKPOINT, Preempt.SUSPEND, Preempt.NO))),
        hold=draw(st.sampled_from((Hold.ADMIN, Hold.USER))),
        attained={"v100": float(draw(st.sampled_from((0, 100, 5_000, 50_000))))},
        ran_seconds=float(draw(st.sampled_from((0, 100, 5_000)))),
    )


def rooms(job, cluster, holdings):
    """Every place where a job fits now beside the holdings: one per spread and GPU type."""
    found = []
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        for k, g in job.spreads(gpus):
            for gpu_type in {n.gpu_type for n in cluster} if job.gpus else (None,):
                fitting = [
                    n.name
                    for n in cluster
                    if job.matches(n)
                    and (not job.gpus or n.gpu_type == gpu_type)
                    and not overfull([n], [*holdings, (Placement((n.name,), g, gpu_type), load(job, g))])
                ]
                if len(fitting) >= k:
                    found.append((fitting, k, g, gpu_type))
    return found


@st.composite
def settled(draw, job, cluster, holdings):
    """The job in some state of its life that the cluster has room for; a new holding is added to ``holdings``."""
    status = draw(st.sampled_from((*Status, Status.RUNNING, Status.RUNNING, Status.RUNNING)))
    if status in (Status.HELD, Status.FINISHED):
        return job
    options = rooms(job, cluster, holdings if status is not Status.QUEUED else [])
    if not options:
        return job
    fitting, k, g, gpu_type = draw(st.sampled_from(options))
    place = Placement(tuple(draw(st.permutations(fitting))[:k]), g, gpu_type)
    if status is Status.QUEUED:
        ours = draw(st.booleans())
        released = place if ours else None
        return replace(job, status=status, hold=Hold.NONE, released=released, released_at=NOW - 1 if ours else None)
    by_us = status is Status.SUSPENDED and job.preempt is Preempt.SUSPEND and not job.gpus and draw(st.booleans())
    stopping = draw(st.sampled_from((None, None, NOW - 5))) if status is Status.RUNNING else None
    job = replace(
        job,
        status=status,
        hold=Hold.NONE,
        placement=place,
        suspended_by_us=by_us,
        run_started=NOW - 50,
        stop_requested=stopping if job.preempt is Preempt.CHECKPOINT else None,
    )
    holdings.append(held(job))
    return job


@st.composite
def snapshots(draw, max_nodes=5, max_jobs=8, *, blocked=False):
    """A cluster and jobs in all states, no node over capacity."""
    cluster = tuple(draw(nodes(i)) for i in range(draw(st.integers(1, max_nodes))))
    holdings: list = []
    found = []
    for i in range(draw(st.integers(0, max_jobs))):
        job = draw(settled(draw(jobs(i)), cluster, holdings))
        if blocked and draw(st.sampled_from((False, False, False, True))):
            job = replace(job, blocked="waits for job 7")
        found.append(job)
    return Snapshot(NOW, 1, 60.0, cluster, tuple(sorted(found, key=lambda job: (job.submitted, job.uid))))


@st.composite
def grants_for(draw, view):
    """Grants and fallback that keep to the contract, for some of the jobs, in any order."""
    some = [job for job in draw(st.permutations(view.jobs)) if draw(st.sampled_from((True, True, True, False)))]
    found = [draw(grant_for(job)) for job in some]
    cut = draw(st.integers(0, len(found)))
    if draw(st.booleans()):
        cut = len(found)
    return tuple(found[:cut]), tuple(found[cut:])


@st.composite
def grant_for(draw, job):
    """A grant that keeps to the contract."""
    if job.placement is not None and (job.pinned or job.status is Status.SUSPENDED):
        return Grant(job.uid, job.placement.gpus, "keeps what it holds")
    gpus = draw(st.integers(job.min_gpus, job.max_gpus))
    if job.placement is not None and draw(st.booleans()):
        gpus = job.placement.gpus
    at_least = draw(st.one_of(st.none(), st.integers(job.min_gpus, gpus)))
    gpu_type = draw(st.sampled_from((None, None, *(job.gpu_types or GPU_TYPES)))) if job.gpus else None
    return Grant(job.uid, gpus, "drawn", at_least, gpu_type)


class FixedPolicy(Policy):
    """Grants what a function of the view says; all other jobs wait."""

    name = "fixed"

    def __init__(self, choose):
        super().__init__()
        self.choose = choose

    def decide(self, snapshot, state):
        grants, fallback = self.choose(snapshot)
        granted = {grant.uid for grant in (*grants, *fallback)}
        waits = {job.uid: "not drawn" for job in snapshot.jobs if job.uid not in granted}
        return Decision(grants, fallback, waits), PolicyState(1, {"rounds": state.data.get("rounds", 0) + 1})
