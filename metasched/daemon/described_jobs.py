"""Descriptions of the live jobs, as scheduling sees them, kept from poll to poll.

A job is described again where its record, Slurm's record of it, its reports, what is learnt of it, or what all jobs
depend on (nodes, reservations, limits, configuration) has changed. Of the other jobs only the fields that grow with the
time are made again: the service of a present run, and the seconds until a reservation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from metasched.configuration.config import Intake
from metasched.core.apps import LossPoint
from metasched.core.declared_work import WorkContradiction, work_contradiction
from metasched.core.reasons import Code, Reason, from_text
from metasched.core.reuse import differing, in_order_of, patched, reuses_results
from metasched.intake.job_intake import JobIntake
from metasched.intake.preemption_limits import within_limit
from metasched.intake.report_reading import ReportReader
from metasched.intake.run_tracking import TrackedJob
from metasched.learning.job_estimates import JobEstimates
from metasched.learning.throughput_learning import speed_subject
from metasched.observe.node_inventory import NodeInventory
from metasched.observe.observed_job import NOT_STARTED, ObservedJob, job_of, start_deferral
from metasched.observe.observer import Observation
from metasched.observe.reservations import Reservations
from metasched.observe.slurm_quotas import SlurmQuotas
from metasched.store import Store

EVENTS = 20
"""Latest events of a job that are searched for the reason why Slurm did not start it."""


@dataclass(frozen=True, slots=True)
class _Described:
    """The description of one job in one poll.

    Attributes:
        tracked: the job that was described.
        observed: its description.
        subject: of its speed.
        contradiction: how its declared steps are contradicted.
        runs: whether a run of the job goes on, so that its service grows.
        deferred: whether Slurm did not start the job; why is read again at each poll.
        depends_on_time: whether each instant may change the description, reservations apart.
    """

    tracked: TrackedJob
    observed: ObservedJob
    subject: str
    contradiction: WorkContradiction | None
    runs: bool
    deferred: bool
    depends_on_time: bool


@dataclass(frozen=True, slots=True)
class _Dependencies:
    """What the descriptions of all jobs depend on."""

    inventory: NodeInventory
    quotas: SlurmQuotas
    limits: Intake
    all_losses: bool
    fits_iterations: bool

    def describes_alike(self, other: _Dependencies) -> bool:
        """Whether no description differs under the other dependencies."""
        return (
            self.quotas is other.quotas
            and self.limits is other.limits
            and (self.all_losses, self.fits_iterations) == (other.all_losses, other.fits_iterations)
            and self.inventory.describes_jobs_like(other.inventory)
        )


class DescribedJobs:
    """Describes the live jobs of each poll; writes nothing.

    Attributes:
        all_losses: whether all jobs get their losses, and not only those of apps.
        contradicted: how the declared steps of jobs of this poll are contradicted, by uid; no policy sees those steps.
        changed: whether in this poll a job has come, gone, or changed by more than the passing of time.
        aged: uids of the jobs that changed in this poll by the passing of time alone, where ``changed`` is false.
        subjects: of each job's speed, by uid; the same object while the jobs are the same.
        ends: why jobs are to end for good, by uid, as their records say.
    """

    def __init__(self, store: Store, intake: JobIntake, estimates: JobEstimates, reports: ReportReader) -> None:
        self.all_losses = False
        self.contradicted: dict[str, WorkContradiction] = {}
        self.changed = True
        self.aged: Collection[str] = ()
        self.subjects: Mapping[str, str] = {}
        self.ends: Mapping[str, Reason] = {}
        self._store = store
        self._intake = intake
        self._estimates = estimates
        self._reports = reports
        self._reuses = reuses_results()
        self._known: dict[str, _Described] = {}
        self._observed: dict[str, ObservedJob] = {}
        self._dependencies: _Dependencies | None = None
        self._losses: dict[str, tuple[LossPoint, ...]] = {}  # by uid
        self._live: Mapping[str, TrackedJob] = {}  # the jobs of the last poll
        self._taken: set[str] = set()  # uids that were described since the last take_described
        self._timed: frozenset[str] = frozenset()  # uids of the jobs whose descriptions depend on the time
        self._not_before: Mapping[str, float] = {}  # by uid, the earliest starts of jobs that have one, unix seconds
        self._now = 0.0  # of the last poll

    def of(self, live: Mapping[str, TrackedJob], observation: Observation, limits: Intake) -> Mapping[str, ObservedJob]:
        """Return the descriptions of the live jobs, by uid, in the order given.

        Args:
            live: the jobs after run tracking.
            observation: of this poll.
            limits: of the configuration in force.
        """
        changes = self._estimates.take_changes()
        dependencies = _Dependencies(
            observation.inventory, observation.quotas, limits, self.all_losses, self._estimates.fits_iterations
        )
        known = self._known if changes is not None and self._may_reuse(dependencies) else {}
        changes = changes or ()
        anew, timed = self._reports.reported.union(self._earliest_starts_passed(observation.now)), self._timed
        closes_nodes = observation.inventory.reservations.closes_nodes
        found: dict[str, _Described] = {}
        new: list[str] = []
        aged: list[str] = []
        rest: Collection[str] = live
        if known and not closes_nodes:
            differs = differing(self._live, live)
            learned = [uid for uid, subject in self.subjects.items() if subject in changes] if changes else ()
            wanted = differs.union(timed, anew, learned)
            rest = [uid for uid in live if uid in wanted] if wanted else ()
            found = patched(known, differs - live.keys(), {}) if differs or rest else self._known
        for uid in rest:
            job = live[uid]
            before = known.get(uid)
            if before is not None and uid not in anew and before.subject not in changes:
                if before.tracked is job and not closes_nodes and uid not in timed:
                    found[uid] = before
                    continue
                if job.is_same(before.tracked):
                    after = self._renewed(before, job, observation, limits)
                    if after is not None:
                        if after is not before:
                            aged.append(uid)
                        found[uid] = after
                        continue
            found[uid] = self._describe(job, observation, limits)
            new.append(uid)
        self._taken.update(new)
        # Jobs that are not described anew were known: without new ones, as many jobs as before are the same jobs.
        gone = self._known.keys() - found.keys() if new or len(found) != len(self._known) else ()
        self.changed = bool(new or gone)
        self.aged = () if self.changed else aged
        if self.changed or aged:
            self._remember(in_order_of(live, found), new, aged, gone)
        self._live, self._dependencies, self._now = live, dependencies, observation.now
        return self._observed

    def _earliest_starts_passed(self, now: float) -> list[str]:
        """The uids of the jobs whose earliest start is between the last poll and this one; clocks may go back, too."""
        first, last = sorted((self._now, now))
        return [uid for uid, earliest in self._not_before.items() if first < earliest <= last]

    def _remember(self, found: dict[str, _Described], new: list[str], aged: list[str], gone: Collection[str]) -> None:
        """Make these the descriptions of the latest poll; those of the new uids get their losses."""
        observed = patched(self._observed, gone, {uid: found[uid].observed for uid in (*new, *aged)})
        observed = in_order_of(found, observed)
        self._observed = self._with_losses(observed, new) if new else observed
        if self._losses.keys() - found.keys():
            self._losses = {uid: points for uid, points in self._losses.items() if uid in found}
        for uid in new:
            found[uid] = replace(found[uid], observed=self._observed[uid])
        self._known = found
        if self.changed:
            again = {*new, *gone}
            described = {uid: found[uid] for uid in new}
            contradictions = {uid: one.contradiction for uid, one in described.items() if one.contradiction is not None}
            records = [one.tracked.record for one in described.values()]
            ends = {record.uid: record.end_reason for record in records if record.end_reason is not None}
            self.contradicted = patched(self.contradicted, again, contradictions)
            self.ends = patched(self.ends, again, ends)
            self.subjects = patched(self.subjects, again, {uid: one.subject for uid, one in described.items()})
            self._timed = (self._timed - again).union(uid for uid, one in described.items() if one.depends_on_time)
            earliest = {record.uid: record.not_before for record in records if record.not_before is not None}
            self._not_before = patched(self._not_before, again, earliest)

    def take_described(self) -> Collection[str]:
        """Return the uids of the jobs that were described anew since the last call."""
        taken, self._taken = self._taken, set()
        return taken

    def _may_reuse(self, dependencies: _Dependencies) -> bool:
        """Whether what all descriptions depend on is as in the last poll."""
        before = self._dependencies
        return self._reuses and before is not None and before.describes_alike(dependencies)

    def _renewed(
        self, before: _Described, tracked: TrackedJob, observation: Observation, limits: Intake
    ) -> _Described | None:
        """Return an unchanged job's description at this instant; None where more than its ages has changed."""
        record, now = tracked.record, observation.now
        if before.deferred:
            after = self._describe(tracked, observation, limits)
            job = after.observed.job.evolve(losses=before.observed.job.losses)
            return before if job == before.observed.job else None
        after = _aged(before, tracked, observation.inventory.reservations, now)
        if before.runs and record.total_steps is not None:  # the longer it runs, the less its steps are believed
            job = after.observed.job
            declared = job.evolve(total_steps=record.total_steps)
            if job.placement is None or work_contradiction(declared) is not before.contradiction:
                return None
        return after

    def _describe(self, tracked: TrackedJob, observation: Observation, limits: Intake) -> _Described:
        record, slurm, now = tracked.record, tracked.slurm, observation.now
        needed = self._intake.requirements_of(record)
        job = job_of(record, needed, slurm, tracked.status, observation.inventory, now)
        job = self._estimates.add_to(job, record, needed.model)
        contradicted = work_contradiction(job)
        if contradicted is not None:
            job = job.evolve(total_steps=None)
        if (deferral := start_deferral(job)) is not None and (why := self._why_not_started(record.uid)) is not None:
            job = job.evolve(blocked=why if why.code == Code.NOT_LAUNCHED else deferral.and_also(why))
        job = within_limit(observation.quotas.apply(job, slurm), slurm, limits)
        runs = record.current is not None and record.current.started is not None
        return _Described(
            tracked,
            ObservedJob(job, slurm, record, needed),
            speed_subject(job.uid, job.user, needed.model),
            contradicted,
            runs,
            deferred=deferral is not None,
            depends_on_time=runs or deferral is not None,
        )

    def _with_losses(self, described: dict[str, ObservedJob], new: list[str]) -> dict[str, ObservedJob]:
        """The jobs with their reported losses, which are read from the store where there are new reports.

        Args:
            described: all jobs; those that are not new have their losses.
            new: uids of the jobs that were described in this poll.
        """
        wanted = {uid for uid in new if self.all_losses or described[uid].job.app is not None}
        for uid in new:
            if uid not in wanted:
                self._losses.pop(uid, None)
        stale = {uid for uid in wanted if uid not in self._losses or uid in self._reports.reported}
        if stale:
            self._losses |= dict.fromkeys(stale, ()) | self._store.losses(stale)
        for uid in wanted:
            if points := self._losses.get(uid):
                described[uid] = replace(described[uid], job=described[uid].job.evolve(losses=points))
        return described

    def _why_not_started(self, uid: str) -> Reason | None:
        events = self._store.recent_events(EVENTS, uid)
        return next((from_text(event.text) for event in events if event.kind == NOT_STARTED), None)


def _aged(before: _Described, tracked: TrackedJob, reservations: Reservations, now: float) -> _Described:
    """Return the description with the fields that grow with the time."""
    record, job = tracked.record, before.observed.job
    open_seconds = reservations.open_seconds(tracked.slurm.time_limit)
    if before.runs:
        job = job.evolve(attained=record.attained_at(now), ran_seconds=record.ran_at(now), open_seconds=open_seconds)
    elif open_seconds != job.open_seconds:
        job = job.evolve(open_seconds=open_seconds)
    else:
        return before
    observed = ObservedJob(job, tracked.slurm, record, before.observed.requirements)
    return replace(before, tracked=tracked, observed=observed)
