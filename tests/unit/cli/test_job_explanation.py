"""Sentences on a job's place, on the jobs for which it was stopped, and on its finish-time fairness."""

import pytest

from metasched.presentation.formatting import node_note
from metasched.presentation.job_explanation import explanation, fairness_words, history
from metasched.shared_dir.published_status import NodeStatus
from metasched.store.fairness import FairnessRecord
from tests.unit.cli.test_cli import NOW, job, published, waiting

OTHER = job(uid="1" * 16, slurm_job_id="812", user="ann")


def sentences(one, **changes):
    return explanation(one, published(jobs=(one, OTHER), **changes), NOW)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (1, ["Its place is 1 among the jobs that wait, the next to start."]),
        (4, ["Its place is 4 among the jobs that wait."]),
        (None, []),
    ],
)
def test_a_waiting_job_has_its_place(place, said):
    """A job without a place has no such sentence."""
    assert [line for line in sentences(waiting(place=place)) if "place" in line] == said


@pytest.mark.parametrize(
    ("stopped_for", "others", "said"),
    [
        ((OTHER.uid,), 0, "It was stopped for 812 of ann."),
        ((OTHER.uid, "2" * 16), 1, "It was stopped for 812 of ann and 2 other jobs."),
        (("2" * 16,), 0, "It was stopped for 1 other job."),
        ((), 3, "It was stopped for 3 other jobs."),
    ],
)
def test_the_jobs_that_got_the_gpus_are_named_as_far_as_they_are_seen(stopped_for, others, said):
    """Jobs that the reader may not see are counted."""
    assert said in sentences(waiting(stopped_for=stopped_for, stopped_for_others=others))


def test_a_job_that_runs_again_is_not_said_to_be_stopped():
    """The stop is over."""
    assert not [line for line in sentences(job(stopped_for=(OTHER.uid,))) if "stopped for" in line]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (job(rho=1.25), "From submission to end it is estimated to take 1.25 times the time that would be fair"),
        (job(rho=150.0), "From submission to end it is estimated to take 150.00 times the time that would be fair"),
        (job(rho=2.0, finished=NOW), "From submission to end it took 2.00 times the time that would be fair"),
    ],
)
def test_rho_is_said_with_its_meaning(one, said):
    """Estimated for a live job, final for one that has completed."""
    assert any(line.startswith(said) for line in history(one, NOW))


def test_a_rho_that_is_not_known_is_not_said():
    """Neither by the status, nor by the database."""
    assert not [line for line in history(job(), NOW) if "rho" in line]
    record = FairnessRecord("a", "ann", None, NOW, 1.0, None, measured=False, rho={})
    assert fairness_words(record) == []


def test_the_database_has_the_other_definitions():
    """Each by its name."""
    record = FairnessRecord("a", "ann", None, NOW, 1.0, 9.0, measured=True, rho={"pollux": 1.0, "gavel": 2.5})
    assert fairness_words(record) == ["Its rho is 2.50 by gavel (docs/researcher/METRICS.md)."]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"accepts": True}, ""),
        (
            {"accepts": False, "reason": "bad\x1b fan", "drained_by": "root"},
            "takes no new jobs: bad\\x1b fan (by root)",
        ),
        ({"accepts": True, "gpus_others": 2}, "2 GPUs held by jobs that metasched does not schedule"),
        ({"accepts": True, "reservation": "course"}, "reserved (course)"),
    ],
)
def test_a_node_says_why_it_is_not_free(fields, note):
    """Who drained it and why, what it is reserved for, and what others hold."""
    assert node_note(NodeStatus("n1", "v100", 4, 0, **fields)) == note


def test_a_reserved_node_says_until_when():
    """In local time."""
    note = node_note(NodeStatus("n1", "v100", 4, 0, accepts=False, reservation="maint", reserved_until=1_800_000_000.0))
    assert note.startswith("takes no new jobs; reserved (maint) until 2027-01-1")
