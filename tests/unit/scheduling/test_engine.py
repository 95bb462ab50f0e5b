from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Decision, Grant, Node, Placement, Preempt, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Reason
from metasched.core.retention import is_pinned
from metasched.scheduling.contract_checks import PolicyViolationError
from metasched.scheduling.engine import CANNOT_STOP, run_round
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.las import Las
from tests import builders
from tests.unit.strategies import FixedPolicy, grants_for, snapshots

ON_N1 = Placement(("n1",), 2, "v100")


def job(uid, gpus=2, **more):
    return builders.job(uid, gpus, **more)


def running(uid, **more):
    return job(uid, status=Status.RUNNING, placement=ON_N1, **more)


def snapshot(*jobs, **more):
    return Snapshot(0.0, 1, 60.0, (Node("n1", "v100", 4, 16, 64), Node("n2", "v100", 4, 16, 64)), jobs, **more)


class Says(Policy):
    """Always gives one answer."""

    name = "says"

    def __init__(self, decision):
        super().__init__()
        self.decision = decision

    def decide(self, snapshot, state):
        return self.decision, state


def grants_all(view):
    return tuple(Grant(job.uid, job.gpus, Reason.text("its turn")) for job in view.jobs), ()


@given(st.data())
def test_every_live_job_has_a_reason_and_every_target_is_live(data):
    """No job is lost between policy, placement and targets, whatever the policy grants."""
    shot = data.draw(snapshots(blocked=True, free=True))
    result = run_round(shot, FixedPolicy(lambda view: data.draw(grants_for(view))), None)
    live = {owner.uid for owner in shot.jobs if owner.status is not Status.FINISHED}
    assert result.reasons.keys() == live
    assert all(result.reasons.values())
    assert result.targets.keys() <= live
    for owner in shot.jobs:
        if is_pinned(owner) and owner.blocked is None:
            assert result.targets[owner.uid] == owner.placement


@given(
    snapshots(blocked=True),
    st.sampled_from((Fifo(), Las(), Fifo(FifoParameters(backfill=True)), Fifo(FifoParameters(elastic=False)))),
)
def test_the_baselines_keep_the_contract_and_are_deterministic(shot, policy):
    """FIFO and LAS answer for every job without a violation, and twice in the same way."""
    first, second = run_round(shot, policy, None), run_round(shot, policy, None)
    assert first == second
    assert run_round(shot, policy, first.state).reasons.keys() == first.reasons.keys()


def test_a_policy_begins_from_its_initial_state_and_continues_from_its_last():
    """The state is None in the first round only."""
    policy = FixedPolicy(grants_all)
    first = run_round(snapshot(job("a")), policy, None)
    assert first.state == PolicyState(1, {"rounds": 1})
    assert run_round(snapshot(job("a")), policy, first.state).state.data == {"rounds": 2}


def test_a_blocked_job_is_hidden_from_the_policy():
    """A blocked job waits with its own reason; a running one keeps its GPUs, which no other job is assigned."""
    shot = snapshot(
        job("a", blocked=Reason.text("waits for job 7")),
        running("b", blocked=Reason.text("bad tag")),
        job("c", 4, nodes=1),
    )
    result = run_round(shot, FixedPolicy(grants_all), None)
    assert result.targets == {"b": ON_N1, "c": Placement(("n2",), 4, "v100")}
    told = {uid: reason_words.words(reason) for uid, reason in result.reasons.items()}
    assert told == {"a": "waits for job 7", "b": "bad tag", "c": "its turn"}


def test_a_job_that_an_admin_suspended_keeps_its_allocation():
    """It is hidden from the policy, and its GPUs are assigned to no other job."""
    shot = snapshot(job("a", status=Status.SUSPENDED, placement=ON_N1), job("c", 4, nodes=1), job("d", 4, nodes=1))
    result = run_round(shot, FixedPolicy(grants_all), None)
    assert result.targets == {"a": ON_N1, "c": Placement(("n2",), 4, "v100")}
    assert reason_words.words(result.reasons["d"]).startswith("its turn; needs 4 GPUs")


def test_a_pinned_job_continues_without_a_grant():
    """It remains in the targets, before the others."""
    shot = snapshot(running("a", preempt=Preempt.NO), job("b"))
    result = run_round(shot, Says(Decision((Grant("b", 2, Reason.text("its turn")),))), None)
    assert list(result.targets.items()) == [("a", ON_N1), ("b", ON_N1)]
    assert result.reasons["a"] == CANNOT_STOP


def test_a_finished_job_is_hidden_from_the_policy():
    """It has neither a target nor a reason."""
    result = run_round(snapshot(job("a", status=Status.FINISHED)), FixedPolicy(grants_all), None)
    assert (result.targets, result.reasons) == ({}, {})


ONE = Grant("a", 2, Reason.text("its turn"))
NO_REASON = "it has a str, and a Reason is needed (Reason.text(...) makes one of words)"
VIOLATIONS = {
    "is not a job that may start": Decision((ONE, Grant("x", 2, Reason.text("its turn")))),
    "appears twice in the decision": Decision((ONE,), (), {"a": Reason.text("waits")}),
    "is missing from the decision": Decision(),
    f"is granted without a reason: {NO_REASON}": Decision((replace(ONE, reason=""),)),
    f"waits without a reason: {NO_REASON}": Decision(waits={"a": "not yet"}),
    "waits without a reason: its Reason has an empty code": Decision(waits={"a": Reason("")}),
    "is granted 3 GPUs, it takes 2 to 2": Decision((replace(ONE, gpus=3),)),
    "is granted at least 1 GPUs, it takes 2 to 2": Decision((replace(ONE, at_least=1),)),
    "is granted GPUs of type a100, it accepts v100": Decision((replace(ONE, gpu_type="a100"),)),
    "is granted GPUs of type k80, it accepts v100": Decision((replace(ONE, gpu_type="v100", other_types=("k80",)),)),
    "is granted at most 0 nodes, it takes at least 1": Decision((replace(ONE, max_nodes=0),)),
}


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_a_decision_that_breaks_the_contract_is_refused(rule):
    """The error names the policy, the job and the rule."""
    with pytest.raises(PolicyViolationError, match=r"policy 'says', job [ax]: ") as caught:
        run_round(snapshot(job("a", gpu_types=("v100",))), Says(VIOLATIONS[rule]), None)
    assert caught.value.rule == rule


def test_a_pinned_job_cannot_be_granted_another_amount():
    """A pinned job may be granted its present GPUs only."""
    pinned = running("a", preempt=Preempt.NO).evolve(min_gpus=1, max_gpus=4)
    with pytest.raises(PolicyViolationError, match="other than the 2 GPUs that it must keep"):
        run_round(snapshot(pinned), Says(Decision((Grant("a", 4, Reason.text("its turn")),))), None)


UNEVEN = Placement(("n1", "n2"), 0, "v100", (2, 1))
PLACED = replace(ONE, gpu_type="v100", exact=ON_N1)
WRONG_PLACES = {
    "is granted 2 GPUs of type v100, and a placement with 3 of v100": replace(PLACED, exact=UNEVEN),
    "is granted 2 GPUs of type None, and a placement with 2 of v100": replace(PLACED, gpu_type=None),
    "is granted a placement with a node twice, or without GPUs": replace(
        PLACED, exact=Placement(("n1", "n1"), 1, "v100")
    ),
    "is granted a placement on 2 nodes, it takes 1": replace(PLACED, exact=Placement(("n1", "n2"), 1, "v100")),
    "is to share the GPUs of job b, which is not granted the same 2 GPUs": replace(ONE, co_runner="b"),
}


@pytest.mark.parametrize("rule", WRONG_PLACES)
def test_a_placement_or_co_runner_that_contradicts_the_grant_is_refused(rule):
    """Amount, type, number of nodes and co-runner have to agree."""
    shot = snapshot(job("a", nodes=1), uneven=True, sharing=True)
    with pytest.raises(PolicyViolationError) as caught:
        run_round(shot, Says(Decision((WRONG_PLACES[rule],))), None)
    assert caught.value.rule == rule


def test_a_grant_that_the_cluster_cannot_realise_is_refused():
    """Uneven placements and shared GPUs are for clusters that support them; a present placement is retained."""
    wide = replace(PLACED, gpus=3, exact=UNEVEN)
    with pytest.raises(PolicyViolationError, match="uneven placement, which this cluster cannot realise"):
        run_round(snapshot(job("a", 3)), Says(Decision((wide,))), None)
    assert run_round(snapshot(job("a", 3), uneven=True), Says(Decision((wide,))), None).targets == {"a": UNEVEN}
    holder = job("a", 3, status=Status.RUNNING, placement=UNEVEN)
    assert run_round(snapshot(holder), Says(Decision((wide,))), None).targets == {"a": UNEVEN}
    pair = Decision((ONE, Grant("b", 2, Reason.text("its turn"), co_runner="a")))
    with pytest.raises(PolicyViolationError, match="share GPUs, which this cluster cannot realise"):
        run_round(snapshot(job("a"), job("b")), Says(pair), None)
    result = run_round(snapshot(job("a"), job("b"), sharing=True), Says(pair), None)
    assert result.targets == {"a": ON_N1, "b": ON_N1}
    assert result.co_runners == {"a": "b", "b": "a"}


@pytest.mark.parametrize("order", ["ba", "abc", "acb"])
def test_no_job_is_in_two_pairs_and_hosts_come_first(order):
    """A guest names a job that is granted before it and has no other guest."""
    hosts = {"a": None, "b": "a", "c": "a" if order == "abc" else "b"}
    decision = Decision(tuple(Grant(uid, 2, Reason.text("its turn"), co_runner=hosts[uid]) for uid in order))
    with pytest.raises(PolicyViolationError, match="which is not granted before it, or is in a pair"):
        run_round(snapshot(*(job(uid) for uid in sorted(order)), sharing=True), Says(decision), None)


def test_a_hidden_job_still_shares_its_gpus():
    """A pair is not separated because one of the two must not start again; their GPUs count once."""
    pair = [running("a", co_runner="b"), running("b", co_runner="a")]
    one = snapshot(pair[0].evolve(blocked=Reason.text("bad tag")), pair[1], sharing=True)
    result = run_round(one, FixedPolicy(grants_all), None)
    assert result.targets == {"a": ON_N1, "b": ON_N1}
    assert result.co_runners == {"a": "b", "b": "a"}
    both = snapshot(*(each.evolve(blocked=Reason.text("bad tag")) for each in pair), job("c", 2, nodes=1), sharing=True)
    only = replace(both, nodes=both.nodes[:1])
    result = run_round(only, FixedPolicy(grants_all), None)
    assert result.targets["c"] == ON_N1
    assert result.co_runners == {"a": "b", "b": "a"}
