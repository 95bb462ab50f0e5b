"""Average JCT, fairness and restarts under policies of time shares, by the length of a quantum, on public traces.

    python -m contrib.reproductions.quanta --data DIR [--scale N] [--sets NAME ...] [--restarts N ...] [--json]

The traces, the cluster and the cost of restarts are those of ``ares_headlines``, where all applications' restarts take
the same time: 60 s. --scale N simulates N traces of each set. --restarts gives the values of ``quantum_restarts``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from contrib.benchmarks import common
from contrib.reproductions.ares_headlines import LONG_RESTART, NODES, Data
from contrib.reproductions.measured_runs import HOUR, jct_hours, simulate_and_measure
from metasched.core.policy import Policy
from metasched.simulator.metrics import Metrics
from metasched.simulator.records import Settings, Workload
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from policies.gavel.policies import GavelFinishTimeFairness, GavelLas, GavelLasParameters, GavelParameters

POLICIES: Mapping[str, Callable[[float], Policy]] = {
    "gavel_las": lambda restarts: GavelLas(GavelLasParameters(quantum_restarts=restarts)),
    "gavel_ftf": lambda restarts: GavelFinishTimeFairness(GavelParameters(quantum_restarts=restarts)),
    "gandiva_fair": lambda restarts: GandivaFair(GandivaFairParameters(quantum_restarts=restarts)),
}
"""By name, the policy with a value of ``quantum_restarts``."""
ROUNDS = (60.0, 360.0)  # seconds


def figures(found: Sequence[Metrics]) -> Mapping[str, float]:
    """The means over simulations: the average JCT and its 99th percentile in hours, the worst rho, and restarts."""
    return {
        "jct": fmean(map(jct_hours, found)),
        "p99": fmean((one.jct_p99 or 0.0) / HOUR for one in found),
        "worst": fmean(one.fairness["ares"].worst or 0.0 for one in found),
        "restarts": fmean(one.restarts_mean or 0.0 for one in found),
    }


def with_equal_restarts(workload: Workload) -> Workload:
    """The workload, whose jobs' restarts take ``LONG_RESTART`` seconds."""
    submissions = (replace(one, restart_seconds=LONG_RESTART) for one in workload.submissions)
    return replace(workload, submissions=tuple(submissions))


def main(given: Sequence[str] | None = None) -> int:
    """Simulate, and print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    parser.add_argument("--scale", type=common.positive, default=2, help="number of traces of each set")
    parser.add_argument("--sets", nargs="+", default=["Philly", "Pollux"], help="sets of traces")
    parser.add_argument("--restarts", type=float, nargs="+", default=[0.0, 5.0, 20.0], help="values of the parameter")
    options = parser.parse_args(given)
    result = {}
    print("| traces | a round | policy | quantum_restarts | average JCT, h | p99, h | worst FTF | restarts of a job |")
    print("|---|---|---|---|---|---|---|---|")
    for name, workloads in Data(options.data / "pollux", options.scale).sets().items():
        if name not in options.sets:
            continue
        for seconds in ROUNDS:
            settings = Settings(round_seconds=seconds, min_round_seconds=0.0)
            for policy, make in POLICIES.items():
                for restarts in options.restarts:
                    runs = [
                        simulate_and_measure(with_equal_restarts(one), NODES, make(restarts), settings)[1]
                        for one in workloads
                    ]
                    found = result[f"{name}, {seconds:g} s, {policy}, {restarts:g}"] = figures(runs)
                    cells = f"{found['jct']:.2f} | {found['p99']:.1f} | {found['worst']:.1f} | {found['restarts']:.2f}"
                    print(f"| {name} | {seconds:g} s | {policy} | {restarts:g} | {cells} |", flush=True)
    common.finish(result, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
