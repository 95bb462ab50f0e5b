from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Status
from metasched.core.retention import is_pinned
from metasched.simulator.simulation import simulate
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.las import Las, LasParameters
from tests.unit.workloads import Chaos, ChaosParameters, clusters, settings, workloads

ROUNDS_OF_CHAOS = 300
IDLE_ROUNDS = 100  # fewer than usual before a simulation without progress ends, to save time

ENDING = (
    Fifo(),
    Fifo(FifoParameters(backfill=True, elastic=False)),
    Las(),
    Las(LasParameters(queue_thresholds_gpu_seconds=(20.0, 100.0), promote_knob=2.0)),
)


@pytest.fixture(autouse=True, scope="module")
def _few_idle_rounds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metasched.simulator.simulation.MAX_IDLE_ROUNDS", IDLE_ROUNDS)
        yield


def chaos():
    return st.builds(lambda seed: Chaos(ChaosParameters(seed=seed)), st.integers(0, 1000))


class TooManyRoundsError(Exception):
    """A simulation under a random policy need not end."""


class Recorder:
    """The snapshot and the result of each round."""

    def __init__(self, limit=float("inf")):
        self.rounds = []
        self.limit = limit

    def __call__(self, snapshot, result):
        self.rounds.append((snapshot, result))
        if len(self.rounds) > self.limit:
            raise TooManyRoundsError

    @property
    def snapshots(self):
        return [snapshot for snapshot, _ in self.rounds]


def recorded(load, cluster, policy, behaviour):
    """All rounds of a simulation, and its outcome; None if it did not end within ``ROUNDS_OF_CHAOS``."""
    recorder = Recorder(ROUNDS_OF_CHAOS if isinstance(policy, Chaos) else float("inf"))
    try:
        return recorder, simulate(load, cluster, policy, behaviour, watch=recorder)
    except TooManyRoundsError:
        return recorder, None


def without_wall_times(outcome):
    return replace(outcome, policy_seconds=0.0, engine_seconds=0.0, total_seconds=0.0)


def check_held_gpus(snapshots):
    """In no snapshot do jobs hold more GPUs of a node than it has, and at most two jobs hold the same GPUs."""
    for snapshot in snapshots:
        held = defaultdict(int)
        for job in snapshot.jobs:
            other = snapshot.job.get(job.co_runner)
            if other is not None:
                assert snapshot.sharing
                assert other.co_runner == job.uid
                assert other.placement == job.placement is not None
            if job.placement is not None and (other is None or job.uid < other.uid):
                for name, gpus in job.placement.node_gpus:
                    held[name] += gpus
        assert all(held[node.name] <= node.gpus for node in snapshot.nodes)


def check_gangs(outcome, jobs):
    """Every interval has a number of GPUs that its job accepts, and begins when the one before has ended."""
    for record in outcome.jobs:
        job = jobs[record.uid]
        assert all(job.min_gpus <= interval.placement.gpus <= job.max_gpus for interval in record.intervals)
        instants = [record.submitted, *(t for interval in record.intervals for t in (interval.began, interval.ended))]
        assert instants == sorted(instants)
        assert record.finished in (None, instants[-1])


def check_progress(snapshots, behaviour):
    """Rounds follow each other, a stop takes no longer than its checkpoint, and no job loses steps."""
    instants = [snapshot.now for snapshot in snapshots]
    assert instants == sorted(instants)
    done = defaultdict(float)
    for snapshot in snapshots:
        for job in snapshot.jobs:
            assert done[job.uid] <= job.progress_steps <= job.total_steps
            assert job.stop_requested is None or snapshot.now < job.stop_requested + behaviour.checkpoint_seconds
            done[job.uid] = job.progress_steps


def check_pinned_jobs(outcome, jobs):
    """A job that cannot be preempted runs in one interval."""
    pinned = {uid for uid, job in jobs.items() if is_pinned(job.evolve(status=Status.RUNNING))}
    assert all(len(job.intervals) <= 1 and not job.preemptions for job in outcome.jobs if job.uid in pinned)


def check_losses(snapshots, outcome, behaviour):
    """A job loses steps at failures of its nodes only, and at each at most the time between two checkpoints."""
    failures = {record.uid: record.failures for record in outcome.jobs}
    done = defaultdict(float)
    for snapshot in snapshots:
        for job in snapshot.jobs:
            assert job.progress_steps >= done[job.uid] or failures[job.uid]
            done[job.uid] = job.progress_steps
    every = behaviour.checkpoint_every or 0.0
    assert all(record.lost_seconds <= record.failures * every + 1e-6 for record in outcome.jobs)


def check_round_times(outcome, behaviour):
    """Without early rounds, rounds are a multiple of the length apart; with them, at least the least time."""
    gaps = [after.at - before.at for before, after in pairwise(outcome.rounds)]
    length = behaviour.round_seconds
    if behaviour.early_rounds:
        assert all(gap >= min(behaviour.min_round_seconds, length) - 1e-6 for gap in gaps)
    else:
        assert all(gap == pytest.approx(round(gap / length) * length) and gap >= length - 1e-6 for gap in gaps)


@given(st.data())
def test_without_failures_gpus_gangs_and_progress_are_consistent(data):
    """Under any policy, with and without co-located jobs."""
    load, cluster = data.draw(workloads(sharing=True)), data.draw(clusters())
    behaviour = data.draw(settings(failures=False))
    recorder, outcome = recorded(load, cluster, data.draw(st.one_of(chaos(), st.sampled_from(ENDING))), behaviour)
    check_held_gpus(recorder.snapshots)
    check_progress(recorder.snapshots, behaviour)
    if outcome is not None:
        jobs = {s.job.uid: s.job for s in load.submissions}
        check_gangs(outcome, jobs)
        check_pinned_jobs(outcome, jobs)


@given(st.data())
def test_with_failures_gpus_gangs_losses_and_rounds_are_consistent(data):
    """Under any policy, with and without co-located jobs; losses and round times where the policy is deterministic."""
    load, cluster = data.draw(workloads(sharing=True)), data.draw(clusters())
    behaviour = data.draw(settings())
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    recorder, outcome = recorded(load, cluster, policy, behaviour)
    check_held_gpus(recorder.snapshots)
    if outcome is not None:
        check_gangs(outcome, {s.job.uid: s.job for s in load.submissions})
    if policy in ENDING:
        check_losses(recorder.snapshots, outcome, behaviour)
        check_round_times(outcome, behaviour)


@given(st.data())
def test_intervals_on_one_node_never_hold_more_than_its_gpus(data):
    """Between two rounds, too: starts and stops are those of the jobs' records."""
    behaviour = replace(data.draw(settings()), sharing=False)
    cluster = data.draw(clusters())
    outcome = simulate(data.draw(workloads()), cluster, data.draw(st.sampled_from(ENDING)), behaviour)
    changes = defaultdict(list)
    for interval in (interval for job in outcome.jobs for interval in job.intervals):
        for name, gpus in interval.placement.node_gpus:
            changes[name] += [(interval.began, gpus), (interval.ended, -gpus)]
    for node in cluster:
        held = 0
        for _, change in sorted(changes[node.name]):
            held += change
            assert held <= node.gpus


@given(st.data())
def test_no_work_is_lost_or_done_twice(data):
    """At one step per second anywhere, the time held without overheads and losses is the number of steps.

    Stops, moves and failures do not change that.
    """
    load = data.draw(workloads(sharing=True))
    constant = [
        replace(s, training=replace(s.training, rate=1.0, fast=1.0, colocated=1.0, every=1e9, per_gpu=False))
        for s in load.submissions
    ]
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    behaviour = data.draw(settings())
    _, outcome = recorded(replace(load, submissions=tuple(constant)), data.draw(clusters()), policy, behaviour)
    total = {s.job.uid: s.training.total for s in constant}
    for record in outcome.jobs if outcome else ():
        held = sum(interval.ended - interval.began for interval in record.intervals)
        trained = held - record.overhead_seconds - record.lost_seconds
        assert trained == pytest.approx(total[record.uid], abs=1e-6) or record.finished is None
        assert trained >= -1e-6


@given(st.data())
def test_speed_times_time_of_all_intervals_is_the_work(data):
    """Without costs, the sum of speed times time over all intervals is the number of steps, at any speeds."""
    load = data.draw(workloads())
    whole = [replace(s, restart_seconds=None, training=replace(s.training, every=1e9)) for s in load.submissions]
    behaviour = replace(data.draw(settings(failures=False, costs=False)), sharing=False)
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    _, outcome = recorded(replace(load, submissions=tuple(whole)), data.draw(clusters()), policy, behaviour)
    trainings = {s.job.uid: s.training for s in whole}
    for record in outcome.jobs if outcome else ():
        training = trainings[record.uid]
        paces = [(training.pace(0.0, interval.placement).steps_per_second, interval) for interval in record.intervals]
        done = sum(rate * (interval.ended - interval.began) for rate, interval in paces)
        assert done == pytest.approx(training.total, abs=1e-6) or record.finished is None


@given(st.data())
def test_fifo_and_las_finish_every_job_that_fits(data):
    """All jobs that ask for GPUs are complete, and none is missing in the outcome."""
    load = data.draw(workloads())
    load = replace(load, submissions=tuple(s for s in load.submissions if s.job.gpus))
    outcome = simulate(load, data.draw(clusters()), data.draw(st.sampled_from(ENDING)), data.draw(settings()))
    assert [record.uid for record in outcome.jobs] == [s.job.uid for s in load.submissions]
    assert all(record.finished is not None for record in outcome.jobs)


@given(st.data())
def test_the_same_seed_gives_the_same_outcome(data):
    """To the last bit, failures included; a function that watches the rounds changes nothing."""
    load, cluster, behaviour = data.draw(workloads(sharing=True)), data.draw(clusters()), data.draw(settings())
    policy = data.draw(st.sampled_from(ENDING))
    first = simulate(load, cluster, policy, behaviour)
    again = simulate(load, cluster, policy, behaviour, watch=Recorder())
    assert repr(without_wall_times(first)) == repr(without_wall_times(again))


@given(st.data())
def test_with_backfill_no_gpu_idles_while_a_job_of_one_gpu_waits(data):
    """After each round without failures."""
    load, cluster = data.draw(workloads()), data.draw(clusters())
    policy = data.draw(st.sampled_from((Las(), Fifo(FifoParameters(backfill=True)))))
    recorder, _ = recorded(load, cluster, policy, replace(data.draw(settings(failures=False)), sharing=False))
    for snapshot, result in recorder.rounds:
        used = sum(placement.gpus for placement in result.targets.values())
        free = sum(node.gpus for node in snapshot.nodes) - used
        waiting = [j for j in snapshot.jobs if j.min_gpus == 1 == j.gpus and j.uid not in result.targets]
        assert not (waiting and free)


@given(st.data())
def test_skipped_rounds_of_a_steady_policy_change_nothing(data):
    """FIFO has rounds after events only, and the jobs' records are those of rounds at all times."""
    load, cluster = data.draw(workloads()), data.draw(clusters())
    load = replace(load, submissions=tuple(s for s in load.submissions if s.job.gpus))
    behaviour = replace(data.draw(settings()), min_round_seconds=0.0)

    class NotSteady(Fifo):
        steady = False

    assert Fifo.steady
    skipping, full = (simulate(load, cluster, policy, behaviour) for policy in (Fifo(), NotSteady()))
    assert skipping.jobs == full.jobs
    assert len(skipping.rounds) <= len(full.rounds)
