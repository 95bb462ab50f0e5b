"""The part that all event loops share: arrivals, rounds of the daemon's engine, wall times and the outcome."""

from __future__ import annotations

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from metasched.core.apps import AppsState
from metasched.core.model import Decision, Node, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.scheduling.engine import RoundResult, run_round
from metasched.simulator.records import JobOutcome, Outcome, RoundOutcome, Settings, Submission, Workload

MAX_IDLE_ROUNDS = 1000
"""A simulation ends after more than this number of rounds without progress and without arrivals to come.

The remaining jobs fit nowhere, or the policy moves them faster than they restart.
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
        self.reads_apps = policy.reads_apps  # type: ignore[misc]
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


class RoundLoop(ABC):
    """One simulation. Subclasses define ``play``, the order of events in time.

    Args:
        workload: the jobs.
        nodes: the cluster.
        policy: the policy that decides each round.
        settings: how the cluster behaves.
        window: positions in the workload; the simulation ends when these jobs are complete. None for all jobs.
        watch: is called after each round.

    Attributes:
        name: ``Outcome.loop``.
        now: the present instant, in seconds.
        arrivals: the submissions, by (arrival, uid).
        awaited: uids of the jobs of the window that are not complete.
        done: records of the jobs that have ended, by uid.
        rounds: the rounds so far.
        state: the policy's state after the last round; None for its initial state.
        apps: the apps' state after the last round.
        idle_rounds: rounds in a row without progress.
    """

    name: ClassVar[str]

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
        self.nodes = tuple(nodes)
        self.policy = TimedPolicy(policy)
        self.settings = settings
        self.watch = watch
        self.now = -math.inf
        self.arrivals = sorted(workload.submissions, key=lambda s: (s.job.submitted, s.job.uid))
        wanted = self.arrivals if window is None else [self.arrivals[i] for i in window if i < len(self.arrivals)]
        self.awaited = {submission.job.uid for submission in wanted}
        # The heap of the next submissions, by (arrival, position), and those that wait for the end of another job.
        numbered = [(one.job.submitted, number, one) for number, one in enumerate(self.arrivals)]
        first = len(numbered) if workload.at_once is None else workload.at_once
        self._due, self._behind = numbered[:first], deque(numbered[first:])
        self.done: dict[str, JobOutcome] = {}
        self.rounds: list[RoundOutcome] = []
        self.state: PolicyState | None = None
        self.apps = AppsState()
        self._completed: set[str] = set()  # uids of members of apps
        self.idle_rounds = 0
        self._trials = {one.job.uid for one in self.arrivals if one.job.tuner is not None}
        self._source = workload.source
        self._engine_seconds = 0.0
        self.prepare()

    def prepare(self) -> None:  # noqa: B027  most loops have nothing to add
        """Set up the state that a subclass needs before its first event; it is called once, by the constructor."""

    @abstractmethod
    def play(self) -> None:
        """Move the clock, event by event, until no job is awaited or nothing can happen any more."""

    @abstractmethod
    def unfinished(self) -> Iterable[JobOutcome]:
        """The records, up to now, of the jobs that have arrived and not ended."""

    def run(self) -> Outcome:
        """Simulate to the end; returns the outcome."""
        begun = time.perf_counter()
        self.play()
        found = self.done | {job.uid: job for job in self.unfinished()}
        return Outcome(
            source=self._source,
            policy=self.policy.name,
            parameters=self.policy.parameters.model_dump(mode="json"),
            settings=self.settings,
            loop=self.name,
            nodes=self.nodes,
            jobs=tuple(found[s.job.uid] for s in self.arrivals if s.job.uid in found),
            rounds=tuple(self.rounds),
            ended=self.now,
            policy_seconds=self.policy.seconds,
            engine_seconds=self._engine_seconds - self.policy.seconds,
            total_seconds=time.perf_counter() - begun,
        )

    @property
    def completed_trials(self) -> frozenset[str]:
        """The uids of the trials of apps that have completed."""
        return frozenset(self._completed)

    @property
    def next_arrival(self) -> float:
        """The instant of the next submission, as far as is known now; infinite after the last."""
        return self._due[0][0] if self._due else math.inf

    def due_arrivals(self) -> Iterator[Submission]:
        """Submissions whose arrival is reached; each has arrived when it is yielded."""
        while self.next_arrival <= self.now:
            at, _, submission = heapq.heappop(self._due)
            job = submission.job
            yield submission if at == job.submitted else replace(submission, job=job.evolve(submitted=at))

    def record_end(self, outcome: JobOutcome) -> None:
        """Record a job that has completed or ended for good; the next one of those that wait for it arrives."""
        self.done[outcome.uid] = outcome
        self.awaited.discard(outcome.uid)
        if outcome.finished is not None and outcome.uid in self._trials:
            self._completed.add(outcome.uid)
        if self._behind:
            at, number, submission = self._behind.popleft()
            ended = self.now if outcome.left is None else outcome.left
            heapq.heappush(self._due, (max(at, ended), number, submission))

    def decide(self, snapshot: Snapshot) -> RoundResult:
        """One round of the engine; the new states of the policy and of the apps become ``state`` and ``apps``."""
        begun = time.perf_counter()
        result = run_round(snapshot, self.policy, self.state, self.apps)
        self._engine_seconds += time.perf_counter() - begun
        self.state, self.apps = result.state, result.apps
        return result

    def record_round(self, snapshot: Snapshot, result: RoundResult, gpus: int) -> None:
        """Record a round in whose targets there are this number of GPUs, and call ``watch``."""
        self.rounds.append(RoundOutcome(self.now, len(snapshot.jobs), len(result.targets), gpus))
        if self.watch is not None:
            self.watch(snapshot, result)
