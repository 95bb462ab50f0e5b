"""The event loop of the simulator: rounds as in the daemon, and all other events at their own instants.

Each iteration advances the clock to the earliest of four instants: the next arrival, the cluster's next event
(completion, end of a checkpoint, change of speed), the next node failure or repair, and the next round. At that
instant, in this order: events of the cluster are processed, nodes fail or are repaired, jobs arrive, and, if a round is
due, the daemon's engine decides on a snapshot and the cluster gets the round's targets.

Rounds are ``round_seconds`` apart. Arrivals, completions and failures may trigger an early round, after which the
following ones are counted from it. The simulation ends when all jobs of the window are complete, or after
``MAX_IDLE_ROUNDS`` rounds without progress.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence

from metasched.core.model import Decision, Node, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.scheduling.engine import RoundResult, run_round
from metasched.simulator.records import Failures, InitialState, JobOutcome, Outcome, RoundOutcome, Settings, Workload
from metasched.simulator.simulated_cluster import Cluster

MAX_IDLE_ROUNDS = 1000
"""The simulation ends after so many rounds without progress and without arrivals to come.

The jobs that are left fit nowhere, or the policy moves them faster than they restart.
"""

RoundObserver = Callable[[Snapshot, RoundResult], object]
"""A function that is called after each round, with its snapshot and its result."""


class TimedPolicy(Policy):
    """A wrapper that measures the wall time of a policy's decisions.

    Attributes:
        policy: the wrapped policy.
        seconds: wall time spent in ``decide`` so far.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters)
        self.policy = policy
        self.name = policy.name  # type: ignore[misc]
        self.seconds = 0.0

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """The initial state of the wrapped policy."""
        return self.policy.initial_state(snapshot)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The decision of the wrapped policy, whose duration is added up."""
        begun = time.perf_counter()
        try:
            return self.policy.decide(snapshot, state)
        finally:
            self.seconds += time.perf_counter() - begun


def simulate(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings,
    *,
    window: range | None = None,
    watch: RoundObserver | None = None,
    begin: InitialState | None = None,
) -> Outcome:
    """Simulate a workload under a policy.

    Args:
        workload: the jobs.
        nodes: the cluster.
        policy: the policy that decides each round.
        settings: how the cluster behaves.
        window: positions in the workload; the simulation ends when these jobs are complete. None for all jobs.
        watch: is called after each round.
        begin: the state to continue from; None to begin with an empty cluster at the first arrival.
    """
    return _Simulation(workload, nodes, policy, settings, window=window, watch=watch, begin=begin).run()


class _Simulation:
    """The state of one call of ``simulate``."""

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[Node],
        policy: Policy,
        settings: Settings,
        *,
        window: range | None,
        watch: RoundObserver | None,
        begin: InitialState | None,
    ) -> None:
        self.workload = workload
        self.nodes = tuple(nodes)
        self.policy = TimedPolicy(policy)
        self.settings = settings
        self.watch = watch
        self.cluster = Cluster(self.nodes, settings)
        self.steady = policy.steady
        self.wakes_on_arrival, self.wakes_on_completion = policy.wakes_on_arrival, policy.wakes_on_completion
        self.begin = begin or InitialState()
        self.state = self.begin.state
        self.arrivals = sorted(workload.submissions, key=lambda s: (s.job.submitted, s.job.uid))
        wanted = self.arrivals if window is None else [self.arrivals[i] for i in window if i < len(self.arrivals)]
        self.awaited = {submission.job.uid for submission in wanted}
        self.arrived = 0
        self.outages = _Outages(settings.failures, self.nodes, settings.seed)
        self.done: dict[str, JobOutcome] = {}
        self.rounds: list[RoundOutcome] = []
        self.schedule = _RoundSchedule(settings.round_seconds)
        self.changed = False  # whether anything happened since the last round
        self.woken = False  # whether something of that triggers an early round
        self.idle_rounds = 0
        self.engine_seconds = 0.0

    def run(self) -> Outcome:
        """Process instant after instant; returns the outcome."""
        begun = time.perf_counter()
        cluster = self.cluster
        while self.awaited:
            arrival = self.next_arrival
            now = min(arrival, cluster.next_event, self.outages.next if cluster.live else math.inf, self.next_round)
            if now == math.inf or (self.idle_rounds > MAX_IDLE_ROUNDS and arrival == math.inf):
                break
            cluster.move_to(now)
            self.process_events()
            self.fail_and_repair()
            self.arrive()
            if self.next_round <= now:
                self.decide()
        return self.outcome(time.perf_counter() - begun)

    @property
    def next_arrival(self) -> float:
        """The instant of the next submission; infinite after the last."""
        if self.arrived == len(self.arrivals):
            return math.inf
        return max(self.arrivals[self.arrived].job.submitted, self.begin.at)

    @property
    def next_round(self) -> float:
        """The instant of the next round, as far as is known now; infinite while no round is needed."""
        now, settings = self.cluster.now, self.settings
        if not self.cluster.live or (self.steady and not self.changed):
            return math.inf
        if not self.rounds:
            return now
        if self.woken and settings.early_rounds:
            return min(max(now, self.rounds[-1].at + settings.min_round_seconds), self.schedule.due_after(now))
        return self.schedule.due_after(now)

    def process_events(self) -> None:
        """Process the cluster's events of this instant, and record completions."""
        for outcome in self.cluster.process_events():
            self.done[outcome.uid] = outcome
            self.awaited.discard(outcome.uid)
            self.changed = True
            self.woken |= self.wakes_on_completion
            self.idle_rounds = 0

    def arrive(self) -> None:
        """Submit the jobs whose arrival is reached."""
        while self.next_arrival <= self.cluster.now:
            self.cluster.arrive(self.arrivals[self.arrived])
            self.arrived += 1
            self.changed = True
            self.woken |= self.wakes_on_arrival

    def fail_and_repair(self) -> None:
        """Take nodes down and up whose failure or repair is reached."""
        while self.outages.next <= self.cluster.now:
            name, down = self.outages.pop()
            (self.cluster.fail if down else self.cluster.repair)(name)
            self.changed = self.woken = True

    def decide(self) -> None:
        """Run one round of the engine, and give its targets to the cluster."""
        cluster, settings = self.cluster, self.settings
        snapshot = Snapshot(
            now=cluster.now,
            round=self.begin.round + len(self.rounds) + 1,
            round_seconds=settings.round_seconds,
            nodes=cluster.node_view(),
            jobs=cluster.job_view(timely=not self.steady or self.watch is not None),
            uneven=settings.uneven,
            sharing=settings.sharing,
            quotas=self.begin.quotas,
        )
        begun = time.perf_counter()
        result = run_round(snapshot, self.policy, self.state)
        self.engine_seconds += time.perf_counter() - begun
        self.state = result.state
        if cluster.trains:
            self.idle_rounds = 0
        elif not cluster.lacks_nodes:  # jobs that wait for a repair can still run
            self.idle_rounds += 1
        cluster.set_targets(result.targets, result.co_runners)
        self.schedule.record_round(cluster.now)
        self.changed = self.woken = False
        seconds_of_pairs = {max(pair) for pair in result.co_runners.items()}
        gpus = sum([place.gpus for uid, place in result.targets.items() if uid not in seconds_of_pairs])
        self.rounds.append(RoundOutcome(cluster.now, len(snapshot.jobs), len(result.targets), gpus))
        if self.watch is not None:
            self.watch(snapshot, result)

    def outcome(self, seconds: float) -> Outcome:
        """The outcome; ``seconds`` is the simulation's wall time."""
        left = {uid: self.cluster.outcome(live, None) for uid, live in self.cluster.live.items()}
        found = self.done | left
        return Outcome(
            source=self.workload.source,
            policy=self.policy.name,
            parameters=self.policy.parameters.model_dump(mode="json"),
            settings=self.settings,
            loop="metasched",
            nodes=self.nodes,
            jobs=tuple(found[s.job.uid] for s in self.arrivals if s.job.uid in found),
            rounds=tuple(self.rounds),
            ended=self.cluster.now,
            policy_seconds=self.policy.seconds,
            engine_seconds=self.engine_seconds - self.policy.seconds,
            total_seconds=seconds,
        )


class _RoundSchedule:
    """The instants of regular rounds: multiples of the round's length after the last early round, or the first round.

    They are computed by multiplication, so that they do not drift, and do not depend on when they are asked for.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._origin = 0.0
        self._last = 0

    def due_after(self, now: float) -> float:
        """The first regular instant from ``now`` on at which there was no round yet."""
        number = max(self._last + 1, int((now - self._origin) / self._seconds))
        while self._origin + number * self._seconds < now:
            number += 1
        return self._origin + number * self._seconds

    def record_round(self, now: float) -> None:
        """Record that there is a round at ``now``."""
        number = round((now - self._origin) / self._seconds)
        if self._origin + number * self._seconds == now:
            self._last = number
        else:
            self._origin, self._last = now, 0


class _Outages:
    """Random failures and repairs of nodes, fixed by the seed."""

    def __init__(self, failures: Failures | None, nodes: Iterable[Node], seed: int) -> None:
        self._failures = failures
        self._rngs = {node.name: random.Random(f"{seed} {node.name}") for node in nodes}  # noqa: S311  no secret
        self._plan: list[tuple[float, str, bool]] = []
        if failures is not None:
            self._plan = sorted((self._uptime(name), name, True) for name in self._rngs)  # a heap from here on

    @property
    def next(self) -> float:
        """The instant of the next failure or repair; infinite where there is none."""
        return self._plan[0][0] if self._plan else math.inf

    def pop(self) -> tuple[str, bool]:
        """Remove the next failure or repair; returns the node's name, and whether it fails."""
        assert self._failures is not None  # noqa: S101  without failures there is no plan
        at, name, down = self._plan[0]
        again = at + (self._failures.repair_seconds if down else self._uptime(name))
        heapq.heapreplace(self._plan, (again, name, not down))
        return name, down

    def _uptime(self, name: str) -> float:
        assert self._failures is not None  # noqa: S101  as above
        return self._rngs[name].expovariate(1.0 / self._failures.mean_seconds)
