from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Job, Node, Placement, Preempt, Snapshot, Status
from metasched.core.reason_words import ordinal
from metasched.scheduling.engine import run_round
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.gpu_allocator import Allocator
from tests.builders import job
from tests.unit.rounds import ROUND, Rounds
from tests.unit.strategies import snapshots


def nodes(count=1, **more):
    return tuple(Node(f"n{i}", "v100", 4, 16, 64, **more) for i in range(count))


def running(uid, gpus=1, where="n0", **more):
    return job(uid, gpus, status=Status.RUNNING, placement=Placement((where,), gpus, "v100"), **more)


def decide(jobs, cluster=None, **parameters):
    jobs = sorted(jobs, key=lambda job: (job.submitted, job.uid))
    shot = Snapshot(100.0, 1, ROUND, cluster or nodes(), tuple(jobs))
    return run_round(shot, Fifo(FifoParameters(**parameters)), None)


def amounts(result):
    return {uid: place.gpus for uid, place in result.targets.items()}


def test_jobs_are_served_in_the_order_of_their_first_submission():
    """The first submitted job runs, whatever its uid."""
    result = decide([job("a", 4, submitted=2.0), job("b", 4, submitted=1.0)])
    assert amounts(result) == {"b": 4}
    assert reason_words.words(result.reasons["b"]) == "1st of 2 in line"
    assert reason_words.words(result.reasons["a"]) == "2nd of 2 in line; needs 4 GPUs; 0 are free"


def test_no_job_overtakes_the_head_of_the_queue():
    """A job that does not fit keeps its GPUs from later jobs, whose reasons name it."""
    result = decide([running("r", 2), job("big", 4, submitted=1.0), job("small", submitted=2.0)])
    assert amounts(result) == {"r": 2}
    assert (
        reason_words.words(result.reasons["small"])
        == "3rd of 3 in line; waits behind job big, which needs the same resources"
    )


def test_a_gpu_job_waits_for_cpus():
    """Where no CPUs are free, a GPU job waits in the queue as for GPUs."""
    result = decide([job("a", 0, cpus_per_unit=14), job("b", 1, submitted=1.0, cpus_per_unit=4)])
    assert set(result.targets) == {"a"}
    assert reason_words.words(result.reasons["b"]) == "2nd of 2 in line; needs 1 GPU; 4 are free, with 2 of 4 CPUs"


def test_with_backfill_later_jobs_use_gpus_that_the_head_cannot():
    """They overtake the head of the queue where it does not fit."""
    result = decide([running("r", 2), job("big", 4, submitted=1.0), job("small", submitted=2.0)], backfill=True)
    assert amounts(result) == {"r": 2, "small": 1}
    assert reason_words.words(result.reasons["big"]) == "2nd of 3 in line; needs 4 GPUs of type v100; 1 is free"


def test_the_head_delays_only_jobs_that_compete_with_it():
    """A job for another GPU type, or without GPUs, overtakes a head that waits for v100."""
    cluster = (*nodes(), Node("a0", "a100", 4, 16, 64))
    head = [running("r", 2), job("big", 4, submitted=1.0, gpu_types=("v100",))]
    result = decide([*head, job("a", submitted=2.0, gpu_types=("a100",)), job("c", 0, submitted=2.0)], cluster)
    assert amounts(result) == {"r": 2, "a": 1, "c": 0}


def test_a_job_that_can_never_run_delays_no_other_job():
    """Its reason says that the cluster lacks what it requests."""
    result = decide([job("huge", 64), job("small", submitted=1.0)])
    assert amounts(result) == {"small": 1}
    assert (
        reason_words.words(result.reasons["huge"])
        == "1st of 2 in line; even empty, the nodes that accept jobs could not give it 64 GPUs"
    )


def test_a_running_job_is_not_stopped_for_an_earlier_one():
    """FIFO does not preempt, even after another policy started jobs out of order."""
    result = decide([job("early", 4), running("late", 4, submitted=1.0)])
    assert amounts(result) == {"late": 4}


def test_elastic_jobs_get_their_minimum_first_and_grow_in_order():
    """All jobs get their minimum, then their request, then their maximum, each in the order of the queue."""
    first, second = job("a", 2, 1, 8), job("b", 2, 1, 8, submitted=1.0)
    assert amounts(decide([first])) == {"a": 4}
    assert amounts(decide([first, second])) == {"a": 2, "b": 2}
    assert amounts(decide([first, second], nodes(2))) == {"a": 4, "b": 4}
    assert amounts(decide([first, second, job("c", 2, submitted=2.0)])) == {"a": 1, "b": 1, "c": 2}


def test_without_elasticity_jobs_get_their_requested_gpus():
    """They get neither fewer nor more."""
    result = decide([job("a", 2, 1, 8), job("b", 3, 1, 8, submitted=1.0)], elastic=False)
    assert amounts(result) == {"a": 2}


def test_growth_keeps_to_compact_sizes():
    """Beyond one node a job grows by whole nodes: on nodes of four from four to eight, not to five or seven."""
    assert amounts(decide([job("a", 4, 1, 8)], nodes(2))) == {"a": 8}
    assert amounts(decide([job("a", 4, 1, 7)], nodes(2))) == {"a": 4}
    assert amounts(decide([job("a", 4, 1, 7, nodes=2)], nodes(2))) == {"a": 6}


def test_a_job_keeps_its_gpu_type():
    """The type of its present GPUs precedes the type that it names first."""
    cluster = (*nodes(), Node("a0", "a100", 4, 16, 64))
    result = decide([running("a", 2, gpu_types=("a100", "v100"))], cluster)
    assert result.targets["a"].gpu_type == "v100"
    assert decide([job("a", 2, gpu_types=("a100", "v100"))], cluster).targets["a"].gpu_type == "a100"


def test_non_preemptible_jobs_are_counted_first():
    """A pinned job keeps its GPUs, whatever its position in the queue."""
    result = decide([job("a", 4), running("p", 2, submitted=5.0, preempt=Preempt.NO)])
    assert amounts(result) == {"p": 2}


def test_a_job_on_a_draining_node_continues():
    """Its GPUs are not part of the capacity, and are not charged either."""
    cluster = (replace(nodes()[0], accepts=False), Node("n1", "v100", 4, 16, 64))
    result = decide([running("a", 4), job("b", 4, submitted=1.0)], cluster)
    assert result.targets == {"a": Placement(("n0",), 4, "v100"), "b": Placement(("n1",), 4, "v100")}


def test_an_elastic_job_on_a_draining_node_keeps_all_of_its_gpus():
    """No other job could use GPUs that it gave back, and it takes none from jobs on other nodes."""
    cluster = (replace(nodes()[0], accepts=False), Node("n1", "v100", 4, 16, 64))
    result = decide([running("a", 4, low=1), running("b", 4, where="n1", submitted=1.0)], cluster)
    assert amounts(result) == {"a": 4, "b": 4}


def test_cpu_only_jobs_share_the_cpus():
    """They are served as long as CPUs are unassigned."""
    jobs = [job(uid, 0, cpus_per_unit=8, submitted=i) for i, uid in enumerate("abc")]
    result = decide(jobs)
    assert set(result.targets) == {"a", "b"}
    assert (
        reason_words.words(result.reasons["c"])
        == "3rd of 3 in line; needs 1 node with 8 free CPUs; 0 CPUs are free in all"
    )


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from((1, 2, 4, 8))), min_size=1, max_size=12))
def test_every_job_that_fits_the_cluster_finishes_without_preemption(arrivals):
    """FIFO starts rigid jobs in order of submission and never stops one before its end."""
    jobs = [job(f"j{i:02}", gpus) for i, (_, gpus) in enumerate(arrivals)]
    by_round: dict[int, list[Job]] = {}
    for (when, _), one in zip(arrivals, jobs, strict=True):
        by_round.setdefault(when, []).append(one)
    work = {one.uid: 2.0 * ROUND * one.gpus for one in jobs}
    rounds = Rounds(Fifo(), nodes(2), by_round, work).run(9 + 2 * len(jobs))
    assert rounds.finished.keys() == work.keys()
    ran = [[r for r, targets in enumerate(rounds.history) if one.uid in targets] for one in jobs]
    assert all(len(when) == 2 and when[1] == when[0] + 1 for when in ran)
    line = sorted((when, one.uid, rounds_of[0]) for (when, _), one, rounds_of in zip(arrivals, jobs, ran, strict=True))
    assert [start for *_, start in line] == sorted(start for *_, start in line)


def test_ordinals_are_english():
    """1st, 2nd, 3rd, 4th, 11th, 21st, 112th."""
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 21, 112)] == ["1st", "2nd", "3rd", "4th", "11th", "21st", "112th"]


@given(snapshots(max_jobs=12, free=True), st.booleans())
def test_alike_jobs_wait_behind_the_same_job_as_each_for_itself(snapshot, elastic):
    """What one waiting job waits behind is what a search for each further job of its kind finds."""
    queue = sorted([copy for one in snapshot.jobs for copy in _copies(one)], key=lambda one: one.submitted)
    shot = replace(snapshot, jobs=tuple(queue))

    class Searching(Allocator):
        def _sizes_key(self, job):
            return (*super()._sizes_key(job), job.uid)

    found = [kind(shot, queue, elastic=elastic).serve_minimum(strict=True) for kind in (Allocator, Searching)]
    assert found[0] == found[1]


def _copies(one):
    """The job, and two more of its kind that have never run."""
    gone = {"placement": None, "released": None, "last_placement": None, "co_runner": None, "status": Status.HELD}
    later = [one.evolve(uid=f"{one.uid}{n}", slurm_job_id=f"{n}", submitted=n, **gone) for n in (1e6, 2e6)]
    return [one, *later]
