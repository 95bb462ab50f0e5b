"""Runs that are killed by what is left of an earlier run, on a lost host or of one that did not stop."""

from contextlib import closing

import pytest

from metasched.daemon.actuator import LOST_NODE_SECONDS
from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm())
    yield made
    made.close()


def lose_host(site, slurm_job_id):
    """The host of a running job dies, Slurm requeues the job, and it runs again elsewhere."""
    site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
    site.run(5)
    (host,) = site.slurm.job(slurm_job_id).allocated
    site.slurm.node_down(host)
    site.run_until(
        lambda: site.state(slurm_job_id) is JobState.RUNNING and host not in site.slurm.job(slurm_job_id).allocated
    )
    site.run(5)


@pytest.mark.parametrize(
    ("exit_code", "age", "runs_on"), [(137, 60, True), (143, 2, True), (143, 60, False), (1, 2, False)]
)
def test_a_run_killed_after_a_lost_host_is_requeued(site, exit_code, age, runs_on):
    """The earlier run's srun, or Slurm itself soon, ends the present run; any other failure is the job's own."""
    slurm_job_id = site.add("--gres=gpu:1")
    lose_host(site, slurm_job_id)
    site.run(age)
    site.slurm.exit(slurm_job_id, exit_code)
    site.run(60)
    assert site.state(slurm_job_id) is (JobState.RUNNING if runs_on else JobState.FAILED)


def test_a_restart_on_a_host_that_is_back_at_once_waits(tmp_path):
    """Slurm may still end the old run there by the job's id; another host needs no wait."""
    with closing(FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)))) as site:
        slurm_job_id = site.add("--gres=gpu:1")
        site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
        site.run(5)
        site.slurm.node_down("n1")
        site.slurm.node_up("n1")
        lost = site.slurm.now
        site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
        assert LOST_NODE_SECONDS <= site.slurm.now - lost < LOST_NODE_SECONDS + 3


def test_a_restart_on_another_host_than_the_lost_one_does_not_wait(site):
    """The old run is not there."""
    slurm_job_id = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
    site.run(5)
    (host,) = site.slurm.job(slurm_job_id).allocated
    site.slurm.node_down(host)
    lost = site.slurm.now
    site.run(3)
    site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
    assert site.slurm.now - lost < LOST_NODE_SECONDS


def test_one_lost_host_explains_one_kill(site):
    """A job that is killed again, long after the run before, fails."""
    slurm_job_id = site.add("--gres=gpu:1")
    lose_host(site, slurm_job_id)
    for outcome in (JobState.RUNNING, JobState.FAILED):
        site.run(90)
        site.slurm.exit(slurm_job_id, 137)
        site.run(30)
        assert site.state(slurm_job_id) is outcome


def test_a_job_that_is_killed_again_and_again_fails(site):
    """The srun of the run before explains two kills in a row, and the lost host a third one."""
    slurm_job_id = site.add("--gres=gpu:1")
    lose_host(site, slurm_job_id)
    for outcome in (*3 * [JobState.RUNNING], JobState.FAILED):
        site.slurm.exit(slurm_job_id, 137)
        site.run(30)
        assert site.state(slurm_job_id) is outcome


def test_a_run_killed_soon_after_a_run_that_its_owner_requeued_is_put_back(site):
    """The srun of that run waits in vain where slurmctld had been restarted, and ends the step of the next run."""
    slurm_job_id = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
    site.run(40)
    site.slurm.owner_requeue(slurm_job_id)
    site.run(5)
    site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
    site.run(32)
    site.slurm.exit(slurm_job_id, 143)
    site.run(30)
    assert site.state(slurm_job_id) is JobState.RUNNING


def test_a_run_killed_soon_after_a_killed_one_is_put_back_though_no_other_host_was_lost(site):
    """The wrapper of the run before was killed, and its srun lives on."""
    slurm_job_id = site.add("--gres=gpu:1")
    lose_host(site, slurm_job_id)
    site.run(90)
    for exit_code in (137, 143):
        site.slurm.exit(slurm_job_id, exit_code)
        site.run(20)
        assert site.state(slurm_job_id) is JobState.RUNNING


def test_a_trained_job_that_a_lost_run_kills_completes(site):
    """Its next run finds the training done, so that Slurm lists the job as completed, too."""
    slurm_job_id = site.add("--gres=gpu:1")
    lose_host(site, slurm_job_id)
    line = {"kind": "checkpoint", "step": 10, "seconds": 0.1, "bytes": 1, "cause": "final"}
    site.slurm.trainer(slurm_job_id).write(site.slurm, **line)
    site.run(2)
    site.slurm.exit(slurm_job_id, 137)
    site.run(30)
    assert site.state(slurm_job_id) is JobState.RUNNING
    site.slurm.exit(slurm_job_id, 0)
    site.run(5)
    assert site.state(slurm_job_id) is JobState.COMPLETED


def test_a_killed_job_without_a_lost_host_is_not_requeued(site):
    """The job fails."""
    slurm_job_id = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
    site.slurm.exit(slurm_job_id, 137)
    site.run(60)
    assert site.state(slurm_job_id) is JobState.FAILED


@pytest.mark.parametrize(
    ("stop_seconds", "age", "outcome"), [(None, 3, "RUNNING"), (1.0, 3, "RUNNING"), (1.0, 70, "FAILED")]
)
def test_a_run_killed_soon_after_a_stopped_run_is_requeued_once(tmp_path, stop_seconds, age, outcome):
    """The srun of the run that was asked to stop ends the next run's step by its number; later kills are others'."""
    made = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),), kill_wait=5.0), policy="las")
    with closing(made) as site:
        site.parameters = {"queue_thresholds_gpu_seconds": (100.0,), "promote_knob": 1000.0}
        site.start()
        slurm_job_id = site.add("--gres=gpu:4", stop_seconds=stop_seconds)
        site.run(40)
        site.add("--gres=gpu:4", seconds=5)
        site.run_until(lambda: site.state(slurm_job_id) is not JobState.RUNNING)
        site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
        site.run(age)
        site.slurm.exit(slurm_job_id, 137)
        site.run(60)
        assert site.state(slurm_job_id) is JobState[outcome]
        site.run(70)
        site.slurm.exit(slurm_job_id, 137)
        site.run(60)
        assert site.state(slurm_job_id) is JobState.FAILED


@pytest.mark.parametrize("exit_code", [137, 143])
def test_a_run_that_was_killed_so_may_leave_an_srun_that_kills_the_next(tmp_path, exit_code):
    """A third kill in a row is the job's own."""
    made = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),), kill_wait=5.0), policy="las")
    with closing(made) as site:
        site.parameters = {"queue_thresholds_gpu_seconds": (100.0,), "promote_knob": 1000.0}
        site.start()
        slurm_job_id = site.add("--gres=gpu:4", stop_seconds=1.0)
        site.run(40)
        site.add("--gres=gpu:4", seconds=5)
        site.run_until(lambda: site.state(slurm_job_id) is not JobState.RUNNING)
        for _ in range(3):
            site.run_until(lambda: site.state(slurm_job_id) is JobState.RUNNING)
            site.run(3)
            site.slurm.exit(slurm_job_id, exit_code)
            site.run(2)
        site.run(60)
        assert site.state(slurm_job_id) is JobState.FAILED
        assert [event.kind for event in site.store.recent_events()].count("killed_by_previous_run") == 2
