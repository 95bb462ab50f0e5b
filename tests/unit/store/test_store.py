"""The store: jobs, rounds, actions, events, transactions and retention."""

import sqlite3
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from metasched.core.apps import AppsState
from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reason_words import words
from metasched.core.reasons import Reason
from metasched.store import EndCause, JobRecord, Store
from metasched.store.errors import RoundOrderError, UnknownJobError
from metasched.store.report_rows import ReportFile

UID = "0123456789abcdef"
TWO = Placement(("n1",), 2, "v100")
FOUR = Placement(("n1", "n2"), 2, "v100")


def a_job(uid=UID, **changes):
    return replace(JobRecord(uid=uid, slurm_job_id="12", name="train", user="ann", submitted=100.0), **changes)


def uid_of(number):
    return f"{number:016x}"


def commit(
    store, number, targets=None, reasons=None, state=None, *, at=None, policy="fifo", snapshot=b"", kept=0, **more
):
    store.commit_round(
        number,
        at=at or 1000.0 * number,
        policy=policy,
        parameters={"a": 1},
        state=state or PolicyState(),
        targets=targets or {},
        reasons={uid: Reason.text(text) for uid, text in (reasons or {}).items()},
        decide_seconds=0.5,
        summary={"jobs": len(reasons or {})},
        **more,
    )
    store.keep_snapshot(number, snapshot, kept)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "state" / "store.sqlite") as opened:
        yield opened


def test_job_comes_back_as_it_was_added(store):
    """Every field of a record survives the database and a second opening."""
    job = a_job(
        account="lab",
        partition="gpu",
        requirements={"gpus": 4, "types": ["v100"], "features": frozenset({"ib"})},
        not_before=50.5,
        error="unknown key",
        total_steps=10,
        attained={"v100": 2.5},
        last_placement=TWO,
    )
    store.add_job(job)
    expected = replace(job, requirements={"gpus": 4, "types": ["v100"], "features": ["ib"]})
    assert store.job(UID) == expected
    with Store.open(store.path, read_only=True) as reader:
        assert reader.job(UID) == expected


def test_live_jobs_are_ordered_and_without_finished_ones(store):
    """Live jobs come by (submitted, uid); a finished one is gone from them and stays in the store."""
    for number, submitted in ((3, 10.0), (1, 20.0), (2, 10.0)):
        store.add_job(a_job(uid_of(number), submitted=submitted))
    assert [job.uid for job in store.live_jobs()] == [uid_of(2), uid_of(3), uid_of(1)]
    store.finish_job(uid_of(3), 30.0, "COMPLETED", 0)
    assert [job.uid for job in store.live_jobs()] == [uid_of(2), uid_of(1)]
    finished = store.job(uid_of(3))
    assert (finished.finished, finished.end_state, finished.exit_code) == (30.0, "COMPLETED", 0)
    assert [job.uid for job in store.recent_jobs()] == [uid_of(3)]


def test_update_changes_the_named_fields_only(store):
    """An update refuses fields that intake does not set, and an unknown job is an error."""
    store.add_job(a_job(partition="gpu"))
    store.update_job(UID, slurm_job_id="13", requirements={"gpus": 2}, error=None)
    job = store.job(UID)
    assert (job.slurm_job_id, job.requirements, job.partition) == ("13", {"gpus": 2}, "gpu")
    with pytest.raises(TypeError, match="ran_seconds"):
        store.update_job(UID, ran_seconds=5.0)
    with pytest.raises(UnknownJobError, match="ffff"):
        store.update_job("f" * 16, status="held")


def test_find_jobs_by_uid_job_id_array_and_name(store):
    """A job is found by uid, Slurm job id, array id or the beginning of its name; live ones come first."""
    store.add_job(a_job(uid_of(1), slurm_job_id="12_1", submitted=1.0))
    store.add_job(a_job(uid_of(2), slurm_job_id="12_2", submitted=2.0))
    store.add_job(a_job(uid_of(3), slurm_job_id="123", name="50%_off", submitted=3.0))
    store.finish_job(uid_of(2), 5.0, "FAILED", 1)
    assert [job.uid for job in store.find_jobs("12")] == [uid_of(1), uid_of(2)]
    assert [job.uid for job in store.find_jobs("12_2")] == [uid_of(2)]
    assert [job.uid for job in store.find_jobs(uid_of(3))] == [uid_of(3)]
    assert [job.uid for job in store.find_jobs("50%_")] == [uid_of(3)]
    assert store.find_jobs("50__") == []


def test_transaction_is_all_or_nothing(store):
    """An exception inside a transaction undoes everything; an inner failure undoes the inner part alone."""

    def add_and_fail():
        with store.transaction():
            store.add_job(a_job())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        add_and_fail()
    assert store.live_jobs() == []
    with store.transaction():
        store.add_job(a_job())
        with pytest.raises(sqlite3.IntegrityError):
            store.add_job(a_job())
        store.event("kept", "outer", UID, at=1.0)
    assert [job.uid for job in store.live_jobs()] == [UID]
    assert len(store.recent_events()) == 1


def test_a_store_refuses_calls_of_other_threads(store):
    """SQLite raises ProgrammingError."""
    failures = []

    def use():
        try:
            store.live_jobs()
        except sqlite3.ProgrammingError as error:
            failures.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "thread" in failures[0]


def test_round_is_committed_whole(store):
    """Policy, state, targets and reasons of a round are there together, targets in their order."""
    for number in (1, 2, 3):
        store.add_job(a_job(uid_of(number)))
    assert store.last_round() is None
    assert store.policy_state("fifo") is None
    targets = {uid_of(2): TWO, uid_of(1): FOUR}
    reasons = {uid_of(1): "second", uid_of(2): "first", uid_of(3): "no room"}
    commit(store, 1, targets, reasons, PolicyState(2, {"virtual_time": 1.5}))
    last = store.last_round()
    assert (last.round, last.policy, last.parameters, last.summary) == (1, "fifo", {"a": 1}, {"jobs": 3})
    assert list(store.targets().items()) == list(targets.items())
    assert store.policy_state("fifo") == PolicyState(2, {"virtual_time": 1.5})
    assert {row.uid: (row.granted, words(row.reason)) for row in store.decisions_of(1)} == {
        uid_of(1): (FOUR, "second"),
        uid_of(2): (TWO, "first"),
        uid_of(3): (None, "no room"),
    }


def test_a_round_that_fails_changes_nothing(store):
    """A round with an unknown job leaves the last round in force, and its own number unused."""
    store.add_job(a_job())
    commit(store, 1, {UID: TWO}, {UID: "runs"}, PolicyState(1, {"n": 1}))
    with pytest.raises(sqlite3.IntegrityError):
        commit(store, 2, {UID: FOUR}, {UID: "more", "f" * 16: "?"}, PolicyState(1, {"n": 2}))
    assert store.last_round().round == 1
    assert store.targets() == {UID: TWO}
    assert store.policy_state("fifo").data == {"n": 1}


def test_round_numbers_only_grow(store):
    """A round that is not newer than the last one is refused."""
    commit(store, 4)
    with pytest.raises(RoundOrderError, match="round 4 cannot be committed after round 4"):
        commit(store, 4)


def test_equal_decisions_are_one_row(store):
    """A decision is a row only where target or reason change, with the first and the last round of the decision."""
    store.add_job(a_job())
    for number, target, reason in ((1, None, "wait"), (2, None, "wait"), (5, TWO, "run"), (6, TWO, "run longer")):
        commit(store, number, {UID: target} if target else {}, {UID: reason})
    rows = store.recent_decisions(UID)
    assert [(row.first_round, row.last_round, row.granted, words(row.reason)) for row in rows] == [
        (6, None, TWO, "run longer"),
        (5, 5, TWO, "run"),
        (1, 2, None, "wait"),
    ]
    assert [words(row.reason) for row in store.decisions_of(2)] == ["wait"]
    store.finish_job(UID, 9000.0, "COMPLETED", 0)
    assert store.recent_decisions(UID, 1)[0].last_round == 6
    assert store.targets() == {}
    commit(store, 7)
    assert store.decisions_of(7) == []


def test_policy_states_are_kept_for_replays(store):
    """For each stored snapshot the state of the round before is stored, too; policies do not share states."""
    for number, (value, policy) in enumerate([(1, "fifo"), (1, "fifo"), (3, "fifo"), (9, "las")], start=1):
        commit(store, number, state=PolicyState(1, {"n": value}), policy=policy, snapshot=b"seen", kept=1000)
    assert store.policy_state("fifo").data == {"n": 3}
    assert store.policy_state("fifo", 2).data == {"n": 1}
    assert store.policy_state("las").data == {"n": 9}
    assert store.policy_state("las", 3) is None
    assert store.table_sizes()["policy_state"] == 3


def test_the_states_of_apps_are_kept_for_replays(store, tmp_path):
    """Nothing is stored before the first app; a copy has the newest state only."""
    commit(store, 1, snapshot=b"seen", kept=1000)
    assert (store.apps_state(), store.table_sizes()["apps"]) == (AppsState(), 0)
    for number in (2, 3, 4):
        commit(store, number, snapshot=b"seen", kept=1000, apps=AppsState(1, {"n": number // 2}))
    assert [store.apps_state(number).data for number in (1, 2, 3, 4)] == [{}, {"n": 1}, {"n": 1}, {"n": 2}]
    assert store.table_sizes()["apps"] == 2
    with Store.open(tmp_path / "copy") as copy:
        copy.fill_from(store.path)
        assert (copy.apps_state(), copy.table_sizes()["apps"]) == (store.apps_state(), 1)
    commit(store, 5)
    assert (store.apps_state().data, store.table_sizes()["apps"]) == ({}, 1)


def test_an_end_for_good_is_recorded_once(store):
    """With the round that decided it; such a job has not completed by itself."""
    for uid in "ab":
        store.add_job(a_job(uid))
    commit(store, 1, ends={"a": Reason.text("it ranks last")})
    commit(store, 2, ends={"a": Reason.text("again")})
    for uid in "ab":
        store.finish_job(uid, 9.0, "COMPLETED", 0)
    assert [store.require_job(uid).end_reason for uid in "ab"] == [Reason.text("it ranks last"), None]
    assert store.completed_by_themselves({"a", "b", "c"}) == {"b"}


def test_policy_states_that_no_replay_needs_are_deleted(store, tmp_path):
    """States count as bytes of the snapshots; without snapshots, and in a copy, each policy has its newest only."""
    commit(store, 1, state=PolicyState(1, {"other": 1}), policy="las")
    for number in range(2, 12):
        commit(store, number, state=PolicyState(1, {"n": number}), snapshot=b"seen", kept=4 * len('seen{"n":1}'))
    kept = [number for number in range(1, 12) if store.snapshot(number)]
    assert len(kept) in {3, 4}
    assert [store.policy_state("fifo", number - 1).data["n"] for number in kept] == [number - 1 for number in kept]
    assert store.table_sizes()["policy_state"] == len(kept) + 2
    with Store.open(tmp_path / "copy") as copy:
        copy.fill_from(store.path)
        assert [copy.policy_state("las").data, copy.policy_state("fifo").data] == [{"other": 1}, {"n": 11}]
        assert copy.table_sizes()["policy_state"] == 2
    commit(store, 12, state=PolicyState(1, {"n": 12}))
    assert store.policy_state("fifo").data == {"n": 12}
    assert store.table_sizes()["policy_state"] == 2


def test_an_action_without_outcome_is_unfinished(store):
    """It stays so until its outcome is recorded, across a restart."""
    store.add_job(a_job())
    first = store.begin_action(UID, "start", {"nodes": ["n1"]}, 1, 10.0)
    second = store.begin_action(UID, "stop", {}, 1, 11.0)
    store.end_action(first, "ok", 0.25)
    with Store.open(store.path) as again:
        assert [action.id for action in again.unfinished_actions()] == [second]
        done = again.recent_actions(uid=UID)[1]
    assert (done.kind, done.detail, done.outcome, done.latency_seconds) == ("start", {"nodes": ["n1"]}, "ok", 0.25)


def test_events_are_listed_newest_first(store):
    """Of one job, or of all jobs and the cluster."""
    store.add_job(a_job())
    store.event("daemon", "started", at=1.0)
    store.event("job", "taken in", UID, at=2.0)
    assert [event.text for event in store.recent_events()] == ["taken in", "started"]
    assert [event.text for event in store.recent_events(10, UID)] == ["taken in"]
    assert store.recent_events(1)[0].at == 2.0


def test_a_repeated_event_is_recorded_once(store):
    """Of a kind that a job's owner may cause again and again, the first event is kept."""
    store.add_job(a_job())
    for kind, text in (("k", "a"), ("k", "b"), ("j", "c")):
        store.event_once(kind, text, UID, at=1.0)
    assert [event.text for event in store.recent_events()] == ["c", "a"]


def test_a_copy_is_independent_of_its_original(store, tmp_path):
    """A reader copies the store whole, and writes to the copy leave the original unchanged."""
    store.add_job(a_job())
    commit(store, 1, {UID: TWO}, {UID: "runs"})
    with Store.open(store.path, read_only=True) as reader:
        reader.copy_to(tmp_path / "copy.sqlite")
    with Store.open(tmp_path / "copy.sqlite") as copy:
        assert copy.targets() == {UID: TWO}
        commit(copy, 2)
    assert store.last_round().round == 1


def test_a_requeued_job_is_live_again(store):
    """A finished job that is requeued keeps its history."""
    store.add_job(a_job(total_steps=9))
    store.release(UID, 1, TWO, 110.0)
    store.run_started(UID, 1, 110.0, TWO)
    store.finish_job(UID, 120.0, "FAILED", 1)
    store.revive_job(UID)
    (job,) = store.live_jobs()
    assert (job.finished, job.end_state, job.exit_code, job.run, job.ran_seconds) == (None, None, None, 1, 10.0)
    store.release(UID, 2, TWO, 130.0)
    with pytest.raises(UnknownJobError):
        store.revive_job("f" * 16)


def test_current_reasons_are_those_of_the_latest_round(store):
    """A restarted daemon reads them, without those of finished jobs."""
    other = uid_of(2)
    for uid in (UID, other):
        store.add_job(a_job(uid))
    commit(store, 1, {}, {UID: "waits", other: "waits too"})
    commit(store, 2, {}, {UID: "waits", other: "still waits"})
    assert store.current_reasons() == {UID: Reason.text("waits"), other: Reason.text("still waits")}
    store.finish_job(other, 50.0, "CANCELLED", None)
    assert store.current_reasons() == {UID: Reason.text("waits")}


def test_prune_deletes_details_before_an_instant(store):
    """Details of jobs that finished before it are deleted; live jobs and the last round remain, and rounds continue."""
    done, live = uid_of(1), uid_of(2)
    for uid in (done, live):
        store.add_job(a_job(uid))
        store.release(uid, 1, TWO, 1000.0)
        store.run_started(uid, 1, 1000.0, TWO)
    for number in (1, 2, 3, 4):
        reasons = {live: "later" if number == 4 else "same", **({done: "r"} if number == 1 else {})}
        commit(store, number, {}, reasons, PolicyState(1, {"n": number}))
    for uid in (done, live):
        store.end_action(store.begin_action(uid, "start", {}, 1, 1000.0), "ok", 1.0)
        store.event("k", "t", uid, at=1000.0)
        store.commit_reports(ReportFile(uid, 1, offset=9), (), latest=True)
    store.event("k", "cluster", at=1000.0)
    store.finish_job(done, 1500.0, "COMPLETED", 0)
    deleted = store.prune(2500.0)
    assert (store.report_files(done), list(store.report_files(live))) == ({}, [1])
    assert deleted["rounds"] == 2
    assert [row.uid for row in store.recent_actions()] == [live]
    assert [row.uid for row in store.recent_events()] == [live]
    assert [row.uid for row in store.decisions_of(3)] == [live]
    assert store.recent_decisions(done) == []
    assert store.policy_state("fifo").data == {"n": 4}
    assert store.last_round().round == 4
    assert [run.cause for run in store.runs(done)] == [EndCause.FINISHED]
    assert store.prune(9999.0)["rounds"] == 1
    assert store.last_round().round == 4


def test_prune_some_deletes_a_few_rows_of_each_table(store):
    """All steps together delete what `prune` does; live and younger jobs, jobs and runs remain."""
    for number in range(1, 5):
        store.add_job(a_job(uid_of(number)))
        store.release(uid_of(number), 1, TWO, 500.0)
        store.event("k", "t", uid_of(number), at=500.0)
        store.event("k", "cluster", at=1000.0 * number)
        commit(store, number, {}, {uid_of(number): "r"})
    for number, finished in ((1, 600.0), (2, 600.0), (3, 9000.0)):
        store.finish_job(uid_of(number), finished, "COMPLETED", 0)
    sizes = [store.table_sizes()]
    for _ in range(5):
        store.prune_some(3500.0, most=2)
        sizes.append(store.table_sizes())
    assert max(before[table] - after[table] for before, after in pairwise(sizes) for table in before) == 2
    assert [event.uid for event in store.recent_events()] == [None, uid_of(4), uid_of(3)]
    assert [record.round for record in store.recent_rounds()] == [4]
    assert [row.uid for row in store.decisions_of(4)] == [uid_of(4)]
    assert store.recent_decisions(uid_of(1)) == []
    assert len(store.runs(uid_of(1))) == 1
    assert not any(store.prune(3500.0).values())


def test_prune_some_continues_after_jobs_without_details(store):
    """Such jobs are marked, so that a restart does not read them again; a job that is live again is unmarked."""
    for number in range(1, 5):
        store.add_job(a_job(uid_of(number)))
        store.finish_job(uid_of(number), 100.0 + number, "COMPLETED", 0)
    store.event("k", "t", uid_of(4), at=104.0)
    store.prune_some(1000.0, most=3)
    with Store.open(store.path) as again:
        again.prune_some(1000.0, most=3)
        assert again.recent_events() == []
        again.revive_job(uid_of(1))
        again.event("k", "t", uid_of(1), at=200.0)
        again.finish_job(uid_of(1), 200.0, "COMPLETED", 0)
        again.prune_some(1000.0, most=3)
        assert again.recent_events() == []


@pytest.mark.parametrize("forget", [Store.prune, Store.prune_some])
def test_snapshots_are_deleted_with_their_rounds(store, forget):
    """Policy states before them are deleted, too, and newer snapshots may use the bytes."""
    for number in range(1, 5):
        commit(store, number, state=PolicyState(1, {"n": number}), snapshot=b"seen", kept=1000)
    forget(store, 3500.0)
    sizes = store.table_sizes()
    assert (sizes["rounds"], sizes["snapshots"], sizes["policy_state"]) == (1, 1, 2)
    commit(store, 5, state=PolicyState(1, {"n": 5}), snapshot=b"seen", kept=2 * len('seen{"n":5}'))
    assert [number for number in range(1, 6) if store.snapshot(number)] == [4, 5]


def test_rows_of_a_clock_that_was_ahead_do_not_stop_pruning(store):
    """Rounds and events with future instants remain, and older ones after them are deleted."""
    store.event("k", "ahead", at=9e9)
    commit(store, 1, at=9e9)
    for number in range(2, 5):
        commit(store, number)
        store.event("k", "t", at=1000.0 * number)
    for _ in range(3):
        store.prune_some(4500.0, most=1)
    assert [record.round for record in store.recent_rounds()] == [4, 1]
    assert [event.text for event in store.recent_events()] == ["ahead"]


def test_the_store_counts_its_rows_and_bytes(store):
    """By table, and of the whole file."""
    store.add_job(a_job())
    sizes = store.table_sizes()
    assert sizes["jobs"] == 1
    assert sizes["runs"] == 0
    assert store.file_bytes() > 0


def test_old_jobs_go_with_their_runs_once_their_details_are_pruned(store):
    """A live job, a younger job and a job with details remain; learnt speeds go by their last measurement."""
    for uid, finished in (("a" * 16, 100.0), ("b" * 16, 900.0), ("c" * 16, None)):
        store.add_job(JobRecord(uid=uid, slurm_job_id=uid[:1], name="train", user="ann", submitted=1.0))
        store.release(uid, 1, Placement(("n1",), 1, "v100"), 2.0)
        store.event("arrived", "", uid=uid, at=1.0)
        if finished is not None:
            store.finish_job(uid, finished, "COMPLETED", 0)
    assert store.delete_some_jobs(500.0) == 0
    store.prune_some(950.0)
    store.event("late", "", uid="a" * 16, at=950.0)
    assert store.delete_some_jobs(500.0) == 1
    assert store.job("a" * 16) is None
    assert not store.runs("a" * 16)
    assert store.job("b" * 16) is not None
    assert store.delete_some_jobs(1e9) == 1
    assert [job.uid for job in store.live_jobs()] == ["c" * 16]
