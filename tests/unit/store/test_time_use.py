"""The use of a job's time on its resources."""

from metasched.store import RunRecord
from metasched.store.time_use import TimeUse, time_use


def test_uses_are_summed_over_runs():
    """Starts last until the first step, and waits are no training."""
    first = RunRecord(
        "a",
        1,
        started=100.0,
        ended=200.0,
        first_step_at=110.0,
        step_seconds=80.0,
        data_seconds=20.0,
        sync_seconds=5.0,
        stall_seconds=3.0,
        peak_bytes=7,
    )
    second = RunRecord("a", 2, started=300.0, first_step_at=330.0, step_seconds=15.0, data_seconds=1.0, peak_bytes=9)
    assert time_use([first, second], 350.0) == TimeUse(150.0, 40.0, 69.0, 21.0, 5.0, 3.0, 9)


def test_what_no_trainer_reported_is_not_known():
    """A run without a step was starting all the time; a run that never started counts nothing."""
    runs = [RunRecord("a", 1, started=100.0, ended=130.0), RunRecord("a", 2, released_at=140.0)]
    assert time_use(runs, 200.0) == TimeUse(30.0, 30.0, None, None, None, None, None)


def test_a_trainer_whose_clock_is_wrong_starts_within_its_run():
    """A first step before the start, or after the end, counts as no start and as a whole run."""
    early = RunRecord("a", 1, started=100.0, ended=130.0, first_step_at=50.0, step_seconds=30.0)
    late = RunRecord("a", 2, started=200.0, ended=230.0, first_step_at=900.0, step_seconds=30.0)
    assert time_use([early, late], 300.0).starting == 30.0
