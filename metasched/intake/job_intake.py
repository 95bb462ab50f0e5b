"""The intake step of a poll: new jobs are recorded in the store, then stamped and held in Slurm."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import structlog
from pydantic import TypeAdapter

from metasched.apps.tuners.registry import make_tuner
from metasched.apps.tuners.tuner import TunerError
from metasched.configuration.config import Intake
from metasched.core.model import Hold
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason
from metasched.core.reuse import Latest, differing, in_order_of, patched, reuses_results
from metasched.intake.admission import INTAKE_CONTINUES, NO_NEW_JOBS, Admission, admission
from metasched.intake.throttled_writes import ThrottledWrites
from metasched.observe.node_inventory import NodeInventory
from metasched.observe.observed_job import ENDED, awaits_owner_release
from metasched.observe.observer import Observation
from metasched.slurm.admin_comment import Stamp
from metasched.slurm.client import OUT_OF_REACH, JobState, SlurmClient, SlurmJob
from metasched.slurm.errors import SlurmError, SlurmPermissionError, SlurmUnavailableError, TagError
from metasched.slurm.job_requirements import Requirements, requirements
from metasched.slurm.tags import Tag, parse_tag, quote
from metasched.store import JobRecord, Store

SCRIPTS = 10
"""Most batch scripts that are read from Slurm in one poll."""
SCRIPT_SECONDS = 0.05
"""Time of one poll after which it reads no further batch script; later polls do."""
MOST_UNREAD = 50
"""Most batch scripts that later polls are to read; those of further new jobs stay unknown."""
MOST_ALIKE = 4096
"""Most requirements that are kept for further jobs with the same ones."""
_REQUIREMENTS = TypeAdapter(Requirements)
_NO_REQUEST = Requirements(nodes=1, max_nodes=1)  # of a job with a malformed tag, which is blocked until it is fixed

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job of metasched: the store's record of it, and the job as Slurm lists it."""

    record: JobRecord
    slurm: SlurmJob


class JobIntake:
    """Records new jobs, and makes sure that Slurm shows each live job as stamped, held and requeueable.

    Args:
        client: to Slurm.
        store: of the daemon.
        writes: to Slurm, shared with run tracking.
        timer: returns seconds of a clock that is never set back.

    Attributes:
        arrived: number of jobs that this poll has recorded.
        deferred: the new jobs that this poll has not taken in, with the reasons, by uid; they are held, too.
    """

    def __init__(
        self,
        client: SlurmClient,
        store: Store,
        writes: ThrottledWrites,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timer = timer
        self._client = client
        self._store = store
        self._writes = writes
        self._requirements: dict[str, tuple[Mapping[str, Any], Requirements]] = {}  # by uid
        self._alike: dict[
            int, tuple[Mapping[str, Any], Requirements]
        ] = {}  # by the identity of the mapping, which it has
        self.arrived = 0
        self.deferred: Mapping[str, tuple[SlurmJob, Reason]] = {}
        self._shared_records: frozenset[int] = frozenset()
        self._held: Mapping[str, tuple[SlurmJob, Reason]] = {}  # deferred jobs that need no write
        self._reuses = reuses = reuses_results()
        self._unread: dict[int, list[str]] = {}  # uids of the jobs whose script is to be read, by submission_id
        self._admission = Latest[Admission](reuses=reuses)
        # jobs and records of the last poll, if all were marked
        self._shown: tuple[Mapping[str, SlurmJob], Mapping[str, JobRecord]] | None = None
        self._marked: Mapping[str, RecordedJob] = {}  # jobs of the last poll for which nothing is left to write

    def take_in(self, observation: Observation, limits: Intake) -> Mapping[str, RecordedJob]:
        """Record the new jobs within the limits, then stamp and hold the jobs that Slurm does not show so yet.

        All records are committed before the first write to Slurm, so that a crash in between gives no job a second uid.
        Every step is repeatable: a write that fails is repeated by the next poll.

        Args:
            observation: of this poll.
            limits: on live jobs and on tasks of arrays.

        Returns:
            Each job of metasched that Slurm lists and the store has as live, by uid; also those that have just ended.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        self._shared_records = observation.shared_records
        ours, records, inventory = observation.ours, observation.records, observation.inventory
        before = self._admission.latest
        found = self._admission.of(
            lambda: admission(observation, limits) if observation.new else NO_NEW_JOBS, ours, records, limits
        )
        recorded: Mapping[str, JobRecord] = {}
        if found.admitted:
            admitted = {uid: ours[uid] for uid in found.admitted}
            recorded = self._record(admitted, inventory, observation.now, limits.seconds)
            records = {**records, **recorded}
        elif self._unread:
            self._read_scripts()
        self.arrived = len(recorded)
        if found.admitted or found is not before:
            later = dict.fromkeys((uid for uid in found.admitted if uid not in recorded), INTAKE_CONTINUES)
            self.deferred = {uid: (ours[uid], reason) for uid, reason in {**found.deferred, **later}.items()}
        jobs = self._mark_recorded(ours, records, inventory)
        self._hold_deferred()
        return jobs

    def _mark_recorded(
        self, ours: Mapping[str, SlurmJob], records: Mapping[str, JobRecord], inventory: NodeInventory
    ) -> Mapping[str, RecordedJob]:
        """Return the listed jobs that have a record, by uid, after the writes that some of them need.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        marked = self._marked
        looked_at: Collection[str] = ours.keys()
        jobs, still_marked = dict[str, RecordedJob](), dict[str, RecordedJob]()
        if self._shown is not None:  # there was nothing to write
            differs = differing(self._shown[0], ours) | differing(self._shown[1], records)
            if not differs:
                return marked
            looked_at = [uid for uid in ours if uid in differs]
            jobs = patched(marked, differs, {})
            still_marked = dict(jobs)
        for uid in looked_at:
            slurm_job, record = ours[uid], records.get(uid)
            if record is None:
                continue  # it is deferred, or ended before the daemon saw it
            job = marked.get(uid)
            if job is None or job.record is not record or job.slurm is not slurm_job:
                given = RecordedJob(record, slurm_job)
                job = given if slurm_job.state in ENDED else self._mark(given, inventory)
                if not self._reuses or job is not given or record.error is not None:
                    jobs[uid] = job
                    continue
            jobs[uid] = still_marked[uid] = job
        jobs = in_order_of([uid for uid in ours if uid in jobs], jobs)
        self._marked = jobs if len(still_marked) == len(jobs) else still_marked
        is_settled = self._reuses and len(still_marked) == len(jobs)
        self._shown = (ours, records) if is_settled else None
        return jobs

    def forget(self, uid: str) -> None:
        """Drop what is cached of a job that has ended."""
        self._requirements.pop(uid, None)

    def _record(
        self, new: Mapping[str, SlurmJob], inventory: NodeInventory, now: float, seconds: float
    ) -> dict[str, JobRecord]:
        """Record new jobs in the order given, and return their records.

        Args:
            new: the jobs, by uid.
            inventory: of the cluster's nodes.
            now: unix seconds.
            seconds: time after which no further pending job is recorded; one is in any case.
        """
        begun = self._timer()
        revived = self._store.known_jobs(new.keys())  # they had ended, and somebody requeued them
        added: dict[str, JobRecord] = {}
        for uid, job in new.items():
            if added and job.state is JobState.PENDING and self._timer() - begun >= seconds:
                break
            if uid not in revived:
                added[uid] = _new_record(uid, job, inventory)
        with self._store.transaction():
            for uid in revived:
                self._store.revive_job(uid)
            self._store.add_jobs(added.values())
            again = dict.fromkeys(revived, "it had ended and is in the queue again")
            self._store.job_events("revived", again, at=now)
            arrived = {uid: f"recorded as Slurm job {new[uid].slurm_job_id}" for uid in added}
            self._store.job_events("arrived", arrived, at=now)
            errors = {uid: record.error for uid, record in added.items() if record.error is not None}
            self._store.job_events("bad_tag", errors, at=now)
        recorded = [uid for uid in new if uid in added or uid in revived]
        live = self._store.live_records()
        for uid in recorded:
            submission_id = new[uid].submission_id
            if live[uid].script is None and (submission_id in self._unread or len(self._unread) < MOST_UNREAD):
                self._unread.setdefault(submission_id, []).append(uid)
        self._read_scripts()
        live = self._store.live_records()
        return {uid: live[uid] for uid in recorded}

    def _read_scripts(self) -> None:
        """Record the hashes of some jobs' batch scripts, which identify recurring jobs; arrays have one script."""
        hashes: dict[str, str] = {}  # by uid
        begun = self._timer()
        for submission_id in sorted(self._unread)[:SCRIPTS]:
            if self._timer() - begun >= SCRIPT_SECONDS:
                break
            uids = self._unread.pop(submission_id)
            try:
                script = self._client.batch_script(str(submission_id))
            except SlurmError as error:
                log.info("script_not_known", job=submission_id, error=str(error))
                if isinstance(error, (SlurmUnavailableError, SlurmPermissionError)):
                    self._unread.clear()  # the other scripts cannot be read either
                    break
            else:
                script_hash = sha256(script.encode()).hexdigest()
                hashes |= dict.fromkeys(uids, script_hash)
        if not hashes:
            return
        live = self._store.live_records()
        with self._store.transaction():
            for uid in hashes.keys() & live.keys():
                self._store.update_job(uid, script=hashes[uid])

    def _mark(self, job: RecordedJob, inventory: NodeInventory) -> RecordedJob:  # noqa: C901  one case for each write
        """Write the Slurm job id to the store, and stamp, hold and requeue flag to Slurm, where they differ.

        Returns:
            The job; the same object where nothing differed.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        record, slurm = job.record, job.slurm
        if record.slurm_job_id != slurm.slurm_job_id:
            self._store.update_job(record.uid, slurm_job_id=slurm.slurm_job_id)
            record = self._store.require_job(record.uid)
        earlier_error = record.error
        if earlier_error is not None and slurm.state is JobState.PENDING:
            record = self._read_tag_again(record, slurm, inventory)
        known = Stamp.read(slurm.admin_comment)
        others = _as_slurm_stores(slurm.admin_comment if known is None else known.words)
        if others == _as_slurm_stores(earlier_error or ""):
            others = ""  # no words of an admin: earlier releases wrote the error right behind the stamp
        held = known is not None and known.held
        stamp = str(Stamp(record.uid.partition("_")[0], held, others, record.error))
        waits = slurm.state is JobState.PENDING and not awaits_owner_release(record, slurm)
        slurm_job_id = self._record_id(slurm)
        stamped = slurm.admin_comment == stamp or _as_slurm_stores(slurm.admin_comment) == _as_slurm_stores(stamp)
        refused = known is not None and slurm_job_id in self._writes.refused
        if refused:
            stamped = True  # by job_submit.lua, which suffices to identify the job; only the status shows its error
        if not stamped and waits:
            if self._writes.mark(slurm_job_id, "adopt", lambda: self._client.adopt(slurm_job_id, stamp)):
                slurm = replace(slurm, hold=Hold.ADMIN, admin_comment=stamp)
        elif not stamped:
            self._writes.mark(slurm_job_id, "stamp", lambda: self._client.stamp(slurm_job_id, stamp))
        elif not slurm.requeue:
            self._writes.mark(slurm_job_id, "set_requeue", lambda: self._client.set_requeue(slurm_job_id))
        elif waits and slurm.dependency and (slurm.hold, slurm.eligible) != (Hold.NONE, OUT_OF_REACH):
            self._writes.mark(slurm_job_id, "await_dependency", lambda: self._client.await_dependency(slurm_job_id))
        elif record is job.record and not refused:
            return job
        return RecordedJob(record, slurm)

    def _hold_deferred(self) -> None:
        """Stamp and hold the jobs that are not taken in, so that Slurm does not start them.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        if self._reuses and self._held is self.deferred:
            return
        before, held = self._held if self._reuses else {}, dict[str, tuple[SlurmJob, Reason]]()
        written = set()  # records, each with a reason: tasks that share a record are held by one write
        for uid, (slurm_job, reason) in self.deferred.items():
            known = before.get(uid)
            if known is None or known[0] is not slurm_job or known[1] != reason:
                key = self._record_id(slurm_job), reason.code
                if key in written:
                    continue
                if not self._ensure_held(uid, slurm_job, reason):
                    written.add(key)
                    continue
            held[uid] = slurm_job, reason
        self._held = self.deferred if len(held) == len(self.deferred) else held

    def _ensure_held(self, uid: str, slurm: SlurmJob, reason: Reason) -> bool:
        """Return whether a job that is not taken in is stamped and held; write what is missing.

        The owner of a large array is told by the stamp.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        known = Stamp.read(slurm.admin_comment)
        if known is not None and known.held and slurm.hold is Hold.USER and not slurm.restarts:
            return True  # its owner submitted it with --hold
        slurm_job_id = self._record_id(slurm)
        comment = slurm.admin_comment
        if known is None or reason.code == Code.ARRAY_TOO_LARGE:
            error = words(reason) if reason.code == Code.ARRAY_TOO_LARGE else None
            others = slurm.admin_comment if known is None else known.words
            held = known is not None and known.held
            comment = str(Stamp(uid.partition("_")[0], held, _as_slurm_stores(others), error))
        if _as_slurm_stores(comment) != _as_slurm_stores(slurm.admin_comment):
            self._writes.mark(slurm_job_id, "adopt", lambda: self._client.adopt(slurm_job_id, comment))
        elif slurm.hold is not Hold.ADMIN:
            self._writes.mark(slurm_job_id, "hold", lambda: self._client.hold(slurm_job_id))
        else:
            return True
        return False

    def _record_id(self, slurm: SlurmJob) -> str:
        """Slurm's id by which to write a job: tasks that are not split off yet are written through their record."""
        return str(slurm.job_id) if slurm.job_id in self._shared_records else slurm.slurm_job_id

    def _read_tag_again(self, record: JobRecord, job: SlurmJob, inventory: NodeInventory) -> JobRecord:
        """Update the record of a job whose tag had an error that its owner or the cluster's admin has fixed."""
        needed, error = _requirements(job, inventory)
        if error == record.error:  # the request is still as its user wrote it
            return record
        total = needed.get("total_steps")
        self._store.update_job(record.uid, requirements=needed, error=error, total_steps=total)
        return self._store.require_job(record.uid)

    def requirements_of(self, record: JobRecord) -> Requirements:
        """Return the job's requirements; an empty request while its tag cannot be read."""
        if record.error is not None:
            return _NO_REQUEST
        stored, needed = self._requirements.get(record.uid, (None, _NO_REQUEST))
        if stored is not record.requirements:
            self._requirements[record.uid] = found = self._read_requirements(record.requirements)
            return found[1]
        return needed

    def _read_requirements(self, given: Mapping[str, Any]) -> tuple[Mapping[str, Any], Requirements]:
        """Return the requirements with the mapping that they are read from; one object for jobs with the same one."""
        found = self._alike.get(id(given))
        if found is None:
            if len(self._alike) >= MOST_ALIKE:
                self._alike.clear()
            found = self._alike[id(given)] = given, _REQUIREMENTS.validate_python(given)
        return found


def _new_record(uid: str, job: SlurmJob, inventory: NodeInventory) -> JobRecord:
    needed, error = _requirements(job, inventory)
    return JobRecord(
        uid=uid,
        slurm_job_id=job.slurm_job_id,
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


def _requirements(job: SlurmJob, inventory: NodeInventory) -> tuple[Mapping[str, Any], str | None]:
    """Return the job's requirements as JSON-compatible data for the store, and the error of its tag; None for no error.

    They are read before the job's first update, which rewrites the request that the user submitted.
    """
    try:
        tag = parse_tag(job.comment) or Tag()
        needed = requirements(job, tag, inventory.gpu_types, inventory.shards)
        if tag.tuner is not None:
            make_tuner(tag.tuner)
    except TagError as error:
        return {}, str(error)
    except TunerError as error:
        return {}, f"{quote(tag.tuner.tag if tag.tuner is not None else '')}: {error}"
    return _REQUIREMENTS.dump_python(needed, mode="json"), None


def _as_slurm_stores(comment: str) -> str:
    """Return a comment as Slurm stores it: without quotes and runs of white space."""
    return " ".join(re.sub(r"[^!-~]+", " ", comment.replace("'", "").replace('"', "")).split())
