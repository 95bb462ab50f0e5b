from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

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

ENDING = (
    Fifo(),
    Fifo(FifoParameters(backfill=True, elastic=False)),
    Las(),
    Las(LasParameters(queue_thresholds_gpu_seconds=(20.0, 100.0), promote_knob=2.0)),
)


def chaos():
    return st.builds(lambda seed: Chaos(ChaosParameters(seed=seed)), st.integers(0, 1000))


class TooLongError(Exception):
    """Chaos need not come to an end."""


class Watch:
    """What happened, round by round, as far as a snapshot shows it."""

    def __init__(self, limit=float("inf")):
        self.seen = []
        self.limit = limit

    def __call__(self, snapshot, result):
        self.seen.append((snapshot, result))
        if len(self.seen) > self.limit:
            raise TooLongError

    @property
    def snapshots(self):
        return [snapshot for snapshot, _ in self.seen]


def watched(load, cluster, policy, behaviour):
    """All rounds of a simulation, and its outcome if it came to an end in time."""
    watch = Watch(ROUNDS_OF_CHAOS if isinstance(policy, Chaos) else float("inf"))
    try:
        return watch, simulate(load, cluster, policy, behaviour, watch=watch)
    except TooLongError:
        return watch, None


def plain(outcome):
    """An outcome without the real time that it took."""
    return replace(outcome, policy_seconds=0.0, engine_seconds=0.0, total_seconds=0.0)


def stays_of(outcome):
    return [(job.uid, stay) for job in outcome.jobs for stay in job.intervals]


@given(st.data())
def test_no_gpu_is_held_twice_but_by_the_two_of_a_pair(data):
    """In no snapshot do jobs hold more GPUs of a node than it has, and at most two have the same ones."""
    sharing = data.draw(st.booleans())
    behaviour = replace(data.draw(settings()), sharing=sharing)
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    watch, _ = watched(data.draw(workloads(sharing=sharing)), data.draw(clusters()), policy, behaviour)
    for snapshot in watch.snapshots:
        held = defaultdict(int)
        for job in snapshot.jobs:
            other = snapshot.job.get(job.co_runner)
            if other is not None:
                assert sharing
                assert other.co_runner == job.uid
                assert other.placement == job.placement is not None
            if job.placement is not None and (other is None or job.uid < other.uid):
                for name, gpus in job.placement.node_gpus:
                    held[name] += gpus
        assert all(held[node.name] <= node.gpus for node in snapshot.nodes)


@given(st.data())
def test_allocations_of_one_node_never_overlap_beyond_its_gpus(data):
    """Also between two rounds, whatever is started and stopped: seen from the record of all allocations."""
    behaviour = replace(data.draw(settings()), sharing=False)
    policy = data.draw(st.one_of(st.sampled_from(ENDING)))
    cluster = data.draw(clusters())
    _, outcome = watched(data.draw(workloads()), cluster, policy, behaviour)
    changes = defaultdict(list)
    for _, stay in stays_of(outcome):
        for name, gpus in stay.placement.node_gpus:
            changes[name] += [(stay.began, gpus), (stay.ended, -gpus)]
    for node in cluster:
        held = 0
        for _, change in sorted(changes[node.name]):
            held += change
            assert held <= node.gpus


@given(st.data())
def test_gangs_are_whole_and_nobody_is_at_two_places(data):
    """Every allocation has an amount that its job takes, and begins when the one before has ended."""
    load = data.draw(workloads(sharing=True))
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    _, outcome = watched(load, data.draw(clusters()), policy, data.draw(settings()))
    jobs = {s.job.uid: s.job for s in load.submissions}
    for record in outcome.jobs if outcome else ():
        job = jobs[record.uid]
        assert all(job.min_gpus <= stay.placement.gpus <= job.max_gpus for stay in record.intervals)
        instants = [record.submitted, *(t for stay in record.intervals for t in (stay.began, stay.ended))]
        assert instants == sorted(instants)
        assert record.finished in (None, instants[-1])


@given(st.data())
def test_time_and_progress_only_move_on(data):
    """Rounds come one after the other, a stop takes no longer than its checkpoint, and no job falls back."""
    behaviour = data.draw(settings(failures=False))
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    watch, _ = watched(data.draw(workloads(sharing=True)), data.draw(clusters()), policy, behaviour)
    instants = [snapshot.now for snapshot in watch.snapshots]
    assert instants == sorted(instants)
    done = defaultdict(float)
    for snapshot in watch.snapshots:
        for job in snapshot.jobs:
            assert done[job.uid] <= job.progress_steps <= job.total_steps
            assert job.stop_requested is None or snapshot.now < job.stop_requested + behaviour.checkpoint_seconds
            done[job.uid] = job.progress_steps


@given(st.data())
def test_after_a_failure_at_most_one_interval_of_checkpoints_is_lost(data):
    """A job that fell back since the last round was on a node that failed, and had not trained that far for long."""
    behaviour = data.draw(settings())
    watch, outcome = watched(
        data.draw(workloads()), data.draw(clusters()), data.draw(st.sampled_from(ENDING)), behaviour
    )
    failures = {record.uid: record.failures for record in outcome.jobs}
    done = defaultdict(float)
    for snapshot in watch.snapshots:
        for job in snapshot.jobs:
            assert job.progress_steps >= done[job.uid] or failures[job.uid]
            done[job.uid] = job.progress_steps
    every = behaviour.checkpoint_every or 0.0
    assert all(record.lost_seconds <= record.failures * every + 1e-6 for record in outcome.jobs)


@given(st.data())
def test_no_work_is_lost_or_done_twice(data):
    """At one step per second anywhere, the time held without overheads and losses is the number of steps.

    Whatever stops, moves and fails in between.
    """
    load = data.draw(workloads(sharing=True))
    even = [
        replace(s, training=replace(s.training, rate=1.0, fast=1.0, beside=1.0, every=1e9, per_gpu=False))
        for s in load.submissions
    ]
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    behaviour = data.draw(settings())
    _, outcome = watched(replace(load, submissions=tuple(even)), data.draw(clusters()), policy, behaviour)
    total = {s.job.uid: s.training.total for s in even}
    for record in outcome.jobs if outcome else ():
        held = sum(stay.ended - stay.began for stay in record.intervals)
        trained = held - record.overhead_seconds - record.lost_seconds
        assert trained == pytest.approx(total[record.uid], abs=1e-6) or record.finished is None
        assert trained >= -1e-6


@given(st.data())
def test_speeds_of_all_places_add_up_to_the_work(data):
    """Where nothing costs time, speed x time over all allocations is the number of steps, whatever the speeds."""
    load = data.draw(workloads())
    whole = [replace(s, restart_seconds=None, training=replace(s.training, every=1e9)) for s in load.submissions]
    behaviour = replace(data.draw(settings(failures=False, costs=False)), sharing=False)
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    _, outcome = watched(replace(load, submissions=tuple(whole)), data.draw(clusters()), policy, behaviour)
    trainings = {s.job.uid: s.training for s in whole}
    for record in outcome.jobs if outcome else ():
        training = trainings[record.uid]
        paces = [(training.pace(0.0, stay.placement).steps_per_second, stay) for stay in record.intervals]
        done = sum(rate * (stay.ended - stay.began) for rate, stay in paces)
        assert done == pytest.approx(training.total, abs=1e-6) or record.finished is None


@given(st.data())
def test_every_job_that_fits_ends_under_policies_that_starve_nobody(data):
    """FIFO and LAS lose no job, and finish all of them; a job without GPUs needs no speed that is none."""
    load = data.draw(workloads())
    runs = [s for s in load.submissions if s.job.gpus]
    load = replace(load, submissions=tuple(runs))
    outcome = simulate(load, data.draw(clusters()), data.draw(st.sampled_from(ENDING)), data.draw(settings()))
    assert [record.uid for record in outcome.jobs] == [s.job.uid for s in load.submissions]
    assert all(record.finished is not None for record in outcome.jobs)


@given(st.data())
def test_the_same_seed_gives_the_same_outcome(data):
    """To the last bit, failures included; and the watcher changes nothing."""
    load, cluster, behaviour = data.draw(workloads(sharing=True)), data.draw(clusters()), data.draw(settings())
    policy = data.draw(st.sampled_from(ENDING))
    first = simulate(load, cluster, policy, behaviour)
    assert repr(plain(first)) == repr(plain(simulate(load, cluster, policy, behaviour, watch=Watch())))


@given(st.data())
def test_no_gpu_idles_that_a_waiting_job_could_use(data):
    """With backfill, at the end of each round no job of one GPU waits for one that nobody is to have."""
    load, cluster = data.draw(workloads()), data.draw(clusters())
    policy = data.draw(st.sampled_from((Las(), Fifo(FifoParameters(backfill=True)))))
    watch, _ = watched(load, cluster, policy, replace(data.draw(settings(failures=False)), sharing=False))
    for snapshot, result in watch.seen:
        used = sum(place.gpus for place in result.targets.values())
        free = sum(node.gpus for node in snapshot.nodes) - used
        narrow = [j for j in snapshot.jobs if j.min_gpus == 1 == j.gpus and j.uid not in result.targets]
        assert not (narrow and free)


@given(st.data())
def test_rounds_that_a_steady_policy_is_spared_change_nothing(data):
    """FIFO is asked only when something happened, and jobs fare as if it had been asked in every round."""
    load, cluster = data.draw(workloads()), data.draw(clusters())
    load = replace(load, submissions=tuple(s for s in load.submissions if s.job.gpus))
    behaviour = replace(data.draw(settings()), min_round_seconds=0.0)

    class Restless(Fifo):
        steady = False

    assert Fifo.steady
    spared, asked = (simulate(load, cluster, policy, behaviour) for policy in (Fifo(), Restless()))
    assert spared.jobs == asked.jobs
    assert len(spared.rounds) <= len(asked.rounds)


@given(st.data())
def test_rounds_keep_to_their_grid(data):
    """Without early rounds all of them are whole rounds apart; with them, no two are closer than the least distance."""
    behaviour = data.draw(settings())
    outcome = simulate(data.draw(workloads()), data.draw(clusters()), data.draw(st.sampled_from(ENDING)), behaviour)
    gaps = [after.at - before.at for before, after in zip(outcome.rounds, outcome.rounds[1:], strict=False)]
    length = behaviour.round_seconds
    if behaviour.early_rounds:
        assert all(gap >= min(behaviour.min_round_seconds, length) - 1e-6 for gap in gaps)
    else:
        assert all(gap == pytest.approx(round(gap / length) * length) and gap >= length - 1e-6 for gap in gaps)


@given(st.data())
def test_pinned_jobs_are_never_stopped(data):
    """A job that cannot be preempted runs in one piece, unless its node fails."""
    load = data.draw(workloads())
    policy = data.draw(st.one_of(chaos(), st.sampled_from(ENDING)))
    _, outcome = watched(load, data.draw(clusters()), policy, data.draw(settings(failures=False)))
    pinned = {s.job.uid for s in load.submissions if is_pinned(replace(s.job, status=Status.RUNNING))}
    jobs = outcome.jobs if outcome else ()
    assert all(len(job.intervals) <= 1 and not job.preemptions for job in jobs if job.uid in pinned)
