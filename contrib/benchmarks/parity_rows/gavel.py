"""Gavel's simulator on its artifact's trace: 2 V100, 2 P100 and 2 K80, rounds of 360 s, seed 0."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from metasched.fractions import FractionParameters
from metasched.model import Node
from metasched.policy import Policy
from metasched.simulator.faithful.gavel import simulate_gavel
from metasched.simulator.records import Settings, Workload
from metasched.simulator.traces.gavel import read_gavel
from metasched.throughput.table import Table
from parity_rows.row import Measure, Row
from policies.baselines.gandiva import Gandiva, GandivaParameters
from policies.baselines.gavel_fifo import GavelFifo, GavelFifoParameters
from policies.baselines.isolated import Isolated
from policies.baselines.max_sum_throughput import MaxSumThroughput

RECOMPUTE = 1920.0  # s: the public simulator allocates no more often
FASTEST_FIRST = ("v100", "p100", "k80")  # it fills one type after the other
RESIDUE = (
    "the artifact's interior-point solver leaves shares of about 1e-9 where the optimum has 0, and its mechanism fills "
    "idle GPUs in their order; with its shares rounded to 6 digits the artifact gives 3016.178, the same rounds as ours"
)


def cluster(gpus: int) -> tuple[Node, ...]:
    """So many GPUs of each type: the simulator counts GPUs by type, so one node of each stands for all."""
    return tuple(Node(kind, kind, gpus, cpus=0, memory=0) for kind in FASTEST_FIRST)


def average_jct(workload: Workload, policy: Policy) -> float:
    """Of all jobs, s."""
    settings = Settings(round_seconds=360.0, sharing=isinstance(policy, Gandiva))
    outcome = simulate_gavel(workload, cluster(2), policy, settings)
    return fmean(job.jct for job in outcome.jobs if job.jct is not None)


def rows(data: Path) -> list[Row]:
    """Its rows."""
    folder = data / "gavel"
    workload = read_gavel(
        folder / "traces" / "artifact_evaluation.trace", Table.read(folder / "simulation_throughputs.json")
    )

    def row(policy: Policy, words: str, theirs: float, reason: str = "", without: float | None = None) -> Row:
        measure = Measure("average JCT, s", theirs, 3, without)
        where = "artifact_evaluation, 3 x 2 GPUs"
        return Row("Gavel", where, words, (measure,), lambda: (average_jct(workload, policy),), reason)

    shuffled = FractionParameters(recompute_seconds=RECOMPUTE, types_in_turn=FASTEST_FIRST, shuffle_types=True)
    ordered = FractionParameters(recompute_seconds=RECOMPUTE, types_in_turn=FASTEST_FIRST)
    return [
        row(Isolated(shuffled), "isolated", 4286.651),
        row(
            GavelFifo(GavelFifoParameters(**shuffled.model_dump(), aware=False, as_published=True)),
            "gavel_fifo aware=false as_published=true",
            7581.699,
        ),
        row(GavelFifo(GavelFifoParameters(**ordered.model_dump())), "gavel_fifo aware=true", 5350.663),
        row(MaxSumThroughput(ordered), "max_sum_throughput", 2985.915, RESIDUE, 3016.178),
        row(
            Gandiva(GandivaParameters(**ordered.model_dump() | {"fill_pairs": True}, least_gain=1 / 3)),
            "gandiva",
            3545.552,
        ),
    ]
