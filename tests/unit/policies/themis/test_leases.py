"""Leases, and the division of what an app has among its members."""

import pytest

from metasched.core.model import Placement, Quota
from metasched.core.reasons import Code, Reason
from policies.themis.leases import Lease, Leases
from policies.themis.member_placement import ClusterSpace, Member, place_members
from policies.themis.node_kinds import NodeKinds
from tests.builders import job, node, nodes, running

WHY = Reason.of(Code.APP_DIVIDES, app="a")


def lease(app, ends, **gpus):
    return Lease.of(app, gpus, ends, WHY)


LEASES = Leases().plus([lease("a", 50.0, n1=2, n2=1), lease("b", 20.0, n1=2), lease("a", 30.0, n1=1)])


def test_leases_end_and_lose_what_is_gone():
    """Ended ones, those of apps without members, and GPUs that nodes no longer have: the earliest end loses first."""
    assert [one.ends for one in LEASES.leases] == [20.0, 30.0, 50.0]
    live = LEASES.live(20.0, ["a", "b"], {"n1": 4, "n2": 4})
    assert [one.app for one in live.leases] == ["a", "a"]
    assert LEASES.live(0.0, ["b"], {"n1": 4}).gpus == {"b": {"n1": 2}}
    fewer = LEASES.live(0.0, ["a", "b"], {"n1": 3})
    assert fewer.gpus == {"a": {"n1": 3}}
    assert [one.gpus for one in fewer.leases] == [{"n1": 1}, {"n1": 2}]


def test_unused_gpus_leave_the_leases_that_end_first():
    """An app uses two of three GPUs: the lease that ends later remains whole."""
    used = LEASES.used({"a": {"n1": 2}, "b": {"n1": 2}})
    assert [(one.app, one.ends, one.gpus) for one in used.leases] == [("b", 20.0, {"n1": 2}), ("a", 50.0, {"n1": 2})]


def test_leases_are_stored_with_their_reasons():
    """The latest end first."""
    stored = Leases.from_json(LEASES.to_json())
    assert stored == LEASES
    assert stored.reasons == {"a": [WHY, WHY], "b": [WHY]}


def divided(jobs, gpus, cluster=None, *, quotas=(), uneven=False, restart=0.0, seconds=600.0, taken=()):
    """The GPUs of each member on each node."""
    space = ClusterSpace(cluster or nodes(4), quotas, uneven=uneven)
    for one, place in taken:
        space.take(one, place)
    members = [Member(one, one.total_steps or 1.0, restart) for one in jobs]
    placed = place_members({"a": members}, {"a": gpus}, space, {"a": seconds})
    return {uid: place.node_gpus for uid, place in placed.items()}


def elastic(uid, most=8, low=1, *, work=100.0, **fields):
    return job(uid, low, low, most, total_steps=work, **fields)


def on(*pairs):
    """GPUs by node."""
    return {f"v100-{at}": gpus for at, gpus in enumerate(pairs) if gpus}


def test_members_get_equal_parts_and_the_longest_gets_more():
    """Three members on seven GPUs of two nodes."""
    found = divided([elastic("a", work=9.0), elastic("b"), elastic("c")], on(4, 3))
    assert {uid: sum(gpus for _, gpus in counts) for uid, counts in found.items()} == {"a": 2, "b": 3, "c": 2}


def test_gangs_are_whole_or_wait():
    """Gangs of four and two on five GPUs, which clusters cannot spread unevenly: the rest is not used."""
    assert divided([elastic("a", 4, 4)], on(2, 3)) == {"a": (("v100-0", 2), ("v100-1", 2))}
    assert divided([elastic("a", 4, 4)], on(1, 3)) == {}
    assert divided([elastic("a", 4, 4)], on(1, 3), uneven=True) == {"a": (("v100-0", 1), ("v100-1", 3))}
    assert divided([elastic("a", 8, 4, nodes=2)], on(4, 1, 3)) == {"a": (("v100-0", 3), ("v100-2", 3))}
    assert divided([elastic("a", 8, max_nodes=1)], on(2, 3)) == {"a": (("v100-1", 3),)}


def test_runs_are_not_disturbed():
    """A run stays where it is; it shrinks only for one that would wait, and grows only if that pays in time."""
    one = running(elastic("a").evolve(gpus=3), "v100-1")
    here = {"a": (("v100-1", 3),)}
    assert divided([one], on(0, 3)) == here
    assert divided([one], on(0, 4)) == {"a": (("v100-1", 4),)}
    assert divided([one], on(0, 4), restart=30.0, seconds=300.0) == {"a": (("v100-1", 4),)}
    for seconds in (
        150.0,
        30.0,
        0.0,
    ):  # a third more for the two minutes between restart and end is one restart's worth
        assert divided([one], on(2, 4), restart=30.0, seconds=seconds) == here
    assert divided([one, elastic("b")], on(0, 4)) == here | {"b": (("v100-1", 1),)}
    both = divided([one, elastic("b", 2, 2)], on(0, 4))
    assert {uid: sum(gpus for _, gpus in counts) for uid, counts in both.items()} == {"a": 2, "b": 2}


def test_placements_are_on_few_nodes_of_one_rack():
    """Eight GPUs of two nodes of one rack, out of three nodes."""
    racks = ("r1", "r2", "r2")
    cluster = [node(f"n{at}", 4, cpus=64, rack=rack) for at, rack in enumerate(racks)]
    found = divided([elastic("a", 8, 8)], {"n0": 4, "n1": 4, "n2": 4}, cluster)
    assert found == {"a": (("n1", 4), ("n2", 4))}


def test_cpus_memory_and_quotas_limit_members():
    """What fits on the node beside others, and what quotas leave."""
    cluster = [node("v100-0", 4, cpus=5)]
    assert divided([elastic("a", cpus_per_unit=2)], on(4), cluster) == {"a": (("v100-0", 2),)}
    other = job("x", 1, cpus_per_unit=3)
    taken = [(other, Placement(("v100-0",), 1, "v100"))]
    assert divided([elastic("a", cpus_per_unit=2)], on(3), cluster, taken=taken) == {"a": (("v100-0", 1),)}
    quota = Quota("q", frozenset("ab"), 3)
    found = divided([elastic("a", 2), elastic("b", 2)], on(4), quotas=[quota])
    assert sum(gpus for counts in found.values() for _, gpus in counts) == 3
    of_jobs = Quota("q", frozenset("ab"), 1, of_jobs=True)
    assert len(divided([elastic("a"), elastic("b")], on(4), quotas=[of_jobs])) == 1


@pytest.mark.parametrize("closed", [{"accepts": False}, {"partitions": frozenset({"other"})}])
def test_nodes_that_do_not_suit_a_member_are_not_used(closed):
    """Closed nodes, and those of another partition."""
    cluster = [node("v100-0", 4, **closed), node("v100-1", 4, partitions=frozenset({"p"}))]
    assert divided([elastic("a", 4, partition="p")], on(4, 2), cluster) == {"a": (("v100-1", 2),)}


def test_kinds_tell_nodes_apart_that_suit_different_jobs():
    """One kind of a GPU type where all jobs accept its nodes; two where one does not."""
    cluster = [*nodes(2), *nodes(1, kind="k80"), node("closed", accepts=False)]
    plain, picky = job("a"), job("b", only_nodes=frozenset({"v100-1"}))
    alike = NodeKinds(cluster, [plain])
    assert dict(alike.of) == {"v100-0": "v100", "v100-1": "v100", "k80-0": "k80"}
    assert alike.suitable(plain) == {"v100", "k80"}
    apart = NodeKinds(cluster, [plain, picky])
    assert apart.suitable(picky) == {apart.of["v100-1"]} != {apart.of["v100-0"]}
    assert {apart.gpu_type[kind] for kind in apart.suitable(plain)} == {"v100", "k80"}
