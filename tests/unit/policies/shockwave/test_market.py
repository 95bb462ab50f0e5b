import math

import numpy as np
import pytest

from policies.shockwave.budgets import RHO_RANGE, account_weights, budgets, estimated_rho, mean_contention
from policies.shockwave.market import Market, MarketJob, Window
from tests.unit.policies.shockwave.markets import one_mode, random_jobs, simple_job, simple_market


def test_rho_is_the_predicted_completion_over_the_fair_one():
    """Eq. 9: age and what remains under contention, over the whole job under contention."""
    assert estimated_rho(600.0, 300.0, 500.0, 3.0) == pytest.approx((600 + 300 * 3) / (500 * 3))
    assert estimated_rho(0.0, 500.0, 500.0, 3.0) == 1.0


def test_rho_counts_no_contention_below_one():
    """On an idle cluster a job runs as fast as alone, and not faster."""
    assert estimated_rho(100.0, 400.0, 500.0, 0.2) == 1.0


def test_table_1_has_these_rho():
    """Three jobs, serial times 12, 8 and 6, fair times serial x 3/4, in the schedules of Figure 15."""
    fair = {"A": 9.0, "B": 6.0, "C": 4.5}
    exclusive = {"A": 4.0, "B": 4.0, "C": 3.0}
    adaptive, fixed = {"A": 7.0, "B": 5.0, "C": 3.0}, {"A": 7.0, "B": 5.0, "C": 5.0}

    def rho(ends):
        return {job: estimated_rho(ends[job], 0.0, exclusive[job], fair[job] / exclusive[job]) for job in ends}

    assert max(rho(adaptive).values()) == pytest.approx(0.83, abs=0.005)
    assert max(rho(fixed).values()) == pytest.approx(1.11, abs=0.005)


def test_mean_contention_is_live_jobs_over_gpus():
    """Over an empty span there is no contention yet."""
    assert mean_contention(64 * 100.0, 32, 100.0) == 2.0
    assert mean_contention(0.0, 32, 0.0) == 1.0


def test_budgets_are_powers_of_rho_times_weights():
    """Their sum is 1; an estimate that is not finite or absurd changes one job's budget within bounds."""
    assert budgets([1.0, 2.0], 5, [1.0, 1.0]) == pytest.approx([1 / 33, 32 / 33])
    assert budgets([1.0, 1.0], 5, [1.0, 3.0]) == pytest.approx([0.25, 0.75])
    assert budgets([9.0, 1.0], 0, [1.0, 1.0]) == pytest.approx([0.5, 0.5])
    assert budgets([0.2, 1.0], 5, [1.0, 1.0]) == pytest.approx([0.5, 0.5])
    assert budgets([math.nan, 1.0], 5, [1.0, 1.0]) == pytest.approx([0.5, 0.5])
    least = budgets([1e300, 1.0], 5, [1.0, 1.0])
    assert np.isfinite(least).all()
    assert least[1] == pytest.approx(RHO_RANGE[1] ** -5, rel=1e-6)


@pytest.mark.parametrize(("exponent", "weight"), [(-1, 1.0), (math.nan, 1.0), (5, 0.0), (5, math.inf)])
def test_wrong_budgets_are_named(exponent, weight):
    """The message names the number and a right one."""
    with pytest.raises(ValueError, match=r"exponent of rho is|weight is not"):
        budgets([1.0], exponent, [weight])


def test_the_weight_of_an_account_is_divided_among_its_jobs():
    """By their own weights; an account without a weight has 1."""
    assert account_weights(["a", "a", "b"], [1.0, 3.0, 1.0], {"a": 2.0}) == [0.5, 1.5, 1.0]


def test_progress_follows_the_regimes_in_order():
    """Eq. 7: the first regime's part at its speed, then the second one's; nothing after the end."""
    market = simple_market([MarketJob("a", 20.0, (one_mode(1, [100.0, 140.0], [40.0, 80.0]),))], 1)
    progress = market.progress(np.array([0]), np.array([[0.0, 50.0, 100.0, 120.0, 140.0, 500.0]]))
    assert progress[0] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 0.8])


def test_the_makespan_bound_is_the_load_or_the_longest_job():
    """Eq. 10, with the load weighted by GPUs, so that it is a lower bound for gangs, too."""
    loaded = simple_market([simple_job(str(k), 1000.0, 2) for k in range(8)], 4)
    assert loaded.makespan(np.zeros(8)) == pytest.approx(8 * 2 * 1000.0 / 4)
    long = simple_market([simple_job("long", 9000.0), simple_job("short", 100.0)], 4)
    assert long.makespan(np.zeros(2)) == pytest.approx(9000.0)
    assert long.makespan(np.array([0.5, 0.0])) == pytest.approx(4500.0)


def test_a_job_that_has_done_nothing_has_a_finite_logarithm():
    """A part of the whole job counts as done: a round gains more for a short job than for a long one."""
    market = simple_market([simple_job("long", 1e6), simple_job("short", 1e3)], 1)
    gains = np.diff(market.welfare(np.arange(2), market.progress(np.arange(2), np.array([[0.0, 120.0]] * 2))))
    head = market.window.head_start
    assert gains[:, 0] == pytest.approx([0.5 * math.log((head + part) / head) for part in (1.2e-4, 0.12)])


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (simple_job("bad", math.nan), "not finite"),
        (simple_job("bad", -5.0), "negative"),
        (simple_job("bad", 0.0), "no work is left"),
        (simple_job("bad", 10.0, done=1.0), "no work is left"),
        (simple_job("bad", 10.0, budget=math.inf), "not finite"),
        (simple_job("bad", 10.0, 9), "more than the cluster has"),
        (simple_job("bad", 10.0, need=(1.0, 1.0)), "resources"),
        (simple_job("bad", 10.0, need=(0.0,)), "no resource"),
        (MarketJob("bad", 0.0, (one_mode(1, [20.0, 10.0], [0.5, 1.0]),)), "ascend"),
        (MarketJob("bad", 0.0, (one_mode(1, [10.0, 20.0], [1.0]),)), "ascend"),
        (MarketJob("bad", 0.0, ()), "no mode"),
    ],
)
def test_one_jobs_nonsense_is_refused_and_leaves_the_others_alone(job, words):
    """The reason is said in words; the market is that of the other jobs."""
    others = [simple_job("a", 100.0), simple_job("b", 200.0)]
    market = simple_market([others[0], job, others[1]], 8)
    assert words in market.refused["bad"]
    assert market.keys == ("a", "b")
    assert market.objective(np.zeros(2)) == simple_market(others, 8).objective(np.zeros(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"round_seconds": 0.0},
        {"regularisation": -1.0},
        {"regularisation": math.nan},
        {"head_start": 0.0},
    ],
)
def test_a_wrong_window_is_named(wrong):
    """The message has the value and a right one."""
    with pytest.raises(ValueError, match=r"rounds of|regularisation is|head_start is"):
        Window(**wrong)


def test_two_jobs_with_one_key_are_refused():
    """The caller has mixed up jobs."""
    with pytest.raises(ValueError, match="the same key"):
        simple_market([simple_job("a", 1.0), simple_job("a", 2.0)], 1)


def test_only_elastic_windows_offer_other_sizes():
    """By default a gang has the size that was requested."""
    job = MarketJob("a", 0.0, (one_mode(2, 100.0, 1.0), one_mode(4, 60.0, 1.0)))
    assert Market.of([job], [4.0], 4, Window()).mode.tolist() == [0]
    assert Market.of([job], [4.0], 4, Window(elastic=True)).mode.tolist() == [0, 1]


def test_seconds_and_steps_have_no_scale():
    """In other units the objective is the same."""
    progress = np.linspace(0.0, 0.05, 6)
    once = Market.of(random_jobs(1, 6, 2), [4.0], 4, Window(10, 120.0)).objective(progress)
    other = Market.of(random_jobs(1, 6, 2, unit=7.0, steps=13.0), [4.0], 4, Window(10, 840.0)).objective(progress)
    assert other == pytest.approx(once, rel=1e-9)
