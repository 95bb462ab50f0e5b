from __future__ import annotations

import pytest

from metasched.capacity.capacity_pool import CapacityPool, GpuAmount
from metasched.capacity.shapes import without_allocations
from metasched.core import reason_words
from metasched.core.model import Node, Preempt, Status
from metasched.scheduling.engine import run_round
from policies.ares.policy import Ares, AresParameters
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las
from policies.baselines.optimus import Optimus
from policies.baselines.slurm import Slurm, SlurmParameters
from policies.baselines.srtf import Srtf
from tests.builders import ByGpus, job, linear, running, snapshot

POOR = ByGpus(((1, 1.0), (2, 1.2), (4, 1.3)))  # Ares grows such a job only when all jobs are served
NOT_KNOWN = ByGpus(((1, 1.0),))  # Ares grows such a job only to explore
GROWING = [(policy, POOR) for policy in (Fifo(), Las(), Srtf(), Optimus(), Ares(AresParameters(leftovers="faster")))]
GROWING.append((Ares(), NOT_KNOWN))
MAIN = {"partitions": frozenset({"main"})}


def node(name, **more):
    return Node(name, "v100", 4, 16, 1 << 40, **{"features": frozenset(), **MAIN, **more})


def there(result):
    return {uid: (place.gpus, place.nodes) for uid, place in result.targets.items()}


@pytest.mark.parametrize(("policy", "speed"), GROWING, ids=lambda it: getattr(it, "name", ""))
@pytest.mark.parametrize(
    ("asks", "other"),
    [
        ({"partition": "main"}, {"partitions": frozenset({"other"})}),
        ({"partition": "main"}, {"reservation": "theirs"}),
        ({"features": frozenset({"ib"})}, {}),
        ({"excluded_nodes": frozenset({"other"})}, {}),
        ({"open_seconds": 600.0}, {"open_seconds": 60.0}),
    ],
    ids=lambda more: next(iter(more), "none"),
)
def test_no_job_grows_onto_gpus_that_it_cannot_use(policy, speed, asks, other):
    """Each of the four jobs has the GPU that it needs, although other GPUs are idle."""
    cluster = (node("here", features=frozenset({"ib"})), node("other", **other))
    jobs = [job(f"j{i}", 1, 1, 4, left=1e9, speed=speed, learns_speed=True, **asks) for i in range(4)]
    assert there(run_round(snapshot(jobs, cluster), policy, None)) == {f"j{i}": (1, ("here",)) for i in range(4)}


@pytest.mark.parametrize("policy", [Fifo(), Las(), Slurm(), Ares()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("gpus", [1, 0], ids=["gpus", "cpus"])
def test_a_queue_for_one_partition_leaves_no_other_partition_idle(policy, gpus):
    """GPUs and CPUs of another partition go to the jobs that request it, however many jobs wait for the first."""
    cluster = (node("here"), node("other", partitions=frozenset({"other"})))
    many = [job(f"m{i}", gpus, left=1e9, speed=linear(1.0), partition="main", cpus_per_unit=4) for i in range(9)]
    one = job("o", 4, left=1e9, speed=linear(1.0), partition="other", submitted=9.0, cpus_per_unit=4)
    result = run_round(snapshot([*many, one], cluster), policy, None)
    assert len(result.targets) == 5
    assert there(result)["o"] == (4, ("other",))


@pytest.mark.parametrize("policy", [Fifo(), Slurm(), Slurm(SlurmParameters(backfill=False))])
def test_a_job_that_waits_for_a_node_reserves_that_node_only(policy):
    """Other jobs are charged to other nodes, and wait only once no node but the first job's is unassigned."""
    holder = running(job("holder", 2, preempt=Preempt.NO), "here")
    first = job("first", 4, submitted=1.0, only_nodes=frozenset({"here"}))
    line = [job("wide", 4, submitted=2.0), job("small", 2, submitted=3.0)]
    result = run_round(snapshot([holder, first, *line], (node("here"), node("other")), now=9.0), policy, None)
    assert there(result) == {"holder": (2, ("here",)), "wide": (4, ("other",))}
    assert "behind job first" in reason_words.words(result.reasons["small"])


def test_allocations_beyond_a_nodes_capacity_reduce_no_other_node():
    """A node of which jobs hold more GPUs and CPUs than it has counts as full."""
    pinned = running(job("p", 4, preempt=Preempt.NO, cpus_per_unit=3), "small")
    cluster = (Node("small", "v100", 2, 10, 1 << 40), Node("other", "v100", 4, 16, 1 << 40))
    other = job("o", 4, cpus_per_unit=4)
    pool = CapacityPool(snapshot([pinned, other], cluster))
    assert pool.unassigned_gpus(pool.node_set(other, "v100")) == 4
    assert pool.unassigned_cpus(pool.node_set(other, "v100")) == 16


@pytest.mark.parametrize("uneven", [False, True])
def test_a_cpu_only_job_has_no_capacity_where_no_node_has_its_cpus(uneven):
    """The same holds where placements may be uneven."""
    jobs = [job("fits", 0, cpus_per_unit=16), job("wide", 0, cpus_per_unit=17)]
    pool = CapacityPool(snapshot(jobs, (node("here"),), uneven=uneven))
    assert [pool.shape(one).consolidated("", 0) for one in jobs] == [(0,), None]


def test_jobs_with_a_choice_of_nodes_leave_room_for_jobs_without_one():
    """In either order, a job that could be on other nodes does not block one that could not."""
    cluster = (node("ib", features=frozenset({"ib"})), node("plain"))
    any_node, picky = job("any", 4, partition="main"), job("picky", 4, features=frozenset({"ib"}))
    for first, second in ((any_node, picky), (picky, any_node)):
        pool = CapacityPool(snapshot([any_node, picky], cluster))
        assert pool.assign(first, GpuAmount(4, "v100"))
        assert pool.unassigned_gpus(pool.node_set(second, "v100")) == 4
        assert pool.assign(second, GpuAmount(4, "v100"))
        assert pool.exhausted
        assert not pool.fits(job("more", 1), GpuAmount(1, "v100"))


def test_a_non_preemptible_job_is_charged_to_its_own_node():
    """GPUs on other nodes that would suit the job, too, remain unassigned."""
    cluster = (node("ib", features=frozenset({"ib"})), node("plain"))
    pinned, picky = running(job("p", 4, preempt=Preempt.NO), "ib"), job("picky", 1, features=frozenset({"ib"}))
    pool = CapacityPool(snapshot([pinned, picky], cluster))
    assert pool.unassigned_gpus(pool.node_set(picky, "v100")) == 0
    assert pool.unassigned_gpus(pool.node_set(pinned, "v100")) == 4


@pytest.mark.parametrize("policy", [Fifo(), Slurm(), Ares()], ids=lambda policy: policy.name)
def test_two_pinned_jobs_on_the_same_gpus_count_once(policy):
    """The other GPUs can be assigned to a third job."""
    pair = [
        running(job(uid, 2, preempt=Preempt.NO), "here").evolve(co_runner=other)
        for uid, other in (("a", "b"), ("b", "a"))
    ]
    shared = snapshot([*pair, job("c", 2, submitted=1.0)], (node("here"),), sharing=True)
    assert run_round(shared, policy, None).targets.keys() == {"a", "b", "c"}


@pytest.mark.parametrize(("by_us", "cpus"), [(True, 16), (False, 8)])
def test_a_suspended_job_is_charged_for_gpus_and_only_an_admins_suspension_for_cpus(by_us, cpus):
    """An admin may resume the job at any moment; the daemon resumes it only when CPUs are free."""
    rests = running(job("r", 2, cpus_per_unit=4, memory_per_unit=5), "here")
    rests = rests.evolve(status=Status.SUSPENDED, suspended_by_us=by_us)
    (left,) = without_allocations([node("here")], [rests])
    assert (left.gpus, left.cpus, left.memory) == (2, cpus, (1 << 40) - 10)
