"""Quotas of Slurm's associations and QOS, enforced on a policy's decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Grant, Node, Placement, Preempt, Quota, Snapshot, Status
from metasched.core.policy import installed_policies
from metasched.core.reasons import Reason
from metasched.replay.snapshot_codec import decode, encode
from metasched.scheduling.engine import run_round
from tests import builders
from tests.unit.strategies import FixedPolicy

NODES = (Node("n1", "v100", 4, 64, 640), Node("n2", "v100", 4, 64, 640), Node("n3", "a100", 4, 64, 640))


def job(uid, low=1, high=4, **more):
    return builders.job(uid, low, high=high, **more)


def running(uid, nodes, gpus, **more):
    place = Placement(nodes, gpus, "v100")
    return job(uid, status=Status.RUNNING, placement=place, **more)


def snapshot(jobs, *quotas, nodes=NODES):
    return Snapshot(0.0, 1, 60.0, nodes, tuple(sorted(jobs, key=lambda job: job.uid)), quotas=quotas)


def quota(left, *members, name="QOS q", **more):
    return Quota(name, frozenset(members), left, **more)


def decide(shot, *grants, fallback=()):
    """GPUs by uid, and reasons, under a policy with these grants."""
    full = [grant if isinstance(grant, Grant) else Grant(*grant, Reason.text("granted")) for grant in grants]
    rest = [Grant(*grant, Reason.text("next in line")) for grant in fallback]
    result = run_round(shot, FixedPolicy(lambda _: (tuple(full), tuple(rest))), None)
    return {uid: place.gpus for uid, place in result.targets.items()}, result.reasons


def test_grants_consume_a_quota_in_the_order_of_the_decision():
    """The first has all of its GPUs, the second is cut to the rest, the third is denied; other jobs are unaffected."""
    shot = snapshot([job(uid) for uid in "abcd"], quota(5, "a", "b", "c", name="account x: GrpTRES gres/gpu=5"))
    gpus, reasons = decide(shot, ("a", 4), ("b", 4), ("c", 2), fallback=[("d", 4)])
    assert gpus == {"a": 4, "b": 1, "d": 4}
    assert reason_words.words(reasons["b"]) == "granted; of 4 GPUs the limit account x: GrpTRES gres/gpu=5 leaves it 1"
    assert reason_words.words(reasons["c"]).startswith(
        "granted; the limit account x: GrpTRES gres/gpu=5 leaves it 0 GPUs"
    )


def test_a_rigid_job_is_denied_rather_than_cut():
    """A later job that fits into the quota runs."""
    gpus, _ = decide(snapshot([job("a", 4, 4), job("b")], quota(3, "a", "b")), ("a", 4), ("b", 3))
    assert gpus == {"b": 3}


def test_quotas_of_jobs_stop_running_jobs():
    """The last job of the decision is stopped, wherever it runs; non-preemptible jobs count first."""
    jobs = [running("a", ("n1",), 2), running("b", ("n2",), 2), running("c", ("n2",), 2, preempt=Preempt.NO)]
    gpus, reasons = decide(
        snapshot(jobs, quota(2, "a", "b", "c", of_jobs=True, name="QOS q: GrpJobs=2")), ("b", 2), ("a", 2)
    )
    assert gpus == {"b": 2, "c": 2}
    assert reason_words.words(reasons["a"]) == "granted; the limit QOS q: GrpJobs=2 is reached"


def test_a_blocked_running_job_consumes_its_quota():
    """The policy does not see it, but the quota is charged."""
    jobs = [running("a", ("n1",), 4, blocked=Reason.text("waits for job 7")), job("b")]
    assert decide(snapshot(jobs, quota(5, "a", "b")), ("b", 4))[0] == {"a": 4, "b": 1}


def test_a_quota_of_one_type_leaves_the_other_types():
    """A job that accepts any type is given one of which its quota leaves enough."""
    shot = snapshot([job("a", 4), job("b", 4)], quota(4, "a", "b", gpu_type="v100"))
    result = run_round(
        shot, FixedPolicy(lambda _: ((Grant("a", 4, Reason.text("x")), Grant("b", 4, Reason.text("x"))), ())), None
    )
    assert {place.gpu_type for place in result.targets.values()} == {"v100", "a100"}


def test_no_other_type_than_the_granted_is_given_under_quotas():
    """The quota of the other type could be exceeded."""
    grants = [
        Grant("b", 8, Reason.text("x"), gpu_type="v100"),
        Grant("a", 4, Reason.text("x"), gpu_type="v100", other_types=("a100",)),
    ]
    jobs = [job("a", 4, 4), job("b", 8, 8)]
    assert decide(snapshot(jobs), *grants)[0] == {"b": 8, "a": 4}
    assert decide(snapshot(jobs, quota(2, "a", gpu_type="a100")), *grants)[0] == {"b": 8}


def test_unplaced_gpus_consume_no_quota():
    """Neither a job that cannot be placed nor one that is placed on fewer GPUs keeps others from their quota."""
    jobs = [job("a", 8, 8, nodes=1), job("b", 1, 4, gpu_types=("a100",)), job("c", 3, 3), job("d")]
    shot = snapshot(jobs, quota(8, "a", "b", "c"), nodes=(*NODES[:2], replace(NODES[2], gpus=2)))
    gpus, reasons = decide(shot, ("a", 8), Grant("b", 4, Reason.text("granted"), at_least=1), ("c", 3), ("d", 4))
    assert gpus == {"b": 2, "c": 3, "d": 4}
    assert reason_words.words(reasons["a"]).startswith("granted; needs 8 GPUs")
    assert reason_words.words(reasons["c"]) == "granted"


def test_a_prescribed_placement_beyond_the_quota_is_dropped():
    """Its job takes GPUs that remain once prescribed placements of other jobs are assigned."""
    place = Placement(("n1",), 4, "v100")
    shot = snapshot([job("a"), job("b")], quota(2, "a"), nodes=NODES[:1])
    grants = [
        Grant("a", 4, Reason.text("granted"), gpu_type="v100", exact=place),
        Grant("b", 3, Reason.text("granted"), gpu_type="v100"),
    ]
    assert decide(shot, *grants)[0] == {"a": 1, "b": 3}
    shot = replace(shot, nodes=NODES[:2])
    assert decide(shot, *grants)[0] == {"a": 2, "b": 3}


@pytest.mark.parametrize(("left", "expected"), [(4, {"a": 2, "b": 2}), (3, {"a": 2})])
def test_both_jobs_of_a_pair_consume_quota(left, expected):
    """A guest consumes its quota like its host, and is denied where it cannot have all."""
    shot = replace(snapshot([job("a", 2), job("b", 2)], quota(left, "a", "b")), sharing=True)
    assert decide(shot, ("a", 2), Grant("b", 2, Reason.text("granted"), co_runner="a"))[0] == expected


def test_quotas_survive_the_snapshot_codec():
    """A round with quotas can be decided again."""
    shot = snapshot([job("a", fair_share=0.25)], quota(3, "a", gpu_type="v100"), quota(-1, "a", of_jobs=True))
    assert decode(encode(shot)) == shot


@pytest.mark.parametrize("name", ["fifo", "gavel_fifo", "slurm"])
def test_no_job_waits_behind_a_job_that_waits_for_its_quota(name):
    """Not in a strict order either: the order is of the jobs alone that quotas allow to run."""
    policy = installed_policies().get(name)
    jobs = [job(f"a{i}", 4) for i in range(9)]
    held = quota(4, *(each.uid for each in jobs), name="GrpTRES gres/gpu=4")
    shot = snapshot([*jobs, job("b", 4)], held, nodes=NODES[:2])
    result = run_round(shot, policy(policy.Parameters()), None)
    assert sorted(result.targets) == ["a0", "b"]
    assert reason_words.words(result.reasons["a5"]) == "the limit GrpTRES gres/gpu=4 leaves it 0 GPUs"


def test_the_policy_sees_what_hidden_jobs_leave_of_the_quotas():
    """A running job that must not start again keeps its GPUs, and is unknown to the policy."""
    hidden = running("a", ("n1",), 3, blocked=Reason.text("bad tag"))
    seen = []

    def grants(shot):
        seen.append(shot.quotas)
        return (), ()

    run_round(snapshot([hidden, job("b")], quota(4, "a", "b")), FixedPolicy(grants), None)
    assert [each.left for each in seen[0]] == [1]


@pytest.mark.parametrize("name", ["gavel_las", "gavel_ftf", "gandiva_fair", "gavel_fifo"])
def test_time_shares_are_not_given_to_jobs_that_their_quota_leaves_nothing(name):
    """Their reason names the limit, and the job of no limit has all of the time; a lowered limit stops a job."""
    policy = installed_policies().get(name)
    runs = {"status": Status.RUNNING, "placement": Placement(("n1",), 4, "v100")}
    jobs = [job("a", 4, **runs), job("b", 4), job("c", 4)]
    shot = snapshot(jobs, quota(3, "a", "b", name="GrpTRES gres/gpu=3"), nodes=NODES[:1])
    result = run_round(shot, policy(policy.Parameters()), None)
    assert result.targets.keys() == {"c"}
    for uid in "ab":
        assert reason_words.words(result.reasons[uid]) == "the limit GrpTRES gres/gpu=3 leaves it 3 GPUs"
    assert all(combination == ["c"] for combination, _ in result.state.data["ledger"]["shares"])


KINDS = st.sampled_from([(), ("v100",), ("a100",), ("v100", "a100")])


@st.composite
def queues(draw):
    """Elastic jobs of all types, some of which run."""
    free, found = {node.name: node.gpus for node in NODES}, []
    for i in range(draw(st.integers(1, 7))):
        low, node = draw(st.integers(1, 3)), draw(st.sampled_from(NODES))
        made = job(f"j{i}", low, draw(st.integers(low, 6)), gpu_types=draw(KINDS))
        if draw(st.booleans()) and made.matches(node) and free[node.name] >= low:
            free[node.name] -= low
            made = made.evolve(status=Status.RUNNING, placement=Placement((node.name,), low, node.gpu_type))
        found.append(made)
    return found


@st.composite
def granted(draw, made):
    """A grant for a job that keeps the contract."""
    gpus = draw(st.integers(made.min_gpus, made.max_gpus))
    low, kind = draw(st.sampled_from((None, made.min_gpus))), draw(st.sampled_from((None, *made.gpu_types)))
    return Grant(made.uid, gpus, Reason.text("granted"), low, kind)


def used(quota, targets):
    places = [place for uid, place in targets.items() if uid in quota.members]
    if quota.of_jobs:
        return len(places)
    return sum(place.gpus for place in places if quota.gpu_type in (None, place.gpu_type))


@settings(max_examples=60)
@given(st.data())
def test_quotas_hold_and_no_job_is_denied_without_need(data):
    """No quota is exceeded; and a denied job could not have the fewest GPUs of its grant's type without that."""
    draw = data.draw
    jobs = draw(queues())
    some = st.frozensets(st.sampled_from([job.uid for job in jobs]), min_size=1)
    quotas = st.builds(Quota, st.just("q"), some, st.integers(-1, 8), st.booleans(), st.sampled_from((None, "v100")))
    shot = snapshot(jobs, *draw(st.lists(quotas, min_size=1, max_size=3)))
    grants = {made.uid: draw(granted(made)) for made in draw(st.permutations(jobs))}
    order, cut = tuple(grants.values()), draw(st.integers(0, len(grants)))
    result = run_round(shot, FixedPolicy(lambda _: (order[:cut], order[cut:])), None)

    assert all(used(quota, result.targets) <= max(quota.left, 0) for quota in shot.quotas)
    free = {node.name: node.gpus for node in NODES}
    for place in result.targets.values():
        for name, gpus in place.node_gpus:
            free[name] -= gpus
    for made in jobs:
        if "the limit" in reason_words.words(result.reasons[made.uid]) and made.uid not in result.targets:
            for node in NODES:
                fits = made.matches(node) and free[node.name] >= made.min_gpus
                if fits and grants[made.uid].gpu_type in (None, node.gpu_type):
                    with_it = {**result.targets, made.uid: Placement((node.name,), made.min_gpus, node.gpu_type)}
                    assert any(made.uid in quota.members and used(quota, with_it) > quota.left for quota in shot.quotas)
