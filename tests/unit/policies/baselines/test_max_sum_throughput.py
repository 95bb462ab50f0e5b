from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import OptimizeResult, linprog

from metasched.core.reasons import Code, Reason
from metasched.scheduling.engine import run_round
from metasched.throughput.throughput_table import TableTraining, ThroughputTable
from policies.baselines.max_sum_throughput import MaxSumThroughput
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.policies.baselines.test_isolated import shares, snapshot


def test_gpus_go_where_they_make_the_most_steps():
    """The quick job gets the V100, on which it gains most; the steady one the K80."""
    table = small_table()
    jobs = [known_job("a", "steady", table=table), known_job("b", "quick", table=table)]
    assert shares(MaxSumThroughput(), jobs, cluster(v100=1, k80=1)) == {
        "a": {"v100": 0.0, "k80": 1.0},
        "b": {"v100": 1.0, "k80": 0.0},
    }


def test_jobs_that_are_alike_have_equal_shares():
    """Two quick jobs share the only V100."""
    table = small_table()
    found = shares(MaxSumThroughput(), [known_job(uid, table=table) for uid in "ab"], cluster(v100=1))
    assert found == {"a": {"v100": 0.5}, "b": {"v100": 0.5}}


def test_where_the_solver_gives_up_time_shares_are_equal(monkeypatch):
    """Every job's reason says so, and later rounds use the program again."""
    jobs = [known_job(uid, table=small_table()) for uid in "ab"]
    failed = OptimizeResult(status=4, message="numerical difficulties", x=None)
    with monkeypatch.context() as patched:
        patched.setattr("policies.baselines.max_sum_throughput.linprog", lambda *_, **__: failed)
        result = run_round(snapshot(jobs, cluster(v100=1, k80=1)), MaxSumThroughput(), None)
    degraded = Reason.of(Code.TIME_SHARES_DEGRADED, substitute="equal_shares")
    assert all(degraded in reason.parts for reason in result.reasons.values())
    assert [share for _, share in result.state.data["ledger"]["shares"]] == [{"v100": 0.5, "k80": 0.5}] * 2
    later = run_round(snapshot(jobs[:1], cluster(v100=1, k80=1)), MaxSumThroughput(), result.state)
    assert later.decision.degraded is None


def test_a_job_without_a_time_share_runs_on_remaining_gpus():
    """A slow job starves while fast ones can use the GPUs, and no longer."""
    table = small_table()
    jobs = [known_job("a", "steady", table=table), known_job("b", "quick", table=table)]
    assert run_round(snapshot(jobs, cluster(v100=1)), MaxSumThroughput(), None).targets.keys() == {"b"}
    assert run_round(snapshot(jobs, cluster(v100=2)), MaxSumThroughput(), None).targets.keys() == {"a", "b"}


def test_a_job_of_unknown_speed_counts_as_an_average_one():
    """It precedes a job that is slower than the mean, but not a faster one."""
    table = small_table()
    slow, fast = known_job("slow", "steady", table=table), known_job("fast", "quick", table=table)
    found = shares(MaxSumThroughput(), [slow, fast, known_job("new")], cluster(v100=2))
    assert found == {"slow": {"v100": 0.0}, "fast": {"v100": 1.0}, "new": {"v100": 1.0}}
    assert shares(MaxSumThroughput(), [known_job("new")], cluster(v100=1)) == {"new": {"v100": 1.0}}


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.sampled_from((1, 2))), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_no_valid_shares_make_more_steps(jobs, v100, k80):
    """The sum is that of the linear program over single jobs, and the shares are valid (Eq. 1 to 3)."""
    alone = {
        sheet: {(f"m{i}", gpus): float(row[column]) for i, row in enumerate(jobs) for gpus in (1, 2)}
        for column, sheet in enumerate(("v100", "k80"))
    }
    table = ThroughputTable(alone, {})
    made = [
        known_job(f"j{i}", f"m{i}", gpus, table=table)
        for i, (_, _, gpus) in enumerate(jobs)
    ]  # fmt: skip
    found = shares(MaxSumThroughput(), made, cluster(v100=v100, k80=k80))
    capacity = {"v100": v100, "k80": k80}
    total = 0.0
    used = dict.fromkeys(capacity, 0.0)
    for job in made:
        share = found.get(job.uid, {})
        assert sum(share.values()) <= 1 + 1e-9
        for gpu_type, part in share.items():
            assert 0 <= part <= 1
            used[gpu_type] += part * job.gpus
            total += part * TableTraining(table, job.name, 1.0).known(0).steps_per_second(gpu_type, (job.gpus,))
    assert all(used[gpu_type] <= capacity[gpu_type] + 1e-9 for gpu_type in capacity)
    cells = [
        (i, gpu_type, speed, gpus)
        for i, (*speeds, gpus) in enumerate(jobs)
        for gpu_type, speed in zip(("v100", "k80"), speeds, strict=True)
        if capacity[gpu_type] >= gpus
    ]
    if not cells:
        assert total == 0.0
        return
    rows = [[float(c[0] == i) for c in cells] for i in range(len(jobs))]
    rows += [[float(c[3]) * (c[1] == gpu_type) for c in cells] for gpu_type in capacity]
    limits = [*([1.0] * len(jobs)), *map(float, capacity.values())]
    best = -linprog([-c[2] for c in cells], A_ub=rows, b_ub=limits).fun
    assert total == pytest.approx(best, abs=1e-6)
