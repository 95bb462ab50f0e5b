"""The mathematics of Gavel's policies: the paper's examples, and the properties that it claims (section 4.4)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies.gavel.solve
from policies.gavel.fairness_objectives import (
    equal_share_factor,
    finish_time_fairness,
    makespan,
    max_min_fairness,
    water_filling,
)
from policies.gavel.problem import NodeLimit, Pairs, Pools, Problem
from policies.gavel.solve import max_min, maximise
from policies.gavel.sum_objectives import in_order, least_cost, total_throughput

CLOSE = 1e-4
SLACK = 1e-6  # above the tolerance of the solvers, 1e-7


def problem(rates, capacity, *, counts=None, scale=None):
    rates = np.array(rates, dtype=float)
    ones = np.ones(len(rates))
    return Problem(
        rates,
        ones if counts is None else np.array(counts, dtype=float),
        ones if scale is None else np.array(scale, dtype=float),
        np.array(capacity, dtype=float),
        Pairs.none(len(capacity)),
        Pools.none(len(capacity)),
    )


def fractions(made, x):
    """Fraction of the time of one job of each class alone on each type, shape (M, J), from the variables."""
    combination, gpu_type = made.columns
    alone = combination < len(made.rates)
    found = np.zeros(made.rates.shape)
    found[combination[alone], gpu_type[alone]] = x[alone]
    return found / made.counts[:, None]


@st.composite
def problems(draw, *, pairs=False):
    """Up to six classes of jobs on up to three types."""
    types = draw(st.integers(1, 3))
    size = draw(st.integers(1, 6))
    rate = st.one_of(st.just(0.0), st.floats(0.1, 50.0))
    rates = [draw(st.lists(rate, min_size=types, max_size=types).filter(any)) for _ in range(size)]
    scale = draw(st.lists(st.sampled_from((1, 1, 2, 4)), min_size=size, max_size=size))
    made = problem(
        rates,
        draw(st.lists(st.integers(1, 8), min_size=types, max_size=types)),
        counts=draw(st.lists(st.integers(1, 4), min_size=size, max_size=size)),
        scale=scale,
    )
    if not pairs:
        return made
    found = [
        (a, b, draw(st.integers(20, 100)) / 100)  # 0.99999 would let a pair gain much by the solvers' tolerance
        for a in range(size)
        for b in range(a, size)
        if (a != b or made.counts[a] > 1) and scale[a] == scale[b] and draw(st.booleans())
    ]
    first, second = (np.array([row[i] for row in found], dtype=np.int64) for i in (0, 1))
    part = np.array([row[2] for row in found]).reshape(-1, 1)
    sharing = Pairs(first, second, made.rates[first] * part, made.rates[second] * part)
    return replace(made, pairs=sharing)


@st.composite
def kinds_of_jobs(draw):
    """Up to three kinds with several classes each; the co-located speed of a job depends on the two kinds alone."""
    size, types = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rates = np.array([draw(st.lists(st.floats(0.5, 20.0), min_size=types, max_size=types)) for _ in range(size)])
    kind = np.repeat(np.arange(size), [draw(st.integers(1, 4)) for _ in range(size)])
    counts = [draw(st.integers(1, 2)) for _ in kind]
    made = problem(rates[kind], draw(st.lists(st.integers(1, 3), min_size=types, max_size=types)), counts=counts)
    part = {(a, b): draw(st.floats(0.4, 1.0)) for a in range(size) for b in range(size)}
    met = [(a, b) for a in range(size) for b in range(a, size) if draw(st.booleans())]
    pairs = [
        (i, j)
        for i in range(len(kind))
        for j in range(i, len(kind))
        if (kind[i], kind[j]) in met and (i < j or counts[i] > 1)
    ]
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    apart = np.array([part[kind[i], kind[j]] for i, j in pairs]).reshape(-1, 1)
    other = np.array([part[kind[j], kind[i]] for i, j in pairs]).reshape(-1, 1)
    direct = replace(made, pairs=Pairs(first, second, made.rates[first] * apart, made.rates[second] * other))
    parts = [
        (number, side, member, part[mine, theirs])
        for number, (a, b) in enumerate(met)
        for side, (mine, theirs) in enumerate(((a, b), (b, a))[: 1 if a == b else 2])
        for member in np.nonzero(kind == mine)[0]
    ]
    pool, side, member = (np.array([row[i] for row in parts], dtype=np.int64) for i in range(3))
    speed = made.rates[member] * np.array([row[3] for row in parts]).reshape(-1, 1)
    single_kind = np.array([a == b for a, b in met], dtype=bool)
    return direct, replace(
        made, pools=Pools(np.ones((len(met), types), dtype=bool), single_kind, pool, side, member, speed)
    )


PROGRAMS = {
    "las": lambda made, numbers: max_min_fairness(made, numbers / numbers.max()),
    "makespan": makespan,
    "ftf": lambda made, numbers: finish_time_fairness(made, numbers, np.full(len(numbers), 9.0), numbers),
}
every_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


def without_pairs(made):
    types = len(made.capacity)
    return replace(made, pairs=Pairs.none(types), pools=Pools.none(types))


def valid(made, x):
    matrix, bounds = made.limits
    return (x >= 0).all() and (matrix @ x <= bounds * (1 + 1e-6) + 1e-6).all()


def least(made, x, weights):
    factor = equal_share_factor(made, weights)
    return float(min((factor * (made.throughput @ x))[made.equal > 0], default=0.0))


def test_the_example_of_section_4_1():
    """Three jobs on a V100 and a K80 get the fractions that the paper prints."""
    made = problem([[40, 10], [12, 4], [100, 50]], [1, 1])
    found = fractions(made, max_min_fairness(made, np.ones(3)))
    assert found == pytest.approx(np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]]), abs=0.006)
    gain = (made.throughput @ max_min_fairness(made, np.ones(3))) / made.isolated
    assert gain == pytest.approx(np.full(3, 1.09), abs=0.01)


def test_the_water_filling_example_of_section_4_3():
    """Weights 3, 1, 1 and 1 on four GPUs: the heavy job is the first bottleneck, and all get a GPU."""
    made = problem(np.ones((4, 1)), [4])
    seen = []

    def weights(growing):
        seen.append(growing.copy())
        return np.array([3.0, 1.0, 1.0, 1.0]) * growing

    assert made.throughput @ water_filling(made, weights) == pytest.approx(np.ones(4), abs=CLOSE)
    assert [list(growing) for growing in seen[:2]] == [[1, 1, 1, 1], [0, 1, 1, 1]]


@given(problems(pairs=True), st.data())
@settings(deadline=None)
def test_allocations_are_valid(made, data):
    """No job has more than all of its time, and no type more than its GPUs."""
    size = len(made.rates)
    positive = st.lists(st.floats(1.0, 1000.0), min_size=size, max_size=size).map(np.array)
    assert valid(made, max_min_fairness(made, data.draw(positive)))
    assert valid(made, makespan(made, data.draw(positive)))
    assert valid(made, finish_time_fairness(made, data.draw(positive), data.draw(positive), data.draw(positive)))
    assert valid(made, water_filling(made, lambda growing: growing))
    assert valid(made, in_order(made, np.arange(size, dtype=float)))
    found, met = least_cost(made, np.ones(len(made.capacity)), data.draw(positive))
    assert valid(made, found)
    assert (made.throughput @ found >= met * (1 - CLOSE) - CLOSE).all()


@given(problems())
@settings(deadline=None)
def test_sharing_incentive(made):
    """No job's least share is below that of an equal split of all GPUs."""
    apart = equal_share_factor(made, np.ones(len(made.rates))) * made.isolated
    found = least(made, max_min_fairness(made, np.ones(len(made.rates))), np.ones(len(made.rates)))
    assert found >= float(min(apart[made.equal > 0])) * (1 - CLOSE)


@given(problems(), st.data())
@settings(deadline=None)
def test_sharing_incentive_of_durations(made, data):
    """Neither the longest duration nor the largest rho is above that of 1/n of all GPUs for each job."""
    size = len(made.rates)
    numbers = st.lists(st.floats(1.0, 1e4), min_size=size, max_size=size).map(np.array)
    steps, elapsed = data.draw(numbers), data.draw(numbers)
    longest = float(np.max(steps / (made.throughput @ makespan(made, steps))))
    assert longest <= float(np.max(steps / made.isolated)) * (1 + CLOSE)
    found = made.throughput @ finish_time_fairness(made, steps, elapsed, elapsed)
    rho = (elapsed + steps / found) / (elapsed + steps / made.isolated)
    assert float(np.max(rho)) <= 1 + CLOSE


@given(problems(pairs=True), st.data())
@settings(deadline=None)
def test_colocation_never_makes_durations_longer(made, data):
    """With possible pairs, the longest duration and the largest rho are at most those without."""
    alone, size = without_pairs(made), len(made.rates)
    numbers = st.lists(st.floats(1.0, 1e4), min_size=size, max_size=size).map(np.array)
    steps, elapsed = data.draw(numbers), data.draw(numbers)
    longest = [float(np.max(steps / (each.throughput @ makespan(each, steps)))) for each in (made, alone)]
    assert longest[0] <= longest[1] * (1 + CLOSE)
    ideal = elapsed + steps / made.isolated
    reached = [each.throughput @ finish_time_fairness(each, steps, elapsed, elapsed) for each in (made, alone)]
    rho = [float(np.max((elapsed + steps / speed) / ideal)) for speed in reached]
    assert rho[0] <= rho[1] * (1 + CLOSE)


@given(problems(pairs=True))
@settings(deadline=None)
def test_colocation_is_never_worse(made):
    """With possible pairs, the least share is at least that without."""
    alone = without_pairs(made)
    ones = np.ones(len(made.rates))
    with_pairs = least(made, max_min_fairness(made, ones), ones)
    assert with_pairs >= least(alone, max_min_fairness(alone, ones), ones) * (1 - CLOSE)


@given(kinds_of_jobs(), st.data())
@settings(deadline=None)
def test_pools_are_as_good_as_a_variable_for_each_pair(both, data):
    """The objectives are equal, with fewer variables."""
    direct, together = both
    size = len(direct.rates)
    steps = data.draw(st.lists(st.floats(1.0, 1000.0), min_size=size, max_size=size).map(np.array))
    for factor in (1.0 / steps, equal_share_factor(direct, np.ones(size))):
        found = [least_of(made, max_min(made, factor).x, factor) for made in both]
        assert found[0] == pytest.approx(found[1], rel=CLOSE)
    sums = [float((steps * made.counts) @ (made.throughput @ total_throughput(made, steps))) for made in both]
    assert sums[0] == pytest.approx(sums[1], rel=CLOSE)
    assert valid(together, makespan(together, steps))


def least_of(made, x, factor):
    return float((factor * (made.throughput @ x)).min())


def test_node_limits_hold_for_the_classes_that_they_name():
    """The GPUs of two jobs fit on one node only: the second job is unconsolidated, at half the speed."""
    rates = [[2.0, 1.0], [2.0, 1.0]]
    made = replace(problem(rates, [8], scale=[4, 4]), source=(0,), node_limits=(NodeLimit(0, np.ones(2), 1.0),))
    found = fractions(made, max_min_fairness(made, np.ones(2)))
    assert found == pytest.approx(np.full((2, 2), 0.5), abs=CLOSE)
    alike = replace(made, node_limits=())
    assert fractions(alike, max_min_fairness(alike, np.ones(2))) == pytest.approx(np.array([[1, 0]] * 2), abs=CLOSE)


def most(gain, made, matrix, floors):
    """The most of an objective above floors, without what the solver gains by the slack that it needs there."""
    found = maximise(gain, made.limits, (matrix, floors * (1 - SLACK)))
    return found.value - found.prices @ (floors * SLACK)


@given(problems(pairs=True))
@settings(deadline=None)
def test_water_filling_is_pareto_efficient(made):
    """No class can have more without less for another class."""
    reached = made.throughput @ water_filling(made, lambda growing: growing)
    for m in range(len(made.rates)):
        gain = made.throughput[[m]].toarray()[0]
        assert most(gain, made, made.throughput, reached) <= reached[m] + 10 * CLOSE * made.fastest[m]


@every_program
@settings(max_examples=40, deadline=None)
@given(made=problems(), data=st.data())
def test_two_stages_are_pareto_efficient(program, made, data):
    """The sum of relative throughputs cannot grow without less for some job."""
    size = len(made.rates)
    x = program(made, data.draw(st.lists(st.floats(1.0, 100.0), min_size=size, max_size=size).map(np.array)))
    gain = (made.throughput / made.fastest[:, None]).sum(axis=0)
    matrix = made.throughput / made.fastest[:, None]
    assert most(gain, made, matrix, matrix @ x) <= gain @ x + 10 * CLOSE


def shuffled(solve, seed):
    """A solver that gets variables and rows in another order, and uses another method every other time."""
    chance = np.random.default_rng(seed)

    def other(c, A_ub, b_ub, method):  # noqa: N803  scipy's names
        columns, rows = chance.permutation(len(c)), chance.permutation(len(b_ub))
        method = ("highs-ds", "highs-ipm")[seed % 2]
        found = solve(c[columns], A_ub=A_ub[rows][:, columns], b_ub=b_ub[rows], method=method)
        if found.x is not None:
            found.x = found.x[np.argsort(columns)]
            found.ineqlin.marginals = found.ineqlin.marginals[np.argsort(rows)]
        return found

    return other


ONE_TYPE = problem(np.ones((4, 1)), [3])
RATES = [[8, 4, 2], [8, 4, 2], [9, 9, 1], [5, 4, 3], [8, 4, 2], [0, 1, 1]]
SEVERAL = problem(RATES, [2, 1, 1], scale=[1, 1, 2, 1, 1, 1])


SUMS = {
    "most": lambda made, _: total_throughput(made, np.ones(len(made.rates))),
    "cost": lambda made, _: least_cost(made, np.ones(len(made.capacity)), np.zeros(len(made.rates)))[0],
    "ratio": lambda made, _: least_cost(made, np.ones(len(made.capacity)), np.zeros(len(made.rates)), together=True)[0],
    "in_order": lambda made, _: in_order(made, np.arange(len(made.rates), dtype=float)),
}
FILLING = {"filling": lambda made, numbers: water_filling(made, lambda growing: numbers * growing)}
ALL = PROGRAMS | SUMS | FILLING


@pytest.mark.parametrize("program", ALL.values(), ids=ALL)
def test_without_gpus_no_job_has_time(program):
    """As when retained jobs hold all GPUs: no program is unbounded, or divides by zero."""
    none = replace(SEVERAL, capacity=np.zeros(3))
    assert none.throughput @ program(none, np.arange(1.0, 7.0)) == pytest.approx(np.zeros(6), abs=1e-6)


@pytest.mark.parametrize("made", [ONE_TYPE, SEVERAL, replace(SEVERAL, rates=np.ones((6, 3)))])
@pytest.mark.parametrize("program", ALL.values(), ids=ALL)
def test_throughputs_do_not_depend_on_the_solver(monkeypatch, program, made):
    """Nor do they depend on the order of variables and rows, or on the method."""
    solve = policies.gavel.solve.linprog
    numbers = np.resize([10.0, 2.0, 2.0, 1.0], len(made.rates))
    expected = made.throughput @ program(made, numbers)
    for seed in range(6):
        monkeypatch.setattr(policies.gavel.solve, "linprog", shuffled(solve, seed))
        assert made.throughput @ program(made, numbers) == pytest.approx(expected, abs=CLOSE)


def test_remaining_time_goes_to_the_heaviest_job_then_to_the_first():
    """Beyond the least share; in any order of the jobs, and with equal weights to the first."""
    weights = np.array([1.0, 0.2, 0.25, 0.1])
    for order in ([0, 1, 2, 3], [0, 3, 2, 1], [3, 2, 1, 0]):
        found = ONE_TYPE.throughput @ max_min_fairness(ONE_TYPE, weights[order])
        assert found == pytest.approx(np.array([1.0, 0.9, 1.0, 0.1])[order], abs=CLOSE)
    found = ONE_TYPE.throughput @ max_min_fairness(ONE_TYPE, np.array([1.0, 0.2, 0.2, 0.2]))
    assert found == pytest.approx(np.array([1.0, 1.0, 0.8, 0.2]), abs=CLOSE)


def test_of_a_thousand_equal_jobs_the_first_come_first():
    """Ties are broken even where positions in the queue are close to each other."""
    made = problem(np.full((1000, 1), 1e-3), [300])
    assert made.throughput @ total_throughput(made, np.ones(1000)) == pytest.approx(
        np.repeat([1e-3, 0.0], [300, 700]), abs=1e-7
    )


@given(problems())
@settings(deadline=None)
def test_classes_are_as_good_as_single_jobs(made):
    """Equal jobs have the same least share as one class as on their own."""
    each = np.repeat(np.arange(len(made.counts)), made.counts.astype(int))
    single = replace(made, rates=made.rates[each], counts=np.ones(len(each)), scale=made.scale[each])
    one, other = np.ones(len(made.counts)), np.ones(len(each))
    assert least(made, max_min_fairness(made, one), one) == pytest.approx(
        least(single, max_min_fairness(single, other), other), rel=CLOSE
    )


@given(st.lists(st.floats(-6.0, 0.0).map(lambda exponent: 10**exponent), min_size=1, max_size=6), st.integers(1, 6))
@settings(deadline=None)
def test_water_filling_on_one_type_is_weighted_max_min_fairness(weights, gpus):
    """On a homogeneous cluster, time shares are those of progressive filling, each as precise as the others."""
    weights = [max(weight, 1e-6 * max(weights)) for weight in weights]
    made = problem(np.full((len(weights), 1), 7.0), [gpus])
    found = fractions(made, water_filling(made, lambda growing: np.array(weights) * growing))[:, 0]
    left, full, share = float(gpus), set(), {}
    while len(full) < len(weights):
        rest = [i for i in range(len(weights)) if i not in full]
        level = left / sum(weights[i] for i in rest)
        capped = [i for i in rest if level * weights[i] >= 1]
        share |= dict.fromkeys(capped, 1.0) if capped else {i: level * weights[i] for i in rest}
        full |= set(capped or rest)
        left -= len(capped)
    assert found == pytest.approx([share[i] for i in range(len(weights))], rel=1e-3)


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_weights_and_speeds_over_many_orders_of_magnitude_are_solved(seed):
    """Some of 60 jobs weigh a billionth of the others, alone and in accounts, and their speeds differ as much."""
    rng = np.random.default_rng(seed)
    types, size = int(rng.integers(1, 4)), 60
    rates = 10 ** rng.uniform(-4, 4, (size, 1)) * 10 ** rng.uniform(-2, 0, (size, types))
    made = problem(rates, rng.integers(1, 40, types), scale=rng.choice([1, 1, 2, 4, 8], size))
    own = rng.choice([1.0, 0.5, 0.2], size)
    own[rng.choice(size, rng.choice([1, 2, 30]), replace=False)] = 1e-9
    account, of_account = rng.integers(0, 3, size), rng.choice([1.0, 3.0, 1e-3], 3)

    def hierarchical(growing):
        weight = own * growing
        return weight * of_account[account] / np.maximum(np.bincount(account, weight, 3), 1e-30)[account]

    assert valid(made, max_min_fairness(made, own))
    for weights in (lambda growing: own * growing, hierarchical):
        assert valid(made, water_filling(made, weights))
    assert valid(made, makespan(made, 10 ** rng.uniform(0, 12, size)))


def test_the_least_throughput_is_as_precise_for_a_light_job_as_for_others():
    """The first stage and the second one: a millionth of the weight is a millionth of the throughput."""
    made = problem([[3.0], [5.0], [7.0]], [1])
    weights = np.array([1.0, 1e-3, 1e-6])
    found = equal_share_factor(made, weights) * (made.throughput @ max_min_fairness(made, weights))
    assert found[1:] == pytest.approx(np.full(2, 1 / weights.sum()), rel=1e-3)


def test_isolated_time_is_on_types_on_which_a_job_can_run():
    """Half of the one GPU on which it runs is its share, however many other GPUs there are."""
    made = problem([[10.0, 0.0], [10.0, 1.0]], [1, 32])
    assert made.isolated.tolist() == pytest.approx([5.0, (10 * 0.5 + 16) / 16.5])


@given(problems(), st.data())
@settings(deadline=None)
def test_finish_time_fairness_is_the_least_possible(made, data):
    """No rho that is slightly smaller is possible."""
    size = len(made.rates)
    numbers = st.lists(st.floats(1.0, 1e5), min_size=size, max_size=size).map(np.array)
    steps, elapsed = data.draw(numbers), data.draw(numbers)
    ideal = elapsed + steps / made.isolated
    found = made.throughput @ finish_time_fairness(made, steps, elapsed, elapsed)
    rho = float(np.max((elapsed + steps / found) / ideal))
    seconds = rho * (1 - 1e-3) * ideal - elapsed
    if (seconds > 0).all():
        needs = steps / seconds
        assert maximise(np.zeros(made.throughput.shape[1]), made.limits, (made.throughput, needs)) is None


def test_makespan_may_be_longer_within_a_tolerance():
    """The second stage then has more to give: the short job ends earlier, the long one within the tolerance."""
    made = problem([[1.0], [1.0]], [1])
    assert made.throughput @ makespan(made, np.array([90.0, 10.0])) == pytest.approx([0.9, 0.1], abs=CLOSE)
    found = made.throughput @ makespan(made, np.array([90.0, 10.0]), 0.25)
    assert 90.0 / found[0] <= 125.0 * (1 + CLOSE)
    assert 10.0 / found[1] <= 125.0 * (1 + CLOSE)
    assert found.sum() == pytest.approx(1.0, abs=CLOSE)


@given(problems())
@settings(deadline=None)
def test_spreading_over_types_keeps_each_jobs_time(made):
    """The sum of time is the same, and the allocation as valid as before."""
    x = max_min_fairness(made, np.ones(len(made.rates)))
    found = made.spread_evenly(x)
    assert valid(made, found)
    assert fractions(made, found).sum(axis=1) == pytest.approx(fractions(made, x).sum(axis=1), abs=0.02)


def test_time_is_spread_over_types_in_proportion_to_their_gpus():
    """Where nothing restricts it, a type with three times the GPUs has three times the time."""
    made = problem([[1.0, 1.0], [1.0, 1.0]], [3, 1])
    assert fractions(made, made.spread_evenly(np.array([1.0, 0.0, 0.5, 0.5]))) == pytest.approx(
        np.array([[0.75, 0.25]] * 2)
    )


def test_fifo_serves_the_first_on_its_fastest_type():
    """The first job has all of its time on the fastest type, the second the remaining time."""
    made = problem([[10, 1], [10, 1], [10, 1]], [1, 1])
    found = fractions(made, in_order(made, np.array([1.0, 0.0, 2.0])))
    assert found == pytest.approx(np.array([[0, 1], [1, 0], [0, 0]]), abs=CLOSE)


def test_a_large_job_does_not_wait_for_later_small_jobs():
    """Eight GPUs for one job count as much as for eight jobs, so the position in the queue decides."""
    made = problem(np.ones((9, 1)), [8], scale=[8] + [1] * 8)
    found = fractions(made, in_order(made, np.arange(9.0)))[:, 0]
    assert found == pytest.approx([1.0] + [0.0] * 8, abs=CLOSE)


def test_the_cost_policy_buys_the_fast_type_only_for_deadlines():
    """Requirements that cannot be met are waived."""
    made = problem([[3.0, 2.0]], [1, 1])
    cheap, _ = least_cost(made, np.array([3.0, 1.0]), np.array([0.0]))
    assert fractions(made, cheap)[0, 0] == pytest.approx(0.0, abs=CLOSE)
    fast, met = least_cost(made, np.array([3.0, 1.0]), np.array([2.5]))
    assert made.throughput @ fast == pytest.approx([2.5], rel=CLOSE)
    assert met == pytest.approx([2.5])
    _, met = least_cost(made, np.array([3.0, 1.0]), np.array([9.0]))
    assert met == pytest.approx([0.0])
