"""Batch plans on their way from a policy's grant to the trainer."""

import pytest

from metasched.core.batching import BatchControl, Batching, BatchPlan
from metasched.core.model import Decision, Grant, Placement, Retune, Start, Stop
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.scheduling.batch_changes import with_batch_plans
from metasched.scheduling.contract_checks import PolicyViolationError
from metasched.scheduling.engine import run_round
from metasched.scheduling.plan import Timeouts, plan
from tests.builders import job, nodes, running, snapshot

WHY = Reason.text("for the test")
TIMEOUTS = Timeouts(20.0, 20.0)
ADAPTIVE = Batching(64, BatchControl.SCHEDULER, BatchPlan(32), 64, max_batch=512, min_per_gpu=8, max_per_gpu=64)
LARGE = BatchPlan(64, 2)


class Granting(Policy):
    """Grants every job its GPUs and one batch plan."""

    name = "granting"
    batch = LARGE

    def decide(self, snapshot, state):
        grants = tuple(Grant(one.uid, one.gpus, WHY, batch=self.batch) for one in snapshot.jobs)
        return Decision(grants), PolicyState()


def adaptive(uid="a", gpus=2, **fields):
    return job(uid, gpus, adaptive_batch=True, **{"batching": ADAPTIVE, **fields})


def actions(jobs, result):
    observed = snapshot(jobs)
    return with_batch_plans(plan(observed, result.targets, TIMEOUTS), observed, result.targets, result.batches)


def test_a_start_has_its_batch_plan():
    """The first lease of a run names the plan, so the trainer begins with it."""
    result = run_round(snapshot([adaptive()]), Granting(), None)
    assert result.batches == {"a": LARGE}
    (start,) = actions([adaptive()], result)
    assert isinstance(start, Start)
    assert start.batch == LARGE


def test_a_run_that_continues_is_asked_once():
    """A run on its target takes up another plan without a stop; a plan that it was asked for is not asked again."""
    here = running(adaptive(), "v100-0").evolve(trainer_ready=True)
    result = run_round(snapshot([here]), Granting(), None)
    (action,) = actions([here], result)
    assert isinstance(action, Retune)
    assert (action.batch, action.reason.code) == (LARGE, Code.BATCH_CHANGES)
    assert actions([here.evolve(requested_batch=LARGE)], result) == ()
    assert len(actions([here.evolve(requested_batch=BatchPlan(32))], result)) == 1


@pytest.mark.parametrize("change", [{"trainer_ready": False}, {"stop_requested": 1.0}])
def test_a_run_that_cannot_listen_is_not_asked(change):
    """A trainer that is not ready reads its lease at its start; one that is to stop reads no more."""
    here = running(adaptive(), "v100-0").evolve(**{"trainer_ready": True} | change)
    result = run_round(snapshot([here]), Granting(), None)
    assert not [one for one in actions([here], result) if isinstance(one, Retune)]


def test_a_run_that_moves_is_stopped_and_not_asked():
    """The plan belongs to the new placement."""
    here = running(adaptive(), "v100-0").evolve(trainer_ready=True)
    target = {"a": Placement(("v100-1",), 2, "v100")}
    observed = snapshot([here], nodes(2))
    found = with_batch_plans(plan(observed, target, TIMEOUTS), observed, target, {"a": LARGE})
    assert [type(one) for one in found] == [Stop]


def test_a_grant_that_is_placed_smaller_has_no_batch_plan():
    """A plan is made for the number of GPUs that was granted."""

    class Shrinking(Granting):
        def decide(self, snapshot, state):
            return Decision((Grant("a", 4, WHY, at_least=1, batch=BatchPlan(64, 1)),)), PolicyState()

    wide = adaptive(gpus=4).evolve(min_gpus=1)
    result = run_round(snapshot([wide], nodes(1, 2)), Shrinking(), None)
    assert result.targets["a"].gpus == 2
    assert result.batches == {}


@pytest.mark.parametrize(
    ("batching", "batch", "rule"),
    [
        (None, LARGE, "does not let metasched"),
        (Batching(64), LARGE, "does not let metasched"),
        (ADAPTIVE, BatchPlan(65), "per GPU"),
        (ADAPTIVE, BatchPlan(7, 8), "per GPU"),
        (ADAPTIVE, BatchPlan(64, 0), "per GPU"),
        (ADAPTIVE, BatchPlan(16), "global batch of 32"),
        (ADAPTIVE, BatchPlan(64, 5), "global batch of 640"),
    ],
)
def test_a_batch_plan_beyond_the_limits_is_refused(batching, batch, rule):
    """A policy must respect consent and limits."""

    class Bad(Granting):
        pass

    Bad.batch = batch
    with pytest.raises(PolicyViolationError, match=rule):
        run_round(snapshot([adaptive(batching=batching)]), Bad(), None)
