from collections import Counter

import pytest

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.themis import CONFIGURATIONS, ThemisWorkloadParameters, themis_apps
from metasched.simulator.metrics import app_of
from metasched.throughput.throughput_table import ThroughputTable

ROWS = {(model, gpus): 2.0 * gpus for model in ("ResNet-18", "LM", "A3C") for gpus in (1, 2, 4)}
TABLE = ThroughputTable({"v100": ROWS}, {})


def drawn(seed=0, *, configurations=CONFIGURATIONS, **parameters):
    return themis_apps(TABLE, ThemisWorkloadParameters(**parameters), seed, configurations=configurations)


def test_the_same_seed_gives_the_same_jobs():
    """Another seed gives other jobs."""
    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)


def test_each_phase_ends_half_of_the_jobs():
    """Of eight jobs, four have one phase, two have two, one has three, and the best one has four."""
    submissions = drawn(apps=1, configurations={8: 1.0}).submissions
    shortest = min(one.training.total for one in submissions)
    phases = Counter(round(one.training.total / shortest) for one in submissions)
    assert phases == {1: 4, 2: 2, 3: 1, 4: 1}


def test_jobs_of_more_phases_may_have_more_gpus():
    """The maximum doubles with each phase, as far as speeds are known; the minimum is one GPU."""
    submissions = drawn(apps=1, configurations={16: 1.0}).submissions
    assert Counter(one.job.max_gpus for one in submissions) == {1: 8, 2: 4, 4: 4}
    assert {(one.job.gpus, one.job.min_gpus) for one in submissions} == {(1, 1)}


def test_an_app_is_a_job_array_of_one_model_and_one_arrival():
    """Its tasks share the base of the uid, the user, the model and the arrival."""
    submissions = drawn(apps=30).submissions
    apps = {}
    for one in submissions:
        apps.setdefault(app_of(one.job.uid), []).append(one)
    assert len(apps) == 30
    for tasks in apps.values():
        assert len({(one.job.user, one.job.submitted, one.training.model) for one in tasks}) == 1
        assert sorted(int(one.job.uid.split("_")[1]) for one in tasks) == list(range(len(tasks)))
    assert [one.job for one in submissions] == sorted(
        (one.job for one in submissions), key=lambda job: (job.submitted, job.uid)
    )


def test_most_apps_have_several_jobs_and_language_models():
    """A tenth of the apps has one job; 60 % are language models."""
    first = [one for one in drawn(apps=600).submissions if one.job.uid.endswith("_0")]
    assert sum("LM" in one.job.name for one in first) / 600 == pytest.approx(0.6, abs=0.07)
    assert sum("of 1 phases" in one.job.name for one in first) / 600 == pytest.approx(0.1, abs=0.05)


def test_parameters_that_cannot_be_met_are_refused():
    """These are numbers of configurations that are no power of two, and a table without a model."""
    with pytest.raises(GeneratorError, match="powers of two"):
        drawn(configurations={6: 1.0})
    with pytest.raises(GeneratorError, match="'k80'"):
        drawn(reference="k80")
