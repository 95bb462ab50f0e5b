from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import OptimizeResult

import policies.gavel.solve
from metasched.core.model import Node, Placement, Preempt, Quota, Status
from metasched.core.policy import PolicyState
from metasched.core.reasons import Code, Reason
from metasched.scheduling.engine import run_round
from metasched.throughput.throughput_table import ThroughputTable
from metasched.time_shares.allocation_inputs import allocation_inputs
from metasched.time_shares.granting import choose
from metasched.time_shares.round_mechanism import Candidate, TimeAccounts, as_single_combinations, priorities
from policies.gavel.job_classes import JobClasses
from policies.gavel.pair_times import divide_pair, pair_off, split_in_halves
from policies.gavel.policies import (
    Entity,
    GavelCost,
    GavelCostParameters,
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelHierarchical,
    GavelHierarchicalParameters,
    GavelLas,
    GavelLasParameters,
    GavelMakespan,
    GavelParameters,
    GavelShortestFirst,
    GavelThroughput,
)
from policies.gavel.solve import UnsolvedError
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.policies.baselines.test_isolated import shares, snapshot
from tests.unit.rounds import Rounds
from tests.unit.strategies import snapshots

EVERY = (
    GavelLas,
    GavelMakespan,
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelShortestFirst,
    GavelThroughput,
    GavelCost,
    GavelHierarchical,
)
CLOSE = 1e-4


@dataclass(frozen=True)
class Rates:
    """Steps per second by type, None where not known; co-located a fraction of that."""

    known: tuple[tuple[str, float], ...]
    part: float = 0.0

    def steps_per_second(self, gpu_type, spread):
        del spread
        return dict(self.known).get(gpu_type)

    def steps_per_second_with(self, other, gpu_type, spread):
        del other
        alone_there = self.steps_per_second(gpu_type, spread)
        return None if alone_there is None else self.part * alone_there


def rated(uid, gpus=1, part=0.0, submitted=0.0, left=None, **rates):
    """A job with such rates; ``left`` are its steps."""
    more = {} if left is None else {"total_steps": float(left), "progress_steps": 0.0}
    return known_job(uid, gpus=gpus, submitted=submitted, **more).evolve(speed=Rates(tuple(rates.items()), part))


def speed_of(found, job):
    """Effective throughput of a job that is never in a pair."""
    return sum(part * dict(job.speed.known)[gpu_type] for gpu_type, part in found.get(job.uid, {}).items())


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(policy, data):
    """The decision keeps the contract, the state is JSON, and the same input gives the same answer."""
    made = policy(policy.Parameters(aware=data.draw(st.booleans())))
    view = data.draw(snapshots())
    first = run_round(view, made, None)
    assert first == run_round(view, made, None)
    assert json.loads(json.dumps(dict(first.state.data))) == first.state.data
    assert run_round(view, made, first.state) == run_round(view, made, first.state)


def test_a_round_has_the_time_shares_of_the_example_of_section_4_1():
    """The time shares of a whole round are those that the paper prints."""
    jobs = [rated("a", v100=40.0, k80=10.0), rated("b", v100=12.0, k80=4.0), rated("c", v100=100.0, k80=50.0)]
    found = shares(GavelLas(), jobs, cluster(v100=1, k80=1))
    table = [[found[uid].get(gpu_type, 0.0) for gpu_type in ("v100", "k80")] for uid in "abc"]
    assert table == [pytest.approx(row, abs=0.006) for row in ([0.45, 0.0], [0.45, 0.09], [0.09, 0.91])]


def test_the_rounds_of_figure_5():
    """X_example, one GPU of each type: after five rounds each job has received exactly its fractions of them."""
    table = {"0": (0.6, 0.4, 0.0), "1": (0.2, 0.6, 0.2), "2": (0.2, 0.0, 0.8)}
    gpu_types = ("v100", "p100", "k80")
    book = TimeAccounts().renew(
        as_single_combinations({uid: dict(zip(gpu_types, row, strict=True)) for uid, row in table.items()}), 0.0
    )
    had = {uid: dict.fromkeys(gpu_types, 0) for uid in table}
    for _ in range(5):
        book = book.record_received(
            [known_job(uid).evolve(attained={k: 60.0 * n for k, n in had[uid].items()}) for uid in had]
        )
        for turn in choose(
            book, [Candidate((uid,), 1, gpu_types) for uid in had], dict.fromkeys(gpu_types, 1), priorities(book, 60.0)
        ):
            had[turn.combination[0]][turn.gpu_type] += 1
    assert {uid: tuple(had[uid][gpu_type] / 5 for gpu_type in gpu_types) for uid in had} == table


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("sharing", [True, False])
def test_every_policy_gives_valid_shares_whatever_is_known(policy, aware, sharing):
    """Unknown speeds and totals, jobs that cannot run, gangs and pairs: shares stay within time and GPUs."""
    table = small_table()
    jobs = [
        known_job("a", table=table, total_steps=100.0, progress_steps=40.0),
        known_job("b", "steady", 2, table=table, submitted=1.0),
        known_job("c", "quick", 1, table=table, submitted=2.0, total_steps=10.0, slo_seconds=900.0),
        known_job("d", submitted=3.0),
        rated("e", submitted=4.0, v100=7.0),
        rated("f", submitted=5.0, v100=0.0, k80=0.0),
    ]
    nodes = cluster(v100=2, k80=2)
    found = shares(policy(policy.Parameters(aware=aware)), jobs, nodes, now=10.0, sharing=sharing)
    gpus = {job.uid: job.gpus for job in jobs}
    time = dict.fromkeys(gpus, 0.0)
    used = {"v100": 0.0, "k80": 0.0}
    for combination, share in found.items():
        for uid in combination.split("+"):
            time[uid] += sum(share.values())
        for gpu_type, part in share.items():
            used[gpu_type] += part * gpus[combination.split("+")[0]]
    assert found
    assert max(time.values()) <= 1 + CLOSE
    assert all(count <= 2 + CLOSE for count in used.values())
    assert time["f"] == 0.0
    assert sharing or not any("+" in combination for combination in found)


def failing(solve, fails):
    """HiGHS, which gives up where ``fails`` says so: of the cost, the method and whether presolve is on."""

    def other(c, A_ub, b_ub, method, options=None):  # noqa: N803  scipy's names
        if fails(c, method, presolve=options is None):
            return OptimizeResult(status=4, message="numerical difficulties", x=None)
        return solve(c, A_ub=A_ub, b_ub=b_ub, method=method, options=options)

    return other


MIXED = [
    rated("a", left=900, v100=4.0, k80=1.0),
    rated("b", 2, left=100, submitted=1.0, v100=3.0, k80=2.0).evolve(weight=0.5, account="x"),
    rated("c", left=10, submitted=2.0, v100=9.0, k80=1.0).evolve(slo_seconds=900.0),
]
HARD = {
    "simplex": (lambda c, method, *, presolve: method == "highs-ds" and presolve, "robust_method"),
    "presolve": (lambda c, method, *, presolve: presolve, "robust_method"),
    "all": (lambda c, method, *, presolve: True, "equal_shares"),
}


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@pytest.mark.parametrize("hard", HARD)
def test_a_program_that_cannot_be_solved_has_a_substitute(monkeypatch, policy, hard):
    """Time shares stay valid, every job's reason says where they come from, and later rounds use the program again."""
    view = snapshot(MIXED, cluster(v100=2, k80=2), now=10.0)
    expected = shares_in(run_round(view, policy(), None))
    fails, substitute = HARD[hard]
    solve = policies.gavel.solve.linprog
    monkeypatch.setattr(policies.gavel.solve, "linprog", failing(solve, fails))
    result = run_round(view, policy(), None)
    degraded = Reason.of(Code.TIME_SHARES_DEGRADED, substitute=substitute)
    assert result.decision.degraded == degraded
    assert all(degraded in reason.parts for reason in result.reasons.values())
    found = shares_in(result)
    assert all(sum(share.values()) <= 1 + CLOSE for share in found.values())
    for gpu_type in ("v100", "k80"):
        assert sum(share.get(gpu_type, 0.0) * (2 if uid == "b" else 1) for uid, share in found.items()) <= 2 + CLOSE
    if substitute == "equal_shares":
        assert set(found) == {"a", "b", "c"}
    else:
        speeds = [[speed_of(one, job) for job in MIXED] for one in (found, expected)]
        assert speeds[0] == pytest.approx(speeds[1], abs=1e-3)
    monkeypatch.setattr(policies.gavel.solve, "linprog", solve)
    state = PolicyState(result.state.version, json.loads(json.dumps(dict(result.state.data))))
    assert run_round(view, policy(), state).decision.degraded == degraded
    later = snapshot(MIXED[:2], cluster(v100=2, k80=2), now=20.0)
    assert run_round(later, policy(), state).decision.degraded is None


@pytest.mark.parametrize("policy", [GavelLas, GavelMakespan, GavelFinishTimeFairness])
def test_the_first_stage_alone_is_the_simple_program(monkeypatch, policy):
    """Where HiGHS gives up on all second stages, the job that is worst off has as much as with them."""
    view = snapshot(MIXED, cluster(v100=2, k80=2), now=10.0)
    solve = policies.gavel.solve.linprog
    hard = failing(solve, lambda c, method, *, presolve: np.count_nonzero(c) > 1)
    monkeypatch.setattr(policies.gavel.solve, "linprog", hard)
    result = run_round(view, policy(), None)
    assert result.decision.degraded == Reason.of(Code.TIME_SHARES_DEGRADED, substitute="simple_program")
    assert set(shares_in(result)) == {"a", "b", "c"}


def shares_in(result):
    """The time shares of a round, by uid."""
    return {"+".join(uids): share for uids, share in result.state.data["ledger"]["shares"]}


def test_water_filling_stops_at_the_level_that_it_has_reached(monkeypatch):
    """Where HiGHS gives up in a later iteration, jobs have what the earlier ones gave them."""
    solve, calls = policies.gavel.solve.linprog, []

    def fails(c, method, *, presolve):
        del c, method, presolve
        calls.append(1)
        return len(calls) > 1

    made = GavelLas(GavelLasParameters(fill=True))
    jobs = [rated(uid, v100=1.0).evolve(weight=weight) for uid, weight in (("a", 1.0), ("b", 0.25), ("c", 0.25))]
    problem_of = JobClasses.of(
        allocation_inputs(snapshot(jobs, cluster(v100=2))), aware=True, class_key=made.class_key()
    )
    monkeypatch.setattr(policies.gavel.solve, "linprog", failing(solve, fails))
    with pytest.raises(UnsolvedError):
        made.solve(problem_of, {})
    calls.clear()
    first, others = problem_of.problem.throughput @ made.solve_simply(problem_of, {})
    assert first == pytest.approx(1.0, abs=CLOSE)
    assert others >= 0.25 - CLOSE


def test_jobs_of_unknown_total_are_equally_long_whatever_their_speeds():
    """Shortest job first serves the one that was submitted first."""
    jobs = [rated("a", v100=118.0), rated("b", submitted=1.0, v100=196.0)]
    assert shares(GavelShortestFirst(), jobs, cluster(v100=1), now=2.0) == {
        "a": {"v100": pytest.approx(1.0, abs=CLOSE)}
    }


def held(uid, gpu_type, gpus=1):
    """A job that retains its GPUs."""
    place = Placement((gpu_type,), gpus, gpu_type)
    return rated(uid, gpus, **{gpu_type: 1.0}).evolve(status=Status.RUNNING, placement=place, preempt=Preempt.NO)


FILL = GavelLas(GavelLasParameters(fill=True)), GavelLas(GavelLasParameters(fill=True, aware=False))
ALL = [*(policy(policy.Parameters(aware=aware)) for policy in EVERY for aware in (True, False)), *FILL]


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_no_job_gets_shares_of_gpus_that_retained_jobs_hold(policy, sharing):
    """They hold all GPUs, all of a job's only type, or so many that a gang does not fit; others share the rest."""
    waiting = rated("a", part=0.9, left=100, v100=1.0, k80=0.0)
    assert shares(policy, [held("p", "v100"), waiting], cluster(v100=1), sharing=sharing) == {}
    jobs = [held("p", "v100"), waiting, rated("b", left=100, v100=2.0, k80=1.0)]
    assert set(shares(policy, jobs, cluster(v100=1, k80=1), sharing=sharing)) == {"b"}
    gangs = [rated(uid, 4, part=0.9, left=100, v100=9.0) for uid in "cd"]
    found = shares(policy, [held("p", "v100"), *gangs, waiting], cluster(v100=4), sharing=sharing)
    assert found == {"a": {"v100": pytest.approx(1.0, abs=CLOSE)}}


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_jobs_without_remaining_steps_are_served(policy):
    """They have not ended yet, and no GPU idles that a job could use."""
    jobs = [rated("a", left=0, v100=1.0), rated("b", submitted=1.0, left=0, v100=1.0)]
    found = shares(policy, jobs, cluster(v100=1), now=2.0)
    assert sum(share["v100"] for share in found.values()) == pytest.approx(1.0, abs=CLOSE)


@pytest.mark.parametrize("policy", [GavelMakespan, GavelFinishTimeFairness, GavelLas])
def test_where_types_are_alike_speeds_do_not_count(policy):
    """Aware or not, every job has the same throughput; LAS with water filling."""
    jobs = [
        rated(uid, gpus, left=left, submitted=float(i), v100=speed, k80=speed).evolve(weight=weight)
        for i, (uid, gpus, left, speed, weight) in enumerate(
            [("a", 1, 900, 2.0, 1.0), ("b", 2, 100, 5.0, 0.5), ("c", 1, 50, 1.0, 0.2), ("d", 1, 700, 3.0, 1.0)]
        )
    ]
    more = {"fill": True} if policy is GavelLas else {}
    found = [
        shares(policy(policy.Parameters(aware=aware, **more)), jobs, cluster(v100=2, k80=1), now=9.0)
        for aware in (True, False)
    ]
    aware, agnostic = ([speed_of(share, job) for job in jobs] for share in found)
    assert aware == pytest.approx(agnostic, abs=1e-3)


@pytest.mark.parametrize("policy", [GavelLas, GavelMakespan, GavelFinishTimeFairness, GavelThroughput])
def test_agnostic_policies_see_no_difference_between_types(policy):
    """Time is spread over types in proportion to their GPUs, whatever the speeds."""
    jobs = [rated(uid, v100=v100, k80=1.0, left=100.0 * v100) for uid, v100 in (("a", 9.0), ("b", 2.0))]
    found = shares(policy(policy.Parameters(aware=False)), jobs, cluster(v100=3, k80=1))
    assert found == {uid: pytest.approx({"v100": 0.75, "k80": 0.25}, abs=CLOSE) for uid in "ab"}


def test_weights_and_gangs_count_in_fairness():
    """Twice the weight is twice the throughput; two GPUs for one job are half of the time."""
    jobs = [rated(uid, v100=1.0) for uid in "abc"]
    weighted = [jobs[0].evolve(weight=0.8), *(job.evolve(weight=0.4) for job in jobs[1:])]
    assert shares(GavelLas(), weighted, cluster(v100=1)) == {
        uid: {"v100": pytest.approx(part, abs=CLOSE)} for uid, part in (("a", 0.5), ("b", 0.25), ("c", 0.25))
    }
    gang = [rated("a", 2, v100=1.0), rated("b", v100=1.0), rated("c", v100=1.0)]
    found = shares(GavelLas(), gang, cluster(v100=2))
    assert found["a"]["v100"] == pytest.approx(1 / 3, abs=CLOSE)
    assert found["b"]["v100"] == pytest.approx(2 / 3, abs=CLOSE)


def test_pairs_share_gpus_where_their_speeds_sum_up_to_more_than_one():
    """Two jobs that each lose a quarter share the GPU; at less than half of their speeds they alternate."""
    nodes = cluster(v100=1)
    found = shares(GavelLas(), [rated(uid, part=0.75, v100=4.0) for uid in "ab"], nodes, sharing=True)
    assert found == {"a+b": {"v100": pytest.approx(1.0, abs=CLOSE)}}
    found = shares(GavelLas(), [rated(uid, part=0.5, v100=4.0) for uid in "ab"], nodes, sharing=True)
    assert found == {uid: {"v100": pytest.approx(0.5, abs=CLOSE)} for uid in "ab"}


@given(st.integers(1, 7), st.integers(1, 7), st.floats(0.01, 1.0))
def test_the_time_of_two_classes_together_is_divided_among_their_jobs(first, second, total):
    """Each job of a class is paired for equally long; times add up to the total; pairs are by arrival."""
    ones = [known_job(f"a{i}", submitted=float(i % 3)) for i in range(first)]
    others = [known_job(f"b{i}", submitted=float(i % 2)) for i in range(second)]
    arrived = {job.uid: (job.submitted, job.uid) for job in (*ones, *others)}
    parts = dict(divide_pair(ones, others, total))
    assert sum(parts.values()) == pytest.approx(total)
    for mine in (ones, others):
        for job in mine:
            assert sum(part for combination, part in parts.items() if job.uid in combination) == pytest.approx(
                total / len(mine)
            )
    assert all(arrived[combination[0]] < arrived[combination[1]] for combination in parts)


@given(st.integers(2, 7), st.floats(0.01, 1.0))
def test_the_time_of_a_class_with_itself_is_divided_among_its_jobs(size, total):
    """No job is paired with itself, and each is paired for equally long."""
    jobs = [known_job(f"a{i}") for i in range(size)]
    parts = dict(divide_pair(jobs, jobs, total))
    assert sum(parts.values()) == pytest.approx(total)
    for job in jobs:
        assert sum(part for combination, part in parts.items() if job.uid in combination) == pytest.approx(
            2 * total / size
        )
    assert all(combination[0] != combination[1] for combination in parts)


parts = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)


def line(name, lengths):
    return [(known_job(f"{name}{i}", submitted=float(i % 2)), length) for i, length in enumerate(lengths)]


def time_of(found):
    """By uid, the time alone and in pairs."""
    total = {}
    for combination, share in found:
        for uid in combination:
            total[uid] = total.get(uid, 0.0) + share
    return total


@given(parts, parts)
def test_pair_off_gives_each_job_its_time(first, second):
    """A job without an overlap is alone; no job is in two pairs at once."""
    lines = line("a", first), line("b", second)
    found = list(pair_off(*lines))
    assert time_of(found) == {job.uid: pytest.approx(share) for each in lines for job, share in each}
    assert sum(share for _, share in found) == pytest.approx(max(sum(first), sum(second)))


@given(parts)
def test_halves_of_a_sequence_pair_each_job_with_others(lengths):
    """Only a job with more time than all others together remains alone for a part of it."""
    jobs = line("a", lengths)
    found = list(pair_off(*split_in_halves(jobs)))
    assert time_of(found) == {job.uid: pytest.approx(share) for job, share in jobs}
    alone_for = sum(share for combination, share in found if len(combination) == 1)
    assert alone_for == pytest.approx(max(2 * max(lengths) - sum(lengths), 0.0), abs=CLOSE)
    assert all(combination[0] != combination[1] for combination, _ in found if len(combination) > 1)


@pytest.mark.parametrize("policy", [GavelMakespan, GavelFinishTimeFairness, GavelFirstCome, GavelShortestFirst])
def test_programs_with_pairs_grow_with_jobs_not_with_pairs_of_jobs(policy):
    """Each job is a class of its own: the number of variables for each of many equal jobs is bounded."""
    made = policy()

    def variables(count):
        jobs = [rated(f"{i:03}", part=0.75, submitted=float(i), left=100 + i, v100=4.0) for i in range(count)]
        inputs = allocation_inputs(snapshot(jobs, cluster(v100=2), sharing=True))
        classes = JobClasses.of(inputs, aware=True, class_key=made.class_key())
        times, _ = made.time_shares(inputs, {})
        assert sum(part for share in times.values() for part in share.values()) <= 2 + CLOSE
        assert (
            max(time_of((combination, sum(share.values())) for combination, share in times.items()).values())
            <= 1 + CLOSE
        )
        assert any(len(combination) > 1 for combination in times)
        return len(classes.problem.columns[0])

    assert variables(40) == 2 * 40 + 1
    assert variables(20) == 2 * 20 + 1


@pytest.mark.parametrize("policy", [GavelLas, GavelFinishTimeFairness])
def test_a_job_that_needs_whole_gpus_is_in_no_pair(policy):
    """Even where it equals other jobs in all other respects."""
    jobs = [rated(f"{i}", part=0.75, submitted=float(i), left=100, v100=4.0) for i in range(6)]
    jobs[2] = jobs[2].evolve(whole_gpus=True)
    found = shares(policy(), jobs, cluster(v100=2), sharing=True)
    assert "2" in found
    assert not [combination for combination in found if "+" in combination and "2" in combination]
    assert [combination for combination in found if "+" in combination]


@dataclass(frozen=True)
class Near:
    """Half as fast on more than one node."""

    def steps_per_second(self, gpu_type, spread):
        return 4.0 if len(spread) == 1 else 2.0

    def steps_per_second_with(self, other, gpu_type, spread):
        return 0.0


def gang(uid, **more):
    return known_job(uid, gpus=4, **more).evolve(speed=Near())


def nodes_of(*gpus):
    return tuple(Node(f"n{i}", "v100", count, 0, 0) for i, count in enumerate(gpus))


def test_consolidated_and_unconsolidated_gpus_are_two_worker_types():
    """On two nodes of six GPUs three jobs of four fit, but only two of them consolidated; they alternate."""
    policy = GavelLas(GavelLasParameters(placement=True))
    jobs = [gang(uid) for uid in "abc"]
    found = shares(policy, jobs, nodes_of(6, 6))
    together = {uid: found[uid]["v100"] for uid in "abc"}
    apart = {uid: found[uid]["v100 unconsolidated"] for uid in "abc"}
    assert sum(together.values()) == pytest.approx(2.0, abs=CLOSE)
    assert sum(apart.values()) == pytest.approx(1.0, abs=CLOSE)
    speeds = [4 * together[uid] + 2 * apart[uid] for uid in "abc"]
    assert speeds == pytest.approx([10 / 3] * 3, abs=CLOSE)
    plain = shares(GavelLas(), jobs, nodes_of(6, 6))
    assert {gpu_type for share in plain.values() for gpu_type in share} == {"v100"}


def test_rounds_honour_worker_types():
    """In every round two jobs run on one node each and one on two; over time each is unconsolidated equally often."""
    policy = GavelLas(GavelLasParameters(placement=True))
    rounds = Rounds(policy, nodes_of(6, 6), {0: [gang(uid) for uid in "abc"]}).run(30)
    across = [[uid for uid, place in targets.items() if len(place.nodes) > 1] for targets in rounds.history]
    assert all(len(targets) == 3 for targets in rounds.history)
    assert all(len(uids) == 1 for uids in across)
    turns = [sum(uid in uids for uids in across) for uid in "abc"]
    assert turns == pytest.approx([10, 10, 10], abs=1)


def test_a_consolidated_round_grant_is_not_spread():
    """Small jobs hold half of each node: one of them moves, and the large job is not spread."""
    policy = GavelLas(GavelLasParameters(placement=True))
    small = [
        rated(f"s{i}", 2, v100=1.0).evolve(status=Status.RUNNING, placement=Placement((f"n{i}",), 2, "v100"))
        for i in range(2)
    ]
    result = run_round(snapshot([*small, gang("big", submitted=1.0)], nodes_of(4, 4)), policy, None)
    assert result.decision.grants[0].max_nodes == 1
    assert len(result.targets["big"].nodes) == 1
    assert len(result.targets) == 3
    plain = run_round(snapshot([*small, gang("big", submitted=1.0)], nodes_of(4, 4)), GavelLas(), None)
    assert plain.decision.grants[0].max_nodes is None


def test_makespan_lets_all_jobs_end_together():
    """A job with three times the steps has three times the speed."""
    jobs = [rated("a", left=300, v100=1.0), rated("b", left=100, v100=1.0)]
    found = shares(GavelMakespan(), jobs, cluster(v100=1))
    assert found == {uid: {"v100": pytest.approx(part, abs=CLOSE)} for uid, part in (("a", 0.75), ("b", 0.25))}


def test_a_job_of_unknown_steps_is_assumed_to_need_unknown_seconds():
    """The parameter's seconds count on its fastest type."""
    jobs = [rated("a", left=300, v100=1.0), rated("b", v100=1.0)]
    found = shares(GavelMakespan(GavelMakespan.Parameters(unknown_seconds=100.0)), jobs, cluster(v100=1))
    assert found["a"]["v100"] == pytest.approx(0.75, abs=CLOSE)


def test_unknown_speeds_are_estimated_from_those_of_others():
    """A job known on one type gains as much on the other as a job that is known on both."""
    jobs = [rated("a", v100=8.0, k80=2.0), rated("b", v100=4.0), rated("c")]
    found = shares(GavelLas(), jobs, cluster(v100=1, k80=1))
    assert found.keys() == {"a", "b", "c"}
    full = [rated("a", v100=8.0, k80=2.0), rated("b", v100=4.0, k80=1.0), rated("c", v100=6.0, k80=2.0)]
    known = shares(GavelLas(), full, cluster(v100=1, k80=1))
    assert found == {uid: pytest.approx(share, abs=CLOSE) for uid, share in known.items()}


def test_finish_time_fairness_favours_the_job_that_waited_longer():
    """Of two equal jobs, the one submitted long ago has the larger share."""
    jobs = [rated("a", left=1000, v100=1.0), rated("b", submitted=900.0, left=1000, v100=1.0)]
    found = shares(GavelFinishTimeFairness(), jobs, cluster(v100=1), now=1000.0)
    assert found["a"]["v100"] > found["b"]["v100"] + 0.01


def test_finish_time_fairness_remembers_isolated_time():
    """Past steps count at the speed of 1/n of the cluster at that time."""
    policy = GavelFinishTimeFairness()
    jobs = [rated(uid, left=1000, v100=1.0) for uid in "ab"]
    first = run_round(snapshot(jobs, cluster(v100=1)), policy, None)
    assert first.state.data["memory"]["isolated"]["a"] == [0.0, 0.0, 0.5]
    later = [jobs[0].evolve(progress_steps=100.0), jobs[1], rated("c", left=10, v100=1.0)]
    second = run_round(snapshot(later, cluster(v100=1), now=200.0), policy, first.state)
    assert second.state.data["memory"]["isolated"]["a"] == [200.0, 100.0, pytest.approx(1 / 3)]
    lost = [later[0].evolve(progress_steps=70.0), *later[1:], rated("d", left=10, v100=1.0)]
    third = run_round(snapshot(lost, cluster(v100=1), now=300.0), policy, second.state)
    assert third.state.data["memory"]["isolated"]["a"][:2] == [200.0, 100.0]


def test_isolated_time_is_within_quotas():
    """Four jobs would have a GPU each; a quota of one GPU leaves each of its two members half of that."""
    policy = GavelFinishTimeFairness()
    jobs = [rated(uid, left=1000, v100=1.0) for uid in "abcd"]
    shot = replace(snapshot(jobs, cluster(v100=4)), quotas=(Quota("q", frozenset("ab"), 1),))
    memory = run_round(shot, policy, None).state.data["memory"]["isolated"]
    assert {uid: past[2] for uid, past in memory.items()} == {"a": 0.5, "b": 0.5, "c": 1.0, "d": 1.0}


@pytest.mark.parametrize("policy", [GavelFirstCome, GavelShortestFirst], ids=lambda policy: policy.name)
def test_programs_with_an_order_are_within_quotas(policy):
    """The first member has all that the quota allows, and the job behind both has the other GPU."""
    jobs = [rated(uid, left=1000, v100=1.0, submitted=at) for uid, at in (("a", 0.0), ("b", 1.0), ("c", 2.0))]
    quota = Quota("q", frozenset("ab"), 1)
    shot = replace(snapshot(jobs, cluster(v100=2), now=9.0), quotas=(quota,))
    found = run_round(shot, policy(), None).state.data["ledger"]["shares"]
    assert {tuple(uids): share["v100"] for uids, share in found} == {("a",): pytest.approx(1), ("c",): pytest.approx(1)}


@pytest.mark.parametrize("policy", [GavelFinishTimeFairness, GavelMakespan], ids=lambda policy: policy.name)
@pytest.mark.parametrize("left", [0.0, 1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("age", [1e4, 1e6, 3e7])
def test_a_job_on_its_last_step_gets_valid_shares(policy, left, age):
    """At any age of the job; some job has nearly all of the time."""
    old = known_job("a", total_steps=100.0, progress_steps=100.0 - left).evolve(speed=Rates((("v100", 1e3),), 0.0))
    found = shares(policy(), [old, rated("b", 4, submitted=1.0, left=1e6, v100=1.0)], cluster(v100=4), now=age)
    assert max(share["v100"] for share in found.values()) > 0.9


def test_finish_time_fairness_remembers_isolated_time_of_jobs_that_do_not_fit():
    """Such a job is a gang whose GPUs retained jobs hold for a while."""
    policy = GavelFinishTimeFairness()
    gang = rated("a", 2, left=1000, v100=1.0)
    first = run_round(snapshot([gang, rated("b", left=9, v100=1.0)], cluster(v100=2)), policy, None)
    gang = gang.evolve(progress_steps=100.0)
    jobs = [held("p", "v100"), gang]
    second = run_round(snapshot(jobs, cluster(v100=2), now=200.0), policy, first.state)
    third = run_round(snapshot([gang], cluster(v100=2), now=300.0), policy, second.state)
    assert third.state.data["memory"]["isolated"]["a"] == [200.0, 100.0, 1.0]


@pytest.mark.parametrize(("policy", "first"), [(GavelFirstCome, "a"), (GavelShortestFirst, "b")])
def test_queues_serve_the_first_on_its_fastest_type(policy, first):
    """The first by arrival, or by remaining time."""
    jobs = [rated("a", left=100, v100=4.0, k80=1.0), rated("b", submitted=1.0, left=10, v100=4.0, k80=1.0)]
    found = shares(policy(), jobs, cluster(v100=1, k80=1), now=2.0)
    other = "ab".replace(first, "")
    assert found == {
        first: {"v100": pytest.approx(1.0, abs=CLOSE)},
        other: {"k80": pytest.approx(1.0, abs=CLOSE)},
    }


def test_the_throughput_policy_prefers_fast_jobs_and_pairs():
    """A slow job has no time while fast ones are present; a pair has more throughput than one job."""
    jobs = [rated("a", v100=4.0), rated("b", v100=3.0)]
    assert shares(GavelThroughput(), jobs, cluster(v100=1)) == {"a": {"v100": pytest.approx(1.0, abs=CLOSE)}}
    jobs = [rated("a", part=0.9, v100=4.0), rated("b", part=0.9, v100=3.0)]
    found = shares(GavelThroughput(), jobs, cluster(v100=1), sharing=True)
    assert found == {"a+b": {"v100": pytest.approx(1.0, abs=CLOSE)}}


def test_cost_takes_the_cheap_type_unless_a_deadline_needs_the_fast_one():
    """A job with an SLO gets the throughput that it requires; without ``slos`` it has the cheap type."""
    prices = {"v100": 4.0, "k80": 1.0}
    loose = rated("a", left=100, v100=2.0, k80=1.0)
    tight = rated("b", left=150, v100=2.0, k80=1.0).evolve(slo_seconds=100.0)
    nodes = cluster(v100=2, k80=2)
    found = shares(GavelCost(GavelCostParameters(prices=prices, margin=0.0)), [loose, tight], nodes)
    assert found["a"] == {"k80": pytest.approx(1.0, abs=CLOSE)}
    assert speed_of(found, tight) == pytest.approx(1.5, abs=CLOSE)
    found = shares(GavelCost(GavelCostParameters(prices=prices, slos=False)), [loose, tight], nodes)
    assert found["b"] == {"k80": pytest.approx(1.0, abs=CLOSE)}


def test_a_reserve_is_kept_before_a_deadline():
    """The throughput is that of an earlier deadline."""
    job = rated("a", left=150, v100=2.0, k80=1.0).evolve(slo_seconds=100.0)
    policy = GavelCost(GavelCostParameters(prices={"v100": 4.0}, margin=0.1))
    assert speed_of(shares(policy, [job], cluster(v100=1, k80=1)), job) == pytest.approx(150 / 90, abs=CLOSE)


@pytest.mark.parametrize("slo", [105.0, 103.0, 101.0, 100.0])
def test_a_deadline_within_the_reserve_is_still_met(slo):
    """A job with 100 s of work on the fastest type gets that type; one that cannot be in time gets the cheapest."""
    policy = GavelCost(GavelCostParameters(prices={"v100": 4.0, "k80": 1.0}))
    job = rated("a", left=200, v100=2.0, k80=1.0)
    nodes = cluster(v100=1, k80=1)
    assert speed_of(shares(policy, [job.evolve(slo_seconds=slo)], nodes), job) == pytest.approx(2.0, abs=CLOSE)
    assert speed_of(shares(policy, [job.evolve(slo_seconds=99.0)], nodes), job) == pytest.approx(1.0, abs=CLOSE)


@pytest.mark.parametrize(("together", "running"), [(True, {"a"}), (False, {"a", "b"})])
def test_an_expensive_job_waits_under_the_ratio_of_sums_and_runs_otherwise(together, running):
    """Its throughput over its cost lowers the ratio of all jobs together."""
    jobs = [rated("a", v100=1.0, k80=1.0), rated("b", v100=1.0, k80=0.0)]
    policy = GavelCost(GavelCostParameters(prices={"v100": 4.0, "k80": 1.0}, together=together))
    assert shares(policy, jobs, cluster(v100=1, k80=1)).keys() == running


def test_the_cost_policy_leaves_expensive_gpus_idle():
    """Under the ratio of sums, a job for which they do not pay waits."""
    jobs = [rated(uid, v100=1.0, k80=1.0) for uid in "ab"]
    policy = GavelCost(GavelCostParameters(prices={"v100": 4.0, "k80": 1.0}, together=True))
    result = run_round(snapshot(jobs, cluster(v100=1, k80=1)), policy, None)
    assert [place.gpu_type for place in result.targets.values()] == ["k80"]


def entities(*, fifo=False):
    """Figure 6: product (fairness inside) and research (FIFO inside), equal weights."""
    research = Entity(inside="fifo") if fifo else Entity()
    return GavelHierarchical(GavelHierarchicalParameters(entities={"product": Entity(), "research": research}))


def test_the_hierarchy_of_figure_6():
    """Product's three jobs share its half equally; research's first job has its half until it needs no more."""
    jobs = [
        *(rated(f"p{i}", v100=1.0).evolve(account="product") for i in range(3)),
        *(rated(f"r{i}", submitted=float(i), v100=1.0).evolve(account="research") for i in range(2)),
    ]
    found = shares(entities(fifo=True), jobs, cluster(v100=1), now=2.0)
    assert found == {
        **{f"p{i}": {"v100": pytest.approx(1 / 6, abs=CLOSE)} for i in range(3)},
        "r0": {"v100": pytest.approx(1 / 2, abs=CLOSE)},
    }
    found = shares(entities(fifo=True), jobs, cluster(v100=3), now=2.0)
    assert found["r0"]["v100"] == pytest.approx(1.0, abs=CLOSE)
    assert found["r1"]["v100"] == pytest.approx(1 / 2, abs=CLOSE)
    found = shares(entities(), jobs, cluster(v100=1), now=2.0)
    assert found["r0"] == found["r1"] == {"v100": pytest.approx(1 / 4, abs=CLOSE)}


def test_the_hierarchy_counts_speeds():
    """The weights 2 and 1 on a V100 and a K80: a has 1 - y of the V100, which b has for y, and each the other's K80.

    Shares are equal where (4 - 3 y) / (2 x 2.5) = (1 + y) / 1.5, so y = 2 / 19. In the queue of b nothing is left.
    """
    a = rated("a", v100=4.0, k80=1.0).evolve(account="big")
    b, c = (rated(uid, submitted=at, v100=2.0, k80=1.0).evolve(account="q") for uid, at in (("b", 1.0), ("c", 2.0)))
    big, queue = Entity(weight=2.0), Entity(inside="fifo")
    policy = GavelHierarchical(GavelHierarchicalParameters(entities={"big": big, "q": queue}))
    found = shares(policy, [a, b, c], cluster(v100=1, k80=1), now=3.0)
    assert [speed_of(found, job) for job in (a, b, c)] == pytest.approx([70 / 19, 21 / 19, 0.0], abs=1e-3)


@pytest.mark.parametrize("accounts", ["ab", "abc"])
def test_long_queues_of_different_speeds_are_filled(accounts):
    """All GPUs are given out in spite of the solver's rounding, and the first of each queue has the fastest type."""
    chance = random.Random(0)  # noqa: S311  no secret
    jobs = []
    for number in range(40):
        fast = 10 ** chance.uniform(0, 2)
        speeds = {"v100": fast, "p100": fast * chance.uniform(0.3, 0.8), "k80": fast * chance.uniform(0.1, 0.5)}
        account = accounts[number % len(accounts)]
        jobs.append(rated(f"{number:02}", submitted=float(number), **speeds).evolve(account=account))
    policy = GavelHierarchical(GavelHierarchicalParameters(others=Entity(inside="fifo")))
    found = shares(policy, jobs, cluster(v100=8, p100=8, k80=8))
    assert sum(part for share in found.values() for part in share.values()) == pytest.approx(24.0, abs=0.01)
    assert set(found) >= {job.uid for job in jobs[: len(accounts)]}
    assert "39" not in found


def test_entities_have_their_weights():
    """An account of weight three has three times as much as an account that is not named."""
    jobs = [rated("a", v100=1.0).evolve(account="big"), rated("b", v100=1.0).evolve(account="other")]
    policy = GavelHierarchical(GavelHierarchicalParameters(entities={"big": Entity(weight=3.0)}))
    found = shares(policy, jobs, cluster(v100=1))
    assert found == {"a": {"v100": pytest.approx(0.75, abs=CLOSE)}, "b": {"v100": pytest.approx(0.25, abs=CLOSE)}}


def test_accounts_that_are_not_named_have_the_weights_of_their_shares():
    """Shares of 3 : 1 are weights 1.5 and 0.5; unknown ones count as average; named ones keep theirs; none is zero."""
    accounts = {"vision": 0.3, "speech": 0.1, "none": None, "named": 0.9}
    jobs = [rated(name, v100=1.0).evolve(account=name, fair_share=share) for name, share in accounts.items()]
    policy = GavelHierarchical(GavelHierarchicalParameters(entities={"named": Entity(weight=3.0)}))
    weights = {"vision": 1.5, "speech": 0.5, "none": 1.0, "named": 3.0}
    assert policy.weights(jobs) == pytest.approx(weights)
    found = shares(policy, jobs, cluster(v100=1))
    assert found == {name: {"v100": pytest.approx(weight / 6, abs=CLOSE)} for name, weight in weights.items()}
    assert policy.weights([jobs[0], jobs[1].evolve(fair_share=0.0)])["speech"] > 0


def test_shares_are_recomputed_when_weights_change():
    """A change of an association's shares counts before any job arrives or ends."""
    jobs = [rated(name, v100=1.0).evolve(account=name, fair_share=0.25) for name in "ab"]
    policy = GavelHierarchical()
    state = run_round(snapshot(jobs, cluster(v100=1)), policy, None).state
    jobs[0] = jobs[0].evolve(fair_share=0.75)
    after = run_round(snapshot(jobs, cluster(v100=1)), policy, state).state
    assert after.data["made_for"]["weights"] == {"a": 1.5, "b": 0.5}


def test_water_filling_raises_jobs_that_can_still_grow():
    """A job that runs only on a crowded type is a bottleneck; the others share the rest equally."""
    jobs = [rated("a", k80=1.0, v100=0.0), *(rated(uid, v100=1.0, k80=0.0) for uid in "bc")]
    jobs.append(rated("d", k80=1.0, v100=0.0))
    found = shares(GavelLas(GavelLasParameters(fill=True)), jobs, cluster(v100=2, k80=1))
    assert found["a"] == found["d"] == {"k80": pytest.approx(0.5, abs=CLOSE)}
    assert found["b"] == found["c"] == {"v100": pytest.approx(1.0, abs=CLOSE)}


@pytest.mark.parametrize(("now_known", "heed", "anew"), [(8.0, True, True), (4.1, True, False), (8.0, False, False)])
def test_shares_are_recomputed_when_a_speed_changes(now_known, heed, anew):
    """As when a job changes its batch size; small changes are noise, and ``heed_speeds`` switches it off."""
    policy = GavelLas(GavelLasParameters(heed_speeds=heed))
    jobs = [rated(uid, v100=4.0, k80=2.0) for uid in "ab"]
    nodes = cluster(v100=1, k80=1)
    first = run_round(snapshot(jobs, nodes), policy, None)
    jobs[0] = rated("a", v100=now_known, k80=2.0)
    second = run_round(snapshot(jobs, nodes, now=60.0), policy, first.state)
    assert (second.state.data["ledger"]["since"] == 60.0) == anew


def test_jobs_without_common_measurements_are_not_paired():
    """Tables of their own have no co-located speeds: each job runs alone."""
    cells = {"v100": {("m", 1): 2.0}}, {"v100": {("m", 1): {("m", 1): 1.9}}}
    jobs = [known_job(uid, "m", table=ThroughputTable(*cells)) for uid in "ab"]
    found = shares(GavelLas(GavelLasParameters()), jobs, cluster(v100=1), sharing=True)
    assert found == {uid: {"v100": pytest.approx(0.5, abs=CLOSE)} for uid in "ab"}


def test_parameters_are_checked():
    """Prices and weights are above zero."""
    with pytest.raises(ValueError, match="greater than 0"):
        GavelHierarchicalParameters(entities={"a": {"weight": 0}})
    with pytest.raises(ValueError, match="greater than 0"):
        GavelParameters(unknown_seconds=0)
    with pytest.raises(ValueError, match="greater than 0"):
        GavelCostParameters(prices={"v100": 0.0})
