"""The first step of a poll: read Slurm and the store, write neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import structlog

from metasched.configuration.config import Config
from metasched.core.reuse import Interned, Latest, differing, reuses_results
from metasched.observe.job_identification import JobIdentifier
from metasched.observe.node_inventory import NodeInventory
from metasched.observe.observed_job import ENDED
from metasched.observe.reservations import Reservations
from metasched.observe.slurm_quotas import Owner, SlurmQuotas, owner_of
from metasched.slurm.associations import enforces_limits
from metasched.slurm.client import Reservation, SlurmClient, SlurmJob, SlurmNode, SlurmSettings
from metasched.slurm.errors import SlurmError, SlurmUnavailableError
from metasched.slurm.leaked_gpus import LeakedGpus
from metasched.store import JobRecord, Store

# From this release on Slurm remembers, when one of two jobs on a GPU has ended, that the other still holds its shards.
SHARDS_REMEMBERED = (23, 2)
SETTINGS_SECONDS = 60.0
"""Time between reads of Slurm's settings, for PrivateData alone."""

_NONE: frozenset[int] = frozenset()

log = structlog.get_logger()


@dataclass(frozen=True)
class Observation:
    """What Slurm lists in one poll, matched with the jobs that the store knows.

    Attributes:
        now: start of the poll, unix seconds.
        listed: every job that Slurm lists.
        nodes: every node that Slurm lists.
        racks: by node name, its leaf switch or block; empty where Slurm knows no topology.
        inventory: GPU types, shards and reservations of the nodes.
        quotas: shares of accounts and limits, as read last.
        ours: metasched's jobs among ``listed``, by uid; the uid of a new job is recorded nowhere yet.
        others: the other jobs among ``listed``.
        records: the store's live jobs before intake, by uid.
        leaked: GPUs that Slurm counts as allocated although no job holds them, by node; other nodes are missing.
        hides_jobs: whether Slurm shows users their own jobs alone (PrivateData).
        shared_records: Slurm's ids of records that several array tasks share: tasks that are not split off yet. A write
            by a task's own id would split the task off: Slurm would list it as a record of its own from then on.
    """

    now: float
    listed: Sequence[SlurmJob]
    nodes: Sequence[SlurmNode]
    racks: Mapping[str, str]
    inventory: NodeInventory
    quotas: SlurmQuotas
    ours: Mapping[str, SlurmJob]
    others: Sequence[SlurmJob]
    records: Mapping[str, JobRecord]
    leaked: Mapping[str, int] = field(default_factory=dict)
    hides_jobs: bool = False
    shared_records: frozenset[int] = frozenset()

    @cached_property
    def new(self) -> Mapping[str, SlurmJob]:
        """Jobs of metasched that the store does not know as live, and that have not ended, by uid."""
        if self.ours.keys() <= self.records.keys():
            return {}
        return {uid: job for uid, job in self.ours.items() if uid not in self.records and job.state not in ENDED}

    @property
    def missing(self) -> Sequence[JobRecord]:
        """Records of live jobs that Slurm does not list."""
        if self.records.keys() <= self.ours.keys():  # makes no set of thousands, unlike a difference
            return []
        return [self.records[uid] for uid in self.records.keys() - self.ours.keys()]


class Observer:
    """Reads Slurm and the store's live jobs into an Observation, once in each poll.

    What Slurm and the store show unchanged is, in the next observation, the same object.

    Attributes:
        config: the configuration in force; a reload replaces it.
    """

    def __init__(self, config: Config, client: SlurmClient, store: Store, settings: SlurmSettings) -> None:
        self.config = config
        self._client = client
        self._store = store
        self._forgets_shards = settings.version < SHARDS_REMEMBERED
        self._enforces_limits = enforces_limits(settings.values)
        self._hides_jobs = settings.hides_jobs
        self._settings_read: float | None = None  # unix seconds
        self._quotas = SlurmQuotas()
        # when, for whose jobs, and the jobs of the last poll
        self._quotas_read: tuple[float, frozenset[Owner], Mapping[str, SlurmJob]] | None = None
        self._reuses = reuses = reuses_results()
        self._leaked_gpus = LeakedGpus(reuses=reuses)
        self._shared_records = Latest[frozenset[int]](reuses=reuses)
        self._listed = Interned[SlurmJob](attrgetter("slurm_job_id"), reuses=reuses)
        self._nodes = Interned[SlurmNode](attrgetter("name"), reuses=reuses)
        self._unreserved = Latest[Reservations](reuses=reuses)
        self._inventory = Latest[NodeInventory](reuses=reuses)
        self._inventory_with_shards = Latest[NodeInventory](reuses=reuses)
        self._identifier = JobIdentifier(reuses=reuses)

    def observe(self, now: float) -> Observation:
        """Read jobs, nodes, reservations and, where they are due, associations.

        Args:
            now: start of the poll, unix seconds.

        Raises:
            SlurmError: Slurm does not answer, or its answer cannot be read.
        """
        jobs, nodes = self._client.jobs_and_nodes()
        listed, nodes = self._listed.of(jobs), self._nodes.of(nodes)
        reservations = self._reservations(self._client.reservations(), now)
        inventory = self._inventory.of(lambda: NodeInventory.of(nodes, reservations), nodes, reservations)
        records = self._records()
        identified = self._identifier.identify(listed, records, self.config.intake, now)
        ours = identified.ours
        self._read_quotas(ours, now)
        return Observation(
            now=now,
            listed=listed,
            nodes=nodes,
            racks=self._client.racks(),
            inventory=self._inventory_with_shards.of(
                lambda: inventory.with_shards(nodes, listed, ours, forgets=self._forgets_shards),
                *(inventory, nodes, listed, ours),
            ),
            quotas=self._quotas,
            ours=ours,
            others=identified.others,
            records=records,
            leaked=self._leaked_gpus.update(nodes, listed, now),
            hides_jobs=self._read_privacy(now),
            shared_records=self._shared_records.of(lambda: _shared_records(listed), listed),
        )

    def _read_privacy(self, now: float) -> bool:
        """Return whether Slurm hides jobs; `scontrol reconfigure` may change that while the daemon runs."""
        last = self._settings_read
        if last is None or not 0 <= now - last < SETTINGS_SECONDS:
            self._settings_read = now
            if last is not None:
                try:
                    self._hides_jobs = self._client.settings().hides_jobs
                except SlurmUnavailableError:
                    raise
                except SlurmError as error:
                    log.warning("settings_not_read", error=str(error))
        return self._hides_jobs

    def _records(self) -> Mapping[str, JobRecord]:
        """Return the store's live jobs by uid, ordered by (submitted, uid)."""
        if self._reuses:
            return self._store.live_records()
        return {record.uid: record for record in self._store.live_jobs()}

    def _reservations(self, listed: Sequence[Reservation], now: float) -> Reservations:
        """Return the reservations at this instant, which matters only where there are any."""
        return Reservations(listed, now) if listed else self._unreserved.of(Reservations)

    def _read_quotas(self, ours: Mapping[str, SlurmJob], now: float) -> None:
        """Read shares and limits where that is due: Slurm lists the limits of a user only once the user has jobs."""
        every = self.config.accounting.refresh_seconds
        if not every:
            self._quotas_read = None
            if self._quotas.associations is not None:
                self._quotas = SlurmQuotas()
            return
        if self._quotas_read is not None:
            at, known, before = self._quotas_read
            changed = [ours[uid] for uid in differing(before, ours) if uid in ours]
            if 0 <= now - at < every and _owners(changed) <= known:
                self._quotas_read = at, known, ours
                return
        self._quotas_read = now, _owners(ours.values()), ours
        try:
            associations = self._client.associations()
            if not self._reuses or associations != self._quotas.associations:
                self._quotas = SlurmQuotas(associations, limited=self._enforces_limits)
        except SlurmUnavailableError:
            raise
        except SlurmError as error:
            log.warning("associations_not_read", error=str(error))


def _shared_records(listed: Sequence[SlurmJob]) -> frozenset[int]:
    """Return Slurm's ids of the records that several array tasks share."""
    tasks = Counter([job.job_id for job in listed])
    return frozenset(job_id for job_id, count in tasks.items() if count > 1) if len(tasks) < len(listed) else _NONE


def _owners(jobs: Iterable[SlurmJob]) -> frozenset[Owner]:
    """Return the owners of the jobs that have not ended."""
    ended = ENDED
    one_each = {(job.account, job.user, job.partition, job.qos): job for job in jobs if job.state not in ended}
    return frozenset(map(owner_of, one_each.values()))
