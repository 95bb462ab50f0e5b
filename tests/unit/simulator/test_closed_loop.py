"""Workloads whose jobs arrive as others end, and the trials of a search for hyper-parameters."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.apps import TunerSettings
from metasched.core.model import Node
from metasched.core.reasons import Reason
from metasched.scheduling.engine import run_round
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.hpo import HpoWorkloadParameters, hpo_trials
from metasched.simulator.generate.pollux import synthetic_profiles
from metasched.simulator.metrics import measure
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.scenario import ScenarioError, load_scenario
from metasched.simulator.simulation import simulate
from metasched.simulator.sweep import at_load
from metasched.throughput.scaling_curve import training_of_run
from metasched.throughput.training import AdaptiveTraining
from policies.baselines.fifo import Fifo

NODES = (Node("n1", "t4", 4, 1, 1),)
PROFILE = synthetic_profiles()["cifar10"]


def submissions(jobs):
    """One-GPU jobs of (arrival, duration)."""
    return tuple(
        Submission(trace_job(f"{number}", "j", float(at), 1), training_of_run(float(seconds), 1))
        for number, (at, seconds) in enumerate(jobs)
    )


def outcomes(jobs, at_once):
    found = simulate(Workload("test", submissions(jobs), at_once), NODES, Fifo(), Settings(min_round_seconds=0.0))
    return found.jobs


def test_a_job_arrives_when_another_has_ended():
    """Two at a time: the third arrives with the first end, and its JCT counts from then on."""
    found = outcomes([(0, 100), (0, 50), (0, 30), (0, 30)], 2)
    assert [one.submitted for one in found] == [0.0, 0.0, 50.0, 80.0]
    assert [one.finished for one in found] == [100.0, 50.0, 80.0, 110.0]
    assert found[2].jct == 30.0


def test_no_job_arrives_before_its_own_arrival():
    """Places stay free until then."""
    found = outcomes([(0, 10), (500, 10), (500, 10)], 1)
    assert [one.submitted for one in found] == [0.0, 500.0, 510.0]


def test_ended_trials_are_an_outcome_of_their_own(monkeypatch):
    """The trial that runs checkpoints first, and the waiting ones are gone at once; then the next jobs arrive."""

    def end_all_but_one(snapshot, policy, state, apps):
        result = run_round(snapshot, policy, state, apps)
        losers = [] if snapshot.now < 20 else [one.uid for one in snapshot.jobs if one.uid != "0"]
        targets = {uid: place for uid, place in result.targets.items() if uid not in losers}
        return replace(result, targets=targets, ends=dict.fromkeys(losers, Reason.text("it lost")))

    monkeypatch.setattr("metasched.simulator.round_loop.run_round", end_all_but_one)
    trials = [
        replace(one, job=one.job.evolve(app="array:1", tuner=TunerSettings("outside")))
        for one in submissions([(0, 100)] * 6)
    ]
    workload = Workload("test", tuple(trials), 4)
    slow = Settings(round_seconds=10.0, min_round_seconds=0.0, checkpoint_seconds=5.0)
    found = simulate(workload, (Node("n1", "t4", 2, 1, 1),), Fifo(), slow)
    assert [one.ended for one in found.jobs] == [None, 25.0, *[20.0] * 4]
    assert [one.finished for one in found.jobs] == [100.0, *[None] * 5]
    assert [one.preemptions for one in found.jobs] == [0] * 6
    measured = measure(found, workload)
    assert (measured.jobs, measured.unfinished, measured.ended, measured.makespan) == (6, 0, 5, 100.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=12), st.integers(1, 13))
def test_never_more_jobs_than_allowed_are_there(jobs, at_once):
    """All of them end; without a limit that binds, the workload is the open one."""
    found = outcomes(sorted(jobs), at_once)
    assert len(found) == len(jobs)
    for one in found:
        there = [other for other in found if other.submitted <= one.submitted < other.finished]
        assert len(there) <= at_once
    if at_once >= len(jobs):
        assert found == outcomes(sorted(jobs), None)


def test_a_higher_load_keeps_the_loop():
    """Arrivals come sooner; the number at a time stays."""
    assert at_load(Workload("test", submissions([(0, 1), (10, 1)]), 3), 2.0).at_once == 3


def test_trials_differ_in_speed_and_come_again_with_the_seed():
    """Adaptive ones start at the first batch; fixed ones have what they ask for."""
    parameters = HpoWorkloadParameters(trials=20)
    found = hpo_trials(parameters, 3, PROFILE).submissions
    speeds = [one.training.profile.step_time((4,), 128).step for one in found]
    assert speeds == [
        one.training.profile.step_time((4,), 128).step for one in hpo_trials(parameters, 3, PROFILE).submissions
    ]
    assert len(set(speeds)) == 20
    assert all(isinstance(one.training, AdaptiveTraining) for one in found)
    fixed = HpoWorkloadParameters(trials=1, gpus=2, per_gpu=128, adaptive=False)
    (one,) = hpo_trials(fixed, 0, PROFILE).submissions
    assert (one.job.min_gpus, one.job.max_gpus, one.training.batch) == (2, 2, 256)
    with pytest.raises(GeneratorError, match="give a per_gpu from 32 to 1024"):
        hpo_trials(HpoWorkloadParameters(per_gpu=8), 0, PROFILE)


SCENARIO = '[[nodes]]\ncount = 2\ngpus = 4\ngpu_type = "t4"\n[workload]\n'


def test_a_scenario_has_trials_and_closed_loops(tmp_path):
    """`generate-hpo` keeps four trials at a time by default; every format takes `at_once`."""
    path = tmp_path / "s.toml"
    path.write_text(f'{SCENARIO}format = "generate-hpo"\ntrials = 5\n')
    workload = load_scenario(path).workload(0)
    assert (len(workload.submissions), workload.at_once) == (5, 4)
    path.write_text(f'{SCENARIO}format = "generate-pollux"\njobs = 3\nat_once = 2\n')
    assert load_scenario(path).workload(0).at_once == 2
    path.write_text(f'{SCENARIO}format = "generate-pollux"\njobs = 3\n')
    assert load_scenario(path).workload(0).at_once is None


@pytest.mark.parametrize(
    ("keys", "error", "told"),
    [
        ("at_once = 0", ScenarioError, "at_once"),
        ('application = "cifar"', GeneratorError, "did you mean 'cifar10'?"),
        ("per_gpu = 1", GeneratorError, "give a per_gpu"),
    ],
)
def test_mistakes_are_named(tmp_path, keys, error, told):
    """The message has the key and the fix."""
    path = tmp_path / "s.toml"
    path.write_text(f'{SCENARIO}format = "generate-hpo"\n{keys}\n')
    with pytest.raises(error, match=told.replace("?", r"\?")):
        load_scenario(path).workload(0)
