import pytest

from metasched.core.policy import installed_policies
from metasched.forecast.queue_forecast import Effort, forecast_queue
from metasched.forecast.round_follower import RoundFollower, Task
from metasched.forecast.situation import NoRoundError, latest_round, read_situation
from metasched.simulator.records import Settings
from metasched.slurm.client import JobState
from metasched.store import Store
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

SETTINGS = Settings(round_seconds=10.0, start_seconds=1.0, restart_seconds=1.0)
EFFORT = Effort(samples=5)


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]))
    yield made
    made.close()


def test_the_first_simulated_round_is_the_daemons(site):
    """A job that the daemon has started is forecast to end, and a job that waits for it to start at that end."""
    first, second = site.add("--gres=gpu:4"), site.add("--gres=gpu:4")
    site.run_until(lambda: site.state(first) is JobState.RUNNING)
    site.run(12)
    with Store.open(site.store.path, read_only=True) as store:
        found = forecast_queue(read_situation(store, installed_policies(), SETTINGS, EFFORT), EFFORT)
    of = {one.uid: one for one in found.jobs}
    runs, waits = of[site.record(first).uid], of[site.record(second).uid]
    assert runs.start is None
    assert found.at < runs.end.low <= runs.end.median <= runs.end.high
    assert runs.end.median - 1.0 <= waits.start.median < waits.end.median
    assert (found.samples, found.left_out, found.policy) == (5, 0, "fifo")


def test_the_same_round_gives_the_same_forecast(site):
    """The seed is the number of the round."""
    site.add("--gres=gpu:2")
    site.run(3)
    with Store.open(site.store.path, read_only=True) as store:
        situation = read_situation(store, installed_policies(), SETTINGS, EFFORT)
        assert forecast_queue(situation, EFFORT) == forecast_queue(situation, EFFORT)


def test_without_a_snapshot_the_fix_is_named(tmp_path):
    """A store without rounds, and one whose rounds have no snapshots, tell what is missing."""
    with Store.open(tmp_path / "metasched.db") as store, pytest.raises(NoRoundError, match="no round"):
        read_situation(store, installed_policies(), SETTINGS, EFFORT)
    site = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]))
    site.controller.config = site.config.model_copy(
        update={"history": site.config.history.model_copy(update={"snapshots_bytes": 0})}
    )
    site.run(25)
    with pytest.raises(NoRoundError, match="snapshots_bytes"):
        read_situation(site.store, installed_policies(), SETTINGS, EFFORT)
    site.close()


def test_a_follower_waits_for_the_snapshot_which_comes_after_the_actions(site, monkeypatch):
    """While a round acts, its follower still sees the one before: it tells no problem, and leaves no round out."""
    rounds, problems, update = [], [], site.slurm.update

    def work(store, _):
        rounds.append(latest_round(store)[0].round)
        return b""

    def on_problem(_, text):
        problems.append(text)
        return b""

    task = Task(str(site.store.path), str(site.base / "results"), 1.0, 1.0, "console", {})
    follower = RoundFollower(task, work, on_problem)
    during = []
    monkeypatch.setattr(site.slurm, "update", lambda *given: during.append(follower.step()) or update(*given))
    for _ in range(2):
        site.add("--gres=gpu:1", seconds=60)
        site.run(2)
        assert follower.step()
    assert during == [False, False]
    assert rounds == [1, site.controller.round_number]
    assert problems == []
