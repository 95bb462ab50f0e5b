"""The page Queue: live jobs, filtered, sorted and cut into pages by the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.presentation.formatting import expected_text, gpus_text, progress_text
from metasched.shared_dir.published_status import JobStatus
from metasched.web import query
from metasched.web.site import API, Page, json_response, site_of, wants_fragment
from metasched.web.text import tone
from metasched.web.visible_jobs import VisibleJobs

ROWS = 50
"""Jobs of one page."""
STATES = ("running", "waiting", "stopping", "suspended")
"""States that can be asked for; held and queued jobs are ``waiting``."""
_WAITING = ("held", "queued")
_LAST = float("inf")

_Key = Callable[[JobStatus], Any]
SORTS: Mapping[str, _Key] = {
    "place": lambda job: (not job.nodes, _place(job), job.submitted, job.uid),
    "waited": lambda job: (-job.waited_seconds, job.uid),
    "ran": lambda job: (-job.ran_seconds, job.uid),
    "gpus": lambda job: (-job.max_gpus, -sum(job.nodes.values()), job.uid),
    "submitted": lambda job: (-job.submitted, job.uid),
    "user": lambda job: (job.user, job.submitted, job.uid),
    "name": lambda job: (job.name, job.submitted, job.uid),
}
"""Orders by name; every order is total, so that no job is on two pages."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a viewer asks the queue for; empty values ask for everything.

    Attributes:
        text: part of a job's name, Slurm job id or uid.
        user: a user's name.
        account: a Slurm account.
        state: one of ``STATES``.
        sort: one of ``SORTS``.
        page: number of the page, from 1.
    """

    text: str = ""
    user: str = ""
    account: str = ""
    state: str = ""
    sort: str = "place"
    page: int = 1

    @classmethod
    def of(cls, request: Request) -> Filter:
        """The filter of a query string."""
        return cls(
            text=query.text(request, "q"),
            user=query.text(request, "user"),
            account=query.text(request, "account"),
            state=query.choice(request, "state", STATES, ""),
            sort=query.choice(request, "sort", tuple(SORTS), "place"),
            page=query.number(request, "page", 1),
        )

    def accepts(self, job: JobStatus) -> bool:
        """Whether a job is asked for."""
        return (
            (not self.user or job.user == self.user)
            and (not self.account or job.account == self.account)
            and (not self.state or state_of(job) == self.state)
            and (not self.text or self._has_text(job))
        )

    def query(self, **changes: Any) -> dict[str, Any]:
        """The query of this filter with some values changed, without those that are the default."""
        values: dict[str, Any] = {
            "q": self.text,
            "user": self.user,
            "account": self.account,
            "state": self.state,
            "sort": self.sort,
        }
        values |= {"page": self.page, **changes}
        defaults = {"sort": "place", "page": 1}
        return {name: value for name, value in values.items() if value and value != defaults.get(name)}

    def _has_text(self, job: JobStatus) -> bool:
        wanted = self.text.casefold()
        return wanted in job.name.casefold() or wanted in job.slurm_job_id or wanted == job.uid


@dataclass(frozen=True, slots=True)
class Found:
    """The jobs of one page.

    Attributes:
        jobs: the page's jobs.
        total: number of jobs that the filter accepts, on all pages.
        visible: number of live jobs that the viewer may see.
        page: the page's number, from 1; the last one where a later one was asked for.
        pages: number of pages, at least 1.
    """

    jobs: Sequence[JobStatus]
    total: int
    visible: int
    page: int
    pages: int


def find(jobs: VisibleJobs, wanted: Filter, rows: int = ROWS) -> Found:
    """The jobs of one page, of those that the viewer may see, as the viewer may see them. Pure."""
    accepted = sorted(filter(wanted.accepts, jobs.live), key=SORTS[wanted.sort])
    shown, page, pages = query.page_of(accepted, wanted.page, rows)
    return Found([jobs.seen(job) for job in shown], len(accepted), len(jobs.live), page, pages)


def state_of(job: JobStatus) -> str:
    """The job's state as one of ``STATES``; another one as Slurm names it."""
    return "waiting" if job.status in _WAITING else job.status


def public_fields(job: JobStatus) -> dict[str, Any]:
    """What JSON has of a job as its viewer may see it."""
    return {
        "uid": job.uid,
        "slurm_job_id": job.slurm_job_id,
        "name": job.name,
        "user": job.user,
        "account": job.account,
        "state": state_of(job),
        "status": job.status,
        "place": job.place,
        "gpus": job.gpus,
        "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus,
        "gpu_type": job.gpu_type,
        "nodes": dict(job.nodes),
        "submitted": job.submitted,
        "run_started": job.run_started,
        "finished": job.finished,
        "runs": job.runs,
        "preemptions": job.preemptions,
        "waited_seconds": job.waited_seconds,
        "ran_seconds": job.ran_seconds,
        "attained_service": job.attained_service,
        "reason": job.error or job.reason,
        "reason_code": job.reason_code,
        "app": job.app,
        "total_steps": job.total_steps,
        "progress_steps": job.progress_steps,
        "steps_per_second": job.steps_per_second,
        "loss": job.loss,
        "rho": job.rho,
        "forecast": None if job.forecast is None else asdict(job.forecast),
    }


def _place(job: JobStatus) -> float:
    return _LAST if job.place is None else job.place


def _page(request: Request) -> Response:
    site, wanted = site_of(request), Filter.of(request)
    view = site.view(request)
    found = find(view.jobs, wanted)
    rows = [
        {
            "job": job,
            "state": state_of(job),
            "place": job.place,
            "expected": expected_text(job, view.now),
            "gpus": gpus_text(job),
            "progress": progress_text(job),
            "tone": tone(job.uid),
            "is_own": view.viewer.owns(job),
        }
        for job in found.jobs
    ]
    template = "queue_table.html" if wants_fragment(request) else "queue.html"
    return site.render(
        request,
        template,
        view,
        wanted=wanted,
        found=found,
        rows=rows,
        states=STATES,
        sorts=SORTS,
        users=sorted({job.user for job in view.jobs.live})[:_MOST_CHOICES],
        deferred=[one for one in (view.status.deferred if view.status else ()) if view.viewer.may_see_user(one.user)][
            :_MOST_DEFERRED
        ],
        accounts=sorted({job.account for job in view.jobs.live if job.account})[:_MOST_CHOICES],
    )


_MOST_DEFERRED = 5  # notices of jobs that are not taken in
_MOST_CHOICES = 200  # users or accounts that the filter suggests


def _json(request: Request) -> Response:
    wanted = Filter.of(request)
    view = site_of(request).view(request)
    found = find(view.jobs, wanted)
    return json_response(
        request,
        "queue",
        {
            "published": view.status.published if view.status else None,
            "problem": view.warning,
            "total": found.total,
            "page": found.page,
            "pages": found.pages,
            "jobs": [public_fields(job) for job in found.jobs],
        },
    )


PAGE = Page(
    routes=[Route("/queue", _page, name="queue"), Route(f"{API}/queue", _json)], label="Queue", path="/queue", order=20
)
