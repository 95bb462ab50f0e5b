"""Hypothesis strategies for snapshots and grants, and what a cluster holds, for the tests of the pure core."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import strategies as st

from metasched.core.model import Decision, Grant, Hold, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Reason
from metasched.core.retention import is_immovable

GPU_TYPES = ("a100", "v100")
NOW = 10_000.0


def load(job, place, kinds=(1, 1, 1)):
    """GPUs, CPUs and memory that a job takes on each of its nodes; kinds with 0 are left out."""
    takes = ((name, (gpus, job.node_cpus(gpus), job.node_memory(gpus))) for name, gpus in place.node_gpus)
    return {name: tuple(a * b for a, b in zip(amounts, kinds, strict=True)) for name, amounts in takes}


def held(job):
    """The resources that a job holds on each node."""
    if job.placement is None or not job.active:
        return None
    paused = job.status is Status.SUSPENDED and job.suspended_by_us
    return load(job, job.placement, (1, not paused, 1))


def overfull(nodes, holdings):
    """Names of the nodes whose resources the holdings exceed."""
    used = defaultdict(lambda: (0, 0, 0))
    for holding in holdings:
        for name, amounts in holding.items():
            used[name] = tuple(a + b for a, b in zip(used[name], amounts, strict=True))
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
        slurm_job_id=str(100 + index),
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


def possible_placements(job, cluster, holdings):
    """The nodes where a job fits besides the holdings, for each spread and GPU type."""
    found = []
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        for k, g in job.spreads(gpus):
            for gpu_type in {n.gpu_type for n in cluster} if job.gpus else (None,):
                fitting = [
                    n.name
                    for n in cluster
                    if job.matches(n)
                    and (not job.gpus or n.gpu_type == gpu_type)
                    and not overfull([n], [*holdings, load(job, Placement((n.name,), g, gpu_type))])
                ]
                if len(fitting) >= k:
                    found.append((fitting, k, g, gpu_type))
    return found


@st.composite
def joined(draw, job, cluster, holdings, alone):
    """The job as co-runner of one that runs alone, where it fits, else unchanged."""
    hosts = [
        i
        for i, host in enumerate(alone)
        if host.status is Status.RUNNING
        and host.co_runner is None
        and job.min_gpus <= host.placement.gpus <= job.max_gpus
        and host.placement.gpus > 0
        and all(job.matches(n) for n in cluster if n.name in host.placement.nodes)
        and not overfull(cluster, [*holdings, load(job, host.placement, (0, 1, 1))])
        and (len(host.placement.nodes), host.placement.gpus_per_node) in job.spreads(host.placement.gpus)
    ]
    if not hosts:
        return job
    i = draw(st.sampled_from(hosts))
    place = alone[i].placement
    alone[i] = alone[i].evolve(co_runner=job.uid)
    holdings.append(load(job, place, (0, 1, 1)))
    runs = {"status": Status.RUNNING, "hold": Hold.NONE, "placement": place, "run_started": NOW - 20}
    return job.evolve(co_runner=alone[i].uid, **runs)


@st.composite
def settled(draw, job, cluster, holdings):
    """The job in any status for which the cluster has resources; a new holding is added to ``holdings``."""
    status = draw(st.sampled_from((*Status, Status.RUNNING, Status.RUNNING, Status.RUNNING)))
    if status in (Status.HELD, Status.FINISHED):
        return job
    options = possible_placements(job, cluster, holdings if status is not Status.QUEUED else [])
    if not options:
        return job
    fitting, k, g, gpu_type = draw(st.sampled_from(options))
    place = Placement(tuple(draw(st.permutations(fitting))[:k]), g, gpu_type)
    if status is Status.QUEUED:
        ours = draw(st.booleans())
        released = place if ours else None
        return job.evolve(status=status, hold=Hold.NONE, released=released, released_at=NOW - 1 if ours else None)
    by_us = status is Status.SUSPENDED and job.preempt is Preempt.SUSPEND and not job.gpus and draw(st.booleans())
    stopping = draw(st.sampled_from((None, None, NOW - 5))) if status is Status.RUNNING else None
    job = job.evolve(
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
def snapshots(draw, max_nodes=5, max_jobs=8, *, blocked=False, free=False):
    """A cluster and jobs in all states, no node over capacity; ``free``: it may allow uneven placements and sharing."""
    cluster = tuple(draw(nodes(i)) for i in range(draw(st.integers(1, max_nodes))))
    uneven, sharing = (draw(st.booleans()), draw(st.booleans())) if free else (False, False)
    holdings: list = []
    found: list = []
    for i in range(draw(st.integers(0, max_jobs))):
        job = draw(jobs(i))
        if sharing and draw(st.booleans()):
            job = draw(joined(job, cluster, holdings, found))
        if job.placement is None:
            job = draw(settled(job, cluster, holdings))
        if blocked and draw(st.sampled_from((False, False, False, True))):
            job = job.evolve(blocked=Reason.text("waits for job 7"))
        found.append(job)
    ordered = tuple(sorted(found, key=lambda job: (job.submitted, job.uid)))
    return Snapshot(NOW, 1, 60.0, cluster, ordered, uneven, sharing)


@st.composite
def grants_for(draw, view):
    """Grants and fallback that keep to the contract, for some of the jobs, in any order."""
    some = [job for job in draw(st.permutations(view.jobs)) if draw(st.sampled_from((True, True, True, False)))]
    found = [draw(grant_for(job)) for job in some]
    if view.uneven:
        found = [draw(st.one_of(st.just(grant), exact_for(view, grant))) for grant in found]
    if view.sharing:
        found = draw(paired(found))
    cut = draw(st.integers(0, len(found)))
    if draw(st.booleans()):
        cut = len(found)
    return tuple(found[:cut]), tuple(found[cut:])


@st.composite
def grant_for(draw, job):
    """A grant that keeps to the contract."""
    if job.placement is not None and is_immovable(job):
        return Grant(job.uid, job.placement.gpus, Reason.text("keeps what it holds"))
    gpus = draw(st.integers(job.min_gpus, job.max_gpus))
    if job.placement is not None and draw(st.booleans()):
        gpus = job.placement.gpus
    at_least = draw(st.one_of(st.none(), st.integers(job.min_gpus, gpus)))
    types = job.gpu_types or GPU_TYPES
    gpu_type = draw(st.sampled_from((None, None, *types))) if job.gpus else None
    others = [one for one in types if gpu_type is not None and one != gpu_type and draw(st.booleans())]
    return Grant(job.uid, gpus, Reason.text("drawn"), at_least, gpu_type, other_types=tuple(others))


@st.composite
def exact_for(draw, view, grant):
    """The grant with an arbitrary exact placement of as many GPUs."""
    job = view.job[grant.uid]
    if job.placement is not None and is_immovable(job):
        return replace(grant, exact=job.placement, gpu_type=job.placement.gpu_type)
    kinds = sorted({node.gpu_type for node in view.nodes if job.gpus and node.gpu_type in (job.gpu_types or GPU_TYPES)})
    if not kinds:
        return grant
    gpu_type = draw(st.sampled_from(kinds))
    names = [node.name for node in view.nodes if node.gpu_type == gpu_type]
    k = job.nodes or draw(st.integers(1, min(len(names), grant.gpus, job.max_nodes or grant.gpus)))
    if not k <= min(len(names), grant.gpus):
        return grant
    cuts = sorted(draw(st.permutations(range(1, grant.gpus)))[: k - 1])
    counts = [high - low for low, high in zip((0, *cuts), (*cuts, grant.gpus), strict=True)]
    place = Placement(tuple(draw(st.permutations(names))[:k]), 0, gpu_type, tuple(counts))
    return replace(grant, at_least=None, gpu_type=gpu_type, exact=place, other_types=())


@st.composite
def paired(draw, grants):
    """The grants, some of which share the GPUs of an earlier one."""
    alone: list = []
    found = []
    for grant in grants:
        hosts = [
            host
            for host in alone
            if host.gpus == grant.gpus > 0
            and (None in (host.gpu_type, grant.gpu_type) or host.gpu_type == grant.gpu_type)
            and (None in (host.exact, grant.exact) or host.exact == grant.exact)
        ]
        host = draw(st.sampled_from((None, *hosts)))
        if host is not None:
            alone.remove(host)
            found.append(replace(grant, co_runner=host.uid))
        else:
            alone.append(grant)
            found.append(grant)
    return found


class FixedPolicy(Policy):
    """A policy that grants as a function of the snapshot says; all other jobs wait."""

    name = "fixed"

    def __init__(self, choose):
        super().__init__()
        self.choose = choose

    def decide(self, snapshot, state):
        grants, fallback = self.choose(snapshot)
        granted = {grant.uid for grant in (*grants, *fallback)}
        waits = {job.uid: Reason.text("not drawn") for job in snapshot.jobs if job.uid not in granted}
        return Decision(grants, fallback, waits), PolicyState(1, {"rounds": state.data.get("rounds", 0) + 1})
