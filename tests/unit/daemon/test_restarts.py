"""Restarts of slurmctld that no command of the daemon fails by."""

import pytest

from metasched.shared_dir.published_status import read as read_status
from metasched.slurm.client import JobState
from metasched.slurm.errors import WrongJobStateError
from metasched.store import EndCause
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import WRITES, FakeSite


class Restarting:
    """A client at whose n-th write slurmctld restarts, just before it or just after it."""

    def __init__(self, slurm, at, *, after):
        self._slurm, self._left, self._after = slurm, at, after

    def __getattr__(self, name):
        method = getattr(self._slurm, name)
        if name not in WRITES:
            return method

        def call(*arguments):
            self._left -= 1
            if self._left == 0 and not self._after:
                self._slurm.restart(2.0)
            method(*arguments)
            if self._left == 0 and self._after:
                self._slurm.restart(2.0)

        return call


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)))
    yield made
    made.close()


def states(site, jobs):
    return {site.state(job) for job in jobs}


def events(site):
    return [event.text for event in site.store.recent_events() if event.kind == "slurmctld_restarted"]


@pytest.mark.parametrize("down", [0.0, 0.4, 3.0, 8.0])
def test_every_restart_is_noticed_and_fails_no_job(site, down):
    """Jobs whose turn comes right after a restart are started when slurmctld knows its GPUs again."""
    jobs = [site.add("--gres=gpu:4", seconds=7) for _ in range(6)]
    site.run(6)
    for restarts in range(1, 4):
        site.slurm.restart(down)
        site.run(3)
        assert len(events(site)) == restarts
        site.run(13)
    site.run_until(lambda: states(site, jobs) == {JobState.COMPLETED})


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", [1, 2, 3, 6, 10])
def test_a_restart_in_the_middle_of_the_actions_fails_no_job(site, write, after):
    """Whichever write meets it: no job is released by what was read before the restart."""
    jobs = [site.add("--gres=gpu:2", seconds=3) for _ in range(4)]
    site.start(Restarting(site.slurm, write, after=after))
    site.run_until(lambda: states(site, jobs) == {JobState.COMPLETED})
    assert len(events(site)) == 1


def test_a_restart_at_a_release_is_noticed_where_the_job_cannot_be_held_again(site, monkeypatch):
    """The job has started already."""
    release = site.slurm.release

    def restart_and_release(slurm_job_id):
        site.slurm.restart(1.0)
        release(slurm_job_id)

    def refuse(_slurm_job_id):
        raise WrongJobStateError

    job = site.add("--gres=gpu:1", seconds=2)
    monkeypatch.setattr(site.slurm, "release", restart_and_release)
    monkeypatch.setattr(site.slurm, "hold", refuse)
    site.run(1)
    monkeypatch.undo()
    assert len(events(site)) == 1
    site.run_until(lambda: site.state(job) is JobState.COMPLETED)


def test_the_status_says_that_slurmctld_has_restarted(site):
    """Until the daemon acts again; the jobs in it are those of the present poll."""
    site.run(3)
    site.slurm.restart()
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(2)
    status = read_status(site.base / "shared")
    assert "slurmctld has restarted" in status.slurm
    assert [job.status for job in status.jobs] == ["held"]
    site.run_until(lambda: site.state(job) is JobState.RUNNING, 20)
    assert read_status(site.base / "shared").slurm == "ok"
    assert EndCause.LOST not in [run.cause for run in site.store.runs(site.record(job).uid)]


def test_a_daemon_that_starts_with_slurmctld_settles_first(site):
    """A host that was rebooted starts both at once."""
    first = site.add("--gres=gpu:1", seconds=2)
    site.run_until(lambda: site.state(first) is JobState.COMPLETED)
    second = site.add("--gres=gpu:1", seconds=2)
    site.slurm.restart(1.0)
    site.start()
    site.run_until(lambda: site.state(second) is JobState.COMPLETED)


def test_a_daemon_that_starts_long_after_slurmctld_settles_too(site):
    """A controller that was frozen since its restart knows its nodes no better than a new one."""
    first = site.add("--gres=gpu:1", seconds=2)
    site.run_until(lambda: site.state(first) is JobState.COMPLETED)
    site.slurm.restart()
    site.slurm.tick(60.0)
    site.start()
    site.run(1)
    assert len(events(site)) == 1


def test_a_restart_in_the_second_of_the_last_round_is_noticed(site):
    """Slurm tells its boot time in whole seconds, rounded down; no daemon ran at the restart."""
    site.run(3)
    site.slurm.tick(0.2 - site.slurm.now % 1.0 + 1.0)
    site.controller.poll()
    site.add("--gres=gpu:1", seconds=2)
    site.controller.poll()
    site.slurm.tick(0.3)
    site.slurm.restart()
    site.start()
    site.run(2)
    assert len(events(site)) == 1


def test_a_daemon_that_starts_again_under_the_same_slurmctld_does_not_settle(site):
    first = site.add("--gres=gpu:1", seconds=2)
    site.run_until(lambda: site.state(first) is JobState.COMPLETED)
    site.slurm.tick(60.0)
    site.start()
    site.run(1)
    assert events(site) == []
