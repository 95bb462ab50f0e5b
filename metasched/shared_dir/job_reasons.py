"""The reason of a published job, cut to what its reader may know of the job's measures and of other jobs. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from metasched.core.reason_words import words
from metasched.core.reasons import MEASURING, Code, Reason, from_json, to_text, without_measures, without_strangers

if TYPE_CHECKING:
    from metasched.shared_dir.published_status import JobStatus

_CUT = MEASURING.keys() | {str(Code.MARKET_ROUNDS)}


def reason_of(job: JobStatus) -> Reason:
    """Return why a job runs or waits."""
    return from_json({"code": job.reason_code, "facts": dict(job.reason_facts), "also": list(job.reason_also)})


def reason_fields(reason: Reason) -> dict[str, Any]:
    """Return the fields of ``JobStatus`` that tell a reason to programs."""
    return {
        "reason_code": str(reason.code),
        "reason_facts": dict(reason.facts),
        "reason_also": tuple([_read_json(to_text(other)) for other in reason.also]),
    }


@lru_cache(maxsize=1024)
def _read_json(text: str) -> Mapping[str, Any]:
    """Return a reason as JSON-compatible data, one object for the thousands of jobs that wait for the same reason.

    Args:
        text: the reason as JSON; the reason itself may hold facts that cannot be hashed.
    """
    found: dict[str, Any] = json.loads(text)
    return found


def public_reason(job: JobStatus) -> dict[str, Any]:
    """Return the fields of a job's reason as everybody may see them; empty where those of the job may be seen."""
    if job.reason_code not in _CUT and not any(other.get("code") in _CUT for other in job.reason_also):
        return {}
    told = without_measures(reason_of(job))
    return {"reason": words(told), **reason_fields(told)}


def without_other_jobs(job: JobStatus, uids: Collection[str], ids: Collection[str]) -> JobStatus:
    """Return a job that names no other jobs than those with known uids and Slurm job ids."""
    named = tuple(uid for uid in job.stopped_for if uid in uids)
    reason = reason_of(job)
    told = without_strangers(reason, ids)
    return msgspec.structs.replace(
        job,
        stopped_for=named,
        stopped_for_others=job.stopped_for_others + len(job.stopped_for) - len(named),
        co_runner=job.co_runner if job.co_runner in ids else None,
        reason=job.reason if told == reason else words(told),
        **reason_fields(told),
    )
