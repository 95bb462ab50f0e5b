"""Shockwave: a market for the rounds to come, planned ahead with predicted batch size regimes.

Source: Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning",
NSDI 2023. A round, step by step:

1. Forecast (``forecast``): the work that each job has left, and how fast it trains.
2. Budgets (``contention``, ``budgets``): jobs that are heading for an unfair finish can buy more.
3. Market (``round_market``): jobs, nodes and quotas as one window of rounds.
4. Plan (``solver``): the best schedule of the window. Under the daemon it is made in the background, from the middle of
   a round on, for the next one.
5. Grants: the plan's present round, on the fresh market. What jobs have left free, or arrivals need, is given out by
   the plan's prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.shockwave.contention import ContentionHistory
from policies.shockwave.forecast import Prediction
from policies.shockwave.market import Window
from policies.shockwave.plan import Plan
from policies.shockwave.predictor import Estimator
from policies.shockwave.round_market import MarketRules, RoundMarket, Way, round_market
from policies.shockwave.solver import continue_schedule, solve

PLAN, SOLVED_AT, DECIDED_AT, CONTENTION = "plan", "solved_at", "decided_at", "contention"
"""Keys of the state: the plan; when it was solved for, and when the last round was, unix seconds; the history."""

NO_GPUS = Reason(Code.CPU_ONLY)
NO_PLAN = Plan(0.0, 1.0, 0, {}, {}, 1.0)


class ShockwaveParameters(PolicyParameters):
    """Parameters of Shockwave."""

    k: float = Field(default=4.0, ge=0, le=20)
    """The exponent of the estimated finish-time fairness in budgets: how strongly unfairness is made good."""
    regularisation: float = Field(default=0.3, ge=0)
    """The weight of the makespan (lambda): 1 values 1 % of the makespan as 1 % of the mean progress."""
    window_rounds: int = Field(default=20, ge=2, le=200)
    """Rounds that are planned (T), at least 2."""
    predictor: Literal["restatement", "bayes", "greedy"] = "restatement"
    """How the lengths of batch size regimes are estimated: the paper's ``restatement`` rule, the standard ``bayes``
    posterior, or ``greedy``: the present batch to the end.
    """
    samples: int = Field(default=0, ge=0, le=1000)
    """Sampled trajectories whose expected progress counts (Appendix F); 0 for the mean trajectory."""
    reactive: bool = True
    """Whether another batch of a job brings the round forward."""
    elastic: bool = False
    """Whether elastic jobs choose among sizes; otherwise all have what they ask for."""
    whole_job: bool = False
    """Whether progress counts relative to the whole job (Eq. 8), rather than to the work that is left."""
    by_account: bool = False
    """Whether the accounts' shares are weights, which their jobs divide."""
    restart_seconds: float = Field(default=30.0, ge=0)
    """Assumed seconds of a restart of a job of which none was measured."""
    background: bool = True
    """Whether the daemon plans in the background, rather than in the round."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sampled trajectories."""


class Shockwave(Policy):
    """A Fisher market over the rounds of a window, with predicted regimes; preemptive, sizes as requested."""

    name: ClassVar[str] = "shockwave"
    Parameters: ClassVar[type[PolicyParameters]] = ShockwaveParameters
    parameters: ShockwaveParameters
    fits_iterations: ClassVar[bool] = True
    precompute_at: ClassVar[float] = 0.5

    @property
    def wakes_on_batch(self) -> bool:
        """Whether another batch of a job brings the round forward."""
        return self.parameters.reactive

    @property
    def solves_in_background(self) -> bool:
        """Whether the daemon plans between rounds."""
        return self.parameters.background

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Grant the plan's present round, after its answer or a new solution, where one is due."""
        now, data = snapshot.now, state.data
        history = _history(data).until(snapshot)
        found = self._market(snapshot, history, now)
        plan = _plan(data)
        solved_at = data.get(SOLVED_AT)
        if snapshot.precomputed:
            plan, solved_at = Plan.from_json({**snapshot.precomputed[PLAN], "began": now}), now
        due = solved_at is None or not solved_at <= now < solved_at + snapshot.round_seconds * (1.0 - 1e-6)
        if snapshot.precomputed is None and due:
            plan, solved_at = _solved(found, plan, now), now
        else:
            before = plan if plan is not None else NO_PLAN
            schedule = continue_schedule(found.market, before.schedule(found), before.elapsed(now))
            plan = Plan.of(found, schedule, before.round_began(now))
        after = {PLAN: plan.to_json(), SOLVED_AT: solved_at, DECIDED_AT: now, CONTENTION: history.to_json()}
        return _decision(snapshot, found, plan), PolicyState(1, after)

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Plan the window that begins with the next regular round."""
        data = state.data
        next_round = data.get(DECIDED_AT, snapshot.now) + snapshot.round_seconds
        begins = max(snapshot.now, min(next_round, snapshot.now + snapshot.round_seconds))
        found = self._market(snapshot, _history(data).until(snapshot), begins)
        return {PLAN: _solved(found, _plan(data), begins).to_json()}

    def _market(self, snapshot: Snapshot, history: ContentionHistory, begins: float) -> RoundMarket:
        given = self.parameters
        window = Window(given.window_rounds, snapshot.round_seconds, given.regularisation, elastic=given.elastic)
        prediction = Prediction(Estimator(given.predictor), given.samples, given.seed)
        rules = MarketRules(window, given.k, prediction, given.restart_seconds, given.by_account, given.whole_job)
        return round_market(snapshot, history, rules, begins)


class _Place(NamedTuple):
    """One job's place in the plan: its way, its rounds left in the window, and the first of them."""

    way: Way
    rounds: int
    first: int


def _plan(data: Mapping[str, Any]) -> Plan | None:
    """The plan in a state's data; None where there is none."""
    return Plan.from_json(data[PLAN]) if PLAN in data else None


def _solved(found: RoundMarket, last: Plan | None, begins: float) -> Plan:
    """The plan of the best schedule of the window that begins at an instant, after an earlier plan."""
    before, elapsed = (None, 0) if last is None else (last.schedule(found), last.elapsed(begins))
    # Only the first round is certain, and the objective does not know when in the window a job runs.
    return Plan.of(found, solve(found.market, before, elapsed, prompt=True), begins)


def _history(data: Mapping[str, Any]) -> ContentionHistory:
    return ContentionHistory.from_json(data[CONTENTION]) if CONTENTION in data else ContentionHistory()


def _decision(snapshot: Snapshot, found: RoundMarket, plan: Plan) -> Decision:
    """Grants of the plan's first round; other jobs run where these cannot be placed, those planned next first."""
    places = {uid: _Place(way, len(rounds), rounds[0]) for uid, (way, rounds) in plan.jobs.items()}
    pinned: list[Grant] = []
    runs: list[Grant] = []
    starts: list[Grant] = []
    later: list[tuple[int, float, Grant]] = []
    waits: dict[str, Reason] = {}
    for job in snapshot.jobs:
        if not job.gpus:
            later.append((plan.rounds + 2, 0.0, Grant(job.uid, 0, NO_GPUS)))
            continue
        place, reason = places.get(job.uid), _reason(job, found, plan, places.get(job.uid))
        if job.uid in found.pinned and job.placement is not None:
            held = job.placement
            pinned.append(Grant(job.uid, held.gpus, reason, gpu_type=held.gpu_type, exact=held))
        elif place is not None and place.first == 0:
            here = job.placement is not None and (job.placement.gpu_type, job.placement.gpus) == place.way
            grant = Grant(job.uid, place.way.gpus, reason, gpu_type=place.way.gpu_type, consolidate=True)
            (runs if here else starts).append(grant)
        elif found.ways[job.uid]:
            first = plan.rounds + 1 if place is None else place.first
            later.append((first, -found.rho.get(job.uid, 1.0), _smallest(job, reason)))
        else:
            waits[job.uid] = Reason.of(
                Code.EXCEEDS_NODES, gpus=job.min_gpus, gpu_types=job.gpu_types, nodes=None, cpus=None
            )
    starts.sort(key=lambda grant: (-grant.gpus, -found.rho.get(grant.uid, 1.0)))
    fallback = [grant for *_, grant in sorted(later, key=lambda one: one[:2])]
    shown = {uid: run for uid, run in plan.next_runs(snapshot.now).items() if uid in found.rho}
    return Decision((*pinned, *runs, *starts), tuple(fallback), waits, planned=shown)


def _reason(job: Job, found: RoundMarket, plan: Plan, place: _Place | None) -> Reason:
    """Why a job runs or waits: its rounds in the window, and its estimated finish-time fairness."""
    if job.uid in found.market.refused:
        return Reason.of(Code.MARKET_REFUSES, why=found.market.refused[job.uid])
    rho = found.rho.get(job.uid)
    reason = Reason.of(
        Code.MARKET_ROUNDS,
        rounds=0 if place is None else place.rounds,
        window=plan.rounds,
        first=None if place is None else place.first,
        rho=None if rho is None else round(rho, 2),
    )
    return reason if rho is not None else reason.and_also(Reason(Code.WORK_UNKNOWN))


def _smallest(job: Job, reason: Reason) -> Grant:
    """The grant of the fewest GPUs on which a job can run."""
    return Grant(job.uid, job.min_gpus, reason, at_least=job.min_gpus)
