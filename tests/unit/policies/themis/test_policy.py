"""Themis as a policy: from a snapshot's apps to leases and grants."""

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from pydantic import ValidationError

from metasched.core.apps import TunerSettings
from metasched.core.distance import Level
from metasched.core.model import Preempt, Quota, Status
from metasched.core.policy import PolicyState
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason
from metasched.scheduling.engine import precompute, run_round
from metasched.simulator.records import Locality, LocatedSpeed
from policies.themis.policy import Themis, ThemisParameters
from tests.builders import job, linear, node, nodes, running, snapshot

LONG = 1e6


def themis(**given):
    return Themis(ThemisParameters(**given))


def training(uid, work, low=1, high=8, *, app=None, **fields):
    """An elastic training of so many GPU-seconds, one step per GPU and second."""
    known = {"speed": linear(1.0), "total_steps": float(work), "progress_steps": 0.0}
    return job(uid, low, low, high, app=app, **known | fields)


class Loop:
    """A closed loop: targets come true at once, and trainings progress by one step per GPU and second."""

    def __init__(self, policy, the_nodes, jobs, *, seconds=60.0, **facts):
        self.policy, self.nodes, self.seconds, self.facts = policy, the_nodes, seconds, facts
        self.jobs = {one.uid: one for one in jobs}
        self.now, self.number, self.state, self.apps = 0.0, 0, None, None
        self.ended, self.service = {}, Counter()

    def decide(self):
        self.number += 1
        view = replace(snapshot(self.jobs.values(), self.nodes, self.now, **self.facts), round=self.number)
        more = () if self.apps is None else (self.apps,)
        result = run_round(view, self.policy, self.state, *more)
        self.state = PolicyState(result.state.version, json.loads(json.dumps(result.state.data, allow_nan=False)))
        self.apps = result.apps
        return result

    def step(self):
        result = self.decide()
        self.now += self.seconds
        for uid, one in list(self.jobs.items()):
            place = result.targets.get(uid)
            gpus = 0 if place is None else place.gpus
            self.service[uid] += gpus * self.seconds
            done = (one.progress_steps or 0.0) + gpus * self.seconds
            status = Status.HELD if place is None else Status.RUNNING
            attained = {"v100": self.service[uid]}
            self.jobs[uid] = one.evolve(
                status=status, placement=place, progress_steps=done, run=int(done > 0), attained=attained
            )
            if done >= one.total_steps:
                self.ended[uid] = self.now
                del self.jobs[uid]
        return result


def held_of(targets, jobs):
    """GPUs by app and node."""
    found = {}
    for uid, place in targets.items():
        found.setdefault(jobs[uid].app or uid, Counter()).update(dict(place.node_gpus))
    return found


def random_jobs(rng):
    """Apps of one to four trainings, rigid or elastic."""
    jobs = []
    for number in range(rng.randint(1, 6)):
        app = f"array:{number}" if rng.random() < 0.6 else None
        for member in range(rng.randint(1, 4) if app else 1):
            low = rng.choice((1, 1, 1, 2, 4))
            high = low * rng.choice((1, 1, 2, 4))
            work = rng.uniform(100, 4000)
            jobs.append(training(f"{number}_{member}", work, low, high, app=app, submitted=-float(number)))
    return jobs


@pytest.mark.parametrize("seed", range(12))
def test_leases_hold_gangs_are_whole_and_nothing_idles(seed):
    """In a closed loop with ends: no GPU twice; nothing free on which a waiting job could run; leases last."""
    rng = random.Random(seed)  # noqa: S311
    sizes = [rng.choice((2, 4, 4, 8)) for _ in range(rng.randint(1, 4))]
    the_nodes = tuple(node(f"n{at}", gpus, cpus=64, memory=1 << 40) for at, gpus in enumerate(sizes))
    loop = Loop(themis(fairness=rng.choice((0.2, 0.8)), lease_seconds=300.0), the_nodes, random_jobs(rng))
    had = Counter()
    for _ in range(14):
        before, jobs = loop.state, dict(loop.jobs)
        result = loop.step()
        free = Counter({one.name: one.gpus for one in the_nodes})
        for uid, place in result.targets.items():
            assert jobs[uid].min_gpus <= place.gpus <= jobs[uid].max_gpus
            free.subtract(dict(place.node_gpus))
        assert min(free.values()) >= 0
        most = max(free.values())
        waiting = [jobs[uid] for uid in jobs.keys() - result.targets.keys()]
        assert all(not any(most >= g for k, g in one.spreads(one.min_gpus) if k == 1) for one in waiting)
        has, leases = held_of(result.targets, jobs), before.data["leases"] if before else []
        members, number = Counter(one.app or one.uid for one in jobs.values()), Counter(one["app"] for one in leases)
        for lease in leases:
            app = lease["app"]
            if lease["ends"] > loop.now - loop.seconds and members[app] == had[app] and number[app] == 1:
                assert all(has[app][name] >= gpus for name, gpus in lease["gpus"].items())
        had = members


def test_equal_apps_have_equal_service_in_the_long_run():
    """Five apps on eight GPUs for 150 rounds."""
    jobs = [training(f"a{at}", 1e9) for at in range(5)]
    loop = Loop(themis(fairness=0.5, lease_seconds=300.0), nodes(2), jobs)
    for _ in range(150):
        loop.step()
    mean = loop.service.total() / 5
    assert all(abs(service / mean - 1) < 0.15 for service in loop.service.values()), loop.service


def test_renamed_apps_have_the_same_allocations():
    """All apps bid, and differ in their work: names do not matter."""
    works = (3e3, 5e3, 9e3, 2e4)
    targets = []
    for names in ("abcd", "dbca"):
        jobs = [training(name, work) for name, work in zip(names, works, strict=True)]
        result = Loop(themis(fairness=0.01), nodes(4), jobs).decide()
        targets.append([result.targets.get(name) for name in names])
    assert targets[0] == targets[1]


def test_rho_is_that_of_a_run_with_the_allocation_held_fixed():
    """The rho that a bid tells for the won GPUs is the time to the end over that with half of the cluster."""
    jobs = [training(f"a_{at}", 4800, high=2, app="array:a") for at in range(2)]
    jobs += [training("b", 9600, high=4)]
    loop = Loop(themis(fairness=0.01, lease_seconds=LONG), nodes(2), jobs)
    reasons = loop.step().reasons
    while loop.jobs:
        loop.step()
    for uid, members, most in (("a_0", ("a_0", "a_1"), 4), ("b", ("b",), 4)):
        facts = dict(reasons[uid].facts)
        rho = dict(facts["bids"])[facts["gpus"]]
        independent = 9600 / most * 2  # two apps
        assert rho == pytest.approx(max(loop.ended[one] for one in members) / independent, rel=0.02)


@dataclass(frozen=True)
class Spread:
    """Images per second on four GPUs of one server, and over several."""

    one: float
    several: float

    def steps_per_second(self, gpu_type, spread):
        return (self.one if len(spread) == 1 else self.several) * sum(spread) / 4

    def steps_per_second_with(self, other, gpu_type, spread):
        return None


VGG16, INCEPTION = Spread(103.6, 80.4), Spread(242.0, 242.0)


def test_figure_5_each_network_intensive_app_gets_a_server():
    """Instance 1: two servers of four GPUs, two VGG16 of four GPUs."""
    jobs = [training(uid, 1e5, 4, 4, speed=VGG16) for uid in "ab"]
    targets = Loop(themis(fairness=0.01), nodes(2), jobs).decide().targets
    assert sorted(place.spread for place in targets.values()) == [(4,), (4,)]


@pytest.mark.parametrize("names", ["vi", "iv"])
def test_figure_5_the_network_intensive_app_gets_the_large_server(names):
    """Instance 2: a server of four GPUs and two of two; VGG16 gets the one, Inception the others."""
    vgg, inception = names
    jobs = [training(vgg, 1e5, 4, 4, speed=VGG16), training(inception, 1e5, 4, 4, speed=INCEPTION)]
    servers = (node("s1", 4, cpus=64), node("s2", 2, cpus=64), node("s3", 2, cpus=64))
    targets = Loop(themis(fairness=0.01), servers, jobs).decide().targets
    assert targets[vgg].spread == (4,)
    assert targets[inception].spread == (2, 2)


@pytest.mark.parametrize("names", ["sr", "rs"])
def test_an_app_that_suffers_from_distance_gets_nodes_of_one_rack(names):
    """Two apps of two nodes; one of them has a cost of distance of its own, as simulations have."""
    sensitive, robust = names
    located = LocatedSpeed(linear(1.0), Locality(rack=1.0, cluster=0.4))
    jobs = [training(sensitive, 1e5, 8, 8, speed=located), training(robust, 1e5, 8, 8)]
    racks = ("r1", "r2", "r2", "r3")
    cluster = tuple(replace(one, rack=rack) for one, rack in zip(nodes(4), racks, strict=True))
    targets = Loop(themis(fairness=0.01), cluster, jobs).decide().targets
    assert targets[sensitive].nodes == ("v100-1", "v100-2")
    assert targets[robust].gpus == 8


def test_slowdowns_are_measured_while_jobs_run():
    """A run over two nodes reports half the speed: from the third round on, its app's agent knows."""
    slow = training("a", 1e6, 8, 8)
    loop = Loop(themis(lease_seconds=LONG), nodes(2), [slow])
    for _ in range(4):
        loop.jobs["a"] = loop.jobs["a"].evolve(steps_per_second=4.0)
        loop.step()
    measured = loop.state.data["slowdowns"]["a"][Level.RACK.name]
    assert (measured["count"], measured["mean"]) == (3.0, 2.0)
    found = dict(loop.decide().reasons["a"].facts)
    assert found["gpus"] == 8


def test_what_an_end_frees_is_auctioned_at_once():
    """The lease of the app that ended is gone before its time."""
    jobs = [training("a", 200, high=4), training("b", 1e5, high=4)]
    loop = Loop(themis(fairness=0.01, lease_seconds=LONG), nodes(1), jobs)
    assert {place.gpus for place in loop.step().targets.values()} == {2}
    while "a" in loop.jobs:
        loop.step()
    assert loop.decide().targets["b"].gpus == 4


def test_an_app_divides_its_gpus_evenly_and_leaves_runs_alone():
    """Four trials on eight GPUs have two each; one that ends makes room for the others, or for another app."""
    jobs = [training(f"a_{at}", 1e5 + at, high=8, app="array:a") for at in range(4)]
    loop = Loop(themis(lease_seconds=LONG), nodes(2), jobs)
    first = loop.step().targets
    assert [place.gpus for place in first.values()] == [2, 2, 2, 2]
    assert loop.step().targets == first
    loop.jobs["b"] = training("b", 1e5, submitted=loop.now)
    del loop.jobs["a_0"]
    after = loop.step().targets
    assert sum(after[f"a_{at}"].gpus for at in (1, 2, 3)) == 8
    assert "b" not in after


def test_the_phases_of_a_search_count():
    """An array of halved trials: held and ended ones take nothing, and the winner grows."""
    tuner = TunerSettings("halving")
    jobs = [training(f"a_{at}", 9600, high=8, app="array:a", tuner=tuner) for at in range(4)]
    loop = Loop(themis(lease_seconds=300.0), nodes(1), jobs)
    result = loop.step()
    assert {place.gpus for place in result.targets.values()} == {1}
    assert words(result.reasons["a_0"]).startswith("app a_0: rho infinite, bid for 4 GPUs (")


def test_pinned_and_closed_jobs_keep_what_they_hold():
    """They take part in no auction; what they hold is not on offer."""
    pinned = running(training("p", 1e5, 2, 2, preempt=Preempt.NO), "v100-0")
    closed = running(training("c", 1e5, 2, 2), "v100-2")
    cluster = (*nodes(2), replace(nodes(3)[2], accepts=False))
    result = Loop(themis(), cluster, [pinned, closed, training("a", 1e5)]).decide()
    assert result.targets["p"] == pinned.placement
    assert result.targets["c"] == closed.placement
    assert result.targets["a"].gpus == 6 or result.targets["a"].spread == (4,)
    assert {lease["app"] for lease in result.state.data["leases"]} == {"a"}


def test_quotas_limit_what_an_app_bids_for():
    """Its lease has no more than its quota leaves; the others get the rest."""
    jobs = [training("a", 1e5), training("b", 1e5)]
    loop = Loop(themis(fairness=0.01), nodes(2), jobs, quotas=(Quota("q", frozenset("a"), 2),))
    targets = loop.decide().targets
    assert targets["a"].gpus <= 2
    assert targets["a"].gpus + targets["b"].gpus >= 6


def test_members_that_no_node_suits_do_not_harm_their_app_or_others():
    """The member without nodes waits, and says so; all others run."""
    jobs = [training("a_0", 1e5, high=1, app="array:a"), training("a_1", 1e5, app="array:a", gpu_types=("h100",))]
    jobs += [training("b", 1e5, high=3), training("huge", 1e5, 64, 64)]
    result = Loop(themis(), nodes(1), jobs).decide()
    assert {uid: place.gpus for uid, place in result.targets.items()} == {"a_0": 1, "b": 3}
    assert result.reasons["a_1"].code == result.reasons["huge"].code == Code.EXCEEDS_NODES


def test_members_on_different_types_bid_apart():
    """An app whose members accept one type each runs on both."""
    jobs = [training(f"a_{kind}", 1e5, high=4, app="array:a", gpu_types=(kind,)) for kind in ("v100", "k80")]
    targets = Loop(themis(fairness=0.01), (*nodes(1), *nodes(1, kind="k80")), jobs).decide().targets
    assert {uid: place.gpu_type for uid, place in targets.items()} == {"a_v100": "v100", "a_k80": "k80"}


@pytest.mark.parametrize("known", [{"total_steps": 0.0}, {"speed": linear(0.0)}, {"total_steps": 1e15}, {}])
def test_equal_and_worthless_bids_are_served(known):
    """Four apps alike, whatever they declare: one GPU each or more, and no GPU idles."""
    jobs = [training(uid, 1e4, high=4, **known) for uid in "abcd"]
    targets = Loop(themis(fairness=0.01), nodes(1), jobs).decide().targets
    assert sum(place.gpus for place in targets.values()) == 4


def test_new_apps_wait_above_the_threshold():
    """Four GPUs, and apps that ask for two each: two are admitted, and stay so."""
    jobs = [training(uid, 1000, 2, 2, submitted=float(at)) for at, uid in enumerate("abc")]
    loop = Loop(themis(most_demand=1.0, lease_seconds=120.0), nodes(1), jobs)
    loop.now = 10.0
    result = loop.step()
    assert result.targets.keys() == {"a", "b"}
    assert loop.state.data["admitted"] == ["a", "b"]
    told = "its app is not admitted yet: those admitted ask for 4 GPUs, and new ones wait from 1 times the 4 GPUs on"
    assert words(result.reasons["c"]) == told
    while {"a", "b"} <= loop.jobs.keys():
        assert "c" not in loop.step().targets
    assert "c" in loop.step().targets


def test_a_long_auction_is_held_in_the_background():
    """Until its result is there, ended leases last, and nothing new runs; the result is used as far as possible."""
    policy = themis(rows_in_round=0, lease_seconds=300.0)
    loop = Loop(policy, nodes(2), [training("a", 1e5, high=4), training("b", 1e5, high=4)], precomputed={})
    waiting = loop.step()
    assert waiting.targets == {}
    assert {reason.code for reason in waiting.reasons.values()} == {Code.AUCTION_PENDING}

    def held():
        view = replace(snapshot(loop.jobs.values(), loop.nodes, loop.now, precomputed={}), round=loop.number)
        return json.loads(json.dumps(precompute(view, policy, loop.state, loop.apps), allow_nan=False))

    loop.facts["precomputed"] = held()
    first = loop.step()
    assert {place.gpus for place in first.targets.values()} == {4}
    loop.facts["precomputed"] = {}
    view = snapshot(loop.jobs.values(), loop.nodes, loop.now, precomputed={})
    assert precompute(view, policy, loop.state, loop.apps) is None
    loop.now += 400.0
    assert loop.step().targets == first.targets
    assert loop.state.data["pending"]
    stale = held()
    del loop.jobs["a"]
    loop.facts["precomputed"] = stale
    assert loop.step().targets.keys() == {"b"}


def test_runs_go_on_when_the_policy_begins():
    """After a change of the policy, runs have leases that end one after the other; later, ties keep them in place."""
    jobs = [running(training(uid, 1e5, 4, 4), f"v100-{at}") for at, uid in enumerate("ba")]
    loop = Loop(themis(fairness=0.01), nodes(2), [*jobs, training("c", 1e5)])
    result = loop.decide()
    assert result.targets == {one.uid: one.placement for one in jobs}
    assert sorted(lease["ends"] for lease in loop.state.data["leases"]) == [300.0, 600.0]
    assert result.reasons["a"].code == Code.LEASE_AT_FIRST
    alone = Loop(themis(fairness=0.01), nodes(2), jobs)
    alone.state = PolicyState(1, {"leases": [], "slowdowns": {}, "admitted": [], "pending": False})
    assert alone.decide().targets == result.targets


def test_a_state_of_another_version_is_not_read():
    """The policy begins anew, and leaves runs in place."""
    view = snapshot([running(training("a", 1e5, 4, 4), "v100-0"), training("b", 1e5)], nodes(1))
    result = run_round(view, themis(), PolicyState(99, {"anything": 1}))
    assert result.state.version == 1
    assert result.targets.keys() == {"a"}


def test_reasons_say_rho_bids_winnings_and_payment():
    """The sentence that users see."""
    won = Reason.of(
        Code.LEASE_WON,
        app="812",
        rho=1.31,
        bids=((8, 1.02), (4, 1.17)),
        won=4,
        gpus=4,
        nodes=("n3",),
        minutes=6.2,
        of=10.0,
        paid=3.8,
    )
    told = "app 812: rho 1.31, bid for 8 GPUs (1.02) and 4 (1.17), won 4 on n3 for 6.2 of 10 minutes, paid 3.8"
    assert words(won) == told


def test_every_job_has_a_reason():
    """Apps that bid, that did not, and that lost."""
    jobs = [training(f"j{at}", 1e4 * (at + 1), 4, 4) for at in range(12)]
    result = Loop(themis(fairness=0.5), nodes(1), jobs).decide()
    told = {reason.code for reason in result.reasons.values()}
    assert Code.LEASE_WON in told
    assert Code.DID_NOT_BID in told
    assert all(re.match(r"app j\d+: rho infinite", words(result.reasons[one.uid])) for one in jobs)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"fairness": 0.0}, "greater than 0"),
        ({"fairness": 1.0}, "less than 1"),
        ({"lease_seconds": 20.0}, "less than a restart of 30 s"),
        ({"payment": "money"}, "'lease_time' or 'gpus'"),
        ({"most_demand": 0.0}, "greater than 0"),
    ],
)
def test_wrong_parameters_are_refused(given, error):
    """With the range that is right."""
    with pytest.raises(ValidationError, match=error):
        ThemisParameters(**given)
