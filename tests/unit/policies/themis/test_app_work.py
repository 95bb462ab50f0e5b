"""What an agent knows of its app: work, phases and slowdowns, from the jobs and the tuner."""

import math

import pytest

from metasched.core.apps import App, Bracket, Phase, TunerSettings
from metasched.core.distance import Level, distance
from metasched.core.model import Placement, Status
from metasched.simulator.records import Locality, LocatedSpeed
from policies.themis.app_work import UNKNOWN_WORK, Rates, app_work
from policies.themis.finish_time import ClampedSlowdown, LaterPhase, halving_phases
from policies.themis.job_slowdown import MeasuredSlowdowns, Samples, known_slowdown
from tests.builders import ByGpus, job, linear, nodes, running, snapshot

FLAT = ClampedSlowdown((1.0, 1.0, 1.0, 1.0))


def app_of(*jobs, **fields):
    attained = sum(one.attained_service for one in jobs)
    known = {"first_submitted": 0.0, "attained_service": attained, "live_integral": 0.0}
    return App("a", "a", "ann", **{"members": tuple(one.uid for one in jobs)} | known | fields)


def work_of(*jobs, now=0.0, types=("v100",), **fields):
    return app_work(
        app_of(*jobs, **fields), jobs, Rates.of(jobs, types), snapshot(jobs, now=now), slowdown=lambda _: FLAT
    )


def trial(uid, seconds, done, **fields):
    """A trial of so many seconds a step on one GPU."""
    return job(uid, 1, 1, 8, speed=linear(1 / seconds), total_steps=60.0, progress_steps=float(done), **fields)


def test_phases_are_those_of_the_tuners_bracket():
    """The app of section 4.3.3: eight steps, then two trials to step 24, then one to step 60."""
    seconds = (80, 100, 100, 120)
    trials = [trial(f"t{at}", one, 0) for at, one in enumerate(seconds)]
    uids = tuple(one.uid for one in trials)
    bracket = Bracket(uids, (Phase(4, 8, 8), Phase(2, 24, 8), Phase(1, 60, 8)), 0)
    work = work_of(*trials, brackets=(bracket,))
    first = [one.phases[0][0]._replace(iterations_left=8.0) for one in (work_of(one) for one in trials)]
    assert work.phases == halving_phases(first, [LaterPhase(16), LaterPhase(36)])
    later = work_of(*trials[1:3], brackets=(Bracket(uids, bracket.phases, 1),))
    assert [len(phase) for phase in later.phases] == [2, 1]
    assert [phase[0].iterations_left for phase in later.phases] == [24, 36]


def test_held_trials_wait_for_the_last_one():
    """One trial is left in its phase; two continue into the next one, with twice as many GPUs."""
    bracket = Bracket(("t0", "t1", "gone", "t3"), (Phase(4, 8, 1), Phase(2, 24, 2)), 0)
    work = work_of(trial("t1", 100, 6), brackets=(bracket,))
    assert [[(one.iterations_left, one.most_gpus) for one in phase] for phase in work.phases] == [
        [(2, 8)],
        [(16, 2), (16, 2)],
    ]


def test_the_demand_is_that_of_the_whole_life():
    """The winner of four trials of two GPUs is alone now; so is the last trial of an app without phases."""
    bracket = Bracket(("t0", "t1", "t2", "t3"), (Phase(4, 8, 2), Phase(2, 24, 4), Phase(1, 60, 6)), 2)
    assert work_of(trial("t1", 100, 30), brackets=(bracket,)).most_gpus == 8
    assert work_of(trial("t1", 100, 30), members=("t0", "t1", "t2")).most_gpus == 24


def test_without_phases_trials_train_to_the_end_that_their_tuner_says():
    """Performance curves: the latest end; else what a trial declares."""
    tuned = TunerSettings("curve", {"steps": 100.0})
    jobs = (trial("t0", 1, 10, tuner=tuned), trial("t1", 1, 10))
    (phase,) = work_of(*jobs, tuner=tuned).phases
    assert [one.iterations_left for one in phase] == [90, 50]


def test_the_budget_counts_what_was_done_and_who_is_gone():
    """Done and left at one GPU's speed, and the service of members that are gone."""
    one = trial("t0", 2, 20, attained={"v100": 50.0})
    work = work_of(one, attained_service=80.0, now=10.0)
    assert (work.budget, work.elapsed) == (30.0 + 40.0 + 80.0, 10.0)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, UNKNOWN_WORK),
        ({"attained": {"v100": 9000.0}}, 9000.0),
        ({"expected_service": 500.0, "attained": {"v100": 100.0}}, 400.0),
        ({"expected_service": 50.0, "attained": {"v100": 7000.0}}, 7000.0),
        ({"total_steps": 10.0, "expected_service": 500.0}, 500.0),
        ({"total_steps": 10.0, "progress_steps": 5.0, "attained": {"v100": 100.0}}, 100.0),
        ({"total_steps": 0.0, "progress_steps": 500.0, "speed": linear(1.0)}, 5.0),
    ],
)
def test_unknown_work_is_assumed(fields, left):
    """From similar jobs, from what was received; a job that lives is never done."""
    (phase,) = work_of(job("a", 1, **fields)).phases
    assert phase[0].work == pytest.approx(left)


def test_types_differ_in_speed():
    """The reference type is the one that most jobs know; others have the mean ratio."""
    jobs = [
        job("a", 1, speed=ByGpus(((1, 4.0),), "a100")),
        job("b", 1, speed=Both(2.0, 6.0)),
        job("c", 1, speed=Both(1.0, 3.0)),
    ]
    rates = Rates.of(jobs, ("v100", "a100"))
    assert rates.reference == "a100"
    assert rates.speeds == {"a100": 1.0, "v100": pytest.approx(1 / 3)}
    assert rates.seconds_per_step(jobs[0]) == 0.25
    assert rates.seconds_per_step(job("d", 1)) is None


class Both:
    """Steps per second on one GPU of each type."""

    def __init__(self, v100, a100):
        self.known = {"v100": v100, "a100": a100}

    def steps_per_second(self, gpu_type, spread):
        return self.known[gpu_type] * sum(spread)


@pytest.mark.parametrize(
    ("gpus", "racks", "slot", "level"),
    [
        (1, [None], 1, Level.SLOT),
        (2, ["r"], 1, Level.NODE),
        (2, ["r"], 2, Level.SLOT),
        (4, [None, None], 1, Level.RACK),
        (2, ["r", "r"], 2, Level.RACK),
        (2, ["r", "s"], 2, Level.CLUSTER),
    ],
)
def test_distances(gpus, racks, slot, level):
    """Slots, nodes and racks."""
    assert distance(gpus, racks, slot) is level


def test_known_slowdowns_follow_from_speeds_at_distances():
    """A job with a cost of distance of its own; other jobs know what numbers of GPUs cost."""
    located = LocatedSpeed(linear(1.0), Locality(rack=0.5, cluster=0.25, node=0.8))
    found = known_slowdown(job("a", 4, 1, 8, speed=located), "v100")
    assert found == {Level.NODE: 1.25, Level.RACK: 2.0, Level.CLUSTER: 4.0}
    assert known_slowdown(job("a", 4, 1, 8), "v100") == {}


def test_measured_slowdowns_limit_known_ones():
    """Three reports over two nodes count; the mean fades, and apps that are gone are forgotten."""
    fast = linear(1.0)
    one = running(job("a", 4, speed=fast), "v100-0", "v100-1").evolve(steps_per_second=2.0)
    measured, cluster = MeasuredSlowdowns(), {node.name: node for node in nodes(2)}
    for number in range(3):
        expected = 1.0 if number < 3 else 2.0
        assert measured.of("a", one, "v100")(Level.RACK) == expected
        measured = measured.after({"a": [one]}, cluster, 1)
    assert measured.of("a", one, "v100").factors == (1.0, 1.0, 2.0, 2.0)
    assert MeasuredSlowdowns.from_json(measured.to_json()) == measured
    assert measured.of("b", one, "v100")(Level.RACK) == 1.0
    assert measured.after({}, cluster, 1).samples == {}
    narrow = job("a", 4, max_nodes=1)
    assert measured.of("a", narrow, "v100").factors[Level.RACK] == math.inf


def test_no_slowdown_is_measured_where_speeds_are_not_known():
    """Neither of waiting jobs, nor on nodes that are gone, nor without a speed on one node."""
    one = running(job("a", 4, speed=linear(1.0)), "v100-0", "v100-1").evolve(steps_per_second=2.0)
    cluster = {node.name: node for node in nodes(2)}
    others = (
        one.evolve(speed=None),
        one.evolve(steps_per_second=None),
        one.evolve(co_runner="b"),
        one.evolve(placement=Placement(("v100-0", "gone"), 2, "v100")),
        one.evolve(status=Status.HELD, placement=None),
    )
    assert MeasuredSlowdowns().after({"a": others}, cluster, 1).samples == {}


def test_old_samples_fade():
    """After many samples of 1, some of 2 move the mean."""
    samples = Samples()
    for slowdown in [1.0] * 200 + [2.0] * 64:
        samples = samples.plus(slowdown)
    assert samples.count == pytest.approx(64)
    assert samples.mean > 1.5
