"""The publish step of a poll: writes the status file that `metasched status` and `metasched explain` read."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from metasched.configuration.config import Config
from metasched.core.model import Job, Snapshot
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason, to_json
from metasched.daemon.batch_status import batch_status, step_gain
from metasched.daemon.cluster_state import ClusterState
from metasched.shared_dir.published_status import (
    AdviceStatus,
    DeferredStatus,
    JobStatus,
    NodeStatus,
    PlannedStatus,
    Status,
    StatusError,
    publish,
)
from metasched.slurm.client import SlurmJob
from metasched.store import JobRecord, Store

if TYPE_CHECKING:
    from metasched.daemon.controller import Controller

FINISHED_SHOWN = 50
"""The most ended jobs in the published status: those that ended last."""

log = structlog.get_logger()


class StatusPublisher:
    """Writes the status file. A file that cannot be written is logged once, and scheduling continues."""

    def __init__(self, store: Store, shared: Path, cluster: str) -> None:
        self._store = store
        self._shared = shared
        self._cluster = cluster
        self._last: Status | None = None
        self._sizes: dict[str, tuple[int, tuple[int, ...]]] = {}  # by uid: key of the runs counted, world sizes
        self._failed = False

    def publish(self, controller: Controller, state: ClusterState) -> None:
        """Publish the state of this poll."""
        snapshot = state.snapshot
        ended = [
            record for record in self._store.recent_jobs(FINISHED_SHOWN, imported=False) if record.finished is not None
        ]
        shown = state.jobs.keys() | {record.uid for record in ended}
        self._sizes = {uid: sizes for uid, sizes in self._sizes.items() if uid in shown}
        status = Status(
            published=snapshot.now,
            poll_seconds=controller.config.schedule.poll_seconds,
            cluster=self._cluster,
            host=socket.gethostname(),
            pid=os.getpid(),
            policy=controller.policy.name,
            round=controller.round_number,
            round_at=controller.round_at,
            next_round=controller.next_round,
            slurm=controller.slurm_error or "ok",
            nodes=_nodes(snapshot, state),
            jobs=tuple(self._job(job, snapshot, state.jobs[job.uid].record, controller) for job in snapshot.jobs),
            sharing=snapshot.sharing,
            sharing_note=why_no_sharing(controller.config, state),
            finished=tuple(self._ended(record) for record in ended),
            degraded="" if controller.degraded is None else words(controller.degraded),
            degraded_rounds=controller.degraded_rounds,
            apps=tuple(controller.app_statuses(snapshot.jobs)),
            deferred=_deferred(controller),
            advice=tuple(AdviceStatus(**asdict(one)) for one in controller.advice),
            store=controller.store_problem or "ok",
        )
        self._write(status)

    def republish(self, controller: Controller) -> None:
        """Publish the last status again, with Slurm's present error."""
        if self._last is not None:
            self._write(replace(self._last, published=time.time(), slurm=controller.slurm_error or "ok"))

    def _write(self, status: Status) -> None:
        self._last = status
        try:
            publish(self._shared, status)
        except StatusError as error:
            if not self._failed:
                log.warning("status_not_published", error=str(error))
            self._failed = True
            return
        self._failed = False

    def _world_sizes(self, record: JobRecord) -> tuple[int, ...]:
        """Return the GPUs (CPU-only: nodes) of each run that started, oldest first."""
        known = self._sizes.get(record.uid)
        started = record.run if record.current is None or record.current.started is not None else -record.run
        if known is None or known[0] != started:
            runs = self._store.runs(record.uid)
            sizes = tuple(run.placement.gpus or len(run.placement.nodes) for run in runs if run.placement is not None)
            known = self._sizes[record.uid] = (started, sizes)
        return known[1]

    def _recorded(self, record: JobRecord) -> dict[str, Any]:
        """Return the fields of ``JobStatus`` that the store has alike for live and for ended jobs."""
        sizes = self._world_sizes(record)
        names = ("uid", "slurm_job_id", "name", "user", "account", "submitted", "preemptions", "error")
        progress = ("progress_steps", "total_steps", "loss")
        return {name: getattr(record, name) for name in (*names, *progress)} | {
            "runs": len(sizes),
            "world_sizes": sizes,
        }

    def _job(self, job: Job, snapshot: Snapshot, record: JobRecord, controller: Controller) -> JobStatus:
        shown = job.blocked or controller.reason(job.uid)
        placement, now = job.placement, snapshot.now
        co_runner = snapshot.job.get(job.co_runner or "")
        suspended = any(one is not None and one.gpus and one.suspended_by_us for one in (job, co_runner))
        return JobStatus(
            **self._recorded(record),
            status=job.status.value,
            gpus=job.gpus,
            min_gpus=job.min_gpus,
            max_gpus=job.max_gpus,
            preempt=job.preempt.value,
            reason=words(shown),
            **_reason_fields(shown),
            nodes=dict(placement.node_gpus) if placement is not None else {},
            gpu_type=placement.gpu_type if placement is not None else None,
            run_started=job.run_started,
            attained_service=job.attained_service,
            ran_seconds=job.ran_seconds,
            waited_seconds=job.waited_seconds(now),
            steps_per_second=job.steps_per_second,
            renewals=0 if record.current is None else record.current.renewals,
            co_runner=None if co_runner is None else co_runner.slurm_job_id,
            time_slicing=co_runner is not None and suspended,
            slo_seconds=job.slo_seconds,
            blocked=job.blocked is not None,
            step_gain=step_gain(job),
            app=job.app,
            batch=batch_status(job, record, *controller.batch_target(job.uid)),
            planned=_planned(job, controller),
        )

    def _ended(self, record: JobRecord) -> JobStatus:
        ended = record.finished or record.submitted
        ended_as = Reason.of(Code.ENDED, state=record.end_state)
        if record.end_reason is not None:
            ended_as = ended_as.and_also(record.end_reason)
        needed = record.requirements
        gpus = int(needed.get("gpus", 0))
        return JobStatus(
            **self._recorded(record),
            status=(record.end_state or "gone").lower(),
            gpus=gpus,
            min_gpus=int(needed.get("min_gpus", gpus)),
            max_gpus=int(needed.get("max_gpus", gpus)),
            preempt=str(needed.get("preempt", "checkpoint")),
            reason=words(ended_as),
            **_reason_fields(ended_as),
            nodes={},
            gpu_type=None,
            run_started=None,
            attained_service=sum(record.attained.values()),
            ran_seconds=record.ran_seconds,
            waited_seconds=max(0.0, ended - record.submitted - record.ran_seconds),
            steps_per_second=None,
            finished=record.finished,
            slo_seconds=needed.get("slo_seconds"),
        )


def _deferred(controller: Controller) -> tuple[DeferredStatus, ...]:
    """Return the jobs that are not taken in yet, by user and reason."""
    groups: dict[tuple[str, Reason], list[SlurmJob]] = {}
    for job, reason in controller.deferred:
        groups.setdefault((job.user, reason), []).append(job)
    return tuple(
        DeferredStatus(
            user, len(jobs), tuple(map(str, sorted({_record_of(job) for job in jobs}))), words(why), why.code
        )
        for (user, why), jobs in sorted(groups.items(), key=lambda group: group[0][0])
    )


def _record_of(job: SlurmJob) -> int:
    return job.job_id if job.array_job_id is None else job.array_job_id


def _planned(job: Job, controller: Controller) -> PlannedStatus | None:
    """Return when the job is to run next; None for a job that is blocked, or not planned."""
    run = None if job.blocked is not None else controller.planned(job.uid)
    return None if run is None else PlannedStatus(**asdict(run))


def _reason_fields(reason: Reason) -> dict[str, Any]:
    """Return the fields of ``JobStatus`` that tell a reason to programs."""
    data = to_json(reason)
    return {
        "reason_code": data["code"],
        "reason_facts": data.get("facts", {}),
        "reason_also": tuple(data.get("also", ())),
    }


def why_no_sharing(config: Config, state: ClusterState) -> str:
    """Return why jobs cannot share GPUs, in words; "" where they can."""
    if state.snapshot.sharing:
        return ""
    if not config.sharing.enabled:
        return "[sharing] enabled is false"
    return "Slurm gives GPUs away whole: gres.conf names no shards (an even number of them for each GPU)"


def _nodes(snapshot: Snapshot, state: ClusterState) -> tuple[NodeStatus, ...]:
    used: Counter[str] = Counter()
    for job in snapshot.jobs:
        # GPUs that two jobs share count once.
        second = job.co_runner is not None and job.co_runner < job.uid and job.co_runner in snapshot.job
        if job.placement is not None and not second:
            used.update(dict(job.placement.node_gpus))
    return tuple(
        NodeStatus(
            node.name,
            node.gpu_type,
            node.gpus,
            used[node.name],
            node.accepts,
            state.node_reasons.get(node.name, ""),
            state.leaked.get(node.name, 0),
        )
        for node in snapshot.nodes
    )
