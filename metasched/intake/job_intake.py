"""New jobs of ours: recognised, remembered, stamped and held; and kept so."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import structlog
from pydantic import TypeAdapter

from metasched.configuration.config import Intake
from metasched.core.model import Hold, Preempt
from metasched.intake.throttled_writes import ThrottledWrites
from metasched.observe.node_inventory import NodeInventory
from metasched.observe.observed_job import ENDED, kept_back
from metasched.slurm.client import OUT_OF_REACH, JobState, SlurmClient, SlurmJob
from metasched.slurm.errors import SlurmError, SlurmPermissionError, SlurmUnavailableError, TagError
from metasched.slurm.job_requirements import Requirements, Stamp, is_ours, requirements
from metasched.slurm.tags import Tag, parse_tag
from metasched.store import JobRecord, Store

# Of so many new jobs in one look Slurm is asked for the script; that of others is never known.
SCRIPTS = 20
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

log = structlog.get_logger()


def mint(now: float, sequence: int) -> str:
    """A new uid: random, but sorting in the order of intake, since many jobs share one second of submission."""
    return f"{int(now) % 2**32:08x}{sequence % 2**12:03x}{secrets.randbits(20):05x}"


class JobIntake:
    """Takes jobs in, and sees to it that Slurm shows them as ours."""

    def __init__(self, client: SlurmClient, store: Store, writes: ThrottledWrites) -> None:
        self._client = client
        self._store = store
        self._writes = writes
        self._requirements: dict[str, tuple[Mapping[str, Any], Requirements]] = {}
        self._shared: frozenset[int] = frozenset()  # ids of jobs whose tasks have one record

    def begin(self, listed: Sequence[SlurmJob]) -> None:
        """A new poll: what Slurm lists in it."""
        tasks = Counter(job.job_id for job in listed)
        self._shared = frozenset(job_id for job_id, count in tasks.items() if count > 1)

    def forget(self, uid: str) -> None:
        """A job has ended."""
        self._requirements.pop(uid, None)

    @staticmethod
    def identify(
        listed: Iterable[SlurmJob], records: Mapping[str, JobRecord], ways: Intake, now: float
    ) -> tuple[dict[str, SlurmJob], list[SlurmJob]]:
        """Split Slurm's list into ours, by uid, and others. Unstamped jobs of ours get a uid, not yet written.

        Args:
            listed: all jobs.
            records: of the live jobs, by uid.
            ways: into metasched, besides the tag.
            now: unix seconds.
        """
        ours: dict[str, SlurmJob] = {}
        others: list[SlurmJob] = []
        minted: dict[int, str] = {}
        by_slurm_job_id = {(record.slurm_job_id, record.submitted): record.uid for record in records.values()}
        for job in sorted(listed, key=lambda job: job.job_id):
            stamp = Stamp.read(job.admin_comment)
            if stamp is not None:
                base = stamp.uid
            elif not is_ours(job, ways.partitions, ways.qos):
                others.append(job)
                continue
            elif job.state in ENDED:
                continue
            else:
                # Taken in already, but killed before the stamp; or the controller crashed and forgot the stamp.
                known = by_slurm_job_id.get((job.slurm_job_id, job.submitted), "").partition("_")[0]
                base = minted.setdefault(job.array_job_id or job.job_id, known or mint(now, len(minted)))
            uid = base if job.array_task_id is None else f"{base}_{job.array_task_id}"
            rival = ours.get(uid)
            if rival is not None:  # only an operator can have copied a stamp; the slurm_job_id that we know wins
                known_slurm_job_id = records[uid].slurm_job_id if uid in records else None
                loser, winner = (rival, job) if job.slurm_job_id == known_slurm_job_id else (job, rival)
                log.warning("duplicate_stamp", uid=uid, slurm_job_id=loser.slurm_job_id)
                others.append(loser)
                job = winner  # noqa: PLW2901  the loop goes on with the winner
            ours[uid] = job
        return ours, others

    def take_in(self, new: Mapping[str, SlurmJob], hardware: NodeInventory, now: float) -> dict[str, JobRecord]:
        """Remember new jobs, all of them before the first write to Slurm; their records, by uid."""
        with self._store.transaction():
            records = {uid: self._take_in(uid, job, hardware, now) for uid, job in new.items()}
        records.update(self._note_scripts({uid: job for uid, job in new.items() if records[uid].script is None}))
        return records

    def _take_in(self, uid: str, job: SlurmJob, hardware: NodeInventory, now: float) -> JobRecord:
        """Remember a job before anything is written to Slurm, so that a crash in between mints no second uid."""
        previous = self._store.job(uid)
        if previous is not None:  # it had ended, and somebody requeued it
            self._store.revive_job(uid)
            self._store.event("revived", "it had ended and is in the queue again", uid=uid, at=now)
        else:
            needed, error = _requirements(job, hardware)
            record = JobRecord(
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
            self._store.add_job(record)
            self._store.event("arrived", f"taken in as Slurm job {job.slurm_job_id}", uid=uid, at=now)
            if error is not None:
                self._store.event("bad_tag", error, uid=uid, at=now)
        return self._store.require_job(uid)

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
        return {uid: self._store.require_job(uid) for uid, script_hash in found.items() if script_hash is not None}

    def keep_marked(self, record: JobRecord, job: SlurmJob, hardware: NodeInventory) -> tuple[JobRecord, SlurmJob]:
        """See to slurm_job_id, tag, stamp, hold and requeue flag; a write that fails is repeated by the next poll.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        if record.slurm_job_id != job.slurm_job_id:
            self._store.update_job(record.uid, slurm_job_id=job.slurm_job_id)
            record = self._store.require_job(record.uid)
        was = record.error
        if was is not None and job.state is JobState.PENDING:
            record = self._mended(record, job, hardware)
        known = Stamp.read(job.admin_comment)
        words = _plain(job.admin_comment if known is None else known.words)
        if words == _plain(was or ""):
            words = ""  # nobody else's: earlier releases wrote the error right behind the stamp
        held = known is not None and known.held
        stamp = str(Stamp(record.uid.partition("_")[0], held, words, record.error))
        waits = job.state is JobState.PENDING and not kept_back(record, job)
        # Tasks that are not split off yet share their master's record: written through it, they stay together.
        slurm_job_id = str(job.job_id) if job.job_id in self._shared else job.slurm_job_id
        stamped = job.admin_comment == stamp or _plain(job.admin_comment) == _plain(stamp)
        if known is not None and slurm_job_id in self._writes.refused:
            stamped = True  # by job_submit.lua, as whom it is known; its error stands in the status alone
        if not stamped and waits:
            if self._writes.once(slurm_job_id, "adopt", lambda: self._client.adopt(slurm_job_id, stamp)):
                job = replace(job, hold=Hold.ADMIN, admin_comment=stamp)
        elif not stamped:
            self._writes.once(slurm_job_id, "stamp", lambda: self._client.stamp(slurm_job_id, stamp))
        elif not job.requeue:
            self._writes.once(slurm_job_id, "set_requeue", lambda: self._client.set_requeue(slurm_job_id))
        elif waits and job.dependency and (job.hold, job.eligible) != (Hold.NONE, OUT_OF_REACH):
            self._writes.once(slurm_job_id, "await_dependency", lambda: self._client.await_dependency(slurm_job_id))
        return record, job

    def _mended(self, record: JobRecord, job: SlurmJob, hardware: NodeInventory) -> JobRecord:
        """The record of a job that could not be scheduled, with what its owner mended of the tag, or the admin here."""
        needed, error = _requirements(job, hardware)
        if error == record.error:  # until then it is not changed by us
            return record
        total = needed.get("total_steps")
        self._store.update_job(record.uid, requirements=needed, error=error, total_steps=total)
        return self._store.require_job(record.uid)

    def needed(self, record: JobRecord) -> Requirements:
        """What the job asks for; nothing, as long as that cannot be read."""
        if record.error is not None:
            return _NOTHING
        stored, needed = self._requirements.get(record.uid, (None, _NOTHING))
        if stored != record.requirements:
            needed = _REQUIREMENTS.validate_python(record.requirements)
            self._requirements[record.uid] = (record.requirements, needed)
        return needed


def _requirements(job: SlurmJob, hardware: NodeInventory) -> tuple[Mapping[str, Any], str | None]:
    """What the job needs, for the store, or what is wrong with its tag, in words.

    Only the request as the user submitted it counts: later we write sizes of our own into it.
    """
    try:
        needed = requirements(job, parse_tag(job.comment) or Tag(), hardware.gpu_types, hardware.shards)
    except TagError as error:
        return {}, str(error)
    return _REQUIREMENTS.dump_python(needed, mode="json"), None


def _plain(comment: str) -> str:
    """A comment as far as Slurm keeps what we write: without quotes and runs of white space."""
    return " ".join(re.sub(r"[^!-~]+", " ", comment.replace("'", "").replace('"', "")).split())
