"""The publish step of a poll: writes the status files that `metasched status` and `metasched explain` read.

A job is rendered again where its description, or what the latest round decided about it, has changed. The file of the
live jobs is written where a job was rendered again or has ended; the summary is written at most once a second.
"""

from __future__ import annotations

import operator
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from metasched.configuration.config import Access, Config
from metasched.core.finish_time_fairness import LIVE_DEFINITIONS
from metasched.core.model import Job, Snapshot
from metasched.core.model import Status as JobState
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason
from metasched.core.reuse import Latest, in_order_of, patched, reuses_results
from metasched.daemon.batch_status import batch_status, step_gain
from metasched.daemon.cluster_state import ClusterState
from metasched.daemon.fairness_status import alone_and_left, most_gpus_of_a_node
from metasched.daemon.forecast_status import forecast_summary, job_forecast
from metasched.daemon.node_status import node_statuses
from metasched.daemon.private_status import PrivateStatus
from metasched.observe.known_good_size import known_good_size
from metasched.observe.observed_job import ObservedJob
from metasched.shared_dir.job_reasons import reason_fields, without_other_jobs
from metasched.shared_dir.published_status import (
    AdviceStatus,
    AppStatus,
    DeferredStatus,
    JobStatus,
    PlannedStatus,
    Status,
    StatusError,
    encode_job,
    encode_jobs_file,
    public_facts,
    public_job,
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
LONG_POLL_SECONDS = 0.5
"""A poll that took longer leaves publishing to a later poll."""
LATEST_SECONDS = 3.0
"""Age of the published status from which every poll publishes, however long it took."""
PUBLISH_SECONDS = 1.0
"""Time between two publications, unless a round was decided, jobs have come or gone, or Slurm's state has changed."""

_NO_NODES: Mapping[str, int] = {}
"""Of jobs without an allocation: one object for thousands of them."""

log = structlog.get_logger()


class StatusPublisher:
    """Writes the status files. A file that cannot be written is logged once, and scheduling continues."""

    def __init__(self, store: Store, shared: Path, cluster: str) -> None:
        self._store = store
        self._shared = shared
        self._cluster = cluster
        self._private = PrivateStatus(shared)
        self._last: Status | None = None
        self._pasts: dict[str, _Past] = {}  # by uid
        self._contention_before: dict[str, float] = {}  # by uid, the integral of the contention at the submission
        self._failed = False
        self._reuses = reuses_results()
        self._ended = Latest[tuple[JobStatus, ...]](reuses=self._reuses)
        self._deferred = Latest[tuple[DeferredStatus, ...]](reuses=self._reuses)
        self._ended_jobs: Mapping[str, tuple[JobRecord, JobStatus]] = {}  # by uid
        self._ids = Latest[_Ids](reuses=self._reuses)
        self._most_gpus = Latest[Mapping[str, int]](reuses=self._reuses)
        self._rendered: dict[str, _RenderedJob] = {}  # by uid, in the order of the snapshot
        self._shown: tuple[object, ...] = ()  # version of the state and what was decided, of the last file of jobs
        self._decided: tuple[object, ...] = ()  # what the controller said of all jobs when they were rendered
        self._position: Mapping[str, int] = {}  # of each job in the file of the live jobs, by uid
        self._own: dict[str, dict[str, bytes]] = {}  # by user and uid, the JSON of the user's live jobs for the user
        self._waiting: tuple[str, ...] = ()  # uids of the waiting jobs in the order of their places
        self._finished: tuple[JobStatus, ...] | None = None  # in the latest private files
        self._access: Access | None = None  # of the latest private files
        self._were_private: bool | None = None  # whether Slurm hid jobs at the latest publication
        self._parts: tuple[object, ...] = ()  # apps and deferred jobs in the latest private files
        self._outdated: set[str] = set()  # uids of jobs that were described again since they were rendered
        self._versions = count(time.time_ns())  # none is that of a file of an earlier daemon
        self._public_version = 0
        self._whole_version = 0

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
        finished = self._ended.of(self._recently_ended, self._store.live_records())
        apps = tuple(controller.app_statuses(snapshot.jobs))
        deferred = self._deferred.of(lambda: _deferred(controller.deferred), controller.deferred)
        self._publish_jobs(controller, state, finished, apps, deferred)
        shown = {job.uid for job in finished}
        for uid in [uid for uid in self._pasts if uid not in state.jobs and uid not in shown]:
            del self._pasts[uid]
        for uid in [uid for uid in self._contention_before if uid not in state.jobs]:
            del self._contention_before[uid]
        integrals = self._store.load_integrals(snapshot.now)
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
            nodes=node_statuses(state),
            jobs=(),
            jobs_version=self._public_version,
            whole_version=self._whole_version,
            jobs_are_private=state.jobs_are_private,
            contention_seconds=None if integrals is None else integrals.contention_seconds,
            sharing=snapshot.sharing,
            sharing_note=why_no_sharing(controller.config, state),
            finished=finished,
            degraded="" if controller.degraded is None else words(controller.degraded),
            degraded_rounds=controller.degraded_rounds,
            apps=apps,
            deferred=deferred,
            advice=tuple(AdviceStatus(**asdict(one)) for one in controller.advice),
            store=controller.store_problem or "ok",
            forecast=forecast_summary(controller.side_work),
            shadow_problem=controller.side_work.shadow_problem if controller.side_work else "",
        )
        self._write(status)

    def _is_due(self, controller: Controller, state: ClusterState) -> bool:
        """Whether to publish now; what is left out comes with a later poll."""
        last = self._last
        age = 0.0 if last is None else state.snapshot.now - last.published
        if last is None or not self._reuses or age < 0:
            return True
        if controller.poll_times.elapsed > LONG_POLL_SECONDS and age < LATEST_SECONDS:
            return False
        if age >= PUBLISH_SECONDS:
            return True
        news = state.arrived or state.completed or len(state.jobs) != len(self._position)
        return bool(news) or (last.round, last.slurm) != (controller.round_number, controller.slurm_error or "ok")

    def _publish_jobs(
        self,
        controller: Controller,
        state: ClusterState,
        finished: tuple[JobStatus, ...],
        apps: tuple[AppStatus, ...],
        deferred: tuple[DeferredStatus, ...],
    ) -> None:
        """Write the files of jobs where they have others."""
        snapshot, jobs, hidden = state.snapshot, state.jobs, state.jobs_are_private
        decided = controller.decided
        shown = (state.version, *decided)
        was_set_back = self._last is not None and self._last.published > snapshot.now  # ages are those of then
        parts = (apps, deferred) if hidden else ()
        is_shown = self._same_as_shown(shown) and not was_set_back and not self._outdated
        is_private_shown = (finished, controller.config.access, hidden, parts) == (
            *(self._finished, self._access, self._were_private, self._parts),
        )
        if is_shown and is_private_shown and self._whole_version:
            return
        self._shown = shown
        renders_all = not self._reuses or was_set_back or hidden is not self._were_private
        known = {} if renders_all else self._rendered
        outdated = self._outdated.union(jobs[uid].job.co_runner or uid for uid in self._outdated if uid in jobs)
        is_decided = not renders_all and all(a is b for a, b in zip(decided, self._decided, strict=False))
        position, gone = state.position, self._rendered.keys() - jobs.keys()
        is_public_changed = position is not self._position or not self._public_version
        is_public_changed = is_public_changed or hidden is not self._were_private
        ids = self._ids.of(lambda: _ids_by_user(snapshot), state.version) if hidden else None
        looked_at = [uid for uid in jobs if uid not in known or uid in outdated] if is_decided else list(position)
        again: dict[str, _RenderedJob] = {}
        for uid in looked_at:
            before = known.get(uid)
            is_described = before is not None and uid not in outdated
            facts = before.facts if before is not None and is_described and is_decided else controller.facts(uid)
            if before is not None and is_described and before.facts == facts:
                continue
            job, record = jobs[uid].job, jobs[uid].record
            if before is not None and is_described:
                shown_job = msgspec.structs.replace(before.job, **_decided(job, record, controller))
            else:
                shown_job = self._job(job, state, controller)
            again[uid] = after = _render(shown_job, facts, before, ids)
            is_public_changed = is_public_changed or before is None or after.public is not before.public
        changed = self._note_owners(gone, again)
        rendered = in_order_of(position, patched(known, gone, again))
        waiting = self._in_line(controller, jobs, {*looked_at, *gone}, is_decided=is_decided)
        is_order_changed = waiting != self._waiting
        self._rendered, self._decided, self._position, self._waiting = rendered, decided, position, waiting
        self._outdated.clear()
        if not (changed or is_public_changed or is_order_changed) and is_private_shown:
            return
        version = next(self._versions)
        if is_public_changed or is_order_changed:
            self._public_version = version
            shown_jobs = () if hidden else [one.public for one in rendered.values()]
            places = () if hidden else waiting
            self._guarded(lambda: publish_jobs(self._shared, version, shown_jobs, places))
        self._whole_version = version
        self._private.write_all(
            encode_jobs_file(
                version,
                [one.whole for one in rendered.values()],
                order=waiting,
                finished=map(encode_job, finished),
                apps=apps if hidden else (),
                deferred=deferred if hidden else (),
            ),
            controller.config.access,
        )
        self._publish_users(snapshot.now, changed, finished, parts, ids)
        self._finished, self._access, self._were_private = finished, controller.config.access, hidden
        self._parts = parts

    def _note_owners(self, gone: Iterable[str], again: Mapping[str, _RenderedJob]) -> set[str]:
        """Keep the jobs of each user up to date, and return the names of the users with other jobs than before."""
        changed: set[str] = set()
        for uid in gone:
            user = self._rendered[uid].job.user
            changed.add(user)
            del self._own[user][uid]
            if not self._own[user]:
                del self._own[user]
        for uid, one in again.items():
            changed.add(one.job.user)
            self._own.setdefault(one.job.user, {})[uid] = one.whole if one.own is None else one.own
        return changed

    def _in_line(
        self, controller: Controller, jobs: Mapping[str, ObservedJob], looked_at: set[str], *, is_decided: bool
    ) -> tuple[str, ...]:
        """Return the uids of the waiting jobs in the order of their places.

        Args:
            controller: of the daemon.
            jobs: by uid.
            looked_at: uids of the jobs that may have begun or ceased to wait since the latest publication.
            is_decided: whether the last round is that of the latest publication.
        """
        if is_decided:
            waits = {uid for uid in looked_at if uid in jobs and _waits(jobs[uid].job)}
            stay = tuple([uid for uid in self._waiting if uid not in looked_at or uid in waits])
            if waits.difference(self._waiting).isdisjoint(controller.ranked):
                return stay
        return tuple([uid for uid in controller.ranked if uid in jobs and _waits(jobs[uid].job)])

    def _publish_users(
        self,
        now: float,
        changed: set[str],
        finished: tuple[JobStatus, ...],
        parts: tuple[Any, ...],
        ids: _Ids | None,
    ) -> None:
        """Write the files of users with their own jobs.

        Args:
            now: unix seconds.
            changed: names of the users with other live jobs than before.
            finished: the jobs that ended last.
            parts: where Slurm hides jobs, the apps and the jobs that are not taken in; else empty.
            ids: where Slurm hides jobs, the Slurm job ids of each user's live jobs; else None.
        """
        ended: dict[str, list[bytes]] = {}
        for job in finished:
            ended.setdefault(job.user, []).append(encode_job(job if ids is None else _for_owner(job, ids)))
        users = self._own.keys() | ended.keys() | {one.user for part in parts for one in part}
        if parts or finished != self._finished:
            changed = users
        places: dict[str, dict[str, int]] = {}
        if parts:
            for place, uid in enumerate(self._waiting, start=1):
                places.setdefault(self._rendered[uid].job.user, {})[uid] = place

        def content_of(user: str) -> bytes:
            """Return the JSON of the user's own file: the user's live and ended jobs, apps and deferred jobs."""
            apps, deferred = ([one for one in part if one.user == user] for part in parts or ((), ()))
            own = self._own.get(user, {})
            live = [own[uid] for uid in sorted(own, key=self._position.__getitem__)]
            own_places, own_ended = places.get(user), ended.get(user, [])
            return encode_jobs_file(0, live, places=own_places, finished=own_ended, apps=apps, deferred=deferred)

        self._private.write_users(users, changed, content_of, now)

    def _same_as_shown(self, shown: tuple[object, ...]) -> bool:
        return self._reuses and len(self._shown) == len(shown) and all(map(operator.is_, self._shown, shown))

    def _recently_ended(self) -> tuple[JobStatus, ...]:
        """Return the jobs that ended last; one whose record is as before is not described again."""
        known = self._ended_jobs if self._reuses else {}
        records = self._store.recent_jobs(FINISHED_SHOWN, imported=False)
        self._ended_jobs = {
            record.uid: found
            if (found := known.get(record.uid)) is not None and found[0] == record
            else (record, self._ended_job(record))
            for record in records
            if record.finished is not None
        }
        return tuple([job for _, job in self._ended_jobs.values()])

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

    def _past(self, record: JobRecord) -> _Past:
        """Return what the store has of a job's runs."""
        known = self._pasts.get(record.uid)
        current = record.current
        started = record.run, current is None, current is not None and current.started is not None
        stopping = () if current is None else current.stopped_for
        if known is None or known.key != started:
            runs = self._store.runs(record.uid) if record.run else ()
            sizes = tuple(run.placement.gpus or len(run.placement.nodes) for run in runs if run.placement is not None)
            stopped = next((run.stopped_for for run in reversed(runs) if run.stopped_for), ())
            known = self._pasts[record.uid] = _Past(started, sizes, stopped)
        elif stopping and stopping != known.stopped_for:
            known = self._pasts[record.uid] = replace(known, stopped_for=stopping)
        return known

    def _recorded(self, record: JobRecord) -> dict[str, Any]:
        """Return the fields of ``JobStatus`` that the store has alike for live and for ended jobs."""
        past = self._past(record)
        names = ("uid", "slurm_job_id", "name", "user", "account", "submitted", "preemptions", "error")
        progress = ("progress_steps", "total_steps", "loss")
        return {name: getattr(record, name) for name in (*names, *progress)} | {
            "runs": len(past.sizes),
            "world_sizes": past.sizes,
            "stopped_for": past.stopped_for,
        }

    def _fairness(self, job: Job, snapshot: Snapshot) -> dict[str, float | None]:
        """Return the fields of ``JobStatus`` from which a live job's rho is estimated."""
        most = self._most_gpus.of(lambda: most_gpus_of_a_node(snapshot.nodes), snapshot.nodes)
        found = alone_and_left(job, most)
        if found is None:
            return {}
        if job.uid not in self._contention_before:
            integrals = self._store.load_integrals(job.submitted)
            if integrals is None:
                return {}
            self._contention_before[job.uid] = integrals.contention_seconds
        alone, left = found
        before = self._contention_before[job.uid]
        return {"alone_seconds": alone, "left_seconds": left, "contention_before": before}

    def _job(self, job: Job, state: ClusterState, controller: Controller) -> JobStatus:
        record, snapshot = state.jobs[job.uid].record, state.snapshot
        placement, now = job.placement, snapshot.now
        other = None if job.co_runner is None else state.jobs.get(job.co_runner)
        co_runner = None if other is None else other.job
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
            nodes=dict(placement.node_gpus) if placement is not None else _NO_NODES,
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
            as_of=now,
            failed_sizes=record.failed_sizes,
            put_back_to=known_good_size(record) if record.put_back else None,
            gpu_seconds_each=sum(service(run.placement, 1.0).values()) if run is not None and gains else None,
            **self._fairness(job, snapshot),  # type: ignore[arg-type]  # three numbers
            **_decided(job, record, controller),
        )

    def _ended_job(self, record: JobRecord) -> JobStatus:
        ended = record.finished or record.submitted
        ended_as = Reason.of(Code.ENDED, state=record.end_state)
        if record.end_reason is not None:
            ended_as = ended_as.and_also(record.end_reason)
        needed = record.requirements
        gpus = int(needed.get("gpus", 0))
        fairness = self._store.fairness(record.uid)
        return JobStatus(
            **self._recorded(record),
            status=(record.end_state or "gone").lower(),
            gpus=gpus,
            min_gpus=int(needed.get("min_gpus", gpus)),
            max_gpus=int(needed.get("max_gpus", gpus)),
            preempt=str(needed.get("preempt", "checkpoint")),
            reason=words(ended_as),
            **reason_fields(ended_as),
            nodes=_NO_NODES,
            gpu_type=None,
            run_started=None,
            attained_service=sum(record.attained.values()),
            ran_seconds=record.ran_seconds,
            waited_seconds=max(0.0, ended - record.submitted - record.ran_seconds),
            steps_per_second=None,
            finished=record.finished,
            slo_seconds=needed.get("slo_seconds"),
            alone_seconds=None if fairness is None else fairness.alone,
            rho=None if fairness is None else fairness.rho.get(LIVE_DEFINITIONS[0]),
        )


_Ids = Mapping[str, Mapping[str, str]]
"""Slurm job ids by user and uid."""


@dataclass(frozen=True, slots=True)
class _Past:
    """The runs of a job: world sizes, and the uids of the jobs for which the latest was stopped.

    ``key`` is another one where another run is the latest, or where it has started or ended.
    """

    key: tuple[int, bool, bool]
    sizes: tuple[int, ...]
    stopped_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _RenderedJob:
    """A live job as the files have it, with what the latest round had decided about it.

    Attributes:
        facts: what the round decided.
        job: its status.
        whole: JSON of the whole job.
        public: JSON of what everybody may see.
        own: JSON for the job's owner; None where that is the whole job.
    """

    facts: tuple[object, ...]
    job: JobStatus
    whole: bytes
    public: bytes
    own: bytes | None = None


def _render(job: JobStatus, facts: tuple[object, ...], before: _RenderedJob | None, ids: _Ids | None) -> _RenderedJob:
    """Render a job.

    Args:
        job: its status.
        facts: what the round decided.
        before: as it was rendered before; what everybody may see is the same object where the time alone changed it.
        ids: where Slurm hides jobs, the Slurm job ids of each user's live jobs; else None.
    """
    whole = encode_job(job)
    if ids is not None:
        return _RenderedJob(facts, job, whole, b"", encode_job(_for_owner(job, ids)))
    shown = public_job(job)
    if before is not None and public_facts(shown) == public_facts(public_job(before.job)):
        return _RenderedJob(facts, job, whole, before.public)
    public = encode_job(shown)
    return _RenderedJob(facts, job, whole, whole if public == whole else public)


def _decided(job: Job, record: JobRecord, controller: Controller) -> dict[str, Any]:
    """Return the fields of ``JobStatus`` that the latest round and the latest forecast tell of a live job."""
    shown = job.blocked or controller.reason(job.uid)
    return {
        "reason": words(shown),
        **reason_fields(shown),
        "batch": batch_status(job, record, *controller.batch_target(job.uid)),
        "planned": _planned(job, controller),
        "forecast": job_forecast(job.uid, controller.side_work),
    }


def _ids_by_user(snapshot: Snapshot) -> _Ids:
    found: dict[str, dict[str, str]] = {}
    for job in snapshot.jobs:
        found.setdefault(job.user, {})[job.uid] = job.slurm_job_id
    return found


def _for_owner(job: JobStatus, ids: _Ids) -> JobStatus:
    """Return a job without what it tells of other users' jobs, for its owner where Slurm hides jobs."""
    own = ids.get(job.user, {})
    return without_other_jobs(job, own, own.values())


def _waits(job: Job) -> bool:
    """Whether a job waits for a round to start it."""
    return job.status is JobState.HELD and job.blocked is None


def _deferred(found: Mapping[str, tuple[SlurmJob, Reason]]) -> tuple[DeferredStatus, ...]:
    """Return the jobs that are not taken in yet, by user and reason."""
    groups: dict[tuple[str, Reason], list[SlurmJob]] = {}
    for job, reason in found.values():
        groups.setdefault((job.user, reason), []).append(job)
    return tuple(
        DeferredStatus(
            user, len(jobs), tuple(map(str, sorted({job.submission_id for job in jobs}))), words(why), why.code
        )
        for (user, why), jobs in sorted(groups.items(), key=lambda group: group[0][0])
    )


def _planned(job: Job, controller: Controller) -> PlannedStatus | None:
    """Return when the job is to run next; None for a job that is blocked, or not planned."""
    run = None if job.blocked is not None else controller.planned(job.uid)
    return None if run is None else PlannedStatus(**asdict(run))


def why_no_sharing(config: Config, state: ClusterState) -> str:
    """Return why jobs cannot share GPUs, in words; "" where they can."""
    if state.snapshot.sharing:
        return ""
    if not config.sharing.enabled:
        return "[sharing] enabled is false"
    return "Slurm gives GPUs away whole: gres.conf names no shards (an even number of them for each GPU)"
