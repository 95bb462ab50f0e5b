"""What the metrics of one publication are made from: frozen, plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one publication.

    Attributes:
        version: metasched's.
        policy: name of the policy.
        last_poll: unix seconds of the last poll in which Slurm answered; None before the first.
        slurm_reachable: whether Slurm answered in the last poll.
        poll_seconds: wall time of each step of the last poll.
        decide_seconds: wall time of the last round's decision; None before the first round.
        rounds: number of the last round.
        jobs: live jobs by state.
        waiting: waiting jobs by reason code.
        fitting: waiting jobs, not blocked, whose fewest GPUs are free on nodes of a type that they accept.
        gpus: GPUs by type and use: ``used``, ``free``, ``closed`` (on nodes that take no new jobs) or ``leaked``.
        account_gpus: GPUs held now, by account ("" for none); None where Slurm hides accounts.
        account_gpu_seconds: GPU-seconds held so far, by account and GPU type; None where Slurm hides accounts.
        runs_ended: ended runs by cause.
        actions: actions by kind and outcome, ``ok`` or ``error``.
        overhead: GPU-seconds of ended runs that did not train, by part.
        waits: histogram of seconds from submission to the first start.
        completions: histogram of seconds from submission to completion.
        rho_worst: largest finish-time fairness of recently ended jobs, by definition.
        unfair_ratio: fraction of those jobs that were treated unfairly, by definition.
        free_bytes_ratio: free part of the file system, by directory of the configuration.
    """

    version: str
    policy: str
    last_poll: float | None
    slurm_reachable: bool
    poll_seconds: Mapping[str, float]
    decide_seconds: float | None
    rounds: int
    jobs: Mapping[str, int]
    waiting: Mapping[str, int]
    fitting: int
    gpus: Mapping[tuple[str, str], int]
    account_gpus: Mapping[str, int] | None
    account_gpu_seconds: Mapping[tuple[str, str], float] | None
    runs_ended: Mapping[str, float]
    actions: Mapping[tuple[str, str], float]
    overhead: Mapping[str, float]
    waits: Histogram
    completions: Histogram
    rho_worst: Mapping[str, float] = field(default_factory=dict)
    unfair_ratio: Mapping[str, float] = field(default_factory=dict)
    free_bytes_ratio: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram: observations by upper bound of their bucket, in seconds, not cumulated, and the sum of all."""

    buckets: Mapping[float, float]
    total: float
