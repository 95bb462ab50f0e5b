import math
import random

import pytest

from metasched.core.distance import Level
from policies.themis.agent import Agent
from policies.themis.finish_time import (
    AppJob,
    AppWork,
    ClampedSlowdown,
    GangPlaces,
    LaterPhase,
    MeasuredRange,
    clamped_slowdown,
    curve_phase,
    halving_phases,
    phase_seconds,
)
from policies.themis.offer import NOTHING
from tests.unit.policies.themis.auctions import bundle, offer_of

LINEAR = ClampedSlowdown((1.0, 1.0, 1.0, 1.0))


def places(*parts, node=4):
    return GangPlaces(
        tuple(sorted(parts, reverse=True)), lambda gpus: Level.NODE if gpus <= node else Level.RACK, Level.RACK
    )


def example(*seconds, later=(16, 36), iterations=8):
    """The app of section 4.3.3: four jobs, budgets of some 8, 16 and 36 iterations, on 16 GPUs shared by four apps."""
    jobs = [AppJob(iterations, each, most_gpus=8, slowdown=LINEAR) for each in seconds]
    return AppWork(halving_phases(jobs, map(LaterPhase, later)), elapsed=0.0, budget=10_000, apps=4, most_gpus=32)


def test_the_papers_app_of_four_jobs():
    """Section 4.3.3: the independent time is 2500 s; on two GPUs the phases take 1600, 1600 and 1800 s, so rho is 2."""
    work = example(80, 100, 100, 120)
    assert work.independent_seconds({"g": 16}, {}) == 2500
    assert [phase_seconds(phase, places(1, 1)) for phase in work.phases] == [1600, 1600, 1800]
    agent = Agent("a", work, {"g": 16})
    assert agent.rho(bundle(1, 1), offer_of(4, 4, 4, 4)) == 2.0


@pytest.mark.parametrize(("gpus", "rho"), [(1, 4.0), (2, 2.0), (4, 1.064), (8, 0.532), (16, 0.356)])
def test_the_papers_table_of_bids(gpus, rho):
    """Table 3 by Eq. 2. The paper has 1, 0.5 and 0.34 for 4 and more GPUs, which is the budget packed perfectly."""
    agent = Agent("a", example(80, 100, 100, 120), {"g": 16})
    offer = offer_of(4, 4, 4, 4)
    assert agent.rho(bundle(*[1] * gpus), offer) == pytest.approx(rho)
    assert agent.bid(offer).values[bundle(*[1] * gpus)] == pytest.approx(1 / rho)


def test_the_papers_app_is_revised_when_two_jobs_survive():
    """The jobs of 120 and 100 s go on: 120 x 16 = 1920 s (the paper prints 3200), then 120 x 36 / 2 = 2160 s."""
    work = example(120, 100, iterations=16, later=(36,))
    assert [phase_seconds(phase, places(1, 1)) for phase in work.phases] == [1920, 2160]


def test_a_single_job_by_equation_1():
    """Time elapsed and time left by linear speed-up over the slowdown, up to the job's most GPUs."""
    job = AppJob(100, 10.0, most_gpus=4)
    work = AppWork(((job,),), elapsed=500.0, budget=2000.0, apps=3)
    agent, offer = Agent("a", work, {"g": 16}), offer_of(4, 4)
    independent = 2000.0 / 4 * 3
    assert agent.rho(bundle(4), offer) == pytest.approx((500 + 1000 / 4) / independent)
    assert agent.rho(bundle(2, 2), offer) == pytest.approx((500 + 1000 * 1.1 / 4) / independent)
    assert agent.rho(bundle(4, 4), offer) == pytest.approx((500 + 1000 / 4) / independent)
    assert agent.rho(NOTHING, offer) == math.inf


def test_the_most_optimistic_curve_counts():
    """Of several forecasts, the latest end; a job without forecasts runs to its own."""
    jobs = [AppJob(10, 1.0), AppJob(20, 1.0)]
    phase = curve_phase(jobs, [(5, 40, 30), ()])
    assert [job.iterations_left for job in phase] == [40, 20]
    assert phase_seconds(phase, places(1, 1)) == 40


def test_gpus_are_divided_evenly():
    """Equal numbers up to the jobs' limits; what is left over goes to the longest jobs, one by one."""
    phase = tuple(
        AppJob(work, 1.0, most, least, LINEAR) for work, most, least in ((80, 8, 1), (120, 8, 1), (100, 2, 1))
    )
    assert phase_seconds(phase, places(*[1] * 3)) == 120
    assert phase_seconds(phase, places(*[1] * 4)) == 100
    assert phase_seconds(phase, places(*[1] * 5)) == 80
    assert phase_seconds(phase, places(*[1] * 9)) == 50
    large = (AppJob(80, 1.0, 8, 4, LINEAR), AppJob(120, 1.0, 8, 1, LINEAR))
    assert phase_seconds(large, places(*[1] * 6)) == 60


def test_a_gang_that_spans_nodes_is_slower():
    """Two gangs of three on two nodes of four fit; on nodes of two they span."""
    jobs = (AppJob(30, 1.0, 3, 3),) * 2
    assert phase_seconds(jobs, places(4, 4)) == pytest.approx(10.0)
    assert phase_seconds(jobs, places(2, 2, 2)) == pytest.approx(11.0)


def test_jobs_run_in_turn_where_gpus_are_few():
    """Gangs of two on four GPUs: the longest first; on one GPU, never."""
    jobs = tuple(AppJob(work, 1.0, 2, 2) for work in (40, 30, 20))
    assert phase_seconds(jobs, places(4)) == pytest.approx(25.0)
    assert phase_seconds(jobs, places(1)) == math.inf
    assert phase_seconds((), places(1)) == 0.0


def test_more_gpus_on_the_same_nodes_never_hurt():
    """Parts that grow shorten the time, or leave it."""
    rng = random.Random(5)  # noqa: S311
    for _ in range(200):
        jobs = tuple(AppJob(rng.randint(1, 50), 1.0, rng.choice((1, 2, 4))) for _ in range(rng.randint(1, 5)))
        one_node = [phase_seconds(jobs, places(gpus, node=16)) for gpus in range(1, 17)]
        assert one_node == sorted(one_node, reverse=True)


def test_faster_gpus_count():
    """The speed of the type divides the seconds, and the independent time uses the fastest GPUs first."""
    job = AppJob(100, 1.0, most_gpus=4)
    work = AppWork(((job,),), 0.0, 100.0, 1.0)
    assert phase_seconds((job,), places(1)._replace(speed=2.0)) == 50.0
    assert work.independent_seconds({"g": 2, "h": 8}, {"g": 3.0}) == pytest.approx(100 / (2 * 3 + 2))


def test_declared_numbers_are_clamped_to_what_was_measured():
    """A range is two standard errors wide; nan and infinity are no declarations."""
    measured = MeasuredRange.of([1.0, 1.2, 1.1, 1.3])
    assert measured.clamp(0.1) == measured.low
    assert measured.clamp(9.0) == measured.high
    assert measured.clamp(1.15) == 1.15
    assert measured.low < measured.clamp(math.nan) < measured.high
    assert MeasuredRange.of([2.0]) == (2.0, 2.0)
    slowdown = clamped_slowdown({Level.NODE: 9.0, Level.RACK: math.inf}, {Level.NODE: MeasuredRange(1.0, 1.2)})
    assert [slowdown(level) for level in Level] == [1.0, 1.2, 1.2, 1.3]


def test_an_app_bids_for_what_it_holds_and_adds_to_what_it_retains():
    """What is retained counts in every row; other GPU types are no option then."""
    job = AppJob(100, 1.0, most_gpus=8, slowdown=LINEAR)
    work = AppWork(((job,),), 0.0, 100.0, 1.0)
    offer = offer_of(4, 4)
    bid = Agent("a", work, {"g": 8}, retained=bundle(2), held={"n0": 3}).bid(offer)
    assert bid.retained_value == pytest.approx(2 / 8)
    assert bid.values[bundle(2)] == pytest.approx(4 / 8)
    assert bundle(3) in bid.values
    assert bid.held_gpus(bundle(3)) == 3
    assert bid.held_gpus(bundle(2)) == 0
    other = Agent("a", work, {"g": 8}, retained=bundle(2)._replace(gpu_type="h")).bid(offer)
    assert [*other.values] == [NOTHING]
    done = Agent("a", AppWork((), 10.0, 100.0, 1.0), {"g": 8}).bid(offer)
    assert [*done.values] == [NOTHING]
