from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from metasched.core import reason_words
from metasched.scheduling.engine import run_round
from metasched.throughput.throughput_table import ThroughputTable
from policies.baselines.gandiva import Gandiva, GandivaParameters
from policies.baselines.gavel_fifo import GavelFifo, GavelFifoParameters
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.policies.baselines.test_isolated import shares, snapshot


def test_while_all_jobs_fit_no_gpus_are_shared():
    """Each job has an equal time share alone."""
    table = small_table()
    jobs = [known_job(uid, table=table) for uid in "ab"]
    assert shares(Gandiva(), jobs, cluster(v100=2), sharing=True).keys() == {"a", "b"}


def test_a_job_that_no_nodes_can_run_causes_no_pairs():
    """Two jobs of one GPU run alone on four GPUs, although all three request more than the cluster has."""
    table = small_table()
    jobs = [known_job("a", table=table), known_job("b", table=table), known_job("huge", gpus=8, table=table)]
    result = run_round(snapshot(jobs, cluster(v100=4), sharing=True), Gandiva(), None)
    assert result.state.data["memory"]["pairs"] == []
    assert {uid: place.gpus for uid, place in result.targets.items()} == {"a": 1, "b": 1}
    assert not result.co_runners


def test_jobs_are_paired_when_their_own_gpu_types_are_full():
    """Idle GPUs of a type that neither job accepts do not count."""
    jobs = [known_job(uid, gpu_types=("v100",)) for uid in "ab"]
    assert shares(Gandiva(), jobs, cluster(v100=1, k80=4), sharing=True) == {"a+b": {"v100": 1.0}}


def test_jobs_with_equal_numbers_of_gpus_are_paired_when_not_all_fit():
    """Pairs name the job that was submitted first; a job without a partner of its size stays alone."""
    table = small_table()
    jobs = [known_job("a", table=table), known_job("b", gpus=2, table=table), known_job("c", table=table)]
    found = shares(Gandiva(GandivaParameters(seed=1)), jobs, cluster(v100=2), sharing=True)
    assert found in ({"a+c": {"v100": 1.0}, "b": {"v100": 0.5}}, {uid: pytest.approx({"v100": 2 / 3}) for uid in "ac"})
    by_seed = [shares(Gandiva(GandivaParameters(seed=s)), jobs, cluster(v100=2), sharing=True) for s in range(20)]
    assert {"a+c": {"v100": 1.0}, "b": {"v100": 0.5}} in by_seed


def test_a_pair_runs_on_the_same_gpus():
    """Both are placed together, and the reason of each names the other."""
    table = small_table()
    jobs = [known_job("a", table=table), known_job("b", "steady", table=table)]
    result = run_round(snapshot(jobs, cluster(v100=1), sharing=True), Gandiva(), None)
    assert result.targets["a"] == result.targets["b"]
    assert result.co_runners == {"a": "b", "b": "a"}
    assert (
        reason_words.words(result.reasons["b"])
        == "its turn on v100: its share of time is 100% of v100; it runs on the same GPUs as job a"
    )


def test_a_cluster_without_gpu_sharing_gets_no_pairs():
    """Every job then has an equal time share alone."""
    table = small_table()
    jobs = [known_job(uid, table=table) for uid in "ab"]
    assert shares(Gandiva(), jobs, cluster(v100=1)) == {"a": {"v100": 0.5}, "b": {"v100": 0.5}}


def test_jobs_without_a_type_in_common_are_not_paired():
    """Nor does a pair without a common type stay together; types that one of the two alone can use do not matter."""
    jobs = [known_job("a", gpu_types=("v100",)), known_job("b", gpu_types=("k80",)), known_job("c")]
    results = [
        run_round(snapshot(jobs, cluster(v100=1, k80=1), sharing=True), Gandiva(GandivaParameters(seed=seed)), None)
        for seed in range(10)
    ]
    assert {str(result.state.data["memory"]["pairs"]) for result in results} <= {"[]", "[['a', 'c']]", "[['b', 'c']]"}
    state = next(result.state for result in results if result.state.data["memory"]["pairs"] == [["a", "c"]])
    for types, pairs in (((), [["a", "c"]]), (("p100",), [])):
        later = [*jobs[:2], jobs[2].evolve(gpu_types=types), known_job("d", gpus=2)]
        view = snapshot(later, cluster(v100=1, k80=1, p100=1), now=1.0, sharing=True)
        assert run_round(view, Gandiva(), state).state.data["memory"]["pairs"] == pairs


def test_a_job_whose_co_runner_ended_has_an_interim_share():
    """New time shares come into force only some rounds later."""
    policy = Gandiva(GandivaParameters(recompute_rounds=10))
    jobs = [known_job(uid) for uid in "abc"]
    state = None
    for number in range(12):
        view = replace(snapshot(jobs, cluster(v100=1), now=60.0 * number, sharing=True), round=number)
        state = run_round(view, policy, state).state
    (pair,) = state.data["memory"]["pairs"]
    rest = [job for job in jobs if job.uid != pair[0]]
    state = run_round(replace(view, jobs=tuple(rest), now=720.0, round=12), policy, state).state
    assert [[pair[1]], {"v100": 0.5}] in state.data["ledger"]["shares"]


def of_speed(uids, colocated):
    """Jobs of speed 10 alone, and of this speed together."""
    table = ThroughputTable({"v100": {("m", 1): 10.0}}, {"v100": {("m", 1): {("m", 1): colocated}}})
    return [known_job(uid, "m", table=table) for uid in uids]


def trial(colocated, least_gain=1.0, seed=2, **more):
    """Pairs of four jobs, and pairs after a fifth arrived, with this co-located speed where the isolated one is 10."""
    policy = Gandiva(GandivaParameters(seed=seed, least_gain=least_gain, **more))
    first = run_round(snapshot(of_speed("abcd", colocated), cluster(v100=1), sharing=True), policy, None)
    jobs = of_speed("abcde", colocated)
    second = run_round(snapshot(jobs, cluster(v100=1), now=1.0, sharing=True), policy, first.state)
    return [[tuple(pair) for pair in result.state.data["memory"]["pairs"]] for result in (first, second)]


def test_pairs_with_the_least_gain_stay_together():
    """A pair as fast as time-slicing stays together, and so does one that reaches ``least_gain``."""
    for seed in range(5):
        assert all(before == after for before, after in (trial(5.0, seed=seed), trial(4.0, 0.8, seed=seed)))


def test_pairs_below_the_least_gain_are_separated():
    """Their jobs are paired with others at random."""
    assert any(before != after for before, after in (trial(4.0, seed=seed) for seed in range(5)))


def test_jobs_that_cannot_run_together_are_not_paired():
    """Such a pair would never run; the published algorithm makes it, and then separates it."""
    assert all(trial(0.0, 0.0, seed=seed) == [[], []] for seed in range(5))
    published = [trial(0.0, 0.0, seed=seed, as_published=True) for seed in range(5)]
    assert all(before for before, _ in published)
    assert any(before != after for before, after in published)


def test_a_pair_is_separated_once_it_is_known_that_it_cannot_run_together():
    """Even if no gain is asked for, and if pairs are time-sliced."""
    for time_slices in (False, True):
        policy = Gandiva(GandivaParameters(least_gain=0.0, time_slices=time_slices))
        first = run_round(snapshot(of_speed("ab", 5.0), cluster(v100=1), sharing=True), policy, None)
        second = run_round(snapshot(of_speed("ab", 0.0), cluster(v100=1), 1.0, sharing=True), policy, first.state)
        assert [result.state.data["memory"]["pairs"] for result in (first, second)] == [[["a", "b"]], []]


def test_a_pair_has_time_on_the_types_where_it_runs_together():
    """On the other type the jobs cannot share GPUs."""
    speeds = {kind: {("m", 1): 10.0} for kind in ("v100", "k80")}
    together = {"v100": {("m", 1): {("m", 1): 0.0}}, "k80": {("m", 1): {("m", 1): 6.0}}}
    table = ThroughputTable(speeds, together)
    jobs = [known_job(uid, "m", table=table) for uid in "abcd"]
    found = shares(Gandiva(), jobs, cluster(v100=1, k80=1), sharing=True)
    assert {uids: share.keys() for uids, share in found.items() if "+" in uids}
    assert all(share.keys() == {"k80"} for uids, share in found.items() if "+" in uids)


def test_jobs_that_can_run_nowhere_are_not_drawn_as_partners():
    """The two jobs that can run are paired for every seed."""
    table = small_table()
    jobs = [known_job(uid, table=table) for uid in "ab"]
    jobs += [known_job(uid, gpu_types=("p100",), table=table) for uid in "cdefg"]
    for seed in range(10):
        found = shares(Gandiva(GandivaParameters(seed=seed)), jobs, cluster(v100=1), sharing=True)
        assert {uids for uids, share in found.items() if share} == {"a+b"}


def test_a_pair_of_unknown_speed_stays_together():
    """Jobs of unknown speed are paired, too."""
    jobs = [known_job(uid) for uid in "ab"]
    first = run_round(snapshot(jobs, cluster(v100=1), sharing=True), Gandiva(), None)
    jobs.append(known_job("c"))
    second = run_round(snapshot(jobs, cluster(v100=1), now=1.0, sharing=True), Gandiva(), first.state)
    assert second.state.data["memory"]["pairs"] == first.state.data["memory"]["pairs"] == [["a", "b"]]


@pytest.mark.parametrize(("colocated", "since"), [(5.0, 0.0), (5.2, 0.0), (1.0, 60.0)])
def test_shares_are_recomputed_when_the_co_located_speed_of_a_pair_changes(colocated, since):
    """A change of more than 5 % counts, even if no job arrives or ends."""
    results = []
    for speed in (5.0, colocated):
        table = ThroughputTable({"v100": {("m", 1): 10.0}}, {"v100": {("m", 1): {("m", 1): speed}}})
        jobs = [known_job(uid, "m", table=table) for uid in "ab"]
        state = results[-1].state if results else None
        results.append(run_round(snapshot(jobs, cluster(v100=1), 60.0 * len(results), sharing=True), Gandiva(), state))
    assert results[-1].state.data["ledger"]["since"] == since


def fifo(jobs, nodes, **parameters):
    return shares(GavelFifo(GavelFifoParameters(**parameters)), jobs, nodes)


def test_aware_fifo_gives_each_job_its_fastest_type_with_enough_gpus():
    """Jobs are served in the order of arrival; the first that finds no type waits, and no job overtakes it."""
    table = small_table()
    jobs = [known_job(uid, "quick", table=table) for uid in "abc"]
    assert fifo(jobs, cluster(v100=1, k80=1)) == {"a": {"v100": 1.0}, "b": {"k80": 1.0}}
    jobs = [known_job("a", table=table), known_job("b", gpus=2, table=table), known_job("c", table=table)]
    assert fifo(jobs, cluster(v100=2)) == {"a": {"v100": 1.0}}


def test_a_fifo_job_that_cannot_run_on_the_free_type_is_passed_over():
    """It waits for its own type, and the next job in the queue may have the other."""
    table = small_table()
    jobs = [
        known_job("a", "quick", table=table),
        known_job("b", "steady", 2, table=table),
        known_job("c", "quick", table=table),
    ]
    assert fifo(jobs, cluster(v100=1, k80=2)) == {"a": {"v100": 1.0}, "c": {"k80": 1.0}}


def test_a_fifo_job_without_a_type_waits_even_if_gpus_are_idle():
    """Remaining GPUs are not filled."""
    table = small_table()
    jobs = [known_job("a", table=table), known_job("b", gpus=2, table=table), known_job("c", table=table)]
    result = run_round(snapshot(jobs, cluster(v100=2)), GavelFifo(), None)
    assert result.targets.keys() == {"a"}
    assert reason_words.words(result.reasons["c"]) == "not its turn: it has no share of time now"


@pytest.mark.parametrize("more", [{}, {"aware": False}, {"aware": False, "as_published": True}])
def test_a_fifo_job_that_no_nodes_can_hold_delays_no_other_job(more):
    """The next jobs in the queue are served."""
    jobs = [known_job("huge", gpus=8), known_job("a")]
    assert fifo(jobs, cluster(v100=1), **more) == {"a": {"v100": 1.0}}


def test_agnostic_fifo_jobs_keep_the_type_that_was_drawn():
    """The type is drawn by the seed among those with enough GPUs, and remains when other jobs arrive or end."""
    jobs = [known_job(uid) for uid in "abc"]
    policy = GavelFifo(GavelFifoParameters(aware=False, seed=4))
    nodes = cluster(v100=1, k80=1, p100=1)
    first = run_round(snapshot(jobs, nodes), policy, None)
    assert sorted(place.gpu_type for place in first.targets.values()) == ["k80", "p100", "v100"]
    second = run_round(snapshot([*jobs[1:], known_job("d")], nodes, now=1.0), policy, first.state)
    before, after = first.state.data["memory"]["taken"], second.state.data["memory"]["taken"]
    assert after == {"b": before["b"], "c": before["c"], "d": before["a"]}
    seeds = {str(fifo(jobs, nodes, aware=False, seed=seed)) for seed in range(10)}
    assert len(seeds) > 1


def test_the_published_fifo_gives_a_type_to_too_many_jobs():
    """The last type by name is given while a random one is removed from the list; the parameter needs aware = false."""
    jobs = [known_job(uid) for uid in "abcdef"]
    nodes = cluster(v100=1, p100=1, k80=1)
    found = [fifo(jobs, nodes, aware=False, as_published=True, seed=seed) for seed in range(10)]
    assert any(sum(share == {"v100": 1.0} for share in one.values()) > 1 for one in found)
    with pytest.raises(ValidationError, match="aware = false"):
        GavelFifoParameters(as_published=True)


def test_the_published_fifo_drops_types_that_left_the_cluster():
    """Jobs that had such a type, running or ended, and their successors are served on other types."""
    jobs = [known_job(uid) for uid in "abcd"]
    policy = GavelFifo(GavelFifoParameters(aware=False, as_published=True))
    first = run_round(snapshot(jobs, cluster(v100=2, k80=2)), policy, None)
    assert "v100" in first.state.data["memory"]["taken"].values()
    for live in (jobs, jobs[2:]):
        second = run_round(snapshot(live, cluster(k80=4), now=1.0), policy, first.state)
        assert second.targets.keys() == {job.uid for job in live}
