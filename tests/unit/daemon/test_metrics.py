"""The file of metrics of a daemon on a fake Slurm."""

import errno
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from metasched.core.model import Placement
from metasched.daemon import metrics_publisher
from metasched.daemon.metrics_publisher import FILE_NAME
from metasched.metrics.exposition import MAX_SERIES
from metasched.slurm.client import JobState
from metasched.slurm.errors import SlurmUnavailableError
from metasched.store import EndCause, JobRecord
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


def test_what_has_not_happened_yet_is_0(site):
    """Prometheus counts no growth to a series' first value: without the zero it would not see the first ends."""
    site.run(5)
    found = metrics(site)
    assert all(found[f'metasched_runs_ended_total{{cause="{cause}"}}'] == 0 for cause in EndCause)
    assert (found['metasched_jobs{state="running"}'], found['metasched_jobs{state="held"}']) == (0, 0)


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


def test_no_counter_falls_when_a_daemon_takes_over_from_an_older_copy(site):
    """The other daemon has published more than the copy has; its counters stand until the own ones have passed them."""
    site.add("--gres=gpu:4", seconds=5)
    site.run(20)
    path = site.base / "shared" / FILE_NAME
    name, count = 'metasched_runs_ended_total{cause="finished"}', "metasched_wait_seconds_count"
    before = metrics(site)
    assert before[name] == before[count] == 1
    path.write_text(path.read_text().replace(f"{name} 1.0", f"{name} 2.0").replace(f"{count} 1.0", f"{count} 2.0"))
    site.start()
    site.run(8)
    assert (metrics(site)[name], metrics(site)[count]) == (2, 2)
    for _ in range(2):
        site.add("--gres=gpu:4", seconds=5)
    site.run(40)
    assert (metrics(site)[name], metrics(site)[count]) == (3, 3)


def test_500_accounts_and_1000_users_stay_within_the_bound(site):
    """No series names a user; of the accounts a hundred have their own, and sums are whole."""
    placement = Placement(("n1",), 4, "v100")
    store = site.controller._store
    with store.transaction():
        for number in range(1000):
            uid = f"{number:016x}"
            store.add_job(
                JobRecord(uid, str(9000 + number), "x", f"user{number}", 1.0, account=f"account{number % 500}")
            )
            store.release(uid, 1, placement, 2.0)
            store.run_started(uid, 1, 2.0, placement)
            store.run_ended(uid, 1, 12.0, EndCause.FINISHED)
            store.finish_job(uid, 12.0, "COMPLETED", 0)
    site.run(8)
    found = metrics(site)
    assert len(found) <= MAX_SERIES
    assert "user" not in " ".join(found)
    accounts = [name for name in found if name.startswith("metasched_account_gpu_seconds_total")]
    assert len(accounts) == 101
    assert total(site, "metasched_account_gpu_seconds_total") == 1000 * 40


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


def test_a_full_disk_is_a_log_line_and_no_more(site, monkeypatch):
    """The old file stays whole, scheduling goes on, and the metrics are written again once there is room."""
    site.run(6)
    before = metrics(site)

    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(metrics_publisher, "replace_file", full)
        job = site.add("--gres=gpu:4", seconds=600)
        site.run(20)
        assert site.state(job) is JobState.RUNNING
    assert metrics(site) == before
    (line,) = [line for line in logs if line["event"] == "metrics_not_published"]
    assert (line["error"], line["log_level"]) == ("No space left on device", "warning")
    site.run(6)
    assert metrics(site)['metasched_jobs{state="running"}'] == 1


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
