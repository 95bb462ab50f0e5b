"""The job that a person asks for by Slurm job id, uid or name: in the published status, or in the database."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from metasched.core.errors import MetaschedError
from metasched.presentation.formatting import clean, listed
from metasched.shared_dir.published_status import JobStatus, Status

if TYPE_CHECKING:  # importing the store imports the policies' mathematics
    from metasched.store import JobRecord, Store

_LISTED_IDS = 20
_COMPARED = 64  # characters of names


class JobNotFoundError(MetaschedError):
    """No job, or more than one, has that Slurm job id, uid or name."""


def find(status: Status, asked: str) -> JobStatus:
    """Return the job of that Slurm job id or uid, else of that name; a live job before a finished one.

    Raises:
        JobNotFoundError: no job or several jobs are found, or an array, whose tasks are jobs of their own.
    """
    for jobs in (status.jobs, status.finished):
        for job in jobs:
            if asked in (job.slurm_job_id, job.uid):
                return job
    for jobs in (status.jobs, status.finished):
        named = [job for job in jobs if job.name == asked]
        if len(named) > 1:
            ids = listed([job.slurm_job_id for job in named], _LISTED_IDS)
            raise JobNotFoundError(f"several jobs are named {asked!r}: ask by Slurm job id, one of {ids}")
        if named:
            return named[0]
    for deferred in status.deferred:
        if asked.partition("_")[0] in deferred.job_ids and (asked in deferred.job_ids or "_" in asked):
            raise JobNotFoundError(f"job {asked} is not taken in yet: {clean(deferred.reason)}")
    ids_now = (job.slurm_job_id for job in (*status.jobs, *status.finished))
    if tasks := [slurm_job_id for slurm_job_id in ids_now if slurm_job_id.startswith(f"{asked}_")]:
        raise JobNotFoundError(f"job {asked} is an array: ask by task, one of {listed(tasks, _LISTED_IDS)}")
    raise JobNotFoundError(
        f"metasched knows no job {asked!r} (by Slurm job id, uid or name); {_near_misses(status, asked)}"
    )


def _near_misses(status: Status, asked: str) -> str:
    """Return the names of jobs that are spelled almost like ``asked``, else where to look."""
    names = {job.name[:_COMPARED]: job.slurm_job_id for job in (*status.finished, *status.jobs)}
    near = difflib.get_close_matches(asked[:_COMPARED], names, n=3)
    if not near:
        return "is it tagged? see `metasched status`"
    return f"did you mean {listed([f'{name!r} ({names[name]})' for name in near])}?"


def find_recorded(store: Store, asked: str) -> JobRecord:
    """Return the job of that Slurm job id, uid or name; the latest job where Slurm used an id again.

    Raises:
        JobNotFoundError: no job, or more than one job, has that name.
    """
    found = store.find_jobs(asked)
    exact = [job for job in found if asked in (job.uid, job.slurm_job_id)]
    if exact:
        return exact[0]
    if len(found) != 1:
        several = f"several jobs match {asked!r}: {listed([job.slurm_job_id for job in found], _LISTED_IDS)}"
        raise JobNotFoundError(several if found else f"no job {asked!r} in {store.path}")
    return found[0]
