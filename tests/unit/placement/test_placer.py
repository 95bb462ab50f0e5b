from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Grant, Placement, Preempt, Snapshot, Status
from metasched.core.reasons import Reason
from metasched.core.retention import is_pinned
from metasched.placement import place
from tests.builders import job, node
from tests.unit.strategies import grant_for, grants_for, held, jobs, load, overfull, possible_placements, snapshots


def running(uid, where, gpus_per_node=1, status=Status.RUNNING, **more):
    gpus = len(where) * gpus_per_node
    placement = Placement(tuple(where), gpus_per_node, "v100" if gpus_per_node else None)
    return job(uid, gpus, status=status, placement=placement, **more)


def snapshot(nodes, jobs, **more):
    return Snapshot(0.0, 1, 60.0, tuple(nodes), tuple(jobs), **more)


def ask(uid, gpus, at_least=None, gpu_type=None, **more):
    return Grant(uid, gpus, Reason.text("because"), at_least, gpu_type, **more)


def put(uid, where, **more):
    """A grant of a prescribed placement, given as GPUs by node."""
    exact = Placement(tuple(where), 0, "v100", tuple(where.values()))
    return ask(uid, exact.gpus, None, "v100", exact=exact, **more)


@given(st.data())
def test_every_placement_is_one_that_slurm_can_realise(data):
    """Gangs are whole, on distinct fitting nodes of one type, of an allowed size, and no node is over capacity."""
    shot = data.draw(snapshots(free=True))
    grants, fallback = data.draw(grants_for(shot))
    result = place(shot, grants, fallback)
    placed, shares = result.placed, result.co_runners
    asked = {grant.uid: grant for grant in (*grants, *fallback)}
    for uid, found in placed.items():
        owner, spots = shot.job[uid], [shot.node[name] for name in found.nodes]
        assert len(set(found.nodes)) == len(found.nodes)
        if owner.gpus:
            assert {spot.gpu_type for spot in spots} == {found.gpu_type}
        if uid in asked and not is_pinned(owner):
            grant = asked[uid]
            assert (grant.gpus if grant.at_least is None else grant.at_least) <= found.gpus <= grant.gpus
            assert (len(found.nodes), found.gpus_per_node) in owner.spreads(found.gpus) or (
                shot.uneven and found.uneven
            )
            assert owner.nodes in (None, len(found.nodes)) or not owner.gpus
            assert owner.max_nodes is None or len(found.nodes) <= owner.max_nodes
            assert grant.exact in (None, found)
            assert grant.gpu_type in (None, found.gpu_type) or found.gpu_type in grant.other_types
            assert (uid in result.on_other_types) == (grant.gpu_type not in (None, found.gpu_type))
        if found != owner.placement:
            assert all(spot.accepts and owner.matches(spot) for spot in spots)
    holdings = [load(shot.job[uid], found, (shares.get(uid, "") < uid, 1, 1)) for uid, found in placed.items()]
    for other in shot.jobs:
        if other.uid not in placed and other.status is Status.SUSPENDED:
            holdings.append(held(other))
        elif other.uid not in placed and other.status is Status.RUNNING and other.preempt is Preempt.SUSPEND:
            holdings.append(load(other, other.placement, (0, 0, 1)))
    assert overfull(shot.nodes, holdings) == []


@given(st.data())
def test_only_granted_pairs_share_gpus(data):
    """A guest has the placement of its host or none, and no job is in two pairs."""
    shot = data.draw(snapshots(free=True))
    grants, fallback = data.draw(grants_for(shot))
    result = place(shot, grants, fallback)
    asked = {grant.uid: grant.co_runner for grant in (*grants, *fallback) if grant.co_runner is not None}
    for uid, other in result.co_runners.items():
        assert result.co_runners[other] == uid != other
        assert result.placed[uid] == result.placed[other]
        owner = shot.job[uid]
        assert other in (asked.get(uid), owner.co_runner) or asked.get(other) == uid
    for guest, host in asked.items():
        if guest in result.placed:
            assert result.co_runners.get(guest) == host or is_pinned(shot.job[guest])


@given(st.data())
def test_no_grant_is_lost_and_no_pinned_job_moves(data):
    """Each granted job is placed or has a reason; pinned and suspended jobs keep their nodes."""
    shot = data.draw(snapshots(free=True))
    grants, fallback = data.draw(grants_for(shot))
    result = place(shot, grants, fallback)
    pinned = {owner.uid for owner in shot.jobs if is_pinned(owner)}
    assert result.placed.keys() | result.unplaced.keys() == {g.uid for g in (*grants, *fallback)} | pinned
    assert not result.placed.keys() & result.unplaced.keys()
    assert all(result.unplaced.values())
    for owner in shot.jobs:
        if is_pinned(owner):
            assert result.placed[owner.uid] == owner.placement
        if owner.status is Status.SUSPENDED:
            assert result.placed.get(owner.uid) in (None, owner.placement)


@given(st.data(), st.randoms(use_true_random=False))
def test_placement_does_not_depend_on_the_order_of_nodes_and_jobs(data, rng):
    """Shuffled nodes and jobs give the same placements."""
    shot = data.draw(snapshots(free=True))
    grants, fallback = data.draw(grants_for(shot))
    shuffled = replace(
        shot, nodes=tuple(rng.sample(shot.nodes, len(shot.nodes))), jobs=tuple(rng.sample(shot.jobs, len(shot.jobs)))
    )
    first, second = place(shot, grants, fallback), place(shuffled, grants, fallback)
    assert list(first.placed.items()) == list(second.placed.items())
    assert first.unplaced == second.unplaced


@given(st.data())
def test_running_jobs_do_not_move_for_a_job_that_fits_on_free_gpus(data):
    """Whatever the rank of the new job is."""
    shot = data.draw(snapshots())
    kept = [o for o in shot.jobs if o.status is Status.RUNNING]
    new = data.draw(jobs(99))
    shot = replace(shot, jobs=(*kept, new))
    grants = [Grant(o.uid, o.placement.gpus, Reason.text("runs")) for o in kept]
    asked = replace(data.draw(grant_for(new)), at_least=None)
    grants.insert(data.draw(st.integers(0, len(grants))), asked)
    result = place(shot, grants)
    open_nodes = [n for n in shot.nodes if n.accepts]
    options = [
        option
        for option in possible_placements(
            new.evolve(min_gpus=asked.gpus, max_gpus=asked.gpus), open_nodes, map_held(kept)
        )
        if asked.gpu_type in (None, option[3])
    ]
    if options:
        assert new.uid in result.placed
        assert {o.uid: result.placed[o.uid] for o in kept} == {o.uid: o.placement for o in kept}


def map_held(owners):
    return [held(owner) for owner in owners]


@given(st.data())
def test_an_earlier_grant_never_yields_to_a_later_one(data):
    """A rigid grant is not placed only where the earlier grants alone leave too few resources."""
    shot = data.draw(snapshots())
    movable = tuple(o for o in shot.jobs if o.preempt is Preempt.CHECKPOINT and o.status is not Status.SUSPENDED)
    shot = replace(shot, jobs=movable)
    grants, _ = data.draw(grants_for(shot))
    result = place(shot, grants)
    for i, grant in enumerate(grants):
        if grant.uid not in result.placed:
            before = [load(shot.job[g.uid], result.placed[g.uid]) for g in grants[:i] if g.uid in result.placed]
            least = grant.gpus if grant.at_least is None else grant.at_least
            asking = shot.job[grant.uid].evolve(min_gpus=least, max_gpus=least)
            options = possible_placements(asking, [n for n in shot.nodes if n.accepts], before)
            assert not [option for option in options if grant.gpu_type in (None, option[3])]


def test_a_job_is_consolidated_on_the_fewest_nodes_that_it_fits_on():
    """Four GPUs are on one whole node rather than on two halves; eight on two nodes."""
    shot = snapshot([node("n1"), node("n2"), node("n3")], [job("a", 4), job("b", 8)])
    placed = place(shot, [ask("a", 4), ask("b", 8)]).placed
    assert placed["a"] == Placement(("n1",), 4, "v100")
    assert placed["b"] == Placement(("n2", "n3"), 4, "v100")


def test_the_tightest_node_is_taken():
    """One GPU is taken of the node with one free GPU, not of an empty node."""
    shot = snapshot([node("n1"), node("n2")], [running("r", ["n2"], 3), job("a", 1)])
    assert place(shot, [ask("r", 3), ask("a", 1)]).placed["a"].nodes == ("n2",)


def test_a_job_returns_to_the_nodes_of_its_previous_run():
    """Where the job fits, its previous node precedes the tightest."""
    last = Placement(("n1",), 1, "v100")
    shot = snapshot([node("n1"), node("n2")], [running("r", ["n2"], 3), job("a", 1, last_placement=last)])
    assert place(shot, [ask("r", 3), ask("a", 1)]).placed["a"].nodes == ("n1",)


def test_fewer_gpus_are_given_where_the_grant_allows_it():
    """Where the amount does not fit, the largest amount on the fewest nodes is given."""
    shot = snapshot([node("n1"), node("n2", gpus=2)], [job("a", 8, low=1, high=8)])
    assert place(shot, [ask("a", 8, at_least=1)]).placed["a"] == Placement(("n1",), 4, "v100")


def test_a_running_job_grows_when_its_grant_allows_more():
    """A job that holds fewer GPUs than granted gets more as soon as they are free."""
    shot = snapshot([node("n1"), node("n2")], [running("a", ["n1"], 2, low=1, high=8), running("b", ["n1"], 2)])
    assert place(shot, [ask("a", 4, at_least=1), ask("b", 2)]).placed["a"] == Placement(("n2",), 4, "v100")
    assert place(shot, [ask("a", 8, at_least=1), ask("b", 2)]).placed["a"] == Placement(("n2",), 4, "v100")


def test_a_job_that_is_stopping_to_grow_is_not_placed_at_its_old_size():
    """A round before it has stopped does not give it its present placement, unless it cannot grow any more."""
    stopping = running("a", ["n1"], 2, low=1, high=8, status=Status.STOPPING)
    shot = snapshot([node("n1"), node("n2")], [stopping])
    assert place(shot, [ask("a", 8, at_least=1)]).placed["a"].gpus == 8
    blocked = snapshot([node("n1"), node("n2")], [stopping, running("b", ["n2"], 4, preempt=Preempt.NO)])
    assert place(blocked, [ask("b", 4), ask("a", 8, at_least=1)]).placed["a"] == Placement(("n1",), 4, "v100")


def test_a_running_job_moves_only_where_a_grant_would_not_be_placed():
    """Of two jobs on half a node each, one moves for a job that needs a whole node."""
    shot = snapshot([node("n1"), node("n2")], [running("a", ["n1"], 2), running("b", ["n2"], 2), job("c", 4, nodes=1)])
    placed = place(shot, [ask("a", 2), ask("b", 2), ask("c", 4)]).placed
    assert len(placed) == 3
    assert (placed["a"].nodes == ("n1",)) != (placed["b"].nodes == ("n2",))
    moved = place(shot, [ask("c", 4), ask("a", 2), ask("b", 2)]).placed
    assert len(moved) == 3


def test_an_earlier_grant_preempts_a_later_running_job():
    """Where only one of two jobs fits, the order decides, and the other has a reason."""
    shot = snapshot([node("n1")], [running("a", ["n1"], 2), job("b", 4)])
    result = place(shot, [ask("b", 4), ask("a", 2)])
    assert set(result.placed) == {"b"}
    assert reason_words.words(result.unplaced["a"]) == "needs 2 GPUs of type v100; 0 are free"
    assert set(place(shot, [ask("a", 2), ask("b", 4)]).placed) == {"a"}


def test_a_grant_preempts_running_fallback_before_it_shrinks():
    """A fallback is preempted for the full amount of a grant."""
    shot = snapshot([node("n1")], [running("f", ["n1"], 2), job("a", 4, low=1, high=4)])
    result = place(shot, [ask("a", 4, at_least=1)], [ask("f", 2)])
    assert result.placed["a"].gpus == 4
    assert "f" in result.unplaced


def test_the_gpus_of_jobs_without_a_grant_count_as_free():
    """A successor is placed on the GPUs of a running job without a grant, and of a stopping one."""
    for status in (Status.RUNNING, Status.STOPPING):
        shot = snapshot([node("n1")], [running("old", ["n1"], 4, status=status), job("new", 4)])
        assert place(shot, [ask("new", 4)]).placed == {"new": Placement(("n1",), 4, "v100")}


def test_suspension_frees_cpus_but_no_memory():
    """In addition to a suspended CPU-only job another one fits by CPUs, but not if it needs the memory."""
    old = running(
        "old",
        ["n1"],
        0,
        Status.SUSPENDED,
        preempt=Preempt.SUSPEND,
        suspended_by_us=True,
        cpus_per_unit=16,
        memory_per_unit=40,
    )
    for memory, fits in ((20, True), (30, False)):
        shot = snapshot([node("n1", gpus=0)], [old, job("new", 0, cpus_per_unit=16, memory_per_unit=memory)])
        assert ("new" in place(shot, [ask("new", 0)]).placed) is fits


def test_a_suspended_job_preempts_a_later_one_on_its_node():
    """It can be resumed only there, so a later job that fits elsewhere moves."""
    old = running("old", ["n1"], 0, Status.SUSPENDED, preempt=Preempt.SUSPEND, suspended_by_us=True, cpus_per_unit=16)
    new = running("new", ["n1"], 0, cpus_per_unit=16)
    shot = snapshot([node("n1", gpus=0), node("n2", gpus=0)], [old, new])
    placed = place(shot, [ask("old", 0), ask("new", 0)]).placed
    assert (placed["old"].nodes, placed["new"].nodes) == (("n1",), ("n2",))


def test_a_draining_node_retains_its_jobs_and_accepts_no_new_ones():
    """A running job keeps its nodes; a new one has no placement, and a reason."""
    shot = snapshot([node("n1", accepts=False)], [running("a", ["n1"], 2), job("b", 1)])
    result = place(shot, [ask("a", 2), ask("b", 1)])
    assert result.placed["a"].nodes == ("n1",)
    assert reason_words.words(result.unplaced["b"]) == "no node with GPUs accepts jobs now"


def test_a_queued_job_keeps_the_nodes_that_it_was_released_for():
    """Slurm is about to start it, so it is not moved without need."""
    shot = snapshot(
        [node("n1"), node("n2")], [job("a", 1, status=Status.QUEUED, released=Placement(("n2",), 1, "v100"))]
    )
    assert place(shot, [ask("a", 1)]).placed["a"].nodes == ("n2",)


def test_cpu_only_jobs_prefer_nodes_without_gpus():
    """GPU nodes come last."""
    shot = snapshot([node("n1"), node("n2", gpus=0)], [job("a", 0)])
    assert place(shot, [ask("a", 0)]).placed["a"] == Placement(("n2",), 0, None)


@pytest.mark.parametrize(
    ("asking", "gpus", "words"),
    [
        ({}, 16, "needs 16 GPUs of type v100; 6 are free"),
        ({"nodes": 1}, 5, "6 GPUs of type v100 are free, but not on nodes that can take 5 on 1 node"),
        ({"nodes": 2}, 5, "5 GPUs cannot be spread evenly over exactly 2 nodes"),
        ({"cpus_per_unit": 10}, 2, "6 GPUs of type v100 are free, but not on nodes whose CPUs or memory suffice"),
        ({"gpu_types": ("h100",)}, 1, "no node with GPUs of type h100 accepts jobs now"),
        (
            {"features": frozenset({"ib"}), "partition": "p"},
            1,
            "no node with GPUs, feature ib in partition p accepts jobs now",
        ),
    ],
)
def test_an_unplaced_job_has_a_reason(asking, gpus, words):
    """The reason names the request, the free resources, and those that are too few."""
    shot = snapshot(
        [node("n1", cpus=9), node("n2", cpus=9)], [running("r", ["n1"], 2, cpus_per_unit=0), job("a", gpus, **asking)]
    )
    assert reason_words.words(place(shot, [ask("r", 2), ask("a", gpus)]).unplaced["a"]) == words


def test_a_job_gets_another_type_where_no_nodes_of_the_granted_one_hold_it():
    """There are enough, but the first job takes one GPU of each node."""
    nodes = [node(name, 2, gpu_type="k80") for name in ("k1", "k2", "k3")] + [node("v1", 4)]
    wide = job("wide", 3, gpu_types=("k80",))
    narrow = job("narrow", 2, gpu_types=("k80", "v100"), max_nodes=1)
    grants = (ask("wide", 3, gpu_type="k80"), ask("narrow", 2, gpu_type="k80", other_types=("v100",)))
    result = place(snapshot(nodes, [wide, narrow]), grants)
    assert result.placed["narrow"] == Placement(("v1",), 2, "v100")
    assert "k80" in reason_words.words(result.on_other_types["narrow"])
    alone = place(snapshot(nodes, [wide, narrow]), grants[1:])
    assert alone.placed["narrow"].gpu_type == "k80"
    assert not alone.on_other_types
    bound = replace(grants[1], other_types=())
    assert "narrow" in place(snapshot(nodes, [wide, narrow]), (grants[0], bound)).unplaced


def test_a_job_stays_on_another_type_that_it_holds():
    """Where the granted type has no room, a running job keeps its GPUs rather than move to those of a third type."""
    nodes = [node("p1", 1, gpu_type="p100"), node("k1", 1, gpu_type="k80"), node("v1", 1)]
    first, stays = (
        running("first", ["v1"]),
        job("stays", 1, status=Status.RUNNING, placement=Placement(("k1",), 1, "k80")),
    )
    grants = (ask("first", 1, gpu_type="v100"), ask("stays", 1, gpu_type="v100", other_types=("p100", "k80")))
    result = place(snapshot(nodes, [first, stays]), grants)
    assert result.placed["stays"] == stays.placement


def test_granted_jobs_get_other_types_before_fallbacks_and_take_none_from_grants():
    """A fallback gets what they leave."""
    nodes = [node("k1", 1, gpu_type="k80"), node("v1", 1)]
    jobs = [job(uid, 1) for uid in ("first", "second", "spare")]
    grants = (ask("first", 1, gpu_type="v100"), ask("second", 1, gpu_type="v100", other_types=("k80",)))
    result = place(snapshot(nodes, jobs), grants, (ask("spare", 1, gpu_type="k80", other_types=("v100",)),))
    assert {uid: found.gpu_type for uid, found in result.placed.items()} == {"first": "v100", "second": "k80"}


def test_ten_thousand_jobs_on_four_thousand_gpus_are_placed():
    """At the largest size of one daemon, every GPU is used, and every job is placed or has a reason."""
    rng = random.Random(7)  # noqa: S311 - a workload, not a secret
    nodes = [node(f"n{i:03}", gpus=8, cpus=64, memory=512) for i in range(512)]
    sizes = [rng.choice((1, 1, 2, 4, 8, 16)) for _ in range(10_000)]
    shot = snapshot(nodes, [job(f"j{i:05}", gpus, low=1, high=gpus) for i, gpus in enumerate(sizes)])
    result = place(shot, [ask(f"j{i:05}", gpus) for i, gpus in enumerate(sizes)])
    assert sum(found.gpus for found in result.placed.values()) == 4096
    assert len(result.placed) + len(result.unplaced) == 10_000


def test_a_prescribed_placement_is_not_changed():
    """A better one is not searched, and later jobs are preempted for it."""
    shot = snapshot([node("n1"), node("n2")], [running("r", ["n2"], 3), job("a", 2)])
    assert place(shot, [put("a", {"n1": 1, "n2": 1}), ask("r", 3)]).placed["a"].nodes == ("n1", "n2")
    placed = place(shot, [put("a", {"n2": 2}), ask("r", 3)]).placed
    assert (placed["a"].nodes, placed["r"].nodes) == (("n2",), ("n1",))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"n2": 2}, "n2, where it is to have 2 GPUs, has 1 free"),
        ({"n3": 2}, "n3, where it is to be, accepts no jobs now"),
        ({"n4": 2}, "n4, where it is to be, does not suit it"),
        ({"n5": 2}, "n5, where it is to be, is not in the cluster"),
        ({"n6": 2}, "n6, where it is to be, has too few free CPUs or too little memory"),
    ],
)
def test_a_prescribed_placement_that_is_impossible_has_a_reason(where, words):
    """The job is not placed elsewhere, and the reason names the node and what it lacks."""
    nodes = [node("n1"), node("n2"), node("n3", accepts=False), node("n4", gpu_type="k80"), node("n6", cpus=1)]
    result = place(snapshot(nodes, [running("r", ["n2"], 3, preempt=Preempt.NO), job("a", 2)]), [put("a", where)])
    assert result.placed.keys() == {"r"}
    assert reason_words.words(result.unplaced["a"]) == words


def test_a_running_job_moves_to_its_prescribed_placement():
    """Even where its present placement has as many GPUs."""
    shot = snapshot([node("n1"), node("n2")], [running("a", ["n1"], 2)])
    assert place(shot, [put("a", {"n2": 2})]).placed["a"].nodes == ("n2",)


def test_an_amount_without_an_even_placement_is_spread_unevenly():
    """On the fewest nodes, filled one after the other, and only where the cluster can realise it."""
    nodes = [node("n1"), node("n2", gpus=2), node("n3")]
    jobs = [job("a", 7)]
    assert place(snapshot(nodes, jobs), [ask("a", 7)]).placed == {}
    placed = place(snapshot(nodes, jobs, uneven=True), [ask("a", 7)]).placed
    assert placed["a"].node_gpus == (("n1", 4), ("n3", 3))
    even = place(snapshot(nodes, [job("a", 6)], uneven=True), [ask("a", 6)]).placed
    assert even["a"] == Placement(("n1", "n3"), 3, "v100")
    rest = place(snapshot(nodes, [job("a", 5)], uneven=True), [ask("a", 5)]).placed
    assert rest["a"].node_gpus == (("n1", 4), ("n2", 1))


def test_an_uneven_placement_keeps_the_limits_on_nodes():
    """On exactly the job's number of nodes, or on its most."""
    nodes = [node("n1", gpus=8), node("n2"), node("n3")]
    fixed = snapshot(nodes, [job("a", 7, nodes=2)], uneven=True)
    assert place(fixed, [ask("a", 7)]).placed["a"].node_gpus == (("n1", 6), ("n2", 1))
    limited = snapshot(nodes, [job("a", 13, max_nodes=2)], uneven=True)
    assert place(limited, [ask("a", 13)]).placed == {}


def test_later_jobs_are_preempted_for_an_uneven_placement():
    """The least important jobs first, and no more than necessary."""
    nodes = [node("n1"), node("n2")]
    jobs = [running("r", ["n1"], 1), running("s", ["n2"], 4), job("a", 7)]
    placed = place(snapshot(nodes, jobs, uneven=True), [ask("a", 7), ask("r", 1), ask("s", 4)]).placed
    assert placed["a"].gpus == 7
    assert placed["r"].gpus == 1
    assert "s" not in placed


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 24), st.integers(1, 24))
def test_uneven_placements_use_every_gpu(sizes, gpus, low):
    """A job gets all GPUs that it is granted, or all of the cluster."""
    cluster = [node(f"n{i}", gpus=count) for i, count in enumerate(sizes)]
    low = min(low, gpus)
    placed = place(snapshot(cluster, [job("a", gpus, low)], uneven=True), [ask("a", gpus, low)]).placed
    expected = min(gpus, sum(sizes))
    assert (placed["a"].gpus if placed else 0) == (expected if expected >= low else 0)


def rack_nodes():
    return [node(f"n{i}", rack=f"r{i % 3}") for i in range(9)]


def test_several_nodes_are_taken_from_one_rack():
    """The rack with the fewest nodes that are enough; otherwise as few racks as possible."""
    shot = snapshot(rack_nodes(), [running("r", ["n1"], 4), running("s", ["n2"], 1), job("a", 8), job("b", 16)])
    assert place(shot, [ask("r", 4), ask("s", 1), ask("a", 8)]).placed["a"].nodes == ("n4", "n7")
    racks = {shot.node[name].rack for name in place(shot, [ask("r", 4), ask("s", 1), ask("b", 16)]).placed["b"].nodes}
    assert len(racks) == 2


def test_a_job_grows_in_the_rack_of_its_previous_run():
    """Nodes of that rack come first."""
    last = Placement(("n4",), 4, "v100")
    shot = snapshot(rack_nodes(), [job("a", 8, last_placement=last)])
    assert place(shot, [ask("a", 8)]).placed["a"].nodes == ("n1", "n4")


def colocated(uid, other, where, gpus=2, **more):
    return running(uid, where, gpus, co_runner=other, **more)


PAIR = [ask("a", 2), ask("b", 2, co_runner="a")]


def test_a_pair_gets_one_set_of_gpus_and_the_cpus_of_both():
    """The two have one placement that holds both; where none does, the host is placed alone."""
    a, b = job("a", 2, cpus_per_unit=4), job("b", 2, cpus_per_unit=4)
    result = place(snapshot([node("n1", cpus=8), node("n2", cpus=16)], [a, b], sharing=True), PAIR)
    assert result.placed == {"a": Placement(("n2",), 2, "v100"), "b": Placement(("n2",), 2, "v100")}
    assert result.co_runners == {"a": "b", "b": "a"}
    alone = place(snapshot([node("n1", cpus=8)], [a, b], sharing=True), PAIR)
    assert set(alone.placed) == {"a"}
    assert alone.co_runners == {}
    assert reason_words.words(alone.unplaced["b"]) == "is to share the GPUs of job a, but the nodes cannot hold both"


def test_a_guest_is_placed_with_its_running_host():
    """The host does not move for it, and two pairs fill one node."""
    jobs = [running("a", ["n1"], 2), job("b", 2), running("c", ["n1"], 2), job("d", 2)]
    grants = [*PAIR, ask("c", 2), ask("d", 2, co_runner="c")]
    result = place(snapshot([node("n1"), node("n2")], jobs, sharing=True), grants)
    assert {found.nodes for found in result.placed.values()} == {("n1",)}
    assert len(result.placed) == 4


def test_a_host_is_placed_with_its_running_guest():
    """Of two jobs that are to share GPUs, the running one keeps its nodes."""
    shot = snapshot([node("n1"), node("n2")], [job("a", 2), running("b", ["n2"], 2)], sharing=True)
    assert place(shot, PAIR).placed["a"].nodes == ("n2",)


def test_a_pair_stays_together_and_moves_together():
    """A pair keeps its nodes if possible, and is preempted as one job for a more important one."""
    pair = [colocated("a", "b", ["n1"]), colocated("b", "a", ["n1"])]
    shot = snapshot([node("n1"), node("n2", gpus=2)], [*pair, job("c", 4, nodes=1)], sharing=True)
    assert place(shot, PAIR).placed["b"].nodes == ("n1",)
    assert place(shot, [PAIR[0], replace(PAIR[1], co_runner="a")]).co_runners == {"a": "b", "b": "a"}
    moved = place(shot, [ask("c", 4), *PAIR])
    assert moved.placed["a"] == moved.placed["b"] == Placement(("n2",), 2, "v100")
    crowded = place(snapshot([node("n1")], [*pair, job("c", 4)], sharing=True), [ask("c", 4), *PAIR])
    assert set(crowded.placed) == {"c"}
    assert reason_words.words(crowded.unplaced["b"]) == "is to share the GPUs of job a, which has no place either"


def test_jobs_of_a_dissolved_pair_get_gpus_of_their_own():
    """The more important job keeps its nodes; the other moves, or is not placed."""
    pair = [colocated("a", "b", ["n1"]), colocated("b", "a", ["n1"])]
    apart = [ask("a", 2), ask("b", 2)]
    assert set(place(snapshot([node("n1", gpus=2)], pair, sharing=True), apart).placed) == {"a"}
    result = place(snapshot([node("n1", gpus=2), node("n2", gpus=2)], pair, sharing=True), apart)
    assert (result.placed["a"].nodes, result.placed["b"].nodes) == (("n1",), ("n2",))
    assert result.co_runners == {}


def test_a_job_shares_the_gpus_of_a_pinned_host():
    """It is placed there, or not at all."""
    shot = snapshot([node("n1"), node("n2")], [running("a", ["n1"], 2, preempt=Preempt.NO), job("b", 2)], sharing=True)
    assert place(shot, PAIR).placed["b"].nodes == ("n1",)
    tight = snapshot([node("n1", cpus=3), node("n2")], shot.jobs, sharing=True)
    assert reason_words.words(place(tight, PAIR).unplaced["b"]) == "the nodes of job a cannot hold it too"


def test_jobs_that_suit_no_common_node_are_no_pair():
    """The host is placed, and the guest's reason says why it is not."""
    jobs = [job("a", 2, only_nodes=frozenset({"n1"})), job("b", 2, only_nodes=frozenset({"n2"}))]
    result = place(snapshot([node("n1"), node("n2")], jobs, sharing=True), PAIR)
    assert set(result.placed) == {"a"}
    assert reason_words.words(result.unplaced["b"]) == "no nodes suit both it and job a"


def test_a_grant_can_limit_the_number_of_nodes():
    """The job is not placed on more nodes, and moves if it is spread already."""
    nodes = [node("n1"), node("n2")]
    tight = snapshot([node("n1", 3), node("n2", 3)], [job("a", 4)])
    assert place(tight, [ask("a", 4)]).placed["a"].nodes == ("n1", "n2")
    assert set(place(tight, [ask("a", 4, max_nodes=1)]).unplaced) == {"a"}
    spread = snapshot(nodes, [running("a", ["n1", "n2"], 2)])
    assert place(spread, [ask("a", 4)]).placed["a"].nodes == ("n1", "n2")
    assert place(spread, [ask("a", 4, max_nodes=1)]).placed["a"].nodes == ("n1",)


def test_no_third_job_joins_two_pinned_jobs_that_share_gpus():
    """Three jobs on the same GPUs are never placed."""
    pinned = [colocated("a", "c", ["n1"], preempt=Preempt.NO), colocated("c", "a", ["n1"], preempt=Preempt.NO)]
    result = place(snapshot([node("n1")], [*pinned, job("b", 2)], sharing=True), [*PAIR, ask("c", 2)])
    assert result.co_runners == {"a": "c", "c": "a"}
    assert reason_words.words(result.unplaced["b"]) == "the nodes of job a cannot hold it too"
