"""The pages of apps: trainings that search one thing together, their trials, phases, and why trials were ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.apps.app_state import AppRecord, read
from metasched.core.reason_words import words
from metasched.core.reasons import Reason
from metasched.shared_dir.published_status import AppStatus, JobStatus
from metasched.store import StoreError
from metasched.store.window_queries import JobLabel
from metasched.web import query
from metasched.web.access import OwnedJob
from metasched.web.pages.queue import state_of
from metasched.web.site import API, Page, Site, View, json_response, site_of

ROWS = 100
_STATES = 20  # of the apps' state that are searched for an app that is gone


@dataclass(frozen=True, slots=True)
class Owned:
    """The owner of an app and the account of one of its jobs, for the rules of access."""

    user: str
    account: str | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One member of an app.

    Attributes:
        uid: the job.
        label: its words; None where the store has no record of it.
        job: its published status; None for a job that ended long ago.
        gpu_seconds: GPU-seconds that it has received; None where not known.
        ended: why the tuner ended it; None for a trial that the tuner did not end.
        loss: its latest loss; None where not known, or not to be seen.
    """

    uid: str
    label: JobLabel | None
    job: JobStatus | None
    gpu_seconds: float | None
    ended: Reason | None
    loss: float | None

    @property
    def state(self) -> str:
        """The trial's state in one word, such as ``running`` or ``ended``."""
        if self.ended is not None:
            return "ended"
        if self.job is not None:
            return state_of(self.job)
        return "gone"


@dataclass(frozen=True, slots=True)
class AppDetails:
    """One app as a viewer may see it.

    Attributes:
        uid: of the app.
        name: of the app.
        user: its owner.
        status: its published status; None for an app whose members have all ended.
        first_submitted: unix seconds; None where not known.
        trials: its trials on this page, in order of submission.
        total: number of all its trials.
        page: number of the page.
        pages: number of pages.
        is_detailed: whether the viewer may see losses.
    """

    uid: str
    name: str
    user: str
    status: AppStatus | None
    first_submitted: float | None
    trials: Sequence[Trial]
    total: int
    page: int
    pages: int
    is_detailed: bool


def visible_apps(view: View) -> list[AppStatus]:
    """The published apps that the viewer may see, by owner and name."""
    apps = view.status.apps if view.status else ()
    of_visible = {job.app for job in (*view.jobs.finished, *view.jobs.live)}
    seen = (app for app in apps if app.uid in of_visible or view.viewer.may_see(Owned(app.user, None)))
    return sorted(seen, key=lambda app: (app.user, app.name, app.uid))


def find_app(request: Request, site: Site, view: View) -> AppDetails | None:
    """The app that a request asks for; None for one that does not exist or may not be seen.

    Raises:
        StoreError: the database cannot be read, and the status does not have the app.
    """
    uid = request.path_params["uid"]
    status = next((app for app in visible_apps(view) if app.uid == uid), None)
    record: AppRecord | None = None
    labels: Mapping[str, JobLabel] = {}
    members = [job for job in (*view.jobs.finished, *view.jobs.live) if job.app == uid]
    try:
        with site.database.reading() as store:
            found = (read(state).apps.get(uid) for state in store.apps_states(_STATES))
            record = next((one for one in found if one is not None), None)
            uids = record.entrants if record else []
            labels = store.job_labels([*uids, *(job.uid for job in members)])
    except StoreError:
        if status is None:
            raise
    uids = list(dict.fromkeys([*uids_of(record), *(job.uid for job in sorted(members, key=lambda job: job.submitted))]))
    user = status.user if status else next((label.user for one in uids if (label := labels.get(one))), None)
    if user is None:
        return None
    owners: Mapping[str, OwnedJob] = {**labels, **{job.uid: job for job in members}}
    owned = Owned(user, None)
    uids = [one for one in uids if view.viewer.may_see(owners.get(one, owned))]
    if not uids and not view.viewer.may_see(owned):
        return None
    shown, page, pages = query.page_of(uids, query.number(request, "page", 1), ROWS)
    ended = record.reasons if record else {}
    trials = [_trial(one, labels.get(one), record, ended.get(one), view) for one in shown]
    return AppDetails(
        uid=uid,
        name=status.name if status else uid.rpartition("/")[2],
        user=user,
        status=status,
        first_submitted=status.first_submitted if status else record.first_submitted if record else None,
        trials=trials,
        total=len(uids),
        page=page,
        pages=pages,
        is_detailed=view.viewer.may_see_details(owned),
    )


def uids_of(record: AppRecord | None) -> Sequence[str]:
    """The uids of an app's trials, in order of submission."""
    return record.entrants if record else ()


def _trial(uid: str, label: JobLabel | None, record: AppRecord | None, ended: Reason | None, view: View) -> Trial:
    job = view.publication.jobs.get(uid)
    known = record.trials.get(uid) if record else None
    attained = job.attained_service if job else known.attained if known else None
    shown = None if job is None else view.jobs.seen(job)
    owner = label or job
    told = None if ended is None or owner is None else view.jobs.reason(ended, owner)
    return Trial(uid, label, shown, attained, told, None if shown is None else shown.loss)


def _apps(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    apps = visible_apps(view)
    shown, page, pages = query.page_of(apps, query.number(request, "page", 1), ROWS)
    return site.render(request, "apps.html", view, apps=shown, total=len(apps), page=page, pages=pages)


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    found = find_app(request, site, view)
    if found is None:
        raise HTTPException(404)
    return site.render(request, "app.html", view, app=found, words_of=words)


def _apps_json(request: Request) -> Response:
    view = site_of(request).view(request)
    return json_response(request, "apps", {"apps": [asdict(app) for app in visible_apps(view)]})


def _json(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    found = find_app(request, site, view)
    if found is None:
        raise HTTPException(404)
    return json_response(
        request,
        "app",
        {
            "uid": found.uid,
            "name": found.name,
            "user": found.user,
            "status": asdict(found.status) if found.status else None,
            "page": found.page,
            "pages": found.pages,
            "trials": [public_trial(trial) for trial in found.trials],
        },
    )


def public_trial(trial: Trial) -> dict[str, Any]:
    """The fields of a trial in the JSON of its app."""
    return {
        "uid": trial.uid,
        "slurm_job_id": trial.label.slurm_job_id if trial.label else None,
        "name": trial.label.name if trial.label else None,
        "state": trial.state,
        "gpu_seconds": trial.gpu_seconds,
        "loss": trial.loss,
        "ended": None if trial.ended is None else words(trial.ended),
    }


PAGE = Page(
    routes=[
        Route("/apps", _apps, name="apps"),
        Route("/app/{uid:path}", _page, name="app"),
        Route(f"{API}/apps", _apps_json),
        Route(f"{API}/app/{{uid:path}}", _json),
    ],
    label="Apps",
    path="/apps",
    order=25,
)
