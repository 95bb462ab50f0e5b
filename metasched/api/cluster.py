"""A running cluster: its published status, and the daemon's database, both read-only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from metasched.api.table import Table, fields_of
from metasched.configuration.command_paths import CommandPaths
from metasched.configuration.file_names import DATABASE
from metasched.core.errors import MetaschedError
from metasched.presentation.formatting import text_fields
from metasched.presentation.job_lookup import find, find_recorded
from metasched.presentation.job_past import read_past, sentences
from metasched.presentation.job_selection import Selection
from metasched.shared_dir import published_status as published
from metasched.shared_dir.published_status import JobStatus, NodeStatus, Status
from metasched.store import (
    DecisionRecord,
    EventRecord,
    JobRecord,
    RoundRecord,
    RunRecord,
    SpeedRecord,
    Store,
    ThroughputRecord,
)

if TYPE_CHECKING:
    from metasched.store.usage import Grouping, Usage

_MOST = 1000
_MONTH = 30 * 86400.0
_JOBS = ("slurm_job_id", "name", "user", "account", "status", "gpus", "nodes", "waited_seconds", "reason")
_NODES = ("name", "gpu_type", "gpus", "gpus_used", "gpus_free", "accepts", "reason")
_RECORDED = ("slurm_job_id", "name", "user", "submitted", "finished", "end_state", "preemptions", "ran_seconds")
_RUNS = ("uid", "run", "started", "ended", "cause", "placement", "steps_per_second", "init_seconds")
_DECISIONS = ("uid", "first_round", "last_round", "granted", "reason")


class Cluster:
    """A cluster that metasched schedules, as the calling user may see it.

    The published status (``status``, ``jobs``, ``nodes``, ``explain``) shows other users' jobs as `metasched status`
    does: their progress, speed and loss are None, and under Slurm's PrivateData they are missing. All other methods
    read the daemon's database, on its host, where the file's permissions let the caller read it; each reads it anew.

    ``job`` is always a Slurm job id, a uid, or a name that one job has.
    """

    def __init__(self, paths: CommandPaths, shared: Path | None, state: Path | None) -> None:
        self._paths = paths
        self._shared = paths.shared(shared)
        self._state = state

    @classmethod
    def connect(
        cls, *, config: str | Path | None = None, shared: str | Path | None = None, state: str | Path | None = None
    ) -> Self:
        """Find a cluster as the command line does, and read its status once.

        Args:
            config: configuration file; None for ``$METASCHED_CONFIG``, else ``/etc/metasched/metasched.toml``.
            shared: shared directory; None for that of ``config``, else ``$METASCHED_SHARED``, else that of the default
                configuration.
            state: the daemon's state directory, with its database; None for that of the configuration.

        Raises:
            NoDirectoryError: nothing names the shared directory.
            StatusError: no daemon has published a status there that the caller can read.
        """
        cluster = cls(CommandPaths(_path(config)), _path(shared), _path(state))
        cluster.status()
        return cluster

    def __repr__(self) -> str:
        return f"<Cluster {self._shared}>"

    def status(self) -> Status:
        """Return the status that the daemon published last: policy, round, nodes and jobs.

        Raises:
            StatusError: it cannot be read.
        """
        return published.read(self._shared)

    def jobs(
        self,
        *,
        user: str | None = None,
        account: str | None = None,
        states: Sequence[str] = (),
        ended: bool = False,
    ) -> Table[JobStatus]:
        """Return the live jobs; ``ended`` adds those that ended last.

        Args:
            user: only jobs of this user.
            account: only jobs of this Slurm account.
            states: only jobs in these states, such as ``running`` or ``waiting``.
            ended: whether the jobs that ended last follow.

        Raises:
            StatusError: the status cannot be read.
            UnknownStateError: no job can be in one of the states.
        """
        found = Selection(user, account, tuple(states)).of(self.status())
        return Table((*found.jobs, *(found.finished if ended else ())), shown=_JOBS)

    def nodes(self) -> Table[NodeStatus]:
        """Return the nodes, with the GPUs that are free and in use.

        Raises:
            StatusError: the status cannot be read.
        """
        return Table(self.status().nodes, shown=_NODES)

    def job(self, job: str | int) -> JobStatus:
        """Return one job of the published status.

        Raises:
            StatusError: the status cannot be read.
            JobNotFoundError: no job or several jobs are found.
        """
        return find(self.status(), str(job))

    def explain(self, job: str | int) -> list[str]:
        """Return why a job runs or waits, in sentences, as `metasched explain` prints them.

        Raises:
            StatusError: the status cannot be read.
            JobNotFoundError: no job or several jobs are found.
        """
        status = self.status()
        found = find(status, str(job))
        try:
            past = read_past(self._database(), found.uid)
        except MetaschedError:  # elsewhere than on the daemon's host there is no database
            past = None
        return sentences(found, status, past, time.time())

    def ended_jobs(self, limit: int = _MOST, *, imported: bool = True) -> Table[JobRecord]:
        """Return the recorded jobs that ended last, the latest first, also those of Slurm's accounting.

        Args:
            limit: most jobs.
            imported: whether jobs that `metasched db import` read from Slurm's accounting count.

        Raises:
            StoreError: the caller can read no database.
        """
        with self._reading() as store:
            return Table(store.recent_jobs(limit, imported=imported), shown=_RECORDED)

    def runs(self, job: str | int | None = None, limit: int = _MOST) -> Table[RunRecord]:
        """Return the latest runs of a job by number; without a job those of all jobs, by their ends, open runs last.

        Raises:
            StoreError: the caller can read no database.
            JobNotFoundError: no job or several jobs are found.
        """
        with self._reading() as store:
            found = store.recent_runs(limit)[::-1] if job is None else store.latest_runs(_uid(store, job), limit)
        return Table(found, shown=_RUNS)

    def throughput(self, job: str | int, limit: int = _MOST) -> Table[ThroughputRecord]:
        """Return the latest reports of a job's trainers: steps, samples and seconds, the oldest first.

        Raises:
            StoreError: the caller can read no database.
            JobNotFoundError: no job or several jobs are found.
        """
        with self._reading() as store:
            return Table(store.recent_throughput(_uid(store, job), limit)[::-1])

    def speeds(self) -> Table[SpeedRecord]:
        """Return the measured speeds of jobs and models, in optimizer steps per second.

        Raises:
            StoreError: the caller can read no database.
        """
        with self._reading() as store:
            return Table(store.speeds())

    def decisions(self, job: str | int, limit: int = _MOST) -> Table[DecisionRecord]:
        """Return the latest decisions on a job with their reasons, the oldest first.

        Raises:
            StoreError: the caller can read no database.
            JobNotFoundError: no job or several jobs are found.
        """
        with self._reading() as store:
            return Table(store.recent_decisions(_uid(store, job), limit)[::-1], shown=_DECISIONS)

    def rounds(self, limit: int = _MOST) -> Table[RoundRecord]:
        """Return the latest rounds, the oldest first.

        Raises:
            StoreError: the caller can read no database.
        """
        with self._reading() as store:
            return Table(store.recent_rounds(limit)[::-1])

    def events(self, job: str | int | None = None, limit: int = _MOST) -> Table[EventRecord]:
        """Return the latest events of a job, or of all jobs and the cluster, the oldest first.

        Raises:
            StoreError: the caller can read no database.
            JobNotFoundError: no job or several jobs are found.
        """
        with self._reading() as store:
            found = store.recent_events(limit, None if job is None else _uid(store, job))[::-1]
        return Table(found, row=_event_row, shown=("at", "uid", "kind", "text"))

    def usage(
        self, by: Grouping = "user", *, since: float | None = None, until: float | None = None, imported: bool = False
    ) -> Table[Usage]:
        """Return GPU hours, waits, preemptions and fairness by group, as `metasched history` prints them.

        Args:
            by: what a row is: ``user``, ``account``, ``month`` or ``gpu_type``.
            since: begin of the window, unix seconds; None for thirty days before its end.
            until: end of the window, unix seconds; None for now.
            imported: whether jobs of Slurm's accounting count.

        Raises:
            StoreError: the caller can read no database.
        """
        end = time.time() if until is None else until
        begin = end - _MONTH if since is None else since
        with self._reading() as store:
            return Table(store.usage(by, begin, end, imported=imported))

    def _database(self) -> Path:
        return self._paths.state(self._state) / DATABASE

    def _reading(self) -> Store:
        return Store.open(self._database(), read_only=True)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _event_row(event: EventRecord) -> dict[str, Any]:
    return fields_of(event) | text_fields(event.text)


def _uid(store: Store, job: str | int) -> str:
    return find_recorded(store, str(job)).uid
