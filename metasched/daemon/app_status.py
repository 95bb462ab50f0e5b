"""What `metasched status` shows of apps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from metasched.apps.app_state import read
from metasched.core.apps import App, AppsState
from metasched.core.model import Job
from metasched.core.reason_words import words
from metasched.shared_dir.published_status import AppStatus


def app_statuses(apps: Iterable[App], state: AppsState, jobs: Iterable[Job]) -> tuple[AppStatus, ...]:
    """The published status of apps.

    Args:
        apps: the live apps as of the latest round.
        state: the apps' state after that round.
        jobs: the live jobs.
    """
    live = Counter(job.app for job in jobs)
    records = read(state).apps
    return tuple([_status(app, len(records[app.uid].ended), live[app.uid]) for app in apps if app.uid in records])


def _status(app: App, ended: int, live: int) -> AppStatus:
    return AppStatus(
        uid=app.uid,
        name=app.name,
        user=app.user,
        tuner="" if app.tuner is None else app.tuner.tag.removeprefix("tuner="),
        phases=tuple((bracket.phase + 1, len(bracket.phases)) for bracket in app.brackets),
        live=live,
        ended=ended,
        first_submitted=app.first_submitted,
        attained_service=app.attained_service,
        problem="" if app.problem is None else words(app.problem),
        problem_code="" if app.problem is None else str(app.problem.code),
    )
