"""Actions -> Slurm, mailbox and store.

The order within each action is chosen so that a crash after any line is mended by the next poll: what must be
remembered is committed first, what lets a job start comes last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from metasched.configuration.config import Config
from metasched.core.model import (
    Action,
    HoldJob,
    Job,
    Placement,
    Requeue,
    Resume,
    Snapshot,
    Start,
    Status,
    Stop,
    Suspend,
)
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason, to_json, to_text
from metasched.learning.profiling_runs import sizes
from metasched.observe.observed_job import NOT_STARTED
from metasched.observe.observer import Observation
from metasched.shared_dir.mailbox import Lease, Mailbox, MailboxError
from metasched.slurm.backoff import Backoff
from metasched.slurm.client import SlurmClient, SlurmSettings
from metasched.slurm.errors import SlurmError, SlurmUnavailableError
from metasched.slurm.job_requirements import geometry
from metasched.store import EndCause, Store

SAME_NODE_SECONDS = 3.0  # a run that we saw end longer ago certainly ended in an earlier second
DELAY_SECONDS = 1.1  # after which a start with StartTime=now+1 may happen

KINDS: Mapping[type[Action], str] = {
    HoldJob: "hold",
    Start: "start",
    Stop: "stop",
    Requeue: "requeue",
    Suspend: "suspend",
    Resume: "resume",
}

log = structlog.get_logger()


def describe(action: Action, snapshot: Snapshot) -> str:
    """One line for people."""
    job = snapshot.job[action.uid]
    where = ""
    if isinstance(action, Start):
        where = f" on {'a part of ' if action.half_gpus else ''}{placement_text(action.placement)}"
    return f"{KINDS[type(action)]} {job.slurm_job_id}{where}: {words(action.reason)}"


def placement_text(placement: Placement) -> str:
    """``n1,n2 (2 x 4 v100)``, or ``n1,n2 (4 + 1 v100)``."""
    nodes = ",".join(placement.nodes)
    if not placement.gpus_per_node:
        return nodes
    each = f"{len(placement.nodes)} x {placement.gpus_per_node}"
    return f"{nodes} ({' + '.join(map(str, placement.uneven)) or each} {placement.gpu_type or 'gpu'})"


def _leaves_there(job: Job, placement: Placement, now: float) -> bool:
    """Whether it goes back to a node in the second in which it left: slurmd refuses that ("Job already killed")."""
    if (
        job.last_placement is None
        or job.last_ended is None
        or set(job.last_placement.nodes).isdisjoint(placement.nodes)
    ):
        return False
    return now - job.last_ended < SAME_NODE_SECONDS


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What a lease says of the round that it was written in."""

    number: int
    end: float


class Actuator:
    """Performs actions; keeps nothing but a short memory of failures, so as not to hammer Slurm with them.

    Attributes:
        unsent: uids of jobs whose stop is noted and may not have reached Slurm.
    """

    def __init__(
        self, config: Config, client: SlurmClient, store: Store, mailbox: Mailbox, settings: SlurmSettings
    ) -> None:
        self.config = config
        self._client = client
        self._store = store
        self._mailbox = mailbox
        self._settings = settings
        self._backoff = Backoff()  # by uid and kind of action
        self._delayed: dict[str, float] = {}
        # An action that was begun and has no outcome may not have reached Slurm. All kinds but a stop come back by
        # themselves, because the next look still shows what they are to change.
        unfinished = store.unfinished_actions()
        self.unsent = {action.uid for action in unfinished if action.kind == KINDS[Stop]}
        for action in unfinished:
            store.end_action(action.id, "the daemon died before it knew", None)

    @property
    def start_limit(self) -> float:
        """Seconds that a released job may wait: those whose GPUs it gets may use their whole grace first."""
        return self.config.schedule.grace_seconds + self.config.schedule.start_seconds

    def perform(self, actions: Sequence[Action], seen: Observation, round_facts: RoundFacts) -> int:
        """Do them in order; how many were done.

        Raises:
            SlurmUnavailableError: the controller does not answer (in time); the rest is left to the next poll.
        """
        done = 0
        now = seen.snapshot.now
        self._forget(seen)
        self._remind(seen)
        for action in actions:
            kind = KINDS[type(action)]
            if self._backoff.rests(action.uid, kind, now):
                continue
            entry = self._store.begin_action(
                action.uid, kind, {"reason": to_json(action.reason)}, round_facts.number, now
            )
            begun = time.monotonic()
            try:
                self._do(action, seen, round_facts)
            except (SlurmError, MailboxError) as error:
                took = time.monotonic() - begun
                self._store.end_action(entry, str(error), took)
                log.warning("action_failed", action=describe(action, seen.snapshot), error=str(error))
                self._put_off(action, error, now, took)
                if isinstance(error, SlurmUnavailableError):
                    raise
                continue
            self._store.end_action(entry, "ok", time.monotonic() - begun)
            self._backoff.went_well(action.uid, kind)
            if isinstance(action, Stop):
                self.unsent.discard(action.uid)
            log.info("action", action=describe(action, seen.snapshot))
            done += 1
        return done

    def _put_off(self, action: Action, error: SlurmError | MailboxError, now: float, took: float) -> None:
        """Leave an action that failed alone for a while, the longer the more often it did."""
        outage = took + self.config.outage_seconds if isinstance(error, SlurmUnavailableError) else 0.0
        failures = self._backoff.failed(action.uid, KINDS[type(action)], now, outage)
        if isinstance(action, Stop):
            self.unsent.add(action.uid)
        if isinstance(action, Start) and failures.times > 1:  # that is no accident: others may have the GPUs meanwhile
            self._store.update_job(action.uid, not_before=now + failures.rest)
            self._store.event(NOT_STARTED, str(error), uid=action.uid, at=now)

    def _forget(self, seen: Observation) -> None:
        """Forget what failed of jobs that have ended, and of starts that took effect though their answer was lost."""
        live = seen.snapshot.job
        self._backoff.keep(lambda uid, kind: uid in live and (kind != KINDS[Start] or live[uid].status is Status.HELD))
        self.unsent &= live.keys()

    def _remind(self, seen: Observation) -> None:
        """Release again what had to be released with a delay, once that is over.

        Slurm would start it when it next looks by itself, which with its default parameters can be half a minute later;
        a release makes it look.
        """
        for uid, since in list(self._delayed.items()):
            job = seen.snapshot.job.get(uid)
            if job is None or job.status is not Status.QUEUED:
                del self._delayed[uid]
            elif not 0 <= seen.snapshot.now - since <= DELAY_SECONDS:
                del self._delayed[uid]
                try:
                    self._client.release(job.slurm_job_id)
                except SlurmUnavailableError:
                    raise
                except SlurmError as error:  # it started meanwhile, say; Slurm starts it without us, too, if later
                    log.info("not_reminded", job=job.slurm_job_id, error=str(error))

    def renew(self, jobs: Sequence[Job], round_facts: RoundFacts) -> None:
        """Write a new round into the leases of the runs that go on, and nothing else: trainers read the rest once.

        A run that Slurm began without us keeps the lease that it may have found: a higher run number would supersede
        its trainer. Where there is none yet, it gets one.
        """
        for job in jobs:
            lease = self._lease_of(job)
            if job.placement is None or (lease is not None and lease.run != job.run):
                continue
            if lease is None:
                lease = self._new_lease(job, job.placement, job.run, round_facts)
            try:
                self._mailbox.write_lease(replace(lease, round=round_facts.number, round_end=round_facts.end))
            except MailboxError as error:
                log.warning("lease_not_renewed", job=job.slurm_job_id, error=str(error))

    def _do(self, action: Action, seen: Observation, round_facts: RoundFacts) -> None:
        job = seen.snapshot.job[action.uid]
        match action:
            case HoldJob():
                self._hold(job, seen)
            case Start():
                self._start(job, action, seen, round_facts)
            case Stop():
                self._stop(job, action, seen)
            case Requeue():
                self._client.requeue_hold(job.slurm_job_id)
                self._store.event("deaf", to_text(action.reason), uid=job.uid, at=seen.snapshot.now)
            case Suspend():
                self._store.run_suspended(job.uid, job.run, seen.snapshot.now, by_us=True)
                self._client.suspend(job.slurm_job_id)
            case Resume():
                self._client.resume(job.slurm_job_id)
                self._store.run_resumed(job.uid, job.run, seen.snapshot.now)
                # Slurm gives it a priority again, which was its hold in case that somebody else requeues it.
                self._client.hold(job.slurm_job_id)
            case _:
                raise NotImplementedError(action)

    def _hold(self, job: Job, seen: Observation) -> None:
        now = seen.snapshot.now
        self._client.hold(job.slurm_job_id)
        if job.status is not Status.QUEUED or job.released is None or job.released_at is None:
            return
        self._store.run_ended(job.uid, job.run, now, EndCause.WITHDRAWN)
        if now - job.released_at > self.start_limit:
            # What keeps it (a limit, a reservation, a licence) is likely to last: let others have the GPUs for a while.
            self._store.update_job(job.uid, not_before=now + seen.snapshot.round_seconds)
            why = Reason.of(Code.SLURM_REASON, reason=seen.seen[job.uid].slurm.reason)
            self._store.event(NOT_STARTED, to_text(why), uid=job.uid, at=now)

    def _start(self, job: Job, action: Start, seen: Observation, round_facts: RoundFacts) -> None:
        now = seen.snapshot.now
        run = job.run + 1
        self._store.release(job.uid, run, action.placement, now)
        self._mailbox.write_address(job.slurm_job_id, job.uid)
        lease = self._new_lease(job, action.placement, run, round_facts)
        if seen.seen[job.uid].needed.trials and not action.half_gpus:
            lease = replace(lease, trials=sizes(job, action.placement))
        self._mailbox.write_lease(lease)
        delay = 1 if _leaves_there(job, action.placement, now) else 0
        shards = None if seen.seats is None else seen.seats.half if action.half_gpus else seen.seats.per_gpu
        self._client.update(
            job.slurm_job_id, geometry(job, action.placement, seen.seen[job.uid].needed, delay=delay, shards=shards)
        )
        self._client.release(job.slurm_job_id)
        if delay:
            self._delayed[job.uid] = now

    def _stop(self, job: Job, action: Stop, seen: Observation) -> None:
        now = seen.snapshot.now
        self._store.stop_requested(job.uid, job.run, now)
        lease = self._lease_of(job)
        if job.trainer_ready and lease is not None and lease.run == job.run:
            try:
                self._mailbox.request_stop(
                    job.uid, run=job.run, requested=now, deadline=action.deadline, reason=words(action.reason)
                )
            except MailboxError as error:  # a full disk, say: the signal alone is enough
                log.warning("stop_not_written", job=job.slurm_job_id, error=str(error))
            self._client.signal(job.slurm_job_id, lease.signal)
        else:
            # No trainer of ours has said that it listens: our signal would kill a script that does not know it, and
            # the job would count as failed. Slurm's own requeue never loses a job, and its SIGTERM is a request too.
            self._client.requeue_hold(job.slurm_job_id)

    def _lease_of(self, job: Job) -> Lease | None:
        """The lease that the job has; None also where it cannot be read."""
        try:
            return self._mailbox.read_lease(job.uid)
        except MailboxError as error:
            log.warning("lease_not_read", job=job.slurm_job_id, error=str(error))
            return None

    def _new_lease(self, job: Job, placement: Placement, run: int, round_facts: RoundFacts) -> Lease:
        return Lease(
            uid=job.uid,
            slurm_job_id=job.slurm_job_id,
            run=run,
            round=round_facts.number,
            round_end=round_facts.end,
            gpus=placement.gpus,
            gpu_type=placement.gpu_type,
            nodes=dict(placement.node_gpus),
            requeue_by="slurm" if self.config.slurm.exit_code in self._settings.requeue_exit_hold else "wrapper",
            exit_code=self.config.slurm.exit_code,
            signal=self.config.slurm.signal,
        )
