from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.engine import CANNOT_STOP, PolicyViolationError, run_round
from metasched.model import Decision, Grant, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.policy import Policy, PolicyState
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.las import Las
from tests.unit.strategies import FixedPolicy, grants_for, snapshots

ON_N1 = Placement(("n1",), 2, "v100")


def job(uid, gpus=2, **more):
    return Job(uid, uid, uid, "ann", 0.0, gpus, gpus, gpus, **more)


def running(uid, **more):
    return job(uid, status=Status.RUNNING, placement=ON_N1, **more)


def snapshot(*jobs):
    return Snapshot(0.0, 1, 60.0, (Node("n1", "v100", 4, 16, 64), Node("n2", "v100", 4, 16, 64)), jobs)


class Says(Policy):
    """Always gives one answer."""

    name = "says"

    def __init__(self, decision):
        super().__init__()
        self.decision = decision

    def decide(self, snapshot, state):
        return self.decision, state


def grants_all(view):
    return tuple(Grant(job.uid, job.gpus, "its turn") for job in view.jobs), ()


@given(st.data())
def test_every_live_job_has_a_reason_and_every_target_is_live(data):
    """No job is lost between policy, placement and targets, whatever the policy grants."""
    shot = data.draw(snapshots(blocked=True))
    result = run_round(shot, FixedPolicy(lambda view: data.draw(grants_for(view))), None)
    live = {owner.uid for owner in shot.jobs if owner.status is not Status.FINISHED}
    assert result.reasons.keys() == live
    assert all(result.reasons.values())
    assert result.targets.keys() <= live
    for owner in shot.jobs:
        if owner.pinned and owner.blocked is None:
            assert result.targets[owner.uid] == owner.placement


@given(
    snapshots(blocked=True),
    st.sampled_from((Fifo(), Las(), Fifo(FifoParameters(backfill=True)), Fifo(FifoParameters(elastic=False)))),
)
def test_the_baselines_keep_the_contract_and_are_deterministic(shot, policy):
    """FIFO and LAS answer for every job without a violation, and the same way twice."""
    first, second = run_round(shot, policy, None), run_round(shot, policy, None)
    assert first == second
    assert run_round(shot, policy, first.state).reasons.keys() == first.reasons.keys()


def test_a_policy_begins_from_its_initial_state_and_goes_on_from_its_last():
    """None stands for the first round only."""
    policy = FixedPolicy(grants_all)
    first = run_round(snapshot(job("a")), policy, None)
    assert first.state == PolicyState(1, {"rounds": 1})
    assert run_round(snapshot(job("a")), policy, first.state).state.data == {"rounds": 2}


def test_a_blocked_job_is_kept_from_the_policy():
    """It waits, for what blocks it; a running one goes on, and its GPUs are nobody else's."""
    shot = snapshot(job("a", blocked="waits for job 7"), running("b", blocked="bad tag"), job("c", 4, nodes=1))
    result = run_round(shot, FixedPolicy(grants_all), None)
    assert result.targets == {"b": ON_N1, "c": Placement(("n2",), 4, "v100")}
    assert result.reasons == {"a": "waits for job 7", "b": "bad tag", "c": "its turn"}


def test_a_job_that_somebody_else_suspended_keeps_what_it_holds():
    """It is no business of the policy, and its GPUs are not given away."""
    shot = snapshot(job("a", status=Status.SUSPENDED, placement=ON_N1), job("c", 4, nodes=1), job("d", 4, nodes=1))
    result = run_round(shot, FixedPolicy(grants_all), None)
    assert result.targets == {"a": ON_N1, "c": Placement(("n2",), 4, "v100")}
    assert result.reasons["d"].startswith("its turn; needs 4 GPUs")


def test_a_pinned_job_runs_on_even_if_the_policy_forgets_it():
    """It stays in the targets, ahead of the others."""
    shot = snapshot(running("a", preempt=Preempt.NO), job("b"))
    result = run_round(shot, Says(Decision((Grant("b", 2, "its turn"),))), None)
    assert list(result.targets.items()) == [("a", ON_N1), ("b", ON_N1)]
    assert result.reasons["a"] == CANNOT_STOP


def test_a_finished_job_is_nobodys_business():
    """It is neither decided nor explained."""
    result = run_round(snapshot(job("a", status=Status.FINISHED)), FixedPolicy(grants_all), None)
    assert (result.targets, result.reasons) == ({}, {})


ONE = Grant("a", 2, "its turn")
VIOLATIONS = {
    "is not a job that may start": Decision((ONE, Grant("x", 2, "its turn"))),
    "appears twice in the decision": Decision((ONE,), (), {"a": "waits"}),
    "is missing from the decision": Decision(),
    "is granted without a reason": Decision((replace(ONE, reason=""),)),
    "waits without a reason": Decision(waits={"a": ""}),
    "is granted 3 GPUs, it takes 2 to 2": Decision((replace(ONE, gpus=3),)),
    "is granted at least 1 GPUs, it takes 2 to 2": Decision((replace(ONE, at_least=1),)),
    "is granted GPUs of type a100, it accepts v100": Decision((replace(ONE, gpu_type="a100"),)),
}


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_an_answer_that_breaks_the_contract_is_refused(rule):
    """The error names the policy, the job and the rule."""
    with pytest.raises(PolicyViolationError, match=r"policy 'says', job [ax]: ") as caught:
        run_round(snapshot(job("a", gpu_types=("v100",))), Says(VIOLATIONS[rule]), None)
    assert caught.value.rule == rule


def test_a_pinned_job_cannot_be_granted_another_amount():
    """What it holds is what it gets."""
    pinned = replace(running("a", preempt=Preempt.NO), min_gpus=1, max_gpus=4)
    with pytest.raises(PolicyViolationError, match="other than the 2 GPUs that it must keep"):
        run_round(snapshot(pinned), Says(Decision((Grant("a", 4, "its turn"),))), None)
