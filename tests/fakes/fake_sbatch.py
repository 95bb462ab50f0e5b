"""The part of sbatch's command line that the fake Slurm understands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from metasched.core.model import Hold
from metasched.slurm import field_parsers
from metasched.slurm.client import JobState, SlurmJob
from metasched.slurm.errors import SlurmCommandError

MIB = 2**20

_SHORT = {
    "-H": "hold",
    "-N": "nodes",
    "-n": "ntasks",
    "-c": "cpus-per-task",
    "-J": "job-name",
    "-p": "partition",
    "-q": "qos",
    "-A": "account",
    "-t": "time",
    "-C": "constraint",
    "-w": "nodelist",
    "-d": "dependency",
    "-o": "output",
    "-a": "array",
}
_FLAGS = frozenset({"hold", "exclusive", "requeue", "no-requeue"})
_KNOWN = (
    frozenset(_SHORT.values())
    | _FLAGS
    | {
        "gres",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "ntasks-per-node",
        "cpus-per-gpu",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "comment",
        "begin",
        "open-mode",
        "error",
        "signal",
        "reservation",
    }
)


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """Return sbatch's options by their long names; of two equal options the later one counts, as in sbatch."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            name, equals, value = "--" + _SHORT.get(word[:2], "?"), word[2:], word[2:]
        name = name.removeprefix("--")
        if name not in _KNOWN:
            raise SlurmCommandError(f"sbatch: unrecognized option {word!r}")
        found[name] = "" if name in _FLAGS else value if equals else next(rest)
    return found


def _gpu(options: Mapping[str, str], key: str) -> str:
    return f"gpu:{options[key]}" if key in options else ""


def _memory(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([KMGT]?)", text)
    if not match:
        raise SlurmCommandError(f"sbatch: Invalid memory specification {text!r}")
    return int(match[1]) * {"K": 2**10, "": MIB, "M": MIB, "G": 2**30, "T": 2**40}[match[2]]


def _begin(options: Mapping[str, str], now: float) -> float | None:
    if "begin" not in options:
        return None if {"hold", "dependency"} & set(options) else now
    match = re.fullmatch(r"now\+([0-9]+)", options["begin"])
    if not match:
        raise SlurmCommandError(f"sbatch: the fake understands --begin=now+SECONDS, not {options['begin']!r}")
    return now + int(match[1])


def pending_job(job_id: int, options: Mapping[str, str], *, name: str, user: str, now: float) -> SlurmJob:
    """Return the record of a job that was just submitted."""
    per_node = {**field_parsers.gpus(options.get("gres", "")), **field_parsers.gpus(_gpu(options, "gpus-per-node"))}
    total, per_task = field_parsers.gpus(_gpu(options, "gpus")), field_parsers.gpus(_gpu(options, "gpus-per-task"))
    shards = field_parsers.shards(options.get("gres", ""))
    types = sorted({kind for request in (per_node, total, per_task, shards) for kind in request if kind})
    first, _, last = options.get("nodes", "1").partition("-")
    tasks_per_node = int(options.get("ntasks-per-node", "0"))
    tasks = int(options.get("ntasks", int(first) * max(tasks_per_node, 1)))
    nodes = max(int(first), -(-tasks // tasks_per_node) if tasks_per_node else 1)
    nodes_max = int(last or first) if "nodes" in options else None
    held = "hold" in options
    memory = {key: _memory(options[key]) for key in ("mem", "mem-per-cpu", "mem-per-gpu") if key in options}
    waits = "BeginTime" if "begin" in options else "Dependency" if "dependency" in options else "None"
    return SlurmJob(
        slurm_job_id=str(job_id),
        job_id=job_id,
        array_job_id=None,
        array_task_id=None,
        name=options.get("job-name", name),
        user=user,
        account=options.get("account", ""),
        partition=options.get("partition", "main"),
        qos=options.get("qos", ""),
        comment=options.get("comment", ""),
        admin_comment="",
        state=JobState.PENDING,
        slurm_state="PENDING",
        reason="JobHeldUser" if held else waits,
        hold=Hold.USER if held else Hold.NONE,
        submitted=now,
        eligible=_begin(options, now),
        started=None,
        ended=None,
        time_limit=float(options["time"]) * 60 if "time" in options else None,
        nodes_requested=nodes,
        tasks=tasks,
        cpus=tasks * int(options.get("cpus-per-task", "1")),
        gpus_per_node=sum(per_node.values()) or None,
        gpus_total=sum(total.values()) or None,
        gpus_per_task=sum(per_task.values()) or None,
        gpu_type=types[0] if len(types) == 1 else None,
        gpu_types=tuple(types),
        memory_per_node=memory.get("mem"),
        memory_per_cpu=memory.get("mem-per-cpu", None if memory else 4000 * MIB),
        features=frozenset(filter(None, options.get("constraint", "").split("&"))),
        required_nodes=tuple(filter(None, options.get("nodelist", "").split(","))),
        exclusive="exclusive" in options,
        restarts=0,
        requeue="no-requeue" not in options,
        dependency=options.get("dependency", ""),
        exit_code=None,
        nodes_max=nodes_max,
        cpus_per_gpu=int(options["cpus-per-gpu"]) if "cpus-per-gpu" in options else None,
        memory_per_gpu=memory.get("mem-per-gpu"),
        shards_per_node=sum(shards.values()) or None,
        reservation=options.get("reservation", ""),
    )
