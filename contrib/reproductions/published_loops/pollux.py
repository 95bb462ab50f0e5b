"""The loop of Pollux's public simulator (OSDI 2021 artifact), driving our engine.

What it does otherwise than ``simulator.run``:

- The clock goes in scheduling intervals from 0. Arrivals and ends wait for the end of an interval: what an ended job
  held is idle until then.
- Whoever gets another place, the first one included, trains only ``restart_seconds`` later. Leaving is free.
- Where the speed changes (an epoch ends), and at the job's end, the time is rounded to a whole second.
- Its policies decide amounts, and place them themselves: a job whose amount stays keeps its place; the others, in the
  order of the grants, take from the node with most free GPUs, then from the next, however unevenly.
- What its Optimus knows of a job is not quite the truth: steps are counted at the user's batch size, those of the epoch
  under way as if it were over (and one in the last); a single GPU makes two passes at least, whatever the batch; and
  jobs of the application ``ncf`` never have more than one GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from metasched.core.model import Decision, Grant, Job, Node, Placement, Snapshot, Speed, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.scheduling.engine import run_round
from metasched.simulator.records import JobOutcome, Outcome, RoundOutcome, RunInterval, Settings, Submission, Workload
from metasched.simulator.simulation import MAX_IDLE_ROUNDS, RoundObserver, TimedPolicy
from metasched.throughput.goodput_profile import Profile, ProfileTraining, packed

NEVER_GROWS = "ncf"
NODE_GPUS = 4


def simulate_pollux(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings,
    *,
    watch: RoundObserver | None = None,
) -> Outcome:
    """Run a workload to its end, as Pollux's public simulator would.

    Args:
        workload: the jobs.
        nodes: the cluster.
        policy: who decides the amounts.
        settings: ``round_seconds`` is the interval, ``restart_seconds`` the delay; everything else is the loop's.
        watch: is shown every round.
    """
    return _Loop(workload, nodes, policy, settings, watch).run()


class MostFreeFirst(Policy):
    """A policy whose grants are placed as Pollux's simulator does for Tiresias and Optimus."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters)
        self.policy = policy
        self.name = policy.name  # type: ignore[misc]

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """As the policy does."""
        return self.policy.initial_state(snapshot)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The policy's amounts, each with its place; who is offered as fallback waits."""
        decision, state = self.policy.decide(snapshot, state)
        free = {node.name: node.gpus for node in snapshot.nodes}
        kept = {grant.uid: place for grant in decision.grants if (place := _kept(snapshot.job[grant.uid], grant))}
        for place in kept.values():
            for name, gpus in place.node_gpus:
                free[name] -= gpus
        waits = {**decision.waits, **{grant.uid: grant.reason for grant in decision.fallback}}
        grants = []
        for grant in decision.grants:
            if grant.uid not in kept and grant.gpus > sum(free.values()):
                missing = Reason.of(Code.WAITS_FOR_GPUS, gpus=grant.gpus, gpu_types=(), free=sum(free.values()))
                waits[grant.uid] = grant.reason.and_also(missing)
                continue
            place = kept.get(grant.uid) or _take(free, grant.gpus, snapshot)
            grants.append(replace(grant, at_least=None, gpu_type=place.gpu_type, exact=place))
        return Decision(tuple(grants), (), waits), state


def _kept(job: Job, grant: Grant) -> Placement | None:
    """Its present place, if the amount is the same."""
    return job.placement if job.placement is not None and job.placement.gpus == grant.gpus else None


def _take(free: dict[str, int], gpus: int, snapshot: Snapshot) -> Placement:
    """So many GPUs, from the node with most of them, then from the next."""
    shares: dict[str, int] = {}
    while gpus > 0:
        name = max(free, key=free.__getitem__)
        count = min(free[name], gpus)
        free[name] -= count
        gpus -= count
        shares[name] = count
    return Placement(tuple(shares), max(shares.values()), snapshot.node[name].gpu_type, uneven=tuple(shares.values()))


@dataclass(frozen=True, slots=True, eq=False)
class OptimusView:
    """The step times that the artifact's Optimus predicts: truth, but for a single GPU."""

    profile: Profile
    batch: int
    found: dict[int, float | None] = field(default_factory=dict)

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """At the user's batch size, on nodes of four GPUs, packed."""
        del gpu_type
        gpus = sum(spread)
        if gpus not in self.found:
            self.found[gpus] = self._predict(gpus)
        return self.found[gpus]

    def _predict(self, gpus: int) -> float | None:
        split = self.profile.split(self.batch, gpus)
        if gpus == 1:
            share = math.ceil(self.batch)
            split = self.profile.passes(share, gpus, max(math.ceil(share / self.profile.most_local) - 1, 1))
        times = self.profile.step_time(packed(gpus, NODE_GPUS), split.local)
        return None if times is None else 1 / (times.step + (times.step - times.sync) * split.accumulated)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Nothing shares GPUs there."""
        del other, gpu_type, spread
        return None


@dataclass(slots=True)
class _Live:
    """A job that has arrived and is not done."""

    submission: Submission
    job: Job
    view: Speed | None
    demand_at_arrival: float
    done: float = 0.0
    delay: float = 0.0  # before it trains on
    began: float = 0.0  # the start of the present interval
    first_started: float | None = None
    overhead: float = 0.0
    intervals: list[RunInterval] = field(default_factory=list)


class _Loop:
    """One call of ``simulate_pollux``."""

    def __init__(
        self, workload: Workload, nodes: Sequence[Node], policy: Policy, settings: Settings, watch: RoundObserver | None
    ) -> None:
        self.workload = workload
        self.nodes = tuple(nodes)
        self.policy = TimedPolicy(policy)
        self.placing = MostFreeFirst(self.policy)
        self.settings = settings
        self.watch = watch
        self.now = 0.0
        self.to_come = sorted(workload.submissions, key=lambda s: (s.job.submitted, s.job.uid), reverse=True)
        self.capacity = sum(node.gpus for node in self.nodes)
        self.live: dict[str, _Live] = {}
        self.done: dict[str, JobOutcome] = {}
        self.state: PolicyState | None = None
        self.rounds: list[RoundOutcome] = []
        self.demand_time = 0.0
        self.engine_seconds = 0.0

    def run(self) -> Outcome:
        """Interval after interval."""
        begun = time.perf_counter()
        vain = 0
        while (self.live or self.to_come) and vain <= MAX_IDLE_ROUNDS:
            trained = [self.train(live) for live in list(self.live.values())]
            self.demand_time += sum(live.job.gpus for live in self.live.values()) * self.settings.round_seconds
            self.now += self.settings.round_seconds
            self.arrive()
            if self.live:
                self.decide()
            vain = 0 if self.to_come or any(trained) else vain + 1
        return self.outcome(time.perf_counter() - begun)

    def train(self, live: _Live) -> bool:
        """One job's interval; whether it came further."""
        place, training, before = live.job.placement, live.submission.training, live.done
        if place is None:
            return False
        delay = min(live.delay, self.settings.round_seconds)
        live.delay -= delay
        live.overhead += delay
        left = self.settings.round_seconds - delay
        while left > 0 and live.done < training.total:
            pace = training.pace(live.done, place)
            goal = min(pace.until, training.total)
            if live.done + pace.steps_per_second * left < goal:
                live.done += pace.steps_per_second * left
                left = 0.0
            else:
                left -= round((goal - live.done) / pace.steps_per_second)
                live.done = goal
        job, kind = live.job, place.gpu_type or ""
        held = self.settings.round_seconds - (left if live.done >= training.total else 0.0)
        live.job = job.evolve(
            attained={kind: job.attained.get(kind, 0.0) + place.gpus * held}, ran_seconds=job.ran_seconds + held
        )
        if live.done >= training.total:
            del self.live[job.uid]
            self.done[job.uid] = self.outcome_of(live, self.now + held, finished=True)
        return live.done > before

    def arrive(self) -> None:
        """Submissions until now."""
        while self.to_come and self.to_come[-1].job.submitted <= self.now:
            submission = self.to_come.pop()
            job, training = submission.job, submission.training
            view = None
            if isinstance(training, ProfileTraining):
                view = OptimusView(training.profile, training.batch)
                if training.profile.name == NEVER_GROWS:
                    job = job.evolve(max_gpus=max(job.gpus, 1))
            self.live[job.uid] = _Live(submission, job, view, self.demand_time)

    def tell(self, live: _Live) -> Job:
        """The job as the policy sees it."""
        training = live.submission.training
        if not isinstance(training, ProfileTraining):
            speed = training.known(live.done)
            return live.job.evolve(total_steps=training.total, progress_steps=live.done, speed=speed)
        profile, batch = training.profile, training.batch
        last, epoch = len(profile.ends) - 1, profile.epoch(live.done)
        total = profile.steps_after(batch, last)
        left = total - profile.steps_after(batch, epoch) if epoch < last else 1.0
        return live.job.evolve(total_steps=total, progress_steps=total - left, speed=live.view)

    def decide(self) -> None:
        """One round of the engine."""
        for live in self.live.values():
            live.job = self.tell(live)
        snapshot = Snapshot(
            now=self.now,
            round=len(self.rounds) + 1,
            round_seconds=self.settings.round_seconds,
            nodes=self.nodes,
            jobs=tuple(live.job for live in self.live.values()),
            uneven=True,
        )
        begun = time.perf_counter()
        result = run_round(snapshot, self.placing, self.state)
        self.engine_seconds += time.perf_counter() - begun
        self.state = result.state
        for uid, live in self.live.items():
            target = result.targets.get(uid)
            if target != live.job.placement:
                self.move(live, target)
        gpus = sum(place.gpus for place in result.targets.values())
        self.rounds.append(RoundOutcome(self.now, len(snapshot.jobs), len(result.targets), gpus))
        if self.watch is not None:
            self.watch(snapshot, result)

    def move(self, live: _Live, target: Placement | None) -> None:
        """End the present interval, if there is one, and begin the next one, if the job has a target."""
        before = live.job.placement
        if before is not None:
            live.intervals.append(RunInterval(live.began, self.now, before))
            live.job = live.job.evolve(
                status=Status.HELD,
                placement=None,
                last_placement=before,
                last_ended=self.now,
                run_started=None,
                preemptions=live.job.preemptions + 1,
            )
        if target is not None:
            live.delay = self.settings.restart_seconds
            live.began = self.now
            live.first_started = self.now if live.first_started is None else live.first_started
            live.job = live.job.evolve(
                status=Status.RUNNING, placement=target, run=live.job.run + 1, run_started=self.now, trainer_ready=True
            )

    def outcome_of(self, live: _Live, at: float, *, finished: bool) -> JobOutcome:
        """What has become of a job by then."""
        job, life = live.job, at - live.job.submitted
        return JobOutcome(
            uid=job.uid,
            submitted=job.submitted,
            first_started=live.first_started,
            finished=at if finished else None,
            intervals=(*live.intervals, *([RunInterval(live.began, at, job.placement)] if job.placement else [])),
            preemptions=job.preemptions,
            overhead_seconds=live.overhead,
            contention=(self.demand_time - live.demand_at_arrival) / life / self.capacity if life > 0 else 0.0,
        )

    def outcome(self, seconds: float) -> Outcome:
        """All that came of it."""
        found = self.done | {uid: self.outcome_of(live, self.now, finished=False) for uid, live in self.live.items()}
        return Outcome(
            source=self.workload.source,
            policy=self.policy.name,
            parameters=self.policy.parameters.model_dump(mode="json"),
            settings=self.settings,
            loop="pollux",
            nodes=self.nodes,
            jobs=tuple(found[s.job.uid] for s in self.workload.submissions if s.job.uid in found),
            rounds=tuple(self.rounds),
            ended=self.now,
            policy_seconds=self.policy.seconds,
            engine_seconds=self.engine_seconds - self.policy.seconds,
            total_seconds=seconds,
        )
