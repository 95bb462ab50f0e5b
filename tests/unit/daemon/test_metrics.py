"""The file of metrics of a daemon on a fake Slurm."""

from contextlib import closing

import pytest

from metasched.daemon.metrics_publisher import FILE_NAME
from metasched.slurm.client import JobState
from metasched.slurm.errors import SlurmUnavailableError
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite


@pytest.fixture
def site(tmp_path):
    with closing(FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"), FakeNode("n2"))))) as made:
        yield made


def metrics(site):
    """The values by series."""
    lines = (site.base / "shared" / FILE_NAME).read_text().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] not in "# ")}


def total(site, start):
    return sum(value for name, value in metrics(site).items() if name.startswith(start))


def test_the_metrics_follow_the_jobs_and_survive_a_restart(site):
    """GPUs, states, counters and histograms are those of the jobs; no counter falls when another daemon continues."""
    jobs = [site.add("--gres=gpu:4", seconds=60) for _ in range(3)]
    site.run(20)
    found = metrics(site)
    assert (found['metasched_jobs{state="running"}'], found['metasched_jobs{state="held"}']) == (2, 1)
    assert total(site, "metasched_waiting{") == 1
    assert found["metasched_waiting_jobs_that_fit"] == 0
    assert sum(value for name, value in found.items() if name.startswith("metasched_gpus") and "used" in name) == 8
    assert found["metasched_wait_seconds_count"] == 2
    assert found["metasched_slurm_reachable"] == 1
    assert {'metasched_poll_seconds{step="observe"}', "metasched_decide_seconds"} <= found.keys()
    before = total(site, "metasched_account_gpu_seconds_total")
    assert before > 0
    site.start()
    site.run(6)
    assert total(site, "metasched_account_gpu_seconds_total") > before
    site.run_until(lambda: all(site.state(job) is JobState.COMPLETED for job in jobs))
    site.run(10)
    found = metrics(site)
    assert found['metasched_runs_ended_total{cause="finished"}'] == found["metasched_completion_seconds_count"] == 3
    stored = sum(sum(record.attained.values()) for record in site.records())
    assert total(site, "metasched_account_gpu_seconds_total") == pytest.approx(stored)


def test_an_outage_of_slurm_shows_at_once(site, monkeypatch):
    """The last metrics are published again, with Slurm out of reach."""
    site.run(6)

    def down():
        raise SlurmUnavailableError("down")

    with monkeypatch.context() as broken:
        broken.setattr(site.slurm, "jobs", down)
        site.run(3)
        assert metrics(site)["metasched_slurm_reachable"] == 0
    site.run(15)
    assert metrics(site)["metasched_slurm_reachable"] == 1


def test_private_data_and_the_configuration(tmp_path, monkeypatch):
    """Under PrivateData no series names an account; without `file` there is none at all."""
    slurm = FakeSlurm(nodes=(FakeNode("n1"),))
    settings = slurm.settings()
    settings.values["PrivateData"] = "jobs"
    monkeypatch.setattr(slurm, "settings", lambda: settings)
    with closing(FakeSite(tmp_path, slurm)) as site:
        site.add("--gres=gpu:4", seconds=60)
        site.run(8)
        assert not [name for name in metrics(site) if "account" in name]
        (site.base / "shared" / FILE_NAME).unlink()
        off = site.config.model_copy(update={"metrics": site.config.metrics.model_copy(update={"file": False})})
        site.controller.reconfigure(off, site.controller.policy)
        site.run(8)
        assert not (site.base / "shared" / FILE_NAME).exists()
