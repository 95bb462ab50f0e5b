from __future__ import annotations

from collections import Counter

import pytest

from metasched.simulator.generate.pollux import (
    DAY,
    SHARES,
    PolluxWorkloadParameters,
    generate_pollux,
    synthetic_profiles,
)

HOURS = {
    "cifar10": (0, 1),
    "ncf": (0, 1),
    "deepspeech2": (1, 10),
    "bert": (1, 10),
    "yolov3": (10, 100),
    "imagenet": (100, 1000),
}


@pytest.fixture(scope="module")
def profiles():
    """The synthetic applications."""
    return synthetic_profiles()


def key(workload):
    return [(s.job, s.training.profile.name, s.training.batch) for s in workload.submissions]


def test_the_same_seed_gives_the_same_jobs(profiles):
    """Another seed gives other jobs."""
    assert key(generate_pollux(PolluxWorkloadParameters(), 3, profiles)) == key(
        generate_pollux(PolluxWorkloadParameters(), 3, profiles)
    )
    assert key(generate_pollux(PolluxWorkloadParameters(), 3, profiles)) != key(
        generate_pollux(PolluxWorkloadParameters(), 4, profiles)
    )


@pytest.mark.parametrize("name", SHARES)
def test_applications_have_the_gpu_hours_of_their_category(profiles, name):
    """GPU-hours are those on one GPU at the first batch size."""
    app = profiles[name]
    starts = (0.0, *app.ends)
    spans = (end - start for start, end in zip(starts, app.ends, strict=False))
    seconds = sum(span / app.goodput((1,), app.first_batch, epoch) for epoch, span in enumerate(spans))
    low, high = HOURS[name]
    assert low < seconds / 3600 < high


def test_categories_have_their_shares(profiles):
    """Of many jobs, the fractions of the applications are about those of table 1 of the paper."""
    found = Counter(
        s.training.profile.name for s in generate_pollux(PolluxWorkloadParameters(jobs=4000), 1, profiles).submissions
    )
    for name, share in SHARES.items():
        assert found[name] / 4000 == pytest.approx(share, abs=0.03)


def test_jobs_arrive_within_the_hours_and_most_of_them_around_the_peak(profiles):
    """Arrivals are sorted; the middle half of a day has more than three in five jobs."""
    found = [
        s.job.submitted
        for s in generate_pollux(PolluxWorkloadParameters(jobs=2000, hours=24.0), 1, profiles).submissions
    ]
    assert found == sorted(found)
    assert 0 <= found[0] <= found[-1] < DAY
    assert sum(DAY / 4 < at < 3 * DAY / 4 for at in found) > 1200


def test_tuned_jobs_ask_for_sizes_that_scale_at_50_to_80_percent(profiles):
    """Every job's GPUs and batch size are among its application's tuned ones, and most jobs have several GPUs."""
    jobs = generate_pollux(PolluxWorkloadParameters(), 1, profiles).submissions
    assert all((s.job.gpus, s.training.batch) in s.training.profile.tuned_sizes() for s in jobs)
    assert any(s.job.gpus >= 16 for s in jobs)


def test_untuned_jobs_ask_for_few_gpus_and_the_first_batch_size_on_each(profiles):
    """The numbers of GPUs are those of the Philly trace."""
    jobs = generate_pollux(PolluxWorkloadParameters(tuned=False), 1, profiles).submissions
    assert all(s.training.batch == s.job.gpus * s.training.profile.first_batch for s in jobs)
    assert sum(s.job.gpus == 1 for s in jobs) > len(jobs) * 0.8
