"""Which jobs belong to one app, and which of them are its trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metasched.apps.tuners.tuner import TunerError
from metasched.core.apps import TunerSettings
from metasched.core.model import Job
from metasched.core.retention import is_blocked_from_start


def app_uid(uid: str, user: str, app: str | None) -> str | None:
    """The uid of a job's app; None for an app of one. Apps of two users are two, whatever their names.

    Args:
        uid: the job's uid; of an array's task, ``<uid of the array>_<task>``.
        user: name of the job's owner.
        app: NAME of ``app=NAME`` in the job's tag, without slashes; None for none. It comes before the array.
    """
    if app is not None:
        return f"app:{user}/{app}"
    array, task, _ = uid.partition("_")
    return f"array:{array}" if task else None


def app_name(app: str, members: Sequence[Job]) -> str:
    """The name of an app: what its tags say, or the name of its first member."""
    return app.partition("/")[2] if app.startswith("app:") else members[0].name


def members_by_app(jobs: Iterable[Job]) -> Mapping[str, Sequence[Job]]:
    """The jobs of each app, in order of submission, by the app's uid; apps by their first submission.

    Args:
        jobs: live jobs, in any order. One without an app is an app of one, which has the job's uid.
    """
    found: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: (job.submitted, job.uid)):
        found.setdefault(job.app or job.uid, []).append(job)
    return found


def is_trial(job: Job) -> bool:
    """Whether a tuner may cap, hold and end the job: its tag names one, and it may start or has been started.

    A job that waits for its dependency, or for its owner, joins the search when it may start.
    """
    return job.tuner is not None and (job.run > 0 or not is_blocked_from_start(job))


def settings_of(members: Iterable[Job]) -> TunerSettings | None:
    """The one tuner that the tags of live members name; None where they name none.

    Raises:
        TunerError: they name several.
    """
    distinct = {job.tuner.tag: job.tuner for job in members if job.tuner is not None}
    if len(distinct) > 1:
        one, other, *_ = sorted(distinct)
        raise TunerError(f"its jobs' tags name different tuners, {one} and {other}: name the same one in all of them")
    return next(iter(distinct.values()), None)
