"""Shockwave's simulator on its trace of 120 jobs: 32 GPUs, rounds of 120 s, a restart costs 20 s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from contrib.reproductions.parity_rows.row import Measure, Row
from contrib.reproductions.published_loops.shockwave import ForecastShockwaveLoop, ShockwaveLoop, isolated_seconds
from metasched.core.finish_time_fairness import UNFAIR
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.metrics import Fairness
from metasched.simulator.records import Settings, Workload
from metasched.simulator.traces.shockwave import read_shockwave
from metasched.throughput.throughput_table import ThroughputTable
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters
from metasched.time_shares.round_mechanism import TimeShares
from policies.baselines.allox import AlloX, AlloXParameters
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from policies.baselines.max_sum_throughput import MaxSumThroughput
from policies.gavel.policies import (
    GavelFinishTimeFairness,
    GavelLas,
    GavelLasParameters,
    GavelMakespan,
    GavelMakespanParameters,
    GavelParameters,
)
from policies.shockwave.policy import Shockwave

GPUS = 32
RECOMPUTE = 1000.0  # s: the least time between two computations of time shares in the public simulator
TRACE = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
DIGITS = 5  # decimals of rho, and of time shares where those of the artifact's solver are rounded
NEAR = 0.05  # the relative difference that is explained by another solver
SOLVER = (
    "the artifact's interior-point solver (ECOS) leaves time shares of 1e-11 to 1e-7 with jobs that should have none,"
    " and these decide which jobs get idle GPUs; with its time shares rounded to 5 digits, the artifact decides as we"
    " do, round by round: see the next row"
)

SHOCKWAVE = (24217.6, 9958.5, 1.784, 5.0)
MIDDLE = (
    "the artifact's program determines the least throughput or the largest rho alone, and its interior-point solver"
    " chooses among the optima; our second stage maximises the others' throughput"
)
FORESIGHT = (
    "the artifact knows which batch sizes each job will have, and its k and lambda are tuned to this trace; ours knows"
    " the rule and the largest batch, has its defaults, and values progress relative to the work that is left: all"
    " figures are to be at least as good"
)


class Rounded(MaxSumThroughput):
    """The policy with time shares rounded to ``DIGITS``, as those of the artifact are rounded for comparison."""

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """The time shares, rounded; and the policy's memory."""
        found, memory = super().time_shares(inputs, memory)
        rounded = {
            uids: {gpu_type: round(fraction, DIGITS) for gpu_type, fraction in shares.items()}
            for uids, shares in found.items()
        }
        return rounded, memory


def figures(workload: Workload, policy: Policy, loop: type[ShockwaveLoop] = ShockwaveLoop) -> tuple[float, ...]:
    """Makespan (the clock at the end) and average JCT in seconds, worst rho, and the percentage of unfair jobs."""
    nodes = (Node("cluster", "v100", GPUS, cpus=0, memory=0),)
    outcome = loop(workload, nodes, policy, Settings(round_seconds=120.0)).run()
    jct = {job.uid: job.jct for job in outcome.jobs if job.jct is not None}
    contention = max(len(jct) / GPUS, 1.0)
    isolated = {one.job.uid: isolated_seconds(one) for one in workload.submissions}
    rho = {uid: round(time / (isolated[uid] * contention), DIGITS) for uid, time in jct.items()}
    fairness = Fairness(rho, UNFAIR["shockwave"])
    return outcome.ended, fmean(jct.values()), fairness.worst or 0.0, 100 * (fairness.unfair or 0.0)


def rows(data: Path) -> list[Row]:
    """The rows of all policies."""
    folder = data / "shockwave"
    table = ThroughputTable.read(folder / "tacc_throughputs.json")
    workload = read_shockwave(folder / "traces" / TRACE, table, most_gpus=GPUS)

    names = (("makespan, s", 1), ("average JCT, s", 1), ("worst rho", 3), ("unfair, %", 1))

    def row(policy: Policy, words: str, *theirs: float, reason: str = "", near: float = NEAR) -> Row:
        within = near if reason else None
        measures = tuple(
            Measure(n, value, digits, within=within) for (n, digits), value in zip(names, theirs, strict=True)
        )
        return Row("Shockwave", "120 jobs, 32 GPUs", words, measures, lambda: figures(workload, policy), reason)

    plain = TimeShareParameters(recompute_seconds=RECOMPUTE, carry=False)
    fair = GandivaFairParameters(recompute_seconds=RECOMPUTE, carry=False, as_published=True)
    allox = AlloXParameters(recompute_seconds=RECOMPUTE, carry=False, alpha=0.2, as_published=True)
    gavel = plain.model_dump()
    ftf = GavelFinishTimeFairness(GavelParameters(**gavel))
    makespan = GavelMakespanParameters(**gavel)
    return [
        row(MaxSumThroughput(plain), "max_sum_throughput", 31909.0, 9654.7, 4.976, 25.0, reason=SOLVER),
        row(Rounded(plain), "max_sum_throughput, all shares rounded", 31649.6, 9583.9, 4.840, 25.0),
        row(GandivaFair(fair), "gandiva_fair as_published=true", 32367.4, 12574.3, 1.854, 51.7),
        row(AlloX(allox), "allox alpha=0.2 as_published=true", 32488.6, 9926.3, 4.964, 27.5),
        row(GavelLas(GavelLasParameters(**gavel)), "gavel_las", 33207.7, 11274.1, 2.947, 25.0, reason=MIDDLE),
        row(GavelMakespan(makespan), "gavel_makespan", 24204.8, 19806.7, 7.741, 74.2, reason=MIDDLE, near=0.07),
        row(ftf, "gavel_ftf", 31928.7, 11302.0, 3.438, 22.5, reason=MIDDLE, near=0.23),
        Row(
            "Shockwave",
            "120 jobs, 32 GPUs",
            "shockwave",
            tuple(
                Measure(name, value, digits, at_most=True)
                for (name, digits), value in zip(names, SHOCKWAVE, strict=True)
            ),
            lambda: figures(workload, Shockwave(), ForecastShockwaveLoop),
            FORESIGHT,
        ),
    ]
