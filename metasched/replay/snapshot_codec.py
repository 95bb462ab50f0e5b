"""A snapshot as bytes: what the engine saw in a round, so that it can be decided again.

Only what differs from a field's default is written, so new fields with defaults leave old rounds readable. A job's
``speed`` is written where it is what real jobs' reports have told; a simulation's is its source's own, and is not.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from metasched.core.errors import MetaschedError
from metasched.core.model import Hold, Job, Node, Placement, Preempt, Quota, Snapshot, Status
from metasched.core.reasons import Reason, from_json, to_json
from metasched.throughput.online_speed import MeasuredSpeed

FORMAT = 2
_FORMER_NAMES = {  # of format 1
    "snapshot": {"limits": "quotas", "worked": "precomputed"},
    "job": {
        "address": "slurm_job_id",
        "share": "fair_share",
        "shares_with": "co_runner",
        "part": "half_gpus",
        "learns": "learns_speed",
        "trials": "profiled",
    },
}

_Read = Callable[[Any], Any]


class CodecError(MetaschedError):
    """The bytes are not a snapshot that this version can read."""


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot in few bytes."""
    facts = _fields(snapshot)
    facts["nodes"] = [_fields(node) for node in snapshot.nodes]
    facts["jobs"] = _jobs(snapshot)
    facts["quotas"] = [_fields(quota) for quota in snapshot.quotas]
    text = json.dumps({"format": FORMAT, "snapshot": facts}, default=_plain, separators=(",", ":"))
    return zlib.compress(text.encode(), level=1)


def decode(data: bytes) -> Snapshot:
    """What ``encode`` was given.

    Raises:
        CodecError: it is something else, or a newer version's.
    """
    try:
        content = json.loads(zlib.decompress(data))
        if content["format"] not in (1, FORMAT):
            raise CodecError(f"format {content['format']!r} is another version's; this one reads 1 and {FORMAT}")
        facts, jobs_facts = content["snapshot"], content["snapshot"].pop("jobs")
        if content["format"] == 1:
            facts = _renamed(facts, "snapshot")
            jobs_facts = [_renamed(job, "job") for job in jobs_facts]
        nodes = tuple(Node(**_read(node, _NODE)) for node in facts.pop("nodes"))
        speeds: dict[str, MeasuredSpeed] = {}
        jobs = tuple(Job(**_read(job, _JOB | {"speed": _speed(speeds)})) for job in jobs_facts)
        quotas = tuple(Quota(**_read(quota, _QUOTA)) for quota in facts.pop("quotas", ()))
        return Snapshot(nodes=nodes, jobs=jobs, quotas=quotas, **facts)
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise CodecError(f"a stored snapshot cannot be read: {error!r}") from error


def _jobs(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The jobs; a speed that several have is written once, and the others name its subject."""
    written: set[str] = set()
    found = [_fields(job) for job in snapshot.jobs]
    for facts in found:
        if (speed := facts.get("speed")) is not None:
            facts["speed"] = speed.subject if speed.subject in written else speed
            written.add(speed.subject)
        if (blocked := facts.get("blocked")) is not None:
            facts["blocked"] = to_json(blocked)
    return found


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a record that are not what they are by default."""
    found = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        foreign = field.name == "speed" and not isinstance(value, MeasuredSpeed)
        if foreign or (field.default is not dataclasses.MISSING and value == field.default):
            continue
        if field.default_factory is not dataclasses.MISSING and not value:
            continue
        found[field.name] = value
    return found


def _plain(value: object) -> Any:
    if isinstance(value, (Status, Hold, Preempt)):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Placement):
        return _fields(value)
    if isinstance(value, MeasuredSpeed):
        return value.to_json()
    raise TypeError(f"a {type(value).__name__} is not part of a snapshot")


def _renamed(facts: Mapping[str, Any], record: str) -> dict[str, Any]:
    """The fields of a record of format 1 under their present names."""
    return {_FORMER_NAMES[record].get(name, name): value for name, value in facts.items()}


def _read(facts: dict[str, Any], readers: Mapping[str, _Read]) -> dict[str, Any]:
    return {name: readers[name](value) if name in readers else value for name, value in facts.items()}


def _speed(known: dict[str, MeasuredSpeed]) -> _Read:
    """A reader that gives jobs with one speed one object, as they had it."""

    def read(facts: Any) -> MeasuredSpeed:
        if isinstance(facts, str):
            return known[facts]
        return known.setdefault(facts["subject"], MeasuredSpeed.from_json(facts))

    return read


def _reason(data: Any) -> Reason | None:
    """A reason; format 1 has a sentence in its place."""
    return None if data is None else from_json(data)


def _placement(facts: Any) -> Placement | None:
    if facts is None:
        return None
    found: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in facts.items()}
    return Placement(**found)


_NODE: Mapping[str, _Read] = {"features": frozenset, "partitions": frozenset}
_QUOTA: Mapping[str, _Read] = {"members": frozenset}
_JOB: dict[str, _Read] = {
    "gpu_types": tuple,
    "features": frozenset,
    "only_nodes": frozenset,
    "excluded_nodes": frozenset,
    "preempt": Preempt,
    "status": Status,
    "hold": Hold,
    "placement": _placement,
    "last_placement": _placement,
    "released": _placement,
    "blocked": _reason,
}
