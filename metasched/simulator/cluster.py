"""The simulated cluster: who holds which GPUs, and how far each job has come.

It knows nothing of rounds and policies. Targets come in, and are realised as soon as their GPUs are free; what happens
when is told by ``next_event``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from metasched.errors import MetaschedError
from metasched.model import Job, Node, Placement, Preempt, Status
from metasched.simulator.records import JobOutcome, Settings, Stay, Submission
from metasched.throughput.training import Pace

STILL = Pace(0.0, math.inf)


class OverbookedError(MetaschedError):
    """A GPU would have been given twice: a fault of the engine."""


class _Live:
    """A job that has arrived and is not done."""

    __slots__ = (
        "attained",
        "began",
        "demand_at_arrival",
        "done",
        "failures",
        "first_started",
        "job",
        "lost_seconds",
        "overhead_seconds",
        "owns",
        "pace",
        "partner",
        "ran",
        "saved",
        "since",
        "stays",
        "submission",
        "trains_from",
        "version",
    )

    def __init__(self, submission: Submission, demand: float) -> None:
        self.submission = submission
        self.job = submission.job
        self.demand_at_arrival = demand  # the integral of demand over time, then
        self.done = 0.0  # steps, at `since`
        self.saved = 0.0  # steps in the newest checkpoint
        self.since = 0.0
        self.pace = STILL
        self.trains_from = math.inf  # the present run's first step
        self.began = 0.0  # the present stay
        self.attained: Mapping[str, float] = {}  # of earlier stays
        self.ran = 0.0
        self.stays: list[Stay] = []
        self.first_started: float | None = None
        self.partner: str | None = None  # who has the same GPUs
        self.owns = False  # whether it is the one of the two that the GPUs are counted for
        self.failures = 0
        self.lost_seconds = 0.0
        self.overhead_seconds = 0.0
        self.version = 0  # of its prediction


class Cluster:
    """Jobs on nodes, at an instant that only moves on."""

    def __init__(self, nodes: Iterable[Node], settings: Settings) -> None:
        self.settings = settings
        self.nodes = {node.name: node for node in nodes}
        self.now = -math.inf
        self.live: dict[str, _Live] = {}
        self._capacity = sum(node.gpus for node in self.nodes.values())
        self._rack = {node.name: node.rack for node in self.nodes.values()}
        self._free = {node.name: node.gpus for node in self.nodes.values()}
        self._down: set[str] = set()
        self._holding: dict[str, _Live] = {}  # placed: running, suspended or leaving
        self._targets: Mapping[str, Placement] = {}
        self._shares: Mapping[str, str] = {}
        self._pending: dict[str, None] = {}  # targets that wait for their GPUs, in order
        self._events: list[tuple[float, int, str, int]] = []
        self._pushed = 0
        self._demand = 0
        self._demand_time = 0.0
        self._nodes_view: tuple[Node, ...] | None = None

    # -- what the loop asks ---------------------------------------------------------------------------------------

    @property
    def next_event(self) -> float:
        """When something happens next by itself; infinite when nothing does."""
        while self._events:
            at, _, uid, version = self._events[0]
            live = self.live.get(uid)
            if live is not None and live.version == version:
                return at
            heapq.heappop(self._events)
        return math.inf

    @property
    def busy(self) -> bool:
        """Whether any job holds an allocation."""
        return bool(self._holding)

    def node_view(self) -> tuple[Node, ...]:
        """The nodes as a snapshot shows them."""
        if self._nodes_view is None:
            self._nodes_view = tuple(
                replace(node, accepts=False) if node.name in self._down else node for node in self.nodes.values()
            )
        return self._nodes_view

    def job_view(self) -> tuple[Job, ...]:
        """The live jobs as a snapshot shows them, in the order of their arrival."""
        for live in self._holding.values():
            self._refresh(live)
        return tuple([live.job for live in self.live.values()])

    # -- what happens ---------------------------------------------------------------------------------------------

    def move_to(self, now: float) -> None:
        """Let time pass; the caller stops at every ``next_event``."""
        if self.now > -math.inf:
            self._demand_time += self._demand * (now - self.now)
        self.now = now

    def arrive(self, submission: Submission) -> None:
        """A job is submitted, or it has been before, and goes on with what it has had and holds."""
        live = _Live(submission, self._demand_time)
        job = submission.job
        live.done = live.saved = job.progress_steps or 0.0
        live.attained, live.ran = job.attained, job.ran_seconds
        live.job = job.evolve(
            status=Status.HELD, placement=None, total_steps=submission.training.total, progress_steps=live.done
        )
        self._demand += job.gpus
        self._tell_speed(live)
        self.live[job.uid] = live
        if job.placement is not None and self._take(live, job.placement):
            live.first_started = self.now
            self._start(live, job.placement)
            live.trains_from = live.since = self.now
            live.job = live.job.evolve(run=job.run, run_started=job.run_started)
            self._set_pace(live)

    def happen(self) -> list[JobOutcome]:
        """Do what is due at this instant, and return the jobs that are done."""
        ended = []
        freed = False
        while self.next_event <= self.now:
            uid = heapq.heappop(self._events)[2]
            live = self.live[uid]
            freed = True
            if live.job.status is Status.STOPPING:
                self._let_go(live, Status.HELD)
                continue
            live.done = min(live.pace.until, live.submission.training.total)
            self._pass_checkpoints(live)
            live.since = self.now
            if live.done >= live.submission.training.total:
                ended.append(self._finish(live))
            else:
                self._set_pace(live)
                self._tell_speed(live)
        if freed:
            self._start_pending()
        return ended

    def aim(self, targets: Mapping[str, Placement], shares: Mapping[str, str]) -> None:
        """Bring the cluster to these targets: stop who has to leave, start who can start."""
        self._targets = targets
        self._shares = shares
        for uid, live in list(self._holding.items()):
            target = targets.get(uid)
            if live.job.status is Status.STOPPING:
                continue
            if target == live.job.placement:
                self._resume(live)
            elif target is None and live.job.preempt is Preempt.SUSPEND and not live.job.gpus:
                self._suspend(live)
            else:
                self._stop(live)
        for live in [live for live in self._holding.values() if live.partner != shares.get(live.job.uid)]:
            self._pair(live, None)
        holding = self._holding
        self._pending = {
            uid: None for uid in targets if uid not in holding or holding[uid].job.status is Status.STOPPING
        }
        self._start_pending()

    def fail(self, name: str) -> None:
        """A node goes down: its jobs fall back to their last checkpoints."""
        self._down.add(name)
        self._nodes_view = None
        for live in list(self._holding.values()):
            if name in (live.job.placement.nodes if live.job.placement else ()):
                self._advance(live)
                live.failures += 1
                if live.pace.steps_per_second:
                    live.lost_seconds += (live.done - live.saved) / live.pace.steps_per_second
                live.done = live.saved
                self._let_go(live, Status.HELD)
                self._pending.pop(live.job.uid, None)
        self._pending = {uid: None for uid in self._pending if name not in self._targets[uid].nodes}

    def repair(self, name: str) -> None:
        """A node is back."""
        self._down.discard(name)
        self._nodes_view = None

    def outcome(self, live: _Live, finished: float | None) -> JobOutcome:
        """What has become of a job so far."""
        life = self.now - live.job.submitted
        contention = (self._demand_time - live.demand_at_arrival) / life / self._capacity if life > 0 else 0.0
        stays = live.stays
        if live.job.placement is not None and finished is None:
            stays = [*stays, Stay(live.began, self.now, live.job.placement)]
        return JobOutcome(
            uid=live.job.uid,
            submitted=live.job.submitted,
            first_started=live.first_started,
            finished=finished,
            stays=tuple(stays),
            preemptions=live.job.preemptions,
            failures=live.failures,
            lost_seconds=live.lost_seconds,
            overhead_seconds=live.overhead_seconds,
            contention=contention,
        )

    # -- starting -------------------------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        for uid in list(self._pending):
            live = self.live.get(uid)
            if live is None:
                del self._pending[uid]
            elif uid not in self._holding and self._take(live, self._targets[uid]):
                del self._pending[uid]
                self._start(live, self._targets[uid])

    def _take(self, live: _Live, target: Placement) -> bool:
        """Count the target's GPUs as taken, if they are free or a partner's."""
        partner = self._holding.get(self._shares.get(live.job.uid, ""))
        live.owns = partner is None or partner.job.placement != target or partner.job.status is Status.STOPPING
        if not live.owns:
            return True
        free = self._free
        shares = target.shares
        if any(free[name] < gpus for name, gpus in shares):
            return False
        for name, gpus in shares:
            free[name] -= gpus
        return True

    def _start(self, live: _Live, target: Placement) -> None:
        submission, settings, now = live.submission, self.settings, self.now
        if live.first_started is None:
            live.first_started = now
            own, common = submission.start_seconds, settings.start_seconds
        else:
            own, common = submission.restart_seconds, settings.restart_seconds
        live.began = now
        live.trains_from = now + (common if own is None else own)
        live.since = live.trains_from
        live.job = live.job.evolve(
            status=Status.RUNNING, placement=target, run=live.job.run + 1, run_started=now, trainer_ready=True
        )
        self._holding[live.job.uid] = live
        partner = self._shares.get(live.job.uid)
        if partner in self._holding:
            self._pair(live, partner)
        else:
            self._set_pace(live)

    def _pair(self, live: _Live, uid: str | None) -> None:
        """Let two jobs on the same GPUs know of each other, or no more."""
        before, after = self._holding.get(live.partner or ""), self._holding.get(uid or "")
        for one, other in ((live, uid), (before, None), (after, live.job.uid)):
            if one is not None:
                self._advance(one)
                one.partner = other
                one.job = one.job.evolve(shares_with=other)
        for one in (live, before, after):
            if one is not None:
                self._set_pace(one)

    def _set_pace(self, live: _Live) -> None:
        """Ask how fast it goes from here on, and predict when that changes."""
        live.version += 1
        place = live.job.placement
        if place is None or live.job.status is not Status.RUNNING:
            live.pace = STILL
            return
        partner = self._holding.get(live.partner or "")
        beside = partner.submission.training if partner is not None else None
        pace = live.submission.training.pace(live.done, place, beside)
        factor = self._distance(place)
        live.pace = pace = pace if factor == 1.0 else Pace(pace.steps_per_second * factor, pace.until)
        live.job = live.job.evolve(steps_per_second=pace.steps_per_second)
        if pace.steps_per_second > 0:
            goal = min(pace.until, live.submission.training.total)
            self._push(max(live.since, live.trains_from) + (goal - live.done) / pace.steps_per_second, live)

    def _distance(self, place: Placement) -> float:
        locality = self.settings.locality
        if len(place.nodes) == 1 or locality.rack == locality.cluster == 1.0:
            return 1.0
        racks = {self._rack[name] for name in place.nodes}
        return locality.rack if len(racks) == 1 else locality.cluster

    def _push(self, at: float, live: _Live) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (max(at, self.now), self._pushed, live.job.uid, live.version))

    def _tell_speed(self, live: _Live) -> None:
        speed = live.submission.training.known(live.done)
        if speed is not live.job.speed:
            live.job = live.job.evolve(speed=speed)

    # -- progress -------------------------------------------------------------------------------------------------

    def _steps_at(self, live: _Live, instant: float) -> float:
        if instant <= live.since:
            return live.done
        return min(live.done + (instant - live.since) * live.pace.steps_per_second, live.submission.training.total)

    def _advance(self, live: _Live) -> None:
        """Bring its steps up to now."""
        if self.now > live.since:
            self._pass_checkpoints(live)
            live.done = self._steps_at(live, self.now)
            live.since = self.now

    def _pass_checkpoints(self, live: _Live) -> None:
        """Note the newest periodic checkpoint between `since` and now."""
        every = self.settings.checkpoint_every
        if every is None:
            live.saved = self._steps_at(live, self.now)
            return
        newest = live.trains_from + math.floor(max(self.now - live.trains_from, 0.0) / every) * every
        if newest > live.since:
            live.saved = self._steps_at(live, newest)

    def _refresh(self, live: _Live) -> None:
        """Bring what a snapshot shows of it up to now."""
        job, place, now = live.job, live.job.placement, self.now
        if place is None or job.status is Status.SUSPENDED:
            return
        held = now - live.began
        kind = place.gpu_type or ""
        units = place.gpus or len(place.nodes)
        live.job = job.evolve(
            attained={**live.attained, kind: live.attained.get(kind, 0.0) + units * held},
            ran_seconds=live.ran + held,
            progress_steps=self._steps_at(live, now),
        )

    # -- ending ---------------------------------------------------------------------------------------------------

    def _stop(self, live: _Live) -> None:
        """Have it checkpoint and leave."""
        self._advance(live)
        live.saved = live.done
        own = live.submission.checkpoint_seconds
        seconds = self.settings.checkpoint_seconds if own is None else own
        live.job = live.job.evolve(preemptions=live.job.preemptions + 1)
        if seconds:
            live.job = live.job.evolve(status=Status.STOPPING, stop_requested=self.now)
            live.overhead_seconds += seconds
            self._set_pace(live)
            self._push(self.now + seconds, live)
        else:
            self._let_go(live, Status.HELD)

    def _let_go(self, live: _Live, status: Status) -> None:
        """End its stay: its GPUs are free, or its partner's."""
        self._refresh(live)
        place, uid = live.job.placement, live.job.uid
        assert place is not None  # noqa: S101  only who holds an allocation lets go of it
        ended = live.since if live.job.status is Status.SUSPENDED else self.now
        live.overhead_seconds += max(min(live.trains_from, ended) - live.began, 0.0)
        live.stays.append(Stay(live.began, ended, place))
        live.attained, live.ran = live.job.attained, live.job.ran_seconds
        del self._holding[uid]
        partner = self._holding.get(live.partner or "")
        if live.owns and partner is not None and partner.job.placement == place:
            partner.owns = True
        elif live.owns:
            for name, gpus in place.shares:
                self._free[name] += gpus
        live.owns = False
        live.trains_from = math.inf
        live.job = live.job.evolve(
            status=status,
            placement=None,
            last_placement=place,
            last_ended=self.now,
            run_started=None,
            trainer_ready=False,
            stop_requested=None,
            steps_per_second=None,
            progress_steps=live.done,
        )
        self._pair(live, None) if live.partner else self._set_pace(live)
        if any(count < 0 for count in (self._free[name] for name in place.nodes)):
            raise OverbookedError(f"{uid} held GPUs that were not its own: {place}")

    def _finish(self, live: _Live) -> JobOutcome:
        self._let_go(live, Status.FINISHED)
        self._demand -= live.job.gpus
        del self.live[live.job.uid]
        return self.outcome(live, self.now)

    def _suspend(self, live: _Live) -> None:
        if live.job.status is Status.SUSPENDED:
            return
        self._advance(live)
        self._refresh(live)
        live.attained, live.ran = live.job.attained, live.job.ran_seconds
        live.job = live.job.evolve(status=Status.SUSPENDED, suspended_by_us=True)
        self._set_pace(live)

    def _resume(self, live: _Live) -> None:
        if live.job.status is not Status.SUSPENDED:
            return
        place = live.job.placement
        assert place is not None  # noqa: S101  a suspended job keeps its place
        live.stays.append(Stay(live.began, live.since, place))
        live.began = live.since = self.now
        live.job = live.job.evolve(status=Status.RUNNING, suspended_by_us=False)
        self._set_pace(live)
