"""The contention that each job has met in its life: N_avg of Shockwave's Eq. 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from metasched.core.model import Snapshot
from policies.shockwave.budgets import mean_contention


@dataclass(frozen=True, slots=True)
class ContentionHistory:
    """The integral over time of the number of live jobs; JSON-compatible.

    Attributes:
        at: the instant up to which the integral is known, unix seconds; None before the first round.
        jobs: the number of live jobs with GPUs then.
        integral: job-seconds.
        at_arrival: by uid, the integral at the job's submission.
    """

    at: float | None = None
    jobs: float = 0.0
    integral: float = 0.0
    at_arrival: Mapping[str, float] = field(default_factory=dict)

    def until(self, snapshot: Snapshot) -> Self:
        """The history up to a snapshot, without jobs that are gone.

        Between rounds, the number grows with each submission. Of the time before the
        first round, nothing is known; the present number counts for it.
        """
        now, jobs = snapshot.now, [job for job in snapshot.jobs if job.gpus]
        present = float(len(jobs))
        elapsed = max(now - self.at, 0.0) if self.at is not None else 0.0
        new = sum(min(max(now - job.submitted, 0.0), elapsed) for job in jobs if not self._knows(job.uid))
        integral = self.integral + self.jobs * elapsed + new
        at_arrival = {
            job.uid: self.at_arrival[job.uid]
            if self._knows(job.uid)
            else integral - present * max(now - job.submitted, 0.0)
            for job in jobs
        }
        return type(self)(now, present, integral, at_arrival)

    def contention(self, uid: str, submitted: float, gpus: float) -> float:
        """The mean contention of a job's life so far; the present one for a job that has just come.

        Args:
            uid: the job.
            submitted: its submission, unix seconds.
            gpus: GPUs of the cluster.
        """
        life = 0.0 if self.at is None else self.at - submitted
        if life <= 0:
            return mean_contention(self.jobs, gpus, 1.0)
        return mean_contention(self.integral - self.at_arrival.get(uid, self.integral), gpus, life)

    def to_json(self) -> dict[str, Any]:
        """The history as JSON-compatible data."""
        return {"at": self.at, "jobs": self.jobs, "integral": self.integral, "at_arrival": dict(self.at_arrival)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The history that ``to_json`` wrote."""
        return cls(data["at"], data["jobs"], data["integral"], data["at_arrival"])

    def _knows(self, uid: str) -> bool:
        return uid in self.at_arrival
