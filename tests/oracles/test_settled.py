"""Where no job arrives, policies do not restart jobs again and again, whatever is known of the jobs."""

from __future__ import annotations

import pytest

from metasched.core.model import Node
from metasched.core.policy import installed_policies
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from metasched.time_shares.policy_base import TimeSharePolicy
from policies.ares.policy import Ares, AresParameters
from tests.builders import job
from tests.oracles.examples import for_examples

ROUND = RESTART = 60.0
HOUR = 3600.0
MOST_LOST = 0.2
"""Most of the jobs' time with GPUs that may go to restarts, each of which takes as long as a round."""
SLOW = ("pollux", "shockwave", "themis")  # policies with fewer examples


def policies():
    """All policies but those that alternate jobs from round to round by design."""
    found = {name: installed_policies().get(name)() for name in installed_policies().names()}
    found |= {f"ares, leftovers {kind}": Ares(AresParameters(leftovers=kind)) for kind in ("none", "faster")}
    return {name: policy for name, policy in found.items() if not isinstance(policy, TimeSharePolicy)}


def submission(uid, gpus, power, work, *, declared):
    """A job of that many seconds on its (requested, fewest, most) GPUs; its speed is (number of GPUs)^power."""
    asked, least, most = gpus
    curve = Curve(tuple((n, float(n) ** power) for n in range(1, most + 1)))
    training = ScalingTraining(work * float(asked) ** power, {"": curve})
    one = job(uid, asked, least, most, cpus_per_unit=0)
    return Submission(one, training, restart_seconds=RESTART, declared=declared)


def draw(rng):
    """Nodes, and jobs that all arrive at once; some are elastic, and some declare no steps."""
    gpus = rng.choice((2, 4, 8))
    nodes = tuple(Node(f"n{i}", "v100", gpus, 0, 0) for i in range(rng.randint(1, 3)))
    total, found = gpus * len(nodes), []
    for number in range(rng.randint(1, 6)):
        asked = min(rng.choice((1, 2, 3 if gpus > 2 else 2, 4, 8)), total)
        least, most = (1, total) if asked < total and rng.random() < 0.7 else (asked, asked)
        power, work, declared = rng.uniform(0.3, 1.0), rng.uniform(1, 3) * HOUR, rng.random() < 0.5
        found.append(submission(f"j{number}", (asked, least, most), power, work, declared=declared))
    return nodes, tuple(found)


def lost(policy, example):
    """The part of the time with GPUs, over all jobs, that restarts have taken until the last job was complete."""
    nodes, submissions = example
    settings = Settings(round_seconds=ROUND, min_round_seconds=0.0)
    outcome = simulate(Workload("settled", submissions), nodes, policy, settings)
    assert all(one.finished is not None for one in outcome.jobs)
    held = sum(run.ended - run.began for one in outcome.jobs for run in one.intervals)
    return sum(one.overhead_seconds for one in outcome.jobs) / held


@pytest.mark.parametrize("name", policies())
def test_restarts_take_a_small_part_of_the_time(name):
    """And every job is complete in the end."""
    policy = policies()[name]

    def check(example):
        assert lost(policy, example) <= MOST_LOST

    for_examples(draw, check, every=100 if name in SLOW else 20)


NINE = (Node("n0", "v100", 9, 0, 0),)


def over_the_part():
    """Two elastic jobs of unknown demand that have more than the pool's part, as jobs of known demand leave it."""
    elastic = [submission(uid, (4, 1, 4), 1.0, HOUR, declared=False) for uid in ("a", "b")]
    return (*elastic, *(submission(f"k{i}", (1, 1, 1), 1.0, 4 * HOUR, declared=True) for i in range(3)))


def with_a_gang():
    """Two elastic jobs of unknown demand, to which a gang leaves nothing of the pool's part, and a known job."""
    gang = submission("gang", (8, 8, 8), 1.0, 4 * HOUR, declared=False)
    elastic = [submission(uid, (2, 1, 2), 1.0, HOUR, declared=False) for uid in ("a", "b")]
    return (gang, *elastic, submission("k", (1, 1, 1), 1.0, 4 * HOUR, declared=True))


def test_a_grant_that_nodes_cannot_hold_is_not_asked_for_again_and_again():
    """Where others have three GPUs of a node, a job of two nodes has 10 of the 12 GPUs that it is granted."""
    jobs = (
        submission("a", (1, 1, 16), 0.79, 12_600, declared=False),
        submission("b", (2, 1, 16), 0.53, 17_400, declared=False),
        submission("c", (3, 1, 16), 0.97, 15_600, declared=True),
        submission("d", (8, 1, 16), 0.64, 13_500, declared=True),
    )
    assert lost(Ares(), ((Node("n0", "v100", 8, 0, 0), Node("n1", "v100", 8, 0, 0)), jobs)) < 0.05


@pytest.mark.parametrize(
    "example",
    [
        pytest.param((NINE, over_the_part()), id="over the pool's part"),
        pytest.param((NINE, (submission("a", (1, 1, 9), 0.8, 9 * HOUR, declared=False),)), id="alone"),
        pytest.param(((Node("n0", "v100", 8, 0, 0), Node("n1", "v100", 4, 0, 0)), with_a_gang()), id="with a gang"),
    ],
)
def test_jobs_of_unknown_demand_take_turns_of_half_an_hour(example):
    """Under Ares, whose order of them changes in every round."""
    assert lost(Ares(), example) <= RESTART / 1800.0


def test_a_gang_of_unknown_demand_has_its_turn():
    """Though two others of unknown demand could have all GPUs that are left."""
    gang = submission("c", (3, 3, 3), 1.0, HOUR, declared=False)
    settings = Settings(round_seconds=ROUND, min_round_seconds=0.0)
    outcome = simulate(Workload("gang", (*over_the_part(), gang)), NINE, Ares(), settings)
    (first,) = (one.first_started for one in outcome.jobs if one.uid == "c")
    assert first <= 2 * 1800.0
