"""Jobs over several nodes that slow each other down on the nodes that they have in common."""

from __future__ import annotations

import pytest

from contrib.reproductions.published_loops.pollux import PolluxLoop
from metasched.core.model import Decision, Grant, Placement
from metasched.core.policy import Policy
from metasched.core.reasons import Reason
from metasched.simulator.records import Settings
from metasched.simulator.simulation import simulate
from policies.pollux.policy import Pollux
from tests.unit.workloads import nodes, submission, workload

HERE, ACROSS = Placement(("n0",), 2, "v100"), Placement(("n0", "n1"), 1, "v100")
BESIDE, ELSEWHERE = Placement(("n1", "n2"), 1, "v100"), Placement(("n2", "n3"), 1, "v100")


class Exact(Policy):
    """Grants each job a placement of its own; ``later`` names the jobs that begin with the second round."""

    name = "exact"

    def __init__(self, *, later=(), **places):
        super().__init__()
        self.places = places
        self.later = later

    def decide(self, snapshot, state):
        live = [job for job in snapshot.jobs if snapshot.round > 1 or job.uid not in self.later]
        waits = {job.uid: Reason.text("later") for job in snapshot.jobs if job not in live}
        given = [(job.uid, self.places[job.uid]) for job in live]
        grants = [Grant(uid, place.gpus, Reason.text("exact"), gpu_type="v100", exact=place) for uid, place in given]
        return Decision(tuple(grants), (), waits), state


def ends(policy, *, factor=0.5, seconds=60.0, **steps):
    """When each of some jobs of two GPUs ends, which do a step a second on each of them by themselves."""
    load = workload(*(submission(uid, 2, total=2.0 * total) for uid, total in steps.items()))
    settings = Settings(round_seconds=seconds, early_rounds=False, interference_factor=factor)
    outcome = simulate(load, nodes(4), policy, settings)
    return {job.uid: job.finished for job in outcome.jobs}


def test_jobs_over_several_nodes_slow_each_other_down():
    """Each has its factor while both run on one node; after the end of one, the other has its full speed."""
    assert ends(Exact(a=ACROSS, b=ACROSS), a=10.0, b=30.0) == {"a": 20.0, "b": 40.0}
    assert ends(Exact(a=ACROSS, b=BESIDE), a=10.0, b=30.0) == {"a": 20.0, "b": 40.0}
    assert ends(Exact(a=ACROSS, b=BESIDE), factor=1.0, a=10.0, b=30.0) == {"a": 10.0, "b": 30.0}


def test_one_node_in_common_with_any_other_counts_once():
    """Three jobs in a row: the one in the middle has the factor once, until both others are gone."""
    found = ends(Exact(a=ACROSS, b=BESIDE, c=ELSEWHERE), a=10.0, b=30.0, c=20.0)
    assert found == {"a": 20.0, "b": 50.0, "c": 40.0}


def test_a_job_that_arrives_on_the_node_slows_the_other_one_from_then_on():
    """The second begins after 60 s, in which the first has done 60 of 90 s of its work."""
    assert ends(Exact(a=ACROSS, b=ACROSS, later=("b",)), a=90.0, b=15.0) == {"a": 105.0, "b": 90.0}


@pytest.mark.parametrize("other", [HERE, ELSEWHERE])
def test_jobs_on_one_node_and_on_other_nodes_do_not_interfere(other):
    """Their networks do not meet."""
    assert ends(Exact(a=ACROSS, b=other), a=10.0, b=30.0) == {"a": 10.0, "b": 30.0}


def test_the_published_loop_has_the_same_factor():
    """There it holds for whole intervals, for the jobs that hold GPUs at the begin."""
    load = workload(*(submission(uid, 2, total=40.0) for uid in "ab"))

    class Apart(Pollux):
        def decide(self, snapshot, state):
            return Exact(a=ACROSS, b=ACROSS).decide(snapshot, state)

    for factor, finished in ((1.0, 80.0), (0.5, 100.0)):
        settings = Settings(round_seconds=60.0, interference_factor=factor)
        outcome = PolluxLoop(load, nodes(4), Apart(), settings).run()
        assert [job.finished for job in outcome.jobs] == [finished, finished]
