"""The fake Slurm with faults: what its controller forgets, and how its commands block."""

import pytest

from metasched.core.model import Hold
from metasched.slurm.client import JobState
from metasched.slurm.errors import SlurmTimeoutError, SlurmUnavailableError
from tests.fakes.fake_slurm import Trainer
from tests.fakes.faulty_slurm import ANSWER_SECONDS, TERMINATED, FaultyClient, FaultySlurm, Killed


@pytest.fixture
def slurm():
    return FaultySlurm()


def running(slurm, *options):
    """A job that has run for a while, without GPUs."""
    job = slurm.add(*options, trainer=Trainer())
    slurm.tick(10)
    return job


def test_a_command_blocks_until_the_controller_is_back(slurm):
    """A short outage is no error; the clock advances."""
    job = running(slurm, "--hold")
    slurm.stop_controller(3.0)
    began = slurm.now
    FaultyClient(slurm).hold(job)
    assert slurm.now == began + 3.0
    assert slurm.job(job).hold is Hold.ADMIN


def test_a_command_gives_up_on_a_controller_that_stays_away(slurm):
    """A longer outage is an error after some seconds, and the jobs continue meanwhile."""
    job = slurm.add(trainer=Trainer(seconds=5.0))
    slurm.tick(1)
    slurm.stop_controller(30.0)
    with pytest.raises(SlurmUnavailableError):
        FaultyClient(slurm).jobs()
    assert slurm.job(job).state is JobState.COMPLETED


def test_nothing_starts_while_the_controller_is_away(slurm):
    """A job starts when the controller is back."""
    slurm.stop_controller(5.0)
    job = slurm.add(trainer=Trainer())
    slurm.tick(4.9)
    assert slurm.job(job).state is JobState.PENDING
    slurm.tick(1)
    assert slurm.job(job).state is JobState.RUNNING


def test_a_killed_controller_forgets_young_jobs_and_reuses_their_ids(slurm):
    """A job that was never saved is gone."""
    old = running(slurm)
    young = slurm.add(name="young", trainer=Trainer())
    slurm.kill_controller(0.1)
    slurm.tick(1)
    assert [job.slurm_job_id for job in slurm.jobs()] == [old]
    assert slurm.lost == ["young"]
    assert slurm.add(trainer=Trainer()) == young


def test_a_killed_controller_forgets_what_was_done_since_it_saved(slurm):
    """A hold is lost; a start is, too, and so the job starts again, with the same count of restarts."""
    held, started = running(slurm, "--hold"), running(slurm, "--hold")
    slurm.hold(held)
    slurm.release(started)
    slurm.tick(1)
    assert slurm.job(started).state is JobState.RUNNING
    slurm.kill_controller(0.1)
    slurm.tick(0.2)
    for job in (held, started):
        assert (slurm.job(job).state, slurm.job(job).hold) == (JobState.PENDING, Hold.USER)


def test_a_requeue_that_a_killed_controller_forgot_is_made_again(slurm):
    """The node knows no such job: it is queued, without a hold."""
    job = running(slurm)
    slurm.requeue_hold(job)
    slurm.tick(1)
    slurm.kill_controller(0.1)
    shown = slurm.job(job)
    assert (shown.state, shown.hold, shown.restarts) == (JobState.PENDING, Hold.NONE, 1)


def test_jobs_that_start_right_after_a_restart_fail(slurm):
    """Their trainer has not started; later ones run."""
    early, late = running(slurm, "--hold", "--gres=gpu:1"), running(slurm, "--hold", "--gres=gpu:1")
    slurm.kill_controller(0.1)
    slurm.tick(1)
    slurm.release(early)
    slurm.tick(1)
    assert (slurm.job(early).state, slurm.job(early).exit_code) == (JobState.FAILED, 1)
    slurm.tick(6)
    slurm.release(late)
    slurm.tick(1)
    assert slurm.job(late).state is JobState.RUNNING


def test_a_node_that_is_back_at_once_ends_the_first_run(slurm):
    """Slurm's late kill of the old run meets the new one."""
    job = running(slurm, "-w", "n1")
    slurm.lose_node("n1", 0.2)
    slurm.tick(0.3)
    slurm._show(slurm._one(job), eligible=slurm.now)
    slurm.tick(1)
    assert (slurm.job(job).state, slurm.job(job).exit_code) == (JobState.FAILED, TERMINATED)


def test_an_answer_that_is_lost_is_a_timeout(slurm):
    """The write takes effect."""
    job = running(slurm, "--hold")
    client, began = FaultyClient(slurm), slurm.now
    client.lost_answers = 1
    with pytest.raises(SlurmTimeoutError):
        client.hold(job)
    assert slurm.job(job).hold is Hold.ADMIN
    assert slurm.now == began + ANSWER_SECONDS


@pytest.mark.parametrize("after", [False, True])
def test_the_daemon_dies_at_a_write(slurm, after):
    """Before or after the write takes effect."""
    job = running(slurm, "--hold")
    client = FaultyClient(slurm)
    client.writes_to_death, client.dies_after = 1, after
    with pytest.raises(Killed):
        client.hold(job)
    assert (slurm.job(job).hold is Hold.ADMIN) is after
