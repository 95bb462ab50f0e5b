"""Simulations of scenario files, as `metasched simulate` and `metasched compare` run them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.api.policy_choice import PolicyChoice, resolve
from metasched.api.table import Table
from metasched.core.errors import MetaschedError
from metasched.core.policy import installed_policies
from metasched.simulator.results import JobResult, Result
from metasched.simulator.scenario import load_scenario
from metasched.simulator.sweep import Case, run_case, sweep

_SHOWN = ("jct_mean", "jct_p99", "makespan", "queueing_mean", "utilization", "preemptions_mean", "unfinished")


class NotInstalledError(MetaschedError):
    """A policy that is no entry point cannot be found by the processes of a sweep."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulation of a scenario.

    Attributes:
        result: everything that was measured.
    """

    result: Result

    @property
    def policy(self) -> str:
        """The policy's name, with the parameters that are not its defaults."""
        return self.result.label

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Values by the names of docs/researcher/METRICS.md; seconds where they are durations, None if not defined."""
        return self.result.metrics

    @property
    def jobs(self) -> Table[JobResult]:
        """The jobs, in the workload's order; instants are seconds of the simulated clock."""
        return Table(self.result.jobs)

    def _repr_html_(self) -> str:
        """Return the metrics as an HTML table, for notebooks."""
        return _table([self])._repr_html_()


def simulate(
    scenario: str | Path,
    policy: PolicyChoice = "fifo",
    *,
    load: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Simulation:
    """Run the workload of a scenario file on its simulated cluster, with the daemon's engine.

    Args:
        scenario: path of the scenario file (docs/researcher/SIMULATOR.md).
        policy: ``NAME[:KEY=VALUE,...]`` of an installed policy, or a subclass of ``metasched.core.policy.Policy``.
        load: factor on the rate of arrivals.
        seed: of the workload's generator and of failures.
        progress: is called with the number of jobs that have ended, and of all.

    Raises:
        ScenarioError: the file cannot be used; the message has every problem.
        PolicyTextError: no policy has that name, or it refuses a parameter.
        MetaschedError: the workload cannot be read.
    """
    name, parameters, registry = resolve(policy)
    return Simulation(run_case(load_scenario(Path(scenario)), Case(name, parameters, load, seed), registry, progress))


def compare(
    scenario: str | Path,
    policies: Sequence[PolicyChoice],
    *,
    loads: Sequence[float] = (1.0,),
    seeds: int = 1,
    out: str | Path | None = None,
    processes: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> Table[Simulation]:
    """Simulate every combination of policies, loads and seeds.

    Args:
        scenario: path of the scenario file.
        policies: as for ``simulate``.
        loads: factors on the rate of arrivals.
        seeds: number of seeds, from 0.
        out: directory for results, each written as soon as it is complete, and not made again; None to keep nothing.
            It needs installed policies: the code of a class may change, and the results would not.
        processes: simulations at a time; more than one needs ``out``.
        progress: is called with the number of simulations that are complete, and of all.

    Returns:
        A table with a row for each simulation, whose columns are its metrics.

    Raises:
        NotInstalledError: ``out`` is given with a policy's class.
        ValueError: ``processes`` is more than one without ``out``.
        MetaschedError: as for ``simulate``.
    """
    if out is None and processes > 1:
        raise ValueError("processes=N needs out=DIR, in which the processes leave their results")
    if out is not None and (classes := [one.name for one in policies if not isinstance(one, str)]):
        raise NotInstalledError(
            f"out=DIR keeps results of installed policies only: leave it out, or install {classes[0]!r} as an entry "
            "point of metasched.policies and give its name"
        )
    registry = installed_policies()
    chosen = [resolve(policy, registry)[:2] for policy in policies]
    found = load_scenario(Path(scenario))
    combinations = itertools.product(chosen, loads, range(seeds))
    cases = [Case(name, parameters, load, seed) for (name, parameters), load, seed in combinations]

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, len(cases))

    if out is not None:
        return _table([Simulation(one) for one in sweep(found, cases, Path(out), processes, tell)])
    results = []
    for case in cases:
        results.append(Simulation(run_case(found, case, registry)))
        tell(len(results))
    return _table(results)


def _table(simulations: Sequence[Simulation]) -> Table[Simulation]:
    return Table(simulations, row=_row, shown=("policy", "load", "seed", *_SHOWN))


def _row(one: Simulation) -> dict[str, Any]:
    return {"policy": one.policy, "load": one.result.load, "seed": one.result.seed, **one.metrics}
