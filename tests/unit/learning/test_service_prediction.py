from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.reasons import Code
from metasched.intake import job_intake
from metasched.learning.service_prediction import MAX_RATIO, RECENT, PastJob, expected_service
from metasched.slurm.errors import SlurmPermissionError
from metasched.store import JobRecord, Store
from policies.ares.policy import Ares
from tests.unit import site


def past(*services, script=None):
    return [PastJob(service, script) for service in services]


def test_the_median_of_the_latest_jobs_is_predicted():
    """Older jobs do not count."""
    assert expected_service(past(90.0, 100.0, 130.0)) == 100.0
    assert expected_service(past(*[100.0] * RECENT, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0)) == 100.0


@pytest.mark.parametrize("services", [(), (100.0,), (100.0, 0.0)])
def test_one_job_predicts_nothing(services):
    """Neither does a job that never ran."""
    assert expected_service(past(*services)) is None


def test_jobs_of_very_different_service_predict_nothing():
    """Up to a ratio they do."""
    assert expected_service(past(100.0, 100.0 * MAX_RATIO)) is not None
    assert expected_service(past(100.0, 100.0 * MAX_RATIO + 1, 100.0)) is None


def test_jobs_of_the_same_script_come_first():
    """Jobs of unknown scripts count where these are too few, jobs of other scripts never."""
    mixed = [*past(10.0, 10.0, script="b"), *past(100.0, 100.0, script="a"), *past(40.0, 40.0)]
    assert expected_service(mixed, "a") == 100.0
    assert expected_service(mixed, "c") == 40.0
    assert expected_service(past(10.0, 10.0, script="b"), "a") is None
    assert expected_service(past(10.0, 10.0, script="b")) == 10.0


@given(st.lists(st.floats(1.0, 1e9), max_size=12))
def test_a_prediction_lies_within_the_latest_services(services):
    """For any list of past services."""
    found = expected_service(past(*services))
    assert found is None or min(services[:RECENT]) <= found <= max(services[:RECENT])


def test_the_store_lists_completed_jobs(tmp_path):
    """Of a user and a name, the latest first, without failed and live jobs."""
    with Store.open(tmp_path / "store.sqlite") as store:
        for number, (user, name, state) in enumerate(
            [
                ("ann", "train", "COMPLETED"),
                ("ann", "train", "FAILED"),
                ("bob", "train", "COMPLETED"),
                ("ann", "other", "COMPLETED"),
                ("ann", "train", "COMPLETED"),
                ("ann", "train", None),
            ]
        ):
            uid = f"{number:016x}"
            store.add_job(
                JobRecord(
                    uid=uid, slurm_job_id=f"{number}", name=name, user=user, submitted=1.0, attained={"v100": number}
                )
            )
            if state is not None:
                store.finish_job(uid, 100.0 + number, state, 0)
        assert [record.attained["v100"] for record in store.completed_jobs("ann", "train", 9)] == [4, 0]
        assert [record.attained["v100"] for record in store.completed_jobs("ann", "train", 1)] == [4]


def test_the_daemon_predicts_service_from_completed_jobs(tmp_path, monkeypatch):
    """Ares queues a job with a prediction, and has the first jobs of that name in its pool."""
    monkeypatch.setitem(site.POLICIES, "ares", Ares)
    cluster = site.FakeSite(tmp_path, policy="ares")
    try:
        seen, reasons = [], []
        for _ in range(3):
            slurm_job_id = cluster.add("--gres=gpu:2", "--job-name=nightly", seconds=30)
            cluster.run(3)
            uid = cluster.record(slurm_job_id).uid
            observed = cluster.controller.current_snapshot()
            seen.append(observed.job[uid].expected_service)
            reasons.append(cluster.store.current_reasons()[uid])
            cluster.run(120)
        assert seen[:2] == [None, None]
        services = [record.attained["v100"] for record in cluster.store.recent_jobs(3)[1:]]
        assert seen[2] == pytest.approx(sum(services) / 2)
        assert [reason.code == Code.FAIR_FINISH_POSITION for reason in reasons] == [False, False, True]
    finally:
        cluster.close()


def test_the_daemon_matches_recurring_jobs_by_script(tmp_path):
    """Jobs of the same user and name with another script do not count."""
    cluster = site.FakeSite(tmp_path)
    try:
        for script, seconds in (("long", 60), ("long", 60), ("short", 6), ("short", 6)):
            cluster.add("--gres=gpu:2", "--job-name=nightly", script=script, seconds=seconds)
            cluster.run(80)
        services = [record.attained["v100"] for record in cluster.store.recent_jobs(4)]
        for script, expected in (("long", services[2:]), ("short", services[:2]), ("new", None)):
            slurm_job_id = cluster.add("--gres=gpu:2", "--job-name=nightly", script=script)
            observed = cluster.controller.current_snapshot()
            assert observed.job[cluster.record(slurm_job_id).uid].expected_service == (
                expected and pytest.approx(sum(expected) / 2)
            )
    finally:
        cluster.close()


def test_a_job_is_scheduled_when_its_script_cannot_be_read(tmp_path, monkeypatch):
    """Of many jobs that arrive at once, Slurm is asked for a few scripts in each poll."""
    monkeypatch.setattr(job_intake, "SCRIPT_SECONDS", math.inf)
    monkeypatch.setattr(job_intake, "MOST_UNREAD", job_intake.SCRIPTS + 2)
    cluster = site.FakeSite(tmp_path)

    def refuse(slurm_job_id):
        raise SlurmPermissionError(f"permission denied for {slurm_job_id}")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(cluster.slurm, "batch_script", refuse)
            first = cluster.add("--gres=gpu:2", seconds=5)
            cluster.run(30)
        assert (cluster.record(first).script, cluster.record(first).end_state) == (None, "COMPLETED")
        array = cluster.add("--array=1-4")
        many = [cluster.add() for _ in range(job_intake.SCRIPTS + 5)]
        cluster.controller.poll()
        assert [method for method, _ in cluster.slurm.calls].count("batch_script") == job_intake.SCRIPTS
        assert len({cluster.record(f"{array}_{task}").script for task in range(1, 5)} - {None}) == 1
        assert [cluster.record(slurm_job_id).script is None for slurm_job_id in many].count(True) == 6
        cluster.run(5)
        assert [method for method, _ in cluster.slurm.calls].count("batch_script") == job_intake.SCRIPTS + 2
        assert [cluster.record(slurm_job_id).script is None for slurm_job_id in many].count(True) == 4
    finally:
        cluster.close()


def test_scripts_that_take_long_to_read_are_left_to_later_polls(tmp_path, monkeypatch):
    """A Slurm that answers slowly does not delay the poll by the time of all scripts."""
    cluster = site.FakeSite(tmp_path)
    try:
        jobs = [cluster.add() for _ in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(job_intake, "SCRIPT_SECONDS", 0.0)
            cluster.run(1)
        assert [method for method, _ in cluster.slurm.calls].count("batch_script") == 0
        assert {cluster.record(slurm_job_id).script for slurm_job_id in jobs} == {None}
        cluster.run(5)
        assert None not in {cluster.record(slurm_job_id).script for slurm_job_id in jobs}
    finally:
        cluster.close()
