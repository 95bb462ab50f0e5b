"""Parsers of the jobs, nodes and reservations that ``squeue``, ``sinfo`` and ``scontrol`` print. Strict; pure.

A document of another form raises MalformedOutputError. For a single record of another form such an error is returned
with the good records, so that one malformed job hides no other. ``json_releases`` reads the values whose form differs
between Slurm releases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Generic, TypeVar

import msgspec

from metasched.core.model import Hold
from metasched.core.reuse import shared_text
from metasched.slurm import field_parsers, hostlist, json_releases
from metasched.slurm.client import JobState, Reservation, SlurmJob, SlurmNode
from metasched.slurm.command_runner import Buffer
from metasched.slurm.errors import MalformedOutputError

MIB = 2**20
T = TypeVar("T")

# Later words win over earlier ones: newer releases add flags such as CONFIGURING or COMPLETING to a base state.
_STATES: Mapping[str, JobState] = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.COMPLETING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "REVOKED": JobState.CANCELLED,
    "CANCELLED": JobState.CANCELLED,
    "PREEMPTED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "RESV_DEL_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "COMPLETING": JobState.COMPLETING,
}
_RANK = {word: rank for rank, word in enumerate(_STATES)}
_HOLDING = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
_REASONS = {"JobHeldAdmin": Hold.ADMIN, "JobHeldUser": Hold.USER}
_RESERVED = frozenset({"reserved", "maintenance", "maint"})
_NONE: frozenset[str] = frozenset()  # one object for all jobs
_IS_RESERVATION = re.compile(r"ReservationName=\S")
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "cloud", "dynamic_norm", "dynamic_future"})


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """The records that were read, and one error for each record that could not be read."""

    records: tuple[T, ...]
    errors: tuple[MalformedOutputError, ...]


def parse_jobs(document: str) -> Parsed[SlurmJob]:
    """Parse the output of ``squeue --json``."""
    return _parse(document, "squeue", "jobs", _label_job, _jobs)


def parse_job_record(data: Mapping[str, Any]) -> tuple[SlurmJob, ...]:
    """Return the jobs of one record with the fields of ``squeue --json``; raises MalformedOutputError."""
    return tuple(_jobs(_Fields(_label_job(data), data)))


class JobsParser:
    """Parses successive outputs of ``squeue --json``; a record whose text is unchanged gives the same objects."""

    def __init__(self) -> None:
        # By the hash of a record's text. Python keys it with a secret of the process, so that no user finds two alike.
        self._known: dict[int, tuple[SlurmJob, ...]] = {}

    def parse(self, document: Buffer, *, whole: bool = True) -> Parsed[SlurmJob]:
        """Parse an output as ``parse_jobs`` does.

        Args:
            document: the output.
            whole: whether it has all jobs; then the records of others are forgotten.
        """
        try:
            texts = msgspec.json.decode(document, type=_RawJobs).jobs
        except (msgspec.DecodeError, RecursionError):
            return parse_jobs(bytes(document).decode(errors="replace"))  # control characters, or no list of jobs
        records: list[SlurmJob] = []
        errors: list[MalformedOutputError] = []
        known = dict[int, tuple[SlurmJob, ...]]() if whole else self._known
        for text in texts:
            raw = bytes(text)
            digest = hash(raw)
            parsed = self._parse_record(raw, digest)
            if not parsed.errors:
                known[digest] = parsed.records
            records += parsed.records
            errors += parsed.errors
        self._known = known
        return Parsed(tuple(records), tuple(errors))

    def _parse_record(self, raw: bytes, digest: int) -> Parsed[SlurmJob]:
        found = self._known.get(digest)
        if found is not None:
            return Parsed(found, ())
        return parse_jobs(f'{{"jobs":[{raw.decode(errors="replace")}]}}')

    def forget_all_but(self, jobs: Iterable[SlurmJob]) -> None:
        """Forget the records of all jobs but these: outputs that do not have all jobs leave earlier records known."""
        present = set(map(id, jobs))
        self._known = {digest: found for digest, found in self._known.items() if id(found[0]) in present}

    def pick(self, document: Buffer, job_ids: Collection[str]) -> tuple[SlurmJob, ...] | None:
        """Parse the records of a few jobs in an output about all jobs, without reading the others.

        Args:
            document: the output, which Slurm indents by two spaces a level.
            job_ids: of jobs that are no array tasks.

        Returns:
            The jobs by ascending id; None where one of them is not found as a record of its own in that form, and where
            a record has a control character in a text.
        """
        found: list[SlurmJob] = []
        scans = MOST_SCANS
        for job_id in sorted(job_ids, key=int):
            # In texts, Slurm writes a line break as \n and a quote as \". Even if a line break slipped through, no text
            # would have this line, whose first quote ends a text. The braces found might be a text's then; but a record
            # from or to there has an open text, or one with a line break, which msgspec refuses.
            at = _find_by_halves(document, int(job_id))
            if at < 0 and (scans := scans - 1) >= 0:
                at = document.find(b"%b%d," % (_JOB_ID, int(job_id)))
            begin, end = document.rfind(b"\n    {\n", 0, max(at, 0) + 1), document.find(b"\n    }", max(at, 0))
            if min(at, begin, end) < 0:
                return None
            raw = bytes(document[begin + len(b"\n    ") : end + len(b"\n    }")])
            digest = hash(raw)
            try:
                msgspec.json.decode(raw)
                parsed = self._parse_record(raw, digest)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MalformedOutputError):
                return None
            if parsed.errors or [job.slurm_job_id for job in parsed.records] != [job_id]:
                return None
            self._known[digest] = parsed.records
            found += parsed.records
        return tuple(found)


_JOB_ID = b'\n      "job_id": '
SEARCHED_BYTES = 64 * 1024
"""Bytes of an output about all jobs that are searched for one job without halving them."""
MOST_SCANS = 4
"""Jobs that the search by halves missed and that are looked for in the whole output; with more, all are parsed."""


def _find_by_halves(document: Buffer, job_id: int) -> int:
    """Return where the line of a job's id begins in an output about all jobs; -1 where the search missed it.

    Slurm lists jobs in the order in which they came, mostly by ascending ids, so that few records of many are looked
    at. Tasks of arrays that have started have later ids than their neighbours, and lead the search astray.
    """
    begin, end = 0, len(document)
    while end - begin > SEARCHED_BYTES:
        middle = document.find(_JOB_ID, (begin + end) // 2, end)
        if middle < 0:
            end = (begin + end) // 2 + len(_JOB_ID)
            continue
        digits = bytes(document[middle + len(_JOB_ID) : middle + len(_JOB_ID) + 20]).partition(b",")[0]
        if not digits.isdigit():
            break
        if int(digits) <= job_id:
            begin = middle
        else:
            end = middle
    line = b"%b%d," % (_JOB_ID, job_id)
    return document.find(line, begin, end + len(line))


class _RawJobs(msgspec.Struct):
    jobs: list[msgspec.Raw]


class NodesParser:
    """Parses successive outputs about nodes; a node of which nothing has changed that is read is the same object.

    Slurm's JSON of a node also has its load and its free memory, which change all the time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], Parsed[SlurmNode]] = {}  # by the texts of the fields that are read

    def parse(self, document: str) -> Parsed[SlurmNode]:
        """Parse an output as ``parse_nodes`` does."""
        try:
            nodes = msgspec.json.decode(document, type=_RawNodes).nodes
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return parse_nodes(document)  # control characters, or no list of nodes
        known, found = dict[tuple[bytes, ...], Parsed[SlurmNode]](), list[Parsed[SlurmNode]]()
        for node in nodes:
            key = tuple(map(bytes, msgspec.structs.astuple(node)))
            parsed = self._known.get(key) or parse_nodes(f'{{"nodes":[{msgspec.json.encode(node).decode()}]}}')
            known[key] = parsed
            found.append(parsed)
        self._known = known
        return Parsed(
            tuple([record for parsed in found for record in parsed.records]),
            tuple([error for parsed in found for error in parsed.errors]),
        )


class _RawNode(msgspec.Struct, omit_defaults=True):
    """The fields of a node that are read (``_nodes``); an empty text stands for a missing field."""

    name: msgspec.Raw = msgspec.Raw()
    state: msgspec.Raw = msgspec.Raw()
    state_flags: msgspec.Raw = msgspec.Raw()
    gres: msgspec.Raw = msgspec.Raw()
    gres_used: msgspec.Raw = msgspec.Raw()
    cpus: msgspec.Raw = msgspec.Raw()
    real_memory: msgspec.Raw = msgspec.Raw()
    active_features: msgspec.Raw = msgspec.Raw()
    partitions: msgspec.Raw = msgspec.Raw()
    reservation: msgspec.Raw = msgspec.Raw()
    reason: msgspec.Raw = msgspec.Raw()
    reason_set_by_user: msgspec.Raw = msgspec.Raw()
    reason_changed_at: msgspec.Raw = msgspec.Raw()


class _RawNodes(msgspec.Struct):
    nodes: list[_RawNode]


def parse_nodes(document: str) -> Parsed[SlurmNode]:
    """Parse the output of ``sinfo --json`` or ``scontrol --json show nodes``."""
    return _parse(document, "sinfo", "nodes", lambda record: f"node {record.get('name')!a:.60}", _nodes)


def parse_reservations(text: str) -> Parsed[Reservation]:
    """Parse the output of ``scontrol -o show reservation`` with times in unix seconds (22.05 has no JSON of it)."""
    found: list[Reservation] = []
    errors: list[MalformedOutputError] = []
    for line in filter(_IS_RESERVATION.match, text.splitlines()):
        try:
            found.append(_reservation(line))
        except MalformedOutputError as error:
            errors.append(error)
    return Parsed(tuple(found), tuple(errors))


def _reservation(line: str) -> Reservation:
    data = {name: "" if value == "(null)" else value for name, value in field_parsers.fields(line).items()}
    fields = _Fields(f"reservation {data['ReservationName']!a:.60}", data)
    users = fields.get("Users", json_releases.words)
    return Reservation(
        name=data["ReservationName"],
        start=fields.get("StartTime", float, required=True),
        end=fields.get("EndTime", float, required=True),
        nodes=frozenset(fields.hosts("Nodes")),
        users=frozenset(user for user in users if not user.startswith("-")),
        barred_users=frozenset(user[1:] for user in users if user.startswith("-")),
        flags=frozenset(fields.get("Flags", json_releases.words)),
    )


class _Fields:
    """One JSON object; a failed look-up raises MalformedOutputError with the record and the field."""

    def __init__(self, label: str, data: Mapping[str, Any]) -> None:
        self.label, self._data = label, data

    def get(self, field: str, read: Callable[[Any], T], *, required: bool = False) -> T:
        """Read a field; a missing field reads like null unless it is required."""
        if required and self._data.get(field) is None:
            raise MalformedOutputError(self.label, field, "missing")
        try:
            return read(self._data.get(field))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            raise MalformedOutputError(self.label, field, f"{error} ({self._data.get(field)!a:.80})") from error

    def number(self, field: str) -> int | None:
        """Read a whole number; None for null, unset and infinite."""
        return self.get(field, json_releases.number)

    def count(self, field: str) -> int:
        """Read a number of at least 0 that must be there."""
        value = self.get(field, json_releases.number, required=True)
        if value is None or value < 0:
            raise MalformedOutputError(self.label, field, "not a number")
        return value

    def text(self, field: str) -> str:
        """Read a text; "" for null."""
        return self.get(field, json_releases.text)

    def shared_text(self, field: str) -> str:
        """Read a text that many records may have; it is one object for those of them that are read together."""
        return shared_text(self.text(field))

    def instant(self, field: str) -> float | None:
        """Read an instant in unix seconds; None where Slurm has 0, which means unset."""
        value = self.number(field)
        return float(value) if value else None

    def bytes(self, field: str) -> int | None:
        """Read an amount of memory, which Slurm has in MiB, in bytes; None for null, unset and infinite."""
        value = self.number(field)
        return None if value is None else value * MIB

    def gpus(self, field: str) -> dict[str, int]:
        """Read the numbers of GPUs by type in a text of generic resources."""
        return self.get(field, lambda value: field_parsers.gpus(json_releases.text(value)))

    def hosts(self, field: str) -> tuple[str, ...]:
        """Read the names in a host list (``n[1-3]``)."""
        return self.get(field, lambda value: tuple(hostlist.expand(json_releases.text(value))))

    def shards(self, field: str) -> dict[str, int]:
        """Read the numbers of shards by GPU type in a text of generic resources."""
        return self.get(field, lambda value: field_parsers.shards(json_releases.text(value)))


def _parse(
    document: str,
    command: str,
    key: str,
    label: Callable[[Mapping[str, Any]], str],
    read: Callable[[_Fields], list[T]],
) -> Parsed[T]:
    try:
        # strict=False: a control character that slipped through the writer must not hide all jobs.
        whole = json.loads(document, strict=False)
    except (ValueError, RecursionError) as error:
        raise MalformedOutputError(f"{command} --json", "", f"not JSON: {error}") from error
    if not isinstance(whole, Mapping) or not isinstance(whole.get(key), list):
        raise MalformedOutputError(f"{command} --json", key, "missing")
    records: list[T] = []
    errors: list[MalformedOutputError] = []
    for data in whole[key]:
        try:
            if not isinstance(data, Mapping):
                raise MalformedOutputError(f"{command} --json", key, "an entry is not an object")  # noqa: TRY301
            records += read(_Fields(label(data), data))
        except MalformedOutputError as error:
            errors.append(error)
    return Parsed(tuple(records), tuple(errors))


def _label_job(data: Mapping[str, Any]) -> str:
    return f"job {data.get('job_id')!a:.20}"


def _jobs(fields: _Fields) -> list[SlurmJob]:
    """Return the job of a record, or every task of an array record that is not split yet."""
    job = _job(fields)
    if job.state in _HOLDING:
        job = _with_allocation(job, fields)
    tasks = fields.get(
        "array_task_string", lambda value: field_parsers.array_tasks(json_releases.text(value)) if value else []
    )
    if job.array_task_id is not None or not tasks:
        return [job]
    return [replace(job, slurm_job_id=f"{job.array_job_id}_{task}", array_task_id=task) for task in tasks]


def _job(fields: _Fields) -> SlurmJob:
    """Return the job of a record without its allocation."""
    job_id = fields.count("job_id")
    array = fields.number("array_job_id") or None
    task = fields.number("array_task_id") if array else None
    slurm_state = "+".join(fields.get("job_state", json_releases.words, required=True))
    state = _state(fields, slurm_state)
    has_exit_code = state in _ENDED or "SPECIAL_EXIT" in slurm_state
    reason = fields.shared_text("state_reason")
    priority = fields.number("priority") or 0
    gpus_per_node, gpus_total = fields.gpus("tres_per_node"), fields.gpus("tres_per_job")
    gpus_per_task, shards_per_node = fields.gpus("tres_per_task"), fields.shards("tres_per_node")
    requests = (gpus_per_node, gpus_total, gpus_per_task, shards_per_node)
    types = sorted({kind for request in requests for kind in request if kind})
    tasks = fields.number("tasks") or 1
    return SlurmJob(
        slurm_job_id=str(job_id) if task is None else f"{array}_{task}",
        job_id=job_id,
        array_job_id=array,
        array_task_id=task,
        name=fields.shared_text("name"),
        user=fields.shared_text("user_name") or str(fields.count("user_id")),
        account=fields.shared_text("account"),
        partition=fields.shared_text("partition"),
        qos=fields.shared_text("qos"),
        comment=fields.shared_text("comment"),
        admin_comment=fields.text("admin_comment"),
        state=state,
        slurm_state=shared_text(slurm_state),
        reason=fields.shared_text("state_description") or reason,
        hold=_hold(state, priority, reason),
        submitted=float(fields.count("submit_time")),
        eligible=fields.instant("eligible_time"),
        started=None if state is JobState.PENDING else fields.instant("start_time"),
        ended=fields.instant("end_time") if state in _ENDED else None,
        time_limit=None if (minutes := fields.number("time_limit")) is None else minutes * 60.0,
        nodes_requested=_nodes_requested(fields, tasks),
        tasks=tasks,
        cpus=fields.number("cpus") or 1,
        gpus_per_node=_total(gpus_per_node),
        gpus_total=_total(gpus_total),
        gpus_per_task=_total(gpus_per_task),
        gpu_type=types[0] if len(types) == 1 else None,
        gpu_types=tuple(types),
        memory_per_node=fields.bytes("memory_per_node"),
        memory_per_cpu=fields.bytes("memory_per_cpu"),
        features=frozenset(fields.get("features", json_releases.words)) or _NONE,
        required_nodes=fields.hosts("required_nodes"),
        excluded_nodes=fields.hosts("excluded_nodes"),
        exclusive="none" in fields.get("shared", json_releases.words),
        restarts=fields.number("restart_cnt") or 0,
        requeue=fields.get("requeue", json_releases.flag),
        dependency=fields.shared_text("dependency"),
        exit_code=fields.get("exit_code", json_releases.exit_code) if has_exit_code else None,
        nodes_max=fields.number("max_nodes") or None,
        gpus_per_socket=_total(fields.gpus("tres_per_socket")),
        cpus_per_gpu=_total(fields.gpus("cpus_per_tres")),
        memory_per_gpu=None if (per := _total(fields.gpus("memory_per_tres"))) is None else per * MIB,
        het=bool(fields.number("het_job_id")),
        batch=fields.get("batch_flag", json_releases.flag),
        shards_per_node=_total(shards_per_node),
        reservation=fields.shared_text("resv_name"),
    )


def _nodes_requested(fields: _Fields, tasks: int) -> int:
    """Return the fewest nodes that the request allows.

    ``node_count`` of a pending job is Slurm's guess (2 for ``-n2 -c2 -w n3``). The TRES text has the requested number,
    but does not consider ``-n8 --ntasks-per-node=4``.
    """
    asked = re.search(r"(?:^|,)node=([0-9]{1,9})(?:,|$)", fields.text("tres_req_str"))
    per_node = fields.number("tasks_per_node") or 0
    return max(int(asked[1]) if asked else fields.number("node_count") or 1, ceil(tasks / per_node) if per_node else 1)


def _state(fields: _Fields, words: str) -> JobState:
    known = [word for word in words.split("+") if word in _STATES]
    if not known:
        raise MalformedOutputError(fields.label, "job_state", f"unknown state {words[:80]!a}")
    return _STATES[max(known, key=_RANK.__getitem__)]


def _hold(state: JobState, priority: int, reason: str) -> Hold:
    """Return the hold of a job: priority 0 of a pending job (a suspended one has it, too); the reason names its kind.

    A held job with another reason (a dependency, BeginTime) has a user's hold: Slurm shows an administrator's as
    JobHeldAdmin at once.
    """
    if state is not JobState.PENDING or priority:
        return Hold.NONE
    return _REASONS.get(reason, Hold.USER)


def _total(counts: Mapping[str, int]) -> int | None:
    return sum(counts.values()) or None


def _with_allocation(job: SlurmJob, fields: _Fields) -> SlurmJob:
    """Return the job with the resources that it holds on each node."""
    nodes = fields.get("job_resources", json_releases.allocation, required=True)
    details = fields.get("gres_detail", lambda value: [json_releases.text(item) for item in value or []])
    if details and len(details) != len(nodes):
        raise MalformedOutputError(fields.label, "gres_detail", f"{len(details)} entries for {len(nodes)} nodes")
    details = details or [""] * len(nodes)
    names = [name for name, _, _ in nodes]
    try:
        gpus = dict(zip(names, map(field_parsers.gpus, details), strict=True))
        shards = dict(zip(names, map(field_parsers.shards, details), strict=True))
        indices = dict(zip(names, map(field_parsers.gpu_indices, details), strict=True))
    except ValueError as error:
        raise MalformedOutputError(fields.label, "gres_detail", str(error)) from error
    total, cores = fields.count("cpus"), sum(cores for _, cores, _ in nodes)
    types = {kind for on_node in gpus.values() for kind in on_node}
    job = replace(
        job,
        # All shards of a job on one node are of one GPU, whether Slurm reports its index or not. Slurm prints shard:0
        # with the index of the job's GPU where the shards are configured as no_consume.
        allocated={name: max(len(indices[name]), 1) if shards[name] else sum(gpus[name].values()) for name in names},
        allocated_gpu_type=types.pop() if len(types) == 1 else None,
        gpu_indices={name: which for name, which in indices.items() if which},
        shards={name: sum(counts.values()) for name, counts in shards.items() if counts},
        # Cores are exclusive to a job, so its CPUs (threads) are spread like its cores.
        allocated_cpus={name: total * part // cores if cores else 0 for name, part, _ in nodes},
        allocated_memory={name: memory * MIB for name, _, memory in nodes},
    )
    if job.state is JobState.COMPLETING and not any(job.allocated.values()):
        return _with_requested_gpus(job)
    return job


def _with_requested_gpus(job: SlurmJob) -> SlurmJob:
    """Return a completing job with the GPUs of its request: Slurm reports none, though they are not free yet."""
    nodes = len(job.allocated)
    total = nodes if job.shards_per_node else job.gpus_total or (job.gpus_per_task or 0) * job.tasks
    return replace(
        job,
        allocated=dict.fromkeys(job.allocated, job.gpus_per_node or ceil(total / max(nodes, 1))),
        allocated_gpu_type=job.gpu_type,
        shards=dict.fromkeys(job.allocated, job.shards_per_node) if job.shards_per_node else {},
    )


def _nodes(fields: _Fields) -> list[SlurmNode]:
    name = fields.get("name", json_releases.text, required=True)
    states = [
        word.lower() for field in ("state", "state_flags") for word in fields.get(field, json_releases.words) if word
    ]
    if not states:
        raise MalformedOutputError(fields.label, "state", "missing")
    return [
        SlurmNode(
            name=name,
            gpus=(gpus := fields.gpus("gres")),
            cpus=fields.count("cpus"),
            memory=fields.count("real_memory") * MIB,
            accepts=all(state in _USABLE | _RESERVED for state in states),
            features=frozenset(fields.get("active_features", json_releases.words)),
            partitions=frozenset(fields.get("partitions", json_releases.words)),
            shards_per_gpu=sum(fields.shards("gres").values()) // max(sum(gpus.values()), 1),
            reserved=not _RESERVED.isdisjoint(states) or bool(fields.text("reservation")),
            reason=fields.text("reason"),
            reason_by=fields.text("reason_set_by_user") if fields.text("reason") else "",
            reason_at=fields.instant("reason_changed_at") if fields.text("reason") else None,
            gpus_allocated=sum(fields.gpus("gres_used").values()) if fields.text("gres_used") else None,
        )
    ]
