"""GPU hours of a window: exact sums, by user and by job."""

from collections import defaultdict

import pytest

from contrib.benchmarks.large_site import USERS, Sizes, fill_store
from metasched.store import EndCause, JobRecord, RunRecord, Store
from metasched.store.gpu_hours import JobsOf
from tests.unit.store.test_window_queries import FOUR, NOW, TWO, a_run

HOUR = 3600.0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("site") / "store.sqlite") as opened:
        fill_store(opened, Sizes(nodes=4, live=20, runs=240), NOW)
        yield opened


def held(site, begin, end):
    """GPU hours by job, summed over all runs one by one."""
    found = defaultdict(float)
    rows = site._rows("SELECT uid, started, ended, gpus FROM runs WHERE started IS NOT NULL")
    for uid, started, ended, gpus in rows:
        found[uid] += max(0.0, min(NOW if ended is None else ended, end) - max(started, begin)) * gpus / HOUR
    return {uid: hours for uid, hours in found.items() if hours > 0}


@pytest.mark.parametrize(("begin", "end"), [(-30, 0), (-12, 0), (-12.3, -5.1), (-3, -1), (-0.2, 0), (-90, -80)])
def test_jobs_that_a_window_cuts_count_in_part(site, begin, end):
    """For any window, sums by user and by job are those over all runs."""
    window = NOW + begin * HOUR, NOW + end * HOUR
    expected = held(site, *window)
    jobs = site.gpu_hours_by_job(*window, NOW, 1000)
    assert {job.uid: job.gpu_hours for job in jobs} == pytest.approx(expected)
    assert [job.gpu_hours for job in jobs] == sorted((job.gpu_hours for job in jobs), reverse=True)
    assert site.gpu_hours_by_job(*window, NOW, 3) == jobs[:3]
    users = site.gpu_hours_by_user(*window, NOW)
    assert sum(row.jobs for row in users) == len(expected)
    assert sum(row.gpu_hours for row in users) == pytest.approx(sum(expected.values()))
    one = JobsOf([USERS[0]], ["speech"])
    mine = [job for job in jobs if job.user == USERS[0] or job.account == "speech"]
    assert site.gpu_hours_by_job(*window, NOW, 1000, one) == mine
    assert site.gpu_hours_by_job(*window, NOW, 2, one) == mine[:2]


def test_rho_is_of_the_jobs_that_ended_in_the_window(site):
    """Means and worst rho by user and account are those of the store's summary."""
    window = NOW - 20 * HOUR, NOW - 2 * HOUR
    expected = {one.name: one for one in site.fairness_by("user", since=window[0], until=window[1])}
    found = defaultdict(list)
    for row in site.gpu_hours_by_user(*window, NOW):
        if row.rho is not None:
            found[row.user].append(row.rho)
    assert {name: sum(one.rated for one in sums) for name, sums in found.items()} == {
        name: one.rated for name, one in expected.items() if one.rated
    }
    for name, sums in found.items():
        assert sum(one.total for one in sums) / expected[name].rated == pytest.approx(expected[name].rho_mean)
        assert max(one.worst for one in sums) == expected[name].rho_worst


def test_imported_jobs_are_left_out(store):
    """Jobs of Slurm's accounting have no GPU hours."""
    job = JobRecord(uid="sacct:1", slurm_job_id="1", name="old", user="ann", submitted=0.0, finished=150.0, run=1)
    run = RunRecord(uid=job.uid, run=1, placement=TWO, started=110.0, ended=150.0, cause=EndCause.FINISHED)
    store.import_job(job, [run])
    assert store.gpu_hours_by_user(100, 200, 1000) == []
    assert store.gpu_hours_by_job(120, 130, 1000, 10) == []


def test_gpu_hours_count_the_part_within_the_window(store):
    """GPU hours are GPUs times hours held within the window, by user and by job; suspended time is left out."""
    hour = 3600.0
    a_run(store, "a", (0, 2 * hour), TWO)
    a_run(store, "b", (1.5 * hour, None), FOUR, user="bob")
    (ann, bob) = sorted(store.gpu_hours_by_user(hour, 3 * hour, 2 * hour), key=lambda row: row.user)
    assert (ann.user, ann.account, ann.jobs, ann.gpu_hours) == ("ann", "lab", 1, pytest.approx(2.0))
    assert (bob.user, bob.gpu_hours) == ("bob", pytest.approx(2.0))
    store.run_suspended("b", 1, 1.75 * hour, by_us=True)
    jobs = store.gpu_hours_by_job(hour, 3 * hour, 2 * hour, 10)
    assert [(job.uid, job.gpu_hours) for job in jobs] == [("a", pytest.approx(2.0)), ("b", pytest.approx(1.0))]
    assert [job.name for job in store.gpu_hours_by_job(hour, 3 * hour, 2 * hour, 10, JobsOf(["bob"]))] == ["name of b"]
