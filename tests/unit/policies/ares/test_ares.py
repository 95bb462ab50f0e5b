from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Node, Placement, Preempt, Status
from metasched.core.policy import PolicyState
from metasched.scheduling.engine import run_round
from metasched.simulator.records import Settings, Submission
from metasched.simulator.simulation import simulate
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from policies.ares.policy import Ares, AresParameters
from tests.builders import ByGpus, job, linear, nodes, running, snapshot
from tests.unit.fluid import fluid
from tests.unit.strategies import snapshots
from tests.unit.workloads import workload

HOUR = 3600.0
FREE = Settings(round_seconds=60.0, min_round_seconds=0.0)
WORSE = ByGpus(((1, 1.0), (2, 1.9), (4, 3.2), (8, 5.0)))  # 0.95, 0.80 and 0.625 of the speed for each GPU


def decided(jobs, the_nodes=None, *, policy=None, state=None, **more):
    return run_round(snapshot(jobs, the_nodes, **more), policy or Ares(), state)


def amounts(jobs, the_nodes=None, **more):
    return {uid: place.gpus for uid, place in decided(jobs, the_nodes, **more).targets.items()}


def only_clock(data):
    """The only virtual clock of a state."""
    (clock,) = data["gps"]["clocks"]
    return clock


def active_in(data):
    """Uids of the jobs that are active in a state's reference system."""
    return [uid for clock in data["gps"]["clocks"] for _, uid, _ in clock["active"]]


def curved(uid, curve, gpus, service, *, at=0.0, high=64):
    """A submission of that many GPU-seconds on ``gpus`` GPUs, with known speeds {GPUs: steps/s}."""
    points = tuple(sorted(curve.items()))
    training = ScalingTraining(service / gpus * dict(points)[gpus], {"": Curve(points)})
    return Submission(
        job(uid, gpus, 1, high, submitted=at, cpus_per_unit=0),
        training,
    )


def line_of(gpus):
    return {n: float(n) for n in range(1, gpus + 1)}


def seen(submissions, gpus, policy=None):
    """Simulation on a cluster of one node: the ends by uid, and every change of the jobs' GPUs."""
    changes = []

    def watch(view, result):
        changes.append((view.now, {uid: place.gpus for uid, place in result.targets.items()}))

    outcome = simulate(workload(*submissions), (Node("n0", "v100", gpus, 0, 0),), policy or Ares(), FREE, watch=watch)
    kept = [change for before, change in zip([(None, None), *changes], changes, strict=False) if before[1] != change[1]]
    return {one.uid: one.finished for one in outcome.jobs}, kept


# -- the figures of the paper: their inputs are drawings, so these are instances that give what is printed or told


def test_figure_1_jobs_one_by_one_end_earlier_on_average_and_none_later():
    """Three jobs at 0 on a linear cluster: 6.6 h on average under fair sharing, 4.6 h in the order of its ends.

    Of jobs of a, b and c cluster hours, a <= b <= c, the sums of ends are 5a + 3b + c and 3a + 2b + c. 20 h and 14 h,
    which the figure prints a third of, cut after one digit, are those of 1.5, 3 and 3.5 hours.
    """
    hours = {"a": 1.5, "b": 3.0, "c": 3.5}
    gpus = 4
    jobs = [curved(uid, line_of(gpus), 1, time * gpus * HOUR, high=gpus) for uid, time in hours.items()]
    fair = fluid([(uid, 0.0, time * gpus * HOUR, 1.0) for uid, time in hours.items()], gpus)
    ends, _ = seen(jobs, gpus)
    assert int(10 * sum(fair.values()) / 3 / HOUR) == 66
    assert int(10 * sum(ends.values()) / 3 / HOUR) == 46
    assert all(ends[uid] <= fair[uid] + 1e-6 for uid in hours)


def test_figure_4_the_schedule_of_section_3_3():
    """Jobs 1 and 3 do not scale beyond four of six GPUs, job 2 does; under fair sharing they end as 1, 3, 2.

    Job 1 has four GPUs and job 2 two; at 2, job 3 comes and preempts job 2; at 3, job 1 ends and job 3 has four; at
    5.5 it ends, and job 2 has all of them to its end. Nobody ends later than under fair sharing.
    """
    poor = {n: float(min(n, 4)) for n in range(1, 7)}
    work = {"1": 12 * HOUR, "2": 24 * HOUR, "3": 12 * HOUR}
    jobs = [
        curved("1", poor, 2, work["1"], high=6),
        curved("2", line_of(6), 2, work["2"], high=6),
        curved("3", poor, 2, work["3"], at=2 * HOUR, high=6),
    ]
    fair = fluid([(one.job.uid, one.job.submitted, work[one.job.uid], 1.0) for one in jobs], 6)
    assert sorted(fair, key=fair.get) == ["1", "3", "2"]
    ends, changes = seen(jobs, 6)
    assert [(at / HOUR, given) for at, given in changes] == [
        (0.0, {"1": 4, "2": 2}),
        (2.0, {"1": 4, "3": 2}),
        (3.0, {"3": 4, "2": 2}),
        (pytest.approx(5.5), {"2": 6}),
    ]
    assert {uid: end / HOUR for uid, end in ends.items()} == pytest.approx({"1": 3.0, "3": 5.5, "2": 8.0})
    assert all(ends[uid] <= fair[uid] + 1e-6 for uid in work)


# -- Theorem 1 ---------------------------------------------------------------------------------------------------------


@st.composite
def instances(draw, alpha):
    """Jobs that satisfy the assumptions: each GPU keeps alpha of its speed up to all GPUs, a power of two of them.

    So the first in line has them all, and none is stranded.
    """
    gpus = draw(st.sampled_from((1, 2, 4, 8)))
    sizes = [n for n in (1, 2, 4, 8) if n <= gpus]
    found = []
    for i in range(draw(st.integers(1, 8))):
        asked = draw(st.sampled_from(sizes))
        beyond = [n for n in sizes if n > asked]
        kept = sorted((draw(st.floats(alpha, 1.0)) for _ in beyond), reverse=True)
        efficiency = dict.fromkeys(sizes, 1.0) | dict(zip(beyond, kept, strict=True))
        curve = {n: n * efficiency[n] for n in sizes}
        at, work = float(draw(st.integers(0, 100))), float(draw(st.integers(1, 400)))
        found.append((curved(f"j{i}", curve, asked, work, at=at, high=gpus), work))
    return gpus, found


def busy_periods(spans):
    """Lengths of the unions of spans that touch."""
    lengths, began, until = [], None, None
    for low, high in sorted(spans):
        if until is None or low > until:
            lengths += [] if until is None else [until - began]
            began, until = low, high
        until = max(until, high)
    return [*lengths, until - began]


@settings(deadline=None)
@given(st.data(), st.sampled_from((0.55, 0.75, 0.9, 1.0)))
def test_theorem_1_no_job_ends_later_than_under_fair_sharing_by_more_than_the_bound(data, alpha):
    """Ends differ by at most (1/alpha - 1) x the longest busy period, for random arrivals without costs of restarts."""
    gpus, jobs = data.draw(instances(alpha))
    submissions = [one for one, _ in jobs]
    ends, changes = seen(submissions, gpus, Ares(AresParameters(alpha=alpha)))
    assert all(sum(given.values()) == gpus for _, given in changes)  # none is stranded
    fair = fluid([(one.job.uid, one.job.submitted, work, 1.0) for one, work in jobs], gpus)
    longest = max(busy_periods((one.job.submitted, ends[one.job.uid]) for one in submissions))
    late = max(ends[uid] - fair[uid] for uid in ends)
    assert late <= (1 / alpha - 1) * longest + 1e-6 * (1 + longest)


def test_theorem_1_does_not_hold_for_a_gang_that_cannot_use_remaining_gpus():
    """Fair sharing would have given all GPUs to a job that cannot grow."""
    ends, _ = seen([curved("a", line_of(4), 1, 400.0, high=1)], 4, Ares(AresParameters(alpha=1.0)))
    assert ends["a"] - fluid([("a", 0.0, 400.0, 1.0)], 4)["a"] == pytest.approx(300.0)


# -- the line ----------------------------------------------------------------------------------------------------------


def test_an_earlier_virtual_finish_time_preempts():
    """A later short job takes the GPUs of a long one; a longer job does not."""
    long = job("long", 4, left=1000, speed=linear(1.0))
    first = decided([long])
    jobs = [running(long, "v100-0"), job("short", 4, left=10, speed=linear(1.0), submitted=10.0)]
    assert decided(jobs, now=10.0, state=first.state).targets.keys() == {"short"}
    jobs = [running(long, "v100-0"), job("longer", 4, left=2000, speed=linear(1.0), submitted=10.0)]
    assert decided(jobs, now=10.0, state=first.state).targets.keys() == {"long"}


def test_an_early_long_job_precedes_a_late_short_one():
    """No starvation: after some time, its virtual finish time is before that of any new job."""
    long, short = job("long", 4, left=1000, speed=linear(1.0)), job("short", 4, left=600, speed=linear(1.0))
    first = decided([long])
    state = decided([running(long, "v100-0")], now=500.0, state=first.state).state
    jobs = [running(long, "v100-0"), short.evolve(submitted=500.0)]
    assert decided(jobs, now=500.0, state=state).targets.keys() == {"long"}


def test_virtual_finish_times_are_fixed_at_arrival():
    """Neither progress nor other jobs nor another speed change them."""
    one = job("a", 2, left=100, speed=linear(1.0))
    first = decided([one])
    progressed = running(one.evolve(progress_steps=50.0, speed=linear(3.0)), "v100-0")
    second = decided([progressed, job("b", 1, left=5, speed=linear(1.0), submitted=9.0)], now=9.0, state=first.state)
    assert second.state.data["finish"]["a"] == first.state.data["finish"]["a"] == 100


def test_a_job_enters_the_reference_system_at_its_submission():
    """However late its first round is."""
    first = decided([job("a", 2, left=1000, speed=linear(1.0))])
    late = [job("a", 2, left=1000, speed=linear(1.0)), job("b", 2, left=1000, speed=linear(1.0), submitted=10.0)]
    assert decided(late, now=60.0, state=first.state).state.data["finish"]["b"] == 10 * 4 + 1000


def test_a_heavier_job_precedes():
    """Of two equal jobs, the one with the larger weight ends first under fair sharing."""
    light = job("a", 4, left=100, speed=linear(1.0), weight=0.5)
    assert decided([light, job("b", 4, left=100, speed=linear(1.0))]).targets.keys() == {"b"}


# -- scaling control ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "gpus"), [(1.0, 1), (0.9, 2), (0.8, 4), (0.75, 4), (0.625, 8)])
def test_gpus_are_doubled_while_they_stay_efficient(alpha, gpus):
    """Doubling ends where the speed for each GPU, over that at the requested size, falls below alpha."""
    one = job("a", 1, high=8, left=100, speed=WORSE)
    assert amounts([one], nodes(1, 8), policy=Ares(AresParameters(alpha=alpha))) == {"a": gpus}


def test_efficiency_is_relative_to_the_requested_size():
    """A job that requested two GPUs has an efficiency of 1 there."""
    assert amounts([job("a", 2, 1, 8, left=100, speed=WORSE)], nodes(1, 8)) == {"a": 4}


def test_sizes_without_a_known_speed_are_not_doubled():
    """A job has its requested GPUs where no speed is known, or none of the next size."""
    blind = job("a", 2, 1, 8, expected_service=100.0)
    assert amounts([blind], nodes(1, 8)) == {"a": 2}
    half = job("a", 2, 1, 8, left=100, speed=ByGpus(((2, 2.0),)))
    assert amounts([half], nodes(1, 8)) == {"a": 2}


def leaving(leftovers):
    return Ares(AresParameters(leftovers=leftovers))


def known_at(*gpus):
    """A speed that is proportional to the GPUs, and known on these numbers of GPUs only."""
    return ByGpus(tuple((n, float(n)) for n in gpus))


def test_gpus_that_no_job_can_use_go_to_a_job_that_explores():
    """Twice the GPUs, and once their speed is known, twice those, as far as scaling control allows."""
    for known, gpus in ((1,), 2), ((1, 2), 4), ((1, 2, 4), 8), ((1, 2, 4, 8), 8):
        one = job("a", 1, high=8, left=100, speed=known_at(*known), learns_speed=True)
        assert amounts([one], nodes(1, 8)) == {"a": gpus}
    poor = ByGpus(((1, 1.0), (2, 1.1)))
    assert amounts([job("a", 1, high=8, left=100, speed=poor, learns_speed=True)], nodes(1, 8)) == {"a": 1}
    result = decided([job("a", 1, high=8, left=100, speed=known_at(1), learns_speed=True)], nodes(1, 8))
    assert "to learn how fast it is" in reason_words.words(result.reasons["a"])


def test_a_profiled_job_begins_on_all_remaining_gpus():
    """Profiling runs measure smaller sizes, and its demand with them, but not where the total is unknown."""
    nothing = {"speed": ByGpus(()), "learns_speed": True}
    assert amounts([job("a", 1, high=8, left=100, profiled=True, **nothing)], nodes(1, 8)) == {"a": 8}
    assert amounts([job("a", 1, high=8, expected_service=9.0, profiled=True, **nothing)], nodes(1, 7)) == {"a": 4}
    assert amounts([job("a", 1, high=8, profiled=True, **nothing)], nodes(1, 8)) == {"a": 1}
    assert amounts([job("a", 1, high=8, left=100, **nothing)], nodes(1, 8)) == {"a": 1}
    slow = ByGpus(((1, 1.0), (4, 0.5)))
    assert amounts([job("a", 1, high=8, left=9, speed=slow, learns_speed=True, profiled=True)], nodes(1, 8)) == {"a": 2}


def test_exploration_takes_no_gpus_from_other_jobs():
    """All jobs are served before, and earlier jobs of the queue explore first."""
    jobs = [job(uid, 1, high=4, left=left, speed=known_at(1), learns_speed=True) for uid, left in (("a", 1), ("b", 9))]
    assert amounts(jobs, nodes(1, 2)) == {"a": 1, "b": 1}
    assert amounts(jobs, nodes(1, 3)) == {"a": 2, "b": 1}
    assert amounts([*jobs, job("u", 2)], nodes(1, 4)) == {"a": 1, "b": 1, "u": 2}


def test_a_job_that_cannot_shrink_again_does_not_explore():
    """A job that is never preempted would keep those GPUs; the parameter switches exploration off."""
    facts = {"high": 4, "left": 100, "speed": known_at(1), "learns_speed": True}
    assert amounts([job("a", 1, preempt=Preempt.NO, **facts)]) == {"a": 1}
    assert amounts([job("a", 1, **facts)], policy=Ares(AresParameters(explore=False))) == {"a": 1}


def test_leftovers_go_to_sizes_between_doublings():
    """In the order of the queue, as far as scaling control allows; or they stay idle, if so configured."""
    jobs = [job("a", 4, high=8, left=10, speed=linear(1.0)), job("b", 1, high=1, left=90, speed=linear(1.0))]
    assert amounts(jobs, nodes(1, 7)) == {"a": 6, "b": 1}
    assert amounts(jobs, nodes(1, 7), policy=leaving("none")) == {"a": 4, "b": 1}


def test_leftovers_may_go_to_any_faster_size():
    """Beyond scaling control, in the order of the queue, as long as a job becomes faster."""
    jobs = [job("a", 1, high=8, left=10, speed=WORSE), job("b", 1, high=1, left=90, speed=linear(1.0))]
    assert amounts(jobs, nodes(1, 16)) == {"a": 4, "b": 1}
    assert amounts(jobs, nodes(1, 16), policy=leaving("faster")) == {"a": 8, "b": 1}
    flat = ByGpus(((1, 1.0), (2, 1.2), (4, 1.2), (8, 9.0)))
    assert amounts([job("a", 1, high=8, left=10, speed=flat)], nodes(1, 16), policy=leaving("faster")) == {"a": 2}


def test_a_job_has_fewer_gpus_than_requested_where_no_more_are_left():
    """Repeated halves, down to its minimum; a gang without a smaller size waits."""
    first = job("a", 2, left=1, speed=linear(1.0))
    assert amounts([first, job("b", 4, 1, 4, left=90, speed=linear(1.0))]) == {"a": 2, "b": 2}
    assert amounts([first, job("b", 4, left=90, speed=linear(1.0))]) == {"a": 2}


def test_jobs_grow_by_sizes_that_nodes_hold():
    """Beyond a node, by whole nodes."""
    assert amounts([job("a", 2, high=64, left=9, speed=linear(1.0))], nodes(3)) == {"a": 12}


# -- types, nodes, and what cannot be moved ----------------------------------------------------------------------------


TWO = (*nodes(1, 4), *nodes(1, 4, "a100"))


def typed(slow, fast):
    """A speed for each GPU by GPU type."""

    class Typed:
        def steps_per_second(self, gpu_type, spread):
            return sum(spread) * {"v100": slow, "a100": fast}[gpu_type]

        def steps_per_second_with(self, other, gpu_type, spread):
            return None

    return Typed()


def test_the_first_of_the_queue_gets_its_fastest_type():
    """The next job has the other type."""
    jobs = [job(uid, 4, left=left, speed=typed(1.0, 3.0)) for uid, left in (("a", 90), ("b", 10))]
    targets = decided(jobs, TWO).targets
    assert {uid: place.gpu_type for uid, place in targets.items()} == {"a": "v100", "b": "a100"}


def test_a_job_keeps_its_type_among_equally_fast_ones():
    """Even where the other type's name comes first."""
    one = running(job("a", 2, left=90, speed=typed(1.0, 1.0)), "v100-0")
    assert decided([one], TWO).targets["a"].gpu_type == "v100"


def test_demand_is_in_gpu_seconds_of_average_speed():
    """Section 3.5: 4 GPUs of speed 1 and 4 of speed 3 are 8 of speed 2."""
    state = decided([job("a", 2, left=800, speed=typed(1.0, 3.0))], TWO).state
    assert state.data["finish"]["a"] == pytest.approx(2 * 800 / (2 * 2))


def test_a_job_gets_no_type_on_which_it_cannot_run():
    """Its speed there is known to be 0."""
    jobs = [job("a", 4, left=9, speed=typed(1.0, 0.0)), job("b", 4, left=90, speed=typed(1.0, 0.0))]
    result = decided(jobs, TWO)
    assert {uid: place.gpu_type for uid, place in result.targets.items()} == {"a": "v100"}


def test_a_pinned_job_keeps_its_gpus():
    """It neither grows nor yields to any job."""
    kept = running(job("f", 2, 1, 4, left=1e9, speed=linear(1.0), preempt=Preempt.NO), "v100-0")
    assert amounts([kept, job("a", 1, 1, 4, left=10, speed=linear(1.0), submitted=1.0)]) == {"f": 2, "a": 2}


def test_a_job_on_a_draining_node_keeps_it():
    """There are no other GPUs for it."""
    drained = (replace(nodes(1, 4)[0], accepts=False),)
    for one in (job("a", 2, left=90, speed=linear(1.0)), job("a", 2)):
        assert amounts([running(one, "v100-0")], drained) == {"a": 2}


def test_a_cpu_only_job_on_a_draining_node_continues():
    """So does a job with GPUs; a new job cannot start there."""
    cpu = job("c", 0, nodes=1).evolve(status=Status.RUNNING, placement=Placement(("v100-0",), 0, None), run=1)
    result = decided([cpu, job("d", 0, nodes=1, submitted=1.0)], (replace(nodes(1, 4)[0], accepts=False),))
    assert result.targets == {"c": cpu.placement}


def test_cpu_only_jobs_get_remaining_cpus():
    """By submission; they are not in the fair-finish queue."""
    jobs = [job(f"c{i}", 0, cpus_per_unit=40, submitted=float(i)) for i in range(2)]
    result = decided([*jobs, job("a", 2, left=1, speed=linear(1.0))], nodes(1, 4))
    assert set(result.targets) == {"a", "c0"}
    assert "CPUs" in reason_words.words(result.reasons["c1"])


def test_a_job_that_no_node_can_hold_has_a_reason_of_its_own():
    """It waits, and delays no other job."""
    result = decided([job("big", 16, left=1, speed=linear(1.0)), job("a", 4, left=9, speed=linear(1.0))])
    assert result.targets.keys() == {"a"}
    assert "even empty" in reason_words.words(result.reasons["big"])


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_jobs_of_unknown_demand_have_their_part_of_the_gpus():
    """Half of the jobs have half of the GPUs, although jobs of known demand could use more."""
    known = [job(f"k{i}", 1, high=8, left=10, speed=linear(1.0)) for i in range(2)]
    given_to = amounts([*known, job("u0", 8, 1, 8), job("u1", 8, 1, 8)], nodes(1, 8))
    assert sum(given_to.get(uid, 0) for uid in ("u0", "u1")) == 4
    assert sum(given_to.values()) == 8


def test_gpus_that_the_pool_does_not_use_go_to_the_queue():
    """And the other way round."""
    jobs = [job("k", 1, high=8, left=10, speed=linear(1.0)), job("u", 2)]
    assert amounts(jobs, nodes(1, 8)) == {"k": 6, "u": 2}
    assert amounts([job("k", 1, left=10, speed=linear(1.0)), job("u", 7, 1, 7)], nodes(1, 8)) == {"k": 1, "u": 7}
    assert amounts([job("u", 7, 1, 7)], nodes(1, 8)) == {"u": 7}


def test_jobs_of_unknown_demand_grow_on_gpus_that_nobody_needs():
    """As far as scaling control allows; a job of known demand has them first, and `leftovers` may forbid it."""
    unknown = job("u", 2, high=8, speed=linear(1.0))
    assert amounts([unknown], nodes(1, 8)) == {"u": 8}
    assert amounts([unknown.evolve(speed=None)], nodes(1, 8)) == {"u": 2}
    assert amounts([unknown, job("k", 2, high=4, left=10, speed=linear(1.0))], nodes(1, 8)) == {"k": 4, "u": 4}
    still = Ares(AresParameters(leftovers="none"))
    assert run_round(snapshot([unknown], nodes(1, 8)), still, None).targets["u"].gpus == 2


def undeclared(uid, curve, gpus, service, **more):
    """A submission like ``curved``, of steps that no policy knows, whose restarts take a minute."""
    return replace(curved(uid, curve, gpus, service, **more), declared=False, restart_seconds=60.0)


def runs_of(submissions, gpus):
    """By uid, the seconds and the GPUs of each run of a job on one node, until the first job ends."""
    outcome = simulate(workload(*submissions), (Node("n0", "v100", gpus, 0, 0),), Ares(), FREE)
    end = min(one.finished for one in outcome.jobs)
    return {
        one.uid: [(run.ended - run.began, run.placement.gpus) for run in one.intervals if run.ended < end]
        for one in outcome.jobs
    }


def test_a_job_of_unknown_demand_that_has_grown_keeps_its_gpus():
    """A restart for fewer GPUs that nobody else needs would be followed by one for more, and so on without end."""
    ends, changes = seen([undeclared("u", line_of(8), 2, 5 * HOUR, high=8)], 8)
    assert changes == [(0.0, {"u": 8})]
    assert ends["u"] == pytest.approx(5 * HOUR / 8)


def test_jobs_of_unknown_demand_take_turns_with_the_gpus_that_nobody_needs():
    """For half an hour each; whoever has more of them falls behind, but loses them no sooner."""
    jobs = [undeclared(uid, line_of(16), 2, 20 * HOUR, high=16) for uid in ("a", "b", "c")]
    for found in runs_of(jobs, 16).values():
        assert min(seconds for seconds, _ in found) >= 1800.0
        assert {gpus for _, gpus in found} == {4, 8}


def test_jobs_of_unknown_demand_take_turns_with_their_requested_gpus():
    """Two gangs that share the pool's part run with more and fewer GPUs in turn, half an hour each."""
    jobs = [undeclared(uid, line_of(8), 8, 20 * HOUR, high=8) for uid in ("a", "b")]
    known = curved("k", line_of(2), 2, 40 * HOUR, high=2)
    found = runs_of([*jobs, known], 12)
    for uid in ("a", "b"):
        assert min(seconds for seconds, _ in found[uid]) >= 1800.0
        assert {gpus for _, gpus in found[uid]} == {2, 8}


def run_rounds(gpus, jobs, rounds, seconds=600.0):
    """GPU-seconds that each job receives in that many rounds without restart costs; no job ends."""
    attained = dict.fromkeys((one.uid for one in jobs), 0.0)
    state = None
    for number in range(rounds):
        now = number * seconds
        result = run_round(snapshot(jobs, nodes(1, gpus), now=now), Ares(), state)
        state = PolicyState(result.state.version, json.loads(json.dumps(dict(result.state.data))))
        for uid, place in result.targets.items():
            attained[uid] += place.gpus * seconds
        jobs = [
            one.evolve(
                status=Status.RUNNING if one.uid in result.targets else Status.HELD,
                placement=result.targets.get(one.uid),
                run_started=now if one.placement is None else one.run_started,
                attained={"v100": attained[one.uid]},
            )
            for one in jobs
        ]
    return attained


@pytest.mark.parametrize("known", [0, 1, 3])
def test_gangs_of_unknown_demand_alternate_and_have_equal_service(known):
    """Wide or narrow; where other jobs can use the rest, as much as under fair sharing."""
    jobs = [job("u0", 4), job("u1", 4), job("u2", 2)]
    jobs += [job(f"k{i}", 1, high=4, left=1e12, speed=linear(1.0)) for i in range(known)]
    attained = run_rounds(4, jobs, 600)
    unknown = [attained[uid] for uid in ("u0", "u1", "u2")]
    assert max(unknown) <= 1.1 * min(unknown)
    if known:
        assert unknown == pytest.approx([600 * 600.0 * 4 / len(jobs)] * 3, rel=0.1)


def test_a_pinned_job_of_unknown_demand_does_not_block_the_pool():
    """Even where it holds more GPUs than the pool has."""
    pinned = running(job("p", 4, preempt=Preempt.NO), "v100-0")
    known = [job(f"k{i}", 4, left=1e9, speed=linear(1.0), submitted=2.0) for i in range(6)]
    assert amounts([pinned, job("u", 4, submitted=1.0), *known], nodes(1, 8)) == {"p": 4, "u": 4}


def test_a_narrow_job_of_unknown_demand_does_not_block_a_gang():
    """It can never use its fair part, so it always has a deficit; the gang runs all the same."""
    attained = run_rounds(4, [job("narrow", 1), job("gang", 4, submitted=1.0)], 600)
    assert min(attained.values()) > 0.9 * max(attained.values())


def test_a_job_whose_speed_becomes_known_enters_the_queue_as_if_known_from_the_start():
    """Its finish time is by arrival and total demand; a job that would have ended leaves the reference system."""
    unknown, other = job("a", 2, left=100), job("k", 2, left=1e6, speed=linear(1.0))
    first = decided([unknown, other])
    assert first.state.data["since"].keys() == {"a"}
    measured = running(unknown.evolve(progress_steps=40.0, steps_per_second=2.0, attained={"v100": 40.0}), "v100-0")
    for now, takes_part in ((20.0, {"a", "k"}), (200.0, {"k"})):
        data = decided([measured, other], now=now, state=first.state).state.data
        assert data["finish"]["a"] == pytest.approx(40 + 60)
        assert not data["since"]
        assert set(active_in(data)) == takes_part
        assert only_clock(data)["virtual"] == now * 4 / 2


def test_demand_may_be_predicted_from_the_history_of_others():
    """Once the job has received twice its predicted service, its demand counts as unknown."""
    one = job("a", 2, expected_service=100.0)
    first = decided([one])
    assert first.state.data["finish"] == {"a": 100}
    going = running(one.evolve(attained={"v100": 150.0}), "v100-0")
    assert decided([going], now=75.0, state=first.state).state.data["finish"].keys() == {"a"}
    over = running(one.evolve(attained={"v100": 200.0}), "v100-0")
    data = decided([over], now=20.0, state=first.state).state.data
    assert data["since"].keys() == {"a"}
    clock = only_clock(data)
    assert (clock["weight"], clock["others"], clock["active"]) == (0.0, 1.0, [])


def test_a_job_whose_declared_steps_are_contradicted_loses_its_place_in_the_queue():
    """Its service so far counts: the job enters as one of unknown demand, or of the demand that is predicted."""
    liar = job("a", 1, left=2, speed=linear(1.0))
    first = decided([liar])
    assert first.state.data["finish"] == {"a": 2}
    going = running(liar.evolve(total_steps=None, attained={"v100": 400.0}), "v100-0")
    data = decided([going], now=400.0, state=first.state).state.data
    assert data["finish"] == {}
    assert only_clock(data)["virtual"] - data["since"]["a"] == pytest.approx(400)
    predicted = going.evolve(expected_service=1000.0)
    data = decided([predicted], now=400.0, state=first.state).state.data
    assert data["finish"]["a"] == pytest.approx(only_clock(data)["virtual"] - 400 + 1000)
    assert data["since"] == {}


# -- state, and any snapshot -------------------------------------------------------------------------------------------


def test_an_ended_job_remains_in_the_reference_system():
    """Until its virtual finish time it slows down the others there."""
    jobs = [job("a", 4, left=10, speed=linear(1.0)), job("b", 4, left=1000, speed=linear(1.0))]
    first = decided(jobs)
    second = decided([jobs[1]], now=10.0, state=first.state)
    assert only_clock(second.state.data)["virtual"] == pytest.approx(10 + (10.0 - 5.0) * 4 - 0.0)
    assert second.state.data["finish"].keys() == {"b"}


@pytest.mark.parametrize("left", [True, False], ids=["cancelled", "blocked and back"])
def test_a_job_that_is_gone_with_much_remaining_demand_leaves_the_reference_system(left):
    """It slows down no job there any more; one that returns is there once."""
    long, other = job("a", 1, left=1e9, speed=linear(1.0)), job("b", 1, left=1e6, speed=linear(1.0))
    state = decided([long, other]).state
    for now in (10.0, 20.0, 30.0):
        state = decided([other], now=now, state=state).state
        before = only_clock(state.data)
        assert active_in(state.data) == ["b"]
        if not left:
            state = decided([long, other], now=now, state=state).state
            assert sorted(active_in(state.data)) == ["a", "b"]
            assert only_clock(state.data)["weight"] == 2.0
    assert before["virtual"] == pytest.approx(30 * 4)


def test_a_job_of_an_earlier_versions_state_leaves_the_reference_system():
    """Such a state has no remaining demand."""
    long, other = job("a", 1, left=1e9, speed=linear(1.0)), job("b", 1, left=1e6, speed=linear(1.0))
    state = decided([long, other]).state
    old = PolicyState(state.version, {name: data for name, data in state.data.items() if name != "rest"})
    state = decided([long, other], now=10.0, state=old).state
    state = decided([other], now=20.0, state=state).state
    assert active_in(state.data) == ["b"]


@pytest.mark.parametrize(("attained", "remaining"), [(0.0, []), (99_000.0, ["a"])], ids=["cancelled", "ended"])
def test_remaining_demand_without_reported_progress_falls_by_service(attained, remaining):
    """The job declared its total, and counts as ended once it has received that."""
    silent = job("a", 1, total_steps=1e5, speed=linear(1.0))
    state = decided([silent]).state
    state = decided([silent.evolve(attained={"v100": attained})], now=10.0, state=state).state
    state = decided([], now=20.0, state=state).state
    assert active_in(state.data) == remaining


def test_a_job_that_returns_with_little_remaining_demand_is_there_once():
    """It was assumed to have ended, and enters anew."""
    jobs = [job("a", 1, left=100, speed=linear(1.0)), job("b", 1, left=1e6, speed=linear(1.0))]
    away = decided(jobs[1:], now=10.0, state=decided(jobs).state).state
    assert only_clock(away.data)["weight"] == 2.0
    back = decided(jobs, now=20.0, state=away).state.data
    assert only_clock(back)["weight"] == 2.0
    assert back["finish"]["a"] == only_clock(away.data)["virtual"] + 100


@pytest.mark.parametrize("data", [{"gps": 3}, {"gps": {}, "finish": {}, "since": {}}, {"finish": {}}])
def test_a_damaged_state_is_dropped(data):
    """Neither another version nor another layout raises."""
    for version in (1, 99):
        assert decided([job("a", 1, left=1, speed=linear(1.0))], state=PolicyState(version, data)).targets


@settings(deadline=None)
@given(snapshots(blocked=True, free=True), st.sampled_from(("none", "efficient", "faster")), st.data())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(view, leftovers, data):
    """The same input gives the same answer; the state is JSON, and later decisions do not change it."""
    if data.draw(st.booleans()):
        speeds, trials = st.sampled_from((ByGpus(()), known_at(1), WORSE)), data.draw(st.booleans())
        jobs = tuple(one.evolve(speed=data.draw(speeds), learns_speed=True, profiled=trials) for one in view.jobs)
        view = replace(view, jobs=jobs)
    policy = Ares(AresParameters(leftovers=leftovers))
    first = run_round(view, policy, None)
    text = json.dumps(dict(first.state.data))
    again = run_round(view, policy, None)
    assert (again.decision, again.targets) == (first.decision, first.targets)
    later = replace(view, now=view.now + 60.0, round=view.round + 1)
    run_round(later, policy, PolicyState(first.state.version, json.loads(text)))
    run_round(later, policy, first.state)
    assert json.dumps(dict(first.state.data)) == text


def test_a_job_gets_fewer_gpus_rather_than_more_nodes():
    """A job that cannot have fewer takes more nodes."""
    pinned = [running(job(f"p{i}", 2, left=1e6, speed=linear(1.0), preempt=Preempt.NO), f"v100-{i}") for i in range(2)]
    assert amounts([*pinned, job("a", 4, 1, 4, left=9, speed=linear(1.0))], nodes(2))["a"] == 2
    assert amounts([*pinned, job("a", 4, left=9, speed=linear(1.0))], nodes(2))["a"] == 4


# -- restarts by choice ------------------------------------------------------------------------------------------------


def on(gpus, *, left, restart=None, high=8, **more):
    """A job that asked for four GPUs, and runs on so many of one node."""
    one = job("a", 4, 1, high, left=left, speed=linear(1.0), restart_seconds=restart, **more)
    return one.evolve(status=Status.RUNNING, placement=Placement(("v100-0",), gpus, "v100"), run=1, run_started=0.0)


@pytest.mark.parametrize(
    ("left", "restart", "gpus"), [(1000, 0.0, 8), (1000, 120.0, 8), (1000, 130.0, 4), (400, None, 4), (1000, None, 8)]
)
def test_a_running_job_is_doubled_only_if_it_then_ends_earlier(left, restart, gpus):
    """1,000 steps take 250 s on four GPUs, 125 s on eight; a restart that was not measured is assumed to take 60 s."""
    assert amounts([on(4, left=left, restart=restart)], nodes(1, 8)) == {"a": gpus}


@pytest.mark.parametrize(("restart", "cluster", "gpus"), [(0.0, 5, 5), (1.0, 5, 4), (1.0, 6, 6), (1e9, 6, 4)])
def test_a_running_job_grows_by_leftovers_by_half_at_least(restart, cluster, gpus):
    """From four to five GPUs is not worth a restart, from four to six is; where restarts cost nothing, both are."""
    assert amounts([on(4, left=1e6, restart=restart)], nodes(1, cluster)) == {"a": gpus}


def test_a_running_job_continues_on_leftovers():
    """It keeps five of eight GPUs where one more is left, and yields one to a job that waits."""
    one = on(5, left=1e6, restart=1e6)
    others = [job("b", gpus, left=1e9, speed=linear(1.0), submitted=1.0) for gpus in (2, 4)]
    assert amounts([one, others[0]], nodes(1, 8), now=2.0) == {"a": 5, "b": 2}
    assert amounts([one, others[1]], nodes(1, 8), now=2.0) == {"a": 4, "b": 4}


def test_a_starting_job_has_all_leftovers():
    """It restarts anyway."""
    one = job("a", 4, 1, 8, left=1e6, speed=linear(1.0), restart_seconds=1e9)
    assert amounts([one], nodes(1, 5)) == {"a": 5}


@pytest.mark.parametrize(("restart", "gpu_type"), [(0.0, "a100"), (100.0, "a100"), (170.0, "v100")])
def test_a_running_job_moves_to_a_faster_type_only_if_it_then_ends_earlier(restart, gpu_type):
    """1,000 steps take 250 s on the slow type, 83 s on the fast one."""
    one = running(job("a", 4, left=1000, speed=typed(1.0, 3.0), restart_seconds=restart), "v100-0")
    assert decided([one], TWO).targets["a"].gpu_type == gpu_type


def test_a_job_of_unknown_demand_grows_if_it_has_run_for_long():
    """Its remaining time is taken to be the time that it has run."""
    for ran, gpus in ((100.0, 2), (1000.0, 4)):
        one = on(2, left=None, restart=60.0, high=4).evolve(total_steps=None, ran_seconds=ran, speed=None)
        assert amounts([one], nodes(1, 4)) == {"a": gpus}


@pytest.mark.parametrize("known", [{"left": 1e6}, {}], ids=["known demand", "unknown demand"])
def test_a_job_leaves_a_type_on_which_it_does_not_run(known):
    """Whatever the restart costs."""
    one = running(job("a", 4, speed=typed(0.0, 1.0), restart_seconds=1e9, **known), "v100-0")
    assert decided([one], TWO).targets["a"].gpu_type == "a100"
