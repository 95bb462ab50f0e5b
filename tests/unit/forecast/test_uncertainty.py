import itertools
import random

from metasched.forecast.durations import DrawnDurations, EarlierJob, EarlierJobs
from metasched.forecast.uncertainty import drawn_seconds, drawn_submission, later_arrivals
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
    return [drawn_seconds(job, ASSUMED, DrawnDurations(known, seeded(n))) for n in range(count)]


def share(found, low, high=float("inf")):
    return sum(low < one <= high for one in found) / len(found)


def test_work_is_drawn_from_earlier_jobs_that_lasted_longer():
    """A job that has run for 150 s is none of those that took 100 s."""
    job = builders.job(attained={"v100": 150.0}).evolve(name="train")
    found = draws(job, earlier(100.0, 100.0, 200.0, 400.0))
    assert min(found) > 150.0
    assert share(found, 160.0, 500.0) > 0.6


def test_a_job_that_outlasts_all_earlier_ones_goes_on():
    """Its remaining work is drawn from a heavy tail, and the time limit cuts it off."""
    job = builders.job(attained={"v100": 500.0}, time_limit_seconds=900.0).evolve(name="train")
    found = draws(job, earlier(100.0, 100.0, 200.0))
    assert 500.0 < min(found) < 600.0 < max(found)
    assert max(found) == 900.0


def test_live_jobs_count_as_long_ones():
    """Where most similar jobs still run, a new job is not as short as those that have ended."""
    known = earlier(10.0, 10.0, 10.0)
    live = [
        EarlierJob(one.job.evolve(uid=f"live{n}"), 1000.0, ended=False)
        for n, one in enumerate(earlier(*[0.0] * 9).jobs)
    ]
    job = builders.job().evolve(name="train")
    assert share(draws(job, EarlierJobs([*known.jobs, *live], 0.0, 300.0)), 500.0) > 0.6
    assert share(draws(job, known), 0.0, 20.0) > 0.6


def test_the_next_job_may_be_unlike_all_earlier_ones():
    """The fewer jobs are known, the more often one is drawn that is like none of them."""
    job = builders.job().evolve(name="train")
    assert 0.05 < share(draws(job, earlier(10.0, 10.0, 10.0)), 100.0) < share(draws(job, earlier(10.0)), 100.0) < 0.9


def test_jobs_of_the_same_size_come_before_those_of_other_sizes():
    """Where a user's jobs on 8 GPUs took 1,000 times as long as those on one, so does the next one."""
    sizes = [1] * 9 + [8] * 9
    jobs = [
        EarlierJob(
            builders.job(f"s{n}", submitted=3600.0 * n, user="ann", gpus=gpus), 1000.0 ** (gpus == 8), ended=True
        )
        for n, gpus in enumerate(sizes)
    ]
    known = EarlierJobs(jobs, 0.0, 3600.0 * len(jobs))
    assert share(draws(builders.job(user="ann", gpus=8), known), 500.0) > 0.8
    assert share(draws(builders.job(user="ann", gpus=1), known), 0.0, 2.0) > 0.8


def test_a_level_adds_bursts_that_the_levels_before_do_not_have():
    """As many bursts of its size as of its name: the next job is like those of its size where it is unlike its name."""
    jobs = [
        EarlierJob(
            builders.job(f"{name}{n}", submitted=3600.0 * n, gpus=gpus, user="ann").evolve(name=name), one, ended=True
        )
        for name, gpus, one, count in (("train", 1, 10.0, 3), ("other", 8, 1000.0, 3), ("many", 4, 1e5, 30))
        for n in range(count)
    ]
    job = builders.job(user="ann", gpus=8).evolve(name="train")
    known = EarlierJobs(jobs, 0.0, 1e6)
    found = [known.drawn(job, 0.0, seeded(n)) or 0.0 for n in range(800)]
    assert 0.65 < share(found, 0.0, 20.0) < 0.85  # 3 of 4
    assert 0.13 < share(found, 700.0, 1500.0) < 0.25  # 3 of 4 of the others


def burst(*seconds, ended=True, at=0.0):
    """Jobs of one user that were submitted together."""
    return [
        EarlierJob(builders.job(f"b{at}-{n}", submitted=at + n, user="ann"), one, ended)
        for n, one in enumerate(seconds)
    ]


def test_a_burst_counts_as_one_observation():
    """Ninety jobs that were submitted together tell as much as one: a new job is often like the other one."""
    known = EarlierJobs([*burst(*[10.0] * 90), *burst(1000.0, at=9000.0)], 0.0, 9e4)
    assert 0.2 < share(draws(builders.job(user="ann"), known), 500.0, 2000.0) < 0.6


def test_jobs_of_a_burst_take_the_same_time():
    """In one simulation they share a drawn duration, where bursts have been uniform so far."""
    past = [one for n in range(5) for one in burst(*[100.0 * 3**n] * 4, at=9000.0 * n)]
    live = burst(*[0.0] * 9, ended=False, at=9e4)
    known = EarlierJobs([*past, *live], 0.0, 9e4)
    assert known.resemblance > 0.9
    typical = []
    for seed in range(40):
        drawn = DrawnDurations(known, seeded(seed))
        found = sorted(drawn.seconds(one.job, 0.0, 1000.0) for one in live)
        assert found[6] < 2 * found[2]
        typical.append(found[4])
    assert max(typical) > 20 * min(typical)


def test_jobs_of_a_mixed_burst_do_not():
    """Where the jobs of earlier bursts differ, each job has a duration of its own."""
    past = [one for n in range(6) for one in burst(10.0, 1000.0, 10.0, 1000.0, at=9000.0 * n)]
    live = burst(*[0.0] * 9, ended=False, at=9e4)
    known = EarlierJobs([*past, *live], 0.0, 9e4)
    assert known.resemblance < 0.2
    drawn = DrawnDurations(known, seeded(1))
    found = [drawn.seconds(one.job, 0.0, 1000.0) for one in live]
    assert max(found) > 20 * min(found)


def test_jobs_of_a_burst_take_as_long_as_those_that_have_ended():
    """A job whose neighbours have taken 500 s is expected to take as long."""
    past = [one for n in range(5) for one in burst(*[100.0] * 4, at=9000.0 * n)]
    members = burst(500.0, 510.0, at=9e4)
    job = EarlierJob(builders.job("next", submitted=9e4 + 5, user="ann"), 0.0, ended=False)
    assert share(draws(job.job, EarlierJobs([*past, *members, job], 0.0, 9e4)), 350.0, 700.0) > 0.8


def test_the_first_jobs_of_a_burst_to_end_are_its_shortest():
    """Where one of nine jobs has ended and the others go on, a waiting one takes longer than the one that has ended."""
    past = [one for n in range(5) for one in burst(*[100.0] * 4, at=9000.0 * n)]
    ended = burst(500.0, at=9e4)
    live = [
        EarlierJob(builders.job(f"live{n}", submitted=9e4 + n, user="ann"), 2000.0, ended=False) for n in range(1, 9)
    ]
    job = EarlierJob(builders.job("next", submitted=9e4 + 9, user="ann"), 0.0, ended=False)
    assert share(draws(job.job, EarlierJobs([*past, *ended, *live, job], 0.0, 9.3e4)), 1500.0) > 0.7


def test_declared_work_varies_by_the_error_of_speeds():
    """Policies see the declared steps, whatever work is drawn."""
    job = builders.job(left=1000.0)
    known = Estimate(training_of_run(1000.0, 1), 0.0, "its own reports", declared=True)
    made = [drawn_submission(job, known, DrawnDurations(earlier(), seeded(n)), seeded(n)) for n in range(20)]
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
