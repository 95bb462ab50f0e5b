"""What a user gains by lies in the tags of jobs, under each policy, with and without metasched's checks.

    python -m contrib.benchmarks.liars [--only POLICY ...] [--seeds N] [--json]

One of four users lies in all tags: ``total_steps=2``, or ``preempt=no``. The gain is the part of the mean completion
time that the lie saves the user; the loss is what it adds to the others'. The checks are those of the daemon: declared
steps that the job has passed count as not known, and a limit on the GPUs of jobs that cannot be preempted.
"""

from __future__ import annotations

import enum
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contrib.benchmarks import common
from metasched.core.declared_work import work_contradiction
from metasched.core.model import Decision, Node, Preempt, Quota, Snapshot
from metasched.core.policy import Policy, PolicyState, installed_policies
from metasched.simulator.records import InitialState, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.linear_scaling import LinearTraining

GPUS = 4
USERS = 4
JOBS_OF_USER = 4
HOURS = (0.25, 0.5, 1.0, 2.0, 3.0)
LIMIT = 1
"""GPUs that one user's jobs with preempt=no may hold under the limit."""
POLICIES = ("fifo", "las", "srtf", "srsf", "gandiva_fair", "max_sum_throughput", "gavel_las", "ares")


class Lie(enum.Enum):
    """What the liar writes into all tags."""

    NONE = "nothing"
    STEPS = "total_steps=2"
    PREEMPT = "preempt=no"


class Checked(Policy):
    """A wrapper that shows its policy what the daemon would: declared steps only where nothing contradicts them."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters)
        self.policy = policy
        self.name = policy.name  # type: ignore[misc]

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """The initial state of the wrapped policy."""
        return self.policy.initial_state(snapshot)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The decision of the wrapped policy without the contradicted declarations."""
        jobs = tuple(job if work_contradiction(job) is None else job.evolve(total_steps=None) for job in snapshot.jobs)
        return self.policy.decide(replace(snapshot, jobs=jobs), state)


def completion_times(name: str, lie: Lie, seed: int, *, checked: bool) -> tuple[float, float]:
    """The mean seconds from submission to completion of the liar's jobs, and of the others'."""
    rng = random.Random(seed)  # noqa: S311  no secret
    submissions = []
    arrivals = sorted(rng.uniform(0.0, 3600.0) for _ in range(USERS * JOBS_OF_USER))
    for number, at in enumerate(arrivals):
        user, total = f"user{number % USERS}", 3600.0 * rng.choice(HOURS)
        job = trace_job(f"{number:03}", "job", at, 1).evolve(user=user)
        lies = number % USERS == 0
        if lies and lie is Lie.PREEMPT:
            job = job.evolve(preempt=Preempt.NO)
        ratio = 2.0 / total if lies and lie is Lie.STEPS else 1.0
        submissions.append(Submission(job, LinearTraining(total, 1.0), declared_ratio=ratio))
    liars = frozenset(one.job.uid for one in submissions if one.job.user == "user0")
    limits = (Quota("preempt=no", liars, LIMIT),) if checked and lie is Lie.PREEMPT else ()
    policy = installed_policies().get(name)()
    outcome = simulate(
        Workload("liars", tuple(submissions)),
        (Node("n1", "v100", GPUS, 64, 1 << 40),),
        Checked(policy) if checked else policy,
        Settings(round_seconds=300.0),
        begin=InitialState(quotas=limits),
    )
    times = {job.uid: job.finished - job.submitted for job in outcome.jobs if job.finished is not None}
    mine = [seconds for uid, seconds in times.items() if uid in liars]
    return statistics.fmean(mine), statistics.fmean(seconds for uid, seconds in times.items() if uid not in liars)


def gains(name: str, lie: Lie, seeds: int, *, checked: bool) -> dict[str, float]:
    """The part of the mean completion time that the lie saves the liar, and the part that it adds to the others'."""
    pairs = [
        (completion_times(name, Lie.NONE, seed, checked=False), completion_times(name, lie, seed, checked=checked))
        for seed in range(seeds)
    ]
    true, lied = (statistics.fmean(one[at][0] for one in pairs) for at in (0, 1))
    honest, harmed = (statistics.fmean(one[at][1] for one in pairs) for at in (0, 1))
    return {"gain": 1.0 - lied / true, "loss": harmed / honest - 1.0}


def main(given: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", default=POLICIES, metavar="POLICY", help="policies (default: eight)")
    parser.add_argument("--seeds", type=common.positive, default=5, help="workloads (default 5)")
    options = parser.parse_args(given)
    print("| policy | lie | gain without checks | with checks | loss of the others without checks | with checks |")
    print("|---|---|---|---|---|---|")
    found: dict[str, Any] = {}
    for name in options.only:
        for lie in (Lie.STEPS, Lie.PREEMPT):
            before, after = (gains(name, lie, options.seeds, checked=checked) for checked in (False, True))
            found[f"{name}, {lie.value}"] = {"without": before, "with": after}
            cells = (before["gain"], after["gain"], before["loss"], after["loss"])
            print(f"| {name} | {lie.value} | {' | '.join(f'{cell:+.0%}' for cell in cells)} |", flush=True)
    common.finish(found, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
