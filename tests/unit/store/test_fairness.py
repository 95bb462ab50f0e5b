"""The cluster's load over time, and the fairness of ended jobs, by job, user and account."""

import pytest

from metasched.core.batching import BatchControl, Batching, BatchPlan
from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason
from metasched.store import EndCause, JobRecord, SpeedRecord
from metasched.store.load_rows import ClusterLoad

T0 = 1_800_000_000.0
TWO = Placement(("n1",), 2, "v100")
FOUR_WANTED = ClusterLoad(4, 3, 32, {"v100": 8})


def commit(store, number, at, load):
    state, reasons = PolicyState(1, {}), {}
    facts = {"policy": "fifo", "parameters": {}, "state": state, "targets": {}, "reasons": reasons, "load": load}
    store.commit_round(number, at=at, decide_seconds=0.0, **facts)


def complete(store, uid, *, at=T0 + 400, run=(100, 400), state="COMPLETED", **fields):
    """A job of 2 GPUs that runs from ``run[0]`` to ``run[1]`` seconds after T0."""
    given = {"user": "ann", "account": "ml", "submitted": T0, "requirements": {"gpus": 2}, **fields}
    store.add_job(JobRecord(uid, uid, uid, **given))
    store.release(uid, 1, TWO, T0 + run[0])
    store.run_started(uid, 1, T0 + run[0], TWO)
    store.run_ended(uid, 1, T0 + run[1], EndCause.FINISHED)
    store.finish_job(uid, at, state, 0)


def test_means_of_the_load_need_two_rows_alone(store):
    """Between rounds the load stays; before the first round it counts as that of the first."""
    assert store.load_integrals(T0) is None
    commit(store, 1, T0, FOUR_WANTED)
    commit(store, 2, T0 + 50, FOUR_WANTED)
    commit(store, 3, T0 + 100, ClusterLoad(1, 1, 2, {"v100": 8}))
    assert store.table_sizes()["load"] == 2
    mean = store.load_integrals(T0 + 200).mean_since(store.load_integrals(T0 - 100))
    assert (mean.jobs, mean.apps) == pytest.approx((3.0, 7 / 3))
    assert mean.contention == pytest.approx((200 * 4.0 + 100 * 0.25) / 300)
    now = store.load_integrals(T0 + 5)
    assert now.mean_since(now).contention == 4.0


def test_a_clock_that_is_set_back_leaves_no_future_load(store):
    """The present load goes on from the instant that the clock has now; integrals never fall."""
    commit(store, 1, T0, FOUR_WANTED)
    commit(store, 2, T0 + 100, ClusterLoad(1, 1, 2, {"v100": 8}))
    store.clock_set_back(T0 + 40)
    assert store.load_integrals(T0 + 40).load.jobs == 1
    assert store.load_integrals(T0 + 50).contention_seconds == pytest.approx(400 + 10 * 0.25)
    commit(store, 3, T0 + 60, FOUR_WANTED)
    assert store.load_integrals(T0 + 70).contention_seconds == pytest.approx(400 + 20 * 0.25 + 10 * 4)


def test_a_completed_job_has_its_final_rho(store):
    """Without a measured speed its service over its GPUs is its time alone: here 300 s of 400, at contention 4."""
    commit(store, 1, T0, FOUR_WANTED)
    complete(store, "a")
    found = store.fairness("a")
    assert (found.alone, found.measured, found.gpu_seconds) == (300.0, False, 600.0)
    assert found.rho == pytest.approx(
        {"pollux": 400 / 1200, "shockwave_live": 400 / 300, "themis": 400 / 900, "gavel": 400 / 300}
    )


def test_a_measured_speed_tells_the_time_alone(store):
    """The fastest placement of as many GPUs without a co-runner, at the job's batch size."""
    commit(store, 1, T0, FOUR_WANTED)
    batching = Batching(64, plan=BatchPlan(32, 1), global_batch=64)
    for spread, co_runner, speed, batch in (
        *(((1, 1), None, 4.0, 64), ((2,), None, 5.0, 64), ((2,), None, 50.0, 128), ((2,), "b", 60.0, 64)),
        ((4,), None, 9.0, 64),
    ):
        store.set_speed(SpeedRecord("ann/bert", "v100", spread, co_runner, speed, T0, batch))
    needs = {"gpus": 2, "model": "bert"}
    complete(store, "a", requirements=needs, batching=batching, progress_steps=1000.0)
    assert (store.fairness("a").alone, store.fairness("a").measured) == (200.0, True)
    adaptive = Batching(64, control=BatchControl.SCHEDULER, global_batch=64)
    complete(store, "b", requirements=needs, batching=adaptive, progress_steps=1000.0)
    assert not store.fairness("b").measured


@pytest.mark.parametrize(
    ("fields", "load"),
    [
        ({"state": "FAILED"}, FOUR_WANTED),
        ({"requirements": {}}, FOUR_WANTED),
        ({"end_reason": Reason.text("a tuner ended it")}, FOUR_WANTED),
        ({}, None),
        ({}, ClusterLoad(1, 1, 2, {})),
    ],
    ids=["failed", "without GPUs", "ended by a tuner", "no load known", "no GPUs in the cluster"],
)
def test_a_rho_that_is_not_defined_is_missing(store, fields, load):
    """The GPU time is there all the same."""
    commit(store, 1, T0, load)
    complete(store, "a", **fields)
    assert (store.fairness("a").rho, store.fairness("a").gpu_seconds) == ({}, 600.0)


@pytest.mark.parametrize("fields", [{"slurm_job_id": "7_1"}, {"requirements": {"gpus": 2, "app": "search"}}])
def test_themis_rates_apps_and_no_member_of_one(store, fields):
    """The other definitions rate every job."""
    commit(store, 1, T0, FOUR_WANTED)
    slurm_job_id = fields.pop("slurm_job_id", "a")
    store.add_job(
        JobRecord("a", slurm_job_id, "a", **{"user": "ann", "submitted": T0, "requirements": {"gpus": 2}} | fields)
    )
    store.release("a", 1, TWO, T0)
    store.run_started("a", 1, T0, TWO)
    store.finish_job("a", T0 + 100, "COMPLETED", 0)
    assert store.fairness("a").rho.keys() == {"pollux", "shockwave_live", "gavel"}


def test_a_job_that_comes_back_has_no_fairness_until_it_ends_again(store):
    """A second end replaces the first one's."""
    commit(store, 1, T0, FOUR_WANTED)
    complete(store, "a")
    store.revive_job("a")
    assert store.fairness("a") is None
    store.finish_job("a", T0 + 800, "COMPLETED", 0)
    assert store.fairness("a").rho["pollux"] == pytest.approx(800 / 1200)


def test_fairness_by_user_and_account_over_a_window(store):
    """Worst first; users without a rated job come last; jobs outside the window do not count."""
    commit(store, 1, T0, ClusterLoad(1, 1, 4, {"v100": 8}))
    complete(store, "a")
    complete(store, "b", at=T0 + 500, user="ben", account=None)
    complete(store, "c", at=T0 + 600, user="ben")
    complete(store, "d", state="FAILED", user="cat")
    complete(store, "e", at=T0 + 5000)
    window = {"since": T0, "until": T0 + 1000}
    by_user = store.fairness_by("user", **window)
    assert [(one.name, one.jobs, one.rated) for one in by_user] == [("ben", 2, 2), ("ann", 1, 1), ("cat", 1, 0)]
    assert (by_user[0].rho_worst, by_user[0].unfair, by_user[0].gpu_seconds) == (2.0, 1.0, 1200.0)
    assert (by_user[2].rho_mean, by_user[2].unfair) == (None, None)
    assert {one.name for one in store.fairness_by("account", **window)} == {"ml", None}
    assert [one.uid for one in store.recent_fairness(2)] == ["e", "c"]
    assert [one.uid for one in store.recent_fairness(**window, user="ben")] == ["c", "b"]
    assert [one.uid for one in store.recent_fairness(1, **window, account="ml", offset=1)] == ["d"]
    with pytest.raises(ValueError, match="no fairness 'ares'"):
        store.fairness_by("user", definition="ares")


@pytest.mark.parametrize("condition", ["", "user = 'ann' AND ", "account = 'ml' AND "])
def test_windows_of_fairness_use_an_index(store, condition):
    """No query reads the whole table."""
    window = f"{condition}finished >= 1 AND finished < 2 ORDER BY finished DESC"
    sql = f"EXPLAIN QUERY PLAN SELECT * FROM fairness WHERE {window}"  # noqa: S608  constants
    plan = " ".join(row[3] for row in store._rows(sql))
    assert "USING INDEX fairness_" in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


def test_pruning_keeps_the_load_since_the_oldest_live_job(store):
    """The fairness of a job that lives is as before; deleted jobs leave no fairness."""
    for number in range(1, 9):
        commit(store, number, T0 + 100 * number, ClusterLoad(number, 1, number, {"v100": 8}))
    store.add_job(JobRecord("a", "1", "a", "ann", T0 + 350))
    before = store.load_integrals(T0 + 350)
    store.prune_some(T0 + 700)
    assert store.table_sizes()["load"] == 6
    assert store.load_integrals(T0 + 350) == before
    store.finish_job("a", T0 + 600, "COMPLETED", 0)
    store.prune_some(T0 + 700)
    assert store.table_sizes()["load"] == 2
    store.prune_some(T0 + 700)
    assert store.delete_some_jobs(T0 + 700) == 1
    assert store.table_sizes()["fairness"] == 0
