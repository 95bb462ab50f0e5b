from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.model import Grant, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.placement import place
from tests.unit.strategies import grant_for, grants_for, held, jobs, load, overfull, rooms, snapshots


def node(name, gpus=4, gpu_type="v100", cpus=16, memory=64, **more):
    return Node(name, gpu_type if gpus else None, gpus, cpus, memory, **more)


def job(uid, gpus=1, low=None, high=None, **more):
    low, high = low if low is not None else gpus, high if high is not None else gpus
    return Job(uid, uid, uid, "ann", 0.0, gpus, low, high, **more)


def running(uid, where, gpus_per_node=1, status=Status.RUNNING, **more):
    gpus = len(where) * gpus_per_node
    placement = Placement(tuple(where), gpus_per_node, "v100" if gpus_per_node else None)
    return job(uid, gpus, status=status, placement=placement, **more)


def snapshot(nodes, jobs):
    return Snapshot(0.0, 1, 60.0, tuple(nodes), tuple(jobs))


def ask(uid, gpus, at_least=None, gpu_type=None):
    return Grant(uid, gpus, "because", at_least, gpu_type)


@given(st.data())
def test_every_placement_is_one_that_slurm_can_realise(data):
    """Gangs are whole, on distinct fitting nodes of one type, of an allowed size, and no node is over capacity."""
    shot = data.draw(snapshots())
    grants, fallback = data.draw(grants_for(shot))
    placed = place(shot, grants, fallback).placed
    asked = {grant.uid: grant for grant in (*grants, *fallback)}
    for uid, found in placed.items():
        owner, spots = shot.job[uid], [shot.node[name] for name in found.nodes]
        assert len(set(found.nodes)) == len(found.nodes)
        if owner.gpus:
            assert {spot.gpu_type for spot in spots} == {found.gpu_type}
        if uid in asked and not owner.pinned:
            grant = asked[uid]
            assert (grant.gpus if grant.at_least is None else grant.at_least) <= found.gpus <= grant.gpus
            assert (len(found.nodes), found.gpus_per_node) in owner.spreads(found.gpus)
            assert grant.gpu_type in (None, found.gpu_type)
        if found != owner.placement:
            assert all(spot.accepts and owner.matches(spot) for spot in spots)
    holdings = [(found, load(shot.job[uid], found.gpus_per_node)) for uid, found in placed.items()]
    for other in shot.jobs:
        lingers = other.status is Status.RUNNING and other.preempt is Preempt.SUSPEND
        if other.uid not in placed and (other.status is Status.SUSPENDED or lingers):
            placement, (gpus, cpus, memory) = held(other)
            holdings.append((placement, (gpus, 0 if lingers else cpus, memory)))
    assert overfull(shot.nodes, holdings) == []


@given(st.data())
def test_no_grant_is_lost_and_no_pinned_job_moves(data):
    """Each granted job is placed or has a reason; pinned and suspended jobs can only be where they are."""
    shot = data.draw(snapshots())
    grants, fallback = data.draw(grants_for(shot))
    result = place(shot, grants, fallback)
    pinned = {owner.uid for owner in shot.jobs if owner.pinned}
    assert result.placed.keys() | result.unplaced.keys() == {g.uid for g in (*grants, *fallback)} | pinned
    assert not result.placed.keys() & result.unplaced.keys()
    assert all(result.unplaced.values())
    for owner in shot.jobs:
        if owner.pinned:
            assert result.placed[owner.uid] == owner.placement
        if owner.status is Status.SUSPENDED:
            assert result.placed.get(owner.uid) in (None, owner.placement)


@given(st.data(), st.randoms(use_true_random=False))
def test_placement_does_not_depend_on_the_order_of_nodes_and_jobs(data, rng):
    """The same facts in another order give the same answer."""
    shot = data.draw(snapshots())
    grants, fallback = data.draw(grants_for(shot))
    shuffled = replace(
        shot, nodes=tuple(rng.sample(shot.nodes, len(shot.nodes))), jobs=tuple(rng.sample(shot.jobs, len(shot.jobs)))
    )
    first, second = place(shot, grants, fallback), place(shuffled, grants, fallback)
    assert list(first.placed.items()) == list(second.placed.items())
    assert first.unplaced == second.unplaced


@given(st.data())
def test_running_jobs_stay_when_there_is_room_for_the_rest(data):
    """One newcomer that fits beside all granted running jobs moves none of them, wherever it stands in the order."""
    shot = data.draw(snapshots())
    kept = [o for o in shot.jobs if o.status is Status.RUNNING]
    new = data.draw(jobs(99))
    shot = replace(shot, jobs=(*kept, new))
    grants = [Grant(o.uid, o.placement.gpus, "runs") for o in kept]
    asked = replace(data.draw(grant_for(new)), at_least=None)
    grants.insert(data.draw(st.integers(0, len(grants))), asked)
    result = place(shot, grants)
    open_nodes = [n for n in shot.nodes if n.accepts]
    options = [
        room
        for room in rooms(replace(new, min_gpus=asked.gpus, max_gpus=asked.gpus), open_nodes, map_held(kept))
        if asked.gpu_type in (None, room[3])
    ]
    if options:
        assert new.uid in result.placed
        assert {o.uid: result.placed[o.uid] for o in kept} == {o.uid: o.placement for o in kept}


def map_held(owners):
    return [held(owner) for owner in owners]


@given(st.data())
def test_an_earlier_grant_never_yields_to_a_later_one(data):
    """Of rigid grants for running jobs and newcomers, one goes without only where the earlier ones alone fill up."""
    shot = data.draw(snapshots())
    movable = tuple(o for o in shot.jobs if o.preempt is Preempt.CHECKPOINT and o.status is not Status.SUSPENDED)
    shot = replace(shot, jobs=movable)
    grants, _ = data.draw(grants_for(shot))
    result = place(shot, grants)
    for i, grant in enumerate(grants):
        if grant.uid not in result.placed:
            before = [
                (result.placed[g.uid], load(shot.job[g.uid], result.placed[g.uid].gpus_per_node))
                for g in grants[:i]
                if g.uid in result.placed
            ]
            least = grant.gpus if grant.at_least is None else grant.at_least
            asking = replace(shot.job[grant.uid], min_gpus=least, max_gpus=least)
            options = rooms(asking, [n for n in shot.nodes if n.accepts], before)
            assert not [room for room in options if grant.gpu_type in (None, room[3])]


def test_a_job_is_consolidated_on_the_fewest_nodes_that_it_fits_on():
    """Four GPUs go to one whole node rather than to two halves; eight to two nodes."""
    shot = snapshot([node("n1"), node("n2"), node("n3")], [job("a", 4), job("b", 8)])
    placed = place(shot, [ask("a", 4), ask("b", 8)]).placed
    assert placed["a"] == Placement(("n1",), 4, "v100")
    assert placed["b"] == Placement(("n2", "n3"), 4, "v100")


def test_the_tightest_node_is_taken():
    """One GPU goes where one is left, not to an empty node."""
    shot = snapshot([node("n1"), node("n2")], [running("r", ["n2"], 3), job("a", 1)])
    assert place(shot, [ask("r", 3), ask("a", 1)]).placed["a"].nodes == ("n2",)


def test_a_job_returns_to_the_nodes_of_its_previous_run():
    """Where it fits, the last node wins over the tightest."""
    last = Placement(("n1",), 1, "v100")
    shot = snapshot([node("n1"), node("n2")], [running("r", ["n2"], 3), job("a", 1, last_placement=last)])
    assert place(shot, [ask("r", 3), ask("a", 1)]).placed["a"].nodes == ("n1",)


def test_fewer_gpus_are_given_where_the_grant_allows_it():
    """Of an amount that does not fit, the largest compact part is given."""
    shot = snapshot([node("n1"), node("n2", gpus=2)], [job("a", 8, low=1, high=8)])
    assert place(shot, [ask("a", 8, at_least=1)]).placed["a"] == Placement(("n1",), 4, "v100")


def test_a_kept_job_grows_when_its_grant_asks_for_more():
    """A job that holds less than granted takes more GPUs as soon as they are free."""
    shot = snapshot([node("n1"), node("n2")], [running("a", ["n1"], 2, low=1, high=8), running("b", ["n1"], 2)])
    assert place(shot, [ask("a", 4, at_least=1), ask("b", 2)]).placed["a"] == Placement(("n2",), 4, "v100")
    assert place(shot, [ask("a", 8, at_least=1), ask("b", 2)]).placed["a"] == Placement(("n2",), 4, "v100")


def test_a_kept_job_moves_only_where_a_grant_would_go_without():
    """Two jobs on half a node each are packed together, by one move, for a job that needs a whole node."""
    shot = snapshot([node("n1"), node("n2")], [running("a", ["n1"], 2), running("b", ["n2"], 2), job("c", 4, nodes=1)])
    placed = place(shot, [ask("a", 2), ask("b", 2), ask("c", 4)]).placed
    assert len(placed) == 3
    assert (placed["a"].nodes == ("n1",)) != (placed["b"].nodes == ("n2",))
    moved = place(shot, [ask("c", 4), ask("a", 2), ask("b", 2)]).placed
    assert len(moved) == 3


def test_an_earlier_grant_takes_the_place_of_a_later_running_job():
    """Where there is no room for both, the order decides, and the loser is told why."""
    shot = snapshot([node("n1")], [running("a", ["n1"], 2), job("b", 4)])
    result = place(shot, [ask("b", 4), ask("a", 2)])
    assert set(result.placed) == {"b"}
    assert result.unplaced["a"] == "needs 2 GPUs of type v100; 0 are free"
    assert set(place(shot, [ask("a", 2), ask("b", 4)]).placed) == {"a"}


def test_a_grant_displaces_running_fallback_before_it_shrinks():
    """What runs as fallback makes room for the full amount of a grant."""
    shot = snapshot([node("n1")], [running("f", ["n1"], 2), job("a", 4, low=1, high=4)])
    result = place(shot, [ask("a", 4, at_least=1)], [ask("f", 2)])
    assert result.placed["a"].gpus == 4
    assert "f" in result.unplaced


def test_the_gpus_of_a_job_that_must_go_count_as_free():
    """A successor is placed on the GPUs of a running job without a grant, and of a stopping one."""
    for status in (Status.RUNNING, Status.STOPPING):
        shot = snapshot([node("n1")], [running("old", ["n1"], 4, status=status), job("new", 4)])
        assert place(shot, [ask("new", 4)]).placed == {"new": Placement(("n1",), 4, "v100")}


def test_a_suspended_job_gives_its_cpus_but_not_its_memory():
    """Beside a suspended CPU-only job another one fits by CPUs, and not if it needs the memory."""
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


def test_a_suspended_job_displaces_a_later_one_from_its_node():
    """It can go on only where it is, so a later job that can be elsewhere moves."""
    old = running("old", ["n1"], 0, Status.SUSPENDED, preempt=Preempt.SUSPEND, suspended_by_us=True, cpus_per_unit=16)
    new = running("new", ["n1"], 0, cpus_per_unit=16)
    shot = snapshot([node("n1", gpus=0), node("n2", gpus=0)], [old, new])
    placed = place(shot, [ask("old", 0), ask("new", 0)]).placed
    assert (placed["old"].nodes, placed["new"].nodes) == (("n1",), ("n2",))


def test_a_draining_node_keeps_its_jobs_and_takes_no_new_ones():
    """What runs there stays; a newcomer goes without, and is told so."""
    shot = snapshot([node("n1", accepts=False)], [running("a", ["n1"], 2), job("b", 1)])
    result = place(shot, [ask("a", 2), ask("b", 1)])
    assert result.placed["a"].nodes == ("n1",)
    assert result.unplaced["b"] == "no node with GPUs accepts jobs now"


def test_a_queued_job_stays_on_the_nodes_that_it_was_released_for():
    """Its start is under way: it is not sent elsewhere without need."""
    shot = snapshot(
        [node("n1"), node("n2")], [job("a", 1, status=Status.QUEUED, released=Placement(("n2",), 1, "v100"))]
    )
    assert place(shot, [ask("a", 1)]).placed["a"].nodes == ("n2",)


def test_a_cpu_only_job_spares_the_gpu_nodes():
    """CPU-only jobs go to nodes without GPUs first."""
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
def test_a_job_without_a_place_is_told_why(asking, gpus, words):
    """The reason names what it needs, what is free and what is missing."""
    shot = snapshot(
        [node("n1", cpus=9), node("n2", cpus=9)], [running("r", ["n1"], 2, cpus_per_unit=0), job("a", gpus, **asking)]
    )
    assert place(shot, [ask("r", 2), ask("a", gpus)]).unplaced["a"] == words


def test_ten_thousand_jobs_on_four_thousand_gpus_are_placed_in_one_go():
    """At the size that one daemon has to bear, every GPU is used and every job is accounted for."""
    rng = random.Random(7)  # noqa: S311 - a workload, not a secret
    nodes = [node(f"n{i:03}", gpus=8, cpus=64, memory=512) for i in range(512)]
    sizes = [rng.choice((1, 1, 2, 4, 8, 16)) for _ in range(10_000)]
    shot = snapshot(nodes, [job(f"j{i:05}", gpus, low=1, high=gpus) for i, gpus in enumerate(sizes)])
    result = place(shot, [ask(f"j{i:05}", gpus) for i, gpus in enumerate(sizes)])
    assert sum(found.gpus for found in result.placed.values()) == 4096
    assert len(result.placed) + len(result.unplaced) == 10_000
