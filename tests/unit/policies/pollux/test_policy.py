"""Pollux as a policy: from a snapshot's jobs to grants with batch plans."""

import json
import tomllib
from dataclasses import replace

import pytest

from metasched.core.batching import BatchControl, Batching, BatchPlan, GradientNoise
from metasched.core.model import Placement, Preempt, Status
from metasched.core.policy import PolicyState
from metasched.core.reason_words import words
from metasched.core.reasons import Code
from metasched.scheduling.engine import precompute, run_round
from metasched.throughput.goodput import HYSTERESIS
from metasched.throughput.job_goodput import batch_limits, job_goodput
from policies.pollux.policy import Pollux, PolluxParameters
from tests.builders import job, nodes, running, snapshot

THETA = (0.02, 0.001, 0.01, 0.001, 0.05, 0.002, 1.5)
ADAPTIVE = Batching(64, BatchControl.SCHEDULER, BatchPlan(64), 64, max_batch=4096, min_per_gpu=8, max_per_gpu=256)


def pollux(**given):
    return Pollux(PolluxParameters(**{"improvements": 50, "background": False, **given}))


def adaptive(uid="a", *, noise=1e4, most=16, **fields):
    """A job from one GPU on whose trainers have reported everything."""
    known = {"batching": ADAPTIVE, "noise": GradientNoise(1.0, noise), "iteration_parameters": {"v100": THETA}}
    return job(uid, 1, 1, 64, adaptive_batch=True, most_gpus=most, run=1, **known | fields)


def decide(jobs, the_nodes, policy=None, **more):
    return run_round(snapshot(jobs, the_nodes, **more), policy or pollux(), None)


def test_a_new_job_begins_on_one_gpu():
    """It may have twice as many as it ever had, and has had none."""
    new = job("a", 4, 1, 64)
    assert decide([new], nodes(4)).targets["a"].gpus == 1
    assert decide([new.evolve(most_gpus=1)], nodes(4)).targets["a"].gpus == 2
    rigid = job("b", 4)
    assert decide([rigid], nodes(4)).targets["b"].gpus == 4


def test_a_job_with_much_noise_has_a_larger_batch_than_one_with_little():
    """The batch plan is the best one on the granted GPUs; the reason says batch and efficiency."""
    both = [adaptive("loud", noise=1e6), adaptive("calm", noise=10.0)]
    result = decide(both, nodes(2))
    loud, calm = (result.batches[uid].global_batch(result.targets[uid].gpus) for uid in ("loud", "calm"))
    assert loud > 4 * calm
    assert calm >= ADAPTIVE.first_batch
    assert result.reasons["loud"].code == Code.GOODPUT_SPEEDUP
    assert "batch of" in words(result.reasons["loud"])


def test_a_batch_that_is_nearly_the_best_remains():
    """A trainer is asked for another plan only where goodput gains more than its own threshold."""
    place = Placement(("v100-0",), 4, "v100")
    held = adaptive(status=Status.RUNNING, placement=place, run_started=0.0, trainer_ready=True)
    best = decide([held], nodes(1)).batches["a"]
    goodput = job_goodput(held, ["v100"])["v100"]
    reached = {plan: goodput.at(4, plan, multi_node=False).goodput for plan in map(BatchPlan, range(16, 257))}
    near = [plan for plan, one in reached.items() if plan != best and one * (1 + HYSTERESIS) > reached[best]]
    far = [plan for plan, one in reached.items() if one * (1 + HYSTERESIS) < reached[best]]
    assert near
    assert far
    asked = [held.evolve(requested_batch=plan) for plan in (near[0], far[0])]
    assert [decide([one], nodes(1)).batches["a"] for one in asked] == [near[0], best]
    never_asked = held.evolve(batching=replace(ADAPTIVE, plan=near[0]))
    assert decide([never_asked], nodes(1)).batches["a"] == best  # its lease needs a plan
    trained = held.evolve(batching=replace(ADAPTIVE, plan=near[0]), requested_batch=far[0])
    kept = decide([trained], nodes(1))
    assert kept.batches["a"] == far[0]  # which it was asked for, and has replaced by itself
    assert f"batch of {near[0].global_batch(4)}" in words(kept.reasons["a"])
    moved = trained.evolve(placement=Placement(("gone",), 4, "v100"))
    assert decide([moved], nodes(1)).batches["a"] == best


@pytest.mark.parametrize("asked", [BatchPlan(4), BatchPlan(256), BatchPlan(100, 4), BatchPlan(512)])
def test_a_batch_that_the_script_no_longer_allows_is_not_asked_for_again(asked):
    """The limits of the latest start count, although the present batch is nearly the best."""
    place = Placement(("v100-0",), 4, "v100")
    held = adaptive(status=Status.RUNNING, placement=place, run_started=0.0, trainer_ready=True)
    smaller = replace(ADAPTIVE, max_batch=400)
    best = decide([held.evolve(batching=smaller)], nodes(1)).batches["a"]
    trained = held.evolve(batching=replace(smaller, plan=best), requested_batch=asked)
    assert decide([trained], nodes(1)).batches["a"] == best


def test_a_job_with_a_fixed_batch_is_granted_gpus_and_no_plan():
    """Its efficiency is 1 whatever its noise."""
    fixed = adaptive().evolve(batching=Batching(64, plan=BatchPlan(64), global_batch=64))
    result = decide([fixed], nodes(2))
    assert result.batches == {}
    assert result.targets["a"].gpus >= 1


def test_equal_jobs_share_the_cluster_equally():
    """With p = -1 no job gains at the cost of an equal one."""
    result = decide([adaptive(uid) for uid in "abcd"], nodes(4))
    assert {result.targets[uid].gpus for uid in "abcd"} == {4}


def test_no_node_has_two_jobs_over_several_nodes():
    """They would slow each other down."""
    result = decide([adaptive(uid, noise=1e8) for uid in "abc"], nodes(6, 2), pollux(improvements=200))
    seen = [node for place in result.targets.values() if len(place.nodes) > 1 for node in place.nodes]
    assert len(seen) == len(set(seen))


def test_a_pinned_job_keeps_what_it_holds():
    """The others get the rest."""
    pinned = running(job("p", 4, preempt=Preempt.NO), "v100-0")
    result = decide([pinned, adaptive()], nodes(2))
    assert result.targets["p"] == pinned.placement
    assert result.targets["a"].nodes == ("v100-1",)


def test_a_pinned_job_whose_nodes_are_gone_keeps_what_it_holds():
    """No other placement may be prescribed for it, however good."""
    pinned = running(job("p", 2, preempt=Preempt.SUSPEND), "gone")
    result = decide([pinned, adaptive()], nodes(2))
    assert result.targets["p"] == pinned.placement
    assert "a" in result.targets


def test_jobs_that_no_node_can_hold_wait_with_a_reason():
    """They count in no other job's way."""
    result = decide([job("wide", 64), adaptive()], nodes(2))
    assert "wide" not in result.targets
    assert result.reasons["wide"].code == Code.EXCEEDS_NODES
    assert "a" in result.targets


def test_a_job_without_gpus_runs_where_cpus_are_free():
    """It is no part of the search."""
    assert decide([job("cpu", 0), adaptive()], nodes(1)).targets.keys() == {"cpu", "a"}


def test_a_job_that_was_moved_often_is_left_where_it_is():
    """The factor of a re-allocation weighs a small gain of speed-up down."""
    place = Placement(("v100-0",), 4, "v100")
    held = adaptive().evolve(status=Status.RUNNING, placement=place, run_started=0.0, run=9, restart_seconds=60.0)
    assert decide([held], nodes(1, 5), now=700.0).targets["a"] == place
    calm = held.evolve(run=1, restart_seconds=1.0)
    assert decide([calm], nodes(1, 5), now=700.0).targets["a"].gpus == 5


def test_the_last_answer_holds_until_the_next_one_comes():
    """Under the daemon the search is precomputed; gone jobs' GPUs go to others, and new jobs get one GPU."""
    policy = pollux(background=True)
    jobs = [adaptive("a"), adaptive("b")]
    first = run_round(snapshot(jobs, nodes(2), precomputed={}), policy, None)
    found = precompute(snapshot(jobs, nodes(2)), policy, first.state)
    second = run_round(snapshot(jobs, nodes(2), precomputed=found), policy, first.state)
    assert {uid: place.gpus for uid, place in second.targets.items()} == {"a": 4, "b": 4}
    ran = [one.evolve(status=Status.RUNNING, placement=second.targets[one.uid], run_started=0.0, run=2) for one in jobs]
    third = run_round(snapshot(ran, nodes(2), precomputed={}), policy, second.state)
    assert third.targets == second.targets
    fourth = run_round(snapshot([ran[0], job("new", 1, 1, 8)], nodes(2), precomputed={}), policy, third.state)
    assert fourth.targets["a"] == second.targets["a"]
    assert fourth.targets["new"].gpus == 1


@pytest.mark.parametrize(
    "odd",
    [
        Batching(64, BatchControl.SCHEDULER, max_batch=8),
        Batching(64, BatchControl.SCHEDULER, max_batch=512, min_per_gpu=64, max_per_gpu=8),
        Batching(64, BatchControl.SCHEDULER),
        Batching(1, BatchControl.SCRIPT, global_batch=3),
    ],
)
def test_contradicting_limits_leave_the_batch_as_it_is(odd):
    """No job's nonsense stops a round."""
    limits = batch_limits(odd)
    assert limits.first_batch <= limits.max_batch
    result = decide([adaptive("odd").evolve(batching=odd), adaptive("a")], nodes(2))
    assert result.targets.keys() == {"odd", "a"}


@pytest.mark.parametrize("given", ["-inf", "-.inf", float("-inf"), "-Infinity"])
def test_minus_infinity_is_the_minimum(given):
    """It is stored as JSON can; no job is served at the cost of the worst one, whatever the others would gain."""
    parameters = PolluxParameters(p=given)
    assert json.loads(json.dumps(parameters.model_dump(mode="json")))["p"] == "-inf"
    assert PolluxParameters(**parameters.model_dump(mode="json")) == parameters
    jobs = [adaptive("loud", noise=1e7), adaptive("calm", noise=30.0)]
    most, least = (decide(jobs, nodes(1), pollux(p=p)) for p in (1.0, given))
    assert least.targets["calm"].gpus > most.targets["calm"].gpus


@pytest.mark.parametrize("given", [float("inf"), float("nan"), "inf", "nan", 65.0, True, None])
def test_an_exponent_that_is_no_mean_is_refused(given):
    """The message says which numbers are."""
    with pytest.raises(ValueError, match='give a number up to 64, or "-inf"'):
        PolluxParameters(p=given)


def test_a_configuration_can_ask_for_the_minimum():
    """TOML has infinity as a number."""
    text = tomllib.loads('quoted = "-inf"\nnumber = -inf')
    assert PolluxParameters(p=text["quoted"]) == PolluxParameters(p=text["number"])


def test_the_population_search_keeps_its_elites_in_the_state():
    """They are JSON, begin the next search, and outlast rounds without a new result."""
    policy = pollux(search="population", generations=5, population=6, background=True)
    jobs = [adaptive(uid) for uid in "abc"]
    view = snapshot(jobs, nodes(4))
    found = json.loads(json.dumps(precompute(view, policy, PolicyState())))
    first = run_round(replace(view, precomputed=found), policy, None)
    assert len(first.targets) == 3
    assert first.state.data["elites"] == found["elites"]
    assert found["elites"]["elites"]
    second = run_round(replace(view, precomputed={}), policy, first.state)
    assert second.state.data == first.state.data
    assert precompute(view, policy, second.state)["elites"]["jobs"]


def test_a_background_search_advises_on_the_number_of_nodes():
    """The advice is kept until the next answer; a round that searches by itself has none."""
    policy = pollux(background=True)
    view = snapshot([adaptive("a", most=1)], nodes(6))
    found = precompute(view, policy, PolicyState())
    first = run_round(replace(view, precomputed=found), policy, None)
    (advice,) = first.decision.advice
    assert (advice.gpu_type, advice.nodes, advice.advised) == ("v100", 6, 1)
    assert run_round(replace(view, precomputed={}), policy, first.state).decision.advice == (advice,)
    assert run_round(view, pollux(), None).decision.advice == ()


@pytest.mark.parametrize("noise", [GradientNoise(0.0, 0.0), GradientNoise(1e30, 0.0), GradientNoise(0.0, 1e30), None])
def test_any_noise_is_taken(noise):
    """Noise that is not known leaves the first batch."""
    result = decide([adaptive().evolve(noise=noise)], nodes(2))
    assert result.targets["a"].gpus >= 1
