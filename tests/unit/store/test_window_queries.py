"""Queries over windows of time, and of one job's history: bounded rows, exact sums, indexes."""

import pytest

from contrib.benchmarks.large_site import SHOWCASE, USERS, Sizes, fill_store, live_uid, past_uid
from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason
from metasched.store import EndCause, JobRecord, RunRecord, Store
from metasched.store.window_queries import RunSpan
from tests.query_plans import calls, scans

NOW = 1_700_000_000.0
SMALL = Sizes(nodes=4, live=20, runs=60)
TWO = Placement(("n1",), 2, "v100")
FOUR = Placement(("n1", "n2"), 2, "k80")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("site") / "store.sqlite") as opened:
        fill_store(opened, SMALL, NOW)
        yield opened


def a_run(store, uid, times, placement=TWO, *, number=1, user="ann"):
    if store.job(uid) is None:
        store.add_job(
            JobRecord(uid=uid, slurm_job_id=uid, name=f"name of {uid}", user=user, submitted=0.0, account="lab")
        )
    start, end = times
    store.release(uid, number, placement, start - 1)
    store.run_started(uid, number, start, placement)
    if end is not None:
        store.run_ended(uid, number, end, EndCause.PREEMPTED)


def test_runs_that_overlap_the_window_are_found(store):
    """A run that ended before the window, or begins after it, is not; one that began before it or is open is."""
    for uid, times in (("a", (10, 100)), ("b", (50, 150)), ("c", (120, 130)), ("d", (90, 999)), ("e", (210, 220))):
        a_run(store, uid, times)
    a_run(store, "f", (140, None), FOUR)
    found = store.runs_between(100, 200, 1000, 10)
    assert [run.uid for run in found.runs] == ["b", "d", "c", "f"]
    assert found.runs[-1] == RunSpan("f", 1, FOUR, 140.0, None, None)
    assert found.runs[0].cause is EndCause.PREEMPTED
    assert found.left_out == 0


def test_the_longest_runs_of_the_window_remain_under_a_limit(store):
    """With too many runs, those that held resources longest within the window are returned, the others counted."""
    for number in range(6):
        a_run(store, f"j{number}", (100, 110 + number))
    a_run(store, "long before", (1, 102))
    found = store.runs_between(100, 200, 1000, 2)
    assert [run.uid for run in found.runs] == ["j4", "j5"]
    assert found.left_out == 5


def test_imported_jobs_are_left_out(store):
    """Runs of Slurm's accounting are not in timelines."""
    job = JobRecord(uid="sacct:1", slurm_job_id="1", name="old", user="ann", submitted=0.0, finished=150.0, run=1)
    run = RunRecord(uid=job.uid, run=1, placement=TWO, started=110.0, ended=150.0, cause=EndCause.FINISHED)
    store.import_job(job, [run])
    assert store.runs_between(100, 200, 1000, 10).runs == ()


def test_rounds_are_found_by_time_and_by_neighbour(site):
    """A round is found by number, by instant, before and after another."""
    first, last = site.round_numbers()
    assert (first, last) == (1, 10)
    assert site.round_of(4).round == 4
    assert site.round_of(99) is None
    fourth = site.round_of(4)
    assert site.round_at(fourth.at).round == 4
    assert site.round_at(fourth.at - 0.5).round == 3
    assert site.round_at(0.0).round == 1
    assert (site.round_before(4).round, site.round_after(4).round) == (3, 5)
    assert (site.round_before(1), site.round_after(10)) == (None, None)
    assert len(site.round_instants(0, NOW, 4)) <= 4
    assert [number for number, _ in site.round_instants(0, NOW, 100)] == list(range(1, 11))


def test_a_store_without_rounds_has_no_numbers(store):
    """Without rounds there is no first or last number, and no round at any time."""
    assert store.round_numbers() is None
    assert store.round_at(5.0) is None


def test_changes_of_resources_precede_changes_of_reasons(store):
    """A round's changes have the placement before and after; a page of them says how many there are."""
    for uid in ("a", "b", "c"):
        store.add_job(JobRecord(uid=uid, slurm_job_id=uid, name=uid, user="ann", submitted=0.0))

    def commit(number, targets, reasons):
        store.commit_round(
            number,
            at=float(number),
            policy="fifo",
            parameters={},
            state=PolicyState(1, {}),
            targets=targets,
            reasons={uid: Reason.text(reason) for uid, reason in reasons.items()},
            decide_seconds=0.1,
        )

    commit(1, {"a": TWO}, {"a": "runs", "b": "waits", "c": "waits"})
    commit(2, {"b": FOUR}, {"a": "waits", "b": "runs", "c": "still waits"})
    found = store.round_changes(2, 10)
    assert [(change.uid, change.before, change.granted) for change in found.changes] == [
        ("b", None, FOUR),
        ("a", TWO, None),
        ("c", None, None),
    ]
    assert (found.total, found.moved) == (3, 2)
    assert [change.uid for change in store.round_changes(2, 1, skip=1).changes] == ["a"]


def test_reports_are_thinned_to_means(site):
    """At most the asked number of points come back; steps, speed and batches are those of the reports."""
    points = site.throughput_points(SHOWCASE, 50)
    assert 40 <= len(points) <= 50
    assert [point.step for point in points] == sorted(point.step for point in points)
    assert points[0].steps_per_second == pytest.approx(30 / 34)
    assert points[-1].world_size == 8
    every = site.throughput_points(SHOWCASE, 100_000)
    assert len(every) == 740
    assert points[-1].step == every[-1].step
    assert site.throughput_points("nobody", 50) == []


def test_a_job_history_is_bounded(site):
    """Runs, batch changes and checkpoints of a job come in order, under their limits."""
    assert [run.run for run in site.latest_runs(SHOWCASE, 3)] == [6, 7, 8]
    assert [change.global_batch for change in site.batch_changes(SHOWCASE, 10)] == [256, 512]
    checkpoints = site.latest_checkpoints(SHOWCASE, 2)
    assert [one.generation for one in checkpoints] == [8, 7]
    assert checkpoints[0].cause == "periodic"


def test_labels_of_unknown_jobs_are_missing(site):
    """Labels are those of the asked jobs alone."""
    labels = site.job_labels([live_uid(0), past_uid(3), "nobody"])
    assert labels.keys() == {live_uid(0), past_uid(3)}
    assert labels[live_uid(0)].user == USERS[0]


def test_every_query_uses_an_index(site):
    """No query reads a table whose rows grow with the history as a whole."""
    assert {name: found for name, call in calls(site, NOW).items() if (found := scans(site, call))} == {}
