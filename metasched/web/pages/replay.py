"""The page Replay: a past round: what it decided and why, and which jobs held GPUs when it was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.core.model import Placement
from metasched.core.reason_words import words
from metasched.presentation.formatting import reason_fields, where
from metasched.store import RoundRecord, Store
from metasched.store.window_queries import JobLabel, RoundChange, RunSpan
from metasched.web import query
from metasched.web.site import API, Page, Site, View, json_response, site_of

ROWS = 50
"""Rows of each of the two tables."""
_MOST_HELD = 20_000
_INSTANT = 1e-3


@dataclass(frozen=True, slots=True)
class SeenChange:
    """A change of a round as a viewer may see it; ``label`` is None for another user's job, which is hidden."""

    change: RoundChange
    label: JobLabel | None

    @property
    def kind(self) -> str:
        """What changed, in a word or two."""
        before, granted = self.change.before, self.change.granted
        if before is None:
            return "waits" if granted is None else "starts"
        if granted is None:
            return "stops"
        if before == granted:
            return "goes on"
        if before.gpus == granted.gpus:
            return "moves"
        return "grows" if before.gpus < granted.gpus else "shrinks"


@dataclass(frozen=True, slots=True)
class PastRound:
    """One past round as a viewer may see it.

    Attributes:
        record: the round.
        first: number of the first stored round.
        last: number of the latest stored round.
        before: number of the round before; None for the first one.
        after: number of the round after; None for the latest one.
        changes: the changes of this page, those of resources first.
        total: number of all changes.
        moved: number of changes of resources.
        held: the runs that held resources at the round, those with most GPUs first, at most ``ROWS``.
        holders: number of all such runs.
        gpus: GPUs that all such runs held.
        page: number of the page of changes.
        pages: number of pages of changes.
    """

    record: RoundRecord
    first: int
    last: int
    before: int | None
    after: int | None
    changes: Sequence[SeenChange]
    total: int
    moved: int
    held: Sequence[tuple[RunSpan, JobLabel | None]]
    holders: int
    gpus: int
    page: int
    pages: int


def read_round(request: Request, site: Site, view: View) -> PastRound | None:
    """The round that a request asks for by number or instant, else the latest; None where no round is stored.

    Raises:
        StoreError: the database cannot be read.
    """
    with site.database.reading() as store:
        numbers = store.round_numbers()
        record = None if numbers is None else _asked(request, store, *numbers)
        if numbers is None or record is None:
            return None
        page = query.number(request, "page", 1, most=10_000)
        changes = store.round_changes(record.round, ROWS, (page - 1) * ROWS)
        pages = max(1, -(-changes.total // ROWS))
        if page > pages:
            page = pages
            changes = store.round_changes(record.round, ROWS, (page - 1) * ROWS)
        held = store.runs_between(record.at - _INSTANT, record.at, view.now, _MOST_HELD).runs
        most = sorted(held, key=lambda run: (-run.placement.gpus, run.started, run.uid))[:ROWS]
        uids = {change.uid for change in changes.changes} | {run.uid for run in most}
        labels = store.job_labels(uids)
        before, after = store.round_before(record.round), store.round_after(record.round)
    seen = {uid: label for uid, label in labels.items() if view.viewer.may_see(label)}
    return PastRound(
        record=record,
        first=numbers[0],
        last=numbers[1],
        before=None if before is None else before.round,
        after=None if after is None else after.round,
        changes=[_seen_change(change, seen.get(change.uid), view) for change in changes.changes],
        total=changes.total,
        moved=changes.moved,
        held=[(run, seen.get(run.uid)) for run in most],
        holders=len(held),
        gpus=sum(run.placement.gpus for run in held),
        page=page,
        pages=pages,
    )


def _seen_change(change: RoundChange, label: JobLabel | None, view: View) -> SeenChange:
    told = change if label is None else replace(change, reason=view.jobs.reason(change.reason, label))
    return SeenChange(told, label)


def _asked(request: Request, store: Store, first: int, last: int) -> RoundRecord | None:
    instant = query.instant(request, "at")
    if instant is not None:
        return store.round_at(instant)
    number = query.number(request, "round", last, least=first, most=last)
    return store.round_of(number) or store.round_before(number) or store.round_after(number)


def granted_text(placement: Placement | None) -> str:
    """A placement in words; "" for none."""
    return "" if placement is None else where(dict(placement.node_gpus))


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    past = read_round(request, site, view)
    return site.render(request, "replay.html", view, past=past, granted_text=granted_text, words_of=words)


def _json(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    past = read_round(request, site, view)
    data: dict[str, Any] = {"round": None}
    if past is not None:
        data = {
            "round": past.record.round,
            "at": past.record.at,
            "policy": past.record.policy,
            "decide_seconds": past.record.decide_seconds,
            "summary": dict(past.record.summary),
            "first": past.first,
            "last": past.last,
            "before": past.before,
            "after": past.after,
            "page": past.page,
            "pages": past.pages,
            "changes": [public_change(change) for change in past.changes],
            "holders": past.holders,
            "gpus": past.gpus,
            "held": [
                {
                    "uid": label.uid if label else None,
                    "gpus": run.placement.gpus,
                    "nodes": dict(run.placement.node_gpus),
                }
                for run, label in past.held
            ],
        }
    return json_response(request, "replay", data)


def public_change(seen: SeenChange) -> dict[str, Any]:
    """A change as JSON; of a hidden job, what everybody sees on the cluster: GPUs, and no names or reasons."""
    label, change = seen.label, seen.change
    facts: dict[str, Any] = {
        "uid": label.uid if label else None,
        "slurm_job_id": label.slurm_job_id if label else None,
        "user": label.user if label else None,
        "kind": seen.kind,
        "gpus_before": change.before.gpus if change.before else 0,
        "gpus": change.granted.gpus if change.granted else 0,
    }
    return facts if label is None else facts | reason_fields(change.reason)


PAGE = Page(
    routes=[Route("/replay", _page, name="replay"), Route(f"{API}/replay", _json)],
    label="Replay",
    path="/replay",
    order=50,
)
