"""Quotas under every policy of time shares: they hold, and hold up no job that is not their member."""

from __future__ import annotations

import random

import pytest

from metasched.core.model import Node, Placement, Preempt, Quota, Status
from policies.gavel.policies import Entity, GavelHierarchical, GavelHierarchicalParameters, GavelLas
from tests.oracles.churn import EVERY, Churn
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.rounds import ROUND, Rounds

FAIR = ("gavel_las", "gavel_hierarchical", "gavel_makespan", "gavel_ftf", "gandiva_fair", "isolated", "gandiva")
IN_ORDER = ("gavel_fcfs", "gavel_sjf", "allox", "gavel_fifo")
"""Policies under which the first jobs run to their ends."""


def equal_jobs(uids, **more):
    """Equal endless jobs of one v100 each, each of a user of its own."""
    known = {"table": small_table(), "total_steps": 1e6, "progress_steps": 0.0, "gpu_types": ("v100",)}
    return [known_job(uid, account=uid, **{**known, **more}) for uid in uids]


def ran(rounds, uids):
    """The rounds that each of these jobs received."""
    return [sum(gpus > 0 for gpus in rounds.gpus(uid)) for uid in uids]


@pytest.mark.parametrize("kind", [Rounds, Churn])
@pytest.mark.parametrize("left", [-1, 0, 1])
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_jobs_that_wait_for_their_quota_hold_up_no_others(policy, left, kind):
    """Two GPUs: the members have what their quota leaves, and the three other jobs take turns on the rest."""
    members, others = [f"m{number}" for number in range(6)], ["x", "y", "z"]
    jobs = equal_jobs([*members, *others])
    quota = Quota("q", frozenset(members), left)
    rounds = kind(policy, cluster(v100=2, k80=1), {0: jobs}, facts={"quotas": (quota,)}).run(60)
    assert sum(ran(rounds, members)) <= 60 * max(left, 0)
    assert sum(ran(rounds, members + others)) == 120
    if policy.name not in IN_ORDER:
        assert sum(ran(rounds, members)) >= 60 * max(left, 0) - 2
        assert max(ran(rounds, others)) - min(ran(rounds, others)) <= 2
        assert max(ran(rounds, members)) - min(ran(rounds, members)) <= 3


@pytest.mark.parametrize("policy", [policy for policy in EVERY if policy.name in IN_ORDER], ids=lambda one: one.name)
def test_the_members_of_a_quota_run_one_after_the_other_under_policies_with_an_order(policy):
    """They would otherwise alternate, and restart in every round."""
    members, others = [f"m{number}" for number in range(4)], ["x", "y"]
    quota = Quota("q", frozenset(members), 1, of_jobs=True)
    jobs = [*equal_jobs(members), *equal_jobs(others, total_steps=9e6)]
    rounds = Churn(policy, cluster(v100=2, k80=1), {0: jobs}, facts={"quotas": (quota,)}).run(40)
    assert sorted(ran(rounds, members)) == [0, 0, 0, 40]
    assert sorted(ran(rounds, others)) == [0, 40]


def test_the_wait_for_a_quota_is_no_unfairness():
    """Under finish-time fairness it neither raises the time shares of the members, nor starves a slow job."""
    table = small_table()
    members = [known_job(f"m{number}", table=table, total_steps=1e4, progress_steps=0.0) for number in range(9)]
    others = [
        known_job(uid, model, table=table, total_steps=1e9, progress_steps=0.0)
        for uid, model in (("quick0", "quick"), ("quick1", "quick"), ("slow", "steady"))
    ]
    jobs = [job.evolve(gpu_types=("v100",)) for job in (*members, *others)]
    (policy,) = (policy for policy in EVERY if policy.name == "gavel_ftf")
    quota = Quota("q", frozenset(job.uid for job in members), 1)
    rounds = Churn(policy, cluster(v100=3, k80=1), {0: jobs}, facts={"quotas": (quota,)}).run(300)
    assert min(ran(rounds, [job.uid for job in others])) >= 190  # of 200


@pytest.mark.parametrize("policy", [one for one in EVERY if one.name in FAIR], ids=lambda one: one.name)
def test_a_gang_has_its_time_within_a_quota_although_single_jobs_have_quanta(policy):
    """The quanta of six jobs, which begin one after the other, never leave the gang both GPUs of the quota at once."""
    jobs = equal_jobs([f"m{number}" for number in range(6)], restart_seconds=1200.0)
    arrivals = {number: [job] for number, job in enumerate(jobs)}
    arrivals[0] += equal_jobs(["gang"], gpus=2, restart_seconds=1200.0)
    quota = Quota("q", frozenset(["gang", *(job.uid for job in jobs)]), 2)
    limited = Rounds(policy, cluster(v100=4), arrivals, facts={"quotas": (quota,)}).run(120)
    (received,) = ran(limited, ["gang"])
    assert received >= 10


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_two_jobs_of_a_quota_of_one_gpu_need_no_gpu_to_share(policy):
    """They take turns on that GPU, unless the policy has an order."""
    sharing = equal_jobs(["m0", "m1"])
    others = equal_jobs(["x", "y", "z"], whole_gpus=True)
    quota = Quota("q", frozenset({"m0", "m1"}), 1)
    rounds = Rounds(policy, cluster(v100=2), {0: [*sharing, *others]}, facts={"quotas": (quota,), "sharing": True})
    received = ran(rounds.run(40), ["m0", "m1"])
    if policy.name not in IN_ORDER:
        assert sum(received) >= 14
        assert max(received) - min(received) <= 2


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_an_elastic_job_runs_on_the_gpus_that_its_quota_leaves(policy):
    """On two of the four that it asks for, and all the time."""
    (job,) = equal_jobs(["m"], gpus=4)
    facts = {"quotas": (Quota("q", frozenset("m"), 2),)}
    rounds = Rounds(policy, cluster(v100=8), {0: [job.evolve(min_gpus=1), *equal_jobs("x")]}, facts=facts).run(6)
    assert rounds.gpus("m") == [2] * 6
    assert rounds.gpus("x") == [1] * 6


@pytest.mark.parametrize(
    ("nodes", "quota", "more"),
    [
        ((Node("n1", "v100", 2, 0, 0), Node("n2", "v100", 2, 0, 0)), {"left": 3}, {"nodes": 1}),
        (cluster(v100=8, k80=2), {"left": 2, "gpu_type": "v100"}, {}),
        (cluster(v100=8), {"left": 3}, {"sizes": (1, 2, 4)}),
    ],
)
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_an_elastic_job_runs_on_as_many_gpus_as_fit_nodes_and_quota(policy, nodes, quota, more):
    """Three GPUs that no node has, a type of which there are too few, and a size at which its script fails."""
    job = known_job("m", gpus=4).evolve(min_gpus=1, **more)
    rounds = Rounds(policy, nodes, {0: [job]}, facts={"quotas": (Quota("q", frozenset("m"), **quota),)}).run(3)
    assert rounds.gpus("m") == [2] * 3


def test_an_elastic_job_asks_for_what_running_jobs_leave_of_its_quota():
    """A non-preemptible job of the same quota keeps two GPUs; as its quota grows, so does the job."""
    kept = known_job("kept", gpus=2).evolve(
        preempt=Preempt.NO, status=Status.RUNNING, placement=Placement(("v100",), 2, "v100")
    )
    elastic = known_job("m", gpus=4).evolve(min_gpus=1)
    rounds = Rounds(GavelLas(), cluster(v100=8), {0: [elastic, *equal_jobs("x", gpus=2)]}, jobs={"kept": kept})
    for left in (4, 4, 6, 6):
        rounds.facts["quotas"] = (Quota("q", frozenset({"m", "kept"}), left),)
        rounds.run(1)
    assert rounds.gpus("m") == [2, 2, 4, 4]
    assert rounds.gpus("x") == [2] * 4


def test_time_shares_follow_the_size_of_an_elastic_job():
    """Of eight GPUs, two and six have all of their time; four and six do not."""
    elastic, other = known_job("m", gpus=6).evolve(min_gpus=1), known_job("x", gpus=6)
    rounds = Rounds(GavelLas(), cluster(v100=8), {0: [elastic, other]})
    for left, share in ((2, 1.0), (6, 2 / 3)):
        rounds.facts["quotas"] = (Quota("q", frozenset("m"), left),)
        rounds.run(1)
        shares = {tuple(uids): parts for uids, parts in rounds.state.data["ledger"]["shares"]}
        assert sum(shares["m",].values()) == pytest.approx(share)


@pytest.mark.parametrize("life", [2, 3, 4])
def test_a_gang_has_its_time_although_short_jobs_use_its_quota_on_another_type(life):
    """They have quanta, and come one after the other, as do the jobs of no quota on the gang's own type."""
    gang = known_job("gang", gpus=2, gpu_types=("v100",), restart_seconds=1200.0)
    members, others = [], []
    arrivals = {0: [gang]}
    for number in range(60):
        members.append(known_job(f"m{number}", gpu_types=("k80",), restart_seconds=1200.0))
        others.append(known_job(f"x{number}", gpu_types=("v100",), restart_seconds=1200.0))
        arrivals.setdefault(number, []).extend((members[-1], others[-1]))
    quota = Quota("q", frozenset({"gang", *(job.uid for job in members)}), 2)
    work = {job.uid: life * ROUND for job in (*members, *others)}
    rounds = Rounds(GavelLas(), cluster(v100=2, k80=2), arrivals, work=work, facts={"quotas": (quota,)}).run(60)
    assert sum(ran(rounds, ["gang"])) >= 5


def test_no_policy_needs_gpus_for_a_quota_that_is_exceeded():
    """All nodes may be down, and other jobs may use more than the quota."""
    quota = Quota("q", frozenset("m"), -1)
    for policy in EVERY:
        rounds = Rounds(policy, (), {0: equal_jobs("m")}, facts={"quotas": (quota,)}).run(2)
        assert rounds.history == [{}, {}]


def test_the_rest_of_a_limited_accounts_time_goes_to_its_other_jobs():
    """Under FIFO within accounts: of eight GPUs each of two accounts has four, and no job alternates."""
    policy = GavelHierarchical(GavelHierarchicalParameters(others=Entity(inside="fifo")))
    jobs = [job.evolve(account=job.uid[0]) for job in equal_jobs([f"{who}{n}" for who in "xy" for n in range(8)])]
    quota = Quota("q", frozenset(f"x{number}" for number in range(4)), 1)
    rounds = Rounds(policy, cluster(v100=8), {0: jobs}, facts={"quotas": (quota,)}).run(20)
    assert ran(rounds, ["x0", "x4", "x5", "x6", "y0", "y1", "y2", "y3"]) == [20] * 8


def test_gpus_that_a_quota_denies_go_to_dearer_jobs_under_the_cost_policy():
    """It fills no GPUs, but none is idle for jobs that cannot have it."""
    (policy,) = (policy for policy in EVERY if policy.name == "gavel_cost")
    members, others = [f"m{number}" for number in range(4)], [f"x{number}" for number in range(4)]
    slow = [known_job(uid, "steady", table=small_table(), total_steps=1e6, gpu_types=("v100",)) for uid in others]
    facts = {"quotas": (Quota("q", frozenset(members), 1),)}
    rounds = Rounds(policy, cluster(v100=4), {0: [*equal_jobs(members), *slow]}, facts=facts).run(20)
    assert sum(ran(rounds, members)) == 20
    assert sum(ran(rounds, others)) == 60


def test_allox_starts_no_job_on_a_type_that_is_beyond_its_quota():
    """The other member keeps to the other type, and neither moves back and forth."""
    (policy,) = (policy for policy in EVERY if policy.name == "allox")
    jobs = equal_jobs(["m0", "m1"], gpu_types=())
    facts = {"quotas": (Quota("q", frozenset({"m0", "m1"}), 1, gpu_type="v100"),)}
    rounds = Rounds(policy, cluster(v100=2, k80=2), {0: jobs}, facts=facts).run(10)
    types = [{targets[uid].gpu_type for targets in rounds.history} for uid in ("m0", "m1")]
    assert sorted(types, key=sorted) == [{"k80"}, {"v100"}]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_round_grants_are_within_quotas_and_leave_no_gpu_to_a_waiting_job(policy, seed):
    """Random gangs, types, and up to three quotas, of GPUs, of a type, or of jobs."""
    rng = random.Random(seed)  # noqa: S311  no secret
    jobs = [
        known_job(
            f"j{number}",
            rng.choice(("quick", "steady")),
            gpus=rng.choice((1, 1, 2)),
            table=small_table(),
            total_steps=rng.choice((1e3, 1e5, 1e7)),
            progress_steps=0.0,
            gpu_types=rng.choice(((), ("v100",), ("k80",))),
        )
        for number in range(10)
    ]
    uids = [job.uid for job in jobs]
    kinds = ({}, {}, {"gpu_type": "v100"}, {"of_jobs": True})
    quotas = tuple(
        Quota(f"q{number}", frozenset(rng.sample(uids, rng.randint(2, 7))), rng.randint(-1, 4), **rng.choice(kinds))
        for number in range(rng.randint(1, 3))
    )
    rounds = Rounds(policy, cluster(v100=4, k80=3), {0: jobs}, facts={"quotas": quotas})
    rounds.run(1)
    for _ in range(15):
        decision, _ = policy.decide(rounds.snapshot(), rounds.state)
        rounds.run(1)
        targets = rounds.history[-1]
        assert {grant.uid for grant in decision.grants} <= targets.keys()
        for quota in quotas:
            assert used(quota, targets) <= max(quota.left, 0)
        if policy.fills:
            free = {
                kind: gpus - used(Quota("", frozenset(uids), 0, gpu_type=kind), targets)
                for kind, gpus in (("v100", 4), ("k80", 3))
            }
            for job in jobs:
                for kind, gpus in free.items() if job.uid not in targets else ():
                    speed = job.speed.steps_per_second(kind, (job.gpus,))
                    fits = gpus >= job.gpus and kind in (job.gpu_types or free) and speed != 0
                    assert not fits or not allowed(quotas, job, kind, targets)


def used(quota, targets):
    """What the placements use of a quota."""
    places = [place for uid, place in targets.items() if uid in quota.members]
    return sum(
        1 if quota.of_jobs else place.gpus
        for place in places
        if quota.of_jobs or quota.gpu_type in (None, place.gpu_type)
    )


def allowed(quotas, job, kind, targets):
    """Whether quotas leave a job its GPUs of a type, next to these placements."""
    return all(
        used(quota, targets) + (1 if quota.of_jobs else job.gpus) <= quota.left
        for quota in quotas
        if job.uid in quota.members and (quota.of_jobs or quota.gpu_type in (None, kind))
    )
