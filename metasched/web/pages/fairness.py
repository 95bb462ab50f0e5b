"""The page Fairness: GPU hours and rho by user, account or job in a window of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.core.finish_time_fairness import LIVE_DEFINITIONS
from metasched.store import Store
from metasched.store.gpu_hours import GpuHours, JobsOf
from metasched.web import query
from metasched.web.access import Viewer
from metasched.web.site import API, Page, Site, View, json_response, site_of
from metasched.web.time_window import Window

ROWS = 100
SUBJECTS = ("user", "account", "job")
_SPANS = ("1d", "7d", "30d")


@dataclass(frozen=True, slots=True)
class Rho:
    """Finish-time fairness of some jobs of one row: mean rho, largest rho, and the number of jobs with a rho."""

    mean: float
    worst: float
    rated: int


@dataclass(frozen=True, slots=True)
class FairnessRow:
    """One user, account or job.

    Attributes:
        name: of the user or account (None for jobs without one), or the job's name.
        uid: of a job; None for others.
        slurm_job_id: of a job; None for others.
        user: the owner of a job; None for others.
        jobs: jobs that held GPUs in the window.
        gpu_hours: GPU hours that they held in the window.
        part: these over all GPU hours that the viewer may see, in per cent.
        rho: of the jobs that ended in the window; None where not known.
        estimate: of the jobs that live, as if they went on as now; None where not known, and in windows of the past.
    """

    name: str | None
    uid: str | None
    slurm_job_id: str | None
    user: str | None
    jobs: int
    gpu_hours: float
    part: float
    rho: Rho | None
    estimate: Rho | None = None


@dataclass(frozen=True, slots=True)
class FairnessTable:
    """One page of the table: the rows with most GPU hours, the number of all rows, and the sum of their GPU hours."""

    window: Window
    by: str
    rows: Sequence[FairnessRow]
    total: int
    gpu_hours: float
    page: int
    pages: int


def read_fairness(request: Request, site: Site, view: View) -> FairnessTable:
    """The part of the table that a request asks for.

    Raises:
        StoreError: the database cannot be read.
    """
    window = Window.of(request, view.now, "1d", _SPANS)
    by = query.choice(request, "by", SUBJECTS, "user")
    viewer = view.viewer
    only = None if _sees_all(viewer) else JobsOf([viewer.user], sorted(viewer.accounts))
    with site.database.reading() as store:
        whole = store.gpu_hours_by_user(window.begin, window.end, view.now)
        each = visible(whole, viewer)
        total = sum(row.gpu_hours for row in each)
        if by == "job":
            found = store.gpu_hours_by_job(window.begin, window.end, view.now, ROWS, only)
            rows = [_job_row(row, total, _rho_of_job(store, row, view)) for row in found]
        else:
            rho = _rho_by(by, whole, viewer)
            estimates = _estimates_by(by, window, view)
            held = grouped(each, by)
            names = dict.fromkeys((*held, *estimates))
            rows = [_group_row(name, held.get(name, ()), total, rho.get(name), estimates.get(name)) for name in names]
    rows = sorted(rows, key=lambda row: (-row.gpu_hours, row.name or "", row.uid or ""))
    shown, page, pages = query.page_of(rows, query.number(request, "page", 1), ROWS)
    return FairnessTable(window, by, shown, len(rows), total, page, pages)


def _sees_all(viewer: Viewer) -> bool:
    return viewer.is_admin or not viewer.jobs_private


def visible(rows: Iterable[GpuHours], viewer: Viewer) -> list[GpuHours]:
    """The rows that a viewer may see: all, or under PrivateData the own ones and those of coordinated accounts."""
    return [row for row in rows if viewer.may_see_user(row.user) or row.account in viewer.accounts]


def grouped(rows: Iterable[GpuHours], by: str) -> dict[str | None, list[GpuHours]]:
    """The rows by user or by account."""
    found: dict[str | None, list[GpuHours]] = {}
    for row in rows:
        found.setdefault(row.user if by == "user" else row.account, []).append(row)
    return found


def _group_row(
    name: str | None, members: Sequence[GpuHours], total: float, rho: Rho | None, estimate: Rho | None
) -> FairnessRow:
    hours, jobs = sum(row.gpu_hours for row in members), sum(row.jobs for row in members)
    return FairnessRow(name, None, None, None, jobs, hours, _part(hours, total), rho, estimate)


def _job_row(row: GpuHours, total: float, rho: tuple[Rho | None, Rho | None]) -> FairnessRow:
    part = _part(row.gpu_hours, total)
    return FairnessRow(row.name, row.uid, row.slurm_job_id, row.user, 1, row.gpu_hours, part, *rho)


def _part(hours: float, total: float) -> float:
    return round(min(100.0, 100 * hours / total), 1) if total > 0 else 0.0


def _rho_by(by: str, rows: Sequence[GpuHours], viewer: Viewer) -> Mapping[str | None, Rho]:
    """Rho of the users or accounts that the viewer may see, by name, of the jobs that ended in the window."""
    found = {}
    for name, members in grouped(rows, by).items():
        sums = [row.rho for row in members if row.rho is not None]
        if sums and _may_see_sum(viewer, by, name):
            rated = sum(one.rated for one in sums)
            found[name] = Rho(sum(one.total for one in sums) / rated, max(one.worst for one in sums), rated)
    return found


def _estimates_by(by: str, window: Window, view: View) -> Mapping[str | None, Rho]:
    """Estimated rho of the live jobs of the users or accounts that the viewer may see, by name."""
    found: dict[str | None, list[float]] = {}
    for job in view.publication.jobs.values() if window.is_latest else ():
        if job.finished is None and job.rho is not None:
            found.setdefault(job.user if by == "user" else job.account, []).append(job.rho)
    return {
        name: Rho(fmean(values), max(values), len(values))
        for name, values in found.items()
        if _may_see_sum(view.viewer, by, name)
    }


def _may_see_sum(viewer: Viewer, group: str, name: str | None) -> bool:
    """Whether the viewer may see a mean over all jobs of a user or an account."""
    if _sees_all(viewer):
        return True
    return name == viewer.user if group == "user" else name in viewer.accounts


def _rho_of_job(store: Store, row: GpuHours, view: View) -> tuple[Rho | None, Rho | None]:
    """Rho of a job, for its owner and admins: the final one where it has ended, and the estimate while it lives."""
    if not view.viewer.may_see_details(row):
        return None, None
    uid = row.uid or ""
    job = view.publication.jobs.get(uid)
    if job is not None and job.finished is None:
        return None, None if job.rho is None else Rho(job.rho, job.rho, 1)
    ended = store.fairness(uid)
    rho = None if ended is None else ended.rho.get(LIVE_DEFINITIONS[0])
    return None if rho is None else Rho(rho, rho, 1), None


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    table = read_fairness(request, site, view)
    later = table.window.later(view.now)
    return site.render(request, "fairness.html", view, table=table, spans=_SPANS, subjects=SUBJECTS, later=later)


def _json(request: Request) -> Response:
    site = site_of(request)
    table = read_fairness(request, site, site.view(request))
    return json_response(
        request,
        "fairness",
        {
            "begin": table.window.begin,
            "end": table.window.end,
            "by": table.by,
            "gpu_hours": table.gpu_hours,
            "page": table.page,
            "pages": table.pages,
            "rows": [asdict(row) for row in table.rows],
        },
    )


PAGE = Page(
    routes=[Route("/fairness", _page, name="fairness"), Route(f"{API}/fairness", _json)],
    label="Fairness",
    path="/fairness",
    order=40,
)
