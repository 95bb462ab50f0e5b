"""Pollux's simulator on its workloads: 16 nodes of 4 T4 GPUs, an interval of 60 s, 30 s for each move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from contrib.reproductions.parity_rows.row import Measure, Row
from contrib.reproductions.published_loops.pollux import simulate_pollux
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.records import Settings, Workload
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus

NODES = tuple(Node(f"n{i:02}", "t4", 4, 1, 1) for i in range(16))
SETTINGS = Settings(round_seconds=60.0, restart_seconds=30.0)
TIRESIAS = LasParameters(queue_thresholds_gpu_seconds=(16 * 3600.0,), promote_knob=None, order="entry", elastic=False)

THEIRS = {
    "workload-1": ((2473.65, 2), (4087.0625, 4)),
    "workload-6": ((3469.69375, 5), (5301.875, 3)),
}
"""Average JCT under Tiresias and under Optimus+Oracle, with the decimals that are known."""


def rows(data: Path) -> list[Row]:
    """Two policies on the workloads whose figures are known.

    Raises:
        TraceError: the data is not there, or not what it should be.
    """
    profiles = read_profiles(data / "pollux" / "traces")
    found = []
    for name, (tiresias, optimus) in THEIRS.items():
        workload = read_pollux(data / "pollux" / "workloads" / f"{name}.csv", profiles, most_gpus=64)
        words = f"{name}, 16 x 4 T4"
        found += [
            Row(
                "Pollux",
                words,
                "las as Tiresias",
                (Measure("average JCT, s", *tiresias),),
                _run(workload, Las(TIRESIAS)),
            ),
            Row("Pollux", words, "optimus, oracle", (Measure("average JCT, s", *optimus),), _run(workload, Optimus())),
        ]
    return found


def _run(workload: Workload, policy: Policy) -> Callable[[], tuple[float, ...]]:
    def run() -> tuple[float, ...]:
        outcome = simulate_pollux(workload, NODES, policy, SETTINGS)
        return (fmean(job.jct for job in outcome.jobs if job.jct is not None),)

    return run
