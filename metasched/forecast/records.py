"""Records of a queue forecast: frozen, plain data. Instants are unix seconds, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass

LOW, HIGH = 0.1, 0.9
"""The quantiles at the ends of a range, which is to hold 80 % of the true instants."""


@dataclass(frozen=True, slots=True)
class InstantRange:
    """The range of an instant.

    Attributes:
        low: the 10th percentile.
        median: the 50th percentile.
        high: the 90th percentile; None where it lies beyond the forecast's horizon.
    """

    low: float
    median: float
    high: float | None

    def holds(self, instant: float) -> bool:
        """Whether an instant lies in the range, its ends included."""
        return self.low <= instant and (self.high is None or instant <= self.high)


@dataclass(frozen=True, slots=True)
class JobForecast:
    """The forecast of one job.

    Attributes:
        uid: the job.
        start: when its next run starts; None for a job that holds GPUs, and where the median lies beyond the horizon.
        end: when the job completes; None where the median lies beyond the horizon, or a tuner ends the job.
        work_from: the source of the estimate of its work, in words.
    """

    uid: str
    start: InstantRange | None
    end: InstantRange | None
    work_from: str = ""


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """The forecast of one round.

    Attributes:
        round: the number of the round from whose snapshot the simulations begin.
        at: the instant of that snapshot.
        policy: the policy that decides in the simulations.
        samples: the number of simulations.
        jobs: the forecasts of the simulated jobs.
        left_out: the number of live jobs beyond the limit of simulated jobs.
        seconds: CPU seconds that the forecast took.
        assumptions: what the forecast assumes, in sentences.
    """

    round: int
    at: float
    policy: str
    samples: int
    jobs: tuple[JobForecast, ...]
    left_out: int = 0
    seconds: float = 0.0
    assumptions: tuple[str, ...] = ()
