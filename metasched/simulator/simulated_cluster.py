"""The simulated cluster: who holds which GPUs, and how far each job has come.

It knows nothing of rounds and policies. Targets come in, and are realised as soon as their GPUs are free; what happens
when is told by ``next_event``. It counts GPUs; that CPUs and memory suffice is the engine's business.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from metasched.core.errors import MetaschedError
from metasched.core.model import Job, Node, Placement, Preempt, Status
from metasched.core.retention import is_pinned, suspended_by_daemon, suspended_by_others
from metasched.simulator.records import JobOutcome, RunInterval, Settings, Submission
from metasched.throughput.training import Pace

STILL = Pace(0.0, math.inf)
PAIR = 2


class OverbookedError(MetaschedError):
    """A GPU would have been given twice: a fault of the engine."""


class StuckError(MetaschedError):
    """A source of throughput says that a speed ends where it begins."""


class _Seat:
    """A set of GPUs that is held, and who holds it: one job, or two."""

    __slots__ = ("jobs", "joined", "place")

    def __init__(self, place: Placement) -> None:
        self.place = place
        self.jobs: list[_Live] = []
        self.joined = math.inf  # when the last of them came

    def mate(self, live: _Live) -> _Live | None:
        """The other job on it."""
        for other in self.jobs:
            if other is not live:
                return other
        return None


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
        "kind",
        "lost_seconds",
        "overhead_seconds",
        "pace",
        "ran",
        "saved",
        "saved_at",
        "seat",
        "shared",
        "since",
        "start_left",
        "stays",
        "submission",
        "total",
        "trains_from",
        "units",
        "version",
    )

    def __init__(self, submission: Submission, demand: float) -> None:
        self.submission = submission
        self.job = submission.job
        self.total = submission.training.total
        self.demand_at_arrival = demand  # the integral of demand over time, then
        self.done = 0.0  # steps, at `since`
        self.since = 0.0  # in the future while the run does not train yet
        self.saved = 0.0  # steps in the newest checkpoint
        self.saved_at = 0.0  # when that was taken, or the run's first step
        self.pace = STILL
        self.trains_from = math.inf  # the present run's first step
        self.start_left = 0.0  # seconds until then, while it is suspended
        self.began = 0.0  # the present stay
        self.kind, self.units = "", 0  # whose service it is: a GPU type and GPUs, or nodes of none
        self.attained: Mapping[str, float] = {}  # in earlier stays; a dict, as it is merged again and again
        self.ran = 0.0  # seconds, in earlier stays
        self.stays: list[RunInterval] = []
        self.first_started: float | None = None
        self.seat: _Seat | None = None
        self.shared: tuple[tuple[float, float], ...] = ()  # when others had its GPUs, too, in the present stay
        self.failures = 0
        self.lost_seconds = 0.0
        self.overhead_seconds = 0.0
        self.version = 0  # of its prediction

    @property
    def told(self) -> float | None:
        """Steps done, as far as policies are told."""
        return self.done if self.submission.declared else None

    def steps_at(self, instant: float) -> float:
        """Steps done at an instant, if nothing changes by then."""
        if instant <= self.since:
            return self.done
        rate, until = self.pace
        done = self.done + (instant - self.since) * rate
        return done if done <= until and done <= self.total else min(until, self.total)


class Cluster:
    """Jobs on nodes, at an instant that only moves on."""

    def __init__(self, nodes: Iterable[Node], settings: Settings) -> None:
        self.settings = settings
        self.nodes = {node.name: node for node in nodes}
        self.now = -math.inf
        self.live: dict[str, _Live] = {}
        self._capacity = sum(node.gpus for node in self.nodes.values())
        self._free = {node.name: node.gpus for node in self.nodes.values()}
        self._down: set[str] = set()
        self._nodes_view: tuple[Node, ...] | None = None
        self._holding: dict[str, _Live] = {}  # on a seat: running, suspended or leaving
        self._targets: Mapping[str, Placement] = {}
        self._shares: Mapping[str, str] = {}
        self._pending: dict[str, None] = {}  # targets that wait for their GPUs, in order
        self._events: list[tuple[float, int, _Live, int]] = []
        self._pushed = 0
        self._demand = 0
        self._demand_since = 0.0
        self._demand_before = 0.0

    # -- what the loop asks ---------------------------------------------------------------------------------------

    @property
    def next_event(self) -> float:
        """When something happens next by itself; infinite when nothing does."""
        events = self._events
        while events:
            at, _, live, version = events[0]
            if live.version == version:
                return at
            heapq.heappop(events)
        return math.inf

    @property
    def trains(self) -> bool:
        """Whether any job does its steps now."""
        return any(live.pace.steps_per_second > 0 and live.trains_from < self.now for live in self._holding.values())

    @property
    def lacks_nodes(self) -> bool:
        """Whether any node is down."""
        return bool(self._down)

    def node_view(self) -> tuple[Node, ...]:
        """The nodes as a snapshot shows them; the very same tuple until one goes or comes back."""
        if self._nodes_view is None:
            self._nodes_view = tuple(
                replace(node, accepts=False) if node.name in self._down else node for node in self.nodes.values()
            )
        return self._nodes_view

    def job_view(self, *, timely: bool = True) -> tuple[Job, ...]:
        """The live jobs as a snapshot shows them, in the order of their arrival.

        Unless it is to be timely, the service and the progress of who holds GPUs are those of some earlier instant.
        """
        if timely:
            suspended, refresh = Status.SUSPENDED, self._refresh
            for live in self._holding.values():
                if live.job.status is not suspended:
                    refresh(live)
        return tuple([live.job for live in self.live.values()])

    # -- what happens ---------------------------------------------------------------------------------------------

    def move_to(self, now: float) -> None:
        """Let time pass; the caller stops at every ``next_event``."""
        self.now = now

    def arrive(self, submission: Submission) -> None:
        """A job is submitted, or it has been before, and goes on with what it has had and holds.

        What somebody else has suspended stays so, for as long as the simulation lasts.
        """
        self._change_demand(submission.job.gpus)
        live = _Live(submission, self._demand_before)
        job = submission.job
        live.done = live.saved = job.progress_steps or 0.0
        live.attained, live.ran = dict(job.attained), job.ran_seconds
        total = live.total if submission.declared else None
        live.job = job.evolve(
            status=Status.HELD, placement=None, co_runner=None, total_steps=total, progress_steps=live.told
        )
        self._tell_speed(live)
        self.live[job.uid] = live
        if job.placement is not None and self._sit(live, job.placement, job.co_runner):
            live.first_started = self.now
            self._start(live, 0.0)
            live.job = live.job.evolve(run=job.run, run_started=job.run_started)
            if suspended_by_others(job):
                self._suspend(live, by_us=False)

    def happen(self) -> list[JobOutcome]:
        """Do what is due at this instant, and return the jobs that are done."""
        ended = []
        freed = False
        while self.next_event <= self.now:
            live = heapq.heappop(self._events)[2]
            if live.job.status is Status.STOPPING:
                live.saved = live.done
                self._let_go(live, Status.HELD)
                freed = True
                continue
            self._pass_checkpoints(live)
            live.done = min(live.pace.until, live.total)
            live.since = self.now
            if live.done >= live.total:
                ended.append(self._finish(live))
                freed = True
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
        holding, running, stopping = self._holding, Status.RUNNING, Status.STOPPING
        moving = []
        for uid, live in holding.items():
            job, target = live.job, targets.get(uid)
            if target is not job.placement or job.status is not running:
                moving.append((live, target))
        for live, target in moving:
            self._redirect(live, target)
        if shares or self.settings.sharing:
            self._regroup()
        self._pending = {
            uid: None for uid in targets if (holder := holding.get(uid)) is None or holder.job.status is stopping
        }
        self._start_pending()

    def fail(self, name: str) -> None:
        """A node goes down: its jobs fall back to their last checkpoints."""
        self._down.add(name)
        self._nodes_view = None
        hit = [live for live in self._holding.values() if live.seat is not None and name in live.seat.place.nodes]
        for live in hit:
            self._advance(live)
            live.failures += 1
            live.lost_seconds += live.since - live.saved_at if live.done > live.saved else 0.0
            live.done = live.saved
            self._let_go(live, Status.HELD)
            self._tell_speed(live)
        lost = {live.job.uid for live in hit}
        self._pending = {uid: None for uid in self._pending if uid not in lost and name not in self._targets[uid].nodes}
        self._start_pending()

    def repair(self, name: str) -> None:
        """A node is back."""
        self._down.discard(name)
        self._nodes_view = None

    def outcome(self, live: _Live, finished: float | None) -> JobOutcome:
        """What has become of a job so far."""
        life = self.now - live.job.submitted
        demand = self._demand_before + self._demand * (self.now - self._demand_since) - live.demand_at_arrival
        contention = demand / life / self._capacity if life > 0 else 0.0
        stays = live.stays
        if live.seat is not None and live.job.status is not Status.SUSPENDED:
            stays = [*stays, self._stay(live)]
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

    def _change_demand(self, gpus: int) -> None:
        """Live jobs ask for so many GPUs more; the integral over time is brought up to now."""
        self._demand_before += self._demand * (self.now - self._demand_since)
        self._demand_since = self.now
        self._demand += gpus

    # -- who leaves -----------------------------------------------------------------------------------------------

    def _redirect(self, live: _Live, target: Placement | None) -> None:
        """Do to a job that holds GPUs what its target asks for, if that is not what it does now."""
        if live.job.status is Status.STOPPING:
            return
        if target == live.job.placement:
            self._resume(live)
        elif target is None and live.job.preempt is Preempt.SUSPEND and not live.job.gpus:
            self._suspend(live)
        else:
            self._stop(live)

    def _regroup(self) -> None:
        """Stop jobs that stay on their nodes, but with other company: their GPUs are others."""
        running = [live for live in self._holding.values() if live.job.status is Status.RUNNING]
        order = {uid: i for i, uid in enumerate(self._targets)}
        running.sort(key=lambda live: (is_pinned(live.job), -order[live.job.uid]))
        for live in running:
            assert live.seat is not None  # noqa: S101  it runs
            mate, wanted = live.seat.mate(live), self._holding.get(self._shares.get(live.job.uid, ""))
            others = [other for other in (mate, wanted) if other is not None and other.job.status is Status.RUNNING]
            if mate is not wanted and others:
                self._stop(live)  # and so the next one finds its mate gone

    def _stop(self, live: _Live) -> None:
        """Have it checkpoint and leave."""
        self._advance(live)
        own = live.submission.checkpoint_seconds
        seconds = self.settings.checkpoint_seconds if own is None else own
        live.job = live.job.evolve(
            status=Status.STOPPING, stop_requested=self.now, preemptions=live.job.preemptions + 1
        )
        if seconds:
            self._set_pace(live)
            self._push(self.now + seconds, live)
            mate = live.seat.mate(live) if live.seat is not None else None
            if mate is not None:
                self._change_company(mate)
        else:
            live.saved = live.done
            self._let_go(live, Status.HELD)

    def _let_go(self, live: _Live, status: Status) -> None:
        """End its stay: its GPUs are free, or its mate's alone."""
        seat, uid = live.seat, live.job.uid
        assert seat is not None  # noqa: S101  only who holds a seat lets go of it
        if live.job.status is not Status.SUSPENDED:
            self._close_stay(live)
        del self._holding[uid]
        seat.jobs.remove(live)
        live.seat = None
        if seat.jobs:
            mate = seat.jobs[0]
            mate.shared = (*mate.shared, (seat.joined, self.now))
            mate.job = mate.job.evolve(co_runner=None)
            self._change_company(mate)
        else:
            self._count(seat.place, +1)
        live.job = live.job.evolve(
            status=status,
            placement=None,
            last_placement=seat.place,
            last_ended=self.now,
            run_started=None,
            trainer_ready=False,
            stop_requested=None,
            suspended_by_us=False,
            steps_per_second=None,
            progress_steps=live.told,
            co_runner=None,
        )
        self._set_pace(live)

    def _close_stay(self, live: _Live) -> None:
        """Note what it had of the allocation that ends now, and how much of that was no training."""
        assert live.seat is not None  # noqa: S101  as above
        self._refresh(live)
        stop = live.job.stop_requested
        trained_until = self.now if stop is None else stop
        live.overhead_seconds += min(live.trains_from, trained_until) - live.began + self.now - trained_until
        live.stays.append(self._stay(live))
        live.attained, live.ran = live.job.attained, live.job.ran_seconds

    def _stay(self, live: _Live) -> RunInterval:
        """Its present allocation, until now."""
        seat = live.seat
        assert seat is not None  # noqa: S101  as above
        shared = live.shared if seat.mate(live) is None else (*live.shared, (seat.joined, self.now))
        return RunInterval(live.began, self.now, seat.place, shared)

    def _finish(self, live: _Live) -> JobOutcome:
        self._let_go(live, Status.FINISHED)
        self._change_demand(-live.job.gpus)
        del self.live[live.job.uid]
        return self.outcome(live, self.now)

    def _suspend(self, live: _Live, *, by_us: bool = True) -> None:
        if live.job.status is Status.SUSPENDED:
            return
        self._advance(live)
        self._close_stay(live)
        live.start_left = max(live.trains_from - self.now, 0.0)
        live.job = live.job.evolve(status=Status.SUSPENDED, suspended_by_us=by_us)
        self._set_pace(live)
        mate = live.seat.mate(live) if live.seat is not None else None
        if mate is not None:
            self._change_company(mate)

    def _resume(self, live: _Live) -> None:
        if not suspended_by_daemon(live.job):
            return
        unsaved = max(live.since - live.saved_at, 0.0)
        live.began = self.now
        live.since = live.trains_from = self.now + live.start_left
        live.saved_at = live.trains_from - unsaved
        live.job = live.job.evolve(status=Status.RUNNING, suspended_by_us=False)
        self._set_pace(live)

    # -- who starts -----------------------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        for uid in list(self._pending):
            live = self.live.get(uid)
            if live is None:
                del self._pending[uid]
            elif live.seat is None and self._sit(live, self._targets[uid], self._shares.get(uid)):
                del self._pending[uid]
                self._start(live, self._start_seconds(live))

    def _sit(self, live: _Live, target: Placement, mate: str | None) -> bool:
        """Take the target's GPUs, if they are free or those of the job that it shares with."""
        wanted = self._holding.get(mate or "")
        if wanted is not None and wanted.seat is not None and wanted.job.status is not Status.STOPPING:
            seat = wanted.seat
            if seat.place != target or len(seat.jobs) == PAIR:
                return False
        else:
            if any(self._free[name] < gpus for name, gpus in target.node_gpus):
                return False
            seat = _Seat(target)
            self._count(target, -1)
        seat.jobs.append(live)
        seat.joined = self.now
        live.seat = seat
        return True

    def _count(self, place: Placement, sign: int) -> None:
        """Take GPUs from what is free, or give them back."""
        for name, gpus in place.node_gpus:
            self._free[name] += sign * gpus
            if not 0 <= self._free[name] <= self.nodes[name].gpus:
                raise OverbookedError(f"{name} has {self.nodes[name].gpus} GPUs, and {self._free[name]} would be free")

    def _start_seconds(self, live: _Live) -> float:
        """From now to the first step."""
        submission, settings = live.submission, self.settings
        if live.first_started is None:
            own, common = submission.start_seconds, settings.start_seconds
        else:
            own, common = submission.restart_seconds, settings.restart_seconds
        return common if own is None else own

    def _start(self, live: _Live, seconds: float) -> None:
        """Have it run on the GPUs that it has just taken, and train after so many seconds."""
        assert live.seat is not None  # noqa: S101  it has just sat down
        now = self.now
        live.first_started = now if live.first_started is None else live.first_started
        place = live.seat.place
        live.began, live.shared = now, ()
        live.kind, live.units = place.gpu_type or "", place.gpus or len(place.nodes)
        live.since = live.saved_at = live.trains_from = now + seconds
        live.job = live.job.evolve(
            status=Status.RUNNING,
            placement=place,
            run=live.job.run + 1,
            run_started=now,
            trainer_ready=True,
        )
        self._holding[live.job.uid] = live
        mate = live.seat.mate(live)
        if mate is not None:
            live.job = live.job.evolve(co_runner=mate.job.uid)
            mate.job = mate.job.evolve(co_runner=live.job.uid)
            self._change_company(mate)
        self._set_pace(live)

    # -- progress -------------------------------------------------------------------------------------------------

    def _set_pace(self, live: _Live) -> None:
        """Ask how fast it goes from here on, and predict when that changes."""
        live.version += 1
        if live.job.status is not Status.RUNNING or live.seat is None:
            live.pace = STILL
            return
        place, mate = live.seat.place, live.seat.mate(live)
        beside = mate.submission.training if mate is not None and mate.job.status is Status.RUNNING else None
        pace = live.submission.training.pace(live.done, place, beside)
        if pace.until <= live.done < live.total:
            raise StuckError(f"job {live.job.uid} has done {live.done} steps, and its speed ends at {pace.until}")
        factor = self._distance(place)
        live.pace = pace = pace if factor == 1.0 else Pace(pace.steps_per_second * factor, pace.until)
        live.job = live.job.evolve(steps_per_second=pace.steps_per_second)
        if pace.steps_per_second > 0:
            goal = min(pace.until, live.total)
            self._push(live.since + max(goal - live.done, 0.0) / pace.steps_per_second, live)

    def _distance(self, place: Placement) -> float:
        """What the distance between its GPUs leaves of a job's speed."""
        locality = self.settings.locality
        if len(place.nodes) == 1 or locality.rack == locality.cluster == 1.0:
            return 1.0
        return locality.factor([self.nodes[name].rack for name in place.nodes])

    def _push(self, at: float, live: _Live) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (max(at, self.now), self._pushed, live, live.version))

    def _tell_speed(self, live: _Live) -> None:
        speed = live.submission.training.known(live.done)
        if speed is not live.job.speed:
            live.job = live.job.evolve(speed=speed)

    def _change_company(self, live: _Live) -> None:
        """Have it go on at another speed, if it runs: the other job on its GPUs came, stopped training, or went."""
        if live.job.status is Status.RUNNING:
            self._advance(live)
            self._set_pace(live)

    def _advance(self, live: _Live) -> None:
        """Bring its steps up to now; a job that does not run has done its last, and knows when."""
        if self.now > live.since and live.job.status is Status.RUNNING:
            self._pass_checkpoints(live)
            live.done = live.steps_at(self.now)
            live.since = self.now

    def _pass_checkpoints(self, live: _Live) -> None:
        """Note the newest periodic checkpoint between `since` and now."""
        every = self.settings.checkpoint_every
        newest = self.now
        if every is not None:
            newest = live.trains_from + math.floor(max(self.now - live.trains_from, 0.0) / every) * every
        if live.since < newest <= self.now:
            live.saved, live.saved_at = live.steps_at(newest), newest

    def _refresh(self, live: _Live) -> None:
        """Bring what a snapshot shows of a job that holds GPUs up to now."""
        now, before, kind = self.now, live.attained, live.kind
        held = now - live.began
        live.job = live.job.evolve(
            attained={**before, kind: before.get(kind, 0.0) + live.units * held},
            ran_seconds=live.ran + held,
            progress_steps=live.steps_at(now) if live.submission.declared else None,
        )
