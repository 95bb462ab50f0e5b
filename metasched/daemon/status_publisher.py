"""The publish step of a poll: writes the status files that `metasched status` and `metasched explain` read.

A job is rendered again where its description, or what the latest round decided about it, has changed. The file of the
live jobs is written where a job was rendered again or has ended; the summary is written at most once a second.
"""

from __future__ import annotations

import operator
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from metasched.configuration.config import Config
from metasched.core.model import Job, Snapshot
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason, to_json
from metasched.core.reuse import Latest, reuses_results
from metasched.daemon.batch_status import batch_status, step_gain
from metasched.daemon.cluster_state import ClusterState
from metasched.observe.known_good_size import known_good_size
from metasched.shared_dir.published_status import (
    AdviceStatus,
    DeferredStatus,
    JobStatus,
    NodeStatus,
    PlannedStatus,
    Status,
    StatusError,
    encode_job,
    publish_jobs,
    publish_summary,
)
from metasched.slurm.client import SlurmJob
from metasched.store import JobRecord, Store
from metasched.store.records import service

if TYPE_CHECKING:
    from metasched.daemon.controller import Controller

FINISHED_SHOWN = 50
"""The most ended jobs in the published status: those that ended last."""
PUBLISH_SECONDS = 1.0
"""Time between two publications, unless a round was decided, jobs have come or gone, or Slurm's state has changed."""

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
        self._reuses = reuses_results()
        self._ended = Latest[tuple[JobStatus, ...]](reuses=self._reuses)
        self._rendered: dict[str, _RenderedJob] = {}  # by uid, in the order of the snapshot
        self._shown: tuple[object, ...] = ()  # version of the state and what was decided, of the last file of jobs
        self._decided: tuple[object, ...] = ()  # what the controller said of all jobs when they were rendered
        self._order: tuple[str, ...] = ()  # uids in the file of the live jobs
        self._outdated: set[str] = set()  # uids of jobs that were described again since they were rendered
        self._versions = count(time.time_ns())  # none is that of a file of an earlier daemon
        self._version = 0

    def publish(self, controller: Controller, state: ClusterState, described: Collection[str]) -> None:
        """Publish the state of this poll.

        Args:
            controller: of the daemon.
            state: of this poll.
            described: uids of the jobs that were described again since the last call.
        """
        self._outdated.update(described)
        if not self._is_due(controller, state):
            return
        snapshot = state.snapshot
        self._publish_jobs(controller, state)
        finished = self._ended.of(
            lambda: tuple(self._ended_job(record) for record in self._recently_ended()), self._store.live_records()
        )
        if self._sizes.keys() - state.jobs.keys():
            shown = state.jobs.keys() | {job.uid for job in finished}
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
            nodes=_nodes(state),
            jobs=(),
            jobs_version=self._version,
            sharing=snapshot.sharing,
            sharing_note=why_no_sharing(controller.config, state),
            finished=finished,
            degraded="" if controller.degraded is None else words(controller.degraded),
            degraded_rounds=controller.degraded_rounds,
            apps=tuple(controller.app_statuses(snapshot.jobs)),
            deferred=_deferred(controller),
            advice=tuple(AdviceStatus(**asdict(one)) for one in controller.advice),
            store=controller.store_problem or "ok",
        )
        self._write(status)

    def _is_due(self, controller: Controller, state: ClusterState) -> bool:
        """Whether to publish now; what is left out comes with a later poll."""
        last = self._last
        if last is None or not self._reuses or not 0 <= state.snapshot.now - last.published < PUBLISH_SECONDS:
            return True
        news = state.arrived or state.completed or len(state.jobs) != len(self._order)
        return bool(news) or (last.round, last.slurm) != (controller.round_number, controller.slurm_error or "ok")

    def _publish_jobs(self, controller: Controller, state: ClusterState) -> None:
        """Write the live jobs where the file has others."""
        snapshot = state.snapshot
        decided = controller.decided
        shown = (state.version, *decided)
        was_set_back = self._last is not None and self._last.published > snapshot.now  # ages are those of then
        if not self._outdated and self._same_as_shown(shown) and self._version and not was_set_back:
            return
        self._shown = shown
        known = self._rendered if self._reuses and not was_set_back else {}
        outdated = self._outdated | {job.co_runner for uid in self._outdated if (job := snapshot.job.get(uid))}
        is_decided = all(a is b for a, b in zip(decided, self._decided, strict=False))
        order = tuple([job.uid for job in snapshot.jobs])
        changed = order != self._order
        rendered: dict[str, _RenderedJob] = {}
        for uid in order:
            before = known.get(uid)
            if before is not None and uid not in outdated and (is_decided or before.facts == controller.facts(uid)):
                rendered[uid] = before
                continue
            shown_job = self._job(snapshot.job[uid], snapshot, state.jobs[uid].record, controller)
            rendered[uid] = _RenderedJob(controller.facts(uid), encode_job(shown_job))
            changed = True
        self._rendered, self._decided, self._order = rendered, decided, order
        self._outdated.clear()
        if changed or not self._version:
            self._version = next(self._versions)
            self._guarded(lambda: publish_jobs(self._shared, self._version, [one.encoded for one in rendered.values()]))

    def _same_as_shown(self, shown: tuple[object, ...]) -> bool:
        return self._reuses and len(self._shown) == len(shown) and all(map(operator.is_, self._shown, shown))

    def _recently_ended(self) -> list[JobRecord]:
        recent = self._store.recent_jobs(FINISHED_SHOWN, imported=False)
        return [record for record in recent if record.finished is not None]

    def republish(self, controller: Controller) -> None:
        """Publish the last status again, with Slurm's present error."""
        if self._last is not None:
            self._write(replace(self._last, published=time.time(), slurm=controller.slurm_error or "ok"))

    def _write(self, status: Status) -> None:
        self._last = status
        self._guarded(lambda: publish_summary(self._shared, status))

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
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
        run = record.current
        gains = run is not None and run.started is not None and run.suspended_at is None and run.started <= now
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
            as_of=now,
            failed_sizes=record.failed_sizes,
            put_back_to=known_good_size(record) if record.put_back else None,
            gpu_seconds_each=sum(service(run.placement, 1.0).values()) if run is not None and gains else None,
        )

    def _ended_job(self, record: JobRecord) -> JobStatus:
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


@dataclass(frozen=True, slots=True)
class _RenderedJob:
    """A live job as the file has it, with what the latest round had decided about it."""

    facts: tuple[object, ...]
    encoded: bytes


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


def _nodes(state: ClusterState) -> tuple[NodeStatus, ...]:
    used: Counter[str] = Counter()
    for job in state.holding:
        # GPUs that two jobs share count once.
        second = job.co_runner is not None and job.co_runner < job.uid and job.co_runner in state.jobs
        if job.placement is not None and not second:
            used.update(dict(job.placement.node_gpus))
    reasons = state.node_reasons
    return tuple(
        NodeStatus(
            node.name,
            node.gpu_type,
            node.gpus,
            used[node.name],
            node.accepts,
            reasons.get(node.name, ""),
            state.leaked.get(node.name, 0),
        )
        for node in state.snapshot.nodes
    )
