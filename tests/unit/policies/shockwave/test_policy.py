"""Shockwave as a policy: from a snapshot's jobs to grants, plans and planned runs."""

import json
from dataclasses import replace

import pytest

from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchRegime
from metasched.core.model import Placement, Preempt, Quota
from metasched.core.policy import PolicyState
from metasched.core.reason_words import words
from metasched.core.reasons import Code
from metasched.scheduling.engine import precompute, run_round
from metasched.throughput.batch_speed import batch_speed
from policies.shockwave.contention import ContentionHistory
from policies.shockwave.forecast import Prediction, forecast
from policies.shockwave.market import Window
from policies.shockwave.policy import Shockwave, ShockwaveParameters
from policies.shockwave.predictor import Estimator
from policies.shockwave.round_market import MarketRules, round_market
from tests.builders import job, linear, nodes, running, snapshot

ROUND = 360.0


def shockwave(**given):
    return Shockwave(ShockwaveParameters(**{"background": False, "window_rounds": 6, **given}))


def work(uid="a", gpus=1, seconds=3600.0, **fields):
    """A job with that many seconds of work left on the GPUs it asks for."""
    return job(uid, gpus, total_steps=seconds * gpus, progress_steps=0.0, speed=linear(1.0), **fields)


def view(jobs, the_nodes, **more):
    return replace(snapshot(jobs, the_nodes, **more), round_seconds=ROUND)


def decide(jobs, the_nodes, policy=None, state=None, **more):
    return run_round(view(jobs, the_nodes, **more), policy or shockwave(), state)


@pytest.mark.parametrize(
    "wrong", [{"window_rounds": 1}, {"k": -1.0}, {"regularisation": -0.1}, {"k": float("nan")}, {"predictor": "oracle"}]
)
def test_wrong_parameters_are_refused(wrong):
    """One round is no plan; weights are not negative."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ShockwaveParameters(**wrong)


def test_all_gpus_run_a_job_that_could_use_them():
    """The plan leaves nothing idle, and each planned job's next run is told."""
    result = decide([work(uid, 2) for uid in "abcde"], nodes(2))
    assert sum(place.gpus for place in result.targets.values()) == 8
    assert result.decision.planned.keys() >= result.targets.keys()
    assert all(result.decision.planned[uid].begins == 0.0 for uid in result.targets)
    assert "planned for" in words(result.reasons["a"])


def test_a_job_that_waits_has_a_planned_run_later():
    """The plan is in the state, by uid."""
    result = decide([work(uid, 4, 900.0) for uid in "ab"], nodes(1))
    (waits,) = {"a", "b"} - result.targets.keys()
    run = result.decision.planned[waits]
    assert run.begins >= ROUND
    assert run.seconds % ROUND == 0
    assert result.state.data["plan"]["jobs"].keys() == {"a", "b"}
    assert json.loads(json.dumps(result.state.data)) == result.state.data


@pytest.mark.parametrize(("whole_job", "first"), [(False, "nearly"), (True, "new")])
def test_progress_counts_relative_to_the_work_that_is_left(whole_job, first):
    """A job that is nearly done is ended first; relative to the whole job, its last steps would be worth little."""
    nearly = work("nearly", 4, 20_000.0).evolve(progress_steps=0.9 * 80_000.0)
    result = decide([nearly, work("new", 4, 4_000.0)], nodes(1), shockwave(k=0.0, whole_job=whole_job))
    assert set(result.targets) == {first}


def test_the_plan_is_followed_and_gone_jobs_are_pruned():
    """Between answers, a later round runs what was planned; a gap goes to others, and arrivals join."""
    policy = shockwave(background=True)
    jobs = [work(uid, 4, 1500.0) for uid in "ab"]
    first = decide(jobs, nodes(1), policy, precomputed={})
    (ran,) = first.targets
    (other,) = {"a", "b"} - {ran}
    left = [one for one in jobs if one.uid == other]
    second = decide(left, nodes(1), policy, first.state, precomputed={}, now=ROUND / 2)
    assert second.targets.keys() == {other}
    assert second.state.data["plan"]["jobs"].keys() == {other}
    assert second.state.data["contention"]["at_arrival"].keys() == {other}
    third = decide([*left, work("new", 4)], nodes(2), policy, second.state, precomputed={}, now=ROUND)
    assert third.targets.keys() == {other, "new"}


def test_an_answer_of_the_background_is_checked_against_the_fresh_snapshot():
    """It was computed at mid-round for the next round; its gone jobs are dropped, and a lost node is heeded."""
    policy = shockwave(background=True)
    jobs = [work(uid, 4, 3000.0) for uid in "abc"]
    first = decide(jobs, nodes(2), policy, precomputed={})
    answer = json.loads(json.dumps(precompute(view(jobs, nodes(2), now=ROUND / 2), policy, first.state)))
    assert answer["plan"]["began"] == ROUND
    second = decide(jobs[1:], nodes(1), policy, first.state, precomputed=answer, now=ROUND)
    assert len(second.targets) == 1
    assert "a" not in second.state.data["plan"]["jobs"]
    assert second.state.data["plan"]["began"] == ROUND


def test_equal_input_gives_equal_plans():
    """The policy reads no clock and draws no random number of its own."""
    jobs = [work(uid, size, 3000.0 * size) for uid, size in zip("abcdef", [1, 2, 4, 1, 2, 1], strict=True)]
    one, two = (decide(jobs, nodes(1), shockwave(samples=3)) for _ in range(2))
    assert one.state == two.state


def test_a_pinned_job_keeps_what_it_holds():
    """The others get the rest, also where the pinned job's node accepts no others."""
    pinned = running(work("p", 4, preempt=Preempt.NO), "v100-0")
    closed = [replace(node, accepts=node.name != "v100-0") for node in nodes(2)]
    for the_nodes in (nodes(2), closed):
        result = decide([pinned, work("a", 4), work("b", 4)], the_nodes)
        assert result.targets["p"] == pinned.placement
        assert len(result.targets) == 2


def test_a_quota_is_a_resource_of_the_market():
    """Its members are planned for no more than it leaves."""
    jobs = [work(uid) for uid in "abcd"]
    quota = Quota("lab", frozenset("abc"), 1)
    result = decide(jobs, nodes(1), quotas=(quota,))
    assert len(result.targets.keys() & {"a", "b", "c"}) == 1
    assert "d" in result.targets
    rounds = [rounds for _, _, rounds in result.state.data["plan"]["jobs"].values()]
    assert sum(0 in each for each in rounds) == 2


def test_a_job_whose_work_is_not_known_runs_unplanned():
    """Its reason says so, and others are planned all the same."""
    unknown = job("u", 2, total_steps=None, speed=None)
    result = decide([unknown, work("a", 2)], nodes(1))
    assert result.targets.keys() == {"u", "a"}
    assert result.decision.planned.keys() == {"a"}
    assert any(part.code == Code.WORK_UNKNOWN for part in result.reasons["u"].parts)


def test_a_late_job_does_not_raise_the_weight_of_jobs_whose_work_is_not_known():
    """Else a user whose jobs declare two steps would gain with those that have done more since."""
    late = work("late", 1, 2.0, submitted=-100_000.0)
    unknown = job("u", 4, total_steps=None, speed=None)
    others = [work(uid, 4) for uid in "abc"]
    window = Window(6, ROUND, 0.0, elastic=False)
    rules = MarketRules(window, 5.0, Prediction(Estimator.RESTATEMENT, 0, 0), 30.0, by_account=False)

    def budget(jobs):
        found = round_market(view(jobs, nodes(1)), ContentionHistory(), rules, 0.0)
        bought = dict(zip(found.market.keys, found.market.budgets, strict=True))
        return bought["u"] / bought["a"]

    assert budget([unknown, late, *others]) == pytest.approx(budget([unknown, *others]))


def test_a_job_that_does_more_than_it_declared_is_not_starved():
    """Its steps are done, and it still trains."""
    over = running(work("over", 4).evolve(progress_steps=1e9), "v100-0")
    assert decide([over], nodes(1)).targets.keys() == {"over"}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"total_steps": float("inf")},
        {"total_steps": -5.0},
        {"progress_steps": float("nan")},
        {"batching": Batching(0, BatchControl.SCRIPT, adapts=AdaptationRule.GNS)},
        {"batching": Batching(64, BatchControl.SCRIPT, regimes=(BatchRegime(0, 5.0), BatchRegime(64, 1.0)))},
        {"gpus": 64, "min_gpus": 64, "max_gpus": 64},
    ],
)
def test_one_jobs_nonsense_leaves_the_plan_of_others(nonsense):
    """A job that cannot be planned or placed takes no round of the others."""
    result = decide([work("odd").evolve(**nonsense), work("a", 4, 3000.0)], nodes(2))
    assert "a" in result.targets
    assert result.state.data["plan"]["jobs"]["a"][2][0] == 0


def test_a_clock_set_back_does_not_stop_the_plan():
    """The plan goes on from the present round."""
    policy = shockwave(background=True)
    first = decide([work("a", 4)], nodes(1), policy, precomputed={}, now=1e6)
    second = decide([work("a", 4)], nodes(1), policy, first.state, precomputed={}, now=5e5)
    assert second.targets.keys() == {"a"}
    assert second.decision.planned["a"].begins == 5e5


def test_early_rounds_do_not_put_the_plan_off():
    """Rounds that arrivals start leave the begin of the plan's round as it is."""
    policy = shockwave(background=True)
    jobs = [work(uid, 4, 1500.0) for uid in "ab"]
    state = decide(jobs, nodes(1), policy, precomputed={}).state
    for now in (100.0, 200.0, 300.0):
        state = decide(jobs, nodes(1), policy, state, precomputed={}, now=now).state
        assert state.data["plan"]["began"] == 0.0
    assert decide(jobs, nodes(1), policy, state, precomputed={}, now=ROUND).state.data["plan"]["began"] == ROUND


def test_regimes_to_come_are_forecast_at_the_speeds_of_their_batches():
    """A batch that doubles doubles the speed; a greedy forecast expects the present batch to the end."""
    batching = Batching(
        32,
        BatchControl.SCRIPT,
        global_batch=32,
        max_batch=64,
        regimes=(BatchRegime(32, 0.0),),
        adapts=AdaptationRule.GNS,
    )
    speeds = {32: linear(1.0), 64: linear(1.0)}
    one = work("a", 1, 1000.0).evolve(batching=batching, batch_speeds=speeds)
    where = ("v100", (1,))
    assert batch_speed(one, 64, *where) == 2.0
    seconds = forecast(one, [where], Prediction(), 100.0).total_seconds(where)
    assert seconds == pytest.approx(500.0 + 500.0 / 2)
    done = one.evolve(progress_steps=400.0)
    assert forecast(done, [where], Prediction(), 100.0).curve(where).end == pytest.approx(100.0 + 250.0)


def test_a_speed_that_is_neither_measured_nor_modelled_is_not_known():
    """The fitted time of an iteration stands in for a batch that was not measured."""
    batching = Batching(32, BatchControl.SCRIPT, global_batch=32, regimes=(BatchRegime(32, 0.0),))
    one = work("a").evolve(batching=batching, batch_speeds={32: linear(1.0)}, speed=None)
    assert batch_speed(one, 128, "v100", (1,)) is None
    fitted = one.evolve(iteration_parameters={"v100": (0.5, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)})
    assert batch_speed(fitted, 128, "v100", (1,)) == pytest.approx(4.0 / (0.5 + 1.28))
    assert batch_speed(fitted, 32, "v100", (1,)) == 1.0


def test_contention_is_that_of_a_jobs_own_life():
    """Jobs over GPUs, from each job's submission on."""
    early = work("a", submitted=0.0)
    history = ContentionHistory().until(snapshot([early], nodes(1), now=0.0))
    both = snapshot([early, work("b", submitted=100.0)], nodes(1), now=100.0)
    history = ContentionHistory.from_json(json.loads(json.dumps(history.until(both).to_json())))
    history = history.until(replace(both, now=200.0))
    assert history.contention("a", 0.0, 1.0) == pytest.approx(1.5)
    assert history.contention("b", 100.0, 1.0) == pytest.approx(2.0)


def test_an_elastic_job_that_does_not_fit_as_requested_runs_on_fewer_gpus():
    """With ``elastic``, jobs choose among sizes."""
    wide = job("w", 8, 2, 8, total_steps=7200.0, progress_steps=0.0, speed=linear(1.0))
    assert decide([wide], nodes(1)).targets["w"].gpus == 4
    pair = [wide.evolve(uid=uid) for uid in ("w", "x")]
    assert len(decide(pair, nodes(1), shockwave(elastic=True)).targets) >= 1


def test_a_planned_placement_that_the_nodes_cannot_hold_leaves_no_gpu_idle():
    """Two jobs of two GPUs on nodes with three: the amounts promise a third job what no node has."""
    result = decide([work(uid, 2) for uid in "abc"] + [work("d"), work("e")], nodes(2, 3))
    assert sum(place.gpus for place in result.targets.values()) == 6


def test_precompute_without_a_state_is_possible():
    """A daemon that starts has none."""
    policy = shockwave(background=True)
    assert precompute(view([work()], nodes(1)), policy, PolicyState())["plan"]["jobs"].keys() == {"a"}
    assert Placement(("v100-0",), 1, "v100") in decide([work()], nodes(1), policy, precomputed={}).targets.values()
