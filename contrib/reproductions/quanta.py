"""Average JCT, fairness and restarts under policies of time shares, by the length of a quantum, on public traces.

    python -m contrib.reproductions.quanta --data DIR [--scale N] [--sets NAME ...] [--restarts N ...] [--json]

The traces and the cluster are those of ``ares_headlines``. Every restart takes 60 s. --scale N simulates N traces of
each set. --restarts gives the values of ``quantum_restarts``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product

from contrib.benchmarks import common
from contrib.reproductions.ares_headlines import LONG_RESTART, NODES, Data, with_restarts
from contrib.reproductions.measured_runs import jct_hours, p99_hours, simulate_and_measure, with_quanta
from contrib.reproductions.stored_results import means
from metasched.simulator.metrics import Metrics
from metasched.simulator.records import Settings
from metasched.time_shares.policy_base import TimeSharePolicy
from policies.baselines.gandiva_fair import GandivaFair
from policies.gavel.policies import GavelFinishTimeFairness, GavelLas

POLICIES: tuple[type[TimeSharePolicy], ...] = (GavelLas, GavelFinishTimeFairness, GandivaFair)
ROUNDS = (60.0, 360.0)  # seconds


def figures(found: Metrics) -> Mapping[str, float]:
    """The average JCT and its 99th percentile in hours, the worst finish-time fairness, and the restarts of a job."""
    return {
        "jct": jct_hours(found),
        "p99": p99_hours(found),
        "worst": found.fairness["ares"].worst or 0.0,
        "restarts": found.restarts_mean or 0.0,
    }


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
    traces = Data(options.data / "pollux", options.scale).sets()
    chosen = [name for name in traces if name in options.sets]
    for name, seconds, kind, restarts in product(chosen, ROUNDS, POLICIES, options.restarts):
        settings = Settings(round_seconds=seconds, min_round_seconds=0.0)
        workloads = (with_restarts(one, LONG_RESTART) for one in traces[name])
        policy = with_quanta(kind, restarts)
        found = means([figures(simulate_and_measure(one, NODES, policy, settings)[1]) for one in workloads])
        result[f"{name}, {seconds:g} s, {policy.name}, {restarts:g}"] = found
        cells = f"{found['jct']:.2f} | {found['p99']:.1f} | {found['worst']:.1f} | {found['restarts']:.2f}"
        print(f"| {name} | {seconds:g} s | {policy.name} | {restarts:g} | {cells} |", flush=True)
    common.finish(result, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
