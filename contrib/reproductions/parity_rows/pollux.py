"""Pollux's simulator on its workloads: 16 nodes of 4 T4 GPUs, an interval of 60 s, 30 s for each move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from contrib.reproductions.parity_rows.row import Measure, Row
from contrib.reproductions.published_loops.pollux import PolluxLoop
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.records import Settings, Workload
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus
from policies.pollux.policy import Pollux

NODES = tuple(Node(f"n{i:02}", "t4", 4, 1, 1) for i in range(16))
SETTINGS = Settings(round_seconds=60.0, restart_seconds=30.0, uneven=True)
TIRESIAS = LasParameters(queue_thresholds_gpu_seconds=(16 * 3600.0,), promote_knob=None, order="entry", elastic=False)

THEIRS = {
    "workload-1": ((2473.65, 2), (4087.0625, 4)),
    "workload-6": ((3469.69375, 5), (5301.875, 3)),
}
"""Average JCT under Tiresias and under Optimus+Oracle, each with the number of known decimals, by workload."""

POLLUX = {"workload-1": 2118.0, "workload-6": 2480.0}
"""Average JCT under Pollux by workload: the largest of the artifact's runs, whose search is not seeded.

On workload-6 they give 2446 to 2480 s. On workload-1 one run gives 2089 s; the spread is taken to be the same.
"""
RANDOM = (
    "the artifact's search is random and not seeded: its figures differ by 1.4 % from run to run, and the given one is "
    "the largest. Our search finds allocations of a higher fitness"
)


def rows(data: Path) -> list[Row]:
    """Tiresias, Optimus and Pollux on the workloads whose figures are known."""
    profiles = read_profiles(data / "pollux" / "traces")
    found = []
    for name, (tiresias, optimus) in THEIRS.items():
        workload = read_pollux(data / "pollux" / "workloads" / f"{name}.csv", profiles, most_gpus=64)
        cases: list[tuple[str, Policy, tuple[float, int]]] = [
            ("las as Tiresias", Las(TIRESIAS), tiresias),
            ("optimus, oracle", Optimus(), optimus),
        ]
        for words, policy, theirs in cases:
            measure = Measure("average JCT, s", *theirs)
            found.append(Row("Pollux", f"{name}, 16 x 4 T4", words, (measure,), _run(workload, policy)))
        adaptive = read_pollux(data / "pollux" / "workloads" / f"{name}.csv", profiles, most_gpus=64, adaptive=True)
        most = Measure("average JCT, s", POLLUX[name], 0, at_most=True)
        found.append(Row("Pollux", f"{name}, 16 x 4 T4", "pollux", (most,), _run(adaptive, Pollux()), RANDOM))
    return found


def _run(workload: Workload, policy: Policy) -> Callable[[], tuple[float, ...]]:
    def run() -> tuple[float, ...]:
        outcome = PolluxLoop(workload, NODES, policy, SETTINGS).run()
        return (fmean(job.jct for job in outcome.jobs if job.jct is not None),)

    return run
