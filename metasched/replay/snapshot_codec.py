"""Snapshots as bytes: the input of each recorded round is kept in the store, so that ``replay`` can decide it again.

Only fields that differ from their default are written, so that snapshots stay readable when fields with defaults are
added. Speeds are written where they are measured (``MeasuredSpeed``); a simulation's own speeds are left out.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from metasched.core.apps import App, Bracket, Phase, TrialOrder, TunerSettings
from metasched.core.batching import Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.core.errors import MetaschedError
from metasched.core.model import Job, Placement, Snapshot
from metasched.core.reasons import from_json, to_json
from metasched.throughput.measured_speed import MeasuredSpeed

FORMAT = 2
_SNAPSHOT_NAMES = {"limits": "quotas", "worked": "precomputed"}
"""Today's names of snapshot fields, by their names in format 1."""
_JOB_NAMES = {
    "address": "slurm_job_id",
    "share": "fair_share",
    "shares_with": "co_runner",
    "part": "half_gpus",
    "learns": "learns_speed",
    "trials": "profiled",
}
"""Today's names of job fields, by their names in format 1."""


_RECORDS = (
    *(Placement, Batching, BatchPlan, BatchRegime, GradientNoise),
    *(App, Bracket, Phase, TrialOrder, TunerSettings),
)
"""Records inside nodes, jobs, quotas and snapshots."""


class CodecError(MetaschedError):
    """The bytes are not a snapshot that this version can read."""


_NOT_A_SNAPSHOT = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class _Speeds(NamedTuple):
    """The measured speeds of one job: at its present batch, and by batch."""

    present: MeasuredSpeed | None
    by_batch: dict[int, MeasuredSpeed]


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot as compressed JSON, for ``decode``."""
    return SnapshotEncoder().encode(snapshot)


class SnapshotEncoder:
    """Encodes successive snapshots; a job that is the same object as in the one before is not encoded again.

    Args:
        reuses: whether texts of jobs are reused at all.
    """

    def __init__(self, *, reuses: bool = True) -> None:
        self._reuses = reuses
        self._known: dict[str, _EncodedJob] = {}  # by uid

    def encode(self, snapshot: Snapshot) -> bytes:
        """The snapshot as compressed JSON, for ``decode``."""
        known = self._known if self._reuses else {}
        self._known = {
            job.uid: found if (found := known.get(job.uid)) is not None and found.job is job else _EncodedJob.of(job)
            for job in snapshot.jobs
        }
        written: set[tuple[str, int]] = set()
        jobs = [one.text(written) for one in self._known.values()]
        facts = _changed_fields(snapshot)
        del facts["jobs"]
        facts["nodes"] = [_changed_fields(node) for node in snapshot.nodes]
        facts["quotas"] = [_changed_fields(quota) for quota in snapshot.quotas]
        text = _dumps({"format": FORMAT, "snapshot": facts})
        return zlib.compress(f'{text[:-2]},"jobs":[{",".join(jobs)}]}}}}'.encode(), level=1)


@dataclasses.dataclass(frozen=True, slots=True)
class _EncodedJob:
    """The JSON of a job.

    Attributes:
        job: the job.
        fields: the JSON of all fields but speeds, without the closing brace.
        speed: the JSON of its speed; "" where the speed is not measured.
        speed_key: the JSON of the key of its speed; "" where the speed is not measured.
    """

    job: Job
    fields: str
    speed: str
    speed_key: str

    @classmethod
    def of(cls, job: Job) -> _EncodedJob:
        """Return a job's JSON in the parts that ``text`` joins, where earlier jobs may have the same speed."""
        facts = _changed_fields(job)
        facts.pop("speed", None)
        facts.pop("batch_speeds", None)
        if "blocked" in facts:
            facts["blocked"] = to_json(facts["blocked"])
        fields = _dumps(facts)[:-1]
        if not isinstance(job.speed, MeasuredSpeed):
            return cls(job, fields, "", "")
        return cls(job, fields, _dumps(job.speed.to_json()), _dumps(job.speed.key))

    def text(self, written: set[tuple[str, int]]) -> str:
        """The JSON of the whole job; a speed by its key where an earlier job has the same.

        Args:
            written: the keys of the speeds of earlier jobs, to which those of this job are added.
        """
        speed, text = self.job.speed, self.fields
        if isinstance(speed, MeasuredSpeed):
            text += f',"speed":{self.speed_key if speed.key in written else self.speed}'
            written.add(speed.key)
        if self.job.batch_speeds:
            measured = [(batch, one) for batch, one in self.job.batch_speeds.items() if isinstance(one, MeasuredSpeed)]
            shared = []
            for batch, one in measured:
                shared.append([batch, one.key if one.key in written else one.to_json()])
                written.add(one.key)
            text += f',"batch_speeds":{_dumps(shared)}' if shared else ""
        return text + "}"


def decode(data: bytes) -> Snapshot:
    """The snapshot that ``encode`` was given, in this version or (format 1) in the one before.

    Raises:
        CodecError: the bytes are not a snapshot, or one of a newer version.
    """
    try:
        content = json.loads(zlib.decompress(data))
        if content["format"] not in (1, FORMAT):
            raise CodecError(f"format {content['format']!r} is another version's; this one reads 1 and {FORMAT}")
        facts = content["snapshot"]
        if content["format"] == 1:
            facts = _renamed(facts, _SNAPSHOT_NAMES)
            facts["jobs"] = [_renamed(job, _JOB_NAMES) for job in facts["jobs"]]
        speeds = _read_speeds_and_reasons(facts["jobs"])
        snapshot = msgspec.convert(facts, Snapshot)
    except (*_NOT_A_SNAPSHOT, msgspec.MsgspecError, zlib.error) as error:
        raise CodecError(f"a stored snapshot cannot be read: {error!r}") from error
    return dataclasses.replace(snapshot, jobs=tuple(map(_with_speeds, snapshot.jobs, speeds)))


def _changed_fields(record: Any) -> dict[str, Any]:
    """The fields of a record whose values are not the default."""
    kind: Any = type(record)
    names, values_of, defaults = _fields(kind)
    return {
        name: value
        for name, value, default in zip(names, values_of(record), defaults, strict=True)
        if value is not default and (value if default is _EMPTY else value != default)
    }


_REQUIRED = object()  # equal to no value
_EMPTY = object()  # stands for the default that a factory makes, which is empty
_NO_DEFAULT = dataclasses.MISSING, msgspec.NODEFAULT  # of dataclasses, of structs


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[object, ...]], tuple[object, ...]]:
    """The names of the fields of a kind of records, a function that returns their values, and their defaults."""
    fields: Any = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind)
    names = tuple(field.name for field in fields)
    defaults = tuple(
        _EMPTY
        if field.default_factory not in _NO_DEFAULT
        else _REQUIRED
        if field.default in _NO_DEFAULT
        else field.default
        for field in fields
    )
    return names, operator.attrgetter(*names), defaults


def _as_json(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, _RECORDS):
        return _changed_fields(value)
    raise TypeError(f"a {type(value).__name__} is not part of a snapshot")


# The json module, unlike msgspec, writes infinite time limits, and a policy's integers beyond 64 bits.
_dumps = json.JSONEncoder(default=_as_json, separators=(",", ":")).encode


def _read_speeds_and_reasons(jobs: list[dict[str, Any]]) -> list[_Speeds]:
    """Take each job's speeds out of its JSON, one object for each key, and read its reason.

    Older versions wrote reasons as sentences, and a speed's key as its subject.
    """
    known: dict[tuple[str, int], MeasuredSpeed] = {}

    def read(speed: Any) -> MeasuredSpeed:
        """Return the speed that is written out, or that an earlier job has under the written key."""
        if isinstance(speed, dict):
            first = MeasuredSpeed.from_json(speed)
            return known.setdefault(first.key, first)
        return known[speed, 0] if isinstance(speed, str) else known[speed[0], speed[1]]

    speeds = []
    for facts in jobs:
        speed = facts.pop("speed", None)
        present = None if speed is None else read(speed)
        speeds.append(_Speeds(present, {batch: read(one) for batch, one in facts.pop("batch_speeds", ())}))
        if facts.get("blocked") is not None:
            facts["blocked"] = from_json(facts["blocked"])
    return speeds


def _with_speeds(job: Job, speeds: _Speeds) -> Job:
    if speeds.present is None and not speeds.by_batch:
        return job
    return job.evolve(speed=speeds.present, batch_speeds=speeds.by_batch)


def _renamed(facts: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a record of format 1 under today's names."""
    return {names.get(name, name): value for name, value in facts.items()}
