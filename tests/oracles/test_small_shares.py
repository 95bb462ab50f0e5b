"""Small time shares come true under every policy, however often time shares are recomputed."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

from metasched.core.model import Status
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from policies.baselines.gandiva import Gandiva
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from policies.baselines.isolated import Isolated
from policies.gavel.policies import (
    Entity,
    GavelFinishTimeFairness,
    GavelHierarchical,
    GavelHierarchicalParameters,
    GavelLas,
    GavelLasParameters,
    GavelMakespan,
    GavelParameters,
)
from tests.oracles.churn import EVERY, Churn
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.rounds import Rounds


class FixedShares(TimeSharePolicy):
    """Time shares by uid, of any worker type; of a pair where ``pairs`` are given."""

    name: ClassVar[str] = "fixed_shares"

    def __init__(self, shares, **parameters):
        super().__init__(TimeShareParameters(**parameters))
        self.shares = shares

    def time_shares(self, inputs, memory):
        number = memory.get("number", 0)
        return self.shares(number, [job.uid for job in inputs.jobs]), {"number": number + 1}


def two_jobs(share, **more):
    """Two jobs for one GPU, whose weights are the time shares; the second is the light one."""
    return [
        known_job("heavy", weight=1.0 - share, gpu_types=("v100",)),
        known_job("light", weight=share, gpu_types=("v100",), **more),
    ]


def equal_jobs(share, **more):
    """As many equal jobs for one GPU as have that share each; the last one is the light one."""
    uids = [f"j{number}" for number in range(round(1 / share) - 1)]
    return [known_job(uid, gpu_types=("v100",), **more) for uid in (*uids, "light")]


def by_steps(share):
    """Two jobs that end together if their time shares are in the ratio of their steps."""
    steps = {"heavy": 1.0 - share, "light": share}
    return [
        known_job(uid, "steady", table=small_table(), total_steps=1e6 * part, progress_steps=0.0, gpu_types=("v100",))
        for uid, part in steps.items()
    ]


def by_account(share):
    """The light job has an account of its own."""
    return [job.evolve(weight=1.0, account=job.uid) for job in two_jobs(share)]


def hierarchy(share):
    entities = {"heavy": Entity(weight=1.0 - share), "light": Entity(weight=share)}
    return GavelHierarchical(GavelHierarchicalParameters(entities=entities))


WEIGHTED = {
    "gavel_las": (lambda _: GavelLas(), two_jobs),
    "water_filling": (lambda _: GavelLas(GavelLasParameters(fill=True)), two_jobs),
    "gavel_hierarchical": (lambda _: GavelHierarchical(), two_jobs),
    "entities": (hierarchy, by_account),
    "gandiva_fair": (lambda _: GandivaFair(GandivaFairParameters(by_user=False)), two_jobs),
    "gandiva_fair_of_users": (lambda _: GandivaFair(), two_jobs),
    "gavel_makespan": (lambda _: GavelMakespan(), by_steps),
    "isolated": (lambda _: Isolated(), equal_jobs),
    "gandiva": (lambda _: Gandiva(), equal_jobs),
}


@pytest.mark.parametrize("share", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("name", WEIGHTED)
def test_a_small_share_has_its_first_round_within_half_its_reciprocal(name, share):
    """And the second one a reciprocal later; equal jobs have their first within one reciprocal."""
    policy, jobs = WEIGHTED[name]
    rounds = Churn(policy(share), cluster(v100=1, k80=1), {0: jobs(share)}).run(1)
    promised = sum(rounds.shares()["light",].values())
    assert promised == pytest.approx(share, rel=0.6)
    first, then = (1.0, 2.0) if jobs is equal_jobs else (0.5, 1.5)
    rounds.run(math.ceil(first / promised) + 1)
    assert sum(rounds.gpus("light")) == 1
    if share > 0.01:
        rounds.run(math.ceil(then / promised) + 2 - len(rounds.history))
        assert sum(rounds.gpus("light")) == 2


def test_the_light_job_beside_unrelated_tiny_jobs_runs_as_soon_as_without_them():
    """Weights 1 and 0.02: first after 25 rounds, with and without renewals in every round."""
    jobs = [
        known_job("heavy", gpu_types=("v100",)),
        known_job("light", weight=0.02, gpu_types=("v100",)),
    ]
    for rounds in (Rounds, Churn):
        assert rounds(GavelLas(), cluster(v100=1, k80=1), {0: jobs}).run(30).gpus("light").index(1) == 25


@pytest.mark.parametrize("churn", [Rounds, Churn])
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_no_job_lacks_more_than_two_rounds_of_its_time_shares(policy, churn):
    """Whatever shares a policy computes: jobs of one GPU, weights over four orders, two types, arrivals and ends."""
    table = small_table()
    jobs = [
        known_job(
            f"j{number}",
            ("quick", "steady")[number % 2],
            table=table,
            weight=10.0 ** -(number % 5),
            total_steps=1e6 * (1 + number % 3),
            progress_steps=0.0,
            account="xy"[number % 2],
        )
        for number in range(9)
    ]
    rounds = churn(policy, cluster(v100=2, k80=2), {0: jobs})
    lacking = {job.uid: 0.0 for job in jobs}
    for _ in range(40):
        rounds.run(1)
        shares = {tuple(combination): share for combination, share in rounds.state.data["ledger"]["shares"]}
        for uid, before in lacking.items():
            lacking[uid] = before + sum(shares.get((uid,), {}).values()) - (uid in rounds.history[-1])
        assert max(lacking.values()) <= 2.0


@pytest.mark.parametrize(("carry", "least", "most"), [(True, 0, 8), (False, 100, 100)])
def test_a_new_job_runs_soon_beside_old_jobs_that_declare_nothing(carry, least, most):
    """The time share that finish-time fairness gives it does not grow while it waits: the rho of the others does, too.

    Where deficits do not count, as in the public code, it does not run at all.
    """
    old = [known_job(f"old{number}", gpu_types=("v100",)) for number in range(4)]
    policy = GavelFinishTimeFairness(GavelParameters(carry=carry))
    rounds = Churn(policy, cluster(v100=4, k80=1), {0: old}).run(1)
    for number, job in enumerate(old):
        rounds.jobs[job.uid] = rounds.jobs[job.uid].evolve(submitted=number - 43200.0)
    rounds.arrivals[1] = [known_job("new", gpu_types=("v100",))]
    assert least <= (*rounds.run(99).gpus("new"), 1).index(1) <= most


@pytest.mark.parametrize("share", [0.2, 0.05])
def test_a_share_that_changes_its_type_in_every_round_comes_true(share):
    """What is missing on one type counts on the other."""

    def shares(number, uids):
        types = ("v100", "p100") if number % 2 else ("p100", "v100")
        parts = {"heavy": {types[0]: 1.0 - share}, "light": {types[0]: share}, "other": {types[1]: 1.0}}
        return {(uid,): parts[uid] for uid in uids if uid in parts}

    jobs = [known_job(uid, gpu_types=("v100", "p100")) for uid in ("heavy", "light", "other")]
    rounds = Churn(FixedShares(shares), cluster(v100=1, p100=1, k80=1), {0: jobs}).run(math.ceil(1 / share) + 1)
    assert sum(rounds.gpus("light")) >= 1


@pytest.mark.parametrize("share", [0.2, 0.05])
@pytest.mark.parametrize("delay", [0, 3])
def test_a_share_with_co_runners_that_end_soon_comes_true(share, delay):
    """The job is always in a pair, and each of its co-runners ends after a round."""

    def shares(_, uids):
        tiny = [uid for uid in uids if uid.startswith("tiny")]
        return {("heavy",): {"v100": 1.0 - share}, **{("light", uid): {"v100": share} for uid in tiny[:1]}}

    jobs = [known_job(uid, gpu_types=("v100",)) for uid in ("heavy", "light")]
    policy = FixedShares(shares, recompute_rounds=delay)
    rounds = Churn(policy, cluster(v100=1), {0: jobs}, tiny={"gpu_types": ("v100",)}, facts={"sharing": True})
    rounds.run(math.ceil(1 / share) + 2)
    assert sum(rounds.gpus("light")) >= 1


def test_a_job_that_nothing_could_run_for_a_day_does_not_hold_the_gpu_for_the_next_day():
    """A quota, for example, can forbid it: its time share remains, and its round grants come to nothing."""
    jobs = [known_job(uid, gpu_types=("v100",)) for uid in ("a", "b")]
    rounds = Churn(Isolated(), cluster(v100=1, k80=1), {0: jobs})
    day = 144
    for _ in range(day):
        rounds.run(1)
        if rounds.jobs["b"].placement is not None:  # the round was not received
            rounds.jobs["b"] = rounds.jobs["b"].evolve(status=Status.HELD, placement=None, attained={})
    rounds.run(day)
    later = rounds.gpus("b")[day:]
    assert 1 in rounds.gpus("a")[day : day + 45]
    assert day / 2 - 1 <= sum(later) <= day / 2 + 25


def test_time_on_idle_gpus_is_not_held_against_a_job():
    """A job that ran alone for 50 rounds alternates with a new one at once."""
    jobs = {0: [known_job("a", gpu_types=("v100",))], 50: [known_job("b", gpu_types=("v100",))]}
    rounds = Churn(Isolated(), cluster(v100=1, k80=1), jobs).run(70)
    assert sum(rounds.gpus("a")[50:]) == 10


def test_jobs_whose_time_shares_are_more_than_a_gpu_can_give_alternate():
    """Their deficits reach the limit, and still the one that waited longest is first."""

    def shares(_, uids):
        return {(uid,): {"v100": 1.0} for uid in uids if uid in "abc"}

    jobs = [known_job(uid, gpu_types=("v100",)) for uid in "abc"]
    rounds = Churn(FixedShares(shares), cluster(v100=1, k80=1), {0: jobs}).run(300)
    for uid in "abc":
        assert sum(rounds.gpus(uid)[-30:]) == 10
