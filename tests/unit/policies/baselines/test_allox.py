import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Snapshot
from metasched.scheduling.engine import run_round
from metasched.simulator.records import Settings
from metasched.simulator.simulation import simulate
from metasched.time_shares.allocation_inputs import allocation_inputs
from policies.baselines import allox
from policies.baselines.allox import IMPOSSIBLE, AlloX, AlloXParameters, match
from tests.unit.gavel_tables import cluster, known_job, small_table, workload
from tests.unit.rounds import ROUND, Rounds
from tests.unit.strategies import snapshots

TABLE = small_table()


def started(policy, jobs, nodes):
    """By uid of the jobs with all of the time, their GPU type."""
    result = run_round(Snapshot(0.0, 1, ROUND, nodes, tuple(jobs)), policy, None)
    return {
        "+".join(combination): max(share, key=share.get) for combination, share in result.state.data["ledger"]["shares"]
    }


def known(uid, steps, model="quick", gpus=1, **more):
    """A job of known remaining steps."""
    return known_job(uid, model, gpus, table=TABLE, total_steps=steps, **more)


def cost(seconds, widths, positions):
    """The sum that the matching minimises."""
    return sum(seconds[i, j] * (1 + (k - 1) * widths[i]) for i, (j, k) in enumerate(positions))


def test_the_shortest_job_starts_first():
    """On one GPU, the shortest job first has the least sum of completion times."""
    jobs = [known("a", 3000), known("b", 1000), known("c", 2000)]
    assert started(AlloX(), jobs, cluster(v100=1)) == {"b": "v100"}


def test_jobs_start_where_their_order_costs_least():
    """`quick` loses ten times its speed on a K80, `steady` half of it: so they get a GPU each."""
    jobs = [known("q", 1000), known("s", 400, "steady")]
    assert started(AlloX(), jobs, cluster(v100=1, k80=1)) == {"q": "v100", "s": "k80"}


def test_a_started_job_runs_to_its_end():
    """A shorter job that arrives later waits for the end of the running one."""
    jobs = {0: [known("a", 10**6)], 1: [known("b", 10)]}
    rounds = Rounds(AlloX(), cluster(v100=1), jobs).run(4)
    assert [set(targets) for targets in rounds.history] == [{"a"}] * 4


def test_a_job_that_started_on_a_slow_type_moves_when_a_fast_one_gets_free():
    """`b` comes a second after `a`; it needs 10 h on the V100, 100 h on the K80, and ends after 10.9 h."""
    work = workload(TABLE, ("a", "quick", 1, 36_000, 0.0), ("b", "quick", 1, 360_000, 1.0))
    given = Settings(round_seconds=360.0, early_rounds=False, restart_seconds=60.0)
    outcome = simulate(work, cluster(v100=1, k80=1), AlloX(), given)
    assert {job.uid: round(job.jct / 3600, 1) for job in outcome.jobs} == {"a": 1.0, "b": 10.9}
    assert {job.uid: job.preemptions for job in outcome.jobs} == {"a": 0, "b": 1}


@pytest.mark.parametrize(("restart", "ends_on"), [(0.0, "v100"), (890.0, "v100"), (910.0, "k80"), (None, "v100")])
def test_a_move_gains_more_than_its_restart_costs(restart, ends_on):
    """1000 s remain on the K80, and 100 s on the V100; 60 s are assumed where no restart was measured."""
    one = known("a", 1000).evolve(restart_seconds=restart)
    rounds = Rounds(AlloX(), cluster(k80=1), {0: [one]}).run(1)
    rounds.nodes = cluster(v100=1, k80=1)
    rounds.run(1)
    assert rounds.history[-1]["a"].gpu_type == ends_on


def test_a_started_job_moves_only_by_known_times():
    """The times of others, which stand in for unknown ones in the matching, are no reason for a restart."""
    rounds = Rounds(AlloX(), cluster(k80=1), {0: [known_job("a")], 1: [known("b", 10)]}).run(1)
    rounds.nodes = cluster(v100=2, k80=1)
    rounds.run(3)
    assert [targets["a"].gpu_type for targets in rounds.history] == ["k80"] * 4


def test_waiting_jobs_are_matched_with_the_gpus_of_started_jobs():
    """Of two GPUs that get free, the V100 goes to the job that has the most of it, though the other is shorter."""
    jobs = {0: [known("one", 10**6), known("two", 10**6, "steady")], 1: [known("q", 2000), known("s", 600, "steady")]}
    rounds = Rounds(AlloX(), cluster(v100=1, k80=1), jobs, {"one": 2 * ROUND, "two": 2 * ROUND}).run(3)
    assert {uid: place.gpu_type for uid, place in rounds.history[2].items()} == {"q": "v100", "s": "k80"}


def memory(rounds, key):
    """By uid, the GPU types of started or backfilled jobs in a simulator's last decision."""
    return rounds.state.data["memory"][key]


def test_a_job_waits_for_a_fast_gpu_and_is_backfilled_in_the_interim():
    """`b` ends earlier after `a` on the V100 than on the K80, where it runs until then without having started."""
    jobs = {0: [known("a", 1000)], 1: [known("b", 10**5)]}
    rounds = Rounds(AlloX(), cluster(v100=1, k80=1), jobs, {"a": 3 * ROUND}).run(3)
    assert (memory(rounds, "started"), memory(rounds, "backfilled")) == ({"a": "v100"}, {"b": "k80"})
    rounds.run(1)
    assert [targets["b"].gpu_type for targets in rounds.history if "b" in targets] == ["k80", "k80", "v100"]
    assert (memory(rounds, "started"), memory(rounds, "backfilled")) == ({"b": "v100"}, {})


def test_a_backfilled_job_is_preempted_when_a_job_starts_there():
    """`short` arrives while `b` is backfilled on the K80; it would wait too long for the V100."""
    jobs = {0: [known("a", 10**4)], 1: [known("b", 10**5)], 2: [known("short", 10)]}
    rounds = Rounds(AlloX(), cluster(v100=1, k80=1), jobs).run(3)
    assert [{uid: place.gpu_type for uid, place in targets.items()} for targets in rounds.history[1:]] == [
        {"a": "v100", "b": "k80"},
        {"a": "v100", "short": "k80"},
    ]


def test_a_started_job_whose_declared_steps_are_contradicted_waits_again():
    """The job with known steps starts in its place; a job that never declared its steps keeps its GPU."""
    rounds = Rounds(AlloX(), cluster(v100=1), {0: [known("liar", 2)], 1: [known("honest", 1000)]}).run(2)
    assert rounds.history[1].keys() == {"liar"}
    rounds.jobs["liar"] = rounds.jobs["liar"].evolve(total_steps=None)
    rounds.run(1)
    assert rounds.history[2].keys() == {"honest"}
    rounds = Rounds(AlloX(), cluster(v100=1), {0: [known_job("silent")], 1: [known("honest", 1000)]}).run(3)
    assert rounds.history[2].keys() == {"silent"}


@pytest.mark.parametrize(("factor", "starts"), [(1.0, set()), (3.0, {"b"})])
def test_the_wait_factor_makes_jobs_prefer_free_gpus(factor, starts):
    """`b` needs 1000 s on the K80, and 100 s on the V100, which is busy for 400 s."""
    jobs = {0: [known("a", 4000)], 1: [known("b", 1000)]}
    rounds = Rounds(AlloX(AlloXParameters(wait_factor=factor)), cluster(v100=1, k80=1), jobs).run(2)
    assert memory(rounds, "started").keys() == {"a"} | starts


def test_of_many_waiting_jobs_the_shortest_that_fit_are_backfilled(monkeypatch):
    """A matching of the shortest jobs alone chooses the same jobs; jobs that fit nowhere are not among them."""
    jobs = [known("long", 10**6), *(known(f"j{i:02}", 1000 + i, "steady") for i in range(40))]
    inputs = allocation_inputs(Snapshot(0.0, 1, ROUND, cluster(v100=1, k80=1), tuple(jobs)))
    assert allox._backfilled(inputs, jobs, {"long": "v100"}, {}) == {"j00": "k80"}
    monkeypatch.setattr(allox, "BACKFILL_MATCHED", 2)
    monkeypatch.setattr(allox, "BACKFILL_PER_GPU", 1)
    matched = []
    monkeypatch.setattr(allox, "match", lambda seconds, *more: matched.append(len(seconds)) or match(seconds, *more))
    assert allox._backfilled(inputs, jobs, {"long": "v100"}, {}) == {"j00": "k80"}
    assert matched == [2]


def test_of_jobs_that_cost_the_same_in_either_order_the_first_submitted_starts():
    """Each of two jobs is the last on one of two V100s, of which one is free."""
    jobs = {0: [known("a", 500)], 1: [known("first", 3000), known("second", 1000)]}
    rounds = Rounds(AlloX(AlloXParameters(wait_factor=1)), cluster(v100=2, k80=1), jobs).run(2)
    assert memory(rounds, "started") == {"a": "v100", "first": "v100"}


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_started_job_is_never_stopped_to_wait(data):
    """It holds GPUs in every round until its end, whichever jobs come, on types whose speed increases."""
    table = TABLE
    arrivals: dict[int, list] = {}
    for number in range(data.draw(st.integers(1, 10))):
        model, steps = data.draw(st.sampled_from(("quick", "steady"))), data.draw(st.integers(10**2, 10**6))
        one = known_job(f"j{number}", model, 1, table=table, total_steps=steps)
        arrivals.setdefault(data.draw(st.integers(0, 8)), []).append(one)
    work = {job.uid: data.draw(st.integers(1, 6)) * ROUND for jobs in arrivals.values() for job in jobs}
    rounds = Rounds(AlloX(), cluster(v100=data.draw(st.integers(1, 2)), k80=2), arrivals, work)
    before: dict[str, str] = {}
    while len(rounds.history) < 9 or rounds.jobs:
        rounds.run(1)
        held, started = rounds.history[-1], memory(rounds, "started")
        present = {uid: held[uid].gpu_type for uid in started}
        assert present == started
        for uid, gpu_type in before.items():
            if uid in rounds.jobs or rounds.finished[uid] == len(rounds.history) - 1:
                assert (gpu_type, present[uid]) in {("k80", "k80"), ("k80", "v100"), ("v100", "v100")}
        before = present
    assert rounds.finished.keys() == work.keys()


def test_with_a_small_alpha_only_the_first_submitted_jobs_are_matched():
    """So long jobs do not starve: of four on one GPU, the first half is matched."""
    jobs = [
        known(uid, steps, submitted=at) for at, (uid, steps) in enumerate(zip("abcd", (900, 800, 20, 10), strict=True))
    ]
    assert started(AlloX(AlloXParameters(alpha=0.5)), jobs, cluster(v100=1)) == {"b": "v100"}
    assert started(AlloX(), jobs, cluster(v100=1)) == {"d": "v100"}


def test_a_gang_starts_whole_and_is_not_overtaken():
    """It is the first by work; the next job does not take a GPU that the gang waits for."""
    jobs = [known("a", 16, gpus=2), known("b", 10_000), known("c", 10_000, "steady")]
    assert started(AlloX(), jobs, cluster(v100=2)) == {"a": "v100"}


def test_a_job_of_unknown_remaining_time_counts_as_an_average_one():
    """It comes between a short and a long one."""
    jobs = [known("long", 5000), known_job("unknown"), known("short", 10)]
    assert list(started(AlloX(), jobs, cluster(v100=2))) == ["unknown", "short"]


def test_a_job_of_unknown_remaining_time_has_its_speeds():
    """`quick` loses ten times its speed on a K80, `steady` half of it."""
    jobs = [known_job("s", "steady", table=TABLE), known_job("q", "quick", table=TABLE), known("k", 10)]
    for two in itertools.permutations(jobs[:2]):
        assert started(AlloX(), two, cluster(v100=1, k80=1)) == {"q": "v100", "s": "k80"}
    assert started(AlloX(), jobs, cluster(v100=2, k80=1)) == {"q": "v100", "k": "v100", "s": "k80"}


@pytest.mark.parametrize(("expected", "attained", "first"), [(5.0, 0.0, "u"), (5000.0, 0.0, "k"), (5.0, 9.0, "k")])
def test_a_job_of_unknown_remaining_time_takes_as_long_as_similar_jobs_did(expected, attained, first):
    """A job that has had more than they has no such time, and counts as an average one."""
    unknown = known_job("u", table=TABLE).evolve(expected_service=expected, attained={"v100": attained})
    others = [known("k", 1000), known("long", 10**6)]
    assert started(AlloX(), [unknown, *others], cluster(v100=1)) == {first: "v100"}


def test_the_reason_tells_the_time_share():
    """As words."""
    jobs = (known("a", 10), known("b", 100))
    result = run_round(Snapshot(0.0, 1, ROUND, cluster(v100=1), jobs), AlloX(), None)
    assert "100% of v100" in reason_words.words(result.reasons["a"])
    assert "not its turn" in reason_words.words(result.reasons["b"])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_matching_is_the_cheapest(data):
    """No assignment of jobs to positions has a lower sum, and no position has more jobs than there are machines."""
    machines = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    jobs = data.draw(st.integers(1, 3))
    second = st.integers(1, 50).map(float) | st.just(IMPOSSIBLE)
    seconds = np.array(data.draw(st.lists(st.lists(second, min_size=len(machines), max_size=len(machines)),
                                          min_size=jobs, max_size=jobs)))  # fmt: skip
    widths = np.array(data.draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=jobs, max_size=jobs)))
    found = match(seconds, widths, machines)
    assert all(sum(1 for other in found if other == one) <= machines[one[0]] for one in found)
    slots = [(j, k) for j, count in enumerate(machines) for k in range(1, jobs + 1) for _ in range(count)]
    least = min(cost(seconds, widths, positions) for positions in itertools.permutations(slots, jobs))
    assert cost(seconds, widths, found) == pytest.approx(least)


def test_as_published_a_gang_takes_one_machine_and_a_part_of_the_time():
    """Four jobs on four GPUs start at once, whatever their width; a gang of two has half of the time."""
    jobs = [known("a", 100, gpus=2), *(known(uid, 100) for uid in "bcd")]
    result = run_round(
        Snapshot(0.0, 1, ROUND, cluster(v100=4), tuple(jobs)), AlloX(AlloXParameters(as_published=True)), None
    )
    found = {combination[0]: share["v100"] for combination, share in result.state.data["ledger"]["shares"]}
    assert found == {"a": 0.5, "b": 1.0, "c": 1.0, "d": 1.0}


@settings(deadline=None, max_examples=40)
@given(snapshots(), st.booleans())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(view, as_published):
    """The decision keeps the contract, the state is JSON, and the same input gives the same answer."""
    policy = AlloX(AlloXParameters(as_published=as_published))
    first = run_round(view, policy, None)
    assert json.loads(json.dumps(dict(first.state.data))) == first.state.data
    assert run_round(view, policy, first.state) == run_round(view, policy, first.state)


@pytest.mark.parametrize("seed", [1, 2, 942])  # with 942, paths of equal costs formed a circle
def test_durations_over_many_orders_of_magnitude_are_matched(seed):
    """Every job has a position, and no position has more jobs than the type has machines."""
    rng = np.random.default_rng(seed)
    size, types = int(rng.integers(2, 25)), int(rng.integers(2, 4))
    seconds = 10 ** rng.uniform(-2, 6, (size, types))
    seconds[rng.random((size, types)) < 0.3] = IMPOSSIBLE
    widths, machines = rng.choice([0.3, 1, 2, 5], size), [int(count) for count in rng.integers(1, 4, types)]
    found = match(seconds, widths, machines)
    assert len(found) == size
    assert all(found.count((j, k)) <= machines[j] for j, k in found)
