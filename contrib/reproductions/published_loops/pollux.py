"""The loop of Pollux's public simulator (OSDI 2021 artifact), driving our engine.

It differs from ``metasched.simulator.simulation`` as follows:

- The clock moves in scheduling intervals from 0. Arrivals and completions wait for the end of an interval: the GPUs of
  a job that ended are idle until then.
- A job with a new placement, its first one included, trains after ``restart_seconds`` only. Stops cost nothing.
- At a change of speed (an epoch ends), and at the job's end, the time is rounded to a whole second.
- The artifact's policies decide the numbers of GPUs, and place them themselves: a job whose number stays the same keeps
  its placement; the other jobs, in the order of the grants, take GPUs from the node with the most free GPUs, then from
  the next one, however uneven the placement is.
- The artifact's Pollux chooses nodes itself, and batch sizes. Its agents time each pass by itself, besides the whole
  iteration, and re-tune the batch at the end of each epoch and interval. Jobs of the application ``ncf`` have one GPU
  and a fixed batch of 32768.
- The artifact's Optimus knows a job's work inexactly: steps are counted at the user's batch size, the present epoch
  counts as completed (and the last epoch as one step); a single GPU does at least two passes, whatever the batch size;
  and jobs of the application ``ncf`` never have more GPUs than they ask for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contrib.reproductions.published_loops.loop import LiveJob, PublishedLoop
from metasched.core.model import Decision, Grant, Job, Node, Placement, Snapshot, Speed
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.simulator.agent import NOTHING_KNOWN, Agent
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.round_loop import MAX_IDLE_ROUNDS, RoundObserver
from metasched.throughput.adaptive_profile import AdaptiveProfileTraining
from metasched.throughput.goodput_profile import GoodputProfile, ProfileTraining, packed
from metasched.throughput.iteration_time import IterationParameters
from policies.pollux.policy import Pollux

NEVER_GROWS = "ncf"
NODE_GPUS = 4


class MostFreeFirst(Policy):
    """A policy whose grants are placed as Pollux's simulator does for Tiresias and Optimus."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters)
        self.policy = policy
        self.name = policy.name  # type: ignore[misc]

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """The initial state of the wrapped policy."""
        return self.policy.initial_state(snapshot)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The policy's grants, each with its exact placement; the jobs of its fallback wait."""
        decision, state = self.policy.decide(snapshot, state)
        free = {node.name: node.gpus for node in snapshot.nodes}
        kept = {grant.uid: held for grant in decision.grants if (held := _kept(snapshot.job[grant.uid], grant))}
        for placement in kept.values():
            for name, gpus in placement.node_gpus:
                free[name] -= gpus
        waits = {**decision.waits, **{grant.uid: grant.reason for grant in decision.fallback}}
        grants = []
        for grant in decision.grants:
            if grant.uid not in kept and grant.gpus > sum(free.values()):
                missing = Reason.of(Code.WAITS_FOR_GPUS, gpus=grant.gpus, gpu_types=(), free=sum(free.values()))
                waits[grant.uid] = grant.reason.and_also(missing)
                continue
            placement = kept.get(grant.uid) or _take(free, grant.gpus, snapshot)
            grants.append(replace(grant, at_least=None, gpu_type=placement.gpu_type, exact=placement))
        return Decision(tuple(grants), (), waits), state


def _kept(job: Job, grant: Grant) -> Placement | None:
    """The job's present placement, if the grant has as many GPUs; None otherwise."""
    return job.placement if job.placement is not None and job.placement.gpus == grant.gpus else None


def _take(free: dict[str, int], gpus: int, snapshot: Snapshot) -> Placement:
    """A placement of this number of GPUs, from the node with the most of ``free``, then from the next one."""
    node_gpus: dict[str, int] = {}
    while gpus > 0:
        name = max(free, key=free.__getitem__)
        count = min(free[name], gpus)
        free[name] -= count
        gpus -= count
        node_gpus[name] = count
    counts = tuple(node_gpus.values())
    return Placement(tuple(node_gpus), max(counts), snapshot.node[name].gpu_type, uneven=counts)


@dataclass(frozen=True, slots=True, eq=False)
class OptimusView:
    """The speeds that the artifact's Optimus predicts: the true ones, except on a single GPU. It is a ``Speed``."""

    profile: GoodputProfile
    batch: int
    _by_gpus: dict[int, float | None] = field(default_factory=dict)

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Steps per second at the user's batch size, on the fewest nodes of four GPUs."""
        del gpu_type
        gpus = sum(spread)
        if gpus not in self._by_gpus:
            self._by_gpus[gpus] = self._predict(gpus)
        return self._by_gpus[gpus]

    def _predict(self, gpus: int) -> float | None:
        split = self.profile.split(self.batch, gpus)
        if gpus == 1:
            share = math.ceil(self.batch)
            split = self.profile.passes(share, gpus, max(math.ceil(share / self.profile.most_local) - 1, 1))
        times = self.profile.step_time(packed(gpus, NODE_GPUS), split.local)
        return None if times is None else 1 / (times.step + (times.step - times.sync) * split.accumulated)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """None: the artifact has no GPU sharing."""
        del other, gpu_type, spread
        return None


@dataclass(slots=True)
class PolluxJob(LiveJob):
    """A live job.

    Attributes:
        known_speed: the speed that policies see, for the jobs of an application's profile.
        done: steps of progress done.
        delay: seconds of the present restart that are left.
        agent: the trainer's side of an adaptive training; None for any other training.
    """

    known_speed: Speed | None = None
    done: float = 0.0
    delay: float = 0.0
    agent: Agent | None = None


def _without_growth(submission: Submission) -> Submission:
    """A submission with the limits that the artifact has for an application."""
    job, training = submission.job, submission.training
    if not isinstance(training, ProfileTraining) or training.profile.name != NEVER_GROWS:
        return submission
    if not isinstance(training, AdaptiveProfileTraining):
        return replace(submission, job=job.evolve(max_gpus=max(job.gpus, 1)))
    fixed = ProfileTraining(training.profile, training.profile.most_batch)
    return replace(submission, job=job.evolve(max_gpus=1), training=fixed)


class PolluxLoop(PublishedLoop[PolluxJob]):
    """One simulation as in Pollux's public simulator.

    Of ``settings`` it reads ``round_seconds``, the scheduling interval; ``restart_seconds``, the delay of training
    after each change of placement; ``interference_factor``, for the jobs that interfere when an interval begins; and,
    for Pollux, ``uneven``. Adaptive jobs of the applications in ``known`` have these iteration times from the begin,
    and do not explore or fit them.
    """

    name = "pollux"

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[Node],
        policy: Policy,
        settings: Settings,
        *,
        watch: RoundObserver | None = None,
        known: Mapping[str, IterationParameters] = NOTHING_KNOWN,
    ) -> None:
        chooses_nodes = isinstance(policy, Pollux)
        super().__init__(workload, nodes, policy if chooses_nodes else MostFreeFirst(policy), settings, watch=watch)
        self.now = 0.0
        self.uneven = settings.uneven or not chooses_nodes
        self.known = known

    def play(self) -> None:
        """Play interval after interval."""
        while self.awaited and self.idle_rounds <= MAX_IDLE_ROUNDS:
            crowded = self.crowded_nodes() if self.settings.interference_factor < 1.0 else frozenset()
            progress = [self.train(live, crowded) for live in list(self.live.values())]
            self.move_to(self.now + self.settings.round_seconds)
            self.arrive()
            if self.live:
                self.play_round()
            self.idle_rounds = 0 if self.next_arrival < math.inf or any(progress) else self.idle_rounds + 1

    def crowded_nodes(self) -> frozenset[str]:
        """The nodes that several jobs over several nodes hold."""
        placements = [live.job.placement for live in self.live.values() if live.job.placement is not None]
        held = Counter(name for one in placements if len(one.nodes) > 1 for name in one.nodes)
        return frozenset(name for name, jobs in held.items() if jobs > 1)

    def train(self, live: PolluxJob, crowded: frozenset[str] = frozenset()) -> bool:
        """Train one job for an interval; returns whether it did any steps.

        Args:
            live: the job.
            crowded: the nodes on which jobs over several nodes interfere with each other.
        """
        placement, training, before = live.job.placement, live.submission.training, live.done
        if placement is None:
            return False
        interferes = len(placement.nodes) > 1 and not crowded.isdisjoint(placement.nodes)
        delay = min(live.delay, self.settings.round_seconds)
        live.delay -= delay
        live.overhead_seconds += delay
        left = self.settings.round_seconds - delay
        while left > 0 and live.done < training.total:
            pace = training.pace(live.done, placement)
            if live.agent is not None:
                live.agent.measure(live.done, placement)
                pace = live.agent.pace(live.done, placement, None)
            if interferes:
                pace = pace._replace(steps_per_second=pace.steps_per_second * self.settings.interference_factor)
            goal = min(pace.until, training.total)
            if live.done + pace.steps_per_second * left < goal:
                live.done += pace.steps_per_second * left
                left = 0.0
            else:
                left -= round((goal - live.done) / pace.steps_per_second)
                live.done = goal
            if live.agent is not None:
                live.agent.retune(live.done, placement)
        complete = live.done >= training.total
        held = self.settings.round_seconds - (left if complete else 0.0)
        live.receive(held)
        if complete:
            self.end(live, self.now + held)
        return live.done > before

    def arrive(self) -> None:
        """Add the jobs whose arrival is reached."""
        for submission in map(_without_growth, self.due_arrivals()):
            training = submission.training
            job = submission.job.evolve(restart_seconds=self.settings.restart_seconds)
            speed = agent = None
            if isinstance(training, AdaptiveProfileTraining):
                agent, job = self.agent_of(training, job)
            elif isinstance(training, ProfileTraining):
                speed = OptimusView(training.profile, training.batch)
            self.live[job.uid] = PolluxJob(submission, job, self.demand_integral, known_speed=speed, agent=agent)

    def agent_of(self, training: AdaptiveProfileTraining, job: Job) -> tuple[Agent, Job]:
        """The agent of an adaptive job, and the job with what is known of it at its arrival."""
        known = self.known.get(training.profile.name)
        if known is None:
            return Agent(training, fits=True, times_passes=True), job
        return Agent(training, fits=False, parameters={training.profile.gpu_type: known}), job.evolve(
            most_gpus=job.max_gpus
        )

    def job_view(self, live: PolluxJob) -> Job:
        """The job as policies see it."""
        training = live.submission.training
        if live.agent is not None:
            job = live.job.evolve(total_steps=training.total, progress_steps=live.done)
            return live.agent.report(job, live.done)
        if not isinstance(training, ProfileTraining):
            speed = training.known(live.done)
            return live.job.evolve(total_steps=training.total, progress_steps=live.done, speed=speed)
        profile, batch = training.profile, training.batch
        last, epoch = len(profile.ends) - 1, profile.epoch(live.done)
        total = profile.steps_after(batch, last)
        left = total - profile.steps_after(batch, epoch) if epoch < last else 1.0
        return live.job.evolve(total_steps=total, progress_steps=total - left, speed=live.known_speed)

    def play_round(self) -> None:
        """Run one round of the engine, and give its targets to the jobs."""
        for live in self.live.values():
            live.job = self.job_view(live)
        snapshot = Snapshot(
            now=self.now,
            round=len(self.rounds) + 1,
            round_seconds=self.settings.round_seconds,
            nodes=self.nodes,
            jobs=tuple(live.job for live in self.live.values()),
            uneven=self.uneven,
        )
        result = self.decide(snapshot)
        for uid, target in result.targets.items():
            if target != self.live[uid].job.placement:
                self.live[uid].delay = self.settings.restart_seconds
        self.set_targets(result.targets)
        for uid, target in result.targets.items():
            live = self.live[uid]
            live.job = live.job.evolve(most_gpus=max(live.job.most_gpus, target.gpus))
            if live.agent is not None:
                live.agent.plan = result.batches.get(uid)
        self.record_round(snapshot, result, sum(placement.gpus for placement in result.targets.values()))
