"""Policies of time shares use uneven placements where the cluster realises them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from metasched.core import reason_words
from metasched.core.model import Node, Preempt, Snapshot, Status
from metasched.scheduling.engine import run_round
from metasched.time_shares.allocation_inputs import allocation_inputs
from metasched.time_shares.granting import choose
from metasched.time_shares.round_mechanism import (
    Candidate,
    TimeAccounts,
    as_single_combinations,
    priorities,
)
from policies.gavel.policies import GavelLas, GavelLasParameters
from tests.oracles.churn import EVERY
from tests.unit.gavel_tables import known_job
from tests.unit.rounds import ROUND, Rounds


@dataclass(frozen=True)
class ByNodes:
    """Steps per second: that of one node, over the number of nodes."""

    most: float = 12.0

    def steps_per_second(self, gpu_type, spread):
        del gpu_type
        return self.most / len(spread)

    def steps_per_second_with(self, other, gpu_type, spread):
        del other, gpu_type, spread
        return 0.0


def nodes_of(*gpus):
    return tuple(Node(f"n{number}", "v100", count, 0, 0) for number, count in enumerate(gpus))


def gang(uid, gpus, **more):
    return known_job(uid, gpus=gpus, **more).evolve(speed=ByNodes())


def snapshot(jobs, nodes, *, uneven=True):
    return Snapshot(0.0, 1, ROUND, nodes, tuple(jobs), uneven=uneven)


@pytest.mark.parametrize("limits", [{}, {"max_nodes": 2}, {"nodes": 2}], ids=lambda limits: next(iter(limits), "none"))
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_a_job_without_an_even_placement_runs_where_uneven_ones_are_realised(policy, limits):
    """Five GPUs on two nodes of four, beside a job on the other GPUs."""
    jobs = [gang("five", 5, **limits), gang("three", 3)]
    result = run_round(snapshot(jobs, nodes_of(4, 4)), policy, None)
    assert {uid: place.spread for uid, place in result.targets.items()} == {"five": (4, 1), "three": (3,)}
    result = run_round(snapshot(jobs, nodes_of(4, 4), uneven=False), policy, None)
    assert result.targets.keys() == {"three"}
    assert reason_words.words(result.reasons["five"]).startswith("even empty")


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_an_uneven_gang_alternates_with_the_jobs_on_its_gpus(policy):
    """No policy raises, and in every round the nodes are used by the gang or by others."""
    jobs = [gang("five", 5), gang("four", 4), gang("two", 2)]
    rounds = Rounds(policy, nodes_of(4, 4), {0: jobs}, facts={"uneven": True}).run(12)
    assert all(targets for targets in rounds.history)


def test_gangs_with_uneven_placements_have_their_time_shares():
    """Three gangs of five on two nodes of four: each runs every third round."""
    jobs = [gang(uid, 5) for uid in "abc"]
    rounds = Rounds(GavelLas(), nodes_of(4, 4), {0: jobs}, facts={"uneven": True}).run(30)
    assert [sum(map(bool, rounds.gpus(uid))) for uid in "abc"] == [10, 10, 10]


def test_inputs_have_uneven_placements_and_the_speeds_on_them():
    """The consolidated placement, the unconsolidated one on more nodes, and GPUs that retained jobs leave."""
    found = allocation_inputs(snapshot([gang("five", 5)], nodes_of(4, 4, 4)), placement=True)
    assert found.gpus_per_node["five"] == {"v100": (4, 1)}
    assert found.speeds["five"] == {"v100": 6.0}
    assert found.unconsolidated_speeds["five"] == {"v100": 4.0}
    pinned = Rounds(GavelLas(), nodes_of(4, 4), {0: [gang("pinned", 2, preempt=Preempt.NO)]}).run(1).jobs["pinned"]
    assert pinned.status is Status.RUNNING
    left = allocation_inputs(snapshot([pinned, gang("five", 5), gang("seven", 7)], nodes_of(4, 4)))
    assert left.gpus_per_node == {"five": {"v100": (4, 1)}, "seven": {}}
    assert left.displaced == {"seven"}


def test_unconsolidated_grants_are_given_where_an_uneven_gang_does_not_fit_on_few_nodes():
    """Of two gangs of five on nodes of four, four and four GPUs, one has two nodes; the other one has what is left."""
    policy = GavelLas(GavelLasParameters(placement=True))
    jobs = [gang("a", 5), gang("b", 5), gang("c", 2)]
    rounds = Rounds(policy, nodes_of(4, 4, 4), {0: jobs}, facts={"uneven": True}).run(20)
    for targets in rounds.history:
        assert targets.keys() == {"a", "b", "c"}
    nodes = [len(targets[uid].nodes) for targets in rounds.history for uid in "ab"]
    assert min(nodes) == 2


@pytest.mark.parametrize(
    ("free", "consolidated", "granted"),
    [
        ((4, 4), [(4, 1), (3,)], 2),
        ((4, 4), [(4, 1), (4,)], 1),
        ((3, 3, 3), [(4, 1), (4,)], 1),
        ((3, 3, 3), [(4, 1), (3,)], 2),
        ((2, 2, 2), [(4, 1)], 0),
    ],
)
def test_consolidated_rounds_are_granted_as_far_as_nodes_suffice(free, consolidated, granted):
    """An uneven gang takes the emptiest nodes, and no more nodes than its placement has."""
    uids = "abc"[: len(consolidated)]
    shares = as_single_combinations({uid: {"v100": 1.0} for uid in uids})
    candidates = [
        Candidate((uid,), sum(spread), ("v100",), consolidated={"v100": spread})
        for uid, spread in zip(uids, consolidated, strict=True)
    ]
    accounts = TimeAccounts(shares=shares, since=0.0)
    priority = priorities(accounts, ROUND)
    grants = choose(accounts, candidates, {"v100": sum(free)}, priority, nodes={"v100": free})
    assert [grant.combination[0] for grant in grants] == list(uids[:granted])
