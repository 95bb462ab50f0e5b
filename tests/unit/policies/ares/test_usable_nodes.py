"""Ares where jobs can use different GPUs: two types, constraints, jobs that no node can hold, and limits."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Node, Preempt
from metasched.core.policy import PolicyState
from metasched.scheduling.engine import run_round
from metasched.simulator.records import Settings, Submission
from metasched.simulator.simulation import simulate
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from policies.ares.policy import Ares, AresParameters
from policies.ares.reference_system import ReferenceSystem, VirtualClock
from tests.builders import ByGpus, job, linear, node, nodes, running, snapshot
from tests.unit.fluid import fluid
from tests.unit.workloads import workload

HOUR = 3600.0
V100 = (Node("v", "v100", 8, 0, 0),)
K80 = (Node("k", "k80", 8, 0, 0),)
NODE_LIMITS = ("only_nodes", "excluded_nodes")
FREE = Settings(round_seconds=600.0, min_round_seconds=0.0)


def submission(uid, gpus, hours, *, at=0.0, high=None, types=("v100",), declared=True):
    """A job of so many hours on its GPUs, with a speed proportional to the GPUs and the same on all types."""
    curve = Curve(tuple((n, float(n)) for n in range(1, (high or gpus) + 1)))
    request = job(uid, gpus, 1 if high else gpus, high, submitted=at, cpus_per_unit=0, gpu_types=types)
    return Submission(request, ScalingTraining(hours * HOUR * gpus, dict.fromkeys(types, curve)), declared=declared)


def ends(submissions, the_nodes, awaited=None, policy=None):
    """When each awaited job (default: all) ends, in hours."""
    ordered = workload(*submissions)
    uids = [one.job.uid for one in ordered.submissions]
    window = None if awaited is None else range(uids.index(awaited), uids.index(awaited) + 1)
    outcome = simulate(ordered, the_nodes, policy or Ares(), FREE, window=window)
    return {one.uid: one.finished / HOUR for one in outcome.jobs if one.finished is not None}


def decided(jobs, the_nodes, *, state=None, **more):
    return run_round(snapshot(jobs, the_nodes, **more), Ares(), state)


# -- the unknown-demand pool -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idle", [(), K80], ids=["one type", "8 idle k80"])
def test_the_pool_counts_only_gpus_that_its_jobs_can_use(idle):
    """Eight declared jobs of 1 h and eight undeclared jobs of 100 h, all on v100 alone, have four GPUs each."""
    declared = [submission(f"d{i}", 1, 1.0) for i in range(8)]
    undeclared = [submission(f"u{i}", 1, 100.0, declared=False) for i in range(8)]
    found = ends([*declared, *undeclared], (*V100, *idle))
    assert sorted(round(found[f"d{i}"], 1) for i in range(8)) == [1.0] * 4 + [2.0] * 2 + [2.5] * 2


def test_pending_jobs_that_no_node_can_hold_are_not_in_the_pool():
    """Fifty undeclared jobs of 64 GPUs wait; two undeclared jobs of one GPU have no more than their part."""
    jobs = [job(f"big{i:02}", 64) for i in range(50)]
    jobs += [job(f"k{i}", 1, high=8, left=1e5, speed=linear(1.0), submitted=1.0) for i in range(6)]
    jobs += [job(f"u{i}", 8, 1, 8, submitted=2.0) for i in range(2)]
    result = decided(jobs, nodes(1, 8), now=3.0)
    assert sum(place.gpus for uid, place in result.targets.items() if uid.startswith("u")) == 2
    assert sum(place.gpus for uid, place in result.targets.items() if uid.startswith("k")) == 6
    assert "even empty" in reason_words.words(result.reasons["big00"])


def test_the_pool_leaves_the_gpus_of_jobs_that_can_use_no_others():
    """Twelve undeclared jobs on any type and four declared ones on v100: the pool has at most four v100."""
    jobs = [job(f"u{i:02}", 1, gpu_types=("v100", "k80")) for i in range(12)]
    jobs += [job(f"k{i}", 1, left=1e5, speed=linear(1.0), gpu_types=("v100",), submitted=1.0) for i in range(4)]
    result = decided(jobs, (*nodes(1, 8), *nodes(1, 8, "k80")), now=2.0)
    assert len(result.targets) == 16
    assert all(result.targets[f"k{i}"].gpu_type == "v100" for i in range(4))


def test_a_gang_of_unknown_demand_runs_on_each_type():
    """On either type, the first gang of the pool has more than the pool's part, because it could not run otherwise."""
    jobs = [job(f"u{t}", 8, gpu_types=(t,)) for t in ("v100", "k80")]
    for gpu_type in ("v100", "k80"):
        known = {"speed": ByGpus(((1, 1.0),), gpu_type), "gpu_types": (gpu_type,), "submitted": 1.0}
        jobs += [job(f"k{gpu_type}{i}", 1, left=1e5, **known) for i in range(9)]
    result = decided(jobs, (*nodes(1, 8), *nodes(1, 8, "k80")), now=2.0)
    assert set(result.targets) == {"uv100", "uk80"}


# -- the reference system ----------------------------------------------------------------------------------------------


def test_pending_jobs_that_no_node_can_hold_slow_no_other_job_down():
    """A job of 40 GPU-hours among short ones, at a load of 0.95: it ends as soon as without them."""
    short = [submission(f"s{i:02}", 1, 3.8, at=i * 0.5 * HOUR, high=8) for i in range(80)]
    big = submission("big", 1, 40.0, at=5.1 * HOUR, high=8)
    never = [submission(f"n{i}", 64, 10.0) for i in range(5)]
    alone = ends([*short, big], V100, "big")["big"]
    assert ends([*short, big, *never], V100, "big")["big"] == pytest.approx(alone)


def test_a_job_enters_when_a_node_can_hold_it():
    """It waits with its reason until then, and keeps its remaining demand while the node is down."""
    small = job("a", 1, left=1e6, speed=linear(1.0))
    big = job("big", 8, left=8000, speed=linear(1.0))
    first = decided([small, big], nodes(1))
    assert "big" not in first.targets
    assert "even empty" in reason_words.words(first.reasons["big"])
    second = decided([small, big], nodes(2), now=100.0, state=first.state)
    (clock,) = [clock for clock in second.state.data["gps"]["clocks"] if clock["groups"]]
    assert {uid for _, uid, _ in clock["active"]} == {"a", "big"}
    assert second.state.data["finish"]["big"] == clock["virtual"] + 8000
    third = decided([small, big], nodes(2), now=200.0, state=second.state)
    down = decided([small, big], nodes(1), now=300.0, state=third.state)
    up = decided([small, big], nodes(2), now=9999.0, state=down.state)
    clock = next(
        clock for clock in up.state.data["gps"]["clocks"] if any(uid == "big" for _, uid, _ in clock["active"])
    )
    assert up.state.data["finish"]["big"] - clock["virtual"] == pytest.approx(8000 - 2 * 100 * 8 / 2)


def test_a_running_job_that_could_not_start_again_keeps_its_nodes():
    """Its node is drained; no job of the queue precedes it there."""
    one = running(job("a", 2, left=1e6, speed=linear(1.0)), "v100-0")
    drained = (nodes(1)[0].__class__("v100-0", "v100", 4, 64, 1 << 40, accepts=False),)
    assert set(decided([one], drained).targets) == {"a"}


def test_jobs_of_different_nodes_are_compared_by_their_ends():
    """Jobs that can use v100 alone end later than others of less demand per GPU, which are ahead on any type."""
    narrow = [job(f"n{i}", 4, left=400, speed=linear(1.0), gpu_types=("v100",)) for i in range(4)]
    wide = job("w", 4, left=600, speed=TwoTypes(), gpu_types=("v100", "k80"), submitted=1.0)
    result = decided([*narrow, wide], (*nodes(1), *nodes(1, 16, "k80")), now=1.0)
    assert result.reasons["w"].facts != result.reasons["n0"].facts
    assert dict(result.reasons["w"].facts)["position"] == 1


class TwoTypes:
    """The same speed for each GPU on both types."""

    def steps_per_second(self, gpu_type, spread):
        return float(sum(spread))

    def steps_per_second_with(self, other, gpu_type, spread):
        return None


def by_types(jobs, gpus):
    """Ends under fair sharing where jobs of one type share it: of each type alone, by brute force."""
    found = {}
    for gpu_type, count in gpus.items():
        own = [(uid, at, work, weight) for uid, at, work, weight, on in jobs if on == gpu_type]
        found |= fluid(own, count) if own else {}
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100), st.integers(1, 200), st.sampled_from((0.5, 1.0)), st.sampled_from(("v", "k", "none"))
        ),
        min_size=1,
        max_size=10,
    )
)
def test_jobs_of_disjoint_nodes_end_as_if_each_had_a_system_of_its_own(drawn):
    """Jobs that no node can hold never end, and change nothing."""
    gpus = {"v": 4.0, "k": 2.0}
    jobs = [(f"j{i}", float(at), float(work), w, on) for i, (at, work, w, on) in enumerate(sorted(drawn))]
    clocks = {"v": VirtualClock({"v"}), "k": VirtualClock({"k"}), "none": VirtualClock(())}
    reference = ReferenceSystem(gpus, 0.0, clocks.values())
    found = {}
    for uid, at, work, weight, on in jobs:
        found |= dict(reference.advance(at))
        clocks[on].arrive(uid, work, weight)
    found |= dict(reference.advance(math.inf))
    assert found == pytest.approx(by_types(jobs, gpus))


def test_jobs_on_any_type_take_what_others_cannot_use():
    """Of 8 v100 and 8 k80, one job on v100 alone and one on any type have 8 each; three on any type leave it 4."""
    for wide, end in ((1, 10.0), (3, 20.0)):
        narrow, any_type = VirtualClock({"v"}), VirtualClock({"v", "k"})
        reference = ReferenceSystem({"v": 8.0, "k": 8.0}, 0.0, (narrow, any_type))
        narrow.arrive("n", 80.0)
        for i in range(wide):
            any_type.arrive(f"w{i}", 1e9)
        assert reference.advance(end) == [("n", pytest.approx(end))]


def test_the_state_of_the_first_version_is_read():
    """All jobs had one clock, whose virtual time and finish times hold."""
    jobs = [job("a", 4, left=1e6, speed=linear(1.0)), job("b", 4, left=1e5, speed=linear(1.0)), job("u", 1)]
    gps = {"gpus": 4, "now": 10.0, "virtual": 20.0, "weight": 2.0, "others": 1.0}
    gps["active"] = [[100020.0, "b", 1.0], [1000000.0, "a", 1.0]]
    rest = {"a": [1e6, 4, 1e6, 0.0], "b": [1e5, 4, 1e5, 0.0]}
    old = {"gps": gps, "finish": {"a": 1e6, "b": 100020.0}, "since": {"u": 5.0}, "rest": rest}
    result = decided(jobs, nodes(1), now=40.0, state=PolicyState(1, old))
    data = result.state.data
    assert (data["finish"], data["since"]) == (old["finish"], old["since"])
    assert data["gps"]["clocks"][0]["virtual"] == 20.0 + 30.0 * 4 / 3
    assert result.state.version == 2


# -- Theorem 1 with jobs that cannot run, two types, and limits --------------------------------------------------------


@st.composite
def mixed_instances(draw):
    """Jobs on one of two types, of linear speed up to a limit, and jobs that no node can hold: [submission, type]."""
    found = []
    for i in range(draw(st.integers(1, 8))):
        gpu_type = draw(st.sampled_from(("v100", "k80")))
        high = draw(st.sampled_from((1, 2, 4, 8)))
        at, hours = float(draw(st.integers(0, 10))) * 600, draw(st.integers(1, 40)) / 10
        found.append((submission(f"j{i}", 1, hours, at=at, high=high, types=(gpu_type,)), gpu_type, hours * HOUR))
    never = [submission(f"never{i}", 64, 1.0) for i in range(draw(st.integers(0, 3)))]
    return found, never


@settings(deadline=None)
@given(mixed_instances())
def test_delays_are_bounded_for_jobs_that_cannot_use_all_gpus(instance):
    """A job ends within its time alone, and the time that earlier work needs on the GPUs of its type.

    Earlier are the jobs that end earlier under fair sharing and have not ended at its arrival. Whenever a job has fewer
    GPUs than its limit, it has at least half of those that they leave, because sizes are doublings; so its time alone
    is that on its limit, or twice that on all GPUs. ``ares_bound`` has the proof.
    """
    jobs, never = instance
    last = max(jobs, key=lambda one: one[0].job.submitted)[0].job.uid
    everything = [*[one for one, _, _ in jobs], *never]
    free = Settings(round_seconds=600.0, min_round_seconds=0.0)
    ordered = workload(*everything)
    uids = [one.job.uid for one in ordered.submissions]
    window = [i for i, uid in enumerate(uids) if not uid.startswith("never")]
    outcome = simulate(ordered, (*V100, *K80), Ares(AresParameters(alpha=1.0)), free, window=window)
    end = {one.uid: one.finished for one in outcome.jobs}
    assert end[last] is not None
    fair = by_types([(s.job.uid, s.job.submitted, work, 1.0, t) for s, t, work in jobs], {"v100": 8, "k80": 8})
    for one, gpu_type, work in jobs:
        uid, at = one.job.uid, one.job.submitted
        earlier = sum(
            other_work
            for other, other_type, other_work in jobs
            if other_type == gpu_type
            and other is not one
            and fair[other.job.uid] <= fair[uid]
            and end[other.job.uid] > at
        )
        alone = max(work / one.job.max_gpus, 2 * work / 8)
        assert end[uid] <= at + alone + earlier / 8 + 1e-6 * (1 + end[uid])


def test_the_state_is_json_and_the_same_after_reading():
    """With two types, a job on both, one that no node can hold, and a pinned one."""
    jobs = [
        job("v", 1, left=1e5, speed=linear(1.0), gpu_types=("v100",)),
        job("w", 1, left=1e5, speed=TwoTypes(), gpu_types=("v100", "k80")),
        job("never", 64, left=1e5, speed=linear(1.0)),
        running(job("p", 2, preempt=Preempt.NO), "v100-0"),
        job("u", 1, gpu_types=("k80",)),
    ]
    cluster = (*nodes(1), *nodes(1, 4, "k80"))
    state = decided(jobs, cluster).state
    read = PolicyState(state.version, json.loads(json.dumps(dict(state.data))))
    again = [decided(jobs, cluster, now=60.0, state=one) for one in (state, read)]
    assert again[0].state == again[1].state
    assert again[0].decision == again[1].decision


@pytest.mark.parametrize("seed", range(25))
def test_each_live_job_has_one_clock_while_cluster_and_jobs_change(seed):
    """Nodes come and go, jobs of any constraints arrive and vanish, and speeds become known, for ten rounds."""
    rng = random.Random(seed)  # noqa: S311  no secret
    names = [(f"n{i}", rng.choice(("v100", "v100", "k80"))) for i in range(rng.randint(1, 5))]
    jobs, state, now = {}, None, 0.0
    for number in range(10):
        now += rng.choice((0, 60, 5000))
        cluster = [node(name, 4, gpu_type, 64, accepts=rng.random() > 0.2) for name, gpu_type in names]
        for i in range(rng.randint(0, 3)):
            gpus = rng.choice((1, 2, 4, 8, 64))
            more = {"left": rng.choice((None, 1, 1e5)), "expected_service": rng.choice((None, None, 50.0))}
            more |= {"gpu_types": rng.choice(((), ("k80",))), "weight": rng.choice((1.0, 1e-9))}
            more |= {name: frozenset(rng.sample(names, 1)[0][:1]) for name in NODE_LIMITS if rng.random() < 0.2}
            one = job(f"j{number}-{i}", gpus, rng.choice((1, gpus)), 2 * gpus, submitted=now, memory_per_unit=0, **more)
            jobs[one.uid] = one
        jobs = {
            uid: one.evolve(speed=rng.choice((None, linear(1.0), TwoTypes())) if rng.random() < 0.3 else one.speed)
            for uid, one in jobs.items()
            if rng.random() > 0.1
        }
        data = decided(jobs.values(), cluster, now=now, state=state).state.data
        state = PolicyState(2, json.loads(json.dumps(dict(data))))
        where = {uid: i for i, uids in enumerate(data["clocks"]) for uid in uids}
        active = {e[1]: (i, e[0]) for i, clock in enumerate(data["gps"]["clocks"]) for e in clock["active"]}
        assert where.keys() == jobs.keys() == {*data["finish"], *data["since"]}
        assert len(active) == sum(len(clock["active"]) for clock in data["gps"]["clocks"])
        for uid, finish in data["finish"].items():
            assert (uid in active) != (uid in data["ended"])
            assert active.get(uid, (where[uid], finish)) == (where[uid], pytest.approx(finish))
