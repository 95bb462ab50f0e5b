"""Events of jobs whose declared number of steps is contradicted, for their owners and for the admin."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from metasched.core.declared_work import WorkContradiction
from metasched.store import Store

_SAID: Mapping[WorkContradiction, str] = {
    WorkContradiction.PASSED: "it has done more steps than it declares, and goes on",
    WorkContradiction.OVERDUE: "it has run several times as long as its declared steps need at its reported speed",
    WorkContradiction.HISTORY: "earlier jobs of its name and script needed more than ten times the service of its "
    "declared steps",
}

log = structlog.get_logger()


def note_work_contradictions(store: Store, found: Mapping[str, WorkContradiction], now: float) -> None:
    """Record one event for each kind of contradiction of a job, and log it for the admin.

    Args:
        store: of the daemon.
        found: the contradictions of this poll, by uid.
        now: unix seconds.
    """
    for uid, kind in found.items():
        text = f"{_SAID[kind]}: its total_steps is not believed; declare the number of steps that it really does"
        if store.event_once(f"steps-{kind.value}", text, uid, at=now):
            job = store.require_job(uid)
            log.warning("declared_steps_contradicted", job=job.slurm_job_id, user=job.user, how=kind.value)
