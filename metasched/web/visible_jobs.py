"""The jobs of the published status as one viewer may see them: which ones, and what of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from metasched.core.reasons import Reason, without_measures, without_strangers
from metasched.shared_dir.job_reasons import without_other_jobs
from metasched.shared_dir.published_status import JobStatus, public_job
from metasched.web.access import OwnedJob, Viewer
from metasched.web.published import Publication


class VisibleJobs:
    """One publication for one viewer. Pages take jobs and reasons from here alone.

    Args:
        publication: the published status, as the page read it.
        viewer: the user who asks.
    """

    def __init__(self, publication: Publication, viewer: Viewer) -> None:
        self._publication = publication
        self._viewer = viewer
        self._hides = viewer.jobs_private and not viewer.is_admin

    @cached_property
    def live(self) -> Sequence[JobStatus]:
        """The live jobs that the viewer may see, whole: ``seen`` cuts those that are shown."""
        status = self._publication.status
        jobs = () if status is None else status.jobs
        return [job for job in jobs if self._viewer.may_see(job)] if self._hides else jobs

    @cached_property
    def finished(self) -> Sequence[JobStatus]:
        """The jobs that ended last of those that the viewer may see, whole."""
        status = self._publication.status
        return () if status is None else [job for job in status.finished if self._viewer.may_see(job)]

    def seen(self, job: JobStatus) -> JobStatus:
        """A job that the viewer may see, without what is its owner's, and without names of jobs that are hidden."""
        shown = job if self._viewer.may_see_details(job) else public_job(job)
        return without_other_jobs(shown, *self._known) if self._hides else shown

    def reason(self, reason: Reason, job: OwnedJob) -> Reason:
        """A reason of a job that the viewer may see, likewise."""
        told = reason if self._viewer.may_see_details(job) else without_measures(reason)
        return without_strangers(told, self._known[1]) if self._hides else told

    @cached_property
    def _known(self) -> tuple[frozenset[str], frozenset[str]]:
        """The uids and the Slurm job ids of the jobs that may be named."""
        jobs = (*self.finished, *self.live)
        return frozenset(job.uid for job in jobs), frozenset(job.slurm_job_id for job in jobs)
