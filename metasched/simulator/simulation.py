"""The honest simulation: rounds as the daemon has them, and everything else when it happens."""

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

VAIN_ROUNDS = 1000
"""So many rounds without any progress, and without arrivals to come, end a simulation: the jobs left never end.

They may fit nowhere, or the policy moves them about faster than they restart.
"""

Watcher = Callable[[Snapshot, RoundResult], object]


class Timed(Policy):
    """A policy, with the real time that it takes. Its decisions are the other's."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters)
        self.policy = policy
        self.name = policy.name  # type: ignore[misc]
        self.seconds = 0.0

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """As the policy does."""
        return self.policy.initial_state(snapshot)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """As the policy does."""
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
    watch: Watcher | None = None,
    begin: InitialState | None = None,
) -> Outcome:
    """Run a workload to its end.

    Args:
        workload: the jobs.
        nodes: the cluster.
        policy: who decides.
        settings: how the cluster behaves.
        window: positions in the workload; the simulation ends when these jobs are done. None for all of them.
        watch: is shown every round.
        begin: what to go on from; None to begin from nothing, with the first arrival.
    """
    return _Simulation(workload, nodes, policy, settings, window=window, watch=watch, begin=begin).run()


class _Simulation:
    """One call of ``simulate``."""

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[Node],
        policy: Policy,
        settings: Settings,
        *,
        window: range | None,
        watch: Watcher | None,
        begin: InitialState | None,
    ) -> None:
        self.workload = workload
        self.nodes = tuple(nodes)
        self.policy = Timed(policy)
        self.settings = settings
        self.watch = watch
        self.cluster = Cluster(self.nodes, settings)
        self.steady = policy.steady
        self.wakes = (policy.wakes_on_arrival, policy.wakes_on_completion)
        self.begin = begin or InitialState()
        self.state = self.begin.state
        self.arrivals = sorted(workload.submissions, key=lambda s: (s.job.submitted, s.job.uid))
        wanted = self.arrivals if window is None else [self.arrivals[i] for i in window if i < len(self.arrivals)]
        self.awaited = {submission.job.uid for submission in wanted}
        self.arrived = 0
        self.outages = _Outages(settings.failures, self.nodes, settings.seed)
        self.done: dict[str, JobOutcome] = {}
        self.rounds: list[RoundOutcome] = []
        self.grid = _Grid(settings.round_seconds)
        self.changed = False  # anything at all since the last round
        self.woken = False  # something that begins a round early
        self.vain = 0
        self.engine_seconds = 0.0

    def run(self) -> Outcome:
        """Event after event."""
        begun = time.perf_counter()
        cluster = self.cluster
        while self.awaited:
            arrival = self.next_arrival
            now = min(arrival, cluster.next_event, self.outages.next if cluster.live else math.inf, self.round_due)
            if now == math.inf or (self.vain > VAIN_ROUNDS and arrival == math.inf):
                break
            cluster.move_to(now)
            self.happen()
            self.fail_and_repair()
            self.arrive()
            if self.round_due <= now:
                self.decide()
        return self.outcome(time.perf_counter() - begun)

    @property
    def next_arrival(self) -> float:
        """When the next job is submitted; infinite after the last."""
        if self.arrived == len(self.arrivals):
            return math.inf
        return max(self.arrivals[self.arrived].job.submitted, self.begin.at)

    @property
    def round_due(self) -> float:
        """When the next round is decided, as far as is known now; infinite while nothing asks for one."""
        now, settings = self.cluster.now, self.settings
        if not self.cluster.live or (self.steady and not self.changed):
            return math.inf
        if not self.rounds:
            return now
        if self.woken and settings.early_rounds:
            return min(max(now, self.rounds[-1].at + settings.min_round_seconds), self.grid.due(now))
        return self.grid.due(now)

    def happen(self) -> None:
        """Ends, and what else is due now in the cluster."""
        for outcome in self.cluster.happen():
            self.done[outcome.uid] = outcome
            self.awaited.discard(outcome.uid)
            self.changed = True
            self.woken |= self.wakes[1]
            self.vain = 0

    def arrive(self) -> None:
        """Submissions that are due."""
        while self.next_arrival <= self.cluster.now:
            self.cluster.arrive(self.arrivals[self.arrived])
            self.arrived += 1
            self.changed = True
            self.woken |= self.wakes[0]

    def fail_and_repair(self) -> None:
        """Outages that begin or end now."""
        while self.outages.next <= self.cluster.now:
            name, down = self.outages.take()
            (self.cluster.fail if down else self.cluster.repair)(name)
            self.changed = self.woken = True

    def decide(self) -> None:
        """One round of the engine."""
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
            self.vain = 0
        elif not cluster.lacks_nodes:  # what waits for a repair does not wait in vain
            self.vain += 1
        cluster.aim(result.targets, result.co_runners)
        self.grid.pass_round(cluster.now)
        self.changed = self.woken = False
        guests = {max(pair) for pair in result.co_runners.items()}
        gpus = sum([place.gpus for uid, place in result.targets.items() if uid not in guests])
        self.rounds.append(RoundOutcome(cluster.now, len(snapshot.jobs), len(result.targets), gpus))
        if self.watch is not None:
            self.watch(snapshot, result)

    def outcome(self, seconds: float) -> Outcome:
        """All that came of it."""
        left = {uid: self.cluster.outcome(live, None) for uid, live in self.cluster.live.items()}
        found = self.done | left
        return Outcome(
            source=self.workload.source,
            policy=self.policy.name,
            parameters=self.policy.parameters.model_dump(mode="json"),
            settings=self.settings,
            manner="honest",
            nodes=self.nodes,
            jobs=tuple(found[s.job.uid] for s in self.arrivals if s.job.uid in found),
            rounds=tuple(self.rounds),
            ended=self.cluster.now,
            policy_seconds=self.policy.seconds,
            engine_seconds=self.engine_seconds - self.policy.seconds,
            total_seconds=seconds,
        )


class _Grid:
    """Instants whole rounds apart, counted from the last round that was early, or the first one of all.

    They are made by multiplication alone, so that they are the same whoever asks in between, and do not drift.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._origin = 0.0
        self._passed = 0

    def due(self, now: float) -> float:
        """The first instant that is neither past nor a round already."""
        number = max(self._passed + 1, int((now - self._origin) / self._seconds))
        while self._origin + number * self._seconds < now:
            number += 1
        return self._origin + number * self._seconds

    def pass_round(self, now: float) -> None:
        """A round is decided now."""
        number = round((now - self._origin) / self._seconds)
        if self._origin + number * self._seconds == now:
            self._passed = number
        else:
            self._origin, self._passed = now, 0


class _Outages:
    """When which node fails, and is back: chance, fixed by the seed."""

    def __init__(self, failures: Failures | None, nodes: Iterable[Node], seed: int) -> None:
        self._failures = failures
        self._random = {node.name: random.Random(f"{seed} {node.name}") for node in nodes}  # noqa: S311  no secret
        self._plan: list[tuple[float, str, bool]] = []
        if failures is not None:
            self._plan = sorted((self._lifetime(name), name, True) for name in self._random)  # a heap from here on

    @property
    def next(self) -> float:
        """When the next outage begins or ends."""
        return self._plan[0][0] if self._plan else math.inf

    def take(self) -> tuple[str, bool]:
        """The node, and whether it goes down."""
        assert self._failures is not None  # noqa: S101  without failures there is no plan
        at, name, down = self._plan[0]
        again = at + (self._failures.repair_seconds if down else self._lifetime(name))
        heapq.heapreplace(self._plan, (again, name, not down))
        return name, down

    def _lifetime(self, name: str) -> float:
        assert self._failures is not None  # noqa: S101  as above
        return self._random[name].expovariate(1.0 / self._failures.mean_seconds)
