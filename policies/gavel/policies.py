"""Gavel's policies (OSDI'20, Table 1): each says which shares of time are right, the round mechanism makes them so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import Times
from policies.gavel.fairness_objectives import finish_time_fairness, makespan, max_min_fairness, water_filling
from policies.gavel.job_classes import Mark, Market
from policies.gavel.problem import Floats
from policies.gavel.solve import inverse
from policies.gavel.sum_objectives import in_order, least_cost, most

LEAST = 0.01
"""Seconds that a job has left at least: programs cannot tell less from nothing beside ages of weeks."""


class GavelParameters(TimeShareParameters):
    """What all of Gavel's policies have.

    Attributes:
        aware: whether a job's speed on each GPU type counts; else the policy is its own heterogeneity-agnostic form.
        placement: whether GPUs on as few nodes as can be, and GPUs spread over as many, are two worker types (section
            3.1), for jobs whose speed on both is known.
        unknown_seconds: how much longer a job is taken to run at its fastest of which nobody knows how long.
    """

    aware: bool = True
    placement: bool = False
    unknown_seconds: float = Field(default=3600.0, gt=0)

    @model_validator(mode="after")
    def _aware_of_placement(self) -> Self:
        if self.placement and not self.aware:
            message = "placement needs aware: without, speeds do not count"
            raise ValueError(message)
        return self


class GavelPolicy(TimeSharePolicy):
    """Base: jobs go into classes, a program is solved over them, and its solution is the shares."""

    Parameters: ClassVar[type[GavelParameters]] = GavelParameters
    parameters: GavelParameters
    blind: ClassVar[bool] = True  # whether types are all alike to it where speeds do not count

    @property
    def placement(self) -> bool:
        """As the parameter says."""
        return self.parameters.placement

    def shares(self, claims: AllocationInputs, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """The solution of the policy's program."""
        market = Market.of(claims, aware=self.parameters.aware, mark=self.mark())
        if not market.members:
            return {}, memory
        x, memory = self.solve(market, claims, memory)
        if self.blind and not self.parameters.aware:
            x = market.problem.even(x)
        return market.times(x), memory

    def mark(self) -> Mark:
        """What tells jobs apart beside their speeds and their numbers of GPUs."""
        return lambda job: job.weight

    @abstractmethod
    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """The variables of the program, and what to remember."""

    def steps(self, market: Market) -> Floats:
        """Steps that are left of one job of each class; some always are, as long as it has not ended."""
        left = market.each(lambda job: np.nan if job.remaining_steps is None else job.remaining_steps)
        fastest = market.problem.fastest
        return np.maximum(np.where(np.isnan(left), self.parameters.unknown_seconds * fastest, left), LEAST * fastest)


class GavelLasParameters(GavelParameters):
    """Parameters of LAS.

    Attributes:
        fill: whether all shares are raised until nothing can grow (water filling, section 4.3), and not only the least
            one and then the sum.
    """

    fill: bool = False


class GavelLas(GavelPolicy):
    """Max-min fairness over weighted effective throughputs (section 4.1): least attained service, aware of speeds."""

    name: ClassVar[str] = "gavel_las"
    Parameters: ClassVar[type[GavelLasParameters]] = GavelLasParameters
    parameters: GavelLasParameters

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Max-min fairness."""
        del claims
        weights = market.each(lambda job: job.weight)
        if self.parameters.fill:
            return water_filling(market.problem, lambda growing: weights * growing), memory
        return max_min_fairness(market.problem, weights), memory


class GavelMakespanParameters(GavelParameters):
    """Parameters of the makespan.

    Attributes:
        tolerance: by so much, relative, it may be longer than the least, so that more is left to throughput.
    """

    tolerance: float = Field(default=0.0, ge=0)


class GavelMakespan(GavelPolicy):
    """The shortest time until all present jobs are done (section 4.2)."""

    name: ClassVar[str] = "gavel_makespan"
    Parameters: ClassVar[type[GavelMakespanParameters]] = GavelMakespanParameters
    parameters: GavelMakespanParameters

    def mark(self) -> Mark:
        """Jobs differ in what is left of them."""
        return lambda job: job.remaining_steps

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Minimise the longest duration."""
        del claims
        return makespan(market.problem, self.steps(market), self.parameters.tolerance), memory


class GavelFinishTimeFairness(GavelPolicy):
    """The smallest largest rho: the time that a job takes over that with 1/n of the cluster (section 4.2)."""

    name: ClassVar[str] = "gavel_ftf"

    def mark(self) -> Mark:
        """Every job has a past of its own."""
        return lambda job: job.uid

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Minimise the largest rho; remembers how long each job's past would have taken on 1/n of the cluster."""
        apart = market.problem.isolated
        known = memory.get("isolated", {})
        past: dict[str, list[float]] = {job.uid: known[job.uid] for job in claims.jobs if job.uid in known}
        for (job, *_), speed in zip(market.members, apart, strict=True):
            seconds, steps, before = past.get(job.uid, (0.0, 0.0, 0.0))
            most = max(job.progress_steps or 0.0, steps)  # what it lost and does again it has had once
            gained = (most - steps) / before if before > 0 else 0.0
            past[job.uid] = [seconds + gained, most, float(speed)]
        elapsed = market.each(lambda job: claims.now - job.submitted)
        alone = market.each(lambda job: past[job.uid][0])
        return finish_time_fairness(market.problem, self.steps(market), elapsed, alone), {"isolated": past}


class GavelInOrder(GavelPolicy):
    """Base: jobs have places in a queue, and throughput counts the more the further in front they are."""

    def mark(self) -> Mark:
        """Every job has a place of its own."""
        return lambda job: job.uid

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Serve in the order of the queue."""
        del claims
        order = np.argsort(np.argsort(self.queue(market), kind="stable"), kind="stable").astype(float)
        return in_order(market.problem, order), memory

    @abstractmethod
    def queue(self, market: Market) -> Floats:
        """A number for each job, the least for the first; among equals, who came first."""


class GavelFirstCome(GavelInOrder):
    """First come, first served, each on the fastest type, as an optimisation problem (section 4.2).

    Unlike in the paper, what a job gets counts as often as it has GPUs, so that a large one does not wait for small
    ones that came later.
    """

    name: ClassVar[str] = "gavel_fcfs"

    def queue(self, market: Market) -> Floats:
        """By submission."""
        return market.each(lambda job: job.submitted)


class GavelShortestFirst(GavelInOrder):
    """First come, first served, but by what is left: the shortest job counts most, then the next.

    The paper's shortest job first (section 4.2) minimises the duration of the shortest alone. This one serves all, and
    a short job may have a slower type where that gives others more; ``in_order`` says when.
    """

    name: ClassVar[str] = "gavel_sjf"

    def queue(self, market: Market) -> Floats:
        """By what is left on the fastest type, s."""
        return self.steps(market) * inverse(market.problem.fastest)


class GavelThroughput(GavelPolicy):
    """The most steps per second in all jobs together (section 4.2), with pairs where GPUs can be shared."""

    name: ClassVar[str] = "gavel_throughput"

    def mark(self) -> Mark:
        """Nothing else tells them apart."""
        return lambda _: None

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Maximise the sum."""
        del claims
        return most(market.problem, np.ones(len(market.members))), memory


class GavelCostParameters(GavelParameters):
    """Parameters of the least cost.

    Attributes:
        prices: by GPU type, what one GPU costs for an hour; a type that is not in it costs 1.
        slos: whether jobs get the throughput that their deadlines ask for, as far as that is possible.
        margin: part of the time to a deadline that is kept in reserve, as far as the job is fast enough.
        together: whether the sum of all throughputs over the sum of all costs is maximised, the paper's formula; else
            the sum over all jobs of their throughput over its cost, which does what the paper's evaluation tells.
    """

    prices: Mapping[str, Annotated[float, Field(gt=0)]] = Field(default={})
    slos: bool = True
    margin: float = Field(default=0.05, ge=0, lt=1)
    together: bool = False

    @property
    def gpu_types(self) -> frozenset[str]:
        """Those that have a price, too."""
        return super().gpu_types | self.prices.keys()


class GavelCost(GavelPolicy):
    """The most throughput for what the GPUs cost, with or without deadlines (section 4.2)."""

    name: ClassVar[str] = "gavel_cost"
    Parameters: ClassVar[type[GavelCostParameters]] = GavelCostParameters
    parameters: GavelCostParameters
    fills: ClassVar[bool] = False
    blind: ClassVar[bool] = False

    def mark(self) -> Mark:
        """Jobs with a deadline differ in when that is."""
        return lambda job: job.uid if self.parameters.slos and job.slo_seconds is not None else None

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Maximise throughput by cost."""
        prices = np.array([self.parameters.prices.get(kind, 1.0) for kind in market.types])
        time = market.each(lambda job: self._left(job, claims.now))
        urgent = self.steps(market) * inverse(np.where(np.isfinite(time), time, 0.0))
        # A deadline that leaves no room for all of the reserve can still be met.
        fastest = market.problem.fastest
        needs = np.where(urgent <= fastest, np.minimum(urgent / (1.0 - self.parameters.margin), fastest), urgent)
        return least_cost(market.problem, prices, needs, together=self.parameters.together)[0], memory

    def _left(self, job: Job, now: float) -> float:
        """Seconds to its deadline."""
        if not self.parameters.slos or job.slo_seconds is None:
            return np.inf
        return job.submitted + job.slo_seconds - now


class Entity(BaseModel):
    """One entity: a Slurm account.

    Attributes:
        weight: of its share of the cluster.
        inside: how its jobs share that: ``fairness`` by their weights, or ``fifo``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    weight: float = Field(default=1.0, gt=0)
    inside: Literal["fairness", "fifo"] = "fairness"


LEAST_PART = 1e-3
"""Of the average weight, what an account has at least: nobody waits for ever for having no shares."""


class GavelHierarchicalParameters(GavelParameters):
    """Parameters of the hierarchy.

    Attributes:
        entities: by Slurm account: ``weight`` and ``inside`` (``fairness`` or ``fifo``).
        others: the same for accounts that are not in it, each on its own. Where Slurm's associations tell their shares,
            their weights are in the ratio of these, and ``weight`` is the average of those that have jobs.
    """

    entities: Mapping[str, Entity] = Field(default={})
    others: Entity = Entity()


class GavelHierarchical(GavelPolicy):
    """Fairness between accounts, and fairness or FIFO within each, by water filling (section 4.3)."""

    name: ClassVar[str] = "gavel_hierarchical"
    Parameters: ClassVar[type[GavelHierarchicalParameters]] = GavelHierarchicalParameters
    parameters: GavelHierarchicalParameters

    def entity(self, job: Job) -> Entity:
        """The entity of a job; the weights of those that are not named are another question."""
        return self.parameters.entities.get(job.account or "", self.parameters.others)

    def weights(self, jobs: Iterable[Job]) -> Mapping[str, float]:
        """By account ("" for none), the weights of the entities that these jobs belong to."""
        named, others = self.parameters.entities, self.parameters.others.weight
        shares = {job.account or "": job.fair_share for job in jobs}
        known = [share for account, share in shares.items() if account not in named and share is not None]
        average = sum(known) / len(known) if known else 0.0
        return {
            account: named[account].weight
            if account in named
            else others * max(share / average, LEAST_PART)
            if share is not None and average
            else others
            for account, share in shares.items()
        }

    def _asked(self, claims: AllocationInputs) -> Mapping[str, Any]:
        """Shares of time are made anew when weights change, too."""
        return {**super()._asked(claims), "weights": self.weights(claims.jobs)}

    def mark(self) -> Mark:
        """Jobs differ by account and weight; in a queue each has its place."""
        return lambda job: (job.account, job.weight, job.uid if self.entity(job).inside == "fifo" else None)

    def solve(
        self, market: Market, claims: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[Floats, Mapping[str, Any]]:
        """Fill, handing an account's weight on to those of its jobs that can still grow."""
        accounts: dict[str, list[int]] = {}
        for number, (job, *_) in enumerate(market.members):
            accounts.setdefault(job.account or "", []).append(number)
        weight = self.weights(claims.jobs)
        own, counts = market.each(lambda job: job.weight), market.problem.counts

        def weights(growing: Floats) -> Floats:
            found = np.zeros(len(growing))
            for account, numbers in accounts.items():
                left = [number for number in numbers if growing[number] > 0]
                entity = self.entity(market.members[numbers[0]][0])
                if left and entity.inside == "fifo":
                    first = min(left, key=lambda n: (market.members[n][0].submitted, market.members[n][0].uid))
                    found[first] = weight[account]
                elif left:
                    total = float((own[left] * counts[left]).sum())
                    found[left] = weight[account] * own[left] / total
            return found

        return water_filling(market.problem, weights), memory
