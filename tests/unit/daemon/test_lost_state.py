"""What a slurmctld that crashed has forgotten, or tells wrongly."""

import pytest
from rich.console import Console

from metasched.cli.status_tables import overview
from metasched.core.model import Hold
from metasched.shared_dir.published_status import read as read_status
from metasched.slurm.client import JobState
from tests.fakes.fake_slurm import FakeSlurm, Trainer
from tests.unit.site import FakeSite, Killed


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm(), poll_seconds=3.0)
    yield made
    made.close()


def trained(site, cause="final"):
    """A job that runs, and whose trainer has just saved a checkpoint."""
    job = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(3)
    line = {"kind": "checkpoint", "step": 10, "seconds": 0.1, "bytes": 1, "cause": cause}
    site.slurm.trainer(job).write(site.slurm, **line)
    return job, site.record(job).uid


def told(site, uid):
    """The end state in the store, that in the status, and the words of the last event."""
    shown = {job.uid: job.status for job in read_status(site.base / "shared").finished}
    return site.store.job(uid).end_state, shown[uid], site.store.recent_events(1, uid)[0].text


@pytest.mark.parametrize(("cause", "state"), [("final", "COMPLETED"), ("periodic", "GONE")])
def test_a_trained_job_that_slurm_forgot_counts_as_completed(site, cause, state):
    """Another job that vanishes is gone."""
    job, uid = trained(site, cause)
    del site.slurm._jobs[job]
    site.run(45)
    assert told(site, uid)[:2] == (state, state.lower())
    assert ("final checkpoint" in told(site, uid)[2]) is (cause == "final")


@pytest.mark.parametrize(
    ("cause", "code", "state"), [("final", 143, "COMPLETED"), ("final", 1, "FAILED"), ("periodic", 143, "FAILED")]
)
def test_a_trained_job_that_slurm_says_has_failed_counts_as_completed(site, cause, code, state):
    """Unless its script itself failed, after the training or during it."""
    job, uid = trained(site, cause)
    site.slurm.exit(job, code)
    site.run(6)
    assert told(site, uid)[:2] == (state, state.lower())
    assert site.state(job) is JobState.FAILED


def test_a_run_that_slurm_shows_again_after_its_end_is_put_back(site):
    """No node has it; the job runs again, as the next run, and nothing counts as started without a plan."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(6)
    uid, before = site.record(job).uid, site.slurm.job(job)
    site.slurm.requeue_hold(job)
    site.run(1)
    fake = site.slurm._jobs[job]
    fake.shown, fake.trainer, kept = before, Trainer(), fake.trainer  # the controller has forgotten the end
    site.run(24)
    assert [run.started is not None for run in site.store.runs(uid)] in ([True], [True, False])
    fake.trainer = kept
    site.run_until(lambda: site.state(job) is JobState.COMPLETED, 200)
    kinds = [event.kind for event in site.store.recent_events(1000, uid)]
    assert kinds.count("recovered_run") == 1
    assert "started_without_us" not in kinds
    assert sum(run.started is not None for run in site.store.runs(uid)) == 2


def test_an_older_run_that_slurm_shows_instead_of_the_present_one_is_put_back(site):
    """The controller has forgotten the end of one run and the start of the next, on another node: neither runs."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(6)
    uid, before = site.record(job).uid, site.slurm.job(job)
    site.slurm.node_drain(next(iter(before.allocated)), "broken fan")
    site.slurm.requeue_hold(job)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(6)
    fake = site.slurm._jobs[job]
    assert fake.shown.allocated.keys() != before.allocated.keys()
    site.slurm._nodes.drained.clear()
    fake.shown, fake.trainer, kept = before, Trainer(), fake.trainer
    site.run(24)
    assert site.state(job) is JobState.RUNNING
    fake.trainer = kept
    site.run_until(lambda: site.state(job) is JobState.COMPLETED, 200)
    assert [event.kind for event in site.store.recent_events(1000, uid)].count("recovered_run") == 1


@pytest.mark.parametrize(("age", "runs_on"), [(1, True), (90, False)])
def test_a_job_that_fails_at_once_in_a_start_that_slurm_repeated_is_put_back(site, age, runs_on):
    """The controller has forgotten the job's start, and the node ends what it takes for the first one."""
    job = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(3)
    for node in site.slurm.nodes():
        site.slurm.node_drain(node.name)
    site.slurm.requeue_hold(job)
    site.run_until(lambda: site.record(job).current is None)
    now = site.slurm.now
    failed = {"state": JobState.FAILED, "slurm_state": "FAILED", "exit_code": 1, "started": now - age, "ended": now}
    site.slurm._show(site.slurm._jobs[job], **failed, hold=Hold.NONE)
    site.slurm._nodes.drained.clear()
    site.run(30)
    assert site.state(job) is (JobState.RUNNING if runs_on else JobState.FAILED)


def test_the_status_names_nodes_that_were_drained_for_a_reused_id(site):
    """With the command that returns them to service; other drained nodes have their reason alone."""
    site.slurm.node_drain("n1", "Duplicate jobid [root@2026-11-23T16:56:23]")
    site.slurm.node_drain("n2", "broken fan")
    site.run(4)
    console = Console(width=200)
    with console.capture() as text:
        console.print(overview(read_status(site.base / "shared"), site.slurm.now, 10))
    assert "scontrol update nodename=n1 state=resume" in text.get()
    assert "takes no new jobs: broken fan" in text.get()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_daemon_killed_at_the_end_of_a_job_leaves_no_lease(site, monkeypatch, forgotten, after):
    """A lease that nobody removes would keep the job's checkpoint directory from the job that continues it."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(3)
    leases, finish = site.base / "shared" / "mailbox", site.store.finish_job
    uid = site.record(job).uid
    assert (leases / uid).exists()

    def die(*arguments):
        if after:
            finish(*arguments)
        raise Killed

    if forgotten:
        del site.slurm._jobs[job]
    else:
        site.slurm.exit(job, 1)
    with monkeypatch.context() as patch:
        patch.setattr(site.store, "finish_job", die)
        with pytest.raises(Killed):
            site.run(45)
    site.start()
    site.run(10)
    assert site.store.job(uid).finished is not None
    assert not (leases / uid).exists()
    assert not (leases / "address" / job).exists()


def test_a_job_that_slurm_forgot_ends_under_a_daemon_that_keeps_being_killed(site):
    """The time for which it is missing goes on over the daemon's starts."""
    uid = trained(site, "periodic")[1]
    site.slurm._jobs.clear()
    for _ in range(4):
        site.run(9)
        site.start()
    site.run(3)
    assert told(site, uid)[:2] == ("GONE", "gone")


def test_a_job_that_slurm_lists_again_is_missing_anew(site):
    """Two short gaps in Slurm's list, a daemon's start between them, are not one long gap."""
    job, uid = trained(site, "periodic")
    for _ in range(2):
        kept = site.slurm._jobs.pop(job)
        site.run(20)
        site.slurm._jobs[job] = kept
        site.run(3)
        site.start()
        site.run(10)
    assert site.store.job(uid).finished is None
    kinds = [event.kind for event in site.store.recent_events(1000, uid)]
    assert kinds.count("missing") == kinds.count("listed_again") == 2
