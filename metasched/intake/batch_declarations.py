"""Checks of what users declare of their batch sizes against what their trainers report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metasched.core.batching import Batching, Contradiction, contradiction
from metasched.core.model import Job
from metasched.store import Store

_SAID: Mapping[Contradiction, str] = {
    Contradiction.MORE_REGIMES: "it has begun batch size regime {count}, and regimes={most_regimes} is declared: "
    "declare as many as the training can have",
    Contradiction.BEYOND_LIMIT: "its batch is {batch}, above the declared max_batch of {max_batch}: raise max_batch",
    Contradiction.OTHER_RULE: "its batches so far ({batches}) are not those of adapts={adapts}: declare the rule that "
    "the script follows",
    Contradiction.OVERDUE: "the batch of {next_batch} that its schedule declares from step {next_began:.0f} on has not "
    "come: declare the schedule that the script follows",
}
_SHOWN = 8
"""Most batches that an event names, the latest."""


def note_contradictions(store: Store, jobs: Iterable[Job], now: float) -> None:
    """Record one event for each kind of contradiction between a job's declared and reported batch sizes.

    Policies do not believe such a declaration any more.

    Args:
        store: of the daemon.
        jobs: the jobs with new reports.
        now: unix seconds.
    """
    for job in jobs:
        if job.batching is None:
            continue
        found = contradiction(job.batching, job.progress_steps, job.total_steps)
        if found is not None:
            text = f"{_SAID[found].format_map(_facts(job.batching))}; the present batch is expected to the end"
            store.event_once(f"batch-{found.value}", text, job.uid, at=now)


def _facts(batching: Batching) -> dict[str, object]:
    regimes = batching.regimes
    upcoming = batching.schedule[len(regimes) : len(regimes) + 1] or regimes[-1:]
    return {
        "count": len(regimes),
        "most_regimes": batching.most_regimes,
        "batch": max(one.batch for one in regimes),
        "max_batch": batching.max_batch,
        "batches": ", ".join(str(one.batch) for one in regimes[-_SHOWN:]),
        "adapts": batching.adapts.value if batching.adapts is not None else None,
        "next_batch": upcoming[0].batch,
        "next_began": upcoming[0].began,
    }
