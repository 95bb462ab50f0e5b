"""Shockwave's simulator on its trace of 120 jobs: 32 GPUs, rounds of 120 s, a restart costs 20 s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from contrib.reproductions.parity_rows.row import Measure, Row
from contrib.reproductions.published_loops.shockwave import seconds_alone, simulate_shockwave
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.metrics import UNFAIR, Fairness
from metasched.simulator.records import Settings, Workload
from metasched.simulator.traces.shockwave import read_shockwave
from metasched.throughput.throughput_table import Table
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters
from metasched.time_shares.round_mechanism import TimeShares
from policies.baselines.allox import AlloX, AlloXParameters
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from policies.baselines.max_sum_throughput import MaxSumThroughput

GPUS = 32
RECOMPUTE = 1000.0  # s: the public simulator makes shares no more often
TRACE = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
DIGITS = 5  # of rho, and of shares where those of the artifact's solver were rounded
NEAR = 0.05  # relative, where solvers may differ
SOLVER = (
    "the artifact's interior point solver (ECOS) leaves shares of 1e-11 to 1e-7 with jobs that should have none, and"
    " these decide who has the GPUs that are left over; with its shares rounded to 5 digits, the artifact gives what we"
    " give, round by round: the next row"
)


class Rounded(MaxSumThroughput):
    """Its shares without the last digits."""

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """Rounded."""
        found, memory = super().time_shares(inputs, memory)
        return {
            who: {kind: round(part, DIGITS) for kind, part in share.items()} for who, share in found.items()
        }, memory


def figures(workload: Workload, policy: Policy) -> tuple[float, ...]:
    """Makespan (the clock at the end), average JCT, worst rho, and the percentage of jobs treated unfairly."""
    nodes = (Node("cluster", "v100", GPUS, cpus=0, memory=0),)
    outcome = simulate_shockwave(workload, nodes, policy, Settings(round_seconds=120.0))
    jct = {job.uid: job.jct for job in outcome.jobs if job.jct is not None}
    contention = max(len(jct) / GPUS, 1.0)
    alone = {one.job.uid: seconds_alone(one) for one in workload.submissions}
    rho = {uid: round(time / (alone[uid] * contention), DIGITS) for uid, time in jct.items()}
    fairness = Fairness(rho, UNFAIR["shockwave"])
    return outcome.ended, fmean(jct.values()), fairness.worst or 0.0, 100 * (fairness.unfair or 0.0)


def rows(data: Path) -> list[Row]:
    """Its rows."""
    folder = data / "shockwave"
    table = Table.read(folder / "tacc_throughputs.json")
    workload = read_shockwave(folder / "traces" / TRACE, table, most_gpus=GPUS)

    def row(policy: Policy, words: str, *theirs: float, reason: str = "") -> Row:
        names = (("makespan, s", 1), ("average JCT, s", 1), ("worst rho", 3), ("unfair, %", 1))
        within = NEAR if reason else None
        measures = tuple(
            Measure(n, value, digits, within=within) for (n, digits), value in zip(names, theirs, strict=True)
        )
        return Row("Shockwave", "120 jobs, 32 GPUs", words, measures, lambda: figures(workload, policy), reason)

    plain = TimeShareParameters(recompute_seconds=RECOMPUTE, carry=False)
    fair = GandivaFairParameters(recompute_seconds=RECOMPUTE, carry=False, as_published=True)
    allox = AlloXParameters(recompute_seconds=RECOMPUTE, carry=False, alpha=0.2, as_published=True)
    return [
        row(MaxSumThroughput(plain), "max_sum_throughput", 31909.0, 9654.7, 4.976, 25.0, reason=SOLVER),
        row(Rounded(plain), "max_sum_throughput, all shares rounded", 31649.6, 9583.9, 4.840, 25.0),
        row(GandivaFair(fair), "gandiva_fair as_published=true", 32367.4, 12574.3, 1.854, 51.7),
        row(AlloX(allox), "allox alpha=0.2 as_published=true", 32488.6, 9926.3, 4.964, 27.5),
    ]
