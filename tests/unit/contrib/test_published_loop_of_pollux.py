from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from contrib.reproductions.published_loops.pollux import PolluxLoop
from metasched.core.model import Node
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux, synthetic_profiles
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus
from policies.pollux.policy import Pollux
from tests.builders import job
from tests.unit.published import DATA, needs

SETTINGS = Settings(round_seconds=60.0, restart_seconds=30.0)
UNEVEN = replace(SETTINGS, uneven=True)
NODES = tuple(Node(f"n{i:02}", "t4", 4, 1, 1) for i in range(16))
FIFO = Fifo(FifoParameters(elastic=False, backfill=True))
TIRESIAS = Las(
    LasParameters(queue_thresholds_gpu_seconds=(16 * 3600.0,), promote_knob=None, order="entry", elastic=False)
)


def submission(uid, at, gpus, steps, rate=1.0):
    """A rigid job that does ``rate`` steps a second on any number of GPUs."""
    one = job(uid, gpus, submitted=at, cpus_per_unit=0)
    curve = Curve(tuple((n, rate) for n in range(1, 65)))
    return Submission(one, ScalingTraining(steps, {"t4": curve}))


def play(*submissions, nodes=NODES, policy=FIFO):
    seen = []
    workload = Workload("test", submissions)
    loop = PolluxLoop(workload, nodes, policy, SETTINGS, watch=lambda s, r: seen.append((s.now, dict(r.targets))))
    outcome = loop.run()
    return {job.uid: job for job in outcome.jobs}, seen


def test_arrivals_wait_for_the_interval_and_starts_cost_a_restart():
    """A job that is submitted at 10 s starts at 60 s and trains from 90 s on."""
    jobs, seen = play(submission("a", 10.0, 4, 100))
    assert seen[0][0] == 60.0
    assert jobs["a"].first_started == 60.0
    assert jobs["a"].finished == 190.0
    assert jobs["a"].overhead_seconds == 30.0


def test_gpus_of_an_ended_job_are_idle_until_the_interval_ends():
    """The next job starts at the end of the interval."""
    jobs, _ = play(submission("a", 0.0, 4, 15), submission("b", 0.0, 4, 10), nodes=NODES[:1])
    assert jobs["a"].finished == 60 + 30 + 15
    assert jobs["b"].first_started == 120.0


def test_completions_are_rounded_to_whole_seconds():
    """The artifact does the same."""
    jobs, _ = play(submission("a", 0.0, 4, 10, rate=3.0), submission("b", 0.0, 4, 11, rate=3.0))
    assert jobs["a"].finished == 93.0
    assert jobs["b"].finished == 94.0


def test_new_jobs_take_gpus_from_the_emptiest_node_and_others_keep_theirs():
    """Placements may be uneven."""
    _, seen = play(
        submission("a", 0.0, 3, 500), submission("b", 100.0, 3, 500), submission("c", 200.0, 2, 500), nodes=NODES[:2]
    )
    first, later = seen[0][1], next(targets for _, targets in seen if "c" in targets)
    assert first["a"].nodes == ("n00",)
    assert later["a"] == first["a"]
    assert later["b"].nodes == ("n01",)
    assert later["c"].node_gpus == (("n00", 1), ("n01", 1))


def test_a_simulation_of_jobs_that_fit_nowhere_ends():
    """Jobs wider than the cluster are not complete."""
    jobs, _ = play(submission("a", 0.0, 8, 15), submission("b", 0.0, 4, 15), nodes=NODES[:1])
    assert jobs["a"].finished is None
    assert jobs["b"].finished is not None


@pytest.mark.parametrize("policy", [TIRESIAS, Optimus()], ids=lambda policy: policy.name)
def test_a_generated_workload_ends(policy):
    """All jobs are complete after at least a restart, and a second simulation gives the same records."""
    workload = generate_pollux(PolluxWorkloadParameters(jobs=12, hours=1.0), 1, synthetic_profiles())
    outcome = PolluxLoop(workload, NODES, policy, SETTINGS).run()
    assert all(job.jct is not None and job.jct > 30 for job in outcome.jobs)
    assert all(sum(interval.ended - interval.began for interval in job.intervals) <= job.jct for job in outcome.jobs)
    assert PolluxLoop(workload, NODES, policy, SETTINGS).run().jobs == outcome.jobs


def short_trainings():
    """Adaptive jobs of two applications, one of them with a tenth of its epochs."""
    profiles = synthetic_profiles()
    profiles["cifar10"].ends = profiles["cifar10"].ends[:10]
    parameters = PolluxWorkloadParameters(jobs=6, hours=0.2, adaptive=True)
    jobs = generate_pollux(parameters, 3, profiles).submissions
    return Workload("short", tuple(one for one in jobs if one.job.name.startswith(("cifar10", "ncf"))))


SHORT = short_trainings()


def test_pollux_chooses_nodes_batches_and_numbers_of_gpus():
    """A job begins on one GPU and grows; one of ``ncf`` has one GPU and its largest batch from the begin."""
    seen = {}

    def watch(_, result):
        for uid, place in result.targets.items():
            seen.setdefault(uid, []).append((place.gpus, result.batches.get(uid)))

    outcome = PolluxLoop(SHORT, NODES[:1], Pollux(), UNEVEN, watch=watch).run()
    names = {one.job.uid: one.training.profile.name for one in SHORT.submissions}
    assert set(names.values()) == {"cifar10", "ncf"}
    assert all(job.jct is not None for job in outcome.jobs)
    for uid, found in seen.items():
        assert found[0][0] == 1
        assert (max(gpus for gpus, _ in found) > 1) == (names[uid] == "cifar10")
        assert (found[-1][1] is None) == (names[uid] == "ncf")


def test_jobs_that_know_their_iterations_begin_on_many_gpus():
    """They need not explore, so they complete earlier."""
    known = {"cifar10": IterationParameters(0.02, 0.0004, 0.01, 0.002, 0.04, 0.002, 1.5)}
    outcomes = [PolluxLoop(SHORT, NODES[:1], Pollux(), UNEVEN, known=found).run() for found in ({}, known)]
    plain, seeded = (fmean(job.jct for job in outcome.jobs) for outcome in outcomes)
    assert seeded < plain


@needs("pollux")
@pytest.mark.parametrize(
    ("name", "policy", "theirs"),
    [("workload-1", TIRESIAS, 2473.65), ("workload-6", TIRESIAS, 3469.69375), ("workload-6", Optimus(), 5301.875)],
    ids=["tiresias-1", "tiresias-6", "optimus-6"],
)
def test_the_published_figures_are_equal(name, policy, theirs):
    """They are mean JCTs on 16 nodes of 4 T4, equal in all digits."""
    profiles = read_profiles(DATA / "pollux" / "traces")
    workload = read_pollux(DATA / "pollux" / "workloads" / f"{name}.csv", profiles, most_gpus=64)
    outcome = PolluxLoop(workload, NODES, policy, SETTINGS).run()
    assert fmean(job.jct for job in outcome.jobs) == theirs
