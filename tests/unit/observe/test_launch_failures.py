"""Runs that end before their trainer has started."""

import json
from dataclasses import dataclass
from itertools import pairwise

import pytest

from metasched.core.model import Hold
from metasched.core.reasons import Code
from metasched.intake.launch_failures import LAST_WAIT_SECONDS, seconds_to_next_launch
from metasched.shared_dir.published_status import read as read_status
from metasched.slurm.client import JobState
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import ME, FakeSite, ShimTrainer

TRIES = 3


@dataclass
class Unlaunched(ShimTrainer):
    """A trainer that its first runs do not reach, as ``fail`` ends them."""

    failures: int = 0
    fail: object = None
    runs: tuple = ()

    def started(self, slurm, job):
        self.runs = (*self.runs, slurm.now)
        if len(self.runs) <= self.failures:
            self.fail(self, slurm, job)
        else:
            super().started(slurm, job)


def no_step(trainer, slurm, job):
    """Srun cannot create a step; metasched-run puts the job back as long as its lease allows."""
    trainer.not_launched(slurm, job)


def requeued_held(_trainer, slurm, job):
    """Slurm itself cannot launch the script, and requeues the job with a hold."""
    found = slurm._one(job.slurm_job_id)
    slurm.after(0.0, lambda: slurm._back_to_pending(found, Hold.ADMIN, "REQUEUE_HOLD"))
    slurm.after(0.0, lambda: slurm._show(found, reason="launch failed requeued held"))


def launch_failure(_trainer, slurm, job):
    """Slurm itself cannot launch the script, and the job fails."""
    slurm.exit(job.slurm_job_id, 143, after=0.01)
    slurm.after(0.01, lambda: slurm._show(slurm._one(job.slurm_job_id), reason="JobLaunchFailure"))


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm(), launch_tries=TRIES, poll_seconds=3.0)
    yield made
    made.close()


def add(site, failures, fail):
    trainer = Unlaunched(shared=site.base / "shared", seconds=5.0, failures=failures, fail=fail)
    return site.slurm.add("--hold", "--gres=gpu:1", comment="metasched", user=ME, trainer=trainer)


@pytest.mark.parametrize("fail", [no_step, requeued_held, launch_failure])
def test_a_run_that_is_not_launched_is_repeated_with_a_backoff(site, fail):
    """The job completes, and its runs are further apart after each failure."""
    job = add(site, TRIES - 1, fail)
    site.run_until(lambda: site.state(job) is JobState.COMPLETED)
    runs = site.slurm.trainer(job).runs
    gaps = [later - earlier for earlier, later in pairwise(runs)]
    assert len(gaps) == TRIES - 1
    assert all(gap >= wait for gap, wait in zip(gaps, (5, 10), strict=True))
    assert gaps[-1] < 25
    assert sum(run.started is not None for run in site.store.runs(site.record(job).uid)) == TRIES


@pytest.mark.parametrize("fail", [no_step, launch_failure])
def test_a_job_that_is_never_launched_fails(site, fail):
    """The repeats have a limit."""
    job = add(site, 100, fail)
    site.run(60)
    assert site.state(job) is JobState.FAILED
    assert len(site.slurm.trainer(job).runs) == TRIES
    assert site.record(job).end_state == "FAILED"


def test_a_job_that_slurm_holds_again_and_again_is_tried_once_an_hour(site):
    """Only an admin could say that it has failed."""
    job = add(site, 100, requeued_held)
    site.run(300)
    assert len(site.slurm.trainer(job).runs) == TRIES
    assert seconds_to_next_launch(TRIES, TRIES) == LAST_WAIT_SECONDS


def test_the_status_says_why_the_job_waits(site):
    """Code and words; a run that a trainer reported from is no failed launch."""
    job = add(site, 2, no_step)
    site.run_until(lambda: len(site.slurm.trainer(job).runs) == 2)
    site.run(2)
    (shown,) = read_status(site.base / "shared").jobs
    assert (shown.reason_code, shown.reason_facts, shown.blocked) == (Code.NOT_LAUNCHED, {"runs": 2}, True)
    assert "before a trainer had started" in shown.reason
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(1)
    site.slurm.owner_requeue(job)
    site.run_until(lambda: len(site.slurm.trainer(job).runs) == 4, 10)


def test_the_lease_says_how_often_the_wrapper_may_put_the_job_back(site):
    """Each failed launch in a row lowers the number."""
    job = add(site, 2, no_step)

    def retries():
        lease = site.base / "shared" / "mailbox" / site.record(job).uid / "lease.json"
        return json.loads(lease.read_text())["launch_retries"]

    site.run_until(lambda: len(site.slurm.trainer(job).runs) == 1)
    assert retries() == TRIES - 1
    site.run_until(lambda: len(site.slurm.trainer(job).runs) == 3)
    assert retries() == 0


def test_long_runs_without_reports_count_as_launched(site):
    """Scripts without the shim never report."""
    job = site.slurm.add("--hold", "--gres=gpu:1", comment="metasched", user=ME)
    for _ in range(TRIES):
        site.run_until(lambda: site.state(job) is JobState.RUNNING)
        site.run(70)
        begun = site.slurm.now
        site.slurm.owner_requeue(job)
        site.run_until(lambda: site.state(job) is not JobState.RUNNING)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    assert site.slurm.now - begun < 10
