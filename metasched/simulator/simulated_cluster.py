"""The simulated cluster: which job holds which GPUs, and when the next job ends, checkpoints or changes its speed.

At each instant the simulation sets ``now`` (at most ``next_event``) and calls ``process_events`` (completions, ends of
checkpoints, changes of speed), ``fail``, ``repair`` and ``arrive`` (from outside), then, after a round,
``set_targets``. A target is realised in three steps:

1. ``_redirect`` stops (checkpoint, then hold), suspends or resumes each job whose target is not what it holds;
   ``_split_pairs`` stops jobs that keep their nodes, but with another co-runner.
2. A stopped job holds its GPUs until its checkpoint is done. Its end is an event; ``_release`` then frees the GPUs.
3. ``_start_pending`` starts each job whose target's GPUs are free.

Whenever a job's speed changes, ``_set_pace`` predicts its next event and increments the job's ``version``, so that
events predicted earlier are ignored. The cluster counts GPUs only: CPUs and memory are checked by the engine.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from metasched.core.batching import BatchPlan
from metasched.core.errors import MetaschedError
from metasched.core.model import Job, Node, Placement, Preempt, Status
from metasched.core.retention import is_pinned, suspended_by_daemon, suspended_by_others
from metasched.learning.service_prediction import HISTORY, PastJob, expected_service
from metasched.simulator.agent import Agent
from metasched.simulator.live_job import MAX_JOBS_PER_GPU, STOPPED, HeldGpus, LiveJob
from metasched.simulator.records import JobOutcome, Settings, Submission
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.training import Pace, is_adaptive
from metasched.throughput.typed_fits import TypedFits

NO_BATCHES: Mapping[str, BatchPlan] = MappingProxyType({})


class OverbookedError(MetaschedError):
    """Targets would give a GPU to two jobs that do not share it: a fault of the engine."""


class StuckError(MetaschedError):
    """A ``Training`` returns a pace that ends at the steps already done."""


class Cluster:
    """Jobs on nodes, at an instant that only moves forward.

    Args:
        nodes: the cluster's nodes.
        settings: how the cluster behaves.
        fits_iterations: whether trainers fit the time of their iterations, where their batch size may change.

    Attributes:
        now: the present instant, in seconds.
        live: jobs that have arrived and are not finished, by uid, in the order of their arrival.
        phases_done: how many trials have reached the end of a phase so far.
        changed_batch: whether a training script changed its batch size at the last instant whose events were processed.
    """

    def __init__(self, nodes: Iterable[Node], settings: Settings, *, fits_iterations: bool = False) -> None:
        self.settings = settings
        self._fits_iterations = fits_iterations
        self._typed_fits = TypedFits()
        self.nodes = {node.name: node for node in nodes}
        self.now = -math.inf
        self.live: dict[str, LiveJob] = {}
        self.phases_done = 0
        self.changed_batch = False
        self._capacity = sum(node.gpus for node in self.nodes.values())
        self._free = {node.name: node.gpus for node in self.nodes.values()}
        self._down: set[str] = set()
        self._nodes_view: tuple[Node, ...] | None = None
        self._holding: dict[str, LiveJob] = {}  # running, suspended and stopping jobs
        self._targets: Mapping[str, Placement] = {}
        self._co_runners: Mapping[str, str] = {}
        self._batches: Mapping[str, BatchPlan] = {}
        self._multi_node: dict[str, LiveJob] = {}  # running jobs on several nodes, where these interfere
        self._pending: dict[str, None] = {}  # uids whose target's GPUs are not free yet, in the order of the targets
        self._events: list[tuple[float, int, LiveJob, int]] = []  # heap of (instant, number, job, version)
        self._pushed = 0
        self._completed: defaultdict[tuple[str, str], deque[PastJob]] = defaultdict(partial(deque, maxlen=HISTORY))
        self._demand = 0  # GPUs that live jobs ask for
        self._demand_since = 0.0
        self._demand_integral = 0.0  # until _demand_since

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def next_event(self) -> float:
        """The instant of the next event; infinite where there is none."""
        events = self._events
        while events:
            at, _, live, version = events[0]
            if live.version == version:
                return at
            heapq.heappop(events)
        return math.inf

    @property
    def trains(self) -> bool:
        """Whether any job does steps at this instant."""
        return any(live.pace.steps_per_second > 0 and live.trains_from < self.now for live in self._holding.values())

    @property
    def lacks_nodes(self) -> bool:
        """Whether any node is down."""
        return bool(self._down)

    def node_view(self) -> tuple[Node, ...]:
        """The nodes for a snapshot; the same tuple object until a node fails or is repaired."""
        if self._nodes_view is None:
            self._nodes_view = tuple(
                replace(node, accepts=False) if node.name in self._down else node for node in self.nodes.values()
            )
        return self._nodes_view

    def job_view(self, *, timely: bool = True) -> tuple[Job, ...]:
        """The live jobs for a snapshot, in the order of their arrival.

        Args:
            timely: whether to bring service and progress up to now; they may be those of an earlier instant otherwise.
        """
        if timely:
            suspended, now = Status.SUSPENDED, self.now
            for live in self._holding.values():
                if live.job.status is not suspended:
                    live.update_service(now)
        return tuple([live.job for live in self.live.values()])

    def outcome(self, live: LiveJob, finished: float | None, ended: float | None = None) -> JobOutcome:
        """A job's record up to now; its completion or its end for good are None where there was none."""
        life = self.now - live.job.submitted
        demand = self._demand_integral + self._demand * (self.now - self._demand_since) - live.demand_at_arrival
        return live.outcome(self.now, finished, demand / life / self._capacity if life > 0 else 0.0, ended)

    # -- changes --------------------------------------------------------------------------------------------------

    def arrive(self, submission: Submission) -> None:
        """Add a job. A job with a placement resumes there, with its earlier service and progress.

        Its service is predicted from the completed jobs of the same user and name, as in the daemon.
        A job that a user or an administrator suspended stays suspended until the end of the simulation.
        """
        job = submission.job
        self._change_demand(job.gpus)
        live = self.live[job.uid] = LiveJob(submission, self._demand_integral)
        if is_adaptive(submission.training):
            known = {name: IterationParameters._make(found) for name, found in job.iteration_parameters.items()}
            fits = self._fits_iterations and not known
            live.agent = Agent(submission.training, fits=fits, parameters=known, typed_fits=self._typed_fits)
        live.job = live.job.evolve(restart_seconds=submission.restart_cost(self.settings))
        if job.expected_service is None:
            live.job = live.job.evolve(expected_service=expected_service(self._completed[job.user, job.name]))
        if job.placement is not None and self._acquire(live, job.placement, job.co_runner):
            live.first_started = self.now
            self._start(live, 0.0)
            live.job = live.job.evolve(run=job.run, run_started=job.run_started)
            if suspended_by_others(job):
                self._suspend(live, by_us=False)

    def process_events(self) -> list[JobOutcome]:
        """Process the events of this instant; returns the records of the jobs that finish or end for good."""
        ended = []
        freed = self.changed_batch = False
        while self.next_event <= self.now:
            live = heapq.heappop(self._events)[2]
            if live.job.status is Status.STOPPING:
                live.saved_steps = live.done_steps
                self._release(live, Status.HELD)
                freed = True
                if live.ends:
                    ended.append(self._end(live))
                continue
            live.take_checkpoints(self.now, self.settings.checkpoint_every)
            live.done_steps = min(live.pace.until, live.total_steps, live.phase_end)
            live.updated_at = self.now
            if live.done_steps >= live.total_steps:
                ended.append(self._finish(live))
                freed = True
            else:
                if live.done_steps >= live.phase_end:
                    live.phase_end = math.inf
                    self.phases_done += 1
                self._set_pace(live)
                live.update_speed()
                self.changed_batch |= live.scripted is not None
        if freed:
            self._start_pending()
        return ended

    def set_phase_ends(self, steps: Mapping[str, float]) -> None:
        """Note at how many steps each trial's phase ends, by uid: when it gets there is an event."""
        for uid, end in steps.items():
            live = self.live.get(uid)
            if live is None or live.phase_end == end or live.done_steps >= end:
                continue
            self._advance(live)
            live.phase_end = end if live.done_steps < end else math.inf
            if live.job.status is Status.RUNNING:
                self._set_pace(live)

    def end(self, uids: Iterable[str]) -> list[JobOutcome]:
        """End jobs for good; called before ``set_targets``. A repeat changes nothing.

        A running job checkpoints first, and its end is an event. A job without GPUs is gone at once.

        Returns:
            the records of the jobs that are gone.
        """
        gone = []
        for uid in uids:
            live = self.live.get(uid)
            if live is None or live.ends:
                continue
            live.ends = True
            if live.job.status is Status.RUNNING:
                self._stop(live)
                live.job = live.job.evolve(preemptions=live.job.preemptions - 1)
            elif live.job.status is Status.SUSPENDED:
                self._release(live, Status.HELD)
            if live.gpus is None:
                gone.append(self._end(live))
        return gone

    def set_targets(
        self,
        targets: Mapping[str, Placement],
        co_runners: Mapping[str, str],
        batches: Mapping[str, BatchPlan] = NO_BATCHES,
    ) -> None:
        """Move the cluster towards a round's result: stop jobs without their GPUs there, start jobs with free ones.

        Args:
            targets: placements by uid; jobs that are not in it have to release their GPUs.
            co_runners: for each job that shares its GPUs, the uid of the other one.
            batches: the batch plan that the trainer of a target takes up, by uid.
        """
        self._targets = targets
        self._co_runners = co_runners
        self._batches = batches
        holding, running, stopping = self._holding, Status.RUNNING, Status.STOPPING
        moving = []
        for uid, live in holding.items():
            job, target = live.job, targets.get(uid)
            if target is not job.placement or job.status is not running:
                moving.append((live, target))
        for live, target in moving:
            self._redirect(live, target)
        if co_runners or self.settings.sharing:
            self._split_pairs()
        for uid, plan in batches.items():
            self._retune(holding.get(uid), plan)
        self._pending = {
            uid: None for uid in targets if (holder := holding.get(uid)) is None or holder.job.status is stopping
        }
        self._start_pending()

    def fail(self, name: str) -> list[JobOutcome]:
        """Take a node down: its jobs are requeued at their newest checkpoints.

        Returns:
            the records of those jobs that were to end for good, and do now.
        """
        self._down.add(name)
        self._nodes_view = None
        hit = [live for live in self._holding.values() if live.gpus is not None and name in live.gpus.placement.nodes]
        for live in hit:
            self._advance(live)
            live.roll_back()
            self._release(live, Status.HELD)
            live.update_speed()
        lost = {live.job.uid for live in hit}
        gone = [self._end(live) for live in hit if live.ends]
        self._pending = {uid: None for uid in self._pending if uid not in lost and name not in self._targets[uid].nodes}
        self._start_pending()
        return gone

    def repair(self, name: str) -> None:
        """Let a failed node accept jobs again."""
        self._down.discard(name)
        self._nodes_view = None

    def _change_demand(self, gpus: int) -> None:
        """Add to the GPUs that live jobs ask for, after integrating the old number up to now."""
        self._demand_integral += self._demand * (self.now - self._demand_since)
        self._demand_since = self.now
        self._demand += gpus

    # -- stops ----------------------------------------------------------------------------------------------------

    def _redirect(self, live: LiveJob, target: Placement | None) -> None:
        """Resume, suspend or stop a job that holds GPUs, as its target asks for."""
        if live.job.status is Status.STOPPING:
            return
        if target == live.job.placement:
            self._resume(live)
        elif target is None and live.job.preempt is Preempt.SUSPEND and not live.job.gpus:
            self._suspend(live)
        else:
            self._stop(live)

    def _retune(self, live: LiveJob | None, plan: BatchPlan) -> None:
        """Let a running job take up a batch plan."""
        if live is None or live.agent is None or live.agent.plan == plan or live.job.status is not Status.RUNNING:
            return
        self._advance(live)
        live.agent.plan = plan
        self._set_pace(live)

    def _split_pairs(self) -> None:
        """Stop running jobs that keep their nodes with another co-runner, because their GPUs there are others."""
        running = [live for live in self._holding.values() if live.job.status is Status.RUNNING]
        order = {uid: i for i, uid in enumerate(self._targets)}
        running.sort(key=lambda live: (is_pinned(live.job), -order[live.job.uid]))
        for live in running:
            present, wanted = live.co_runner, self._holding.get(self._co_runners.get(live.job.uid, ""))
            others = [other for other in (present, wanted) if other is not None and other.job.status is Status.RUNNING]
            if present is not wanted and others:
                self._stop(live)  # the other job of the pair has no co-runner from here on, and is not stopped

    def _stop(self, live: LiveJob) -> None:
        """Request a stop: the job checkpoints, then releases its GPUs."""
        self._advance(live)
        seconds = live.submission.stop_cost(self.settings)
        live.job = live.job.evolve(
            status=Status.STOPPING, stop_requested=self.now, preemptions=live.job.preemptions + 1
        )
        if seconds:
            self._set_pace(live)
            self._push(self.now + seconds, live)
            self._co_runner_changed(live.co_runner)
        else:
            live.saved_steps = live.done_steps
            self._release(live, Status.HELD)

    def _release(self, live: LiveJob, status: Status) -> None:
        """End a job's interval: its GPUs are free, or its co-runner's alone."""
        gpus, uid = live.gpus, live.job.uid
        assert gpus is not None  # noqa: S101  only a job with GPUs releases them
        if live.job.status is not Status.SUSPENDED:
            live.end_interval(self.now)
        del self._holding[uid]
        gpus.jobs.remove(live)
        live.gpus = None
        if gpus.jobs:
            left = gpus.jobs[0]
            left.shared = (*left.shared, (gpus.joined_at, self.now))
            left.job = left.job.evolve(co_runner=None)
            self._co_runner_changed(left)
        else:
            self._add_free(gpus.placement, +1)
        live.job = live.job.evolve(
            status=status,
            placement=None,
            last_placement=gpus.placement,
            last_ended=self.now,
            run_started=None,
            trainer_ready=False,
            stop_requested=None,
            suspended_by_us=False,
            steps_per_second=None,
            progress_steps=live.declared_steps,
            losses=live.losses_at(live.done_steps),
            co_runner=None,
        )
        self._set_pace(live)

    def _finish(self, live: LiveJob) -> JobOutcome:
        self._release(live, Status.FINISHED)
        self._completed[live.job.user, live.job.name].appendleft(PastJob.of(live.job.attained))
        self._remove(live)
        return self.outcome(live, self.now)

    def _end(self, live: LiveJob) -> JobOutcome:
        """Remove a job that has ended for good, and holds no GPUs any more."""
        live.job = live.job.evolve(status=Status.FINISHED)
        self._remove(live)
        return self.outcome(live, None, self.now)

    def _remove(self, live: LiveJob) -> None:
        self._change_demand(-live.job.gpus)
        del self.live[live.job.uid]

    def _suspend(self, live: LiveJob, *, by_us: bool = True) -> None:
        if live.job.status is Status.SUSPENDED:
            return
        self._advance(live)
        live.end_interval(self.now)
        live.start_left = max(live.trains_from - self.now, 0.0)
        live.job = live.job.evolve(status=Status.SUSPENDED, suspended_by_us=by_us)
        self._set_pace(live)
        self._co_runner_changed(live.co_runner)

    def _resume(self, live: LiveJob) -> None:
        if not suspended_by_daemon(live.job):
            return
        unsaved = max(live.updated_at - live.saved_at, 0.0)
        live.began = self.now
        live.updated_at = live.trains_from = self.now + live.start_left
        live.saved_at = live.trains_from - unsaved
        live.job = live.job.evolve(status=Status.RUNNING, suspended_by_us=False)
        self._set_pace(live)

    # -- starts ---------------------------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        """Start each pending job whose target's GPUs are free."""
        for uid in list(self._pending):
            live = self.live.get(uid)
            if live is None:
                del self._pending[uid]
            elif live.gpus is None and self._acquire(live, self._targets[uid], self._co_runners.get(uid)):
                del self._pending[uid]
                self._start(live, live.submission.start_cost(self.settings, first=live.first_started is None))

    def _acquire(self, live: LiveJob, target: Placement, co_runner: str | None) -> bool:
        """Give a job the target's GPUs, if they are free, or held by its co-runner alone; returns whether they were."""
        host = self._holding.get(co_runner or "")
        if host is not None and host.gpus is not None and host.job.status is not Status.STOPPING:
            gpus = host.gpus
            if gpus.placement != target or len(gpus.jobs) == MAX_JOBS_PER_GPU:
                return False
        else:
            if any(self._free[name] < count for name, count in target.node_gpus):
                return False
            gpus = HeldGpus(target)
            self._add_free(target, -1)
        gpus.jobs.append(live)
        gpus.joined_at = self.now
        live.gpus = gpus
        return True

    def _add_free(self, placement: Placement, sign: int) -> None:
        """Add a placement's GPUs to the free ones (``sign`` +1), or subtract them (-1)."""
        for name, gpus in placement.node_gpus:
            self._free[name] += sign * gpus
            if not 0 <= self._free[name] <= self.nodes[name].gpus:
                raise OverbookedError(f"{name} has {self.nodes[name].gpus} GPUs, and {self._free[name]} would be free")

    def _start(self, live: LiveJob, seconds: float) -> None:
        """Start a run on the GPUs that the job has just acquired; its first step follows after ``seconds``."""
        assert live.gpus is not None  # noqa: S101  see above
        placement = live.gpus.placement
        live.begin_interval(self.now, placement, seconds)
        if live.agent is not None:
            live.agent.plan = self._batches.get(live.job.uid)
        live.job = live.job.evolve(
            status=Status.RUNNING,
            placement=placement,
            run=live.job.run + 1,
            run_started=self.now,
            trainer_ready=True,
        )
        self._holding[live.job.uid] = live
        other = live.co_runner
        if other is not None:
            live.job = live.job.evolve(co_runner=other.job.uid)
            other.job = other.job.evolve(co_runner=live.job.uid)
            self._co_runner_changed(other)
        self._set_pace(live)

    # -- progress -------------------------------------------------------------------------------------------------

    def _set_pace(self, live: LiveJob) -> None:
        """Set a job's speed from here on, and those of the jobs that it interferes with from here on, or did."""
        changed = self._count_multi_node(live) if self.settings.interference_factor < 1.0 else ()
        self._set_own_pace(live)
        for other in changed:
            self._advance(other)
            self._set_own_pace(other)

    def _count_multi_node(self, live: LiveJob) -> list[LiveJob]:
        """Note whether a job runs on several nodes; returns the others on its nodes, if that has changed."""
        uid, placement = live.job.uid, live.job.placement or live.job.last_placement
        runs = live.gpus is not None and live.job.status is Status.RUNNING
        if placement is None or not placement.gpus or len(placement.nodes) == 1 or runs == (uid in self._multi_node):
            return []
        if not runs:
            del self._multi_node[uid]
        found = self._interfering(live, placement)
        if runs:
            self._multi_node[uid] = live
        return found

    def _interfering(self, live: LiveJob, placement: Placement) -> list[LiveJob]:
        """The running jobs on several nodes, besides ``live`` and its co-runner, that have GPUs on the same nodes."""
        return [
            other
            for other in self._multi_node.values()
            if other.gpus is not None
            and other.gpus is not live.gpus
            and not set(other.gpus.placement.nodes).isdisjoint(placement.nodes)
        ]

    def _set_own_pace(self, live: LiveJob) -> None:
        """Set a job's speed from here on, and predict when it changes, or when the job finishes."""
        live.version += 1
        if live.job.status is not Status.RUNNING or live.gpus is None:
            live.pace = STOPPED
            return
        placement, other = live.gpus.placement, live.co_runner
        co_runner = other.submission.training if other is not None and other.job.status is Status.RUNNING else None
        if live.agent is None:
            pace = live.submission.training.pace(live.done_steps, placement, co_runner)
        else:
            pace = live.agent.pace(live.done_steps, placement, co_runner)
            if co_runner is None:
                live.agent.measure(live.done_steps, placement)
            live.update_speed()
        if pace.until <= live.done_steps < live.total_steps:
            raise StuckError(f"job {live.job.uid} has done {live.done_steps} steps, and its speed ends at {pace.until}")
        factor = self._locality_factor(live, placement)
        if live.job.uid in self._multi_node and self._interfering(live, placement):
            factor *= self.settings.interference_factor
        live.pace = pace = pace if factor == 1.0 else Pace(pace.steps_per_second * factor, pace.until)
        live.job = live.job.evolve(steps_per_second=pace.steps_per_second)
        if pace.steps_per_second > 0:
            goal = min(pace.until, live.total_steps, live.phase_end)
            self._push(live.updated_at + max(goal - live.done_steps, 0.0) / pace.steps_per_second, live)

    def _locality_factor(self, live: LiveJob, placement: Placement) -> float:
        """The factor on a job's speed that the distance between its GPUs costs."""
        locality = live.submission.locality or self.settings.locality
        if locality.costs_nothing:
            return 1.0
        return locality.factor(placement.gpus, [self.nodes[name].rack for name in placement.nodes])

    def _push(self, at: float, live: LiveJob) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (max(at, self.now), self._pushed, live, live.version))

    def _co_runner_changed(self, live: LiveJob | None) -> None:
        """Set the speed of a running job anew, after the other job on its GPUs came, stopped training or left."""
        if live is not None and live.job.status is Status.RUNNING:
            self._advance(live)
            self._set_pace(live)

    def _advance(self, live: LiveJob) -> None:
        live.advance(self.now, self.settings.checkpoint_every)
