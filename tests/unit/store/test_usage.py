import datetime as dt

import pytest

from metasched.core.model import Placement
from metasched.store import EndCause, JobRecord

HOUR = 3600.0
AT = dt.datetime(2025, 3, 31, 22, 0).timestamp()  # two hours before April, in this host's time zone  # noqa: DTZ001


V100 = Placement(("n1",), 4, "v100")


def add(
    store,
    uid,
    user,
    *,
    submitted=AT,
    started=AT,
    ended=None,
    cause=EndCause.FINISHED,
    account=None,
    placement=V100,
):
    """Store a job with one run."""
    store.add_job(JobRecord(uid=uid, slurm_job_id=uid, name="x", user=user, submitted=submitted, account=account))
    store.release(uid, 1, placement, started)
    store.run_started(uid, 1, started, placement)
    if ended is not None:
        store.run_ended(uid, 1, ended, cause)
        if cause is EndCause.FINISHED:
            store.finish_job(uid, ended, "COMPLETED", 0)


def test_gpu_hours_waits_and_preemptions_by_user(store):
    """Held GPUs count by the hour, waits to the first start; the largest user is first."""
    add(store, "a", "ada", ended=AT + HOUR)
    add(store, "b", "bob", submitted=AT - 600, ended=AT + 3 * HOUR, cause=EndCause.PREEMPTED)
    bob, ada = store.usage("user", AT - HOUR, AT + 10 * HOUR)
    assert (bob.group, bob.gpu_hours, bob.preemptions, bob.completed, bob.wait_mean) == ("bob", 12.0, 1, 0, 600.0)
    assert (ada.group, ada.gpu_hours, ada.jobs, ada.completed, ada.wait_mean) == ("ada", 4.0, 1, 1, 0.0)
    assert (ada.wait_p90, ada.rho_mean) == (None, None)


def test_a_window_cuts_runs(store):
    """Only the part of a run inside the window counts; an open run counts to the end of the window."""
    add(store, "a", "ada")
    (found,) = store.usage("user", AT + HOUR, AT + 3 * HOUR)
    assert (found.gpu_hours, found.wait_mean) == (8.0, None)
    assert store.usage("user", AT - 3 * HOUR, AT) == []


def test_suspended_time_is_not_held(store):
    """A run that was suspended for half of its time held its GPUs for the other half."""
    add(store, "a", "ada")
    store.run_suspended("a", 1, AT + HOUR, by_us=True)
    (found,) = store.usage("user", AT, AT + 2 * HOUR)
    assert found.gpu_hours == pytest.approx(4.0)


def test_months_share_a_run(store):
    """A run over midnight of the last day is split between the months, which come in their order."""
    add(store, "a", "ada", ended=AT + 5 * HOUR)
    months = [(one.group, one.gpu_hours, one.completed) for one in store.usage("month", AT - HOUR, AT + 9 * HOUR)]
    assert months == [("2025-03", 8.0, 0), ("2025-04", 12.0, 1)]


def test_accounts_and_types(store):
    """Jobs without an account have a row of their own."""
    add(store, "a", "ada", account="vision", ended=AT + HOUR)
    add(store, "b", "bob", ended=AT + 2 * HOUR)
    assert [one.group for one in store.usage("account", AT, AT + 9 * HOUR)] == ["(no account)", "vision"]
    assert [(one.group, one.gpu_hours) for one in store.usage("gpu_type", AT, AT + 9 * HOUR)] == [("v100", 12.0)]


def test_untyped_gpus_are_gpus(store):
    """Slurm's GPUs may have no type; only a job without GPUs has none."""
    add(store, "a", "ada", placement=Placement(("n1",), 4, ""), ended=AT + HOUR)
    add(store, "b", "bob", placement=Placement(("n1",), 0, None), ended=AT + HOUR)
    groups = [(one.group, one.gpu_hours) for one in store.usage("gpu_type", AT, AT + 9 * HOUR)]
    assert groups == [("(untyped)", 4.0), ("(no GPUs)", 0.0)]


def test_imported_jobs_count_on_request(store):
    """Jobs of Slurm's accounting were not scheduled by metasched."""
    add(store, "sacct:1", "ada", ended=AT + HOUR)
    assert store.usage("user", AT, AT + 9 * HOUR) == []
    assert len(store.usage("user", AT, AT + 9 * HOUR, imported=True)) == 1


def test_fairness_is_told_where_it_is_stored(store):
    """Rho is that of the jobs that ended in the window; a definition that is not stored is not known."""
    add(store, "a", "ada", ended=AT + HOUR)
    add(store, "b", "ada", ended=AT + 2 * HOUR)
    connection = store._db
    connection.executescript("DROP TABLE IF EXISTS fairness; CREATE TABLE fairness (uid TEXT PRIMARY KEY, pollux REAL)")
    connection.executemany("INSERT INTO fairness VALUES (?, ?)", [("a", 0.5), ("b", 1.5), ("gone", 9.0)])
    (found,) = store.usage("user", AT, AT + 9 * HOUR)
    assert (found.rho_mean, found.rho_worst) == (1.0, 1.5)
    (found,) = store.usage("user", AT, AT + 9 * HOUR, rho="unheard")
    assert found.rho_mean is None
