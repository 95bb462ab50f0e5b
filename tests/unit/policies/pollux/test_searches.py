import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.pollux import direct_search as direct_search_module
from policies.pollux.allocation_problem import JobQuota
from policies.pollux.direct_search import clearing_prices, direct_search, fitness_bound, greedy_allocation
from policies.pollux.elites import MOST_BYTES, decode_elites, encode_elites
from policies.pollux.fitness import LEAST_EXPONENT
from policies.pollux.partial_allocation import NodeGpus, PartialAllocation
from policies.pollux.population_search import population_search
from tests.unit.policies.pollux.problems import best_fitness, problem, problems, random_problem, scaling

ROUNDING = 1 + 1e-9


def direct(asked, **more):
    return direct_search(asked, seed=1, improvements=20, **more)


def population(asked, **more):
    return population_search(asked, seed=1, generations=8, size=12, **more)[0]


SEARCHES = pytest.mark.parametrize("search", [direct, population])


@SEARCHES
@settings(deadline=None, max_examples=20)
@given(asked=problems())
def test_answers_are_feasible_and_never_below_the_start(search, asked):
    """On random clusters of one or two types, with limits and pinned jobs, even and uneven, for five exponents."""
    assert asked.faults(asked.present) == []
    found = search(asked)
    assert asked.faults(found) == []
    assert asked.fitness(found) * ROUNDING >= asked.fitness(asked.present)


@settings(deadline=None, max_examples=15)
@given(asked=problems())
def test_the_direct_search_is_never_below_greedy(asked):
    """From nothing and from the present allocation; nor above the bound that prices give."""
    found = asked.fitness(direct(asked))
    for start in (None, asked.present):
        greedy = greedy_allocation(asked, start)
        assert asked.faults(greedy) == []
        assert found * ROUNDING >= asked.fitness(greedy)
    assert found <= fitness_bound(asked) * (1 + 1e-6)


@settings(deadline=None, max_examples=50)
@given(asked=problems())
def test_filling_nodes_gives_what_all_gains_computed_anew_would_give(asked):
    """After a job has grown, only its own gains on the node are computed again, unless others' may have changed."""
    found, expected = PartialAllocation(asked, asked.present), PartialAllocation(asked, asked.present)
    nodes = range(len(asked.node_gpus))
    found.fill(nodes)
    for node in nodes:
        while expected.free[node] > 0:
            growth = expected._best_growth(*expected._growth_gains(node, np.arange(len(asked.keys))))
            if growth is None:
                break
            job, gpus = growth
            held = dict(zip(*expected.where[job], strict=True))
            held[node] = held.get(node, 0) + gpus
            expected.remove(job)
            expected.place(job, NodeGpus(tuple(sorted(held)), tuple(held[each] for each in sorted(held))))
    assert found.where == expected.where


@SEARCHES
@settings(deadline=None, max_examples=20)
@given(asked=problems(), shuffle=st.randoms(use_true_random=False))
def test_answers_do_not_depend_on_the_order_of_jobs(search, asked, shuffle):
    """Permuted jobs get the permuted allocation."""
    order = list(range(len(asked.keys)))
    shuffle.shuffle(order)
    order = np.array(order)
    assert (search(asked.reordered(order)) == search(asked)[order]).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_least_exponent_finds_the_highest_minimum(seed):
    """On small clusters, the smallest speed-up is within a tenth of the best possible one."""
    asked = random_problem(seed, 3, 3, most_gpus=2, p=LEAST_EXPONENT, limited=False)
    best = best_fitness(asked)
    assert asked.fitness(direct(asked)) >= 0.9 * best
    assert asked.fitness(direct(asked)) <= fitness_bound(asked) * (1 + 1e-6)


@SEARCHES
def test_equal_arguments_give_equal_answers(search):
    """Randomness is seeded, and no clock decides."""
    asked = random_problem(3, 12, 6)
    assert (search(asked) == search(asked)).all()


@SEARCHES
@pytest.mark.parametrize("uneven", [False, True])
def test_the_gap_to_the_best_allocation_is_small(search, uneven):
    """Against brute force on small clusters; the gaps are printed (pytest -s)."""
    gaps = []
    for seed in range(5):
        asked = random_problem(seed, 3, 3, most_gpus=2, uneven=uneven, limited=seed % 2 == 0)
        gaps.append(1 - asked.fitness(search(asked)) / best_fitness(asked))
    print(  # noqa: T201  for pytest -s
        f"gaps to brute force: mean {np.mean(gaps):.4f}, largest {max(gaps):.4f}"
    )
    assert np.mean(gaps) < 0.01
    assert max(gaps) < 0.05
    assert min(gaps) > -1e-9


def test_large_answers_are_close_to_the_bound():
    """Weak duality bounds the gap where brute force cannot reach."""
    asked = problem(scaling(30, 1, 32, np.random.default_rng(1)), [4] * 16, uneven=True)
    assert asked.fitness(direct_search(asked, seed=1, improvements=100)) > 0.95 * fitness_bound(asked)


@pytest.mark.parametrize("types", [1, 2, 3])
def test_prices_divide_jobs_among_gpu_types(types):
    """The bound is reached almost, although every job may run on every type."""
    rng = np.random.default_rng(types)
    asked = problem(scaling(24, types, 12, rng), [4] * 12, node_types=np.arange(12) % types, uneven=True)
    assert asked.fitness(direct_search(asked, seed=1, improvements=50)) > 0.95 * fitness_bound(asked)


@SEARCHES
def test_a_cluster_of_pinned_jobs_stays_as_it_is(search):
    """There is nothing to decide."""
    asked = random_problem(3, 4, 3)
    asked = replace(asked, pinned=np.ones(4, dtype=bool))
    assert (search(asked) == asked.present).all()


@SEARCHES
@pytest.mark.parametrize(("jobs", "nodes"), [(0, 3), (3, 0), (0, 0)])
def test_without_jobs_or_nodes_there_is_nothing_to_search(search, jobs, nodes):
    """The answer has the shape of the problem."""
    asked = problem(np.ones((jobs, 1, 2, 3)), np.ones(nodes, dtype=np.int64))
    assert search(asked).shape == (jobs, nodes)


def test_a_search_ends_where_no_allocation_is_better():
    """Two jobs on a node each are optimal; a number of neighbourhoods that would take years is not tried."""
    plenty = problem(scaling(2, 1, 4, np.random.default_rng(1)), [4, 4])
    found = direct_search(plenty, seed=1, improvements=10**9)
    assert plenty.fitness(found) == pytest.approx(fitness_bound(plenty))


def test_a_search_ends_where_nothing_raises_the_fitness(monkeypatch):
    """Half of all neighbourhoods without any gain are enough."""
    tried = []
    refill = direct_search_module._refill
    monkeypatch.setattr(direct_search_module, "_refill", lambda *given: tried.append(given) or refill(*given))
    asked = random_problem(10, 6, 3, limited=False)
    direct_search(asked, seed=1, improvements=400)
    assert 200 <= len(tried) < 400


def test_prices_are_zero_where_gpus_are_plenty():
    """No job has to be priced out of a cluster that holds every job's best amount."""
    assert not clearing_prices(problem(scaling(2, 1, 3, np.random.default_rng(1)), [4] * 4)).any()


@SEARCHES
def test_distributed_jobs_avoid_each_other(search):
    """Two jobs that need three GPUs on two nodes of two cannot both be placed, unless interference is allowed."""
    speedups = np.zeros((2, 1, 2, 4))
    speedups[:, 0, 1, 3] = 1.0
    three = {"least_gpus": np.full(2, 3), "uneven": True}
    nodes = [2, 2, 2]
    apart = search(problem(speedups, nodes, **three))
    assert sorted(apart.sum(axis=1)) == [0, 3]
    mixed = direct(problem(speedups, nodes, avoid_interference=False, **three))
    assert sorted(mixed.sum(axis=1)) == [3, 3]


@SEARCHES
def test_quotas_limit_gpus_and_running_jobs(search):
    """Two of three jobs share one GPU, or may run one at a time; a quota of another GPU type does not count."""
    speedups = np.tile(np.array([[0.0, 1.0, 2.0, 3.0, 4.0], [0.0] * 5]), (3, 1, 1, 1))
    asked = problem(speedups, [4, 4])
    members = np.array([True, True, False])
    assert search(replace(asked, quotas=(JobQuota(members, 1),)))[:2].sum() == 1
    alone = search(replace(asked, quotas=(JobQuota(members, 1, of_jobs=True),)))
    assert sorted(alone[:2].sum(axis=1)) == [0, 4]
    assert search(replace(asked, quotas=(JobQuota(members, 1, gpu_type=1),))).sum() == 8
    pinned = replace(asked, present=np.array([[2, 0], [0, 0], [0, 0]]), pinned=np.array([True, False, False]))
    assert search(replace(pinned, quotas=(JobQuota(members, 1),)))[1].sum() == 0


@SEARCHES
def test_even_places_only(search):
    """Three GPUs on nodes of two are three nodes with one GPU each; an uneven cluster uses two nodes."""
    speedups = np.zeros((1, 1, 2, 4))
    speedups[:, 0, 1, 3] = 1.0
    asked = problem(speedups, [2, 2, 2], least_gpus=np.array([3]))
    assert sorted(search(asked)[0]) == [1, 1, 1]
    assert search(replace(asked, uneven=True)).sum() == 3


def test_even_placements_are_on_few_nodes_among_equals():
    """Eight GPUs are two whole nodes of four, not half of each, where the other job could have none."""
    speedups = np.zeros((2, 1, 2, 9))
    speedups[:, 0, 1, 8] = 1.0
    found = direct(problem(speedups, [4] * 4, least_gpus=np.full(2, 8)))
    assert sorted(found.tolist()) == [[0, 0, 4, 4], [4, 4, 0, 0]]


@SEARCHES
def test_a_job_moves_only_for_more_than_its_reallocation_costs(search):
    """A job with a factor of 0.9 moves for a speed-up of 1.2, and one with 0.5 does not."""
    speedups = np.array([[[[0.0, 1.0, 1.2], [0.0, 0.0, 0.0]]]])
    asked = problem(speedups, [1, 2], present=np.array([[1, 0]]), factors=np.array([0.5]))
    assert (search(asked) == asked.present).all()
    assert search(replace(asked, factors=np.array([0.9]))).tolist() == [[0, 2]]


@SEARCHES
def test_equal_jobs_do_not_swap(search):
    """A running job keeps its GPU although another one waits for it."""
    speedups = np.array([[[[0.0, 1.0], [0.0, 0.0]]]] * 2)
    asked = problem(speedups, [1], present=np.array([[0], [1]]), factors=np.array([0.9, 0.9]))
    assert (search(asked) == asked.present).all()


@SEARCHES
def test_a_start_is_not_lost(search):
    """The answer is at least as fit as a feasible start of another search."""
    asked = random_problem(5, 10, 5, limited=False)
    best = direct_search(asked, seed=9, improvements=200)
    assert asked.fitness(search(asked, starts=[best])) * ROUNDING >= asked.fitness(best)


def test_survivors_are_different_and_in_order():
    """The population's survivors can all begin the next search."""
    asked = random_problem(5, 10, 5)
    found = population_search(asked, seed=1, generations=5, size=10)
    ranks = [asked.fitness(each) for each in found]
    assert ranks == sorted(ranks, reverse=True)
    assert len({each.tobytes() for each in found}) == len(found) > 1
    assert all(asked.faults(each) == [] for each in found)


def test_an_infinite_exponent_is_refused_in_words():
    """The searches need a separable fitness."""
    with pytest.raises(ValueError, match="finite"):
        random_problem(1, 2, 2, p=-np.inf)


def test_elites_survive_json():
    """Also where jobs and nodes have come, gone or changed their order."""
    keys, nodes = ("a", "b", "c"), ("n1", "n2")
    one, two = np.array([[2, 0], [0, 1], [0, 0]]), np.array([[0, 0], [4, 4], [1, 0]])
    data = json.loads(json.dumps(encode_elites([one, two], keys, nodes)))
    assert [each.tolist() for each in decode_elites(data, keys, nodes)] == [one.tolist(), two.tolist()]
    again = decode_elites(data, ("c", "new", "b"), ("n2", "n3", "n1"))
    assert [each.tolist() for each in again] == [[[0, 0, 0], [0, 0, 0], [1, 0, 0]], [[0, 0, 1], [0, 0, 0], [4, 0, 4]]]


def test_elites_are_at_most_64_kib():
    """A thousand jobs on 256 nodes: some of the fittest fit, the others are dropped."""
    rng = np.random.default_rng(1)
    each = [np.zeros((1000, 256), dtype=np.int64) for _ in range(50)]
    for allocation in each:
        allocation[rng.permutation(1000), rng.integers(0, 256, 1000)] = 1
    keys = [f"2026-11-23-{number:08}" for number in range(1000)]
    data = encode_elites(each, keys, [f"gpu-node-{number:03}" for number in range(256)])
    assert len(json.dumps(data)) <= MOST_BYTES
    assert 1 <= len(data["elites"]) < 50
    assert (decode_elites(data, keys, [f"gpu-node-{number:03}" for number in range(256)])[0] == each[0]).all()


def test_a_pinned_job_may_hold_more_than_a_node_has():
    """Its node has lost GPUs: no price fits fewer than none, and the other jobs wait."""
    speedups = scaling(2, 1, 4, np.random.default_rng(0))
    held, pinned = np.array([[4], [0]]), np.array([True, False])
    asked = problem(speedups, [2], node_limits=np.array([[4], [2]]), present=held, pinned=pinned)
    assert clearing_prices(asked).shape == (1,)
    assert direct_search(asked, seed=1, improvements=5).tolist() == [[4], [0]]
