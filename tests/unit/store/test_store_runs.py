"""Runs: their order, and the sum of their service in the job, exactly once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Placement
from metasched.store import EndCause, JobRecord, Store
from metasched.store.errors import RunOrderError, UnknownJobError

UID = "0123456789abcdef"
TWO = Placement(("n1",), 2, "v100")
FOUR = Placement(("n1", "n2"), 2, "k80")
CPU = Placement(("n1", "n2"), 0, None)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.sqlite") as opened:
        opened.add_job(JobRecord(uid=UID, slurm_job_id="12", name="train", user="ann", submitted=100.0))
        yield opened


def run(store, number, placement, times, cause):
    start, end = times
    store.release(UID, number, placement, start - 1)
    store.run_started(UID, number, start, placement)
    return store.run_ended(UID, number, end, cause)


def test_release_opens_the_run(store):
    """A released job has an open run; after the run's end it has none, and a last placement."""
    store.release(UID, 1, TWO, 110.0)
    job = store.job(UID)
    assert (job.run, job.current.released, job.current.released_at, job.current.started) == (1, TWO, 110.0, None)
    assert store.run_started(UID, 1, 111.0, FOUR)
    current = store.live_jobs()[0].current
    assert (current.placement, current.started, current.released) == (FOUR, 111.0, TWO)
    assert store.stop_requested(UID, 1, 120.0)
    assert not store.stop_requested(UID, 1, 121.0)
    assert store.job(UID).current.stop_requested == 120.0
    assert store.run_ended(UID, 1, 121.0, EndCause.PREEMPTED)
    job = store.job(UID)
    assert (job.current, job.last_placement, job.run, job.preemptions) == (None, FOUR, 1, 1)
    store.release(UID, 2, TWO, 130.0)
    store.run_ended(UID, 2, 140.0, EndCause.WITHDRAWN)
    job = store.job(UID)
    assert (job.last_placement, job.last_ended) == (FOUR, 121.0)


def test_a_clock_set_back_lowers_future_instants(store):
    """Waiting times count from now; a user's own begin time stays."""
    store.add_job(JobRecord(uid="new", slurm_job_id="13", name="train", user="ann", submitted=100.0, not_before=400.0))
    store.release(UID, 1, TWO, 110.0)
    store.run_started(UID, 1, 111.0, TWO)
    store.stop_requested(UID, 1, 300.0)
    store.update_job(UID, not_before=350.0)
    store.clock_set_back(200.0)
    job = store.job(UID)
    assert (job.current.released_at, job.current.stop_requested, job.current.suspended_at) == (110.0, 200.0, None)
    assert (job.not_before, store.job("new").not_before) == (200.0, 400.0)


def test_service_adds_up_by_gpu_type(store):
    """GPU-seconds add up by GPU type, node-seconds under the empty type, only the daemon's stops are preemptions."""
    run(store, 1, TWO, (110.0, 120.0), EndCause.PREEMPTED)
    run(store, 2, FOUR, (130.0, 140.0), EndCause.RESIZED)
    run(store, 3, TWO, (150.0, 155.0), EndCause.LOST)
    run(store, 4, CPU, (160.0, 170.0), EndCause.UNRESPONSIVE)
    job = store.job(UID)
    assert job.attained == {"v100": 30.0, "k80": 40.0, "": 20.0}
    assert job.ran_seconds == 35.0
    assert job.preemptions == 3
    assert job.attained_at(999.0) == {"v100": 30.0, "k80": 40.0, "": 20.0}


def test_ending_twice_changes_nothing(store):
    """The second end of a run, or the end of an unknown run, returns False."""
    assert run(store, 1, TWO, (110.0, 120.0), EndCause.PREEMPTED)
    before = store.job(UID)
    assert not store.run_ended(UID, 1, 500.0, EndCause.FAILED)
    assert not store.run_ended(UID, 7, 500.0, EndCause.FAILED)
    assert not store.run_started(UID, 1, 130.0, TWO)
    assert store.job(UID) == before
    assert store.runs(UID)[0].cause is EndCause.PREEMPTED


def test_open_run_counts_until_now(store):
    """A job's service until now includes its open run, and a second start of the run changes nothing."""
    run(store, 1, TWO, (110.0, 120.0), EndCause.PREEMPTED)
    store.release(UID, 2, TWO, 130.0)
    assert store.job(UID).ran_at(200.0) == 10.0
    assert store.run_started(UID, 2, 140.0, TWO)
    assert not store.run_started(UID, 2, 150.0, FOUR)
    job = store.job(UID)
    assert job.attained_at(150.0) == {"v100": 40.0}
    assert job.ran_at(150.0) == 20.0
    assert job.ran_at(100.0) == 10.0


def test_suspended_time_is_not_counted(store):
    """Time in suspension, ended or not, is neither service nor run time."""
    store.release(UID, 1, CPU, 100.0)
    assert not store.run_suspended(UID, 1, 100.0, by_us=True)
    store.run_started(UID, 1, 100.0, CPU)
    assert store.run_suspended(UID, 1, 110.0, by_us=True)
    assert not store.run_suspended(UID, 1, 115.0, by_us=False)
    assert store.job(UID).current.suspended_by_us
    assert store.job(UID).ran_at(150.0) == 10.0
    assert store.run_resumed(UID, 1, 130.0)
    assert not store.run_resumed(UID, 1, 131.0)
    assert store.job(UID).ran_at(140.0) == 20.0
    store.run_suspended(UID, 1, 150.0, by_us=False)
    assert not store.job(UID).current.suspended_by_us
    store.run_ended(UID, 1, 190.0, EndCause.FAILED)
    assert store.job(UID).ran_seconds == 30.0
    assert store.job(UID).attained == {"": 60.0}


def test_release_before_the_start_may_be_repeated(store):
    """After a crash before the call to Slurm, the same run is released again, perhaps on other nodes."""
    store.release(UID, 1, TWO, 110.0)
    store.release(UID, 1, FOUR, 115.0)
    assert store.job(UID).current.released == FOUR
    assert len(store.runs(UID)) == 1


def test_release_that_never_started_is_withdrawn_by_the_next(store):
    """A run that was released and never started ends without service when the next one begins."""
    store.release(UID, 1, TWO, 110.0)
    store.release(UID, 3, FOUR, 150.0)
    first, second = store.runs(UID)
    assert (first.cause, first.ended, second.run, second.ended) == (EndCause.WITHDRAWN, 110.0, 3, None)
    assert (store.job(UID).ran_seconds, store.job(UID).preemptions) == (0.0, 0)


def test_runs_are_in_order(store):
    """A run cannot begin while another is open, with a used number, or for an unknown job."""
    store.release(UID, 1, TWO, 110.0)
    store.run_started(UID, 1, 111.0, TWO)
    for number in (0, 1, 2):
        with pytest.raises(RunOrderError, match="run 1 is its latest"):
            store.release(UID, number, TWO, 120.0)
    with pytest.raises(RunOrderError):
        store.run_started(UID, 2, 120.0, TWO)
    store.run_ended(UID, 1, 130.0, EndCause.LOST)
    with pytest.raises(RunOrderError):
        store.release(UID, 1, TWO, 140.0)
    with pytest.raises(UnknownJobError):
        store.release("f" * 16, 1, TWO, 110.0)
    assert [record.run for record in store.runs(UID)] == [1]


def test_start_without_release_is_a_run(store):
    """A run that the daemon did not release is recorded and counts as service."""
    assert store.run_started(UID, 1, 110.0, TWO)
    assert store.job(UID).current.released is None
    store.run_ended(UID, 1, 120.0, EndCause.UNRESPONSIVE)
    assert store.job(UID).attained == {"v100": 20.0}


@pytest.mark.parametrize(
    ("started", "state", "cause"),
    [
        (True, "COMPLETED", EndCause.FINISHED),
        (True, "TIMEOUT", EndCause.FAILED),
        (False, "CANCELLED", EndCause.WITHDRAWN),
    ],
)
def test_finishing_ends_the_open_run(store, started, state, cause):
    """A second end of the job changes nothing."""
    store.release(UID, 1, TWO, 110.0)
    if started:
        store.run_started(UID, 1, 110.0, TWO)
    store.finish_job(UID, 120.0, state, 0)
    store.finish_job(UID, 130.0, "FAILED", 1)
    job = store.job(UID)
    assert (job.current, job.ran_seconds, job.end_state) == (None, 10.0 if started else 0.0, state)
    assert store.runs(UID)[0].cause is cause


RUNS = st.lists(
    st.tuples(
        st.sampled_from([TWO, FOUR, CPU]),
        st.integers(0, 50),  # from release to start
        st.integers(0, 1000),  # from start to end
        st.sampled_from(list(EndCause)),
        st.integers(1, 3),  # how often each report of it arrives
    ),
    max_size=8,
)


@given(history=RUNS)
def test_any_history_adds_up(tmp_path_factory, history):
    """However often each step is recorded, the job's service is the sum of its runs, by GPU type."""
    expected: dict[str, float] = {}
    with Store.open(tmp_path_factory.mktemp("runs") / "store.sqlite") as store:
        store.add_job(JobRecord(uid=UID, slurm_job_id="12", name="train", user="ann", submitted=0.0))
        now = 0.0
        for number, (placement, wait, seconds, cause, times) in enumerate(history, 1):
            store.release(UID, number, placement, now)
            now += wait
            assert [store.run_started(UID, number, now, placement) for _ in range(times)].count(True) == 1
            now += seconds
            assert [store.run_ended(UID, number, now + late, cause) for late in range(times)].count(True) == 1
            amount = (placement.gpus or len(placement.nodes)) * float(seconds)
            expected[placement.gpu_type or ""] = expected.get(placement.gpu_type or "", 0.0) + amount
        job = store.job(UID)
    assert dict(job.attained) == {key: value for key, value in expected.items() if value}
    assert job.ran_seconds == sum(seconds for _, _, seconds, _, _ in history)
    assert job.preemptions == sum(
        cause in {EndCause.PREEMPTED, EndCause.RESIZED, EndCause.UNRESPONSIVE} for _, _, _, cause, _ in history
    )


def test_untyped_gpus_count_under_the_empty_type(store):
    """Slurm may give GPUs no type."""
    run(store, 1, replace(TWO, gpu_type=None), (110.0, 120.0), EndCause.LOST)
    assert store.job(UID).attained == {"": 20.0}


def test_a_stop_keeps_for_whom_it_was(store):
    """The successors of the first request remain; a run without a request has none."""
    store.release(UID, 1, TWO, 110.0)
    store.run_started(UID, 1, 111.0, TWO)
    assert store.runs(UID)[0].stopped_for == ()
    assert store.stop_requested(UID, 1, 120.0, ("c", "b"))
    assert not store.stop_requested(UID, 1, 130.0, ("d",))
    assert store.job(UID).current.stopped_for == ("c", "b")
    assert store.runs(UID)[0].stopped_for == ("c", "b")
