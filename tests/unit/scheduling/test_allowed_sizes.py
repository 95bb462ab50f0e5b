"""Grants rounded to the numbers of GPUs on which a job can run."""

import pytest

from metasched.core import reason_words
from metasched.core.model import Decision, Grant, Placement, Preempt, Status
from metasched.core.reasons import Code, Reason
from metasched.scheduling.allowed_sizes import round_to_allowed_sizes
from metasched.scheduling.engine import run_round
from policies.baselines.fifo import Fifo
from tests import builders
from tests.unit.strategies import FixedPolicy

WHY = Reason.text("its turn")


def elastic(uid="a", sizes=(1, 2, 4, 8), **more):
    return builders.job(uid, 1, 1, 8, sizes=sizes, **more)


def rounded(job, gpus, **grant):
    decision = Decision(grants=(Grant(job.uid, gpus, WHY, **grant),))
    (found,) = round_to_allowed_sizes(builders.snapshot([job]), decision).grants
    return found


@pytest.mark.parametrize(
    ("gpus", "at_least", "expected"),
    [(3, None, (2, None)), (7, 3, (4, 4)), (3, 3, (2, 2)), (8, 1, (8, 1)), (8, 5, (8, 8)), (6, 1, (4, 1))],
)
def test_amounts_are_rounded_down(gpus, at_least, expected):
    """The most is rounded down, and the least up, but not above the most."""
    found = rounded(elastic(), gpus, at_least=at_least)
    assert (found.gpus, found.at_least) == expected


def test_an_amount_below_all_sizes_is_rounded_up():
    """A script that reports fewer sizes than the tag names gets its fewest."""
    assert rounded(elastic(sizes=(2, 4)), 1).gpus == 2


def test_the_reason_says_so():
    """The words name the granted number and the sizes."""
    found = rounded(elastic(), 3, exact=Placement(("n1",), 3, "v100"), gpu_type="v100")
    assert found.exact is None
    assert "it cannot run on 3 GPUs (sizes=1,2,4,8), so 2 were granted" in reason_words.words(found.reason)
    assert rounded(elastic(), 4).reason == WHY


def test_a_job_that_cannot_stop_keeps_what_it_holds():
    """A pinned job's grant is left as it is."""
    held = Placement(("v100-0",), 3, "v100")
    job = elastic(preempt=Preempt.NO, status=Status.RUNNING, placement=held)
    assert rounded(job, 3).gpus == 3


def test_a_pair_of_unequal_numbers_is_parted():
    """The guest waits where its host gets another number of GPUs."""
    host, guest = elastic("a"), builders.job("b", 3)
    grants = Grant("a", 3, WHY), Grant("b", 3, WHY, co_runner="a")
    found = round_to_allowed_sizes(builders.snapshot([host, guest]), Decision(grants=grants))
    assert [grant.uid for grant in found.grants] == ["a"]
    assert found.waits == {"b": WHY}


@pytest.mark.parametrize(("free", "expected"), [(8, 8), (7, 4), (3, 2), (1, 1)])
def test_placement_gives_no_other_number(free, expected):
    """Where the whole grant does not fit, the job gets the next smaller size that does."""
    policy = FixedPolicy(lambda view: ((Grant("a", 8, WHY, at_least=1),), ()))
    result = run_round(builders.snapshot([elastic()], builders.nodes(1, free)), policy, None)
    assert result.targets["a"].gpus == expected


def test_a_running_job_of_another_number_is_resized():
    """A job that reports its sizes while it runs on another number gets an allowed one."""
    running = builders.running(elastic().evolve(gpus=3), "v100-0")
    policy = FixedPolicy(lambda view: ((Grant("a", 4, WHY, at_least=1),), ()))
    result = run_round(builders.snapshot([running]), policy, None)
    assert result.targets["a"].gpus == 4


def test_a_decision_without_sizes_is_the_same():
    """Nothing is copied where no job has sizes."""
    decision = Decision(grants=(Grant("a", 1, WHY),))
    assert round_to_allowed_sizes(builders.snapshot([builders.job("a")]), decision) is decision


def test_a_policy_that_knows_nothing_of_sizes():
    """FIFO lets an elastic job grow to three free GPUs, and the job gets two."""
    result = run_round(builders.snapshot([elastic()], builders.nodes(1, 3)), Fifo(), None)
    assert result.targets["a"].gpus == 2
    assert Code.SIZE_NOT_ALLOWED in str(result.reasons["a"])
