"""Text and numbers for people. Users' text reaches a terminal only through `clean`."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from metasched.core.reason_words import counted, words
from metasched.core.reasons import Code, Reason, from_text, to_json
from metasched.slurm.hostlist import compress

if TYPE_CHECKING:  # `--help` does not need the decoder of the status, which takes long to import
    from metasched.core.model import PlannedRun
    from metasched.shared_dir.published_status import (
        AdviceStatus,
        InstantStatus,
        JobStatus,
        NodeStatus,
        PlannedStatus,
    )

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_KIB = 1024
_REASON_WIDTH = 60
_NODES_BY_NAME = 4
_HOSTS_WIDTH = 60
_ONE_UNIT, _SMALL = 2, 3  # words of one unit; a number of the first unit below which the second one is shown


def clean(text: str, limit: int | None = None) -> str:
    r"""Return the text with control and format characters escaped (``\x1b``, ``\u202e``), cut at ``limit`` characters.

    Put the result into rich's `Text`, never into a string with markup.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def duration(seconds: float | None) -> str:
    """Return a duration in at most two units: ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``; "" if not known."""
    if seconds is None:
        return ""
    whole = max(round(seconds), 0)
    for unit, name, smaller, smaller_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {smaller_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def clock(instant: float) -> str:
    """Return the local date and time of an instant (unix seconds)."""
    return datetime.fromtimestamp(instant, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def planned_text(planned: PlannedRun | PlannedStatus | None, now: float) -> str:
    """Return when a job is to run next: ``14:32, for 40 min``, ``for 40 min`` if at once; "" for a plan that is over.

    Args:
        planned: the planned run; None for none.
        now: the present instant, unix seconds. A run of another day has its date.
    """
    if planned is None or (end := planned.begins + planned.seconds) <= now:
        return ""
    if planned.begins <= now:
        return f"for {duration(end - now)}"
    day, at = clock(planned.begins).split(" ")
    same_day = day == clock(now).split(" ")[0]
    return f"{'' if same_day else day + ' '}{at[:5]}, for {duration(planned.seconds)}"


def expected_text(job: JobStatus, now: float) -> str:
    """Return a job's forecast: ``starts in 20 min to 50 min``, else ``ends in 2 h to 3 h``; "" where there is none."""
    forecast = job.forecast
    if forecast is None:
        return ""
    if forecast.start is not None and not job.nodes:  # it may have started since the forecast
        return f"starts {instant_text(forecast.start, now)}"
    return "" if forecast.end is None else f"ends {instant_text(forecast.end, now)}"


def instant_text(found: InstantStatus, now: float) -> str:
    """Return the range of an instant: ``in 20 min to 50 min``, ``within 50 min``, ``in more than 20 min``."""
    low = max(found.low - now, 0.0)
    if found.high is None:
        return f"in more than {_rough(low)}"
    high = max(found.high - now, 0.0)
    if not high:
        return "by now"
    return f"within {_rough(high)}" if low < min(_MINUTE, high / 10) else f"in {_rough(low)} to {_rough(high)}"


def _rough(seconds: float) -> str:
    """Return a duration in one unit, or in two where the first is small."""
    text = duration(seconds).split(" ")
    return " ".join(text if len(text) > _ONE_UNIT and int(text[0]) < _SMALL else text[:_ONE_UNIT])


def size(count: float) -> str:
    """Return a number of bytes in binary units: ``12 B``, ``3.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _KIB:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} TiB"


def listed(words: Sequence[str], most: int = 6) -> str:
    """Return ``a, b and c``; after ``most`` words the rest is counted: ``a, b and 3 more``."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def where(nodes: Mapping[str, int]) -> str:
    """Return the GPUs by node: ``n1:2 n2:2``; a node of a CPU-only job is its name alone.

    More than ``_NODES_BY_NAME`` nodes are folded into host lists: ``n[1-16]:8``.
    """
    if len(nodes) <= _NODES_BY_NAME:
        return " ".join(f"{node}:{gpus}" if gpus else node for node, gpus in nodes.items())
    by_gpus: dict[int, list[str]] = {}
    for node, gpus in nodes.items():
        by_gpus.setdefault(gpus, []).append(node)
    parts = []
    for gpus, names in sorted(by_gpus.items(), reverse=True):
        shown = hosts_text(names, _HOSTS_WIDTH)
        parts.append(f"{shown}:{gpus}" if gpus else shown)
    return " ".join(parts)


def hosts_text(names: Sequence[str], width: int) -> str:
    """Return the names as a host list; where that is longer than ``width`` characters, ``n[1,3,5],... (40 nodes)``."""
    whole = compress(names)
    if len(whole) <= width:
        return whole
    fitting = bisect.bisect_right(range(1, len(names)), width, key=lambda count: len(compress(names[:count])))
    return f"{compress(names[: max(fitting, 1)])},... ({len(names)} nodes)"


def gpus_text(job: JobStatus) -> str:
    """Return ``4`` for a rigid job, ``2 of 1-4`` for an elastic job that holds two, ``cpu``; ``?`` for a wrong tag."""
    if job.error is not None:
        return "?"
    if job.max_gpus == 0:
        return "cpu"
    span = str(job.max_gpus) if job.min_gpus == job.max_gpus else f"{job.min_gpus}-{job.max_gpus}"
    held = sum(job.nodes.values())
    return f"{held} of {span}" if held and job.min_gpus != job.max_gpus else span


def co_runner_text(job: JobStatus) -> str:
    """Return the co-runner's Slurm job id with the way of sharing; "" for none."""
    if job.co_runner is None:
        return ""
    return f"in turns with {job.co_runner}" if job.time_slicing else f"with {job.co_runner}"


def runs_text(job: JobStatus) -> str:
    """Return the number of runs; ``2 (renewed 5 rounds)`` where rounds renewed the present run."""
    return f"{job.runs} (renewed {counted(job.renewals, 'round')})" if job.renewals else str(job.runs)


def world_sizes_text(world_sizes: Sequence[int]) -> str:
    """Return the world sizes of the runs, in order: ``4 → 2``."""
    return " → ".join(map(str, world_sizes))


def progress_text(job: JobStatus) -> str:
    """Return the steps done and needed, and the time of the remaining steps at the present speed; "" if not known."""
    if job.progress_steps is None:
        return ""
    if not job.total_steps:
        return counted(int(job.progress_steps), "step")
    text = f"{int(job.progress_steps)}/{job.total_steps} ({int(100 * job.progress_steps / job.total_steps)}%)"
    left = remaining_seconds(job)
    return text if left is None else f"{text}, {duration(left)} left"


def remaining_seconds(job: JobStatus) -> float | None:
    """Return the seconds of the remaining steps at the present speed; None if not known, or while the job waits."""
    if job.status != "running" or not job.steps_per_second or job.total_steps is None or job.progress_steps is None:
        return None
    return max(job.total_steps - job.progress_steps, 0.0) / (job.steps_per_second * job.step_gain)


def node_note(node: NodeStatus) -> str:
    """Return why a node accepts no jobs or which jobs it is for, and the GPUs that other jobs hold; hostile text."""
    parts = []
    if not node.accepts:
        why = f": {clean(node.reason, _REASON_WIDTH)}" if node.reason else ""
        by = f" (by {node.drained_by})" if node.drained_by else ""
        parts.append(f"takes no new jobs{why}{by}")
    if node.reservation:
        until = "" if node.reserved_until is None else f" until {clock(node.reserved_until)}"
        parts.append(f"reserved ({node.reservation}){until}")
    if node.gpus_others:
        parts.append(f"{counted(node.gpus_others, 'GPU')} held by jobs that metasched does not schedule")
    return "; ".join(parts)


def advice_text(advice: AdviceStatus) -> str:
    """Return a sentence on the number of nodes of a GPU type that would suit the jobs."""
    said = "the number of nodes suits the jobs"
    if advice.advised != advice.nodes:
        said = f"{counted(advice.advised, 'node')} would suit the jobs ({advice.predicted:.0%})"
    return f"{clean(advice.gpu_type)}: utility {advice.utility:.0%} on {counted(advice.nodes, 'node')}; {said}"


def batch_text(job: JobStatus) -> str:
    """Return the batch with its efficiency, and the batch that is wanted: ``256 → 512, 87%``; "" for other jobs."""
    batch = job.batch
    if batch is None or batch.present is None:
        return ""
    wanted = "" if batch.wanted is None else f" → {batch.wanted.global_batch}"
    efficiency = "" if batch.efficiency is None else f", {batch.efficiency:.0%}"
    return f"{batch.present.global_batch}{wanted}{efficiency}"


def speed_up_text(job: JobStatus) -> str:
    """Return the goodput over that of a fair share, by the job's reason: ``1.32``; "" where the reason tells none."""
    speed_up = job.reason_facts.get("speedup") if job.reason_code == Code.GOODPUT_SPEEDUP else None
    return f"{speed_up:.2f}" if isinstance(speed_up, (int, float)) else ""


def reason_fields(reason: Reason | None) -> dict[str, Any]:
    """Return a reason as fields of a JSON object, named as in the published status; null and "" for none."""
    if reason is None:
        return {"reason": "", "reason_code": None, "reason_facts": {}, "reason_also": []}
    data = to_json(reason)
    return {
        "reason": words(reason),
        "reason_code": data["code"],
        "reason_facts": data.get("facts", {}),
        "reason_also": data.get("also", []),
    }


def text_fields(text: str) -> dict[str, Any]:
    """Return an event's text as fields of a JSON object: ``text`` in words; a reason also as code and facts."""
    reason = from_text(text)
    if reason.code == Code.TEXT:
        return {"text": text}
    fields = reason_fields(reason)
    return {"text": fields.pop("reason"), **fields}
