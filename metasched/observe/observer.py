"""One look at the cluster: what Slurm lists, job by job beside what the store remembers, as a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from metasched.configuration.config import Config
from metasched.core.model import Job, Snapshot, Status
from metasched.core.reasons import Code, Reason, from_text
from metasched.intake.job_intake import JobIntake
from metasched.intake.throttled_writes import ThrottledWrites
from metasched.learning.service_prediction import PastJob, expected_service
from metasched.learning.throughput_learning import ThroughputLearning
from metasched.observe.node_inventory import NodeInventory, usable
from metasched.observe.observed_job import (
    ENDED,
    NOT_STARTED,
    ObservedJob,
    is_odd,
    job_of,
    status_of,
    subject_of,
)
from metasched.observe.reservations import Reservations
from metasched.observe.runs import Runs
from metasched.observe.slurm_quotas import Owner, SlurmQuotas, owner_of
from metasched.scheduling.gpu_shards import GpuShards
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.associations import enforces_limits
from metasched.slurm.client import SlurmClient, SlurmJob, SlurmSettings
from metasched.slurm.errors import SlurmError, SlurmUnavailableError
from metasched.store import JobRecord, Store

# So many jobs like a new one are looked at for what it will need.
HISTORY = 20
# Of so many events of a job the latest is looked for that tells why it was not started.
EVENTS = 20
# Since this release Slurm knows, when one of two jobs on a GPU has ended, that the other is still there.
SHARDS_REMEMBERED = (23, 2)

log = structlog.get_logger()


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
    seen: Mapping[str, ObservedJob]
    arrived: int
    completed: int
    busy: bool
    seats: GpuShards | None = None


class Observer:
    """Turns polls into snapshots."""

    def __init__(
        self, config: Config, client: SlurmClient, store: Store, mailbox: Mailbox, settings: SlurmSettings
    ) -> None:
        self.config = config
        self._forgets = settings.version < SHARDS_REMEMBERED
        self._client = client
        self._store = store
        self._writes = ThrottledWrites()
        self._adoption = JobIntake(client, store, self._writes)
        self._runs = Runs(client, store, mailbox, self._writes)
        self._sharing = config.sharing
        self._learning = ThroughputLearning(store, self._sharing.untried_part, self._sharing.table)
        self._expected: dict[str, float | None] = {}  # by uid
        self._alike: dict[tuple[str, str, str | None], float | None] = {}  # by user, name and script, in this look
        self._limited = enforces_limits(settings.values)
        self._quotas = SlurmQuotas()
        self._quotas_read: tuple[float, frozenset[Owner]] | None = None  # when, and for whose jobs

    def observe(self, now: float, round_number: int) -> Observation:
        """Look once.

        Raises:
            SlurmError: Slurm does not answer; the next look goes on from what was done.
        """
        self._runs.begin()
        self._alike.clear()
        if self._sharing != self.config.sharing:  # the configuration was read again
            self._sharing = self.config.sharing
            self._learning = ThroughputLearning(self._store, self._sharing.untried_part, self._sharing.table)
        listed, listed_nodes = self._client.jobs(), self._client.nodes()
        self._writes.begin(listed, now, self.config.outage_seconds)
        self._adoption.begin(listed)
        hardware = NodeInventory.of(listed_nodes, Reservations(self._client.reservations(), now))
        records = {record.uid: record for record in self._store.live_jobs()}
        ours, others = self._adoption.identify(listed, records, self.config.intake, now)
        hardware = hardware.seated(listed_nodes, listed, ours, forgets=self._forgets)
        self._read_quotas(frozenset(owner_of(job) for job in ours.values() if job.state not in ENDED), now)
        new = {uid: job for uid, job in ours.items() if uid not in records and job.state not in ENDED}
        records |= self._adoption.take_in(new, hardware, now)
        live: dict[str, ObservedJob] = {}
        completed = 0
        for uid, slurm_job in ours.items():
            record = records.get(uid)
            if record is None:
                continue  # it ended before we knew it
            ended = slurm_job.state in ENDED and not self._runs.rescued(record, slurm_job, now)
            if ended:
                completed += self._finish(record, slurm_job, now)
                continue
            seen = self._sync(record, slurm_job, hardware, now)
            if is_odd(seen):
                others.append(slurm_job)  # it keeps what it has until it ends, like a job that is not ours
            else:
                live[uid] = seen
        for record in self._runs.vanished([records[uid] for uid in records.keys() - ours.keys()], now):
            self._forget(record.uid)
            completed += 1
        jobs = sorted((seen.job for seen in live.values()), key=lambda job: (job.submitted, job.uid))
        self._learn(live, jobs, now)
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
            quotas=self._quotas.limits([(seen.job, seen.slurm) for seen in live.values()], others),
        )
        busy = any(
            job.status in (Status.STOPPING, Status.QUEUED) or (job.active and job.stop_requested is not None)
            for job in jobs
        )
        return Observation(
            snapshot=snapshot, seen=live, arrived=len(new), completed=completed, busy=busy, seats=hardware.seats
        )

    def _learn(self, live: Mapping[str, ObservedJob], jobs: Sequence[Job], now: float) -> None:
        """What new reports tell of speeds."""
        subjects = {uid: subject_of(seen) for uid, seen in live.items()}
        for uid, trials in self._runs.trials.items():
            if uid in live and (place := live[uid].job.placement) is not None:
                self._learning.take(subjects[uid], place, trials)
        self._learning.look(jobs, subjects, self._runs.reported, now)

    def _read_quotas(self, owners: frozenset[Owner], now: float) -> None:
        """Read shares and limits, if that is due; limits for each user are not told before the user has jobs."""
        every = self.config.accounting.refresh_seconds
        if not every:
            self._quotas, self._quotas_read = SlurmQuotas(), None
            return
        if self._quotas_read is not None:
            at, known = self._quotas_read
            if 0 <= now - at < every and owners <= known:
                return
        self._quotas_read = now, owners
        try:
            self._quotas = SlurmQuotas(self._client.associations(), limited=self._limited)
        except SlurmUnavailableError:
            raise
        except SlurmError as error:
            log.warning("associations_not_read", error=str(error))

    def _finish(self, record: JobRecord, seen: SlurmJob, now: float) -> bool:
        """A job ended for good; whether that is told, which waits until its last reports are read."""
        told = self._runs.finish(record, seen, now)
        if told:
            self._forget(record.uid)
        return told

    def _sync(self, record: JobRecord, seen: SlurmJob, hardware: NodeInventory, now: float) -> ObservedJob:
        """Bring a job's record up to what Slurm shows."""
        if seen.state in ENDED:
            status = Status.STOPPING  # it is being put back
        else:
            record, seen = self._adoption.keep_marked(record, seen, hardware)
            status = status_of(seen)
            if record.current is not None and record.current.started is not None:
                record = self._runs.ingest(record, now)  # before its run is closed: they say how it ended
            if self._runs.follow(record, seen, status, hardware, now, self.config.schedule.round_seconds):
                record = self._store.known_job(record.uid)
        needed = self._adoption.needed(record)
        found = ObservedJob(job_of(record, needed, seen, status, hardware, now), seen, record, needed)
        speed, expected = self._learning.speed(subject_of(found)), self._expectation(record)
        job = found.job.evolve(speed=speed, expected_service=expected)
        deferred = job.blocked if job.blocked is not None and job.blocked.code == Code.START_DEFERRED else None
        if deferred is not None and (why := self._why_not_started(record.uid)) is not None:
            job = job.evolve(blocked=deferred.and_also(why))
        return replace(found, job=self._quotas.apply(job, seen))

    def _why_not_started(self, uid: str) -> Reason | None:
        events = self._store.recent_events(EVENTS, uid)
        return next((from_text(event.text) for event in events if event.kind == NOT_STARTED), None)

    def _forget(self, uid: str) -> None:
        """A job has ended."""
        self._adoption.forget(uid)
        self._expected.pop(uid, None)
        self._learning.forget(uid)

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
