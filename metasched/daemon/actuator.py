"""The act step of a poll: performs the plan's actions in Slurm, in the mailbox and in the store.

Each action first commits to the store what the next poll must know, then writes the files for the trainer, and calls
Slurm last; the calls that signal trainers come after all other actions. So the next poll repairs a crash after any
line. An action that fails is logged and put off for a while, longer after each failure; an outage of Slurm ends the
step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from metasched.configuration.config import Config
from metasched.core.model import (
    Action,
    End,
    HoldJob,
    Job,
    Placement,
    Requeue,
    Resume,
    Retune,
    Snapshot,
    Start,
    Status,
    Stop,
    Suspend,
)
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason, to_json, to_text
from metasched.daemon.cluster_state import ClusterState
from metasched.daemon.restart_watch import RestartWatch
from metasched.intake.launch_failures import failed_launches
from metasched.learning.profiling_sizes import world_sizes_to_profile
from metasched.observe.known_good_size import known_good_size
from metasched.observe.observed_job import NOT_STARTED
from metasched.shared_dir.mailbox import (
    KnownGood,
    Lease,
    LeasedBatch,
    Mailbox,
    MailboxError,
    ProfilingRuns,
    RequeueMethod,
)
from metasched.slurm.backoff import Backoff
from metasched.slurm.client import SlurmClient, SlurmSettings
from metasched.slurm.errors import SlurmError, SlurmRestartedError, SlurmUnavailableError
from metasched.slurm.job_requirements import geometry
from metasched.slurm.write_budget import WriteBudget
from metasched.store import FIRST_STEPS, EndCause, Store

SAME_NODE_SECONDS = 3.0
"""Time after the recorded end of a run from which that end certainly lies in an earlier second."""
LOST_NODE_SECONDS = 5.0
"""Time in which Slurm may still end an old run on a lost node that is back, by the job's id: a new run dies by it."""
SLACK_SECONDS = 0.1
"""Time beyond the delay of a release after which Slurm certainly may start the job."""

ACTION_KINDS: Mapping[type[Action], str] = {
    HoldJob: "hold",
    Start: "start",
    Stop: "stop",
    Requeue: "requeue",
    End: "end",
    Suspend: "suspend",
    Resume: "resume",
    Retune: "retune",
}

log = structlog.get_logger()


def describe(action: Action, snapshot: Snapshot) -> str:
    """Return the action in one line, for logs and dry runs."""
    job = snapshot.job[action.uid]
    where = ""
    if isinstance(action, Start):
        where = f" on {'a part of ' if action.half_gpus else ''}{placement_text(action.placement)}"
    return f"{ACTION_KINDS[type(action)]} {job.slurm_job_id}{where}: {words(action.reason)}"


def placement_text(placement: Placement) -> str:
    """Return the placement for people: ``n1,n2 (2 x 4 v100)``, or ``n1,n2 (4 + 1 v100)`` where numbers differ."""
    nodes = ",".join(placement.nodes)
    if not placement.gpus_per_node:
        return nodes
    each = f"{len(placement.nodes)} x {placement.gpus_per_node}"
    return f"{nodes} ({' + '.join(map(str, placement.uneven)) or each} {placement.gpu_type or 'gpu'})"


def _start_delay(job: Job, placement: Placement, was_lost: bool, now: float) -> int:  # noqa: FBT001
    """Return the seconds to wait before a start that brings the job back to a node that its last run has just left.

    Within the same second slurmd refuses the start ("Job already killed").
    """
    if job.last_placement is None or job.last_ended is None:
        return 0
    if set(job.last_placement.nodes).isdisjoint(placement.nodes):
        return 0
    since = now - job.last_ended
    if was_lost and since < LOST_NODE_SECONDS:
        return math.ceil(min(LOST_NODE_SECONDS - since, LOST_NODE_SECONDS))
    return 1 if since < SAME_NODE_SECONDS else 0


def _theta(fitted: Sequence[float] | None) -> tuple[float, float, float, float, float, float, float] | None:
    """The parameters of the time of an iteration as a lease has them; None where they are not known."""
    if fitted is None:
        return None
    alpha_grad, beta_grad, alpha_local, beta_local, alpha_node, beta_node, gamma = fitted
    return alpha_grad, beta_grad, alpha_local, beta_local, alpha_node, beta_node, gamma


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """The round that a lease is written in: its number, and its regular end in unix seconds."""

    number: int
    end: float


class _Begun(NamedTuple):
    """An action whose outcome the store does not have yet; its entry there; when it began, monotonic seconds.

    After a crash the store knows that the action may not have reached Slurm.
    """

    action: Action
    entry: int
    at: float


class Actuator:
    """Performs actions, and puts off for a while those that failed.

    Attributes:
        config: the configuration in force; a reload replaces it.
        unsent_stops: uids of jobs whose request to stop or to finish is recorded in the store, and may not have reached
            Slurm or the lease.
        budget: of the holds and ends of one poll; users decide by their submissions how many there are.
    """

    def __init__(  # noqa: PLR0917  its collaborators
        self,
        config: Config,
        client: SlurmClient,
        store: Store,
        mailbox: Mailbox,
        settings: SlurmSettings,
        restart_watch: RestartWatch,
    ) -> None:
        self.config = config
        self._restart_watch = restart_watch
        self._client = client
        self._store = store
        self._mailbox = mailbox
        self._settings = settings
        self.budget = WriteBudget()
        self._backoff = Backoff()  # by uid and kind of action
        self._delayed_starts: dict[str, float] = {}  # instant from which Slurm may start the job, by uid
        # An action without an outcome may not have reached Slurm. A plan repeats every kind but a stop, because Slurm
        # still shows the state that the action was to change; of an end, only a request to finish is like a stop.
        unfinished = store.unfinished_actions()
        requests = {ACTION_KINDS[Stop], ACTION_KINDS[End]}
        self.unsent_stops = {action.uid for action in unfinished if action.kind in requests}
        for action in unfinished:
            store.end_action(action.id, "the daemon died before it knew", None)

    @property
    def start_limit(self) -> float:
        """Longest time from release to start, seconds: preempted jobs may use their whole grace time before it."""
        return self.config.schedule.grace_seconds + self.config.schedule.start_seconds

    def perform(self, actions: Sequence[Action], state: ClusterState, round_facts: RoundFacts) -> int:
        """Perform the actions in order, and return how many succeeded.

        The signals to the trainers of all jobs to be stopped come last, by few commands: each such command reads all of
        Slurm's jobs.

        Array tasks that are not split off yet share one record of Slurm, which is held as a whole by one command. Holds
        and ends over the budget are left to the next poll, so that starts and stops do not wait for them.

        Raises:
            SlurmUnavailableError: slurmctld does not answer in time, or has restarted (``SlurmRestartedError``); a
                later poll performs the other actions.
        """
        self._forget_failures(state)
        self._repeat_delayed_releases(state)
        self.budget.renew()
        unsent: dict[str, list[_Begun]] = {}
        try:
            done = self._perform_in_order(actions, state, round_facts, unsent)
        except SlurmUnavailableError:  # perhaps only to that call, and the trainers' time to stop runs
            self._send_signals(unsent, state)
            raise
        return done + self._send_signals(unsent, state)

    def _perform_in_order(
        self,
        actions: Sequence[Action],
        state: ClusterState,
        round_facts: RoundFacts,
        unsent: dict[str, list[_Begun]],
    ) -> int:
        """Perform the actions, but for the signals of stops, and return how many succeeded.

        Args:
            actions: the plan.
            state: of this poll.
            round_facts: the present round.
            unsent: by signal, the stops that the store and the mailbox have, and whose signal remains to be sent; they
                are added here.

        Raises:
            SlurmUnavailableError: as ``perform``.
        """
        done = 0
        now = state.snapshot.now
        held_records: set[str] = set()  # Slurm's ids of the records of several array tasks that this poll has held
        for action in actions:
            if self._backoff.must_wait(action.uid, ACTION_KINDS[type(action)], now):
                continue
            if isinstance(action, HoldJob) and (shared := state.shared_record(action.uid)) is not None:
                if shared in held_records:
                    continue
                held_records.add(shared)
            if isinstance(action, HoldJob | End) and not self.budget.admits():
                continue
            begun = self._begin(action, round_facts, now)
            try:
                signal = self._perform_one(action, state, round_facts)
            except (SlurmError, MailboxError) as error:
                self._fail(begun, error, state)
                if isinstance(error, SlurmUnavailableError):
                    raise
                continue
            if signal is not None:
                unsent.setdefault(signal, []).append(begun)
            else:
                self._succeed(begun, state)
                done += 1
        return done

    def _begin(self, action: Action, round_facts: RoundFacts, now: float) -> _Begun:
        facts = {"reason": to_json(action.reason)}
        entry = self._store.begin_action(action.uid, ACTION_KINDS[type(action)], facts, round_facts.number, now)
        return _Begun(action, entry, time.monotonic())

    def _succeed(self, begun: _Begun, state: ClusterState) -> None:
        action = begun.action
        self._store.end_action(begun.entry, "ok", time.monotonic() - begun.at)
        self._backoff.record_success(action.uid, ACTION_KINDS[type(action)])
        if isinstance(action, Stop | End):
            self.unsent_stops.discard(action.uid)
        log.info("action", action=describe(action, state.snapshot))

    def _fail(self, begun: _Begun, error: SlurmError | MailboxError, state: ClusterState) -> None:
        took = time.monotonic() - begun.at
        self._store.end_action(begun.entry, str(error), took)
        log.warning("action_failed", action=describe(begun.action, state.snapshot), error=str(error))
        if not isinstance(error, SlurmRestartedError):
            self._back_off(begun.action, error, state.snapshot.now, took)

    def _send_signals(self, unsent: Mapping[str, Sequence[_Begun]], state: ClusterState) -> int:
        """Send the jobs to be stopped their signals, and return how many were sent.

        Raises:
            SlurmUnavailableError: slurmctld does not answer in time; no signal counts as sent.
        """
        done, outage = 0, None
        for signal, stops in unsent.items():
            ids = [state.snapshot.job[begun.action.uid].slurm_job_id for begun in stops]
            try:
                errors = dict.fromkeys(ids, outage) if outage else self._client.signal(ids, signal)
            except SlurmError as error:
                errors = dict.fromkeys(ids, error)
                outage = error if isinstance(error, SlurmUnavailableError) else None
            for begun, slurm_job_id in zip(stops, ids, strict=True):
                if (why := errors.get(slurm_job_id)) is not None:
                    self._fail(begun, why, state)
                else:
                    self._succeed(begun, state)
                    done += 1
        if outage is not None:
            raise outage
        return done

    def _back_off(self, action: Action, error: SlurmError | MailboxError, now: float, took: float) -> None:
        """Put a failed action off for a while, longer after each failure in a row."""
        outage = took + self.config.outage_seconds if isinstance(error, SlurmUnavailableError) else 0.0
        failures = self._backoff.record_failure(action.uid, ACTION_KINDS[type(action)], now, outage)
        if isinstance(action, Stop | End):
            self.unsent_stops.add(action.uid)
        if isinstance(action, Start) and failures.count > 1:  # after the second failure other jobs may have the GPUs
            self._store.update_job(action.uid, not_before=now + failures.wait)
            self._store.event(NOT_STARTED, str(error), uid=action.uid, at=now)

    def _forget_failures(self, state: ClusterState) -> None:
        """Drop failures of jobs that have ended, and of starts that took effect although their answer was lost."""
        live = state.jobs
        self._backoff.retain(
            lambda uid, kind: uid in live and (kind != ACTION_KINDS[Start] or live[uid].job.status is Status.HELD)
        )
        self.unsent_stops &= live.keys()

    def _repeat_delayed_releases(self, state: ClusterState) -> None:
        """Release jobs again that were released with a delay, once the delay is over.

        A release makes Slurm schedule at once. Otherwise it starts the job in its next cycle, which with its default
        parameters can be half a minute later.
        """
        now = state.snapshot.now
        for uid, at in list(self._delayed_starts.items()):
            job = state.jobs[uid].job if uid in state.jobs else None
            if job is None or job.status is not Status.QUEUED:
                del self._delayed_starts[uid]
            elif not now <= at <= now + LOST_NODE_SECONDS + SLACK_SECONDS:  # later: the clock was set back
                del self._delayed_starts[uid]
                try:
                    self._release(job)
                except SlurmUnavailableError:
                    raise
                except SlurmError as error:  # the job has started meanwhile, or Slurm starts it in a later cycle
                    log.info("release_not_repeated", job=job.slurm_job_id, error=str(error))

    def update_leases(self, jobs: Sequence[Job], round_facts: RoundFacts) -> None:
        """Write the leases of jobs that keep their allocation where one is missing, or has another batch plan.

        The batch plan is the store's. Trainers read the rest of a lease only once, so it stays as it is: thousands of
        leases that are as before are not written in every round. A run that Slurm started without a release keeps the
        lease that its trainer may have found, because a higher run number would supersede the trainer.
        """
        for job in jobs:
            try:
                self._update_lease(job, round_facts)
            except MailboxError as error:
                log.warning("lease_not_written", job=job.slurm_job_id, error=str(error))

    def _update_lease(self, job: Job, round_facts: RoundFacts) -> None:
        """Write a run's lease if there is none, or if the store has another batch plan for the run.

        Raises:
            MailboxError: the lease cannot be written.
        """
        lease = self._lease_of(job)
        if job.placement is None or (lease is not None and lease.run != job.run):
            return
        batch = self._leased_batch(job)
        if lease is not None and lease.batch == batch:
            return
        written = self._new_lease(job, job.placement, job.run, round_facts) if lease is None else lease
        self._mailbox.write_lease(replace(written, round=round_facts.number, round_end=round_facts.end, batch=batch))

    def _leased_batch(self, job: Job) -> LeasedBatch | None:
        """Return the batch plan that the store has for the job's present run; None for a job with a fixed batch."""
        if not job.adaptive_batch:
            return None
        run = self._store.require_job(job.uid).current
        if run is None or run.batch is None:
            return LeasedBatch()
        placement = run.placement or run.released
        fitted = job.iteration_parameters.get(placement.gpu_type or "") if placement is not None else None
        return LeasedBatch(run.batch_number, run.batch.per_gpu, run.batch.accumulation, theta=_theta(fitted))

    def _perform_one(self, action: Action, state: ClusterState, round_facts: RoundFacts) -> str | None:
        """Perform an action; of a stop that its trainer can answer, return the signal that remains to be sent."""
        job = state.snapshot.job[action.uid]
        match action:
            case HoldJob():
                self._hold(job, state)
            case Start():
                self._start(job, action, state, round_facts)
            case Stop():
                return self._stop(job, action, state)
            case Requeue():
                self._client.requeue_hold(job.slurm_job_id)
                self._store.event("deaf", to_text(action.reason), uid=job.uid, at=state.snapshot.now)
            case End():
                self._end(job, action, state.snapshot.now)
            case Suspend():
                self._store.run_suspended(job.uid, job.run, state.snapshot.now, by_us=True)
                self._client.suspend(job.slurm_job_id)
            case Resume():
                self._client.resume(job.slurm_job_id)
                self._store.run_resumed(job.uid, job.run, state.snapshot.now)
                # Slurm gives the job a priority again; the hold keeps it from starting if somebody else requeues it.
                self._client.hold(job.slurm_job_id)
            case Retune():
                self._store.batch_requested(job.uid, job.run, action.batch)
                self._update_lease(job, round_facts)
        return None

    def _hold(self, job: Job, state: ClusterState) -> None:
        now = state.snapshot.now
        self._client.hold(state.shared_record(job.uid) or job.slurm_job_id)
        if job.status is not Status.QUEUED or job.released is None or job.released_at is None:
            return
        self._store.run_ended(job.uid, job.run, now, EndCause.WITHDRAWN)
        if now - job.released_at > self.start_limit:
            # The obstacle (a limit, a reservation, a licence) is likely to last: other jobs get the GPUs for a while.
            self._store.update_job(job.uid, not_before=now + state.snapshot.round_seconds)
            why = Reason.of(Code.SLURM_REASON, reason=state.jobs[job.uid].slurm.reason)
            self._store.event(NOT_STARTED, to_text(why), uid=job.uid, at=now)

    def _start(self, job: Job, action: Start, state: ClusterState, round_facts: RoundFacts) -> None:
        now = state.snapshot.now
        run = job.run + 1
        self._store.release(job.uid, run, action.placement, now, action.batch)
        self._mailbox.index_job(job.slurm_job_id, job.uid)
        lease = self._new_lease(job, action.placement, run, round_facts)
        if state.jobs[job.uid].requirements.trials and not action.half_gpus:
            lease = replace(lease, trials=ProfilingRuns(world_sizes_to_profile(job, action.placement)))
        self._mailbox.write_lease(replace(lease, batch=self._leased_batch(job)))
        delay = _start_delay(job, action.placement, self._was_lost(job), now)
        sharing = state.gpu_shards
        shards = None if sharing is None else sharing.half if action.half_gpus else sharing.per_gpu
        self._client.update(
            job.slurm_job_id,
            geometry(job, action.placement, state.jobs[job.uid].requirements, delay=delay, shards=shards),
        )
        self._release(job)
        if delay:
            self._delayed_starts[job.uid] = now + delay + SLACK_SECONDS

    def _was_lost(self, job: Job) -> bool:
        """Whether the job's last run on a node was lost, perhaps with its node."""
        ended = [run for run in self._store.runs(job.uid) if run.placement is not None and run.ended is not None]
        return bool(ended) and ended[-1].cause is EndCause.LOST

    def _release(self, job: Job) -> None:
        """Release a job, unless slurmctld has just restarted; hold it again where slurmctld restarted meanwhile.

        Raises:
            SlurmRestartedError: slurmctld has restarted, so the job must not start now.
            SlurmError: the release failed.
        """
        self._restart_watch.require_no_restart()
        self._client.release(job.slurm_job_id)
        try:
            self._restart_watch.require_no_restart()
        except SlurmRestartedError:
            try:
                self._client.hold(job.slurm_job_id)
            except SlurmError as error:  # it has started already
                log.info("not_held_after_restart", job=job.slurm_job_id, error=str(error))
            raise

    def _stop(self, job: Job, action: Stop, state: ClusterState) -> str | None:
        """Request a stop, and return the signal that its trainer is to be sent; None where Slurm requeues the job."""
        now = state.snapshot.now
        self._store.stop_requested(job.uid, job.run, now, action.successors)
        lease = self._lease_of(job)
        if job.trainer_ready and lease is not None and lease.run == job.run:
            try:
                self._mailbox.request_stop(
                    job.uid, run=job.run, requested=now, deadline=action.deadline, reason=words(action.reason)
                )
            except MailboxError as error:  # for example a full disk; the signal alone is enough
                log.warning("stop_not_written", job=job.slurm_job_id, error=str(error))
            return lease.signal
        # No trainer has reported that it handles the signal, which would kill another script and make the job fail.
        # Slurm's own requeue never loses a job, and its SIGTERM is a request to stop, too.
        self._client.requeue_hold(job.slurm_job_id)
        return None

    def _end(self, job: Job, action: End, now: float) -> None:
        """End a job for good; the store has its end since the round that decided it."""
        lease = self._lease_of(job)
        if action.deadline is None or not job.trainer_ready or lease is None or lease.run != job.run:
            self._client.cancel(job.slurm_job_id)  # no trainer could answer, or it did not in time
            return
        self._store.stop_requested(job.uid, job.run, now)
        # No signal is sent: a trainer that sees a signal alone stops to be requeued.
        self._mailbox.request_finish(
            job.uid, run=job.run, requested=now, deadline=action.deadline, reason=words(action.reason)
        )

    def _lease_of(self, job: Job) -> Lease | None:
        """Return the job's lease; None where there is none, or it cannot be read."""
        try:
            return self._mailbox.read_lease(job.uid)
        except MailboxError as error:
            log.warning("lease_not_read", job=job.slurm_job_id, error=str(error))
            return None

    def _known_good(self, job: Job, placement: Placement) -> KnownGood | None:
        """Return the number of GPUs to which the job may be put back from this placement; None for none."""
        gpus = known_good_size(self._store.require_job(job.uid))
        return None if gpus is None or gpus == placement.gpus else KnownGood(gpus, FIRST_STEPS)

    def _new_lease(self, job: Job, placement: Placement, run: int, round_facts: RoundFacts) -> Lease:
        exit_code = self.config.slurm.exit_code
        return Lease(
            uid=job.uid,
            slurm_job_id=job.slurm_job_id,
            run=run,
            round=round_facts.number,
            round_end=round_facts.end,
            gpus=placement.gpus,
            gpu_type=placement.gpu_type,
            nodes=dict(placement.node_gpus),
            requeue=RequeueMethod("slurm" if exit_code in self._settings.requeue_exit_hold else "wrapper", exit_code),
            signal=self.config.slurm.signal,
            known_good=self._known_good(job, placement),
            launch_retries=max(self.config.schedule.launch_tries - 1 - failed_launches(self._store.runs(job.uid)), 0),
        )
