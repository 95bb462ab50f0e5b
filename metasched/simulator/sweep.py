"""Many simulations: policies x loads x seeds, in parallel processes, each result written to disk at once."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from metasched.core.policy import Registry, installed_policies
from metasched.simulator.metrics import measure
from metasched.simulator.records import Submission, Workload
from metasched.simulator.results import JobResult, Result, read, thinned, write
from metasched.simulator.scenario import Scenario
from metasched.simulator.simulation import simulate


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation of a scenario.

    Attributes:
        policy: the policy's name.
        parameters: the policy's parameters that are not the defaults.
        load: the factor on the rate of arrivals.
        seed: of the workload's generator and of failures.
    """

    policy: str
    parameters: dict[str, Any] = field(default_factory=dict)
    load: float = 1.0
    seed: int = 0

    @property
    def label(self) -> str:
        """The policy with its changed parameters, for tables and plots."""
        changes = ",".join(f"{name}={value}" for name, value in sorted(self.parameters.items()))
        return f"{self.policy}({changes})" if changes else self.policy


def at_load(workload: Workload, load: float) -> Workload:
    """The same jobs with ``load`` times the rate of arrivals."""
    if load == 1.0:
        return workload

    def sooner(one: Submission) -> Submission:
        return replace(one, job=one.job.evolve(submitted=one.job.submitted / load))

    return replace(
        workload, source=f"{workload.source} at load {load:g}", submissions=tuple(map(sooner, workload.submissions))
    )


def run_case(
    scenario: Scenario,
    case: Case,
    registry: Registry | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Result:
    """Simulate one case; ``progress`` is called with the jobs that have ended, and with all.

    Raises:
        MetaschedError: the workload cannot be read or generated, or the policy is not installed.
        ValidationError: the policy refuses a parameter.
    """
    found = (registry or installed_policies()).get(case.policy)
    policy = found(found.Parameters.model_validate(case.parameters))
    workload = at_load(scenario.workload(case.seed), case.load)
    settings = replace(scenario.settings, seed=case.seed)
    outcome = simulate(workload, scenario.nodes, policy, settings, window=scenario.window, progress=progress)
    measured = measure(outcome, workload, window=scenario.window, prices=scenario.prices or None)
    asked = {one.job.uid: one.job.gpus for one in workload.submissions}
    jobs = tuple(
        JobResult(
            uid=job.uid,
            gpus=asked[job.uid],
            submitted=job.submitted,
            started=job.first_started,
            finished=job.finished,
            gpu_seconds=job.gpu_seconds,
            preemptions=job.preemptions,
            rho=measured.rho.get(job.uid),
        )
        for job in outcome.jobs
    )
    return Result(
        fingerprint=fingerprint(scenario, case),
        policy=case.policy,
        label=case.label,
        load=case.load,
        seed=case.seed,
        metrics=measured.values,
        jobs=jobs,
        allocation=thinned([(one.at, one.gpus) for one in outcome.rounds]),
        capacity=sum(node.gpus for node in scenario.nodes),
        seconds=(outcome.policy_seconds, outcome.engine_seconds, outcome.total_seconds),
    )


def fingerprint(scenario: Scenario, case: Case) -> str:
    """The SHA-256, in hex digits, of all inputs of a simulation."""
    content = json.dumps([scenario.content, asdict(case)], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def path_of(directory: Path, scenario: Scenario, case: Case) -> Path:
    """The file of a case's result."""
    return directory / "results" / f"{case.policy}-{fingerprint(scenario, case)[:16]}.json"


def sweep(
    scenario: Scenario, cases: Sequence[Case], directory: Path, processes: int, progress: Callable[[int], object]
) -> list[Result]:
    """Simulate all cases that have no result yet, and return all results in the order of the cases.

    Args:
        scenario: the cluster and the workload.
        cases: the simulations to run.
        directory: for the results.
        processes: the number of processes.
        progress: is called with the number of results so far, whenever it grows.

    Raises:
        MetaschedError: as for ``run_case``; results so far stay on disk.
    """
    found: dict[int, Result] = {}
    for number, case in enumerate(cases):
        if (result := read(path_of(directory, scenario, case))) is not None:
            found[number] = result
    progress(len(found))
    for number, result in _run([*enumerate(cases)], found, scenario, directory, processes):
        found[number] = result
        progress(len(found))
    return [found[number] for number in range(len(cases))]


def _run(
    cases: Sequence[tuple[int, Case]], found: dict[int, Result], scenario: Scenario, directory: Path, processes: int
) -> Iterator[tuple[int, Result]]:
    left = [(number, case) for number, case in cases if number not in found]
    if processes == 1 or len(left) == 1:
        for number, case in left:
            yield number, _run_and_write(scenario, case, directory)
        return
    # Threads of BLAS do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(left)) or 1, mp_context=context) as pool:
        futures = {pool.submit(_run_and_write, scenario, case, directory): number for number, case in left}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_and_write(scenario: Scenario, case: Case, directory: Path) -> Result:
    result = run_case(scenario, case)
    write(path_of(directory, scenario, case), result)
    return result
