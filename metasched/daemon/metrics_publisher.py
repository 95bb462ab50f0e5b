"""Metrics of each publication, for the file of metrics and the endpoint that serves it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from metasched.configuration.config import Config
from metasched.core.file_replacement import replace_file
from metasched.core.model import Job, Node, Status
from metasched.core.reuse import Latest, reuses_results
from metasched.daemon.cluster_state import ClusterState
from metasched.metrics.exposition import OTHER, counters_in, exposition, not_below
from metasched.metrics.sample import Histogram, Sample
from metasched.store import Store
from metasched.store.counting_triggers import BUCKETS
from metasched.store.metric_rows import CounterKey
from metasched.store.records import EndCause, service

if TYPE_CHECKING:
    from metasched.daemon.controller import Controller

FILE_NAME = "metrics.prom"
METRICS_SECONDS = 5.0
"""Shortest time between two files of metrics."""
_RHO_SECONDS = 7 * 86400.0
_WAITING = (Status.HELD, Status.QUEUED)
_LIVE = [status.value for status in Status if status is not Status.FINISHED]
_Counters = Mapping[CounterKey, float]

log = structlog.get_logger()


class MetricsPublisher:
    """Writes the file of metrics in the shared directory, after polls; an error is logged once."""

    def __init__(self, store: Store, shared: Path, *, private: bool) -> None:
        """Begin without metrics.

        Args:
            store: the counters.
            shared: the directory of the file.
            private: whether Slurm hides others' accounts, so that no metric may name them.
        """
        self._store = store
        self._path = shared / FILE_NAME
        self._shared = shared
        self._private = private
        self._published = -math.inf
        self._last_poll: float | None = None
        self._failed = False
        self._jobs = Latest[_JobMetrics](reuses=reuses_results())
        self._highest: dict[tuple[str, str], float] = {}  # GPU-seconds, published so far: no counter ever falls
        self._sample: Sample | None = None
        self._floors = _published_counters(self._path)

    def publish(self, controller: Controller, state: ClusterState) -> None:
        """Write the metrics of a poll in which Slurm answered, unless they were written a moment ago."""
        now = state.snapshot.now
        self._last_poll = now
        if not controller.config.metrics.file or 0 <= now - self._published < METRICS_SECONDS:
            return
        self._published = now
        self._guarded(controller, state)

    def note_outage(self) -> None:
        """Write the last metrics again, with Slurm out of reach."""
        if self._sample is not None:
            self._sample = replace(self._sample, slurm_reachable=False)
            self._published = -math.inf
            self._write()

    def _guarded(self, controller: Controller, state: ClusterState) -> None:
        self._sample = self._sampled(controller, state)
        self._write()

    def _write(self) -> None:
        if self._sample is None:
            return
        try:
            replace_file(self._path, not_below(exposition(self._sample), self._floors), mode=0o644)
        except OSError as error:
            if not self._failed:
                log.warning("metrics_not_published", path=str(self._path), error=error.strerror)
            self._failed = True
            return
        self._failed = False

    def _sampled(self, controller: Controller, state: ClusterState) -> Sample:
        counters = self._store.metric_counters()
        free = _free_by_node(state)
        jobs = self._jobs.of(
            lambda: _job_metrics(controller, state, free), state.version, state.snapshot.nodes, *controller.decided
        )
        rhos = self._store.worst_rhos(state.snapshot.now - _RHO_SECONDS)
        accounts = None if self._private else self._account_metrics(state, counters)
        return Sample(
            version=_version(),
            policy=controller.policy.name,
            last_poll=self._last_poll,
            slurm_reachable=True,
            poll_seconds=controller.poll_times.last,
            decide_seconds=controller.decide_seconds,
            rounds=controller.round_number,
            jobs=jobs.by_status,
            waiting=jobs.waiting,
            fitting=jobs.fitting,
            gpus=_gpus(state, free),
            account_gpus=None if accounts is None else accounts[0],
            account_gpu_seconds=None if accounts is None else accounts[1],
            runs_ended=dict.fromkeys(EndCause, 0.0) | _labelled(counters, "runs_ended"),
            actions={_pair(label): value for label, value in _labelled(counters, "actions").items()},
            overhead=_labelled(counters, "overhead_gpu_seconds"),
            waits=_histogram(counters, "wait_seconds"),
            completions=_histogram(counters, "completion_seconds"),
            rho_worst={name: worst for name, (worst, _, _) in rhos.items()},
            unfair_ratio={name: unfair / rated for name, (_, unfair, rated) in rhos.items()},
            free_bytes_ratio=_free_bytes(controller.config),
        )

    def _account_metrics(
        self, state: ClusterState, counters: _Counters
    ) -> tuple[Mapping[str, int], Mapping[tuple[str, str], float]]:
        """Return the GPUs that accounts hold now, and their GPU-seconds by type, those of open runs included."""
        held = Counter[str]()
        seconds: dict[tuple[str, str], float] = {}
        for key, value in counters.items():
            if key.name == "account_gpu_seconds":
                seconds[key.label, key.gpu_type] = value
        for job in state.holding:
            record = state.jobs[job.uid].record
            run = record.current
            if job.placement is None or run is None or not job.placement.gpus:
                continue
            account = record.account or ""
            held[account] += job.placement.gpus
            for gpu_type, amount in service(run.placement, run.seconds_at(state.snapshot.now)).items():
                seconds[account, gpu_type] = seconds.get((account, gpu_type), 0.0) + amount
        known = self._store.metric_accounts(set(held) | {account for account, _ in seconds})
        gpus, total = Counter[str](), dict[tuple[str, str], float]()
        for account, count in held.items():
            gpus[account if account in known else OTHER] += count
        for (account, gpu_type), amount in seconds.items():
            place = (account if account in known else OTHER, gpu_type)
            total[place] = total.get(place, 0.0) + amount
        for place, amount in total.items():
            self._highest[place] = max(self._highest.get(place, 0.0), amount)
        return gpus, dict(self._highest)


@dataclass(frozen=True, slots=True)
class _JobMetrics:
    """The numbers of jobs by status, of waiting jobs by the code of their reason, and of those that would fit."""

    by_status: Mapping[str, int]
    waiting: Mapping[str, int]
    fitting: int


def _job_metrics(controller: Controller, state: ClusterState, free: Mapping[str, int]) -> _JobMetrics:
    jobs = state.snapshot.jobs
    waiting = [job for job in jobs if job.status in _WAITING]
    return _JobMetrics(
        dict.fromkeys(_LIVE, 0) | Counter([job.status.value for job in jobs]),
        Counter([str((job.blocked or controller.reason(job.uid)).code) for job in waiting]),
        _fitting(waiting, state.snapshot.nodes, free),
    )


def _free_by_node(state: ClusterState) -> Mapping[str, int]:
    """Return the GPUs of each node that no job of metasched holds; GPUs that two jobs share are held once."""
    used = Counter[str]()
    for job in state.holding:
        second = job.co_runner is not None and job.co_runner < job.uid and job.co_runner in state.jobs
        if job.placement is not None and not second:
            used.update(dict(job.placement.node_gpus))
    return {node.name: max(node.gpus - used[node.name], 0) for node in state.snapshot.nodes}


def _gpus(state: ClusterState, free: Mapping[str, int]) -> Mapping[tuple[str, str], int]:
    """Return the GPUs by type and use."""
    found = Counter[tuple[str, str]]()
    for node in state.snapshot.nodes:
        kind = node.gpu_type or ""
        if not kind:
            continue
        found[kind, "used"] += node.gpus - free[node.name]
        found[kind, "free" if node.accepts else "closed"] += free[node.name]
        found[kind, "leaked"] += state.leaked.get(node.name, 0)
    return found


def _fitting(waiting: list[Job], nodes: tuple[Node, ...], free: Mapping[str, int]) -> int:
    """Return how many waiting jobs, not blocked, could have their fewest GPUs by type alone."""
    by_type = Counter[str]()
    for node in nodes:
        if node.accepts and node.gpu_type:
            by_type[node.gpu_type] += free[node.name]
    fitting = 0
    for job in waiting:
        if job.blocked is None and job.status is Status.HELD and job.min_gpus:
            most = max((by_type[kind] for kind in job.gpu_types or by_type), default=0)
            fitting += job.min_gpus <= most
    return fitting


def _labelled(counters: _Counters, name: str) -> dict[str, float]:
    return {key.label: value for key, value in counters.items() if key.name == name}


def _pair(label: str) -> tuple[str, str]:
    kind, _, outcome = label.rpartition(" ")
    return kind, outcome


def _histogram(counters: _Counters, name: str) -> Histogram:
    buckets = {float(bound): 0.0 for bound in BUCKETS}
    for label, value in _labelled(counters, f"{name}_bucket").items():
        buckets[float(label)] = value
    return Histogram(buckets, counters.get(CounterKey(f"{name}_sum", "", ""), 0.0))


def _published_counters(path: Path) -> Mapping[bytes, float]:
    """Return the counters that the daemon before has published; none where there was none."""
    try:
        return counters_in(path.read_bytes())
    except OSError:
        return {}


def _free_bytes(config: Config) -> Mapping[str, float]:
    """Return the free part of the file systems of the daemon's directories; without those that cannot be asked."""
    found = {}
    for name, path in (("state", config.paths.state), ("shared", config.paths.shared)):
        try:
            of = os.statvfs(path)
        except OSError:
            continue
        if of.f_blocks:
            found[name] = of.f_bavail / of.f_blocks
    return found


def _version() -> str:
    try:
        return version("metasched")
    except PackageNotFoundError:
        return "unknown"
