"""Gavel's policies (Narayanan et al., OSDI 2020, Table 1): programs whose solutions are time shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import DEGRADED, TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares
from policies.gavel.fairness_objectives import (
    Weights,
    equal_share_factor,
    finish_time_fairness,
    least_throughput,
    makespan,
    makespan_factor,
    max_min_fairness,
    water_filling,
    with_least_weights,
)
from policies.gavel.job_classes import ClassKey, JobClasses
from policies.gavel.problem import Floats, Ints
from policies.gavel.solve import UnsolvedError, inverse
from policies.gavel.sum_objectives import in_order, least_cost, total_throughput

LEAST_SECONDS = 0.01
"""Least remaining seconds of a job: a solver does not distinguish less from 0 among ages of weeks."""


class GavelParameters(TimeShareParameters):
    """Parameters of all Gavel policies."""

    aware: bool = True
    """Whether a job's speed on each GPU type counts; without, the policy's heterogeneity-agnostic form."""
    placement: bool = False
    """Whether consolidated and unconsolidated GPUs are two worker types (section 3.1), for multi-GPU jobs whose speed
    on both is known.
    """
    unknown_seconds: float = Field(default=3600.0, gt=0)
    """Assumed remaining seconds, on its fastest type, of a job whose remaining steps are not known."""

    @model_validator(mode="after")
    def _aware_of_placement(self) -> Self:
        if self.placement and not self.aware:
            message = "placement needs aware: without, speeds do not count"
            raise ValueError(message)
        return self


class GavelPolicy(TimeSharePolicy):
    """Base: puts jobs into classes, and solves a program over them, whose solution is the time shares."""

    Parameters: ClassVar[type[GavelParameters]] = GavelParameters
    parameters: GavelParameters
    types_alike: ClassVar[bool] = True  # whether all GPU types are alike to the agnostic form

    @property
    def placement(self) -> bool:
        """Whether consolidated and unconsolidated GPUs are two worker types, the parameter ``placement``."""
        return self.parameters.placement

    @property
    def constrained_by_quotas(self) -> bool:
        """Whether the program has the quotas as constraints (``Problem.constrained_by_quotas``)."""
        return False

    @property
    def knows_quotas(self) -> bool:
        """Whether the program knows the quotas; jobs of different quotas are then no longer alike to it."""
        return self.constrained_by_quotas

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """The solution of the policy's program; the memory is that of ``remember``, and ``DEGRADED``."""
        memory = {key: value for key, value in memory.items() if key != DEGRADED}
        classes = JobClasses.of(
            inputs, aware=self.parameters.aware, class_key=self.class_key(), quotas=self.knows_quotas
        )
        if not classes.members:
            return {}, memory
        if self.constrained_by_quotas:
            classes = replace(classes, problem=replace(classes.problem, constrained_by_quotas=True))
        memory = self.remember(classes, memory)
        x, degraded = self._solve_or_substitute(classes, memory)
        if self.types_alike and not self.parameters.aware:
            x = classes.problem.spread_evenly(x)
        return classes.time_shares(x), memory if degraded is None else {**memory, DEGRADED: degraded}

    def _solve_or_substitute(self, classes: JobClasses, memory: Mapping[str, Any]) -> tuple[Floats, str | None]:
        """The solution of the first program of these that HiGHS solves, so that every round has time shares.

        The policy's program; the same by HiGHS's robust methods; its simple program; X^isolated, which needs none.

        Returns:
            The variables, shape (variables,); and the substitute that they come from, None for the policy's program.
        """
        robust = replace(classes, problem=replace(classes.problem, robust=True))
        attempts: tuple[tuple[str | None, Callable[[], Floats]], ...] = (
            (None, lambda: self.solve(classes, memory)),
            ("robust_method", lambda: self.solve(robust, memory)),
            ("simple_program", lambda: self.solve_simply(robust, memory)),
        )
        for substitute, solve in attempts:
            with suppress(UnsolvedError):
                x = solve()
                if np.isfinite(x).all():
                    return x, substitute
        return classes.problem.isolated_time, "equal_shares"

    def class_key(self) -> ClassKey:
        """What distinguishes jobs in addition to their speeds and numbers of GPUs: here the weight."""
        return lambda job: job.weight

    @abstractmethod
    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """The variables of the policy's program, shape (variables,).

        Raises:
            UnsolvedError: HiGHS gave up.
        """

    def solve_simply(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """The variables of a simpler program, for when HiGHS gives up on the policy's own; none by default.

        Raises:
            UnsolvedError: HiGHS gave up, or there is no simpler program.
        """
        del classes, memory
        raise UnsolvedError(f"{self.name} has no simpler program")

    def remember(self, classes: JobClasses, memory: Mapping[str, Any]) -> Mapping[str, Any]:
        """The memory of this computation and the next one, from that of the last one; unchanged by default."""
        del classes
        return memory

    def steps(self, classes: JobClasses) -> Floats:
        """Remaining steps of one job of each class, shape (M,), above 0 as long as the job has not ended."""
        left = classes.each(lambda job: np.nan if job.remaining_steps is None else job.remaining_steps)
        fastest = classes.problem.fastest
        return np.maximum(
            np.where(np.isnan(left), self.parameters.unknown_seconds * fastest, left), LEAST_SECONDS * fastest
        )


class GavelLasParameters(GavelParameters):
    """Parameters of the policy LAS."""

    fill: bool = False
    """Whether all time shares are raised until none can grow (water filling, section 4.3), instead of the minimum first
    and then the sum.
    """


class GavelLas(GavelPolicy):
    """Max-min fairness over weighted effective throughputs (section 4.1): least attained service, aware of speeds."""

    name: ClassVar[str] = "gavel_las"
    Parameters: ClassVar[type[GavelLasParameters]] = GavelLasParameters
    parameters: GavelLasParameters

    @property
    def constrained_by_quotas(self) -> bool:
        """True with water filling: jobs that their quota limits grow no more, and the others go on."""
        return self.parameters.fill

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Max-min fairness by weight, or water filling."""
        del memory
        weights = classes.each(lambda job: job.weight)
        if self.parameters.fill:
            return water_filling(classes.problem, lambda growing: weights * growing)
        return max_min_fairness(classes.problem, weights)

    def solve_simply(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """The first stage alone; of water filling, the level that is reached where HiGHS gives up."""
        del memory
        weights = classes.each(lambda job: job.weight)
        if self.parameters.fill:
            return water_filling(classes.problem, lambda growing: weights * growing, may_stop=True)
        return least_throughput(classes.problem, equal_share_factor(classes.problem, with_least_weights(weights)))


class GavelMakespanParameters(GavelParameters):
    """Parameters of the makespan."""

    tolerance: float = Field(default=0.0, ge=0)
    """Relative excess over the shortest makespan that is accepted, so that more is left to throughput."""


class GavelMakespan(GavelPolicy):
    """The shortest time until all present jobs are done (section 4.2)."""

    name: ClassVar[str] = "gavel_makespan"
    Parameters: ClassVar[type[GavelMakespanParameters]] = GavelMakespanParameters
    parameters: GavelMakespanParameters

    def class_key(self) -> ClassKey:
        """Jobs differ in their remaining steps."""
        return lambda job: job.remaining_steps

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Minimise the longest remaining duration."""
        del memory
        return makespan(classes.problem, self.steps(classes), self.parameters.tolerance)

    def solve_simply(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """The first stage alone."""
        del memory
        return least_throughput(classes.problem, makespan_factor(classes.problem, self.steps(classes)))


class GavelFinishTimeFairness(GavelPolicy):
    """The smallest maximum rho: a job's JCT over its JCT with 1/n of the cluster (section 4.2).

    The GPUs of X^isolated are those that quotas allow: a job that waits for its own quota is not treated unfairly.
    """

    name: ClassVar[str] = "gavel_ftf"

    @property
    def knows_quotas(self) -> bool:
        """True: X^isolated is within the quotas."""
        return True

    def class_key(self) -> ClassKey:
        """Each job is a class of its own, because no two jobs have the same past."""
        return lambda job: job.uid

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Minimise the largest rho."""
        elapsed = classes.each(lambda job: classes.inputs.now - job.submitted)
        isolated_elapsed = classes.each(lambda job: memory["isolated"][job.uid][0])
        return finish_time_fairness(classes.problem, self.steps(classes), elapsed, isolated_elapsed)

    def solve_simply(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """The largest least speedup over 1/n of the cluster: finish-time fairness among jobs without a past."""
        del memory
        return least_throughput(classes.problem, inverse(classes.problem.isolated))

    def remember(self, classes: JobClasses, memory: Mapping[str, Any]) -> Mapping[str, Any]:
        """By uid: seconds that the job's steps would have taken with 1/n, these steps, and steps/s with 1/n now."""
        known = memory.get("isolated", {})
        past: dict[str, list[float]] = {job.uid: known[job.uid] for job in classes.inputs.jobs if job.uid in known}
        for (job, *_), speed in zip(classes.members, classes.problem.isolated, strict=True):
            seconds, steps, before = past.get(job.uid, (0.0, 0.0, 0.0))
            most = max(job.progress_steps or 0.0, steps)  # steps that are lost and repeated count once
            gained = (most - steps) / before if before > 0 else 0.0
            past[job.uid] = [seconds + gained, most, float(speed)]
        return {"isolated": past}


class GavelInOrder(GavelPolicy):
    """Base: jobs have positions in a queue, and throughput counts more for earlier positions."""

    @property
    def constrained_by_quotas(self) -> bool:
        """True: the first members of a quota come first, as among all jobs."""
        return True

    def class_key(self) -> ClassKey:
        """Each job is a class of its own, because no two jobs have the same position."""
        return lambda job: job.uid

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Maximise the sum of throughputs, by position in the queue."""
        del memory
        order = np.argsort(np.argsort(self.queue(classes), kind="stable"), kind="stable").astype(float)
        return in_order(classes.problem, order)

    @abstractmethod
    def queue(self, classes: JobClasses) -> Floats:
        """Sort key of each job in the queue, ascending, shape (M,); equal keys are ordered by arrival."""


class GavelFirstCome(GavelInOrder):
    """First come, first served, each on the fastest type, as an optimisation problem (section 4.2).

    Deviation: throughput counts times the job's GPUs, so that a large job does not wait for later small ones.
    """

    name: ClassVar[str] = "gavel_fcfs"

    def queue(self, classes: JobClasses) -> Floats:
        """Submission of each job in unix seconds, shape (M,): the first job to arrive is served first."""
        return classes.each(lambda job: job.submitted)


class GavelShortestFirst(GavelInOrder):
    """Shortest job first: ``GavelFirstCome`` in the order of remaining time.

    Deviation: the paper's program (section 4.2) minimises the duration of the shortest job alone. This one serves all
    jobs, and a short job may have a slower type where other jobs gain more by that (``in_order``).
    """

    name: ClassVar[str] = "gavel_sjf"

    def queue(self, classes: JobClasses) -> Floats:
        """Remaining seconds of each job on its fastest type, shape (M,)."""
        fastest = classes.problem.fastest
        left = classes.each(lambda job: np.nan if job.remaining_steps is None else job.remaining_steps)
        # Not by way of the steps of an unknown total, whose rounding would order equally long jobs by their speeds.
        return np.where(np.isnan(left), self.parameters.unknown_seconds, left / np.where(fastest > 0, fastest, 1.0))


class GavelThroughput(GavelPolicy):
    """The most steps per second in all jobs together (section 4.2), with pairs where GPUs can be shared."""

    name: ClassVar[str] = "gavel_throughput"

    def class_key(self) -> ClassKey:
        """Nothing distinguishes jobs but their speeds and numbers of GPUs."""
        return lambda _: None

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Maximise the sum of throughputs."""
        del memory
        return total_throughput(classes.problem, np.ones(len(classes.members)))


class GavelCostParameters(GavelParameters):
    """Parameters of the cost policy."""

    prices: Mapping[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """By GPU type, the price of one GPU for an hour; a type without one costs 1."""
    slos: bool = True
    """Whether jobs get the throughput that their deadlines require, as far as possible."""
    margin: float = Field(default=0.05, ge=0, lt=1)
    """Fraction of the time to a deadline that is kept in reserve, as far as the job is fast enough."""
    together: bool = False
    """Whether the ratio of sums is maximised, all throughputs over all costs, the paper's formula; else the sum over
    all jobs of throughput over cost, which behaves as the paper's evaluation reports.
    """

    @property
    def gpu_types(self) -> frozenset[str]:
        """GPU types that the parameters name, those with a price included."""
        return super().gpu_types | self.prices.keys()


class GavelCost(GavelPolicy):
    """The most throughput per cost of the GPUs, with or without deadlines (section 4.2)."""

    name: ClassVar[str] = "gavel_cost"
    Parameters: ClassVar[type[GavelCostParameters]] = GavelCostParameters
    parameters: GavelCostParameters
    fills: ClassVar[bool] = False
    types_alike: ClassVar[bool] = False

    @property
    def quantum_restarts(self) -> float:
        """Length of a quantum, in restarts; 0 with deadlines: a job may need GPUs before the quanta of others end."""
        return 0.0 if self.parameters.slos else super().quantum_restarts

    def class_key(self) -> ClassKey:
        """A job with a deadline is a class of its own."""
        return lambda job: job.uid if self.parameters.slos and job.slo_seconds is not None else None

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Maximise throughput per cost, deadlines met where possible."""
        del memory
        prices = np.array([self.parameters.prices.get(gpu_type, 1.0) for gpu_type in classes.types])
        time = classes.each(lambda job: self._seconds_to_deadline(job, classes.inputs.now))
        urgent = self.steps(classes) * inverse(np.where(np.isfinite(time), time, 0.0))
        # A deadline too near for the whole reserve can still be met.
        fastest = classes.problem.fastest
        needs = np.where(urgent <= fastest, np.minimum(urgent / (1.0 - self.parameters.margin), fastest), urgent)
        return least_cost(classes.problem, prices, needs, together=self.parameters.together)[0]

    def _seconds_to_deadline(self, job: Job, now: float) -> float:
        """Seconds to the job's deadline; infinite without one."""
        if not self.parameters.slos or job.slo_seconds is None:
            return np.inf
        return job.submitted + job.slo_seconds - now


class Entity(BaseModel):
    """One entity: a Slurm account."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    weight: float = Field(default=1.0, gt=0)
    """Weight of the entity in fairness between entities."""
    inside: Literal["fairness", "fifo"] = "fairness"
    """Division among its jobs: ``fairness``, by their weights, or ``fifo``."""


LEAST_WEIGHT = 1e-3
"""Least weight of an account, relative to the average: an account without Slurm shares does not starve."""


class GavelHierarchicalParameters(GavelParameters):
    """Parameters of the hierarchical policy."""

    entities: Mapping[str, Entity] = Field(default={})
    """By Slurm account: ``weight`` and ``inside`` (``fairness`` or ``fifo``)."""
    others: Entity = Entity()
    """The same for each account that is not named. Where Slurm reports their shares, their weights are in the ratio of
    these, and ``weight`` is the average of those that have jobs.
    """


class GavelHierarchical(GavelPolicy):
    """Fairness between accounts, and fairness or FIFO within each, by water filling (section 4.3)."""

    name: ClassVar[str] = "gavel_hierarchical"
    Parameters: ClassVar[type[GavelHierarchicalParameters]] = GavelHierarchicalParameters
    parameters: GavelHierarchicalParameters

    @property
    def constrained_by_quotas(self) -> bool:
        """True, as with all water filling."""
        return True

    def entity(self, job: Job) -> Entity:
        """The entity of a job; ``weights`` has the weights of accounts that are not named."""
        return self.parameters.entities.get(job.account or "", self.parameters.others)

    def weights(self, jobs: Iterable[Job]) -> Mapping[str, float]:
        """By account ("" for none) of these jobs, the weight of its entity."""
        named, others = self.parameters.entities, self.parameters.others.weight
        shares = {job.account or "": job.fair_share for job in jobs}
        known = [share for account, share in shares.items() if account not in named and share is not None]
        average = sum(known) / len(known) if known else 0.0
        return {
            account: named[account].weight
            if account in named
            else others * max(share / average, LEAST_WEIGHT)
            if share is not None and average
            else others
            for account, share in shares.items()
        }

    def _dependencies(self, inputs: AllocationInputs) -> Mapping[str, Any]:
        """What time shares depend on, the weights of the entities included."""
        return {**super()._dependencies(inputs), "weights": self.weights(inputs.jobs)}

    def class_key(self) -> ClassKey:
        """Jobs differ by account and weight; under ``fifo`` each is a class of its own."""
        return lambda job: (job.account, job.weight, job.uid if self.entity(job).inside == "fifo" else None)

    def solve(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Water filling; an account's weight passes to those of its jobs that can still grow."""
        del memory
        return water_filling(classes.problem, self._class_weights(classes))

    def solve_simply(self, classes: JobClasses, memory: Mapping[str, Any]) -> Floats:
        """Water filling up to the level that is reached where HiGHS gives up."""
        del memory
        return water_filling(classes.problem, self._class_weights(classes), may_stop=True)

    def _class_weights(self, classes: JobClasses) -> Weights:
        """From the classes that can still grow, the weight of one job of each class."""
        accounts: dict[str, list[int]] = {}
        for number, (job, *_) in enumerate(classes.members):
            accounts.setdefault(job.account or "", []).append(number)
        weight = self.weights(classes.inputs.jobs)
        own, counts = classes.each(lambda job: job.weight), classes.problem.counts
        fifo, fair = list[tuple[float, Ints]](), list[tuple[float, Ints]]()
        for account, numbers in accounts.items():
            jobs = [classes.members[number][0] for number in numbers]
            if self.entity(jobs[0]).inside == "fifo":
                order = sorted(range(len(jobs)), key=lambda at: (jobs[at].submitted, jobs[at].uid))
                fifo.append((weight[account], np.array(numbers)[order]))
            else:
                fair.append((weight[account], np.array(numbers)))

        def weights(growing: Floats) -> Floats:
            """The weight of one job of each class, shape (M,), from which classes still grow (``water_filling``)."""
            found = np.zeros(len(growing))
            for of_account, numbers in fifo:
                if growing[first := numbers[np.argmax(growing[numbers] > 0)]] > 0:
                    found[first] = of_account
            for of_account, numbers in fair:
                if len(left := numbers[growing[numbers] > 0]):
                    found[left] = of_account * own[left] / float((own[left] * counts[left]).sum())
            return found

        return weights
