from metasched.core.model import Placement
from metasched.store import EndCause, JobRecord, Store
from metasched.store.metric_rows import MAX_ACCOUNTS, CounterKey

AT = 1e9


def run(store, uid, *, cause=EndCause.FINISHED, seconds=100.0, gpus=4, account="vision", wait=60.0):
    """Store a job with one run that has ended."""
    placement = Placement(("n1", "n2"), gpus // 2, "v100")
    store.add_job(JobRecord(uid=uid, slurm_job_id=uid, name="x", user="ada", submitted=AT - wait, account=account))
    store.release(uid, 1, placement, AT)
    store.run_started(uid, 1, AT, placement)
    store.run_ended(uid, 1, AT + seconds, cause)


def value(store, name, label="", gpu_type=""):
    """A counter's value; None where it never counted."""
    return store.metric_counters().get(CounterKey(name, label, gpu_type))


def test_the_end_of_a_run_counts_its_cause_and_gpu_seconds(store):
    """GPU-seconds are those that the store adds to the job, once, however often the end is recorded."""
    run(store, "a")
    store.run_ended("a", 1, AT + 500, EndCause.FAILED)
    run(store, "b", cause=EndCause.PREEMPTED, seconds=50.0, account=None)
    assert value(store, "runs_ended", "finished") == 1
    assert value(store, "runs_ended", "preempted") == 1
    assert value(store, "account_gpu_seconds", "vision", "v100") == store.job("a").attained["v100"] == 400.0
    assert value(store, "account_gpu_seconds", "", "v100") == 200.0


def test_a_suspended_run_does_not_count_its_suspension(store):
    """As in the job's attained service."""
    placement = Placement(("n1",), 2, "v100")
    store.add_job(JobRecord(uid="a", slurm_job_id="1", name="x", user="ada", submitted=AT))
    store.release("a", 1, placement, AT)
    store.run_started("a", 1, AT, placement)
    store.run_suspended("a", 1, AT + 10, by_us=True)
    store.run_resumed("a", 1, AT + 40)
    store.run_suspended("a", 1, AT + 50, by_us=True)
    store.run_ended("a", 1, AT + 90, EndCause.FINISHED)
    assert value(store, "account_gpu_seconds", "", "v100") == store.job("a").attained["v100"] == 40.0


def test_a_run_that_never_started_holds_nothing(store):
    """A withdrawn run is counted as such, without GPU-seconds."""
    store.add_job(JobRecord(uid="a", slurm_job_id="1", name="x", user="ada", submitted=AT))
    store.release("a", 1, Placement(("n1",), 2, "v100"), AT)
    store.release("a", 2, Placement(("n2",), 2, "v100"), AT + 1)
    assert value(store, "runs_ended", "withdrawn") == 1
    assert not [key for key in store.metric_counters() if key.name == "account_gpu_seconds"]


def test_only_the_first_start_is_a_wait(store):
    """A wait falls into the first bucket whose bound it does not exceed; a restart is no wait."""
    run(store, "a", wait=60.0, cause=EndCause.PREEMPTED)
    store.release("a", 2, Placement(("n1",), 2, "v100"), AT + 200)
    store.run_started("a", 2, AT + 200, Placement(("n1",), 2, "v100"))
    run(store, "b", wait=1e8)
    assert value(store, "wait_seconds_bucket", "60") == 1
    assert value(store, "wait_seconds_bucket", "+Inf") == 1
    assert value(store, "wait_seconds_sum") == 60.0 + 1e8


def test_completions_and_actions(store):
    """Only completed jobs have a completion; an action counts by its kind and whether it succeeded."""
    run(store, "a")
    store.finish_job("a", AT + 100, "COMPLETED", 0)
    run(store, "b")
    store.finish_job("b", AT + 100, "FAILED", 1)
    store.end_action(store.begin_action("a", "start", {}, 1, AT), "ok", 0.1)
    store.end_action(store.begin_action("a", "start", {}, 1, AT), "Slurm is down", None)
    store.begin_action("a", "stop", {}, 1, AT)
    assert value(store, "completion_seconds_sum") == 160.0
    assert (value(store, "actions", "start ok"), value(store, "actions", "start error")) == (1, 1)
    assert value(store, "actions", "stop ok") is None


def test_counters_outlive_retention_and_takeover(store, tmp_path):
    """Pruning deletes actions and not their counters; a copy for another host has the counters, and counts on."""
    run(store, "a")
    store.finish_job("a", AT + 100, "COMPLETED", 0)
    store.end_action(store.begin_action("a", "start", {}, 1, AT), "ok", 0.1)
    store.prune(AT + 1e6)
    before = store.metric_counters()
    assert value(store, "actions", "start ok") == 1
    store.copy_to(tmp_path / "copy.db")
    with Store.open(tmp_path / "copy.db") as copy:
        assert copy.metric_counters() == before
        run(copy, "b")
        assert value(copy, "runs_ended", "finished") == 2
    with Store.open(tmp_path / "filled.db") as filled:
        filled.fill_from(tmp_path / "copy.db")
        assert value(filled, "runs_ended", "finished") == 2


def test_the_first_accounts_have_metrics_for_good(store):
    """Later accounts never take the place of earlier ones."""
    first = [f"a{i:03d}" for i in range(MAX_ACCOUNTS - 1)]
    assert store.metric_accounts(first) == frozenset(first)
    grown = store.metric_accounts(["zoo", "zzz", *first])
    assert grown == frozenset([*first, "zoo"])
    assert store.metric_accounts(["aaa"]) == grown
