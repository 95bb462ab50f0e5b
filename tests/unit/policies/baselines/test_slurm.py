from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Placement, Status
from metasched.core.policy import PolicyState
from metasched.scheduling.engine import run_round
from policies.baselines.slurm import DAY, Slurm, SlurmParameters
from tests.builders import job, nodes, running, snapshot


def slurm(**parameters):
    return Slurm(SlurmParameters(**parameters))


def age_only(**parameters):
    return slurm(fairshare_weight=0.0, size_weight=0.0, **parameters)


def runs(jobs, policy, the_nodes=None, now=0.0, state=None):
    return set(run_round(snapshot(jobs, the_nodes, now), policy, state).targets)


def test_no_running_job_is_stopped():
    """However low the priority of running jobs is."""
    old = running(job("old", 4, submitted=50.0, time_limit_seconds=1e6), "v100-0")
    assert runs([old, job("new", 4, submitted=0.0)], age_only(), now=60.0) == {"old"}


def test_a_job_on_a_draining_node_continues():
    """A draining node ends no run, and moves no job."""
    drained, other = nodes(1)[0], nodes(2)[1]
    drained = replace(drained, accepts=False)
    old = running(job("old", 2), "v100-0")
    targets = run_round(snapshot([old, job("new", 4)], (drained, other)), slurm(), None).targets
    assert targets["old"] == old.placement
    assert targets["new"].nodes == ("v100-1",)


def test_jobs_get_their_requested_gpus_even_if_they_could_use_more():
    """Slurm has no elastic jobs."""
    result = run_round(snapshot([job("a", 2, 1, 4)]), slurm(), None)
    assert result.targets["a"].gpus == 2


def test_the_older_of_two_jobs_starts():
    """Age counts up to the largest age; then submission decides."""
    jobs = [job("young", 4, submitted=100.0), job("aged", 4, submitted=10.0)]
    assert runs(jobs, age_only(), now=200.0) == {"aged"}
    assert runs(jobs, age_only(max_age_seconds=1.0), now=200.0) == {"aged"}


def test_the_larger_of_two_jobs_starts_unless_small_jobs_are_favoured():
    """The size factor is reversed by ``favor_small``."""
    jobs = [job("small", 3), job("zlarge", 4)]
    weights = {"age_weight": 0.0, "fairshare_weight": 0.0}
    assert runs(jobs, slurm(**weights)) == {"zlarge"}
    assert runs(jobs, slurm(**weights, favor_small=True)) == {"small"}


def test_the_user_with_less_past_usage_starts_first():
    """The account's usage counts before the user's own."""
    spent = job("spent", 4, user="ann", account="x", attained={"v100": 5000.0}, ran_seconds=1250.0)
    others = [
        job("same-account", 4, user="bob", account="x", submitted=1.0),
        job("y", 4, user="cy", account="y", submitted=2.0),
    ]
    assert runs([spent, *others], slurm(), now=10.0) == {"y"}
    assert runs([spent, others[0]], slurm(), now=10.0) == {"same-account"}


def test_shares_of_accounts_count_in_fair_share():
    """An account with twice the usage and three times the shares comes first; one without shares comes last."""
    jobs = [
        job(f"{account}{i}", 4, user=account, account=account, submitted=float(i), **used)
        for i, (account, gpu_seconds) in enumerate([("x", 2000.0), ("y", 1000.0)])
        for used in [{"attained": {"v100": gpu_seconds}, "ran_seconds": 250.0}]
    ]
    assert runs(jobs, slurm(), now=10.0) == {"y1"}
    shared = [one.evolve(fair_share=share) for one, share in zip(jobs, (0.75, 0.25), strict=True)]
    assert runs(shared, slurm(), now=10.0) == {"x0"}


def test_usage_counts_half_after_its_half_life():
    """After long enough, small recent usage weighs more than large old usage."""
    policy = slurm(half_life_seconds=100.0)
    before = snapshot(
        [job("a", 4, user="ann", attained={"v100": 6000.0}), job("b", 4, user="bob", attained={"v100": 100.0})]
    )
    state = run_round(before, policy, None).state
    held = {user: amount for _, user, amount in state.data["usage"]}
    assert held == {"ann": 6000.0, "bob": 100.0}
    later = snapshot(
        [job("a", 4, user="ann", attained={"v100": 6000.0}), job("b", 4, user="bob", attained={"v100": 100.0})],
        now=200.0,
    )
    state = run_round(later, policy, state).state
    assert {user: amount for _, user, amount in state.data["usage"]} == {"ann": 1500.0, "bob": 25.0}


def test_a_job_that_ended_between_two_rounds_is_charged_until_the_second():
    """It counts as if it had held its GPUs for all of that time."""
    policy = slurm(half_life_seconds=1e12)
    gone = running(job("gone", 4, user="ann", attained={"v100": 40.0}), "v100-0")
    state = run_round(snapshot([gone], now=10.0), policy, None).state
    state = run_round(snapshot([job("other", 4, user="bob")], now=60.0), policy, state).state
    [(_, user, amount)] = state.data["usage"]
    assert user == "ann"
    assert round(amount) == 40 + 4 * 50


def test_a_short_job_is_backfilled_and_a_long_one_is_not():
    """A backfilled job ends before the time limits of running jobs free the GPUs of the first waiting job."""
    holder = running(job("holder", 2, time_limit_seconds=100.0), "v100-0")
    first = job("first", 4, submitted=1.0, time_limit_seconds=50.0)
    short = job("short", 2, submitted=2.0, time_limit_seconds=40.0)
    long = job("long", 2, submitted=2.0, time_limit_seconds=90.0)
    assert runs([holder, first, short], age_only(), now=50.0) == {"holder", "short"}
    assert runs([holder, first, long], age_only(), now=50.0) == {"holder"}
    assert runs([holder, first, short], age_only(backfill=False), now=50.0) == {"holder"}


def test_a_long_job_is_backfilled_on_gpus_beyond_the_reservation():
    """The reservation needs fewer GPUs than will be free."""
    holder = running(job("holder", 4, time_limit_seconds=100.0), "v100-0")
    first = job("first", 6, submitted=1.0)
    long = [job(f"l{i}", 1, submitted=2.0 + i) for i in range(3)]
    found = runs([holder, first, *long], age_only(), nodes(2), now=50.0)
    assert found == {"holder", "l0", "l1"}


def test_without_time_limits_backfill_delays_no_job():
    """A job without a time limit has the default one, a year."""
    holder = running(job("holder", 2), "v100-0")
    first, other = job("first", 4, submitted=1.0), job("other", 2, submitted=2.0)
    assert runs([holder, first, other], age_only(), now=50.0) == {"holder"}
    limited = other.evolve(time_limit_seconds=600.0)
    assert runs([holder, first, limited], age_only(), now=50.0) == {"holder", "other"}


def test_each_gpu_type_has_a_reservation_of_its_own():
    """A job that waits for one type delays no job of another type, and neither reservation is delayed."""
    both = nodes(1, 4) + nodes(1, 4, "k80")
    holders = [
        running(job("h1", 2, gpu_types=("v100",)), "v100-0"),
        job("first1", 4, submitted=1.0, gpu_types=("v100",)),
        job("k", 2, submitted=2.0, gpu_types=("k80",), time_limit_seconds=100.0),
        job("first2", 4, submitted=3.0, gpu_types=("k80",)),
        job("late", 2, submitted=4.0, gpu_types=("k80",)),
    ]
    assert runs(holders, age_only(), both, now=50.0) == {"h1", "k"}


def test_without_backfill_no_job_overtakes_the_first_on_any_of_its_types():
    """The first waits for two GPUs of one type while one of each type is free."""
    both = nodes(1, 2) + nodes(1, 2, "k80")
    holders = [
        running(job("h1", 1), "v100-0"),
        job("h2", 1).evolve(status=Status.RUNNING, placement=Placement(("k80-0",), 1, "k80"), run=1),
    ]
    line = [job("first", 2, submitted=1.0), job("next", 1, submitted=2.0), job("last", 1, submitted=3.0)]
    assert runs([*holders, *line], age_only(backfill=False), both, now=50.0) == {"h1", "h2"}


def test_reasons_tell_position_and_reservation():
    """They name the job with the reservation."""
    holder = running(job("holder", 2), "v100-0")
    jobs = [holder, job("first", 4, submitted=1.0), job("next", 2, submitted=2.0), job("huge", 64, submitted=3.0)]
    reasons = run_round(snapshot(jobs, now=50.0), age_only(), None).reasons
    assert reason_words.words(reasons["first"]) == "1st of 3 by priority; needs 4 GPUs; 2 are free"
    assert (
        reason_words.words(reasons["next"]) == "2nd of 3 by priority; waits behind job first, which must not be delayed"
    )
    assert "could not give it 64 GPUs" in reason_words.words(reasons["huge"])


def test_the_state_survives_json_and_a_damaged_state_is_dropped():
    """A state that was written and read gives the same decision; a damaged one counts as none."""
    jobs = [job("a", 4, user="ann", attained={"v100": 99.0}), job("b", 4, user="bob")]
    policy = slurm()
    state = run_round(snapshot(jobs), policy, None).state
    again = PolicyState(state.version, json.loads(json.dumps(dict(state.data))))
    assert run_round(snapshot(jobs, now=DAY), policy, state) == run_round(snapshot(jobs, now=DAY), policy, again)
    for broken in (PolicyState(99, {}), PolicyState(1, {"at": "x"}), PolicyState(1, {})):
        assert runs(jobs, policy, state=broken) == {"b"}


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 200)), min_size=2, max_size=12))
def test_backfill_never_delays_the_first_waiting_job(wanted):
    """With jobs that use up their time limits, it starts when its reservation says."""
    the_nodes, policy = nodes(2), age_only(max_age_seconds=1e9)
    jobs = {
        f"j{i:02}": job(f"j{i:02}", g, submitted=i * 1e-3, time_limit_seconds=float(s))
        for i, (g, s) in enumerate(wanted)
    }
    with_it, without = policy, age_only(max_age_seconds=1e9, backfill=False)
    assert _first_start(dict(jobs), with_it, the_nodes) <= _first_start(dict(jobs), without, the_nodes)


def _first_start(waiting, policy, the_nodes):
    """Unix seconds at which the first job that had to wait starts."""
    live, now, first = {}, 1.0, None
    uneven = {"uneven": True}
    while True:
        result = run_round(snapshot([*live.values(), *waiting.values()], the_nodes, now, **uneven), policy, None)
        for uid, place in result.targets.items():
            if uid in waiting:
                live[uid] = running(waiting.pop(uid), "v100-0", since=now).evolve(placement=place)
        if first is None:
            if not waiting:
                return 0.0
            first = min(waiting)
        if first in live:
            return live[first].run_started
        now = min(one.run_started + one.time_limit_seconds for one in live.values())
        live = {uid: one for uid, one in live.items() if one.run_started + one.time_limit_seconds > now}
