"""What Slurm shows and what the store remembers -> the snapshot, with new jobs taken in on the way.

Slurm is the truth for what runs, the store for history. Every step here is repeatable: the daemon may be killed between
any two lines, and the next poll goes on from what it finds.
"""

from __future__ import annotations

import pwd
import re
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any

import structlog
from pydantic import TypeAdapter

from metasched.config import Config
from metasched.demand import PastJob, expected_service
from metasched.hardware import Hardware, is_part, observed_placement, usable
from metasched.learning import Learning
from metasched.mailbox import Mailbox, MailboxError
from metasched.model import Hold, Job, Placement, Preempt, Snapshot, Status
from metasched.quotas import Owner, Quotas, owner_of
from metasched.reports import TrialReport
from metasched.reservations import Reservations
from metasched.seats import Seats
from metasched.slurm.associations import enforces_limits
from metasched.slurm.client import OUT_OF_REACH, JobState, SlurmClient, SlurmJob, SlurmSettings
from metasched.slurm.errors import SlurmError, SlurmPermissionError, SlurmUnavailableError, TagError
from metasched.slurm.intake import STAMP, Requirements, is_ours, requirements
from metasched.slurm.tags import Tag, parse_tag
from metasched.store import EndCause, JobRecord, RunRecord, Store
from metasched.store.ingest import ingest

# A suspension of ours that Slurm still does not show after this long was never carried out.
SUSPEND_SECONDS = 10.0
# A job that Slurm does not show for so long is gone.
MISSING_SECONDS = 30.0
# Slurm's reason where it holds a released job itself, since it could never start it.
NEVER = "BadConstraints"
# So many jobs like a new one are looked at for what it will need.
HISTORY = 20
# Of so many new jobs in one look Slurm is asked for the script; that of others is never known.
SCRIPTS = 20
# Since this release Slurm knows, when one of two jobs on a GPU has ended, that the other is still there.
SHARDS_REMEMBERED = (23, 2)
KILLED_BY_OLD_RUN = "killed_by_old_run"  # an event
# At its end, so many budgets of a job's reports are read at most: a file can be made endless.
LAST_READS = 64
_REQUIREMENTS = TypeAdapter(Requirements)
_NOTHING = Requirements(  # stands for what a malformed tag asks for: such a job is blocked, and stays so
    gpus=0,
    min_gpus=0,
    max_gpus=0,
    nodes=1,
    max_nodes=1,
    gpu_types=(),
    cpus_per_unit=1,
    memory_per_unit=0,
    features=frozenset(),
    only_nodes=frozenset(),
    excluded_nodes=frozenset(),
    weight=1.0,
    preempt=Preempt.CHECKPOINT,
    total_steps=None,
)
ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SeenJob:
    """One live job from every side: as scheduling, Slurm, the store and its own request see it."""

    job: Job
    slurm: SlurmJob
    record: JobRecord
    needed: Requirements


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the cluster.

    Attributes:
        snapshot: for the engine.
        seen: the live jobs, by uid.
        arrived, completed: jobs that are new, or that ended, since the last look.
        busy: whether a run is just being stopped or started, so that looking again soon pays.
        seats: who has a part of which GPU; None where Slurm gives away whole GPUs only.
    """

    snapshot: Snapshot
    seen: Mapping[str, SeenJob]
    arrived: int
    completed: int
    busy: bool
    seats: Seats | None = None


def mint(now: float, sequence: int) -> str:
    """A new uid: random, but sorting in the order of intake, since many jobs share one second of submission."""
    return f"{int(now) % 2**32:08x}{sequence % 2**12:03x}{secrets.randbits(20):05x}"


class Reconciler:
    """Turns polls into snapshots."""

    def __init__(
        self, config: Config, client: SlurmClient, store: Store, mailbox: Mailbox, settings: SlurmSettings
    ) -> None:
        self.config = config
        self._forgets = settings.version < SHARDS_REMEMBERED
        self._client = client
        self._store = store
        self._mailbox = mailbox
        self._written: dict[tuple[str, str], bool] = {}
        self._requirements: dict[str, tuple[Mapping[str, Any], Requirements]] = {}
        self._shared: frozenset[int] = frozenset()
        self._missing: dict[str, float] = {}
        self._learning = Learning(store, config.sharing.untried_part)
        self._reported: set[str] = set()
        self._trials: dict[str, tuple[TrialReport, ...]] = {}
        self._refused: set[str] = set()  # addresses of jobs that Slurm lets only an administrator stamp
        self._expected: dict[str, float | None] = {}  # by uid
        self._alike: dict[tuple[str, str, str | None], float | None] = {}  # by user, name and script, in this look
        self._limited = enforces_limits(settings.values)
        self._quotas = Quotas()
        self._quotas_read: tuple[float, frozenset[Owner]] | None = None  # when, and for whose jobs

    def observe(self, now: float, round_number: int) -> Observation:
        """Look once.

        Raises:
            SlurmError: Slurm does not answer; the next look goes on from what was done.
        """
        self._written.clear()
        self._alike.clear()
        if self._learning.untried != self.config.sharing.untried_part:  # the configuration was read again
            self._learning = Learning(self._store, self.config.sharing.untried_part)
        listed, listed_nodes = self._client.jobs(), self._client.nodes()
        hardware = Hardware.of(listed_nodes, Reservations(self._client.reservations(), now))
        records = {record.uid: record for record in self._store.live_jobs()}
        ours, others = self._identify(listed, records, now)
        hardware = hardware.seated(listed_nodes, listed, ours, forgets=self._forgets)
        self._read_quotas(frozenset(owner_of(job) for job in ours.values() if job.state not in ENDED), now)
        self._reported.clear()
        self._trials.clear()
        tasks = Counter(job.job_id for job in listed)
        self._shared = frozenset(job_id for job_id, count in tasks.items() if count > 1)
        new = {uid: job for uid, job in ours.items() if uid not in records and job.state not in ENDED}
        with self._store.transaction():  # all of them before the first write to Slurm
            records.update((uid, self._take_in(uid, job, hardware, now)) for uid, job in new.items())
        records.update(self._note_scripts({uid: job for uid, job in new.items() if records[uid].script is None}))
        live: dict[str, SeenJob] = {}
        completed = 0
        for uid, slurm_job in ours.items():
            record = records.get(uid)
            if record is None:
                continue  # it ended before we knew it
            seen = self._sync(record, slurm_job, hardware, now)
            if seen is None:
                completed += 1
            elif _odd(seen):
                others.append(slurm_job)  # it keeps what it has until it ends, like a job that is not ours
            else:
                live[uid] = seen
        completed += self._count_vanished([records[uid] for uid in records.keys() - ours.keys()], now)
        jobs = sorted((seen.job for seen in live.values()), key=lambda job: (job.submitted, job.uid))
        subjects = {uid: _subject(seen) for uid, seen in live.items()}
        for uid, trials in self._trials.items():
            if uid in live and (place := live[uid].job.placement) is not None:
                self._learning.take(subjects[uid], place, trials)
        self._learning.look(jobs, subjects, self._reported, now)
        ours_at = {
            (node, gpu) for seen in live.values() for node, which in seen.slurm.gpu_indices.items() for gpu in which
        }
        asked = {job.reservation for job in jobs if job.blocked is None}
        usable_nodes = (
            hardware.reservations.on(usable(node, others, ours_at), asked, reserved=node.reserved)
            for node in listed_nodes
            if len(node.gpus) <= 1
        )
        snapshot = Snapshot(
            now=now,
            round=round_number,
            round_seconds=self.config.schedule.round_seconds,
            nodes=tuple(usable_nodes),
            jobs=tuple(jobs),
            sharing=hardware.shards is not None and self.config.sharing.enabled,
            limits=self._quotas.limits([(seen.job, seen.slurm) for seen in live.values()], others),
        )
        busy = any(
            job.status in (Status.STOPPING, Status.QUEUED) or (job.active and job.stop_requested is not None)
            for job in jobs
        )
        return Observation(
            snapshot=snapshot, seen=live, arrived=len(new), completed=completed, busy=busy, seats=hardware.seats
        )

    def _read_quotas(self, owners: frozenset[Owner], now: float) -> None:
        """Read shares and limits, if that is due; limits for each user are not told before the user has jobs."""
        every = self.config.accounting.refresh_seconds
        if not every:
            self._quotas, self._quotas_read = Quotas(), None
            return
        if self._quotas_read is not None:
            at, known = self._quotas_read
            if 0 <= now - at < every and owners <= known:
                return
        self._quotas_read = now, owners
        try:
            self._quotas = Quotas(self._client.associations(), limited=self._limited)
        except SlurmUnavailableError:
            raise
        except SlurmError as error:
            log.warning("associations_not_read", error=str(error))

    # intake

    def _identify(
        self, listed: Iterable[SlurmJob], records: Mapping[str, JobRecord], now: float
    ) -> tuple[dict[str, SlurmJob], list[SlurmJob]]:
        """Split Slurm's list into ours, by uid, and others. Unstamped jobs of ours get a uid, not yet written."""
        ours: dict[str, SlurmJob] = {}
        others: list[SlurmJob] = []
        minted: dict[int, str] = {}
        by_address = {(record.address, record.submitted): record.uid for record in records.values()}
        for job in sorted(listed, key=lambda job: job.job_id):
            stamp = STAMP.match(job.admin_comment)
            if stamp is not None:
                base = stamp[1]
            elif not is_ours(job, self.config.intake.partitions, self.config.intake.qos):
                others.append(job)
                continue
            elif job.state in ENDED:
                continue
            else:
                # Taken in already, but killed before the stamp; or the controller crashed and forgot the stamp.
                known = by_address.get((job.address, job.submitted), "").partition("_")[0]
                base = minted.setdefault(job.array_job_id or job.job_id, known or mint(now, len(minted)))
            uid = base if job.array_task_id is None else f"{base}_{job.array_task_id}"
            rival = ours.get(uid)
            if rival is not None:  # only an operator can have copied a stamp; the address that we know wins
                known_address = records[uid].address if uid in records else None
                loser, winner = (rival, job) if job.address == known_address else (job, rival)
                log.warning("duplicate_stamp", uid=uid, address=loser.address)
                others.append(loser)
                job = winner  # noqa: PLW2901  the loop goes on with the winner
            ours[uid] = job
        return ours, others

    def _take_in(self, uid: str, job: SlurmJob, hardware: Hardware, now: float) -> JobRecord:
        """Remember a job before anything is written to Slurm, so that a crash in between mints no second uid."""
        previous = self._store.job(uid)
        if previous is not None:  # it had ended, and somebody requeued it
            self._store.revive_job(uid)
            self._store.event("revived", "it had ended and is in the queue again", uid=uid, at=now)
        else:
            needed, error = _requirements(job, hardware)
            record = JobRecord(
                uid=uid,
                address=job.address,
                name=job.name,
                user=job.user,
                account=job.account or None,
                partition=job.partition,
                submitted=job.submitted,
                requirements=needed,
                error=error,
                total_steps=needed.get("total_steps"),
                # After a requeue the begin time is Slurm's delay, not the user's wish.
                not_before=job.eligible if job.restarts == 0 and job.eligible != OUT_OF_REACH else None,
            )
            self._store.add_job(record)
            self._store.event("arrived", f"taken in as Slurm job {job.address}", uid=uid, at=now)
            if error is not None:
                self._store.event("bad_tag", error, uid=uid, at=now)
        return self._record(uid)

    def _note_scripts(self, new: Mapping[str, SlurmJob]) -> dict[str, JobRecord]:
        """Keep the hashes of new jobs' batch scripts, by which recurring ones are known; the records that changed."""
        hashes: dict[int, str] = {}  # by job id: the tasks of an array have one script
        for number in sorted({job.array_job_id or job.job_id for job in new.values()})[:SCRIPTS]:
            try:
                script = self._client.batch_script(str(number))
            except SlurmError as error:
                log.info("script_not_known", job=number, error=str(error))
                if isinstance(error, (SlurmUnavailableError, SlurmPermissionError)):
                    break  # it would not tell of the others either
            else:
                hashes[number] = sha256(script.encode()).hexdigest()
        found = {uid: hashes.get(job.array_job_id or job.job_id) for uid, job in new.items()}
        with self._store.transaction():
            for uid, script_hash in found.items():
                if script_hash is not None:
                    self._store.update_job(uid, script=script_hash)
        return {uid: self._record(uid) for uid, script_hash in found.items() if script_hash is not None}

    def _record(self, uid: str) -> JobRecord:
        record = self._store.job(uid)
        if record is None:
            raise KeyError(uid)
        return record

    def _keep_marked(self, record: JobRecord, job: SlurmJob, hardware: Hardware) -> tuple[JobRecord, SlurmJob]:
        """See to address, tag, stamp, hold and requeue flag; a write that fails is repeated by the next poll."""
        if record.address != job.address:
            self._store.update_job(record.uid, address=job.address)
            record = self._record(record.uid)
        if record.error is not None and job.state is JobState.PENDING:
            # The owner may have mended the tag, or the admin the cluster; until then it is not changed by us.
            needed, error = _requirements(job, hardware)
            if error != record.error:
                total = needed.get("total_steps")
                self._store.update_job(record.uid, requirements=needed, error=error, total_steps=total)
                record = self._record(record.uid)
        stamp = f"metasched:{record.uid.partition('_')[0]}" + (f" {record.error}" if record.error else "")
        # Tasks that are not split off yet share their master's record: written through it, they stay together.
        address = str(job.job_id) if job.job_id in self._shared else job.address
        stamped = job.admin_comment == stamp or _canonical(job.admin_comment) == _canonical(stamp)
        if STAMP.match(job.admin_comment) and address in self._refused:
            stamped = True  # by job_submit.lua, as whom it is known; its error stands in the status alone
        if not stamped and job.state is JobState.PENDING:
            if self._once(address, "adopt", lambda: self._client.adopt(address, stamp)):
                job = replace(job, hold=Hold.ADMIN, admin_comment=stamp)
        elif not stamped:
            self._once(address, "stamp", lambda: self._client.stamp(address, stamp))
        elif not job.requeue:
            self._once(address, "set_requeue", lambda: self._client.set_requeue(address))
        elif job.state is JobState.PENDING and job.dependency and (job.hold, job.eligible) != (Hold.NONE, OUT_OF_REACH):
            self._once(address, "await_dependency", lambda: self._client.await_dependency(address))
        return record, job

    def _once(self, address: str, what: str, write: Callable[[], None]) -> bool:
        """Write, unless this poll has done so already for another task of the same array; whether that went well."""
        if (address, what) not in self._written:
            try:
                write()
            except SlurmUnavailableError:
                raise
            except SlurmError as error:
                log.warning("intake_write_failed", what=what, job=address, error=str(error))
                if isinstance(error, SlurmPermissionError):
                    self._refused.add(address)
                self._written[address, what] = False
            else:
                self._written[address, what] = True
        return self._written[address, what]

    def _needed(self, record: JobRecord) -> Requirements:
        if record.error is not None:
            return _NOTHING
        stored, needed = self._requirements.get(record.uid, (None, _NOTHING))
        if stored != record.requirements:
            needed = _REQUIREMENTS.validate_python(record.requirements)
            self._requirements[record.uid] = (record.requirements, needed)
        return needed

    # one job, seen again

    def _sync(self, record: JobRecord, seen: SlurmJob, hardware: Hardware, now: float) -> SeenJob | None:
        """Bring a job's record up to what Slurm shows; None if it ended for good."""
        if seen.state in ENDED:
            if not self._rescued(record, seen, now):
                self._finish(record, seen, now)
                return None
            status = Status.STOPPING
        else:
            record, seen = self._keep_marked(record, seen, hardware)
            status = _status(seen)
            if record.current is not None and record.current.started is not None:
                record = self._ingest(record, now)  # before its run is closed: they say how it ended
            if self._follow_run(record, seen, status, hardware, now):
                record = self._record(record.uid)
        needed = self._needed(record)
        found = SeenJob(_job(record, needed, seen, status, hardware, now), seen, record, needed)
        speed, expected = self._learning.speed(_subject(found)), self._expectation(record)
        job = found.job.evolve(speed=speed, expected_service=expected)
        return replace(found, job=self._quotas.apply(job, seen))

    def _expectation(self, record: JobRecord) -> float | None:
        """GPU-seconds that it should need, by jobs of its user, name and script; looked up when it is first seen."""
        if record.uid not in self._expected:
            key = record.user, record.name, record.script
            if key not in self._alike:  # the tasks of an array come together
                past = [
                    PastJob(sum(amount for kind, amount in one.attained.items() if kind), one.script)
                    for one in self._store.completed_jobs(record.user, record.name, HISTORY)
                ]
                self._alike[key] = expected_service(past, record.script)
            self._expected[record.uid] = self._alike[key]
        return self._expected[record.uid]

    def _follow_run(self, record: JobRecord, seen: SlurmJob, status: Status, hardware: Hardware, now: float) -> bool:
        """Open, close, suspend or resume the record's run as Slurm shows it; whether anything changed."""
        run = record.current
        if status in (Status.HELD, Status.QUEUED):
            if run is None or (run.started is None and status is Status.QUEUED):
                return False
            if run.started is None:
                # Held again before we saw it start (it may have come and gone between two polls).
                self._store.run_ended(record.uid, run.run, now, EndCause.WITHDRAWN)
                if seen.reason == NEVER:
                    self._store.update_job(record.uid, not_before=now + self.config.schedule.round_seconds)
                    self._store.event("not_started", f"Slurm's reason: {seen.reason}", uid=record.uid, at=now)
                return True
            self._close_run(record, run, now)
            return True
        placement = observed_placement(seen, hardware.gpu_type)
        if status is Status.STOPPING or seen.started is None or placement is None:
            return False
        if run is not None and run.started is not None and seen.started > run.started + 1:
            self._close_run(record, run, seen.started)  # it ended and began again between two polls
            run = None
        if run is None:
            text = "Slurm started it though no plan asked for it"
            self._store.event("started_without_us", text, uid=record.uid, at=now)
        if run is None or run.started is None:
            number = record.run + 1 if run is None else run.run
            news = self._store.run_started(record.uid, number, seen.started, placement)
            # Held while it runs, it comes back held if its owner requeues it or its node is lost.
            self._once(seen.address, "hold", lambda: self._client.hold(seen.address))
            return news
        return self._follow_suspension(run, status, now)

    def _follow_suspension(self, run: RunRecord, status: Status, now: float) -> bool:
        if status is Status.SUSPENDED and run.suspended_at is None:
            return self._store.run_suspended(run.uid, run.run, now, by_us=False)
        if status is Status.RUNNING and run.suspended_at is not None:
            # Ours is recorded before Slurm is asked; seeing it run just means that the request is still to be sent.
            if run.suspended_by_us and now - run.suspended_at < SUSPEND_SECONDS:
                return False
            return self._store.run_resumed(run.uid, run.run, now)
        return False

    def _close_run(self, record: JobRecord, run: RunRecord, at: float) -> None:
        if run.stop_requested is None:
            cause = EndCause.LOST
            self._store.event("lost", "its run ended without our asking; it goes on", uid=record.uid, at=at)
        elif run.ready_at is not None and run.stop_noticed is None:
            cause = EndCause.DEAF
        elif record.uid in self._store.targets():
            cause = EndCause.RESIZED
        else:
            cause = EndCause.PREEMPTED
        self._store.run_ended(record.uid, run.run, at, cause)

    def _rescued(self, record: JobRecord, seen: SlurmJob, now: float) -> bool:
        """A run that ended as failed and is put back, because what ended it was not the job's own failure."""
        if seen.state not in (JobState.FAILED, JobState.TIMEOUT):
            return False
        if record.current is not None and record.current.stop_requested is not None:
            kind, cause = "rescued", "when asked to stop"  # the stop must not cost the job its life
        elif self._killed_by_old_run(record, seen):
            kind, cause = KILLED_BY_OLD_RUN, "when a host that was lost came back"
        else:
            return False
        try:
            self._client.requeue_hold(seen.address)
        except SlurmUnavailableError:
            raise  # it has not ended before it could be tried
        except SlurmError as error:
            log.warning("rescue_failed", job=seen.address, error=str(error))
            return False
        self._store.event(kind, f"ended as {seen.slurm_state} {cause}; put back", uid=record.uid, at=now)
        return True

    def _killed_by_old_run(self, record: JobRecord, seen: SlurmJob) -> bool:
        """Whether the srun of a run that was lost with its host may have killed this one.

        When such a host wakes up, that srun ends its step, by a number that the present run's step has as well. This is
        taken for the cause once for each lost run, and of those not for the ones that were put back for it.
        """
        if seen.exit_code != 128 + signal.SIGKILL:
            return False
        lost = sum(run.cause is EndCause.LOST for run in self._store.runs(record.uid))
        rescues = sum(event.kind == KILLED_BY_OLD_RUN for event in self._store.recent_events(10_000, record.uid))
        return 2 * rescues < lost

    def _finish(self, record: JobRecord, seen: SlurmJob, now: float) -> None:
        at = seen.ended if seen.ended is not None else now
        run = record.current
        if run is not None:
            if run.started is None and run.released is not None and seen.started is not None and seen.started < at:
                self._store.run_started(record.uid, run.run, seen.started, run.released)  # all of it between two looks
            self._ingest(record, now, last=True)
        self._store.finish_job(record.uid, at, seen.state.value, seen.exit_code)
        self._store.event("finished", f"ended as {seen.slurm_state}", uid=record.uid, at=now)
        self._clear(record)

    def _clear(self, record: JobRecord) -> None:
        """Empty the mailbox of a job that has ended."""
        self._requirements.pop(record.uid, None)
        self._expected.pop(record.uid, None)
        self._learning.forget(record.uid)
        try:
            self._mailbox.clear(record.uid)
            self._mailbox.remove_address(record.address, record.uid)
        except MailboxError as error:
            log.warning("mailbox_not_cleared", job=record.address, error=str(error))

    def _count_vanished(self, missing: Sequence[JobRecord], now: float) -> int:
        """End what Slurm has not shown for a while; how many.

        It ended while nobody looked, or a crashed controller forgot it. One look is no proof: its record may have been
        unreadable.
        """
        self._missing = {record.uid: self._missing.get(record.uid, now) for record in missing}
        gone = [record for record in missing if now - self._missing[record.uid] >= MISSING_SECONDS]
        for record in gone:
            self._vanished(record, now)
        return len(gone)

    def _vanished(self, record: JobRecord, now: float) -> None:
        self._ingest(record, now, last=True)
        self._store.finish_job(record.uid, now, "GONE", None)
        self._store.event("gone", "Slurm no longer knows it", uid=record.uid, at=now)
        self._clear(record)

    def _ingest(self, record: JobRecord, now: float, *, last: bool = False) -> JobRecord:
        """Read new reports: one budget of them, or with ``last`` all that there are (within reason)."""
        try:
            owner = _user_number(record.user)
        except KeyError:
            self._store.event_once("unknown_user", f"no user {record.user} is known here", record.uid, at=now)
            return record
        read = 0
        for _ in range(LAST_READS if last else 1):
            result = ingest(self._store, self._mailbox.reports, record.uid, owner, now)
            read += result.lines
            if result.trials:
                self._trials[record.uid] = result.trials
            if not result.more:
                break
        if read:
            self._reported.add(record.uid)
        return self._record(record.uid) if read else record


@cache
def _user_number(user: str) -> int:
    """Raises KeyError for a user who is not known (now), which is not remembered."""
    return pwd.getpwnam(user).pw_uid


def _requirements(job: SlurmJob, hardware: Hardware) -> tuple[Mapping[str, Any], str | None]:
    """What the job needs, for the store, or what is wrong with its tag, in words.

    Only the request as the user submitted it counts: later we write sizes of our own into it.
    """
    try:
        needed = requirements(job, parse_tag(job.comment) or Tag(), hardware.gpu_types, hardware.shards)
    except TagError as error:
        return {}, str(error)
    return _REQUIREMENTS.dump_python(needed, mode="json"), None


def _subject(seen: SeenJob) -> str:
    """Whose speed a job's is: that of all jobs of its user which name the same model, or its own."""
    return seen.job.uid if seen.needed.model is None else f"{seen.job.user}/{seen.needed.model}"


def _odd(seen: SeenJob) -> bool:
    """Whether it holds what no plan can ask for again, so that a restart would not help.

    Uneven numbers of GPUs, or more of them than it asked for (whole nodes, by its own wish or its partition's).
    """
    job = seen.job
    if not job.active or seen.record.error is not None:
        return job.active and job.placement is None
    return job.placement is None or not job.min_gpus <= job.placement.gpus <= job.max_gpus


def _canonical(comment: str) -> str:
    """A stamp as far as Slurm keeps it: without quotes and runs of white space."""
    return " ".join(re.sub(r"[^!-~]+", " ", comment.replace("'", "").replace('"', "")).split())


def _status(seen: SlurmJob) -> Status:
    match seen.state:
        case JobState.PENDING:
            return Status.QUEUED if seen.hold is Hold.NONE and not seen.dependency else Status.HELD
        case JobState.RUNNING:
            return Status.RUNNING
        case JobState.SUSPENDED:
            return Status.SUSPENDED
        case JobState.COMPLETING:
            return Status.STOPPING
        case _:
            return Status.FINISHED


def _blocked(record: JobRecord, seen: SlurmJob, reservations: Reservations, now: float) -> str | None:
    if record.error is not None:
        return f"it cannot be scheduled: {record.error}"
    if seen.state is JobState.PENDING and STAMP.match(seen.admin_comment) is None:
        return (
            "Slurm does not let metasched stamp it: install job_submit.lua, which stamps jobs as they are submitted, "
            "or give metasched's account Slurm's Administrator role"
        )
    if seen.dependency:
        return f"it waits for another job ({seen.dependency})"
    if record.not_before is not None and record.not_before > now:
        if record.run == 0:
            return "its begin time (--begin) is still to come"
        return "Slurm did not start it when it was released last; it is tried again later"
    return reservations.why_waits(seen) if seen.state is JobState.PENDING else None


def _job(  # noqa: PLR0917  one fact from each side
    record: JobRecord, needed: Requirements, seen: SlurmJob, status: Status, hardware: Hardware, now: float
) -> Job:
    run = record.current
    started = run is not None and run.started is not None
    return Job(
        uid=record.uid,
        address=record.address,
        name=record.name,
        user=record.user,
        account=record.account,
        partition=record.partition,
        submitted=record.submitted,
        gpus=needed.gpus,
        min_gpus=needed.min_gpus,
        max_gpus=needed.max_gpus,
        nodes=needed.nodes,
        max_nodes=needed.max_nodes,
        gpu_types=needed.gpu_types,
        cpus_per_unit=needed.cpus_per_unit,
        memory_per_unit=needed.memory_per_unit,
        features=needed.features,
        only_nodes=needed.only_nodes,
        excluded_nodes=needed.excluded_nodes | (hardware.unshared if needed.shards else frozenset()),
        weight=needed.weight,
        preempt=needed.preempt,
        status=status,
        hold=seen.hold if status is Status.HELD else Hold.NONE,
        placement=_placement(run, seen, status, hardware),
        last_placement=record.last_placement,
        last_ended=record.last_ended,
        released=run.released if run is not None and not started else None,
        released_at=run.released_at if run is not None and not started else None,
        run=record.run,
        run_started=run.started if run is not None else None,
        trainer_ready=run is not None and run.ready_at is not None,
        stop_requested=run.stop_requested if run is not None else None,
        suspended_by_us=run is not None and run.suspended_by_us,
        attained=record.attained_at(now),
        ran_seconds=record.ran_at(now),
        preemptions=record.preemptions,
        blocked=_blocked(record, seen, hardware.reservations, now),
        progress_steps=record.progress_steps,
        total_steps=record.total_steps,
        steps_per_second=run.steps_per_second if run is not None else None,
        learns=True,
        trials=needed.trials,
        slo_seconds=needed.slo_seconds,
        time_limit_seconds=seen.time_limit,
        shares_with=None if hardware.seats is None else hardware.seats.couples.get(record.uid),
        whole_gpus=not (needed.shards and hardware.shards),
        part=needed.shards and is_part(seen, hardware.shards),
        suspended_at=run.suspended_at if run is not None else None,
        reservation=hardware.reservations.asked_by(seen),
        open_seconds=hardware.reservations.open_seconds(seen.time_limit),
    )


def _placement(run: RunRecord | None, seen: SlurmJob, status: Status, hardware: Hardware) -> Placement | None:
    if status in (Status.HELD, Status.QUEUED):
        return None
    if status is Status.STOPPING and run is not None and run.placement is not None:
        return run.placement  # Slurm no longer tells a completing job's GPUs
    return observed_placement(seen, hardware.gpu_type)
