"""A second daemon, as if on another host: its own state directory, the same shared one."""

import shutil

import pytest

from metasched.store import Store
from tests.slurm.site import Site


@pytest.fixture
def second(site):
    """A standby daemon, started when the first daemon runs."""
    other = Site(site.cluster)
    text = site.config.read_text() + "[standby]\ncopy_seconds = 0.3\n"
    site.config.write_text(text)
    other.config.write_text(text.replace(f"{site.base}/state", f"{other.base}/state"))
    yield other
    other.close()


def runs(site, slurm_job_id):
    with site.store() as store:
        return [
            (run.run, run.started)
            for job in store.live_jobs()
            if job.slurm_job_id == slurm_job_id
            for run in store.runs(job.uid)
        ]


def test_a_standby_continues_after_the_daemon_is_killed(site, second):
    """The running job keeps its uid and history, and the waiting job starts later."""
    site.start()
    runner = site.submit("until [ -e {dir}/enough ]; do sleep 0.2; done", "--gres=gpu:4", "-N4")
    waiter = site.submit("sleep 1", "--gres=gpu:1")
    uid = site.wait_status(runner, "running").uid
    site.wait(lambda: site.job(waiter))
    second.start("--standby")
    site.wait(lambda: "standing_by" in second.log())
    before = runs(site, runner)
    assert len(before) == 1
    copy = site.base / "shared" / "standby" / "metasched.db"
    site.wait(lambda: copy.exists() and uid in copied(copy))
    site.kill()
    second.wait(lambda: "started" in second.log())
    assert runs(second, runner) == before
    (site.base / "job-1" / "enough").touch()
    assert second_status(site, second, runner, "completed").uid == uid
    assert second_status(site, second, waiter, "completed").runs == 1


def test_a_stopped_daemon_hands_over_its_whole_store(site, second):
    """The last copy is made after the last round."""
    site.start()
    job = site.submit("sleep 600", "--gres=gpu:1")
    site.wait_status(job, "running")
    site.terminate()
    shutil.rmtree(site.base / "state")
    second.start("--standby")
    second.wait(lambda: "started" in second.log())
    assert second.log().count("took_over") == 1
    assert len(runs(second, job)) == 1


def copied(path):
    """Return the uids of the jobs with a started run in a copy, which may be replaced meanwhile."""
    with Store.open(path, read_only=True) as store:
        return [job.uid for job in store.live_jobs() if job.current is not None and job.current.started is not None]


def second_status(site, second, slurm_job_id, status):
    """Return the status in the shared directory, which the second daemon publishes now."""
    return second.wait(lambda: (job := site.job(slurm_job_id)) is not None and job.status == status and job)
