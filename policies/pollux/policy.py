"""Pollux: GPUs and batch sizes for the highest goodput of all jobs together.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.
A round, step by step:

1. Goodput (``job_goodput``): each job's time of an iteration and its gradient noise, as its trainers reported them.
2. Speed-up (``speedup_table``): a job's goodput on an allocation, at its best batch there, over that of a fair share.
3. Search (``precompute``): the allocation matrix with the highest fitness, the power mean of all speed-ups. Under the
   daemon it runs in the background, late in the round.
4. Grants: the latest result of the search, as far as it is still possible; GPUs that remain go, one after the other, to
   the jobs that gain most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PlainValidator

from metasched.core.batching import BatchPlan
from metasched.core.model import Decision, Grant, Job, NodeAdvice, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_non_preemptible
from metasched.throughput.goodput import HYSTERESIS, Goodput, TunedBatch
from metasched.throughput.job_goodput import is_tuned
from policies.pollux.allocation_problem import Ints
from policies.pollux.autoscaling import MOST_GROWTH, node_advice
from policies.pollux.direct_search import direct_search, greedy_allocation
from policies.pollux.elites import decode_elites, encode_elites
from policies.pollux.fitness import GREATEST_EXPONENT, LEAST_EXPONENT
from policies.pollux.population_search import population_search
from policies.pollux.round_problem import RoundProblem, Rows, round_problem

ALLOCATION, SEARCHED_AT = "allocation", "searched_at"
"""Keys of the state and of the search's result: GPUs by uid and node; when the search's snapshot was taken."""
ELITES, ADVICE = "elites", "advice"
"""Further such keys: survivors of a population search; ``NodeAdvice`` of a search in the background."""

MINIMUM, MINIMUM_NAMES = "-inf", frozenset({"-inf", "-.inf", "-infinity"})
"""The exponent for which the fitness is the smallest speed-up, in a form that JSON has; and how it may be written."""

NO_GPUS = Reason(Code.CPU_ONLY)
GAINS_LESS = Reason(Code.GOODPUT_GAINS_LESS)


def _exponent(given: object) -> float | str:
    """The exponent of the fitness from a configuration; minus infinity becomes ``MINIMUM``.

    Raises:
        ValueError: it is no number, plus infinity (which would serve one job alone), or NaN.
    """
    if given == -math.inf or (isinstance(given, str) and given.strip().lower() in MINIMUM_NAMES):
        return MINIMUM
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given <= GREATEST_EXPONENT:
        return float(given)
    raise ValueError(
        f'give a number up to {GREATEST_EXPONENT:g}, or "{MINIMUM}" for the smallest speed-up: not {given!r}'
    )


class PolluxParameters(PolicyParameters):
    """Parameters of the policy Pollux."""

    p: Annotated[float | Literal["-inf"], PlainValidator(_exponent)] = -1.0
    """The exponent of the fitness: 1 for the highest mean speed-up, lower for more fairness, "-inf" for the highest
    minimum.
    """
    search: Literal["direct", "population"] = "direct"
    """How allocations are searched for: ``direct``, or ``population``, the paper's."""
    improvements: int = Field(default=20, ge=0)
    """Neighbourhoods that a direct search tries for each job, at most."""
    generations: int = Field(default=100, ge=0)
    """Generations of a population search."""
    population: int = Field(default=100, ge=2)
    """Allocations of a generation."""
    avoid_interference: bool = True
    """Whether at most one job over several nodes is placed on a node."""
    restart_seconds: float = Field(default=30.0, ge=0)
    """Assumed seconds of a re-allocation of a job of which none was measured."""
    background: bool = True
    """Whether the daemon searches in the background, rather than in the round."""
    seed: int = Field(default=0, ge=0)
    """Seed of the search."""


class Pollux(Policy):
    """Goodput-driven allocation; elastic, preemptive, and the only policy that changes batch sizes."""

    name: ClassVar[str] = "pollux"
    Parameters: ClassVar[type[PolicyParameters]] = PolluxParameters
    parameters: PolluxParameters
    fits_iterations: ClassVar[bool] = True
    precompute_at: ClassVar[float] = 0.5
    wakes_on_result: ClassVar[bool] = True

    @property
    def solves_in_background(self) -> bool:
        """Whether the daemon searches between rounds."""
        return self.parameters.background

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Grant the latest allocation that was found, and GPUs that remain to the jobs that gain most."""
        found = self._problem(snapshot)
        latest = self._latest(snapshot, state, found)
        allocation = found.realisable(greedy_allocation(found.problem, found.matrix(latest.get(ALLOCATION, {}))))
        kept = {key: latest[key] for key in (ELITES, ADVICE) if key in latest}
        data = {ALLOCATION: found.rows(allocation), SEARCHED_AT: latest.get(SEARCHED_AT), **kept}
        advice = tuple(NodeAdvice(**one) for one in kept.get(ADVICE, ()))
        return replace(_decision(snapshot, found, allocation), advice=advice), PolicyState(1, data)

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Search for the best allocation, beginning with the present one and the last answer; and advise on nodes."""
        found = self._search(self._problem(snapshot), snapshot, state.data)
        larger = self._problem(snapshot, growth=MOST_GROWTH)
        advice = node_advice(larger, larger.matrix(found[ALLOCATION]))
        return {**found, ADVICE: [asdict(one) for one in advice]}

    def _latest(self, snapshot: Snapshot, state: PolicyState, found: RoundProblem) -> Mapping[str, Any]:
        """The result of the latest search; where nothing searches in the background, one for each regular round."""
        if snapshot.precomputed:
            return snapshot.precomputed
        before = state.data.get(SEARCHED_AT)
        due = before is None or not before <= snapshot.now < before + snapshot.round_seconds
        if snapshot.precomputed is None and due:
            return self._search(found, snapshot, state.data)
        return state.data

    def _search(self, found: RoundProblem, snapshot: Snapshot, data: Mapping[str, Any]) -> dict[str, Any]:
        last: Rows = data.get(ALLOCATION, {})
        given, starts, seed = self.parameters, [found.matrix(last)], self.parameters.seed + snapshot.round
        if given.search == "direct":
            improvements = given.improvements * len(found.jobs)
            chosen = direct_search(found.problem, seed=seed, improvements=improvements, starts=starts)
            return {ALLOCATION: found.rows(chosen), SEARCHED_AT: snapshot.now}
        keys, nodes = found.problem.keys, [node.name for node in found.nodes]
        starts += decode_elites(data[ELITES], keys, nodes) if ELITES in data else []
        survivors = population_search(
            found.problem, seed=seed, generations=given.generations, size=given.population, starts=starts
        )
        elites = encode_elites(list(survivors), keys, nodes)
        return {ALLOCATION: found.rows(survivors[0]), SEARCHED_AT: snapshot.now, ELITES: elites}

    def _problem(self, snapshot: Snapshot, growth: int = 1) -> RoundProblem:
        given = self.parameters
        return round_problem(
            snapshot,
            p=max(float(given.p), LEAST_EXPONENT),
            growth=growth,
            avoid_interference=given.avoid_interference,
            restart_seconds=given.restart_seconds,
        )


def _decision(snapshot: Snapshot, found: RoundProblem, allocation: Ints) -> Decision:
    """Grants of an allocation; jobs without GPUs wait, or run where other jobs' grants cannot be realised."""
    speedups = found.problem.speedups_of(allocation) if found.nodes else np.zeros(len(found.jobs))
    grants, fallback, waits = [], [], {}
    for number, job in enumerate(found.jobs):
        row = allocation[number]
        if job.placement is not None and (found.problem.pinned[number] or is_non_preemptible(job)):
            held = job.placement
            grants.append(Grant(job.uid, held.gpus, Reason(Code.RUNS_TO_END), gpu_type=held.gpu_type, exact=held))
        elif row.any():
            grants.append(_grant(job, found, number, row, float(speedups[number])))
        elif _could_run(found, number):
            fallback.append(_smallest(job))
        else:
            waits[job.uid] = Reason.of(
                Code.EXCEEDS_NODES, gpus=job.min_gpus, gpu_types=job.gpu_types, nodes=None, cpus=None
            )
    fallback += [Grant(job.uid, 0, NO_GPUS) for job in snapshot.jobs if not job.gpus]
    return Decision(tuple(grants), tuple(fallback), waits)


def _grant(job: Job, found: RoundProblem, number: int, row: Ints, speedup: float) -> Grant:
    """The grant of one job's row, with the batch that is best there where metasched may change it."""
    place = found.placement(row)
    batch = None
    facts: dict[str, Any] = {"speedup": round(speedup, 2), "batch": None, "efficiency": None}
    if is_tuned(job.batching):
        goodput, several = found.goodput[number][place.gpu_type or ""], len(place.nodes) > 1
        best = goodput.best(place.gpus, multi_node=several)
        if best is not None:
            near = _near_best(job, goodput, best) if job.placement == place else None
            batch = best.plan if near is None else job.requested_batch  # which asks the trainer for nothing new
            shown = near or best
            facts |= {"batch": shown.batch, "efficiency": round(100 * shown.efficiency)}
    reason = Reason.of(Code.GOODPUT_SPEEDUP, **facts)
    return Grant(job.uid, place.gpus, reason, gpu_type=place.gpu_type, exact=place, batch=batch)


def _near_best(job: Job, goodput: Goodput, best: TunedBatch) -> TunedBatch | None:
    """The job's present batch, or the one that its trainer was asked for, where the best one is hardly better.

    None for a run that was never asked: its lease has the parameters by which the trainer tunes its batch from the
    first plan on; and for one that was asked for what its script no longer allows. The trainer applies the same
    threshold to the plans that it chooses by itself.
    """
    held, asked = job.placement, job.requested_batch
    if held is None or job.batching is None or asked is None:
        return None
    smaller = BatchPlan(asked.per_gpu - 1, asked.accumulation)  # an even division is rounded up
    several = len(held.nodes) > 1
    reached = goodput.at(held.gpus, asked, multi_node=several)
    if reached is None or smaller.global_batch(held.gpus) >= goodput.limits.max_batch:
        return None
    present = None if job.batching.plan is None else goodput.at(held.gpus, job.batching.plan, multi_node=several)
    return next((one for one in (present, reached) if one and best.goodput <= one.goodput * (1 + HYSTERESIS)), None)


def _could_run(found: RoundProblem, number: int) -> bool:
    """Whether an empty cluster could hold the job."""
    limits, least = found.problem.node_limits[number], int(found.problem.least_gpus[number])
    most_nodes = int(found.problem.most_nodes[number])
    for gpu_type in range(len(found.types)):
        here = np.sort(limits[found.problem.node_types == gpu_type])[::-1]
        if here[:most_nodes].sum() >= least:
            return True
    return False


def _smallest(job: Job) -> Grant:
    """The grant of the fewest GPUs on which a job can run."""
    return Grant(job.uid, job.min_gpus, GAINS_LESS, at_least=job.min_gpus)
