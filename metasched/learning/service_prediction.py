"""The service that a job will need, predicted from earlier jobs of the same user and name.

Most training jobs recur (Liu et al., "Ares", 2025, section 2.3). Daemon and simulator predict by the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

from metasched.store import JobRecord, Store

HISTORY = 20
"""Past jobs of the same user and name that are read for a prediction, the latest first."""
RECENT = 5
"""Past jobs that count, the latest first."""
MIN_JOBS = 2
"""Fewest past jobs from which a service is predicted."""
MAX_RATIO = 4.0
"""Largest ratio of the largest service to the smallest with which a service is predicted."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that has completed.

    Attributes:
        service: GPU-seconds that the job received.
        script: the hash of its batch script; None where that is not known.
    """

    service: float
    script: str | None = None

    @classmethod
    def of(cls, attained: Mapping[str, float], script: str | None = None) -> Self:
        """The completed job with this attained service by GPU type; service without GPUs does not count."""
        return cls(sum(amount for gpu_type, amount in attained.items() if gpu_type), script)


def expected_service(past: Sequence[PastJob], script: str | None = None) -> float | None:
    """Return the GPU-seconds that the next job should need, the median of the latest; None where they disagree.

    Past jobs of the same script count if there are enough of them, else those whose script is not known. Where the next
    job's script is not known, all past jobs count.

    Args:
        past: completed jobs of the same user and name, the latest first.
        script: the hash of the next job's batch script; None where that is not known.
    """
    same = [job for job in past if script in (None, job.script)]
    if len(same) < MIN_JOBS:
        same = [job for job in past if job.script is None]
    services = [job.service for job in same if job.service > 0][:RECENT]
    if len(services) < MIN_JOBS or max(services) > MAX_RATIO * min(services):
        return None
    return median(services)


class ServicePrediction:
    """Predicts the service of each job once, when the job is first asked about.

    Args:
        store: holds the completed jobs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._expected: dict[str, float | None] = {}  # by uid
        self._expected_by_kind: dict[tuple[str, str, str | None], float | None] = {}  # by user, name and script

    def begin_poll(self) -> None:
        """Read the completed jobs again for jobs that come in this poll."""
        self._expected_by_kind.clear()

    def expected_service(self, record: JobRecord) -> float | None:
        """Return the GPU-seconds that the job should need in all; None where that is not known."""
        if record.uid not in self._expected:
            key = record.user, record.name, record.script
            if key not in self._expected_by_kind:  # the tasks of an array come together
                past = [
                    PastJob.of(job.attained, job.script)
                    for job in self._store.completed_jobs(record.user, record.name, HISTORY)
                ]
                self._expected_by_kind[key] = expected_service(past, record.script)
            self._expected[record.uid] = self._expected_by_kind[key]
        return self._expected[record.uid]

    def forget(self, uid: str) -> None:
        """Drop the prediction for a job that has ended."""
        self._expected.pop(uid, None)
