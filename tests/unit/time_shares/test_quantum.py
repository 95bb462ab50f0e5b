"""A running job keeps its GPUs for a quantum, so that jobs that alternate do not restart in every round."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Placement, Status
from metasched.time_shares.policy_base import TimeShareParameters
from metasched.time_shares.round_mechanism import (
    LONGEST_QUANTUM,
    UNCONSOLIDATED,
    TimeAccounts,
    prefer_running,
    priorities,
)
from policies.baselines.isolated import Isolated
from policies.gavel.policies import GavelLas
from tests import builders
from tests.unit.gavel_tables import cluster, known_job
from tests.unit.rounds import ROUND, Rounds


def alternating(restart, rounds=80, uids="ab", **parameters):
    """Equal jobs for one GPU; ``restart`` in rounds, None where it is not known."""
    seconds = None if restart is None else restart * ROUND
    jobs = [known_job(uid, gpu_types=("v100",), restart_seconds=seconds) for uid in uids]
    return Rounds(Isolated(TimeShareParameters(**parameters)), cluster(v100=1), {0: jobs}).run(rounds)


def longest_run(rounds, uid):
    """The most rounds in a row in which the job runs."""
    return max(len(list(group)) for gpus, group in groupby(rounds.gpus(uid)) if gpus)


@pytest.mark.parametrize(
    ("restart", "longest"),
    [(None, 1), (0.0, 1), (0.01, 2), (0.1, 5), (0.25, 11), (1.0, 21), (100.0, 21)],
)
def test_two_jobs_alternate_in_runs_of_two_quanta(restart, longest):
    """Each runs from a quantum behind to a quantum ahead; a quantum is 20 restarts, and at most 10 rounds."""
    rounds = alternating(restart, 100)
    assert longest_run(rounds, "a") == longest
    assert abs(sum(rounds.gpus("a")) - sum(rounds.gpus("b"))) <= longest


@pytest.mark.parametrize("off", [{"quantum_restarts": 0.0}, {"carry": False}])
def test_without_a_quantum_jobs_alternate_in_every_round(off):
    """As in the paper and in the public code."""
    assert longest_run(alternating(1.0, **off), "a") == 1


def test_a_quantum_is_as_many_restarts_as_the_parameter_says():
    assert longest_run(alternating(0.25, quantum_restarts=4.0), "a") == 3


def test_a_small_share_has_its_first_round_a_quantum_later_at_most():
    """Weights 0.95 and 0.05: due after 10 rounds; then the heavy job is preferred for its quantum."""
    jobs = [
        known_job("heavy", weight=0.95, gpu_types=("v100",), restart_seconds=ROUND),
        known_job("light", weight=0.05, gpu_types=("v100",), restart_seconds=ROUND),
    ]
    light = Rounds(GavelLas(), cluster(v100=1), {0: jobs}).run(400).gpus("light")
    assert 10 <= light.index(1) <= 10 + LONGEST_QUANTUM + 1
    assert sum(light) == pytest.approx(20, abs=LONGEST_QUANTUM)


@given(
    weights=st.lists(st.integers(1, 10), min_size=2, max_size=4),
    restarts=st.lists(st.sampled_from([None, 0.0, 0.02, 0.2, 5.0]), min_size=4, max_size=4),
)
def test_received_time_deviates_from_time_shares_by_quanta_at_most(weights, restarts):
    """Whatever the shares: no job is a quantum and two rounds ahead, or the sum of the others' quanta behind."""
    jobs = [
        known_job(
            f"j{i}",
            weight=float(weight),
            gpu_types=("v100",),
            restart_seconds=None if restarts[i] is None else restarts[i] * ROUND,
        )
        for i, weight in enumerate(weights)
    ]
    rounds = Rounds(GavelLas(), cluster(v100=1), {0: jobs})
    for passed in range(1, 61):
        rounds.step()
        for i, weight in enumerate(weights):
            ahead = sum(rounds.gpus(f"j{i}")) - passed * weight / sum(weights)
            assert -(len(weights) - 1) * (LONGEST_QUANTUM + 2) <= ahead <= LONGEST_QUANTUM + 2


def running(uid, gpu_type, **more):
    return builders.job(uid, 1, status=Status.RUNNING, placement=Placement(("n1",), 1, gpu_type), **more)


def preferred(shares, granted, *jobs, unconsolidated=()):
    """The priorities with quanta of 20 restarts, over those without, where they differ; rounds of 100 s."""
    accounts = TimeAccounts(shares=shares, since=0.0, granted=granted, unconsolidated=unconsolidated)
    before = priorities(accounts, 100.0, carry=True)
    after = prefer_running(before, accounts, {job.uid: job for job in jobs}, 20.0, 100.0)
    return {
        (combination, worker_type): value - before[combination][worker_type]
        for combination, by_type in after.items()
        for worker_type, value in by_type.items()
        if value != before[combination][worker_type]
    }


def test_only_the_worker_type_on_which_a_job_runs_is_preferred():
    """A move to another type is a restart, too."""
    shares = {("a",): {"v100": 0.5, "k80": 0.25}, ("b",): {"v100": 0.5}}
    jobs = running("a", "k80", restart_seconds=10.0), builders.job("b", 1, restart_seconds=10.0)
    assert preferred(shares, (("a",),), *jobs) == {(("a",), "k80"): 2.0 / 0.25}


def test_a_pair_has_the_quantum_of_the_job_with_the_longer_restart():
    shares = {("a", "b"): {"v100": 0.5}, ("a",): {"v100": 0.1}}
    jobs = running("a", "v100", restart_seconds=10.0), running("b", "v100", restart_seconds=20.0)
    assert preferred(shares, (("a", "b"),), *jobs) == {(("a", "b"), "v100"): 4.0 / 0.5}


def test_an_unconsolidated_job_is_preferred_unconsolidated():
    shares = {("a",): {"v100": 0.5, "v100" + UNCONSOLIDATED: 0.25}}
    job = running("a", "v100", restart_seconds=10.0)
    assert preferred(shares, (("a",),), job, unconsolidated=("a",)) == {(("a",), "v100" + UNCONSOLIDATED): 2.0 / 0.25}


def test_a_grant_that_came_to_nothing_or_has_no_time_share_any_more_is_not_preferred():
    """The job did not start; its co-runner has ended; its time share is of another type now."""
    known = {"restart_seconds": 10.0}
    assert not preferred({("a",): {"v100": 0.5}}, (("a",),), builders.job("a", 1, **known))
    assert not preferred({("a",): {"v100": 0.5}}, (("a", "b"),), running("a", "v100", **known))
    assert not preferred({("a", "b"): {"v100": 0.5}}, (("a", "b"),), running("a", "v100", **known))
    assert not preferred({("a",): {"v100": 0.5}}, (("a",),), running("a", "k80", **known))
