"""Apps drawn by Themis's description, and their hidden learning curves."""

import random
from collections import Counter

import pytest

from metasched.apps.tuners.registry import make_tuner
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.learning_curves import REPORTS, learning_curve
from metasched.simulator.generate.themis import SLOWDOWN, TRIALS, ThemisWorkloadParameters, themis_apps
from metasched.simulator.metrics import app_of


def drawn(seed=0, *, trials=TRIALS, **parameters):
    return themis_apps(ThemisWorkloadParameters(**parameters), seed, trials=trials)


def test_the_same_seed_gives_the_same_jobs_and_curves():
    """Another seed gives others."""
    assert drawn(seed=3, apps=3) == drawn(seed=3, apps=3)
    assert drawn(seed=3, apps=3) != drawn(seed=4, apps=3)


def _name(job):
    return None if job.tuner is None else make_tuner(job.tuner).name


def test_no_job_tells_its_rank():
    """All trials of an app ask for the same GPUs, steps and tuner; a single job has no tuner."""
    for one in drawn(apps=30, most_trials=8).submissions:
        assert one.training.total == 10_000
        assert not one.job.losses
    apps = {}
    for one in drawn(apps=30, most_trials=8).submissions:
        job = one.job
        apps.setdefault(job.app, set()).add((job.gpus, job.min_gpus, job.max_gpus, job.name, job.user, _name(job)))
    assert len(apps) == 30
    assert all(len(facts) == 1 for facts in apps.values())
    tuners = [tuner for facts in apps.values() for *_, tuner in facts]
    assert set(tuners) == {None, "halving"}


def test_an_app_is_a_job_array_of_one_arrival():
    """Its tasks share the base of the uid, and the submissions are in order of arrival."""
    submissions = drawn(apps=20, most_trials=4).submissions
    for one in submissions:
        assert one.job.app == f"array:{app_of(one.job.uid)}"
    jobs = [one.job for one in submissions]
    assert jobs == sorted(jobs, key=lambda job: (job.submitted, job.uid))


def test_jobs_are_narrower_with_performance_curves():
    """One GPU or two in workload 1; up to eight under halving, and never fewer than asked for."""
    curves = {(one.job.gpus, one.job.max_gpus) for one in drawn(apps=40, tuner="curve", most_trials=2).submissions}
    assert curves == {(1, 1), (2, 2)}
    halving = {(one.job.gpus, one.job.max_gpus) for one in drawn(apps=60, trials={4: 1.0}).submissions}
    assert halving == {(1, 4), (2, 8), (4, 8)}


def test_the_gpu_time_of_an_app_is_that_of_its_phases():
    """The median of the drawn apps is near the parameter: each halving adds half a training."""
    hours = []
    for seed in range(40):
        one, *_ = drawn(seed, apps=1, trials={8: 1.0}, gpu_hours=10.0).submissions
        hours.append(one.training.total * one.training.seconds_per_step * (1 + 3 / 2) / 3600)
    assert sorted(hours)[20] == pytest.approx(10.0, rel=0.5)


@pytest.mark.parametrize("part", [0.0, 1.0])
def test_the_fraction_of_network_intensive_apps(part):
    """All or none of the apps are slowed down by several nodes."""
    slowdowns = {one.training.slowdown for one in drawn(apps=20, most_trials=1, network_intensive=part).submissions}
    assert slowdowns == ({SLOWDOWN} if part else {1.0})


def test_models_follow_the_mix():
    """60 % of the apps train language models, a tenth has one job."""
    jobs = [one.job for one in drawn(apps=600, most_trials=2).submissions if one.job.uid.endswith("_0")]
    counts = Counter(job.name in {"Bi-Att-Flow", "LangModel", "GNMT", "Transformer"} for job in jobs)
    assert counts[True] / 600 == pytest.approx(0.6, abs=0.07)
    assert sum(job.tuner is None for job in jobs) / 600 == pytest.approx(0.1, abs=0.05)


def test_a_curve_falls_and_reports_at_each_halving():
    """Losses ascend in progress, the last is at the end, and each power of two of it has one."""
    points = learning_curve(random.Random(1), 4096.0)  # noqa: S311  no secret
    steps = [point.progress_steps for point in points]
    assert steps == sorted(set(steps))
    assert len(steps) == REPORTS
    assert {2.0**power for power in range(1, 13)} <= set(steps)
    assert points[-1].loss < points[0].loss


def test_parameters_that_cannot_be_met_are_refused():
    """These are numbers of trials that are no power of two."""
    with pytest.raises(GeneratorError, match="powers of two"):
        drawn(trials={6: 1.0})
    with pytest.raises(GeneratorError, match="6 trials"):
        drawn(most_trials=6)
