"""The loop of Gavel's public simulator, driving our engine.

What it does otherwise than ``simulator.run``:

- A round lasts until the last of its jobs is through its part of it, which is at most ``round_seconds``: each job does
  as many whole steps as fit, so most rounds are a fraction of a step shorter.
- A job that ends earlier leaves its GPUs idle; one of a pair ends when the longer of the two is through.
- Arrivals wait for the end of the round. There is no cost of starting, stopping or moving.
- Where nothing runs, the clock jumps to the next arrival, but the time counts as received by who runs next.
- Jobs that have arrived since shares were last made are given GPUs, but do not run on them: those stay idle.
- A part with fewer steps than GPUs is no progress; a job that makes none five times in a row is dropped.
- Shares made at instant 0, or made before everything stood still, are as if they had never been made: the least time
  between two allocations does not hold for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from metasched.core.model import Job, Node, Placement, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.scheduling.engine import RoundResult, run_round
from metasched.simulator.records import JobOutcome, Outcome, RoundOutcome, RunInterval, Settings, Submission, Workload
from metasched.simulator.simulation import MAX_IDLE_ROUNDS, RoundObserver, TimedPolicy
from metasched.throughput.training import Training
from metasched.time_shares.round_mechanism import expire, jobs_with_shares

FAILED_PARTS = 5


def simulate_gavel(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings,
    *,
    window: range | None = None,
    watch: RoundObserver | None = None,
) -> Outcome:
    """Run a workload to its end, as Gavel's public simulator would.

    Args:
        workload: the jobs.
        nodes: the cluster.
        policy: who decides.
        settings: the round's length, and whether GPUs may be shared; everything else is the loop's.
        window: positions in the workload; the simulation ends when these jobs are done. None for all of them.
        watch: is shown every round.
    """
    return GavelLoop(workload, nodes, policy, settings, window=window, watch=watch).run()


@dataclass(slots=True)
class Live:
    """A job that has arrived and is not done.

    Attributes:
        submission: as it came.
        job: as snapshots show it.
        demand_at_arrival: the integral of demand over time, then.
        began: the start of the present interval.
        failed: parts without progress in a row.
        intervals: earlier allocations.
        first_started: when it first ran.
        overhead_seconds: for which it held GPUs without training.
    """

    submission: Submission
    job: Job
    demand_at_arrival: float
    began: float = 0.0
    failed: int = 0
    intervals: tuple[RunInterval, ...] = ()
    first_started: float | None = None
    overhead_seconds: float = 0.0

    @property
    def training(self) -> Training:
        """How it trains."""
        return self.submission.training


@dataclass(frozen=True, slots=True)
class Part:
    """A round's work of one job, or of two that share GPUs.

    Attributes:
        members: who.
        place: where.
        steps: of each.
        until: when the longer one is through.
    """

    members: tuple[Live, ...]
    place: Placement
    steps: tuple[float, ...]
    until: float


class GavelLoop:
    """One call of ``simulate_gavel``; loops of simulators that descend from Gavel's override what they do otherwise."""

    loop = "gavel"

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[Node],
        policy: Policy,
        settings: Settings,
        *,
        window: range | None = None,
        watch: RoundObserver | None = None,
    ) -> None:
        self.workload = workload
        self.nodes = tuple(nodes)
        self.policy = TimedPolicy(policy)
        self.settings = settings
        self.watch = watch
        self.arrivals = sorted(workload.submissions, key=lambda s: (s.job.submitted, s.job.uid))
        wanted = self.arrivals if window is None else [self.arrivals[i] for i in window if i < len(self.arrivals)]
        self.awaited = {submission.job.uid for submission in wanted}
        self.arrived = 0
        self.capacity = sum(node.gpus for node in self.nodes)
        self.live: dict[str, Live] = {}
        self.done: dict[str, JobOutcome] = {}
        self.parts: list[Part] = []
        self.state: PolicyState | None = None
        self.rounds: list[RoundOutcome] = []
        self.now = self.next_arrival if self.arrivals else 0.0
        self.round_began = 0.0
        self.round_ended: float | None = None
        self.demand_time = 0.0  # the integral of demand over time
        self.idle_rounds = 0
        self.engine_seconds = 0.0

    def run(self) -> Outcome:
        """Round after round."""
        begun = time.perf_counter()
        while self.awaited and self.idle_rounds <= MAX_IDLE_ROUNDS:
            if not self.parts and self.next_arrival == math.inf and self.state is not None:
                self.state = replace(self.state, data=expire(self.state.data))
            self.end_round()
            self.arrive()
            self.decide()
        return self.outcome(time.perf_counter() - begun)

    @property
    def next_arrival(self) -> float:
        """When the next job is submitted; infinite after the last."""
        return self.arrivals[self.arrived].job.submitted if self.arrived < len(self.arrivals) else math.inf

    def move_to(self, now: float) -> None:
        """Let time pass."""
        self.demand_time += sum(live.job.gpus for live in self.live.values()) * (now - self.now)
        self.now = now

    def end_round(self) -> None:
        """Go on to where the last job is through its part, or to the next arrival where nothing runs."""
        if not self.parts:
            if self.next_arrival < math.inf:
                self.move_to(max(self.now, self.next_arrival))
            return
        if self.round_ended is not None:
            self.round_began = self.round_ended
        self.round_ended = max(part.until for part in self.parts)
        self.move_to(self.round_ended)
        for part in sorted(self.parts, key=lambda part: -part.until):
            self.credit(part)
        self.parts = []

    def credit(self, part: Part) -> None:
        """Write down what a part has brought."""
        seconds = part.until - self.round_began
        gpus = part.place.gpus
        if seconds <= 0 or any(steps <= 0 or steps // gpus <= 0 for steps in part.steps):
            if len(part.members) == 1:
                self.fail(part.members[0], part.until)
            return
        for live, steps in zip(part.members, part.steps, strict=True):
            job, kind = live.job, part.place.gpu_type or ""
            live.failed = 0
            live.job = job.evolve(
                progress_steps=(job.progress_steps or 0) + steps,
                attained={**job.attained, kind: job.attained.get(kind, 0.0) + gpus * seconds},
                ran_seconds=job.ran_seconds + seconds,
            )
            if not live.job.remaining_steps:
                self.finish(live, part.until)

    def fail(self, live: Live, at: float) -> None:
        """A part without progress."""
        live.failed += 1
        if live.failed >= FAILED_PARTS:
            self.finish(live, at, dropped=True)

    def finish(self, live: Live, at: float, *, dropped: bool = False) -> None:
        """It is done, or dropped."""
        uid = live.job.uid
        self.done[uid] = self.outcome_of(live, at, None if dropped else at)
        self.awaited.discard(uid)
        del self.live[uid]

    def arrive(self) -> None:
        """Submissions that are due."""
        while self.next_arrival <= self.now:
            submission = self.arrivals[self.arrived]
            training = submission.training
            job = submission.job.evolve(total_steps=training.total, progress_steps=0, speed=training.known(0))
            self.live[job.uid] = Live(submission, job, self.demand_time)
            self.arrived += 1

    def decide(self) -> None:
        """One round of the engine, and what its jobs will do in it."""
        if not self.awaited:
            return
        snapshot = Snapshot(
            now=self.now,
            round=len(self.rounds) + 1,
            round_seconds=self.settings.round_seconds,
            nodes=self.nodes,
            jobs=tuple(live.job for live in self.live.values()),
            uneven=self.settings.uneven,
            sharing=self.settings.sharing,
        )
        begun = time.perf_counter()
        result = run_round(snapshot, self.policy, self.state)
        self.engine_seconds += time.perf_counter() - begun
        self.state = result.state if self.now else replace(result.state, data=expire(result.state.data))
        heeded = self.heeded(result)
        self.aim(heeded)
        self.parts = [self.part(unit) for unit in self.units(heeded)]
        self.idle_rounds = 0 if self.parts or self.next_arrival < math.inf else self.idle_rounds + 1
        gpus = sum(part.place.gpus for part in self.parts)
        self.rounds.append(RoundOutcome(self.now, len(snapshot.jobs), len(result.targets), gpus))
        if self.watch is not None:
            self.watch(snapshot, result)

    def heeded(self, result: RoundResult) -> RoundResult:
        """What of a decision comes to pass."""
        known = jobs_with_shares(result.state.data)
        if known is None:
            return result
        targets = {
            uid: place
            for uid, place in result.targets.items()
            if uid in known and result.co_runners.get(uid, uid) in known
        }
        return replace(result, targets=targets)

    def aim(self, result: RoundResult) -> None:
        """Bring the jobs to their targets."""
        for uid, live in self.live.items():
            job, target = live.job, result.targets.get(uid)
            if job.placement is not None and job.placement != target:
                live.intervals = (*live.intervals, RunInterval(live.began, self.now, job.placement))
                live.job = job = job.evolve(
                    status=Status.HELD,
                    placement=None,
                    last_placement=job.placement,
                    last_ended=self.now,
                    run_started=None,
                    trainer_ready=False,
                    preemptions=job.preemptions + 1,
                )
            if target is not None and job.placement is None:
                live.began = self.now
                live.first_started = self.now if live.first_started is None else live.first_started
                job = job.evolve(
                    status=Status.RUNNING,
                    placement=target,
                    run=job.run + 1,
                    run_started=self.now,
                    trainer_ready=True,
                )
            live.job = job.evolve(co_runner=result.co_runners.get(uid) if target is not None else None)

    def units(self, result: RoundResult) -> Iterable[tuple[Live, ...]]:
        """Who runs, each with who shares its GPUs."""
        met: set[str] = set()
        for uid in result.targets:
            if uid not in met:
                other = result.co_runners.get(uid)
                both = (uid,) if other is None else (uid, other)
                met.update(both)
                yield tuple(self.live[member] for member in both)

    def part(self, members: tuple[Live, ...]) -> Part:
        """As many whole steps as fit in a round, and no more than are left."""
        place = members[0].job.placement
        assert place is not None  # noqa: S101  they have just been given one
        now, steps, until = self.now, [], self.now
        for live, other in zip(members, members[::-1], strict=True):
            beside = other.training if other is not live else None
            pace = live.training.pace(live.job.progress_steps or 0, place, beside)
            speed = pace.steps_per_second
            count = min(int(speed * self.settings.round_seconds), live.job.remaining_steps or 0)
            steps.append(count)
            if speed > 0:
                until = max(until, now + count / speed)
        return Part(members, place, tuple(steps), until)

    def outcome_of(self, live: Live, at: float, finished: float | None) -> JobOutcome:
        """What has become of a job so far."""
        job = live.job
        life = at - job.submitted
        contention = (self.demand_time - live.demand_at_arrival) / life / self.capacity if life > 0 else 0.0
        intervals = (
            live.intervals if job.placement is None else (*live.intervals, RunInterval(live.began, at, job.placement))
        )
        return JobOutcome(
            uid=job.uid,
            submitted=job.submitted,
            first_started=live.first_started,
            finished=finished,
            intervals=intervals,
            preemptions=job.preemptions,
            overhead_seconds=live.overhead_seconds,
            contention=contention,
        )

    def outcome(self, seconds: float) -> Outcome:
        """All that came of it."""
        left = {uid: self.outcome_of(live, self.now, None) for uid, live in self.live.items()}
        found = self.done | left
        return Outcome(
            source=self.workload.source,
            policy=self.policy.name,
            parameters=self.policy.parameters.model_dump(mode="json"),
            settings=self.settings,
            loop=self.loop,
            nodes=self.nodes,
            jobs=tuple(found[s.job.uid] for s in self.arrivals if s.job.uid in found),
            rounds=tuple(self.rounds),
            ended=self.now,
            policy_seconds=self.policy.seconds,
            engine_seconds=self.engine_seconds - self.policy.seconds,
            total_seconds=seconds,
        )
