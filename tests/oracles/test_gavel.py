"""Gavel's policies against programs of one variable a job and GPU type, solved exactly (Gavel, sections 4.1 to 4.3)."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from policies.gavel.policies import (
    GavelCost,
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelHierarchical,
    GavelLas,
    GavelMakespan,
    GavelShortestFirst,
    GavelThroughput,
)
from tests.oracles.allocations import RELATIVE, TIME, Allocations, Found
from tests.oracles.exact_simplex import dot
from tests.oracles.examples import for_examples
from tests.oracles.instances import NOW, Asked, Instance, ModelSpeed, Nodes, draw_instance, simpler
from tests.oracles.known_faults import fails_by

shared_or_not = pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])


def las_factor(made):
    """What max-min fairness makes equal: throughput over X equal, times GPUs, over weight (section 4.1)."""
    return {uid: Fraction(one.gpus) / (one.weight * made.equal(uid)) for uid, one in made.job.items()}


def assert_second_stage(made, found, floors, weight=None):
    """The rest goes where it adds most, relative to each job's fastest type, up to the preference for early jobs."""
    gain = {uid: (1 if weight is None else weight[uid]) / made.fastest(uid) for uid in made.rate}
    most, _ = made.best(gain, floors)
    assert found.total(gain) >= most * (1 - 2 * RELATIVE) - TIME


def holds(check, **kinds):
    """Check random instances of some kinds."""
    for_examples(lambda rng: draw_instance(rng, **kinds), check, simpler)


@shared_or_not
def test_las_is_max_min_fair(sharing):
    """No allocation has a larger minimum; what is left goes where it adds most."""

    def check(instance):
        made = Allocations(instance)
        found = Found(made, GavelLas(), instance.snapshot())
        factor = las_factor(made)
        level = made.max_min(factor) if factor else 0
        floors = {uid: level / value for uid, value in factor.items()}
        assert all(found.reaches(uid, floor) for uid, floor in floors.items())
        assert_second_stage(made, found, floors, {uid: one.weight for uid, one in made.job.items()})

    holds(check, sharing=sharing)


def test_agnostic_las_is_max_min_fair():
    """It is the same program where every type is as fast as the fastest; even time over types costs a hundredth."""

    def check(instance):
        made = Allocations(instance, aware=False)
        found = Found(made, GavelLas(GavelLas.Parameters(aware=False)), instance.snapshot())
        factor = las_factor(made)
        level = made.max_min(factor) if factor else 0
        assert all(found.reaches(uid, level / value, Fraction(1, 100), 10 * TIME) for uid, value in factor.items())

    holds(check)


def filled(made, weights):
    """Throughputs by water filling: all levels rise in proportion to weights, until no job can grow (section 4.3).

    Args:
        made: the valid allocations.
        weights: from the uids that can still grow, the weight of each; 0 for jobs that wait for another's weight.
    """
    unit = {uid: made.equal(uid) / one.gpus for uid, one in made.job.items()}  # steps/s of one level
    reached = dict.fromkeys(made.rate, Fraction(0))
    growing = list(made.rate)
    while growing:
        weight = weights(growing)
        rising = [uid for uid in growing if weight[uid] > 0]
        program = made.program(1)
        level = len(made.columns)
        for uid in made.rate:
            row = made.throughput(uid)
            if uid in rising:
                row |= {level: -unit[uid] * weight[uid]}
            program.at_least(row, reached[uid])
        rise, _ = program.maximise({level: 1})
        for uid in rising:
            reached[uid] += rise * weight[uid] * unit[uid]
        rest = made.program()
        for uid in made.rate:
            rest.at_least(made.throughput(uid), reached[uid])
        still = [uid for uid in rising if rest.maximise(made.throughput(uid))[0] > reached[uid]]
        assert len(still) < len(rising)
        growing = [uid for uid in growing if uid in still or uid not in rising]
    return reached


@shared_or_not
def test_las_with_fill_is_water_filling(sharing):
    """Each job has exactly the level at which it, or all with it, can grow no more."""

    def check(instance):
        made = Allocations(instance)
        found = Found(made, GavelLas(GavelLas.Parameters(fill=True)), instance.snapshot())
        exact = filled(made, lambda growing: {uid: made.job[uid].weight for uid in growing})
        assert all(found.reaches(uid, value) for uid, value in exact.items())

    holds(check, sharing=sharing, most=5)


@shared_or_not
def test_hierarchical_is_water_filling_of_entities(sharing):
    """An entity's weight is divided by its jobs' weights, or is that of its first job that can still grow."""
    entities = {"x": {"weight": 2.0, "inside": "fifo"}, "y": {"weight": 0.01, "inside": "fairness"}}
    policy = GavelHierarchical(GavelHierarchical.Parameters(entities=entities))
    weight = {"x": Fraction(2), "y": Fraction(1, 100), "z": Fraction(1)}

    def check(instance):
        made = Allocations(instance)
        found = Found(made, policy, instance.snapshot())

        def weights(growing):
            row = {}
            for account, whole in weight.items():
                mine = [uid for uid in growing if made.job[uid].account == account]
                total = sum(made.job[uid].weight for uid in mine)
                for place, uid in enumerate(mine):
                    fair = whole * made.job[uid].weight / total
                    row[uid] = whole * (place == 0) if account == "x" else fair
            return row

        exact = filled(made, weights)
        assert all(found.reaches(uid, value) for uid, value in exact.items())

    holds(check, sharing=sharing, most=5)


@shared_or_not
def test_makespan_is_the_shortest(sharing):
    """No allocation ends the last job earlier."""

    def check(instance):
        made = Allocations(instance)
        found = Found(made, GavelMakespan(), instance.snapshot())
        factor = {uid: 1 / made.left(uid) for uid in made.rate}
        level = made.max_min(factor) if factor else 0
        floors = {uid: level * made.left(uid) for uid in made.rate}
        assert all(found.reaches(uid, floor) for uid, floor in floors.items())
        assert_second_stage(made, found, floors)

    holds(check, sharing=sharing)


def assert_least_rho(made, found, elapsed, isolated_elapsed):
    """No allocation has a lower maximum of rho than the one that is found (section 4.2)."""
    if not made.rate:
        return
    whole = {uid: isolated_elapsed[uid] + made.left(uid) / made.isolated(uid) for uid in made.rate}
    speed = {uid: found.throughput[uid] + TIME * made.fastest(uid) for uid in made.rate}
    reached = max((elapsed[uid] + made.left(uid) / speed[uid]) / whole[uid] for uid in made.rate)
    lower = reached * (1 - RELATIVE)
    spare = {uid: lower * whole[uid] - elapsed[uid] for uid in made.rate}  # seconds until the end, at most
    assert min(spare.values()) <= 0 or made.max_min({uid: spare[uid] / made.left(uid) for uid in made.rate}) < 1
    floors = {uid: made.left(uid) / (reached * whole[uid] - elapsed[uid]) for uid in made.rate}
    assert_second_stage(
        made, found, {uid: max(0, floor - 2 * TIME * made.fastest(uid)) for uid, floor in floors.items()}
    )


@shared_or_not
def test_finish_time_fairness_has_the_least_rho(sharing):
    """At the first round, and at a later one with another job, after progress at a rate of its own."""

    def check(instance):
        first = replace(instance, jobs=instance.jobs[:-1])
        memory = {}
        isolated = {}
        if first.jobs:
            made = Allocations(first)
            found = Found(made, GavelFinishTimeFairness(), first.snapshot())
            memory = found.memory
            isolated = {uid: made.isolated(uid) for uid in made.rate}
            assert_least_rho(
                made, found, {uid: NOW - one.submitted for uid, one in made.job.items()}, dict.fromkeys(made.rate, 0)
            )
        rng = random.Random(len(instance.jobs))  # noqa: S311
        jobs = [
            one if one.steps is None or one.uid not in isolated else replace(one, done=rng.randrange(one.steps))
            for one in instance.jobs
        ]
        later = replace(instance, jobs=tuple(jobs))
        made = Allocations(later)
        found = Found(made, GavelFinishTimeFairness(), later.snapshot(2 * NOW), memory)
        past = {uid: one.done / isolated[uid] if one.done else 0 for uid, one in made.job.items()}
        elapsed = {uid: 2 * int(NOW) - one.submitted for uid, one in made.job.items()}
        assert_least_rho(made, found, elapsed, past)

    holds(check, sharing=sharing, most=5)


def in_order(made, order):
    """The gain of each job of a queue: of M, the m-th counts M - m times its GPUs for its fastest speed."""
    return {uid: Fraction((len(order) - m) * made.job[uid].gpus) / made.fastest(uid) for m, uid in enumerate(order)}


@shared_or_not
@pytest.mark.parametrize("policy", [GavelFirstCome, GavelShortestFirst], ids=lambda policy: policy.name)
def test_queues_have_the_largest_sum(policy, sharing):
    """Of throughputs relative to the fastest type, by position: by submission, or by remaining time."""

    def check(instance):
        made = Allocations(instance)
        found = Found(made, policy(), instance.snapshot())
        order = list(made.rate)
        if policy is GavelShortestFirst:
            seconds = {uid: made.left(uid) / made.fastest(uid) for uid in order}
            if len(set(seconds.values())) < len(seconds):
                return  # see the test of ties
            order.sort(key=seconds.get)
        gain = in_order(made, order)
        assert found.total(gain) >= made.best(gain)[0] * (1 - RELATIVE)

    holds(check, sharing=sharing)


@fails_by("sjf ties")
def test_equally_short_jobs_are_served_by_submission():
    """Jobs of unknown totals all have an hour left, whatever their speed."""

    def check(speed):
        models = [ModelSpeed(f"m{i}", (("v100", Fraction(rate)),)) for i, rate in enumerate((118, speed))]
        jobs = Asked("a", models[0]), Asked("b", models[1])
        instance = Instance(jobs, (Nodes("v100", 1, 1),))
        found = Found(Allocations(instance), GavelShortestFirst(), instance.snapshot())
        assert found.reaches("a", Fraction(118))

    for_examples(lambda rng: rng.randint(1, 400), check)


@shared_or_not
def test_throughput_is_the_largest(sharing):
    """Up to a thousandth, by which earlier jobs are preferred."""

    def check(instance):
        made = Allocations(instance)
        found = Found(made, GavelThroughput(), instance.snapshot())
        gain = dict.fromkeys(made.rate, 1)
        assert found.total(gain) >= made.best(gain)[0] * (1 - 2 * RELATIVE)

    holds(check, sharing=sharing)


PRICES = {"v100": Fraction(3), "p100": Fraction(3, 2), "k80": Fraction(1, 2)}


def cost(made):
    """The cost of an hour of each variable, as a row; two jobs on the same GPUs pay once."""
    return {k: PRICES[kind] * made.job[uids[0]].gpus for k, (uids, kind) in enumerate(made.columns)}


def needs(made, margin):
    """The throughput that each deadline requires, with a reserve as far as the job is fast enough; without the rest."""
    row = {}
    for uid, one in made.job.items():
        seconds = None if one.slo is None else one.submitted + one.slo - int(NOW)
        if seconds is not None and 0 < made.left(uid) / seconds <= made.fastest(uid):
            row[uid] = min(made.left(uid) / (seconds * (1 - margin)), made.fastest(uid))
    return row


def possible(made, wanted):
    """The largest common fraction, at most 1, of these throughputs that an allocation has."""
    return min(Fraction(1), made.max_min({uid: 1 / value for uid, value in wanted.items()})) if wanted else Fraction(1)


@pytest.mark.parametrize("slos", [False, True], ids=["free", "deadlines"])
@shared_or_not
def test_cost_has_the_largest_sum_of_ratios(sharing, slos):
    """Each job's relative throughput over the price of its GPUs; deadlines are kept, or all as far as possible."""

    def check(instance):
        made = Allocations(instance)
        parameters = GavelCost.Parameters(prices={kind: float(price) for kind, price in PRICES.items()}, slos=slos)
        found = Found(made, GavelCost(parameters), instance.snapshot())
        wanted = needs(made, Fraction(1, 20)) if slos else {}
        fraction = possible(made, wanted)
        floors = {uid: value * fraction for uid, value in wanted.items()}
        assert all(found.reaches(uid, floor) for uid, floor in floors.items())
        price = cost(made)
        gain = {k: sum(speed / made.fastest(uid) for uid, speed in made.speeds[k].items()) / price[k] for k in price}
        program = made.program()
        for uid, floor in floors.items():
            program.at_least(made.throughput(uid), floor)
        assert found.value(gain) >= program.maximise(gain)[0] * (1 - 2 * RELATIVE) - TIME

    holds(check, sharing=sharing)


@pytest.mark.parametrize("slos", [False, True], ids=["free", "deadlines"])
@shared_or_not
def test_cost_together_has_the_largest_ratio_of_sums(sharing, slos):
    """All relative throughputs over all costs, the paper's formula, by Dinkelbach's method."""

    def check(instance):
        made = Allocations(instance)
        prices = {kind: float(price) for kind, price in PRICES.items()}
        policy = GavelCost(GavelCost.Parameters(prices=prices, slos=slos, together=True))
        found = Found(made, policy, instance.snapshot())
        wanted = needs(made, Fraction(1, 20)) if slos else {}
        fraction = possible(made, wanted)
        floors = {uid: value * fraction for uid, value in wanted.items()}
        assert all(found.reaches(uid, floor) for uid, floor in floors.items())
        if not made.rate:
            return
        price = cost(made)
        gain = made.total({uid: 1 / made.fastest(uid) for uid in made.rate})
        program = made.program()
        for uid, floor in floors.items():
            program.at_least(made.throughput(uid), floor)
        ratio = Fraction(0)
        while True:
            above, x = program.maximise({k: gain[k] - ratio * price[k] for k in gain})
            if above == 0:
                break
            ratio = dot(gain, x) / dot(price, x)
        assert found.value(gain) / found.value(price) >= ratio * (1 - 2 * RELATIVE)

    holds(check, sharing=sharing)


def draw_placement(rng):
    """Gangs of one size, which fit on a node, and jobs of one GPU; speeds on one node and on several."""
    instance = draw_instance(rng, unknown=False, gpus=(2, 3, 4, 6))
    width = rng.choice((2, 2, 3, 4))
    factor = {one.model.name: rng.choice((Fraction(1, 4), Fraction(1, 2), Fraction(9, 10))) for one in instance.jobs}
    nodes = tuple(
        replace(group, count=group.count if width == 2 else rng.choice((1, width))) for group in instance.nodes
    )
    jobs = (
        replace(
            one,
            gpus=1 if one.gpus == 1 else width,
            max_nodes=None,
            model=replace(one.model, unconsolidated=factor[one.model.name]),
        )
        for one in instance.jobs
    )
    return replace(instance, jobs=tuple(jobs), nodes=tuple(group for group in nodes if group.gpus >= width))


@pytest.mark.parametrize("fill", [False, True], ids=["las", "fill"])
def test_placement_aware_las_is_max_min_fair(fill):
    """Consolidated and unconsolidated GPUs are the same; only whole nodes hold gangs that are consolidated."""
    policy = GavelLas(GavelLas.Parameters(placement=True, fill=fill))

    def check(instance):
        widest = max(one.gpus for one in instance.jobs)
        if any(group.gpus < widest for group in instance.nodes) or not instance.nodes:
            return
        made = Allocations(instance, placement=True)
        found = Found(made, policy, instance.snapshot())
        if fill:
            exact = filled(made, lambda growing: {uid: made.job[uid].weight for uid in growing})
            assert all(found.reaches(uid, value) for uid, value in exact.items())
        else:
            factor = las_factor(made)
            level = made.max_min(factor) if factor else 0
            floors = {uid: level / value for uid, value in factor.items()}
            assert all(found.reaches(uid, floor) for uid, floor in floors.items())
            assert_second_stage(made, found, floors, {uid: one.weight for uid, one in made.job.items()})

    for_examples(draw_placement, check, simpler)
