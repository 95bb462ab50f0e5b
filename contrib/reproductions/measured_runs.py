"""One simulation for the headlines of a paper: simulated, measured, and reported as progress."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from contrib.benchmarks import common
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.metrics import Metrics, measure
from metasched.simulator.records import Outcome, Settings, Workload
from metasched.simulator.simulation import simulate
from metasched.time_shares.policy_base import TimeSharePolicy

HOUR = 3600.0


def simulate_and_measure(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings,
    *,
    window: range | None = None,
    prices: Mapping[str, float] | None = None,
) -> tuple[Outcome, Metrics]:
    """The outcome and the metrics of a simulation; for the parameters see ``simulate`` and ``measure``."""
    begun = time.perf_counter()
    outcome = simulate(workload, nodes, policy, settings, window=window)
    metrics = measure(outcome, workload, window=window, prices=prices)
    circumstances = ", sharing" if settings.sharing else ""
    if settings.restart_seconds:
        circumstances += f", restarts of {settings.restart_seconds:g} s"
    common.say(
        f"{workload.source}: {policy.name} {policy.parameters.model_dump(exclude_defaults=True)}{circumstances}: "
        f"JCT {jct_hours(metrics):.2f} h, {metrics.unfinished} unfinished, {time.perf_counter() - begun:.0f} s"
    )
    return outcome, metrics


def with_quanta(policy: type[TimeSharePolicy], restarts: float) -> TimeSharePolicy:
    """A policy of time shares with quanta of so many restarts (``metasched.time_shares.granting``)."""
    return policy(policy.Parameters.model_validate({"quantum_restarts": restarts}))


def without_quanta(policy: type[TimeSharePolicy]) -> TimeSharePolicy:
    """A policy of time shares without quanta, as in its paper."""
    return with_quanta(policy, 0.0)


def jct_hours(metrics: Metrics) -> float:
    """The mean JCT in hours; 0 if no job is complete."""
    return (metrics.jct_mean or 0.0) / HOUR


def p99_hours(metrics: Metrics) -> float:
    """The 99th percentile of the JCT in hours; 0 if no job is complete."""
    return (metrics.jct_p99 or 0.0) / HOUR
