from __future__ import annotations

from metasched.core import reason_words
from metasched.scheduling.engine import run_round
from policies.baselines.srsf import Srsf
from policies.baselines.srtf import ShortestParameters, Srtf
from tests.builders import job, linear, nodes, snapshot

RIGID = ShortestParameters(elastic=False)


def test_a_wide_job_counts_for_all_of_its_gpus():
    """The narrower job goes first although it takes longer; by remaining time alone it would not."""
    wide = job("wide", 4, left=40, speed=linear(1.0))  # 10 s, 40 GPU-seconds
    narrow = job("narrow", 1, left=20, speed=linear(1.0))  # 20 s, 20 GPU-seconds
    assert list(run_round(snapshot([wide, narrow]), Srsf(RIGID), None).targets) == ["narrow"]
    assert list(run_round(snapshot([wide, narrow]), Srtf(RIGID), None).targets) == ["wide"]


def test_jobs_of_unknown_remaining_time_come_last():
    """Their reason says so."""
    unknown, known = job("a", 4), job("b", 4, left=1e9, speed=linear(1.0))
    result = run_round(snapshot([unknown, known]), Srsf(RIGID), None)
    assert list(result.targets) == ["b"]
    assert "after all whose remaining time is known" in reason_words.words(result.reasons["a"])


def test_equal_services_are_ordered_by_submission():
    """Ten steps take 1/72 s on two GPUs, or 1/108 s on three, by the same speed of a GPU: the products are equal."""
    jobs = [job(uid, gpus, left=10, submitted=at, speed=linear(360.0)) for uid, gpus, at in (("a", 2, 0), ("b", 3, 1))]
    assert run_round(snapshot(jobs, nodes(1, 4)), Srsf(), None).targets.keys() == {"a"}
