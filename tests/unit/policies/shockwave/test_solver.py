from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from policies.shockwave.budgets import budgets, estimated_rho
from policies.shockwave.market import Market, MarketJob, Window
from policies.shockwave.round_counts import round_counts
from policies.shockwave.solver import solve
from tests.unit.policies.shockwave.markets import one_mode, random_jobs, simple_job, simple_market, used


@st.composite
def windows(draw, types=2, sizes=2):
    """Random windows of all kinds, some with pinned jobs."""
    kinds, widths, seed = draw(st.integers(1, types)), draw(st.integers(1, sizes)), draw(st.integers(0, 10**6))
    gpus = draw(st.integers(1, 12))
    jobs = random_jobs(
        seed,
        draw(st.integers(1, 12)),
        min(4, gpus),
        types=kinds,
        sizes=widths,
        restart_seconds=draw(st.sampled_from([0.0, 30.0, 200.0])),
    )
    if draw(st.booleans()):
        jobs[0] = replace(jobs[0], pinned=True)
    window = Window(draw(st.integers(1, 12)), 120.0, draw(st.sampled_from([0.0, 0.1, 1.0, 10.0])), elastic=widths > 1)
    return Market.of(jobs, [float(gpus)] * kinds, gpus * kinds, window)


def seconds_of(market, schedule, job):
    """Seconds of training of a job, by its row, its rounds and its starts."""
    row = np.flatnonzero((market.job == job) & (market.mode == schedule.modes[job]))[0]
    runs = schedule.runs[job].astype(int)
    starts = int((np.diff(np.append(int(market.running[row]), runs)) > 0).sum())
    return row, max(runs.sum() * market.window.round_seconds - starts * market.restart_seconds[row], 0.0)


@settings(deadline=None, max_examples=12)
@given(market=windows())
def test_schedules_are_feasible_and_below_the_bound(market):
    """No resource is exceeded in any round; the objective is that of the schedule."""
    found = solve(market)
    assert (used(market, found) <= market.capacity + 1e-6).all()
    progress = np.zeros(len(market.keys))
    for job in range(len(market.keys)):
        row, seconds = seconds_of(market, found, job)
        progress[job] = market.progress(np.array([row]), np.array([[seconds]]))[0, 0]
    assert found.objective == pytest.approx(market.objective(progress), rel=1e-9, abs=1e-9)
    assert found.objective <= found.bound + 1e-6
    assert found.gap >= 0.0


@settings(deadline=None, max_examples=12)
@given(market=windows())
def test_no_round_has_free_gpus_that_a_job_could_use(market):
    """Work conservation: whoever fits into what is free would gain nothing by it."""
    found = solve(market)
    free = market.capacity - used(market, found)
    for job in range(len(market.keys)):
        row, seconds = seconds_of(market, found, job)
        if market.pinned[job] or market.window.round_seconds <= market.restart_seconds[row]:
            continue
        if seconds < market.corner_seconds[row, -1] - 1e-6:
            fits = (market.needs[row] <= free - 1e-6).all(axis=1) & ~found.runs[job]
            assert not [t for t in np.flatnonzero(fits) if gains(market, found, job, t)]


def gains(market, schedule, job, number):
    """Whether a job would train longer with one more round."""
    more = schedule.runs.copy()
    more[job, number] = True
    return seconds_of(market, replace(schedule, runs=more), job)[1] > seconds_of(market, schedule, job)[1] + 1e-9


@settings(deadline=None, max_examples=12)
@given(market=windows(types=1))
def test_pinned_jobs_run_until_their_end(market):
    """In every round, and before all others."""
    found = solve(market)
    for job in np.flatnonzero(market.pinned):
        row = market.first_row[job]
        start = 0.0 if market.running[row] else market.restart_seconds[row]
        rounds = int(np.ceil((market.corner_seconds[row, -1] + start) / market.window.round_seconds))
        assert found.runs[job].tolist() == [number < rounds for number in range(market.window.rounds)]


def test_more_pinned_jobs_than_gpus_leave_nothing_for_others():
    """The schedule says what runs; it does not fail."""
    jobs = [simple_job("a", 1e4, pinned=True), simple_job("b", 1e4, pinned=True), simple_job("c", 1e4)]
    assert solve(simple_market(jobs, 1)).runs.sum(axis=1).tolist() == [10, 10, 0]


@pytest.mark.parametrize("jobs", [[], [simple_job("a", 100.0, 9)]])
def test_a_market_without_jobs_has_an_empty_schedule(jobs):
    """Nothing to decide is no error."""
    found = solve(simple_market(jobs, 8))
    assert found.keys == ()
    assert found.gap == 0.0


def test_equal_arguments_give_equal_schedules():
    """No clock and no random number decides."""
    market = Market.of(random_jobs(5, 20, 4), [8.0], 8, Window(10))
    once, twice = solve(market), solve(market)
    assert (once.runs == twice.runs).all()
    assert once.objective == twice.objective


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 1000), jobs=st.integers(2, 10))
def test_more_gpus_never_lower_the_bound(seed, jobs):
    """And the units of seconds and steps change nothing."""
    few, more = (
        solve(Market.of(random_jobs(seed, jobs, 3), [gpus], gpus, Window(8, regularisation=0.0))) for gpus in (4.0, 6.0)
    )
    assert more.bound >= few.bound - 1e-6
    scaled = random_jobs(seed, jobs, 3, unit=60.0, steps=1000.0)
    other = solve(Market.of(scaled, [4.0], 4.0, Window(8, 7200.0, regularisation=0.0)))
    assert other.bound == pytest.approx(few.bound, abs=1e-6)


def test_a_larger_budget_never_buys_fewer_rounds():
    """The job's rounds grow with its budget, the others' shrink."""
    rounds = []
    for budget in (0.5, 1.0, 2.0, 4.0):
        jobs = [simple_job("rich", 1e5, budget=budget), *(simple_job(f"j{k}", 1e5) for k in range(5))]
        rounds.append(int(solve(simple_market(jobs, 2, 20)).runs[0].sum()))
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[-1]


def test_a_replicated_cluster_has_the_same_objective():
    """Budgets and makespan are relative: 128 copies of jobs and GPUs change nothing."""
    jobs = random_jobs(3, 12, 2)
    small = solve(Market.of(jobs, [8.0], 8, Window(10)))
    copies = [replace(job, key=f"{job.key} {copy}") for copy in range(16) for job in jobs]
    large = solve(Market.of(copies, [128.0], 128, Window(10)))
    assert large.bound == pytest.approx(small.bound, abs=1e-6)
    assert large.gap <= small.gap + 1e-6


def eisenberg_gale(values, needs, capacity, money):
    """The program of Appendix C as a convex solver has it: parts of the window for each job.

    Args:
        values: by job, progress over the whole window.
        needs: jobs x resources, amounts while a job runs (Leontief utilities).
        capacity: amounts of each resource.
        money: by job, the budget.
    """
    jobs = len(values)
    found = optimize.minimize(
        lambda x: -np.sum(money * np.log(values * x)),
        np.full(jobs, 0.5 * float((capacity / needs.sum(axis=0)).min())),
        jac=lambda x: -money / x,
        bounds=[(1e-9, 1.0)] * jobs,
        constraints=optimize.LinearConstraint(needs.T, -np.inf, capacity),
        method="trust-constr",
        options={"gtol": 1e-10, "xtol": 1e-12, "maxiter": 3000},
    )
    return found.x


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("resources", [1, 2])
def test_divisible_rounds_give_the_fisher_equilibrium(seed, resources):
    """With lambda = 0: the Eisenberg-Gale optimum, and its multipliers are our prices.

    Budgets are spent on what is sold out, nobody envies another job, and each job has at least what 1/N of the cluster
    gives it. Leontief utilities: jobs need several resources at once.
    """
    rng = np.random.default_rng(seed)
    count, rounds = 6, 1000
    needs = rng.integers(1, 4, (count, resources)).astype(float)
    capacity = np.full(resources, 6.0)
    seconds = rng.uniform(1e5, 1e6, count)
    jobs = [
        MarketJob(f"j{k}", 0.0, (one_mode(int(needs[k, 0]), seconds[k], 1.0, need=tuple(needs[k])),))
        for k in range(count)
    ]
    window = Window(rounds, 12.0, regularisation=0.0, head_start=1e-6)
    market = Market.of(jobs, capacity.tolist(), 6, window)
    found = round_counts(market, capacity * rounds, np.zeros(count))
    parts = found.rounds / rounds
    assert parts == pytest.approx(eisenberg_gale(1.0 / seconds, needs, capacity, market.budgets), abs=0.01)
    # Prices are those of the whole supply: what a job pays is the part of the supply that it has.
    bought = parts[:, None] * needs / capacity
    spent = bought @ found.prices
    capped = parts > 1.0 - 1e-3
    assert spent[~capped] == pytest.approx(market.budgets[~capped], rel=0.02)
    assert (spent <= market.budgets * 1.02).all()
    sold = bought.sum(axis=0)
    assert sold[found.prices > 1e-3] == pytest.approx(1.0, abs=0.01)
    for one in range(count):
        envied = np.minimum((bought / bought[one]).min(axis=1) * parts[one], 1.0)
        assert (parts[one] >= envied - 0.01).all()
        assert parts[one] >= min((capacity / needs[one]).min() / count, 1.0) - 0.01


def test_with_whole_rounds_each_job_is_within_one_round_of_its_share():
    """Equal jobs and budgets: rounds differ by at most one, and all are sold."""
    found = solve(simple_market([simple_job(f"j{k}", 1e5) for k in range(7)], 3, 10, regularisation=0.0))
    rounds = found.runs.sum(axis=1)
    assert rounds.sum() == 30
    assert rounds.max() - rounds.min() <= 1


def test_a_running_job_goes_on_in_one_piece():
    """Restarts cost: who runs now and has rounds runs first, and without a gap."""
    jobs = [simple_job(f"j{k}", 1e5, running=k < 4, restart_seconds=60.0) for k in range(12)]
    found = solve(simple_market(jobs, 4, 12))
    starts = np.diff(np.column_stack([np.zeros(12), found.runs]), axis=1) > 0
    assert (starts.sum(axis=1) <= 1).all()
    assert found.runs[:4, 0].all()


def test_the_last_schedule_is_continued():
    """One round later, without news, jobs run when they were planned; jobs that are gone do not matter."""
    jobs = [simple_job(f"j{k:02}", 1e5, restart_seconds=20.0) for k in range(24)]
    first = solve(simple_market(jobs, 8, 10))
    later = [
        simple_job(job.key, 1e5 - 100.0 * runs, done=1e-3 * runs, restart_seconds=20.0, running=bool(runs))
        for job, runs in zip(jobs[1:], first.runs[1:, 0], strict=True)
    ]
    second = solve(simple_market(later, 8, 10), first, 1)
    assert (second.runs[:, :8] >= first.runs[1:, 1:9]).mean() > 0.9
    assert solve(simple_market(later, 8, 10), first, 99).gap < 1e-3


@pytest.mark.parametrize("seed", range(10))
def test_wide_jobs_do_not_put_off_what_is_worth_the_most(seed):
    """Of a prompt schedule: a rich job of one round runs first, though wider jobs need its place in that round.

    In no other round does it cost a restart less, and the objective does not know when a job runs.
    """
    rich = simple_job("rich", 100.0, budget=50.0)
    market = simple_market([rich, *random_jobs(seed, 40, 4, restart_seconds=20.0)], 8)
    assert solve(market, prompt=True).runs[0].tolist() == [True] + [False] * 9


def test_the_longest_job_runs_when_it_decides_the_makespan():
    """With lambda the long job has all rounds; without it, its share."""
    jobs = [simple_job("long", 40_000.0), *(simple_job(f"j{k}", 900.0) for k in range(20))]
    with_makespan, without = (
        solve(simple_market(jobs, 2, 20, regularisation=weight)).runs[0].sum() for weight in (10.0, 0.0)
    )
    assert with_makespan == 20
    assert without < 10


def test_elastic_jobs_choose_their_size():
    """A job grows where it scales and there are GPUs; one that does not scale stays small."""
    jobs = [
        MarketJob("scales", 0.0, (one_mode(1, 1000.0, 1.0), one_mode(4, 250.0, 1.0))),
        MarketJob("flat", 0.0, (one_mode(1, 1000.0, 1.0), one_mode(4, 900.0, 1.0))),
    ]
    found = solve(Market.of(jobs, [5.0], 5, Window(2, elastic=True)))
    assert found.modes == (1, 0)
    assert found.runs.all()


def test_jobs_choose_the_gpu_type_on_which_they_gain_most():
    """Two resources of one GPU each (Appendix C): the job with the larger speed-up gets the fast one."""
    jobs = [
        MarketJob(key, 0.0, (one_mode(1, slow, 1.0, need=(1.0, 0.0)), one_mode(1, fast, 1.0, need=(0.0, 1.0))))
        for key, slow, fast in (("a", 9000.0, 1000.0), ("b", 9000.0, 8000.0))
    ]
    found = solve(Market.of(jobs, [1.0, 1.0], 2, Window(5)))
    assert found.modes == (1, 0)
    assert found.runs.all()


@pytest.mark.parametrize("gpus", [32, 128])
def test_large_windows_are_near_the_bound(gpus):
    """The gap is below that of the paper's solver."""
    jobs = random_jobs(1, 4 * gpus, 4)
    found = solve(Market.of(jobs, [float(gpus)], gpus, Window(20)))
    assert found.gap < 1.1e-3


SERIAL, WIDTH = {"A": 12, "B": 8, "C": 6}, {"A": 3, "B": 2, "C": 2}
CLUSTER = 4
SIZES = {name: tuple(range(1, width + 1)) for name, width in WIDTH.items()}


def figures_of_table_1(ends):
    """Worst rho, total JCT and makespan of the ends of A, B and C; a fair time is three quarters of the serial one."""
    return max(end / (0.75 * SERIAL[name]) for name, end in zip(SERIAL, ends, strict=True)), sum(ends), max(ends)


@cache
def best_ends(left, sizes):
    """The ends of A, B and C by all schedules of whole rounds, without those that another one is nowhere later than.

    Args:
        left: GPU-rounds of work left, by job.
        sizes: the GPUs on which each job may run in a round, by job.
    """
    if not any(left):
        return frozenset({(0, 0, 0)})
    found = set()
    for taken in product(*((0, *own) if work else (0,) for work, own in zip(left, sizes, strict=True))):
        if 0 < sum(taken) <= CLUSTER:
            after = tuple(max(work - gpus, 0) for work, gpus in zip(left, taken, strict=True))
            found |= {
                tuple(end + (work > 0) for end, work in zip(ends, left, strict=True))
                for ends in best_ends(after, sizes)
            }
    return frozenset(ends for ends in found if not any(other != ends and no_later(other, ends) for other in found))


def no_later(ends, others):
    """Whether no job ends later than in another schedule."""
    return all(end <= other for end, other in zip(ends, others, strict=True))


def test_the_adaptive_schedule_of_table_1_resizes_a_job():
    """All schedules: the paper's is the best in all three figures, and none in which each job keeps a size has them."""
    left = tuple(SERIAL.values())
    free = {figures_of_table_1(ends) for ends in best_ends(left, tuple(SIZES.values()))}
    paper = 5.0 / 6.0, 15, 7
    assert paper in free
    assert paper == tuple(min(each) for each in zip(*free, strict=True))

    kept = {
        figures_of_table_1(ends)
        for sizes in product(*SIZES.values())
        for ends in best_ends(left, tuple((size,) for size in sizes))
    }
    assert min(kept) == (8.0 / 9.0, 15, 8)
    assert min(each for each in kept if each[2] == 7) == (1.0, 16, 7)


def test_the_example_of_table_1_is_fair_and_short():
    """Windows of six rounds, planned anew each round: the best of makespan 7 in which jobs keep their sizes."""
    left, ends, now, last = dict(SERIAL), {}, 0, None
    while left:
        names = list(left)
        rho = [estimated_rho(now, 0.75 * left[name], 0.75 * SERIAL[name], 1.0) for name in names]
        jobs = [
            MarketJob(
                name,
                SERIAL[name] - left[name],
                tuple(one_mode(gpus, left[name] / gpus, left[name]) for gpus in reversed(SIZES[name])),
                budget=float(budget),
            )
            for name, budget in zip(names, budgets(rho, 5, [1.0] * len(names)), strict=True)
        ]
        last = solve(Market.of(jobs, [float(CLUSTER)], CLUSTER, Window(6, 1.0, elastic=True)), last, 1)
        now += 1
        for job, runs, mode in zip(jobs, last.runs[:, 0], last.modes, strict=True):
            left[job.key] -= job.modes[mode].gpus * bool(runs)
        ends |= {name: now for name, work in left.items() if work <= 0}
        left = {name: work for name, work in left.items() if work > 0}
    assert figures_of_table_1([ends[name] for name in SERIAL]) == (1.0, 16, 7)


def makespan_of(curves, planned, gpus):
    """The makespan where each round is planned by predicted curves, and runs by the true ones.

    Args:
        curves: by job, the true seconds and steps.
        planned: by job, a function from steps done to the predicted corners of what is left.
        gpus: the cluster's GPUs.
    """
    trained, now, last = dict.fromkeys(curves, 0.0), 0.0, None
    while any(trained[key] < seconds[-1] - 1e-9 for key, (seconds, _) in curves.items()):
        live = [key for key, (seconds, _) in curves.items() if trained[key] < seconds[-1] - 1e-9]
        jobs = []
        for key in live:
            done = float(np.interp(trained[key], *(np.append(0.0, corner) for corner in curves[key])))
            jobs.append(MarketJob(key, done, (one_mode(1, *planned[key](done)),)))
        last = solve(Market.of(jobs, [float(gpus)], gpus, Window(3, 1.0, 10.0)), last, 1)
        now += 1.0
        for key, runs in zip(live, last.runs[:, 0], strict=True):
            trained[key] += float(runs)
    return now


def test_being_reactive_costs_makespan():
    """As in Figure 4: two jobs that look long become short after their first epoch; the third one is the longest."""
    epoch = {"J1": (6.0, 2.0), "J2": (6.0, 2.0), "J3": (6.0, 5.0)}
    curves = {key: (np.cumsum([first, 2 * rest]), np.array([1.0, 3.0])) for key, (first, rest) in epoch.items()}

    def ahead(key):
        first, rest = epoch[key]

        def corners(done):
            return (
                np.cumsum([max(1.0 - done, 0.0) * first, min(3.0 - done, 2.0) * rest]),
                np.cumsum([max(1.0 - done, 0.0), min(3.0 - done, 2.0)]),
            )

        return corners

    def reactive(key):
        return lambda done: (np.array([(3.0 - done) * epoch[key][done >= 1.0]]), np.array([3.0 - done]))

    assert makespan_of(curves, {key: ahead(key) for key in epoch}, 2) == 18.0
    assert makespan_of(curves, {key: reactive(key) for key in epoch}, 2) == 20.0
