"""The truth table of job retention: every predicate, for every state of a job."""

import inspect

import pytest

from metasched.core import retention
from metasched.core.model import Job, Node, Placement, Preempt, Status
from metasched.core.reasons import Reason

V100 = Placement(("n1",), 1, "v100")
CLOSED = {"n1": Node("n1", "v100", 4, 8, 8, accepts=False)}

STATES = {
    "held": {"status": Status.HELD},
    "queued": {"status": Status.QUEUED},
    "running": {"status": Status.RUNNING},
    "suspended by daemon": {"status": Status.SUSPENDED, "suspended_by_us": True},
    "suspended by admin": {"status": Status.SUSPENDED, "suspended_by_us": False},
    "stopping": {"status": Status.STOPPING},
    "finished": {"status": Status.FINISHED},
}

# The columns of the table. Predicates with arguments are asked with the job's own placement as target, without a
# co-runner, and with its only node closed to new jobs.
COLUMNS = {
    "suspended_by_daemon": retention.suspended_by_daemon,
    "suspended_by_others": retention.suspended_by_others,
    "waits_for_time_slice": retention.waits_for_time_slice,
    "is_vacating": retention.is_vacating,
    "holds_without_stop": retention.holds_without_stop,
    "holds_without_effective_stop": retention.holds_without_effective_stop,
    "is_blocked_from_start": retention.is_blocked_from_start,
    "continues_without_policy": retention.continues_without_policy,
    "is_pinned": retention.is_pinned,
    "may_be_retained": retention.may_be_retained,
    "is_immovable": retention.is_immovable,
    "is_non_preemptible": retention.is_non_preemptible,
    "consumes_quota_under_any_decision": retention.consumes_quota_under_any_decision,
    "holds_or_is_released": retention.holds_or_is_released,
    "is_stoppable_at": lambda job: retention.is_stoppable_at(job, job.placement),
    "continues_undisturbed": lambda job: retention.continues_undisturbed(job, job.placement, has_co_runner=False),
    "holds_unassignable_nodes": lambda job: retention.holds_unassignable_nodes(job, CLOSED),
    "runs_on_closed_nodes_only": lambda job: retention.runs_on_closed_nodes_only(job, {}),
}

# State of the run | GPU or CPU-only job, how it may be preempted, blocked or not | one x or dot for each of COLUMNS.
TABLE = """
held                               | GPU checkpoint -       | . . . . . . . . . . . . . . . . . .
held                               | GPU checkpoint blocked | . . . . . . x . . . . . . . . . . .
held                               | GPU suspend    -       | . . . . . . . . . x . . . . . . . .
held                               | GPU suspend    blocked | . . . . . . x . . x . . . . . . . .
held                               | GPU no         -       | . . . . . . . . . x . . . . . . . .
held                               | GPU no         blocked | . . . . . . x . . x . . . . . . . .
held                               | CPU checkpoint -       | . . . . . . . . . . . . . . . . . .
held                               | CPU checkpoint blocked | . . . . . . x . . . . . . . . . . .
held                               | CPU suspend    -       | . . . . . . . . . x . . . . . . . .
held                               | CPU suspend    blocked | . . . . . . x . . x . . . . . . . .
held                               | CPU no         -       | . . . . . . . . . x . . . . . . . .
held                               | CPU no         blocked | . . . . . . x . . x . . . . . . . .
queued                             | GPU checkpoint -       | . . . . . . . . . . . . . x . . . .
queued                             | GPU checkpoint blocked | . . . . . . x . . . . . . x . . . .
queued                             | GPU suspend    -       | . . . . . . . . . x . . . x . . . .
queued                             | GPU suspend    blocked | . . . . . . x . . x . . . x . . . .
queued                             | GPU no         -       | . . . . . . . . . x . . . x . . . .
queued                             | GPU no         blocked | . . . . . . x . . x . . . x . . . .
queued                             | CPU checkpoint -       | . . . . . . . . . . . . . x . . . .
queued                             | CPU checkpoint blocked | . . . . . . x . . . . . . x . . . .
queued                             | CPU suspend    -       | . . . . . . . . . x . . . x . . . .
queued                             | CPU suspend    blocked | . . . . . . x . . x . . . x . . . .
queued                             | CPU no         -       | . . . . . . . . . x . . . x . . . .
queued                             | CPU no         blocked | . . . . . . x . . x . . . x . . . .
running                            | GPU checkpoint -       | . . . . x x . x . . . . . x x x x x
running                            | GPU checkpoint blocked | . . . . x x . x . . . . x x x x x x
running                            | GPU suspend    -       | . . . . x x . x x x x x x x . x x x
running                            | GPU suspend    blocked | . . . . x x . x x x x x x x . x x x
running                            | GPU no         -       | . . . . x x . x x x x x x x . x x x
running                            | GPU no         blocked | . . . . x x . x x x x x x x . x x x
running                            | CPU checkpoint -       | . . . . x x . x . . . . . x x x x .
running                            | CPU checkpoint blocked | . . . . x x . x . . . . x x x x x .
running                            | CPU suspend    -       | . . . . x x . x . x . . . x . x x .
running                            | CPU suspend    blocked | . . . . x x . x . x . . x x . x x .
running                            | CPU no         -       | . . . . x x . x x x x x x x . x x .
running                            | CPU no         blocked | . . . . x x . x x x x x x x . x x .
running, asked to stop             | GPU checkpoint -       | . . . x . . . . . . . . . x . . x x
running, asked to stop             | GPU checkpoint blocked | . . . x . . . . . . . . x x . . x x
running, asked to stop             | GPU suspend    -       | . . . x . . . . x x x x x x . . x x
running, asked to stop             | GPU suspend    blocked | . . . x . . . . x x x x x x . . x x
running, asked to stop             | GPU no         -       | . . . x . . . . x x x x x x . . x x
running, asked to stop             | GPU no         blocked | . . . x . . . . x x x x x x . . x x
running, asked to stop             | CPU checkpoint -       | . . . x . . . . . . . . . x . . x .
running, asked to stop             | CPU checkpoint blocked | . . . x . . . . . . . . x x . . x .
running, asked to stop             | CPU suspend    -       | . . . x . . . . . x . . . x . . x .
running, asked to stop             | CPU suspend    blocked | . . . x . . . . . x . . x x . . x .
running, asked to stop             | CPU no         -       | . . . x . . . . x x x x x x . . x .
running, asked to stop             | CPU no         blocked | . . . x . . . . x x x x x x . . x .
suspended by daemon                | GPU checkpoint -       | x . x . x x . . . x x x x x x . x .
suspended by daemon                | GPU checkpoint blocked | x . x . x x . . . x x x x x x . x .
suspended by daemon                | GPU suspend    -       | x . x . x x . . x x x x x x . . x .
suspended by daemon                | GPU suspend    blocked | x . x . x x . . x x x x x x . . x .
suspended by daemon                | GPU no         -       | x . x . x x . . x x x x x x . . x .
suspended by daemon                | GPU no         blocked | x . x . x x . . x x x x x x . . x .
suspended by daemon                | CPU checkpoint -       | x . . . x x . . . x x . x x x . x .
suspended by daemon                | CPU checkpoint blocked | x . . . x x . . . x x . x x x . x .
suspended by daemon                | CPU suspend    -       | x . . . x x . . . x x . x x . . x .
suspended by daemon                | CPU suspend    blocked | x . . . x x . . . x x . x x . . x .
suspended by daemon                | CPU no         -       | x . . . x x . . x x x x x x . . x .
suspended by daemon                | CPU no         blocked | x . . . x x . . x x x x x x . . x .
suspended by daemon, asked to stop | GPU checkpoint -       | x . x x . . . . . x x x x x . . x .
suspended by daemon, asked to stop | GPU checkpoint blocked | x . x x . . . . . x x x x x . . x .
suspended by daemon, asked to stop | GPU suspend    -       | x . x x . . . . x x x x x x . . x .
suspended by daemon, asked to stop | GPU suspend    blocked | x . x x . . . . x x x x x x . . x .
suspended by daemon, asked to stop | GPU no         -       | x . x x . . . . x x x x x x . . x .
suspended by daemon, asked to stop | GPU no         blocked | x . x x . . . . x x x x x x . . x .
suspended by daemon, asked to stop | CPU checkpoint -       | x . . x . . . . . x x . x x . . x .
suspended by daemon, asked to stop | CPU checkpoint blocked | x . . x . . . . . x x . x x . . x .
suspended by daemon, asked to stop | CPU suspend    -       | x . . x . . . . . x x . x x . . x .
suspended by daemon, asked to stop | CPU suspend    blocked | x . . x . . . . . x x . x x . . x .
suspended by daemon, asked to stop | CPU no         -       | x . . x . . . . x x x x x x . . x .
suspended by daemon, asked to stop | CPU no         blocked | x . . x . . . . x x x x x x . . x .
suspended by admin                 | GPU checkpoint -       | . x . . x x . x . x x x x x . . x .
suspended by admin                 | GPU checkpoint blocked | . x . . x x . x . x x x x x . . x .
suspended by admin                 | GPU suspend    -       | . x . . x x . x x x x x x x . . x .
suspended by admin                 | GPU suspend    blocked | . x . . x x . x x x x x x x . . x .
suspended by admin                 | GPU no         -       | . x . . x x . x x x x x x x . . x .
suspended by admin                 | GPU no         blocked | . x . . x x . x x x x x x x . . x .
suspended by admin                 | CPU checkpoint -       | . x . . x x . x . x x . x x . . x .
suspended by admin                 | CPU checkpoint blocked | . x . . x x . x . x x . x x . . x .
suspended by admin                 | CPU suspend    -       | . x . . x x . x . x x . x x . . x .
suspended by admin                 | CPU suspend    blocked | . x . . x x . x . x x . x x . . x .
suspended by admin                 | CPU no         -       | . x . . x x . x x x x x x x . . x .
suspended by admin                 | CPU no         blocked | . x . . x x . x x x x x x x . . x .
suspended by admin, asked to stop  | GPU checkpoint -       | . x . x . x . x . x x x x x . . x .
suspended by admin, asked to stop  | GPU checkpoint blocked | . x . x . x . x . x x x x x . . x .
suspended by admin, asked to stop  | GPU suspend    -       | . x . x . x . x x x x x x x . . x .
suspended by admin, asked to stop  | GPU suspend    blocked | . x . x . x . x x x x x x x . . x .
suspended by admin, asked to stop  | GPU no         -       | . x . x . x . x x x x x x x . . x .
suspended by admin, asked to stop  | GPU no         blocked | . x . x . x . x x x x x x x . . x .
suspended by admin, asked to stop  | CPU checkpoint -       | . x . x . x . x . x x . x x . . x .
suspended by admin, asked to stop  | CPU checkpoint blocked | . x . x . x . x . x x . x x . . x .
suspended by admin, asked to stop  | CPU suspend    -       | . x . x . x . x . x x . x x . . x .
suspended by admin, asked to stop  | CPU suspend    blocked | . x . x . x . x . x x . x x . . x .
suspended by admin, asked to stop  | CPU no         -       | . x . x . x . x x x x x x x . . x .
suspended by admin, asked to stop  | CPU no         blocked | . x . x . x . x x x x x x x . . x .
stopping                           | GPU checkpoint -       | . . . x . . . . . . . . . x . . x .
stopping                           | GPU checkpoint blocked | . . . x . . . . . . . . . x . . x .
stopping                           | GPU suspend    -       | . . . x . . . . x x x x . x . . x .
stopping                           | GPU suspend    blocked | . . . x . . . . x x x x . x . . x .
stopping                           | GPU no         -       | . . . x . . . . x x x x . x . . x .
stopping                           | GPU no         blocked | . . . x . . . . x x x x . x . . x .
stopping                           | CPU checkpoint -       | . . . x . . . . . . . . . x . . x .
stopping                           | CPU checkpoint blocked | . . . x . . . . . . . . . x . . x .
stopping                           | CPU suspend    -       | . . . x . . . . . x . . . x . . x .
stopping                           | CPU suspend    blocked | . . . x . . . . . x . . . x . . x .
stopping                           | CPU no         -       | . . . x . . . . x x x x . x . . x .
stopping                           | CPU no         blocked | . . . x . . . . x x x x . x . . x .
stopping, asked to stop            | GPU checkpoint -       | . . . x . . . . . . . . . x . . x .
stopping, asked to stop            | GPU checkpoint blocked | . . . x . . . . . . . . . x . . x .
stopping, asked to stop            | GPU suspend    -       | . . . x . . . . x x x x . x . . x .
stopping, asked to stop            | GPU suspend    blocked | . . . x . . . . x x x x . x . . x .
stopping, asked to stop            | GPU no         -       | . . . x . . . . x x x x . x . . x .
stopping, asked to stop            | GPU no         blocked | . . . x . . . . x x x x . x . . x .
stopping, asked to stop            | CPU checkpoint -       | . . . x . . . . . . . . . x . . x .
stopping, asked to stop            | CPU checkpoint blocked | . . . x . . . . . . . . . x . . x .
stopping, asked to stop            | CPU suspend    -       | . . . x . . . . . x . . . x . . x .
stopping, asked to stop            | CPU suspend    blocked | . . . x . . . . . x . . . x . . x .
stopping, asked to stop            | CPU no         -       | . . . x . . . . x x x x . x . . x .
stopping, asked to stop            | CPU no         blocked | . . . x . . . . x x x x . x . . x .
finished                           | GPU checkpoint -       | . . . . . . . . . . . . . . . . . .
finished                           | GPU checkpoint blocked | . . . . . . x . . . . . . . . . . .
finished                           | GPU suspend    -       | . . . . . . . . . x . . . . . . . .
finished                           | GPU suspend    blocked | . . . . . . x . . x . . . . . . . .
finished                           | GPU no         -       | . . . . . . . . . x . . . . . . . .
finished                           | GPU no         blocked | . . . . . . x . . x . . . . . . . .
finished                           | CPU checkpoint -       | . . . . . . . . . . . . . . . . . .
finished                           | CPU checkpoint blocked | . . . . . . x . . . . . . . . . . .
finished                           | CPU suspend    -       | . . . . . . . . . x . . . . . . . .
finished                           | CPU suspend    blocked | . . . . . . x . . x . . . . . . . .
finished                           | CPU no         -       | . . . . . . . . . x . . . . . . . .
finished                           | CPU no         blocked | . . . . . . x . . x . . . . . . . .
"""


def job(state, resources, preempt, blocked):
    """The job of a row: active jobs hold node n1, a queued one is released for it."""
    situation, _, asked = state.partition(", ")
    gpus = 1 if resources == "GPU" else 0
    there = V100 if gpus else Placement(("n1",), 0, None)
    return Job(
        uid="a",
        slurm_job_id="1",
        name="a",
        user="u",
        submitted=0.0,
        gpus=gpus,
        min_gpus=gpus,
        max_gpus=gpus,
        preempt=Preempt(preempt),
        blocked=Reason.text("a dependency") if blocked == "blocked" else None,
        placement=there if situation.startswith(("running", "suspended", "stopping")) else None,
        released=there if situation == "queued" else None,
        stop_requested=1.0 if asked else None,
        **STATES[situation],
    )


def rows():
    """The rows of the table: what describes the job, and the marks."""
    parts = [[part.strip() for part in line.split("|")] for line in TABLE.strip().splitlines()]
    return [((state, *kind.split()), marks.split()) for state, kind, marks in parts]


@pytest.mark.parametrize(("described", "marks"), rows(), ids=lambda part: " ".join(part) if len(part) == 4 else "")
def test_each_predicate_is_as_the_table_says(described, marks):
    found = {name: predicate(job(*described)) for name, predicate in COLUMNS.items()}
    assert found == dict(zip(COLUMNS, (mark == "x" for mark in marks), strict=True))


def test_the_table_has_every_predicate_and_every_state():
    public = {name for name, _ in inspect.getmembers(retention, inspect.isfunction) if not name.startswith("_")}
    assert public == COLUMNS.keys()
    asked = [state for state in STATES if state.startswith(("running", "suspended", "stopping"))]
    assert len({described for described, _ in rows()}) == (len(STATES) + len(asked)) * 2 * len(Preempt) * 2


def test_no_two_predicates_are_equal():
    marks = list(zip(*(marks for _, marks in rows()), strict=True))
    assert len(set(marks)) == len(COLUMNS)


def test_every_job_that_is_pinned_or_suspended_may_be_retained():
    for described, _ in rows():
        one = job(*described)
        if retention.is_pinned(one) or retention.is_immovable(one) or retention.is_non_preemptible(one):
            assert retention.may_be_retained(one)


def test_a_job_away_from_its_target_is_neither_stoppable_there_nor_undisturbed():
    running, other = job("running", "GPU", "checkpoint", "-"), Placement(("n2",), 1, "v100")
    for target in (None, other):
        assert not retention.is_stoppable_at(running, target)
        assert not retention.continues_undisturbed(running, target, has_co_runner=False)


def test_a_job_on_whole_gpus_has_to_restart_for_a_co_runner():
    whole = job("running", "GPU", "checkpoint", "-")
    assert not retention.continues_undisturbed(whole, V100, has_co_runner=True)
    assert retention.continues_undisturbed(whole.evolve(half_gpus=True), V100, has_co_runner=True)


@pytest.mark.parametrize(
    ("gpu_type", "accepts", "unassignable"), [("v100", True, False), ("v100", False, True), ("k80", True, True)]
)
def test_nodes_are_unassignable_if_gone_closed_or_unsuitable(gpu_type, accepts, unassignable):
    held = job("running", "GPU", "checkpoint", "-").evolve(gpu_types=("v100",))
    nodes = {"n1": Node("n1", gpu_type, 4, 8, 8, accepts=accepts)}
    assert retention.holds_unassignable_nodes(held, nodes) is unassignable
    assert retention.holds_unassignable_nodes(held, {})


def test_a_job_that_reaches_an_open_node_does_not_run_on_closed_nodes_only():
    held = job("running", "GPU", "checkpoint", "-")
    assert not retention.runs_on_closed_nodes_only(held, {"n1": Node("n1", "v100", 4, 8, 8)})
    assert retention.runs_on_closed_nodes_only(held, {"n2": Node("n2", "v100", 4, 8, 8)})
