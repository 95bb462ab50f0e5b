"""Parser of the jobs that ``scontrol -d show job`` prints as text in Slurm 22.05. Strict; pure.

Slurm 22.05 has no JSON of single jobs, and its JSON of all costs eight times their text. A record has some 30 lines:

    JobId=7 JobName=train
       UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
       Priority=0 Nice=0 Account=lab QOS=normal
       ...

What users write (names, comments, directories, the network) may hold blanks, line breaks, and words like Slurm's own:

- Of each line only the fields in ``_READ`` are read, which come before any text of a user in their line, and of equal
  ones the first. A name is the rest of its line.
- Only a record whose lines begin with the keys of ``_LINES`` in their order, each once, is accepted. A line break in
  a name, a comment or a path brings a line that is out of order, or that stands twice.
- A line break in a directory may bring an ``AdminComment`` or a ``Comment`` where the job has none. The comment is the
  user's own to choose; an ``AdminComment`` must be confirmed by another source.
- Lines with other texts of users just before a line that is read (``TresBind``, ``ClusterFeatures``) are not accepted.
- A line break may also end a record early and begin another one. ``job_readers`` finds out which records there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from metasched.slurm import field_parsers, hostlist
from metasched.slurm.command_runner import Buffer

_IDS_WIDTH = 80  # characters that have the ids of a record
# The first key of each line, in the order of the lines; "?" marks those that not every record has.
_LINES = (
    "JobId", "HetJobIdSet?", "UserId", "Priority", "JobState", "Requeue", "DerivedExitCode", "RunTime", "SubmitTime",
    "AccrueTime", "ResizeTime?", "StartTime", "PreemptEligibleTime?", "SuspendTime", "Partition", "ReqNodeList",
    "NodeList", "BatchHost?", "NumNodes", "TRES", "Socks/Node", "JOB_GRES?", "Nodes?", "MinCPUsNode", "Features",
    "Reservation?", "OverSubscribe", "Command", "WorkDir", "AdminComment?", "SystemComment?", "Comment?", "StdErr?",
    "StdIn?", "StdOut?", "Switches?", "Power", "GresEnforceBind?", "CpusPerTres?", "MemPerTres?", "TresPerJob?",
    "TresPerNode?", "TresPerSocket?", "TresPerTask?", "MailUser?",
)  # fmt: skip
_RANK = {line.rstrip("?"): rank for rank, line in enumerate(_LINES)}
_REQUIRED = frozenset(line for line in _LINES if not line.endswith("?"))
_READ: Mapping[str, frozenset[str]] = {
    "JobId": frozenset({"JobId", "ArrayJobId", "ArrayTaskId", "HetJobId"}),
    "UserId": frozenset({"UserId"}),
    "Priority": frozenset({"Priority", "Account", "QOS"}),
    "JobState": frozenset({"JobState", "Reason", "Dependency"}),
    "Requeue": frozenset({"Requeue", "Restarts", "BatchFlag", "ExitCode"}),
    "RunTime": frozenset({"TimeLimit"}),
    "SubmitTime": frozenset({"SubmitTime", "EligibleTime"}),
    "StartTime": frozenset({"StartTime", "EndTime"}),
    "Partition": frozenset({"Partition"}),
    "ReqNodeList": frozenset({"ReqNodeList", "ExcNodeList"}),
    "NumNodes": frozenset({"NumNodes", "NumCPUs", "NumTasks"}),
    "TRES": frozenset({"TRES"}),
    "Socks/Node": frozenset({"NtasksPerN:B:S:C"}),
    "MinCPUsNode": frozenset({"MinMemoryNode", "MinMemoryCPU"}),
    "Features": frozenset({"Features"}),
    "Reservation": frozenset({"Reservation"}),
    "OverSubscribe": frozenset({"OverSubscribe"}),
    "CpusPerTres": frozenset({"CpusPerTres"}),
    "MemPerTres": frozenset({"MemPerTres"}),
    "TresPerJob": frozenset({"TresPerJob"}),
    "TresPerNode": frozenset({"TresPerNode"}),
    "TresPerSocket": frozenset({"TresPerSocket"}),
    "TresPerTask": frozenset({"TresPerTask"}),
}
"""The fields that are read of each line, by its first key."""
_COMMENTS = {"AdminComment": "admin_comment", "Comment": "comment"}
_GROUP = re.compile(r"(?:ArrayJobId|HetJobId)=([0-9]+)", re.ASCII)
_SIMPLE_REASON = re.compile(r"[A-Za-z]+", re.ASCII)
_CHANGING = re.compile(r"(\n   RunTime=|\n   AccrueTime=| LastSchedEval=)(?:[0-9:-]+|Unknown)")
_FORECAST = re.compile(r"\n   StartTime=(?:[0-9]+|Unknown) EndTime=(?:[0-9]+|Unknown) ")
_REASON_OF_HELD = re.compile(r"\n   Priority=0 .*\n   JobState=PENDING Reason=(\S+)")
_NUMBER = re.compile(r"([0-9]+)([KMGTP]?)(?:-[0-9]+[KMGTP]?)?", re.ASCII)  # of a range, the lower end
_UPPER = re.compile(r"[0-9]+[KMGTP]?-([0-9]+[KMGTP]?)", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_TIME_LIMIT = re.compile(r"(?:([0-9]+)-)?([0-9]+):([0-9]{2}):([0-9]{2})", re.ASCII)
_CODE = re.compile(r"([0-9]+):([0-9]+)", re.ASCII)
_UNLIMITED = frozenset({"UNLIMITED", "Partition_Limit"})


@dataclass(frozen=True, slots=True)
class Record:
    """Where one record is in an output.

    Attributes:
        job_id: its id; of a task of an array that is split off, its own.
        group_id: the id of its array, or of the first component of its heterogeneous job; "" for none.
        begin, end: positions of its text.
    """

    job_id: str
    group_id: str
    begin: int
    end: int

    def text(self, output: Buffer) -> str:
        """Return the text in the output."""
        return bytes(output[self.begin : self.end]).decode(errors="replace").rstrip()


def records(output: Buffer) -> Iterator[Record]:
    """Split an output into its records, among which a user's text may have put others."""
    begin = 0
    while begin < len(output):
        end = output.find(b"\n\nJobId=", begin)
        end = len(output) if end < 0 else end
        ids = bytes(output[begin : min(end, begin + _IDS_WIDTH)]).decode(errors="replace").split(" ")
        group = _GROUP.fullmatch(ids[1]) if len(ids) > 1 else None
        yield Record(ids[0].removeprefix("JobId="), group[1] if group else "", begin, end)
        begin = end + len(b"\n\n")


def lasting(text: str) -> str:
    """Return the text of a record without the times that change by themselves, of a pending job also forecasts."""
    masked = _CHANGING.sub(r"\1*", text)
    return _FORECAST.sub("*", masked) if "\n   JobState=PENDING " in text else masked


def hides_hold(text: str) -> bool:
    """Whether a description replaces the reason of a held job: only the reason tells who holds the job."""
    return not all(map(_SIMPLE_REASON.fullmatch, _REASON_OF_HELD.findall(text)))


def fields(text: str) -> Mapping[str, Any]:
    """Return a record as the fields that the JSON of squeue has; of a job that is not pending without its request.

    Raises:
        ValueError: the record has another form, or a text of its user looks like lines of Slurm's.
    """
    if hides_hold(text):
        raise ValueError("a description hides who holds the job")
    values: dict[str, str] = {}
    comments: dict[str, str] = {}
    nodes: list[Mapping[str, str]] = []
    for key, line in _lines(text):
        if key == "Nodes":
            nodes.append(field_parsers.fields(line))
        elif key in _COMMENTS:
            comments[_COMMENTS[key]] = line.partition("=")[2].removesuffix(" ")
        elif key in _READ:
            slurms, _, name = line.partition(" JobName=")
            values |= {one: value for one, value in field_parsers.fields(slurms).items() if one in _READ[key]}
            if key == "JobId":
                values["JobName"] = name
    return _as_json(values, nodes) | comments


def _lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a record with their first keys; raises ValueError where they are not Slurm's lines alone."""
    found = [(line.lstrip(" ").partition("=")[0], line) for line in text.split("\n")]
    last = -1
    for key, line in found:
        rank = _RANK.get(key, -1)
        if rank < last or (rank == last and key != "Nodes"):
            raise ValueError(f"an unexpected line: {line[:80]!a}")
        last = rank
    if missing := _REQUIRED.difference(key for key, _ in found):
        raise ValueError(f"lines are missing: {', '.join(sorted(missing))}")
    return found


def _as_json(values: Mapping[str, str], nodes: list[Mapping[str, str]]) -> dict[str, Any]:
    def word(key: str) -> str:
        """Return a field; "" where Slurm prints none."""
        value = values.get(key, "")
        return "" if value == "(null)" else value

    try:
        code, signal = map(int, _matched(_CODE, values["ExitCode"]))
        found: dict[str, Any] = {
            "job_id": int(values["JobId"]),
            "het_job_id": int(values.get("HetJobId", 0)),
            "array_job_id": int(values.get("ArrayJobId", 0)),
            "name": word("JobName"),
            "user_name": values["UserId"].rpartition("(")[0],
            "user_id": int(values["UserId"].rpartition("(")[2].removesuffix(")")),
            "account": word("Account"),
            "qos": word("QOS"),
            "partition": word("Partition"),
            "priority": int(values["Priority"]),
            "job_state": values["JobState"],
            **_reason(values["Reason"]),
            **_array(values),
            **_allocation(nodes),
            "dependency": word("Dependency"),
            "requeue": values["Requeue"] == "1",
            "restart_cnt": int(values["Restarts"]),
            "batch_flag": values["BatchFlag"] != "0",
            "exit_code": {"return_code": code, "signal": {"id": signal}},
            "time_limit": _minutes(values["TimeLimit"]),
            "submit_time": _instant(values["SubmitTime"]),
            "eligible_time": _instant(values["EligibleTime"]),
            "start_time": _instant(values["StartTime"]),
            "end_time": _instant(values["EndTime"]),
            "required_nodes": word("ReqNodeList"),
            "excluded_nodes": word("ExcNodeList"),
            "node_count": _number(values["NumNodes"]),
            "max_nodes": _number(upper[1]) if (upper := _UPPER.fullmatch(values["NumNodes"])) else 0,
            "cpus": _number(values["NumCPUs"]),
            "tasks": None if values["NumTasks"] == "N/A" else _number(values["NumTasks"]),
            "tasks_per_node": None if (per := values["NtasksPerN:B:S:C"].partition(":")[0]) == "*" else int(per),
            "tres_req_str": word("TRES"),
            "memory_per_node": _mebibytes(values.get("MinMemoryNode")),
            "memory_per_cpu": _mebibytes(values.get("MinMemoryCPU")),
            "features": word("Features"),
            "shared": "none" if values["OverSubscribe"] == "NO" else None,
            "resv_name": word("Reservation"),
            "cpus_per_tres": word("CpusPerTres"),
            "memory_per_tres": word("MemPerTres"),
            "tres_per_job": word("TresPerJob"),
            "tres_per_node": word("TresPerNode"),
            "tres_per_socket": word("TresPerSocket"),
            "tres_per_task": word("TresPerTask"),
        }
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    return found


def _reason(reason: str) -> dict[str, str]:
    """Return the reason or its description, of which Slurm prints one: the description with ``_`` for blanks."""
    if _SIMPLE_REASON.fullmatch(reason):
        return {"state_reason": reason}
    return {"state_reason": "", "state_description": reason.replace("_", " ")}


def _array(values: Mapping[str, str]) -> dict[str, Any]:
    tasks = values.get("ArrayTaskId", "")
    return {"array_task_id": int(tasks)} if tasks.isdecimal() else {"array_task_string": tasks}


def _allocation(nodes: list[Mapping[str, str]]) -> dict[str, Any]:
    """Return the allocation; Slurm prints nodes with the same CPUs and the same generic resources on one line."""
    if not nodes:
        return {}
    allocated, details = [], []
    for line in nodes:
        cpus = len(field_parsers.array_tasks(line["CPU_IDs"]))
        for name in hostlist.expand(line["Nodes"]):
            memory = {"allocated": _mebibytes(line["Mem"])}
            allocated.append({"name": name, "cpus": {"count": cpus}, "memory": memory})
            details.append(line.get("GRES", ""))
    return {"job_resources": {"nodes": {"allocation": allocated}}, "gres_detail": details}


def _matched(pattern: re.Pattern[str], value: str) -> tuple[str, ...]:
    match = pattern.fullmatch(value)
    if match is None:
        raise ValueError(f"not of the expected form: {value[:80]!a}")
    return match.groups(default="")


def _number(value: str) -> int:
    digits, unit = _matched(_NUMBER, value)
    return int(digits) * _UNITS[unit]


def _mebibytes(value: str | None) -> int | None:
    """Return an amount of memory, which has no unit where it is 0 or in MiB, and a unit from KiB up elsewhere."""
    if value is None:
        return None
    digits, unit = _matched(_NUMBER, value)
    return int(digits) * _UNITS[unit] // _UNITS["M"] if unit else int(digits)


def _instant(value: str) -> int:
    return 0 if value in ("Unknown", "N/A") else int(value)


def _minutes(value: str) -> int | None:
    if value in _UNLIMITED:
        return None
    days, hours, minutes, _ = _matched(_TIME_LIMIT, value)
    return (int(days or 0) * 24 + int(hours)) * 60 + int(minutes)
