import pytest

from metasched.core.model import Placement
from metasched.store import ForecastRecord, JobRecord, ShadowRecord, Store, shadow_rows

PLACE = Placement(("n1",), 1, "v100")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "metasched.db") as made:
        for uid in ("a", "b"):
            made.add_job(JobRecord(uid, uid, uid, "ann", 0.0))
        yield made


def forecast(uid, kind, number, at, *, high=200.0):
    return ForecastRecord(uid, kind, number, at, 100.0, 150.0, high)


def ran(store, uid, started, finished, state="COMPLETED"):
    store.release(uid, 1, PLACE, started)
    store.run_started(uid, 1, started, PLACE)
    if finished is not None:
        store.finish_job(uid, finished, state, 0)


def test_the_first_forecast_of_a_job_and_the_one_halfway_are_kept(store):
    """Halfway from 10 s to the median of 150 s is 80 s; jobs that the store does not have are left out."""
    for number, at in enumerate((10.0, 79.0, 81.0, 90.0)):
        store.commit_forecasts([forecast("a", "start", number, at), forecast("gone", "start", number, at)])
    assert [(one.round, one.halfway) for one in store.forecasts("a")] == [(0, False), (2, True)]
    assert store.table_sizes()["forecasts"] == 2


def test_after_what_came_no_forecast_is_halfway(store):
    """A start after the one that the first forecast meant has no forecasts."""
    store.commit_forecasts([forecast("a", "start", 1, 10.0)])
    ran(store, "a", 20.0, None)
    store.resolve_forecasts()
    store.commit_forecasts([forecast("a", "start", 2, 100.0)])
    assert [one.round for one in store.forecasts("a")] == [1]


def test_what_came_after_a_forecast_and_before_its_result_changes_no_choice(store):
    """Forecasts of 10 s and 90 s arrive after the job's end at 95 s, and get their truth."""
    store.commit_forecasts([forecast("a", "end", 1, 10.0)])
    ran(store, "a", 20.0, 95.0)
    ran(store, "b", 20.0, 95.0)
    store.resolve_forecasts()
    store.commit_forecasts([forecast("a", "end", 2, 90.0), forecast("b", "end", 2, 90.0)])
    assert [(one.uid, one.halfway, one.truth) for one in store.resolve_forecasts()] == [
        ("a", True, 95.0),
        ("b", False, 95.0),
    ]


def test_a_forecast_of_an_instant_after_the_end_is_left_out(store):
    """Neither as a first one, nor as the one halfway."""
    store.commit_forecasts([forecast("a", "end", 1, 10.0)])
    for uid in ("a", "b"):
        ran(store, uid, 20.0, 95.0)
    store.resolve_forecasts()
    store.commit_forecasts([forecast("a", "end", 2, 96.0), forecast("b", "end", 2, 96.0)])
    assert [one.round for uid in ("a", "b") for one in store.forecasts(uid)] == [1]


def test_what_came_is_recorded_once(store):
    """A start after the forecast and a completion are true instants; each is returned once."""
    store.commit_forecasts([forecast("a", "start", 1, 10.0), forecast("a", "end", 1, 10.0, high=None)])
    assert store.resolve_forecasts() == []
    ran(store, "a", 120.0, None)
    (start,) = store.resolve_forecasts()
    assert (start.kind, start.truth, start.covered) == ("start", 120.0, True)
    store.finish_job("a", 5000.0, "COMPLETED", 0)
    (end,) = store.resolve_forecasts()
    assert (end.kind, end.truth, end.covered) == ("end", 5000.0, True)
    assert store.resolve_forecasts() == []
    assert [one.kind for one in store.forecast_outcomes(200.0)] == ["end"]
    assert not forecast("a", "end", 1, 10.0).covered


def test_a_cancelled_job_has_no_true_end(store):
    """Its forecasts are closed without a truth, and count for nothing."""
    store.commit_forecasts([forecast("b", "start", 1, 10.0), forecast("b", "end", 1, 10.0)])
    store.finish_job("b", 50.0, "CANCELLED", None)
    assert store.resolve_forecasts() == []
    assert {(one.truth, one.closed, one.covered) for one in store.forecasts("b")} == {(None, True, None)}
    assert store.forecast_outcomes(0.0) == []


def test_the_calibration_is_replaced(store):
    """Each kind has one row."""
    assert store.forecast_calibration("start") is None
    for outcomes in (1, 2):
        store.set_forecast_calibration("start", 0.5, 2.0, outcomes, 1)
    assert store.forecast_calibration("start") == (0.5, 2.0, 2, 1)


def test_forecasts_go_with_the_details_of_their_jobs(store):
    """Pruning deletes the forecasts of jobs that are over, and shadow decisions of that time."""
    store.commit_forecasts([forecast("a", "end", 1, 10.0), forecast("b", "end", 1, 10.0)])
    store.commit_shadows([ShadowRecord(1, 10.0, "las", "fifo"), ShadowRecord(2, 200.0, "las", "fifo")])
    ran(store, "a", 20.0, 30.0)
    store.prune(100.0)
    assert not store.forecasts("a")
    assert store.forecasts("b")
    assert [one.round for one in store.recent_shadows(10)] == [2]


def test_shadow_rows_are_bounded(store, monkeypatch):
    """The oldest rounds are deleted, and of long lists of jobs the first ones are stored."""
    monkeypatch.setattr(shadow_rows, "MOST_SHADOW_ROWS", 4)
    for number in range(1, 6):
        many = tuple(f"u{n:03}" for n in range(300))
        store.commit_shadows(
            [
                ShadowRecord(number, 1.0, "las", "fifo", gpus=2, would_run=many, jct=10.0, live_jct=9.0, seconds=0.1),
                ShadowRecord(number, 1.0, "themis", "fifo", error="ValueError: no"),
            ]
        )
    found = store.recent_shadows(100)
    assert [(one.round, one.policy) for one in found] == [(5, "las"), (5, "themis"), (4, "las"), (4, "themis")]
    assert len(found[0].would_run) == shadow_rows.MOST_SHADOW_JOBS
    assert (found[0].gpus, found[0].jct, found[0].live_jct, found[1].error) == (2, 10.0, 9.0, "ValueError: no")
    assert store.recent_shadows(100, "themis") == [one for one in found if one.policy == "themis"]
