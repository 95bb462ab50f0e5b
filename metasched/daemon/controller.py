"""One poll of the daemon: observe, intake, track runs, learn, decide, plan, act, publish.

A poll reads Slurm and the store, records and holds new jobs, and records runs and reports. If a round is due, the
policy decides which jobs run where, and the decision is committed to the store. The plan is the list of actions that
lead from the present allocations to that decision; they are performed, and the result is published. All state that
the next poll needs is in Slurm or in the store. So the daemon may be killed between any two lines, and every step may
be repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from metasched.apps.app_state import trials_of
from metasched.configuration.config import Config
from metasched.core.apps import App
from metasched.core.batching import BatchControl, BatchPlan, BatchRegime
from metasched.core.model import Action, Job, NodeAdvice, Placement, PlannedRun, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason, to_text
from metasched.core.retention import continues_undisturbed, waits_for_time_slice
from metasched.core.reuse import Latest, reuses_results, unchanged
from metasched.daemon.actuator import Actuator, RoundFacts
from metasched.daemon.app_status import app_statuses
from metasched.daemon.background_solver import BackgroundSolver
from metasched.daemon.cluster_state import ClusterState, ClusterStateBuilder
from metasched.daemon.fairness_status import cluster_load
from metasched.daemon.metrics_publisher import MetricsPublisher
from metasched.daemon.poll_times import PollTimes
from metasched.daemon.restart_watch import RestartWatch
from metasched.daemon.side_work import SideWork
from metasched.daemon.status_publisher import StatusPublisher, why_no_sharing
from metasched.daemon.store_watch import StoreLogWatch
from metasched.daemon.systemd_notify import notify
from metasched.forecast.records import JobForecast
from metasched.intake.batch_declarations import note_contradictions
from metasched.intake.declared_steps import note_work_contradictions
from metasched.intake.driver_orders import DriverOrders
from metasched.intake.job_intake import JobIntake
from metasched.intake.report_reading import ReportReader
from metasched.intake.report_removal import ReportRemoval
from metasched.intake.run_tracking import Retries, RunTracking
from metasched.intake.throttled_writes import ThrottledWrites
from metasched.learning.job_estimates import JobEstimates
from metasched.observe.observed_job import ObservedJob, start_deferral
from metasched.observe.observer import Observer
from metasched.replay.snapshot_codec import SnapshotEncoder
from metasched.scheduling.batch_changes import with_batch_plans
from metasched.scheduling.contract_checks import PolicyViolationError
from metasched.scheduling.engine import RoundResult, run_round
from metasched.scheduling.gpu_sharing import GpuSharing
from metasched.scheduling.plan import Timeouts, plan
from metasched.shared_dir.lock import DaemonLock
from metasched.shared_dir.mailbox import Mailbox
from metasched.shared_dir.published_status import AppStatus
from metasched.slurm.client import SlurmClient, SlurmJob, SlurmSettings
from metasched.slurm.errors import SlurmError, SlurmRestartedError
from metasched.slurm.leaked_gpus import CURE
from metasched.store import RoundRecord, Store, StoreError

DAY = 86400.0
NEXT_ROUND = Reason(Code.NEXT_ROUND)

log = structlog.get_logger()


class Controller:
    """One cluster under one policy.

    Args:
        config: the configuration in force.
        client: to Slurm.
        settings: Slurm's settings, as read at the start of the daemon.
        store: opened in this thread.
        mailbox: of the shared directory.
        policy: the configured policy.
        lock: checked before each poll, and again before the poll acts; None where nothing real is written (dry run,
            tests).
        clock: returns unix seconds.
        side_work: forecasts and shadow policies; None for none.

    Attributes:
        side_work: as given.
        config: the configuration in force.
        policy: the policy in force.
    """

    def __init__(  # noqa: PLR0915, PLR0917  its collaborators and state
        self,
        config: Config,
        client: SlurmClient,
        settings: SlurmSettings,
        store: Store,
        mailbox: Mailbox,
        policy: Policy,
        *,
        lock: DaemonLock | None = None,
        clock: Callable[[], float] = time.time,
        side_work: SideWork | None = None,
    ) -> None:
        self.config, self.policy, self.side_work = config, policy, side_work
        self._store = store
        self._lock = lock
        self._clock = clock
        self._observer = Observer(config, client, store, settings)
        self._writes = ThrottledWrites()
        self._intake = JobIntake(client, store, self._writes)
        self._reports = ReportReader(store, mailbox, heartbeat=notify)
        self._run_tracking = RunTracking(client, store, mailbox, self._writes, self._reports, self._drop_cached)
        self._report_removal = ReportRemoval(store, mailbox)
        self._orders = DriverOrders(store, mailbox)
        self._estimates = JobEstimates(store, config.sharing)
        self._estimates.fits_iterations = policy.fits_iterations
        self._state_builder = ClusterStateBuilder(store, self._intake, self._estimates, self._reports)
        self._state_builder.all_losses = policy.reads_losses or policy.reads_apps
        self._restart_watch = RestartWatch(client, clock)
        self._actuator = Actuator(config, client, store, mailbox, settings, self._restart_watch)
        self._publisher = StatusPublisher(store, mailbox.shared, settings.cluster)
        private = settings.values.get("PrivateData", "").lower() not in {"", "none", "(null)"}
        self._metrics = MetricsPublisher(store, mailbox.shared, private=private)
        self.poll_times = PollTimes()
        self._snapshots = SnapshotEncoder(reuses=reuses_results())
        self._background_solver = BackgroundSolver()
        self._store_log = StoreLogWatch(store)
        self._decided_snapshot: Snapshot | None = None  # of a round of this poll, until it is stored
        self._unsolved: PolicyState | None = None  # of the latest round, for which no computation has begun
        last = store.last_round()
        self.decide_seconds = None if last is None else last.decide_seconds  # wall time of the latest decision
        self._round, self._round_at = _number_and_instant(last)
        self._targets: Mapping[str, Placement] = store.targets()
        self._batches: Mapping[str, BatchPlan] = store.target_batches()
        self._apps = store.apps_state()
        self._searches: Sequence[App] = ()
        self._ends: Mapping[str, Reason] = {}  # of the latest round; those of earlier rounds are in the jobs' records
        self._gpu_sharing = GpuSharing(*store.target_co_runners())
        self._reasons: Mapping[str, Reason] = store.current_reasons()
        self._planned: Mapping[str, PlannedRun] = store.planned_runs()
        self._ranked: Sequence[str] = ()
        self._degraded: Reason | None = None
        self._advice: tuple[NodeAdvice, ...] = ()
        self._degraded_rounds = 0
        self._round_wanted = True  # much may have changed while no daemon ran
        self._accepting: frozenset[tuple[str, str]] | None = None  # nodes and reservations, in the last poll
        self._blocked_targets: frozenset[str] = frozenset()  # uids of blocked jobs with a target, in the last poll
        # uids of jobs that were blocked in the last poll, without those whose start Slurm deferred
        self._blocked: frozenset[str] = frozenset()
        self._script_batches: Mapping[str, BatchRegime] = {}  # by uid, as of the last poll
        self._sharing_possible: bool | None = None
        reuses = reuses_results()
        self._actionable = Latest[tuple[str, ...]](reuses=reuses)
        self._disallowed_targets = Latest[frozenset[str]](reuses=reuses)
        self._start_deferred = Latest[frozenset[str]](reuses=reuses)
        self._batches_now = Latest[Mapping[str, BatchRegime]](reuses=reuses)
        self._changing = Latest[bool](reuses=reuses)
        self._leaked: Mapping[str, int] = {}  # GPUs that Slurm counts without a job, by node, in the last poll
        self._settles_since: float | None = None  # when slurmctld answered again, or had restarted
        self._last_poll_at = 0.0 if last is None else last.at
        self._slurm_error: str | None = None

    def close(self) -> None:
        """End the processes of the background solver, of forecasts and of shadow policies."""
        self._background_solver.close()
        if self.side_work is not None:
            self.side_work.close()

    def reconfigure(self, config: Config, policy: Policy) -> None:
        """Continue under another configuration and policy, with a new round at the next poll; paths do not change."""
        self._background_solver.close()
        self._unsolved = None
        self.config = config
        self.policy = policy
        self._observer.config = config
        self._actuator.config = config
        self._estimates.reconfigure(config.sharing)
        self._estimates.fits_iterations = policy.fits_iterations
        self._state_builder.all_losses = policy.reads_losses or policy.reads_apps
        self._round_wanted = True
        if self.side_work is not None:
            self.side_work.reconfigure(config)

    def poll(self) -> float:
        """Run one poll.

        Returns:
            Seconds until the next poll is due.

        Raises:
            BusyStoreError: another process keeps the store locked; this controller must not be used again, because the
                poll was cut short.
            StoreError, LockLostError: the daemon must end; nothing is written to Slurm after the error.
        """
        now = self._clock()
        self.poll_times.begin()
        self._check_lock()
        last_poll = self._last_poll_at
        self._note_clock(now)
        first = self._restart_watch.boot_time is None
        try:
            state = self._observe_and_record(now)
            restarted = self._restart_watch.has_restarted()
            self.poll_times.mark("observe")
        except SlurmError as error:
            self._note_outage(error, now)
            return self.config.schedule.poll_seconds
        if first:
            self._note_restart_before(last_poll)
        if restarted:
            self._note_restart()
        elif self._slurm_error is not None:
            self._note_recovery()
        self._request_early_round(state)
        settling = self._settling_seconds()
        if settling:
            self._publish(state)
            return min(self.config.schedule.poll_seconds, settling)
        self._settles_since = None
        self._check_lock()  # Slurm's answers may have taken long
        if self._round_due(now):
            self._decide(state.snapshot)
        elif self._unsolved is not None and self._solving_due(now):
            self._begin_solving(replace(self._for_policies(state.snapshot), round=self._round))
        self.poll_times.mark("decide")
        actions = self._plan(state)
        self.poll_times.mark("plan")
        done = self._act(actions, state)
        self._keep_snapshot()
        self.poll_times.mark("act")
        self._store_log.check()
        if self.side_work is not None:
            self.side_work.poll()
        self._publish(state)
        self._prune_history(now)
        changing = self._changing.of(lambda: state.changes_soon, state.version)
        busy = bool(done) or changing or self._writes.budget.exhausted
        return self._seconds_to_next_poll(now, busy=busy)

    def _publish(self, state: ClusterState) -> None:
        self._publisher.publish(self, state, self._state_builder.take_described())
        self._metrics.publish(self, state)
        self.poll_times.mark("publish")

    def _observe_and_record(self, now: float) -> ClusterState:
        """Observe, intake, track runs, learn: the steps of a poll before it decides. Repeatable.

        Raises:
            SlurmError: Slurm does not answer; the next poll continues from what is recorded.
        """
        self._reports.begin_poll()
        self._estimates.begin_poll()
        observation = self._observer.observe(now)
        self._writes.begin_poll(observation.listed, now, self.config.outage_seconds)
        recorded = self._intake.take_in(observation, self.config.intake)
        retries = Retries(self.config.schedule.round_seconds, self.config.schedule.launch_tries)
        tracked = self._run_tracking.track(observation, recorded, retries)
        state = self._state_builder.build(observation, tracked, self.config, self._round)
        reported = [state.jobs[uid].job for uid in sorted(self._reports.reported) if uid in state.jobs]
        self._note_leaked_gpus(observation.leaked, now)
        note_contradictions(self._store, reported, now)
        note_work_contradictions(self._store, self._state_builder.contradicted, now)
        self._estimates.learn(
            state.holding, self._state_builder.subjects, self._reports.reported, self._reports.profiling_reports, now
        )
        return state

    def _note_leaked_gpus(self, leaked: Mapping[str, int], now: float) -> None:
        """Log and record nodes of which Slurm counts more GPUs as allocated than before, without a job."""
        earlier, self._leaked = self._leaked, leaked
        for node, gpus in leaked.items():
            if gpus > earlier.get(node, 0):
                log.warning("gpus_leaked", node=node, gpus=gpus, cure=CURE)
                text = f"Slurm counts {gpus} GPUs of {node} as allocated that no job holds; {CURE} makes it count again"
                self._store.event("gpus_leaked", text, at=now)

    def _drop_cached(self, uid: str) -> None:
        """Drop what is cached of a job that has ended."""
        self._intake.forget(uid)
        self._estimates.forget(uid)

    @property
    def round_number(self) -> int:
        """Number of the present round; 0 before the first."""
        return self._round

    @property
    def round_at(self) -> float | None:
        """When a round was last attempted, unix seconds; None before the first."""
        return self._round_at

    @property
    def next_round(self) -> float:
        """When the next round is due at the latest, unix seconds."""
        return 0.0 if self._round_at is None else self._round_at + self.config.schedule.round_seconds

    @property
    def slurm_error(self) -> str | None:
        """Why the last poll did not act, in words: Slurm did not answer, or settles. None if it acted."""
        if self._slurm_error is None and self._settles_since is not None:
            seconds = math.ceil(self._settling_seconds())
            return f"slurmctld has restarted, or answers again after an outage; jobs are started again in {seconds} s"
        return self._slurm_error

    @property
    def store_problem(self) -> str:
        """What other processes do to the store, in words; "" for nothing."""
        return self._store_log.problem

    @property
    def degraded(self) -> Reason | None:
        """Why the present round is degraded, as the policy's decision says; None if it is not."""
        return self._degraded

    @property
    def degraded_rounds(self) -> int:
        """The number of degraded rounds since the start of the daemon."""
        return self._degraded_rounds

    @property
    def advice(self) -> Sequence[NodeAdvice]:
        """How many nodes would suit the jobs, by GPU type, as the policy's latest decision says; empty for none."""
        return self._advice

    def app_statuses(self, jobs: Iterable[Job]) -> Sequence[AppStatus]:
        """The status of the apps of the latest round, given the live jobs."""
        return app_statuses(self._searches, self._apps, jobs) if self._searches else ()

    @property
    def deferred(self) -> Mapping[str, tuple[SlurmJob, Reason]]:
        """The new jobs that the latest poll has not taken in, each with the reason, by uid; unchanged, one object."""
        return self._intake.deferred

    def reason(self, uid: str) -> Reason:
        """Why a job runs or waits, by the present round."""
        return self._reasons.get(uid, NEXT_ROUND)

    def planned(self, uid: str) -> PlannedRun | None:
        """When a job is to run next, by the present round; None where that is not planned."""
        return self._planned.get(uid)

    def batch_target(self, uid: str) -> tuple[Placement | None, BatchPlan | None]:
        """The placement that a job should have by the present round, and the batch plan that it should have there."""
        return self._targets.get(uid), self._batches.get(uid)

    def forecast(self, uid: str) -> JobForecast | None:
        """The latest forecast of a job; None where there is none."""
        return None if self.side_work is None else self.side_work.forecast_of(uid)

    @property
    def ranked(self) -> Sequence[str]:
        """The uids of the jobs that do not run by the present round, the next to start first; empty before it."""
        return self._ranked

    @property
    def decided(self) -> tuple[object, ...]:
        """All that round and forecast say of jobs; the same objects until they say something else of any job."""
        forecast = None if self.side_work is None else self.side_work.forecast
        return self._reasons, self._planned, self._targets, self._batches, self._ranked, forecast

    def facts(self, uid: str) -> tuple[object, ...]:
        """What is said of one job: its reason, planned run, placement and batch plan, and its forecast."""
        return self.reason(uid), self.planned(uid), *self.batch_target(uid), self.forecast(uid)

    def current_snapshot(self, *, fits_iterations: bool = False) -> Snapshot:
        """Read Slurm and return the snapshot that a round would see now.

        Args:
            fits_iterations: whether jobs get the parameters of the time of their iterations under any policy, from now
                on.

        Raises:
            SlurmError: Slurm could not be read.
        """
        self._estimates.fits_iterations |= fits_iterations
        return self._for_policies(self._observe_and_record(self._clock()).snapshot)

    def decide_and_plan(self) -> tuple[Snapshot, Sequence[Action]]:
        """Decide a round and return the actions that it would lead to (for a dry run on a copy of the store).

        Raises:
            SlurmError: Slurm could not be read.
        """
        state = self._observe_and_record(self._clock())
        self._decide(state.snapshot)
        self.close()
        return state.snapshot, self._plan(state)

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _note_clock(self, now: float) -> None:
        """Correct the store's instants where the clock was set back since the last poll."""
        if now < self._last_poll_at:
            log.warning("clock_set_back", seconds=self._last_poll_at - now)
            self._store.clock_set_back(now)
        self._last_poll_at = now

    def _note_recovery(self) -> None:
        """Note that Slurm answers again: slurmctld's lists may be some seconds old."""
        log.info("slurm_is_back", acting_in_seconds=self.config.slurm.settle_seconds)
        self._settle(self._clock())

    def _note_restart(self) -> None:
        """Note that slurmctld has restarted, with or without an outage that a command of the daemon has met."""
        now, seconds = self._clock(), self.config.slurm.settle_seconds
        log.warning("slurmctld_restarted", boot_time=self._restart_watch.boot_time, acting_in_seconds=seconds)
        self._store.event("slurmctld_restarted", f"no job is started for {seconds:g} s", at=now)
        self._settle(now)

    def _note_restart_before(self, last_poll: float) -> None:
        """Settle after a restart while no daemon ran.

        However long ago it was: a controller that has answered nobody since then may know its nodes only in part.
        """
        boot_time = self._restart_watch.boot_time  # in whole seconds, rounded down
        if boot_time is None:
            return
        since = last_poll or self._clock() - self.config.slurm.settle_seconds  # the first daemon of all knows no poll
        if since < boot_time + 1:
            self._note_restart()

    def _settle(self, since: float) -> None:
        """Only observe for the settling time, and decide a round then: no later poll reports what this one saw."""
        self._slurm_error = None
        self._settles_since = since
        self._round_wanted = True

    def _settling_seconds(self) -> float:
        """Seconds until polls may act again after an outage or a restart; 0 if this poll may."""
        settle = self.config.slurm.settle_seconds
        since = None if self._settles_since is None else self._clock() - self._settles_since
        if since is None or since < 0 or since >= settle:
            return 0.0
        return settle - since

    def _prune_history(self, now: float) -> None:
        history = self.config.history
        if history.reports_days:
            self._report_removal.remove_some(now - history.reports_days * DAY, now)
        if history.days:
            self._store.prune_some(now - history.days * DAY)
        if history.jobs_days:
            self._store.delete_some_jobs(now - history.jobs_days * DAY)
        if history.speeds_days:
            self._store.delete_some_speeds(now - history.speeds_days * DAY)

    def _seconds_to_next_poll(self, now: float, *, busy: bool) -> float:
        # pause at least as long as this poll took, so that polls keep slurmctld busy at most half of the time
        least = max(self.config.schedule.busy_poll_seconds, self._clock() - now)
        return least if busy else min(self.config.schedule.poll_seconds, max(self.next_round - now, least))

    def _request_early_round(self, state: ClusterState) -> None:
        """Ask for an early round where jobs or nodes have changed, and log where GPU sharing has."""
        accepting = frozenset((node.name, node.reservation) for node in state.snapshot.nodes if node.accepts)
        jobs, blocked = state.snapshot.jobs, state.blocked
        blocked_targets = blocked & self._targets.keys()
        unblocked = {uid for uid in self._blocked - blocked if uid in state.jobs and not state.jobs[uid].job.active}
        if unblocked:  # the last round's reasons for these jobs no longer hold
            self._reasons = {uid: reason for uid, reason in self._reasons.items() if uid not in unblocked}
        dropped = self._drop_disallowed_targets(state)
        rebatched = self.policy.wakes_on_batch and self._note_batches(
            self._batches_now.of(lambda: _batches_of_scripts(jobs), state.version)
        )
        wanted = (
            ((state.arrived or unblocked) and self.policy.wakes_on_arrival)
            or (state.completed and self.policy.wakes_on_completion)
            or rebatched
            or accepting != self._accepting
            or dropped
            or not blocked_targets <= self._blocked_targets
            or (self.policy.wakes_on_result and self._background_solver.has_answer)
        )
        # A start that Slurm refused is tried again in regular rounds, and so starts none early.
        deferred = self._start_deferred.of(
            lambda: frozenset(uid for uid in blocked if start_deferral(state.jobs[uid].job) is not None), state.version
        )
        self._accepting, self._blocked_targets, self._blocked = accepting, blocked_targets, blocked - deferred
        if state.snapshot.sharing is not self._sharing_possible:
            self._sharing_possible = state.snapshot.sharing
            log.info(
                "sharing", two_jobs_on_a_gpu=self._sharing_possible, why_not=why_no_sharing(self.config, state) or None
            )
        self._round_wanted = self._round_wanted or bool(wanted)

    def _drop_disallowed_targets(self, state: ClusterState) -> bool:
        """Drop targets of jobs that wait and can no longer run on that many GPUs; return whether there were any."""
        dropped = self._disallowed_targets.of(
            lambda: frozenset(
                uid for uid, target in self._targets.items() if _is_disallowed(target, state.jobs.get(uid))
            ),
            state.version,
            self._targets,
        )
        if dropped:
            self._targets = {uid: target for uid, target in self._targets.items() if uid not in dropped}
        return bool(dropped)

    def _note_batches(self, found: Mapping[str, BatchRegime]) -> bool:
        """Note the batch sizes in force, and return whether a training script has changed one since the last poll."""
        earlier, self._script_batches = self._script_batches, found
        return earlier is not found and any(earlier.get(uid, regime) != regime for uid, regime in found.items())

    def _round_due(self, now: float) -> bool:
        if self._round_at is None or not self._round_at <= now < self.next_round:  # before it: the clock was set back
            return True
        return self._round_wanted and now - self._round_at >= self.config.schedule.min_round_seconds

    def _decide(self, observed: Snapshot) -> None:
        """Decide one round and commit it; a policy that fails leaves the last round's targets in force."""
        number = self._round + 1
        snapshot = replace(self._for_policies(observed), round=number)
        precomputes = self.policy.solves_in_background and self.policy.precomputes(snapshot)
        snapshot = replace(snapshot, precomputed=self._background_solver.collect() if precomputes else None)
        self._round_at = snapshot.now  # also if the policy fails: it is asked again a round later, not at every poll
        self._round_wanted = False
        begun = time.perf_counter()
        try:
            result = run_round(snapshot, self.policy, self._store.policy_state(self.policy.name), self._apps)
            reasons = unchanged(self._reasons, result.reasons)
            sharing = _gpu_sharing_after(self.policy, snapshot, result)
            undisturbed = [
                job
                for job in snapshot.jobs
                if job.uid in result.targets
                and continues_undisturbed(job, result.targets[job.uid], has_co_runner=job.uid in sharing.partners)
            ]
            self._store.commit_round(
                number,
                at=snapshot.now,
                policy=self.policy.name,
                parameters=self.policy.parameters.model_dump(mode="json"),
                state=result.state,
                targets=result.targets,
                reasons=reasons,
                decide_seconds=(took := time.perf_counter() - begun),
                summary={"jobs": len(snapshot.jobs), "nodes": len(snapshot.nodes), "capacity": dict(snapshot.capacity)},
                co_runners=sharing.partners,
                time_slicing=sharing.time_slicing,
                renewed=[job.uid for job in undisturbed],
                batches=result.batches,
                apps=result.apps,
                ends=result.ends,
                planned=result.decision.planned,
                load=cluster_load(snapshot),
            )
        except StoreError:
            raise
        except Exception as error:  # a policy may be third-party code: it must not take the daemon down
            log.exception("policy_failed", policy=self.policy.name, round=number)
            self._store.event(
                "policy_failed", f"{self.policy.name}: {error}; the last round stays in force", at=snapshot.now
            )
            return
        self._round = number
        self._decided_snapshot = snapshot
        self.decide_seconds = took
        self._unsolved = result.state if precomputes else None
        if not self.policy.precompute_at:
            self._begin_solving(snapshot)
        self._targets = unchanged(self._targets, result.targets)
        self._batches = unchanged(self._batches, result.batches)
        self._apps = result.apps
        self._ends = result.ends
        self._searches = result.searches
        self._gpu_sharing = sharing
        self._reasons = reasons
        self._note_degraded(result.decision.degraded, snapshot.now)
        self._advice = result.decision.advice
        self._planned = unchanged(self._planned, result.decision.planned)
        if result.ranked != self._ranked:
            self._ranked = result.ranked
        log.info("round", round=number, policy=self.policy.name, jobs=len(snapshot.jobs), run=len(result.targets))
        self._actuator.update_leases(undisturbed, self._round_facts())

    def _for_policies(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot as a round sees it.

        Jobs that are suspended only for their co-runner's time slice count as running, and what became of the trials of
        live apps, and what their drivers ask for, is in it.
        """
        jobs = snapshot.jobs
        if any(job.status is Status.SUSPENDED for job in jobs):
            jobs = tuple(job.evolve(status=Status.RUNNING) if waits_for_time_slice(job) else job for job in jobs)
        gone = trials_of(self._apps) - snapshot.job.keys()
        completed = self._store.completed_by_themselves(gone) if gone else frozenset()
        orders = self._orders.read(snapshot.jobs, snapshot.now)
        return replace(snapshot, jobs=jobs, completed_trials=completed, trial_orders=orders)

    def _keep_snapshot(self) -> None:
        """Store what the round of this poll has seen, for ``replay``: after its actions, which do not depend on it."""
        snapshot, self._decided_snapshot = self._decided_snapshot, None
        if snapshot is None:
            return
        most = self.config.history.snapshots_bytes
        try:
            data = self._snapshots.encode(snapshot) if most and not self._store_log.full else b""
        except Exception:  # what a policy's computation gave may be no JSON: the round stands, and has no replay
            log.exception("snapshot_not_kept", policy=self.policy.name, round=self._round)
            data = b""
        self._store.keep_snapshot(self._round, data, most)

    def _note_degraded(self, degraded: Reason | None, now: float) -> None:
        """Count a degraded round; the first of several is logged and recorded."""
        if degraded is not None:
            self._degraded_rounds += 1
            if degraded != self._degraded:
                log.warning("policy_degraded", policy=self.policy.name, round=self._round, why=to_text(degraded))
                self._store.event("policy_degraded", to_text(degraded), at=now)
        elif self._degraded is not None:
            log.info("policy_recovered", policy=self.policy.name, round=self._round)
        self._degraded = degraded

    def _begin_solving(self, snapshot: Snapshot) -> None:
        """Begin the policy's background computation after the latest round, unless an earlier one still runs."""
        if self._unsolved is not None and self._background_solver.begin(snapshot, self.policy, self._unsolved):
            self._unsolved = None

    def _solving_due(self, now: float) -> bool:
        """Whether the part of the round is over after which the policy's background computation begins."""
        begun = self._round_at if self._round_at is not None else now
        return now - begun >= self.policy.precompute_at * self.config.schedule.round_seconds

    def _plan(self, state: ClusterState) -> Sequence[Action]:
        schedule = self.config.schedule
        timeouts = Timeouts(schedule.grace_seconds, self._actuator.start_limit, schedule.slice_seconds)
        sharing = replace(self._gpu_sharing, shards=state.gpu_shards)
        ends = {**self._state_builder.ends, **self._ends}
        actionable = self._actionable.of(lambda: self._may_need_action(state, ends), state.version, self._targets)
        jobs = tuple([state.jobs[uid].job for uid in actionable])
        snapshot = replace(state.snapshot, jobs=jobs) if len(jobs) < len(state.jobs) else state.snapshot
        actions = plan(snapshot, self._targets, timeouts, sharing, self._actuator.unsent_stops, ends)
        return with_batch_plans(actions, state.snapshot, self._targets, self._batches)

    def _may_need_action(self, state: ClusterState, ends: Mapping[str, Reason]) -> tuple[str, ...]:
        """Return the uids of all jobs but those that wait, held by the daemon, and are to wait on."""
        found = {*state.not_held_by_us, *(uid for uid in (*self._targets, *ends) if uid in state.jobs)}
        if len(found) == len(state.not_held_by_us):
            return state.not_held_by_us
        return tuple([job.uid for job in state.snapshot.jobs if job.uid in found])

    def _act(self, actions: Sequence[Action], state: ClusterState) -> int:
        """Perform the actions, and return how many were performed; an outage leaves the rest to the next poll."""
        try:
            return self._actuator.perform(actions, state, self._round_facts())
        except SlurmRestartedError:
            self._note_restart()
            return 0
        except SlurmError as error:
            self._note_outage(error, state.snapshot.now)
            return 0

    def _round_facts(self) -> RoundFacts:
        return RoundFacts(number=self._round, end=self.next_round)

    def _note_outage(self, error: SlurmError, now: float) -> None:
        if self._slurm_error is None:
            log.warning("slurm_unreachable", error=str(error))
            self._store.event("slurm_unreachable", str(error), at=now)
        self._slurm_error = str(error)
        self._round_wanted = True  # no later poll reports the arrivals of the interrupted one
        self._publisher.republish(self)
        self._metrics.note_outage()


def _number_and_instant(last: RoundRecord | None) -> tuple[int, float | None]:
    """Return the number of the last round, 0 without one, and when it was decided, unix seconds."""
    return (0, None) if last is None else (last.round, last.at)


def _is_disallowed(target: Placement, observed: ObservedJob | None) -> bool:
    """Whether a job that waits cannot run on the GPUs of its target: its script has failed on that many meanwhile."""
    job = None if observed is None else observed.job
    return job is not None and not job.active and bool(job.sizes) and target.gpus not in job.sizes


def _batches_of_scripts(jobs: Iterable[Job]) -> dict[str, BatchRegime]:
    """Return the present batch sizes of the jobs whose batch the scheduler does not choose, by uid."""
    return {
        job.uid: job.batching.regimes[-1]
        for job in jobs
        if job.batching is not None and job.batching.regimes and job.batching.control is not BatchControl.SCHEDULER
    }


def _gpu_sharing_after(policy: Policy, snapshot: Snapshot, result: RoundResult) -> GpuSharing:
    """Return which jobs are to share GPUs after a round.

    Raises:
        PolicyViolationError: the policy shares the GPUs of a job that accepts whole GPUs only.
    """
    for uid in result.co_runners:
        if snapshot.job[uid].whole_gpus:
            raise PolicyViolationError(policy.name, uid, "is to share its GPUs, and asked for whole ones")
    time_slicing = {
        uid
        for grant in (*result.decision.grants, *result.decision.fallback)
        if grant.time_slicing and grant.uid in result.co_runners
        for uid in (grant.uid, result.co_runners[grant.uid])
    }
    return GpuSharing(dict(result.co_runners), frozenset(time_slicing))
