from __future__ import annotations

from dataclasses import replace

from metasched.core import reason_words
from metasched.scheduling.engine import run_round
from policies.baselines.srtf import ShortestParameters, Srtf
from tests.builders import ByGpus, job, linear, nodes, running, snapshot

RIGID = Srtf(ShortestParameters(elastic=False))


def runs(jobs, policy=RIGID, **more):
    return list(run_round(snapshot(jobs, **more), policy, None).targets)


def test_the_job_that_is_soonest_done_runs_first():
    """Remaining steps over speed, not the steps alone."""
    slow = job("slow", 4, left=100, speed=linear(1.0))
    fast = job("fast", 4, left=200, speed=linear(10.0))
    assert runs([slow, fast]) == ["fast"]


def test_a_newcomer_that_is_sooner_done_preempts():
    """A running job continues only while no shorter job needs its GPUs."""
    long = running(job("long", 4, left=100, speed=linear(1.0)), "v100-0")
    short = job("short", 4, left=10, speed=linear(1.0), submitted=5.0)
    assert runs([long, short]) == ["short"]
    nearly_done = long.evolve(progress_steps=95.0)
    assert runs([nearly_done, short]) == ["long"]


def test_jobs_of_unknown_remaining_time_come_last_by_submission():
    """Neither a job without total steps nor one without a speed overtakes a job of known remaining time."""
    no_total, no_speed = job("a", 4, speed=linear(1.0)), job("b", 4, left=1)
    known = job("z", 4, left=1e9, speed=linear(1.0), submitted=9.0)
    result = run_round(snapshot([no_total, no_speed, known]), RIGID, None)
    assert list(result.targets) == ["z"]
    assert "after all whose remaining time is known" in reason_words.words(result.reasons["a"])
    assert runs([no_total, no_speed]) == ["a"]


def test_the_measured_speed_counts_where_no_other_is_known():
    """The speed is the trainer's report of the present run."""
    reported = running(job("r", 4, left=100), "v100-0").evolve(steps_per_second=100.0)
    other = job("o", 4, left=2, speed=linear(0.1))
    assert runs([reported, other]) == ["r"]


def test_the_speed_is_that_on_the_fastest_type_that_the_job_accepts():
    """Types that the job does not accept, or that the cluster lacks, do not count."""
    mixed = nodes(1, 4, "k80") + nodes(1, 4, "v100")
    k80 = job("a", 4, left=100, speed=ByGpus(((4, 1.0),), "k80"))
    v100 = job("b", 4, left=100, speed=ByGpus(((4, 2.0),), "v100"), gpu_types=("v100",))
    reasons = run_round(snapshot([k80, v100], mixed), RIGID, None).reasons
    assert reason_words.words(reasons["b"]).startswith("1st of 2")
    assert reason_words.words(reasons["a"]).startswith("2nd of 2")


def test_a_type_that_cannot_hold_the_job_does_not_count():
    """A fast type with too few GPUs, or none on suitable nodes, does not determine the remaining time."""

    class Typed:
        def steps_per_second(self, gpu_type, spread):
            return sum(spread) * {"v100": 1.0, "a100": 100.0}[gpu_type]

    few = nodes(1, 8) + nodes(1, 2, "a100")
    long = job("long", 8, left=8000, speed=Typed())  # 1000 s, and 10 s on an a100
    short = job("short", 8, left=896, speed=linear(1.0))  # 112 s
    assert runs([long, short], the_nodes=few) == ["short"]
    away = (*nodes(1, 8), replace(nodes(1, 8, "a100")[0], partitions=frozenset({"other"})))
    here = (replace(away[0], partitions=frozenset({"main"})), away[1])
    assert runs([long.evolve(partition="main"), short.evolve(partition="main")], the_nodes=here) == ["short"]


def test_elastic_jobs_grow_on_remaining_gpus():
    """Minimums are served first, in order; then the shortest job grows."""
    short = job("s", 1, 1, 4, left=10, speed=linear(1.0))
    long = job("l", 1, 1, 4, left=99, speed=linear(1.0))
    found = run_round(snapshot([short, long]), Srtf(), None).targets
    assert {uid: place.gpus for uid, place in found.items()} == {"s": 3, "l": 1}
