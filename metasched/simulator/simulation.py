"""The event loop of the simulator: rounds as in the daemon, and all other events at their own instants.

Each iteration advances the clock to the earliest of four instants: the next arrival, the cluster's next event
(completion, end of a checkpoint, change of speed), the next node failure or repair, and the next round. At that
instant, in this order: events of the cluster are processed, nodes fail or are repaired, jobs arrive, and, if a round is
due, the daemon's engine decides on a snapshot and the cluster gets the round's targets.

Rounds are ``round_seconds`` apart. Arrivals, completions, failures and new batch sizes may trigger an early round,
after which the following ones are counted from it. The simulation ends when all jobs of the window are complete, or
after ``round_loop.MAX_IDLE_ROUNDS`` rounds without progress.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence

from metasched.core.apps import App
from metasched.core.model import Node, Snapshot
from metasched.core.policy import Policy
from metasched.simulator.records import Failures, InitialState, JobOutcome, Outcome, Settings, Workload
from metasched.simulator.round_loop import MAX_IDLE_ROUNDS, RoundLoop, RoundObserver
from metasched.simulator.simulated_cluster import Cluster


def simulate(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    settings: Settings,
    *,
    window: range | None = None,
    watch: RoundObserver | None = None,
    begin: InitialState | None = None,
    progress: Callable[[int, int], object] | None = None,
    until: float = math.inf,
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
        progress: is called with the number of jobs that have ended, and of all that are awaited, as jobs end.
        until: the simulation ends before the first event after this instant, whatever is complete then.
    """
    simulation = _Simulation(workload, nodes, policy, settings, window=window, watch=watch, begin=begin, until=until)
    simulation.progress = progress
    return simulation.run()


class _Simulation(RoundLoop):
    """The state of one call of ``simulate``."""

    name = "metasched"

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
        until: float,
    ) -> None:
        super().__init__(workload, nodes, policy, settings, window=window, watch=watch)
        self.cluster = Cluster(self.nodes, settings, fits_iterations=policy.fits_iterations)
        self.steady = policy.steady and not self._trials  # tuners decide by the trials' progress
        self.wakes_on_arrival, self.wakes_on_completion = policy.wakes_on_arrival, policy.wakes_on_completion
        self.wakes_on_batch = policy.wakes_on_batch
        self.begin = begin or InitialState()
        self.until = until
        self.state, self.apps = self.begin.state, self.begin.apps
        self.outages = _Outages(settings.failures, self.nodes, settings.seed)
        self.schedule = _RoundSchedule(settings.round_seconds)
        self.changed = False  # whether anything happened since the last round
        self.woken = False  # whether something of that triggers an early round
        self.progress: Callable[[int, int], object] | None = None

    def play(self) -> None:
        """Process instant after instant."""
        cluster, total, left = self.cluster, len(self.awaited), -1
        while self.awaited:
            if self.progress is not None and len(self.awaited) != left:
                left = len(self.awaited)
                self.progress(total - left, total)
            arrival = self.next_arrival
            now = min(arrival, cluster.next_event, self.outages.next if cluster.live else math.inf, self.next_round)
            if now == math.inf or now > self.until or (self.idle_rounds > MAX_IDLE_ROUNDS and arrival == math.inf):
                break
            self.now = cluster.now = now
            self.process_events()
            self.fail_and_repair()
            self.arrive()
            if self.next_round <= now:
                self.play_round()
        if self.progress is not None:
            self.progress(total - len(self.awaited), total)

    @property
    def next_arrival(self) -> float:
        """The instant of the next submission, at least that of the initial state; infinite after the last."""
        return max(super().next_arrival, self.begin.at)

    @property
    def next_round(self) -> float:
        """The instant of the next round, as far as is known now; infinite while no round is needed."""
        now, settings = self.now, self.settings
        if not self.cluster.live or (self.steady and not self.changed):
            return math.inf
        if not self.rounds:
            return now
        if self.woken and settings.early_rounds:
            return min(max(now, self.rounds[-1].at + settings.min_round_seconds), self.schedule.due_after(now))
        return self.schedule.due_after(now)

    def process_events(self) -> None:
        """Process the cluster's events of this instant, and record jobs that are gone."""
        before = self.cluster.phases_done
        self.record_ends(self.cluster.process_events())
        if self.cluster.phases_done > before:
            self.note_completion()

    def record_ends(self, outcomes: Iterable[JobOutcome]) -> None:
        """Record jobs that have completed or ended for good."""
        for outcome in outcomes:
            self.record_end(outcome)
            self.note_completion()
        if self.cluster.changed_batch and self.wakes_on_batch:
            self.changed = self.woken = True

    def note_completion(self) -> None:
        """Note that a job is gone, or that a trial has done its phase."""
        self.changed = True
        self.woken |= self.wakes_on_completion
        self.idle_rounds = 0

    def arrive(self) -> None:
        """Submit the jobs whose arrival is reached."""
        for submission in self.due_arrivals():
            self.cluster.arrive(submission)
            self.changed = True
            self.woken |= self.wakes_on_arrival

    def fail_and_repair(self) -> None:
        """Take nodes down and up whose failure or repair is reached."""
        while self.outages.next <= self.now:
            name, down = self.outages.pop()
            if down:
                self.record_ends(self.cluster.fail(name))
            else:
                self.cluster.repair(name)
            self.changed = self.woken = True

    def play_round(self) -> None:
        """Run one round of the engine, and give its targets to the cluster."""
        cluster, settings = self.cluster, self.settings
        snapshot = Snapshot(
            now=self.now,
            round=self.begin.round + len(self.rounds) + 1,
            round_seconds=settings.round_seconds,
            nodes=cluster.node_view(),
            jobs=cluster.job_view(timely=not self.steady or self.watch is not None),
            uneven=settings.uneven,
            sharing=settings.sharing,
            quotas=self.begin.quotas,
            completed_trials=self.completed_trials | self.begin.completed_trials,
            trial_orders=self.begin.trial_orders,
        )
        result = self.decide(snapshot)
        if cluster.trains:
            self.idle_rounds = 0
        elif not cluster.lacks_nodes:  # jobs that wait for a repair can still run
            self.idle_rounds += 1
        cluster.set_phase_ends(_phase_ends(result.searches))
        gone = cluster.end(result.ends)
        cluster.set_targets(result.targets, result.co_runners, result.batches)
        self.schedule.record_round(self.now)
        self.changed = self.woken = False
        self.record_ends(gone)
        seconds_of_pairs = {max(pair) for pair in result.co_runners.items()}
        gpus = sum([place.gpus for uid, place in result.targets.items() if uid not in seconds_of_pairs])
        self.record_round(snapshot, result, gpus)

    def unfinished(self) -> Iterable[JobOutcome]:
        """The records, up to now, of the jobs that have arrived and not ended."""
        return [self.cluster.outcome(live, None) for live in self.cluster.live.values()]


def _phase_ends(apps: Iterable[App]) -> dict[str, float]:
    """Progress steps at which the present phase of a trial ends, by uid; ended trials may be among them."""
    brackets = [bracket for app in apps for bracket in app.brackets]
    comparing = [bracket for bracket in brackets if bracket.phase < len(bracket.phases) - 1]
    return {uid: bracket.phases[bracket.phase].steps for bracket in comparing for uid in bracket.trials}


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
