"""Shockwave as a policy on the public trace: how long its decisions take, beside the program that the artifact solves.

    python -m contrib.benchmarks.shockwave_policies --data DIR [--programs N] [--seconds S] [--large] [--json]

The 120 jobs on 32 GPUs run in the public simulator's loop. A decision makes the market and solves the window of 20
rounds. Of ``--programs`` windows, evenly spread, the program of one variable a job and round is solved by HiGHS on one
thread, for ``--seconds`` at most. ``--large`` also simulates 900 jobs on 256 GPUs. Seconds are CPU time.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contrib.benchmarks import common
from contrib.reproductions.parity_rows.shockwave import GPUS, TRACE
from contrib.reproductions.published_loops.shockwave import ForecastShockwaveLoop
from contrib.reproductions.shockwave_headlines import GPUS_OF_NODE, ROUND, SIZES, TRACE_GAP, TRACE_GPUS
from metasched.core.model import Decision, Node, Snapshot
from metasched.core.policy import PolicyState
from metasched.simulator.generate.shockwave import ShockwaveWorkloadParameters, shockwave_jobs
from metasched.simulator.metrics import percentile
from metasched.simulator.records import Settings
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.shockwave import read_shockwave
from metasched.throughput.throughput_table import ThroughputTable
from policies.shockwave.contention import ContentionHistory
from policies.shockwave.market import Market
from policies.shockwave.policy import Shockwave
from policies.shockwave.round_market import RoundMarket
from policies.shockwave.solver import solve
from tests.oracles.shockwave_program import program_optimum

LEAST_RATIO, WORSE = 20.0, 1e-3
MOST_SECONDS: Mapping[str, float] = {"120 jobs, 32 GPUs": 60.0, "900 jobs, 256 GPUs": 600.0}
"""The targets: of whole simulations, CPU seconds at most; of the objective, the relative difference."""
ARTIFACT = "2.2 s, 8.5 s"
"""Mean and 95th percentile of the artifact's 354 solves with HiGHS."""


class RecordingShockwave(Shockwave):
    """Shockwave, its markets, and the CPU seconds of its decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.markets: list[Market] = []
        self.seconds: list[float] = []

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Shockwave's decision."""
        begun = time.process_time()
        found = super().decide(snapshot, state)
        self.seconds.append(time.process_time() - begun)
        return found

    def _market(self, snapshot: Snapshot, history: ContentionHistory, begins: float) -> RoundMarket:
        found = super()._market(snapshot, history, begins)
        self.markets.append(found.market)
        return found


def trace(folder: Path, table: ThroughputTable) -> tuple[RecordingShockwave, float]:
    """The policy after the public trace, and the CPU seconds of the simulation."""
    workload = read_shockwave(folder / "traces" / TRACE, table, most_gpus=GPUS)
    policy, begun = RecordingShockwave(), time.process_time()
    nodes = (Node("cluster", "v100", GPUS, cpus=0, memory=0),)
    ForecastShockwaveLoop(workload, nodes, policy, Settings(round_seconds=ROUND)).run()
    return policy, time.process_time() - begun


def large(table: ThroughputTable, gpus: int) -> float:
    """The CPU seconds of the simulation of Figure 9's jobs on that many GPUs."""
    given = ShockwaveWorkloadParameters(jobs=SIZES[gpus], gap_seconds=TRACE_GAP * TRACE_GPUS / gpus)
    workload = shockwave_jobs(table, given, 1)
    count = gpus // GPUS_OF_NODE
    nodes = tuple(Node(f"n{each:02}", "v100", GPUS_OF_NODE, cpus=0, memory=0) for each in range(count))
    begun = time.process_time()
    simulate(workload, nodes, Shockwave(), Settings(round_seconds=ROUND, restart_seconds=20.0))
    return time.process_time() - begun


class Compared(NamedTuple):
    """One window.

    Attributes:
        seconds: the program's CPU seconds.
        better: how much better its objective is than ours, relatively; minus infinity where it found no schedule.
        prompt: the same, than that of the schedule that the policy chooses.
    """

    seconds: float
    better: float
    prompt: float


def compared(markets: Sequence[Market], count: int, seconds: float) -> list[Compared]:
    """The program beside our solver, on some windows, evenly spread."""
    chosen = [markets[int((at + 0.5) * len(markets) / count)] for at in range(count)]
    found = []
    for market in chosen:
        ours, prompt = (solve(market, prompt=each).objective for each in (False, True))
        begun = time.process_time()
        theirs = program_optimum(market, seconds=seconds).objective
        took = time.process_time() - begun
        found.append(Compared(took, *((theirs - own) / max(abs(own), 1e-9) for own in (ours, prompt))))
        common.say(f"{len(market.keys)} jobs: {took:.1f} s, {found[-1].better:+.1e}, {found[-1].prompt:+.1e}")
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; the exit status is 1 if a target is missed."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    parser.add_argument("--programs", type=common.positive, default=12, help="windows solved by the program")
    parser.add_argument("--seconds", type=float, default=60.0, help="the program's time limit, in seconds")
    parser.add_argument("--large", action="store_true", help="also 900 jobs on 256 GPUs")
    options = parser.parse_args(given)
    folder = Path(options.data) / "shockwave"
    table = ThroughputTable.read(folder / "tacc_throughputs.json")
    policy, took = trace(folder, table)
    whole = {"120 jobs, 32 GPUs": took} | ({"900 jobs, 256 GPUs": large(table, 256)} if options.large else {})
    print("| whole simulation | CPU s |\n|---|---|")
    for name, seconds in whole.items():
        print(f"| {name} | {seconds:.1f} |", flush=True)
    busy = [(market, each) for market, each in zip(policy.markets, policy.seconds, strict=True) if market.keys]
    ours = [seconds for _, seconds in busy]
    programs = compared([market for market, _ in busy], min(options.programs, len(busy)), options.seconds)
    theirs = [each.seconds for each in programs]
    ratio, worst = statistics.fmean(theirs) / statistics.fmean(ours), max(each.better for each in programs)
    solved = [each.prompt for each in programs if math.isfinite(each.prompt)]
    print("\n| | number | CPU s: mean, p95 |\n|---|---|---|")
    print(f"| decisions | {len(ours)} | {statistics.fmean(ours):.3f}, {percentile(ours, 0.95):.3f} |")
    print(f"| the program | {len(theirs)} | {statistics.fmean(theirs):.2f}, {percentile(theirs, 0.95):.2f} |")
    print(f"| the artifact's solves | 354 | {ARTIFACT} |")
    print(f"\n{ratio:.0f} times as fast; the program's objective is better by {worst:.1e} at most")
    if solved:
        middle, most = statistics.median(solved), max(solved)
        print(f"than the policy's prompt schedules it is better by {middle:.1e} in the median, {most:.1e} at most")
    results: dict[str, Any] = {
        "simulations": whole,
        "ratio": ratio,
        "program_better_by": worst,
        "program_better_than_prompt_by": solved,
    }
    common.finish(results, as_json=options.json)
    slow = any(seconds > MOST_SECONDS[name] for name, seconds in whole.items())
    return 1 if slow or ratio < LEAST_RATIO or worst > WORSE else 0


if __name__ == "__main__":
    sys.exit(main())
