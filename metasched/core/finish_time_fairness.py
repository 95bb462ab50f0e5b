"""Finish-time fairness (rho): a job's completion time over the time that would have been fair. Pure.

docs/researcher/METRICS.md has the definitions with their sources. Here are the parts that simulations and the store
have in common, and the definitions that a running cluster can know: those that need the job itself, and means of the
cluster's load over the job's life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

UNFAIR: Mapping[str, float] = MappingProxyType(
    {"themis": 1.0, "gavel": 1.0, "shockwave": 1.05, "shockwave_live": 1.05, "pollux": 1.0, "ares": 1.0}
)
"""The rho above which a job is treated unfairly, by definition of finish-time fairness."""
LIVE_DEFINITIONS = ("pollux", "shockwave_live", "gavel", "themis")
"""The definitions that a running cluster can know; the first is shown where one rho of each job is."""


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """Means over a job's life.

    Attributes:
        jobs: live jobs.
        apps: live apps, apps of one included.
        contention: GPUs that the live jobs had requested, over all GPUs.
    """

    jobs: float
    apps: float
    contention: float


def rho_by_definition(
    seconds: float, alone: Mapping[str, float], gpus: int, capacity: Mapping[str, int], load: MeanLoad
) -> dict[str, float]:
    """The rho of one job by each definition that can be known.

    Themis's is that of an app of one; its caller drops it for a job of a larger app.

    Args:
        seconds: the completion time of the job, from its submission.
        alone: seconds of the job's training alone on the GPUs that it requests, by GPU type; above 0.
        gpus: GPUs that the job requests, at least 1.
        capacity: GPUs of the cluster by type.
        load: means over the job's life.

    Returns:
        rho by name. Gavel's is missing where the time alone is not known for every type of the cluster; all are missing
        where no time alone is known, or the cluster has no GPUs.
    """
    total = sum(capacity.values())
    if not alone or total <= 0:
        return {}
    best = min(alone.values())
    fair = {
        "pollux": best * max(load.contention, 1.0),
        "shockwave_live": best * max(load.jobs / total, 1.0),
        "themis": best * gpus / min(total, gpus) * max(load.apps, 1.0),
    }
    if alone.keys() == {gpu_type for gpu_type, count in capacity.items() if count}:
        fair["gavel"] = isolated_share(alone, gpus, capacity, max(load.jobs, 1.0))
    return {name: seconds / time for name, time in fair.items() if time > 0}


def isolated_share(times: Mapping[str, float], gpus: int, count: Mapping[str, int], jobs: float) -> float:
    """A job's seconds with 1/n of the GPUs of every type on which it runs (Gavel's X isolated).

    Args:
        times: seconds alone by GPU type.
        gpus: GPUs that the job requests.
        count: GPUs of the cluster by type.
        jobs: n, the mean number of live jobs.
    """
    share = {gpu_type: count[gpu_type] / jobs / gpus for gpu_type in times}
    excess = max(sum(share.values()), 1.0)
    return 1.0 / sum(fraction / excess / times[gpu_type] for gpu_type, fraction in share.items())
