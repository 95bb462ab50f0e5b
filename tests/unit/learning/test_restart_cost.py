from __future__ import annotations

import pytest

from metasched.learning.restart_cost import RECENT, longest_cut_start, mean_of_latest, measured_restarts
from metasched.slurm.client import JobState
from metasched.store import RunRecord
from policies.gavel.policies import GavelLas
from tests.fakes.fake_slurm import FakeNode, FakeSlurm
from tests.unit import site
from tests.unit.restarted_jobs import RestartedJobs


def run(number, started, **times):
    return RunRecord("a", number, started=started, **times)


def test_a_restart_is_the_stop_and_the_start_after_it():
    """Time in the queue between both does not count; a run without reported steps counts until it is ready."""
    first = run(1, 100.0, stop_requested=200.0, ended=212.0)
    assert measured_restarts([first, run(2, 500.0, ready_at=520.0, first_step_at=533.0)]) == [45.0]
    assert measured_restarts([first, run(2, 500.0, ready_at=520.0)]) == [32.0]


def test_only_restarts_between_started_runs_are_measured():
    """Neither a lost run nor one that is not ready yet tells the cost; a withdrawn run in between changes nothing."""
    stopped, lost = run(1, 100.0, stop_requested=200.0, ended=212.0), run(1, 100.0, ended=212.0)
    after = run(3, 500.0, first_step_at=508.0)
    assert measured_restarts([stopped]) == []
    assert measured_restarts([stopped, run(2, 500.0)]) == []
    assert measured_restarts([lost, after]) == []
    assert measured_restarts([stopped, RunRecord("a", 2, released_at=300.0, ended=310.0), after]) == [20.0]


def test_clocks_that_differ_give_no_negative_cost():
    """Each part is at least 0."""
    before = run(1, 100.0, stop_requested=200.0, ended=195.0)
    assert measured_restarts([before, run(2, 500.0, ready_at=490.0)]) == [0.0]


def test_the_longest_cut_start_after_the_last_run_with_a_step_counts():
    """A trainer that was ready, but was stopped before its first step, has not trained either."""
    cut, shorter = run(1, 100.0, stop_requested=140.0), run(2, 200.0, stop_requested=225.0)
    assert longest_cut_start([cut, shorter]) == 40.0
    assert longest_cut_start([cut, run(2, 200.0, ready_at=280.0, stop_requested=300.0)]) == 100.0
    assert longest_cut_start([cut, run(2, 200.0, first_step_at=280.0)]) is None
    assert longest_cut_start([cut, run(2, 200.0, first_step_at=280.0), run(3, 400.0, stop_requested=425.0)]) == 25.0


def test_only_stop_requests_cut_starts():
    """A run that is starting still, was lost or never started is no cut start; nor is a stop before the start."""
    runs = run(1, 100.0), run(1, 100.0, ended=150.0), RunRecord("a", 1, released_at=100.0, stop_requested=150.0)
    assert [longest_cut_start([one]) for one in (*runs, run(1, 100.0, stop_requested=99.5))] == [None] * 4


def test_a_suspension_is_no_part_of_a_start():
    """The job did not run in those seconds."""
    assert longest_cut_start([run(1, 0.0, stop_requested=90.0, suspended_seconds=60.0)]) == 30.0


def test_the_latest_restarts_count():
    """Their mean is the cost; without any, the cost is not known."""
    assert mean_of_latest([1000.0, *[10.0] * (RECENT - 1), 20.0]) == (10.0 * (RECENT - 1) + 20.0) / RECENT
    assert mean_of_latest([]) is None


@pytest.fixture
def history(tmp_path):
    made = RestartedJobs(tmp_path / "store.sqlite")
    yield made
    made.store.close()


def test_the_cost_of_a_new_job_is_that_of_its_users_jobs(history):
    """Jobs of the same model come first, and jobs of other users never count."""
    history.job(cost=30.0, model="gpt")
    history.job(cost=90.0, model="bert")
    history.job("bob", cost=7.0)
    assert history.cost(history.job(model="gpt"), "gpt") == 30.0
    assert history.cost(history.job(model="vit"), "vit") == 60.0
    assert history.cost(history.job()) == 60.0
    assert history.cost(history.job("eve")) is None


def test_the_own_restarts_of_a_job_come_first(history):
    """They count from the first one on, until the job has ended."""
    history.job(cost=30.0)
    uid = history.job()
    assert history.cost(uid) == 30.0
    history.restart(uid, 0.0)
    assert history.cost(uid) == 0.0
    history.costs.forget(uid)
    assert history.cost(uid) == 0.0


def test_a_cut_start_changes_no_measured_cost(history):
    """The job has a cut start from the first one on, until one of its runs has a first step."""
    uid = history.job(cost=10.0)
    assert history.cut_start_seconds(uid) is None
    history.cut_start(uid, 45.0)
    assert (history.cost(uid), history.cut_start_seconds(uid)) == (10.0, 45.0)
    history.begin(uid, 20.0)
    assert (history.cost(uid), history.cut_start_seconds(uid)) == (15.0, None)


class SlowTrainer(site.ShimTrainer):
    """A trainer that is ready 25 s after its start. A signal before that kills it."""

    start = 0
    ready = False

    def started(self, slurm, job):
        self.start, self.ready = self.start + 1, False
        start = self.start

        def report():
            if self.start == start and slurm.job(job.slurm_job_id).state is JobState.RUNNING:
                self.ready = True
                super(SlowTrainer, self).started(slurm, job)

        slurm.after(25.0, report)

    def signalled(self, slurm, job, signal):
        if self.ready:
            super().signalled(slurm, job, signal)
        else:
            slurm.exit(job.slurm_job_id, 143)


def test_jobs_whose_starts_take_longer_than_a_round_train(tmp_path, monkeypatch):
    """Two jobs share one GPU: both train, although each has had a cut start."""
    monkeypatch.setitem(site.POLICIES, "gavel_las", GavelLas)
    slurm = FakeSlurm(nodes=(FakeNode("n1", gpus=1),))
    cluster = site.FakeSite(tmp_path, slurm, policy="gavel_las", round_seconds=10.0)
    try:
        trainers = [SlowTrainer(shared=tmp_path / "shared") for _ in range(2)]
        for trainer in trainers:
            slurm.add("--hold", "--gres=gpu:1", comment="metasched", user=site.ME, trainer=trainer)
        cluster.run_until(lambda: all(trainer.generation for trainer in trainers))
        assert all(trainer.start > trainer.generation for trainer in trainers)
    finally:
        cluster.close()


def test_the_daemon_measures_restarts(tmp_path):
    """The snapshot has the cost after the first restart, and the user's next job has it from the beginning."""
    cluster = site.FakeSite(tmp_path, policy="las")
    cluster.parameters = {"queue_thresholds_gpu_seconds": (10.0,)}
    cluster.start()

    def known(slurm_job_id):
        return cluster.controller.current_snapshot().job[cluster.record(slurm_job_id).uid].restart_seconds

    def runs():
        return cluster.store.runs(cluster.record(first).uid)

    try:
        first = cluster.add("--nodes=4", "--gres=gpu:4", seconds=100, stop_seconds=3)
        cluster.run(30)
        assert known(first) is None
        cluster.add("--nodes=4", "--gres=gpu:4", seconds=5)
        cluster.run_until(lambda: len(runs()) > 1 and runs()[1].ready_at is not None)
        cluster.run(2)
        assert [known(first)] == measured_restarts(runs())
        assert known(first) == pytest.approx(3.0, abs=1.5)
        assert known(cluster.add(seconds=100)) == known(first)
    finally:
        cluster.close()
