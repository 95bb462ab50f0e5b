"""The amounts that are left of quotas."""

from __future__ import annotations

import math

from metasched.capacity.quota_budget import QuotaBudget, net_of
from metasched.core.model import Placement, Quota
from tests.builders import job

ALL = Quota("all", frozenset("abc"), 5)
V100 = Quota("v100", frozenset("ab"), 2, gpu_type="v100")
JOBS = Quota("jobs", frozenset("bc"), 1, of_jobs=True)


def test_a_charge_counts_against_every_quota_of_the_job_and_its_gpu_type():
    """A refund undoes it."""
    budget = QuotaBudget([ALL, V100, JOBS])
    budget.charge(["b"], 2, ["v100"])
    assert budget.left == [3, 0, 0]
    budget.charge(["a"], 1, ["k80"])
    assert budget.left == [2, 0, 0]
    budget.refund(["b"], 2, ["v100"])
    assert budget.left == [4, 2, 1]


def test_the_most_gpus_are_the_least_that_any_quota_leaves():
    """A quota of jobs that is used up leaves less than nothing, a job without quotas has no limit."""
    budget = QuotaBudget([ALL, V100, JOBS])
    assert budget.most_gpus("a", ["v100"]) == (2, 1)
    assert budget.most_gpus("a", ["k80"]) == (5, 0)
    assert budget.most_gpus("d", ["v100"]) == (math.inf, -1)
    budget.charge(["c"], 0, [None])
    assert budget.most_gpus("b", ["k80"])[0] < 0


def test_jobs_are_allowed_gpus_only_if_all_of_them_are():
    """Two jobs of one quota use it up together."""
    budget = QuotaBudget([V100])
    assert budget.allows(["a"], 2, "v100")
    assert not budget.allows(["a", "b"], 2, "v100")
    assert budget.allows(["a", "b"], 2, "k80")
    assert budget.allows(["a", "d"], 2, "v100")
    assert QuotaBudget([JOBS]).allows(["a", "b"], 7, "v100")
    assert not QuotaBudget([JOBS]).allows(["b", "c"], 1, "v100")


def test_quotas_are_net_of_the_use_by_running_jobs():
    """Waiting jobs use nothing, and more than the quota may be used."""
    runs = job("a", 6, high=6, placement=Placement(("n1",), 6, "v100"))
    assert [quota.left for quota in net_of([ALL, V100, JOBS], [runs, job("b")])] == [-1, -4, 1]
