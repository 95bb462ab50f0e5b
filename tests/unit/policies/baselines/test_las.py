from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from metasched.core import reason_words
from metasched.core.model import Job, Node, Placement, Preempt, Snapshot, Status
from metasched.core.policy import PolicyState
from metasched.scheduling.engine import run_round
from policies.baselines.las import Las, LasParameters
from tests import builders
from tests.unit.rounds import ROUND, Rounds


def nodes(count=1):
    return tuple(Node(f"n{i}", "v100", 4, 16, 64) for i in range(count))


def job(uid, gpus=4, low=None, high=None, **more):
    return builders.job(uid, gpus, low, high, **more)


def las(**parameters):
    return Las(LasParameters(**parameters))


def runs(rounds, uid):
    return [uid in targets for targets in rounds.history]


def test_a_job_falls_to_the_next_queue_and_is_preempted_by_a_new_one():
    """Above the threshold of GPU-seconds a job yields to one that has received less."""
    policy = las(queue_thresholds_gpu_seconds=(2 * 4 * ROUND,), promote_knob=None)
    rounds = Rounds(policy, nodes(), {0: [job("old")], 1: [job("new")]}).run(5)
    assert runs(rounds, "old") == [True, True, False, False, False]
    assert runs(rounds, "new") == [False, False, True, True, True]
    assert reason_words.words(rounds.reasons[2]["old"]).startswith(
        "2nd of 2 in line; in queue 2 of 2 by the GPU time it has had; needs 4 GPUs"
    )


def test_service_is_gpus_times_time():
    """Of two jobs that ran equally long, the one on more GPUs is in the lower queue."""
    policy = las(queue_thresholds_gpu_seconds=(2 * ROUND,), promote_knob=None)
    rounds = Rounds(policy, nodes(), {0: [job("big", 2), job("small", 1)], 1: [job("new", 3)]}).run(2)
    assert set(rounds.history[0]) == {"big", "small"}
    assert set(rounds.history[1]) == {"small", "new"}


def test_within_a_queue_the_first_started_jobs_continue():
    """Equal jobs do not preempt each other alternately."""
    policy = las(queue_thresholds_gpu_seconds=(1e9,))
    rounds = Rounds(policy, nodes(), {0: [job("b")], 1: [job("a")]}).run(20)
    assert all(runs(rounds, "b"))


def test_a_running_job_is_not_preempted_by_a_job_of_its_own_queue():
    """Two jobs preempt a wide one from the top queue, fall to its queue, and continue to their end."""
    arrivals = {0: [job("wide", 4)], 4: [job("a", 2), job("b", 2)]}
    policy = las(queue_thresholds_gpu_seconds=(6 * ROUND,), promote_knob=None)
    rounds = Rounds(policy, nodes(), arrivals, {"a": 16 * ROUND, "b": 16 * ROUND}).run(14)
    assert runs(rounds, "wide") == [True] * 4 + [False] * 8 + [True] * 2
    assert runs(rounds, "a") == runs(rounds, "b") == [False] * 4 + [True] * 8 + [False] * 2


def test_a_starved_job_is_promoted_and_its_service_counts_anew():
    """After waiting knob times its run time it is in the top queue again, before jobs that started later."""
    threshold = 4 * ROUND
    arrivals = {0: [job("old")]} | {n: [job(f"new{n}")] for n in range(1, 40)}
    starving = Rounds(las(queue_thresholds_gpu_seconds=(threshold,), promote_knob=None), nodes(), arrivals).run(40)
    assert runs(starving, "old").count(True) == 1
    fair = Rounds(las(queue_thresholds_gpu_seconds=(threshold,), promote_knob=5.0), nodes(), arrivals).run(40)
    assert runs(fair, "old")[:8] == [True, False, False, False, False, False, True, False]
    assert runs(fair, "old").count(True) == 7


def test_a_pinned_job_keeps_its_gpus():
    """A job with preempt=no continues in the lowest queue."""
    policy = las(queue_thresholds_gpu_seconds=(1.0,))
    rounds = Rounds(policy, nodes(), {0: [job("old", preempt=Preempt.NO)], 1: [job("new")]}).run(5)
    assert all(runs(rounds, "old"))


def test_elastic_jobs_grow_on_remaining_gpus():
    """Alone, a job gets all GPUs that it can use; with another job, both get at least their minimum."""
    policy = las(queue_thresholds_gpu_seconds=(1e9,))
    rounds = Rounds(policy, nodes(), {0: [job("a", 2, 1, 4)], 1: [job("b", 2, 1, 4)]}).run(2)
    assert rounds.gpus("a") == [4, 2]
    assert rounds.gpus("b") == [0, 2]
    rigid = Rounds(las(elastic=False), nodes(), {0: [job("a", 2, 1, 4)]}).run(1)
    assert rigid.gpus("a") == [2]


def test_the_state_is_json_and_holds_live_jobs_only():
    """The state survives JSON, and has no record of ended jobs."""
    rounds = Rounds(las(), nodes(), {0: [job("a"), job("b", submitted=1.0)]}, {"a": 4 * ROUND}).run(3)
    assert set(rounds.state.data) == {"b"}
    assert json.loads(json.dumps(dict(rounds.state.data))) == rounds.state.data


@pytest.mark.parametrize(
    "state", [None, PolicyState(99, {"a": 1}), PolicyState(1, {"a": {"first_start": "x"}, "b": 3, "c": {"no": 1}})]
)
def test_a_missing_or_damaged_state_is_rebuilt_from_the_jobs_history(state):
    """Attained service is in the jobs; jobs that ran are then ordered by submission."""
    ran = {"attained": {"v100": 100.0}, "ran_seconds": 25.0}
    jobs = (
        job("a", submitted=1.0, **ran),
        job("b", submitted=2.0, **ran),
        job("c", submitted=3.0, attained={"v100": 1e6}, ran_seconds=1e5),
        job("d", submitted=4.0),
    )
    shot = Snapshot(50.0, 1, ROUND, nodes(), jobs)
    order = [grant.uid for grant in Las().decide(shot, state or Las().initial_state(shot))[0].grants]
    assert order == ["a"]
    assert set(run_round(shot, Las(), state).targets) == {"a"}


def test_cpu_only_jobs_alternate_by_suspension():
    """Two jobs that need the same CPUs are both served, each on its first node."""
    policy = las(queue_thresholds_gpu_seconds=(ROUND,), promote_knob=1.0)
    cluster = (Node("c0", None, 0, 16, 64),)
    two = [job(uid, 0, cpus_per_unit=16, preempt=Preempt.SUSPEND) for uid in "ab"]
    rounds = Rounds(policy, cluster, {0: two}).run(12)
    assert 3 <= runs(rounds, "a").count(True) <= 9
    assert all(len(targets) == 1 for targets in rounds.history)


@pytest.mark.parametrize(
    "parameters",
    [
        {"queue_thresholds_gpu_seconds": (5.0, 5.0)},
        {"queue_thresholds_gpu_seconds": (-1.0,)},
        {"queue_thresholds_gpu_seconds": (float("nan"),)},
        {"promote_knob": 0.0},
        {"promote_knob": float("inf")},
        {"queues": 3},
    ],
)
def test_invalid_parameters_are_refused(parameters):
    """Thresholds increase from above zero, the knob is positive, all are finite, and there are no other keys."""
    with pytest.raises(ValidationError):
        LasParameters(**parameters)


@st.composite
def workloads(draw):
    """Arrivals and work on a cluster of two nodes; every job fits the cluster and ends."""
    arrivals: dict[int, list[Job]] = {}
    work = {}
    for i in range(draw(st.integers(1, 12))):
        gpus = draw(st.sampled_from((0, 1, 2, 3, 4, 8)))
        low = draw(st.integers(1, gpus)) if gpus else 0
        preempt = Preempt.CHECKPOINT if gpus else draw(st.sampled_from((Preempt.CHECKPOINT, Preempt.SUSPEND)))
        one = job(f"j{i:02}", gpus, low, draw(st.sampled_from((gpus, 2 * gpus))), cpus_per_unit=4, preempt=preempt)
        arrivals.setdefault(draw(st.integers(0, 10)), []).append(one)
        work[one.uid] = draw(st.integers(1, 5)) * ROUND * max(gpus, 1)
    return arrivals, work


@given(workloads(), st.sampled_from((None, 0.5, 8.0)))
def test_every_job_finishes(workload, knob):
    """Each round at least one job advances, so none is left when the work is done."""
    arrivals, work = workload
    policy = las(queue_thresholds_gpu_seconds=(2 * ROUND, 8 * ROUND), promote_knob=knob)
    rounds = Rounds(policy, nodes(2), arrivals, work)
    rounds.run(11 + int(sum(work.values()) / ROUND))
    assert rounds.finished.keys() == work.keys()


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from((1.0, 4.0)))
def test_no_job_starves_under_an_endless_stream(gpus, stream, knob):
    """While new short jobs fill the cluster at all times, a promoted long job keeps running regularly."""
    count, all_rounds = 4 // stream, 45
    arrivals = {n: [job(f"s{n:03}{i}", stream) for i in range(count)] for n in range(1, all_rounds)}
    arrivals[0] = [job("long", gpus)]
    work = {one.uid: one.gpus * ROUND for n in range(1, all_rounds) for one in arrivals[n]}
    policy = las(queue_thresholds_gpu_seconds=(gpus * ROUND,), promote_knob=knob)
    rounds = Rounds(policy, nodes(), arrivals, work).run(all_rounds)
    ran = [n for n, runs_then in enumerate(runs(rounds, "long")) if runs_then]
    gaps = [after - before for before, after in zip(ran, [*ran[1:], all_rounds], strict=True)]
    assert max(gaps) <= 2 * knob + 2


def test_a_job_returns_to_its_previous_nodes():
    """A preempted job resumes where its data may still be."""
    last = Placement(("n1",), 4, "v100")
    shot = Snapshot(0.0, 1, ROUND, nodes(2), (job("a", last_placement=last, status=Status.HELD),))
    assert run_round(shot, Las(), None).targets["a"].nodes == ("n1",)


def test_within_a_queue_jobs_may_be_ordered_by_entry():
    """A job that falls then comes after those that fell before it, whichever started first."""
    arrivals = {0: [job("wide", 2), job("narrow", 1)], 3: [job("new", 2)]}
    given = {"queue_thresholds_gpu_seconds": (1.5 * ROUND,), "promote_knob": None, "elastic": False}
    by_entry = Rounds(las(**given, order="entry"), nodes(), arrivals).run(4)
    queue = [uid for uid, _ in sorted(by_entry.reasons[3].items(), key=lambda item: item[1])]
    assert queue == ["new", "wide", "narrow"]
    by_start = Rounds(las(**given), nodes(), arrivals).run(4)
    assert [uid for uid, _ in sorted(by_start.reasons[3].items(), key=lambda item: item[1])] == [
        "new",
        "narrow",
        "wide",
    ]
