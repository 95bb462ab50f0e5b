import itertools
import random

from metasched.forecast.uncertainty import EarlierJob, EarlierJobs, drawn_seconds, drawn_submission, later_arrivals
from metasched.simulator.what_if import Estimate
from metasched.throughput.scaling_curve import training_of_run
from tests import builders


def seeded(seed):
    return random.Random(seed)  # noqa: S311  no secret


ASSUMED = Estimate(training_of_run(1000.0, 1), 0.0, "assumed")


def earlier(*seconds, name="train", user="ann"):
    jobs = [
        EarlierJob(builders.job(f"{name}{n}", submitted=3600.0 * n, user=user).evolve(name=name), one, ended=True)
        for n, one in enumerate(seconds)
    ]
    return EarlierJobs(jobs, 0.0, 3600.0 * len(jobs))


def draws(job, known, count=200):
    rng = seeded(3)
    return [drawn_seconds(job, ASSUMED, known, rng) for _ in range(count)]


def test_work_is_drawn_from_earlier_jobs_that_lasted_longer():
    """A job that has run for 150 s is none of those that took 100 s."""
    job = builders.job(attained={"v100": 150.0}).evolve(name="train")
    found = draws(job, earlier(100.0, 100.0, 200.0, 400.0))
    assert min(found) > 150.0
    assert max(found) > 300.0


def test_a_job_that_outlasts_all_earlier_ones_goes_on():
    """Its remaining work is drawn from a heavy tail, and the time limit cuts it off."""
    job = builders.job(attained={"v100": 500.0}, time_limit_seconds=900.0).evolve(name="train")
    found = draws(job, earlier(100.0, 100.0, 200.0))
    assert 500.0 < min(found) < 600.0 < max(found)
    assert max(found) == 900.0


def test_live_jobs_count_as_long_ones():
    """Where most similar jobs still run, a new job is not as short as those that have ended."""
    known = earlier(10.0, 10.0, 10.0)
    live = [EarlierJob(one.job, 1000.0, ended=False) for one in earlier(*[0.0] * 9).jobs]
    job = builders.job().evolve(name="train")
    assert sum(one > 1000.0 for one in draws(job, EarlierJobs([*known.jobs, *live], 0.0, 300.0))) > 120
    assert max(draws(job, known)) < 1000.0


def test_declared_work_varies_by_the_error_of_speeds():
    """Policies see the declared steps, whatever work is drawn."""
    job = builders.job(left=1000.0)
    known = Estimate(training_of_run(1000.0, 1), 0.0, "its own reports", declared=True)
    made = [drawn_submission(job, known, earlier(), seeded(n)) for n in range(20)]
    assert len({one.training.total for one in made}) == 20
    assert all(round(one.training.total * one.declared_ratio, 6) == 1000.0 for one in made)


def test_later_arrivals_repeat_the_last_days_from_a_random_instant_on():
    """The gaps between arrivals are those of the past, turned; no arrival is before the forecast or beyond the end."""
    found = later_arrivals(earlier(10.0, 20.0, 30.0), 1000.0, 22600.0, 100, 0.9, seeded(1))
    instants = [one.job.submitted for one in found]
    assert len(instants) == 6
    assert {round(b - a) for a, b in itertools.pairwise(instants)} == {3600}
    assert 1000.0 <= instants[0] < 4600.0
    assert len({one.job.uid for one in found}) == 6
    assert len(later_arrivals(earlier(10.0), 0.0, 1e6, 7, 0.9, seeded(1))) == 7
    assert later_arrivals(earlier(), 0.0, 1e6, 7, 0.9, seeded(1)) == []
