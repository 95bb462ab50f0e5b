"""Budgets of jobs in the market: finish-time fairness, weights and accounts (Shockwave, NSDI 2023, Eq. 9 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RHO_RANGE = (1.0, 1e2)
"""Estimates outside of this range count as its ends.

A job that is ahead of its fair finish is not poorer than others; and one wrong estimate does not silence all others.
"""


def estimated_rho(age: float, remaining: float, total: float, contention: float) -> float:
    """The finish-time fairness that a job is heading for (Eq. 9).

    Args:
        age: seconds since the job's submission, those of its runs included (L + W).
        remaining: the predicted remaining run time, alone on the requested GPUs (R).
        total: the predicted run time of the whole job, alone on the requested GPUs (P), above 0.
        contention: the mean contention of the job's life so far, ``mean_contention`` (N_avg).
    """
    factor = max(contention, 1.0)  # without contention, a job runs as fast as alone, and not faster
    return (age + remaining * factor) / (total * factor)


def mean_contention(job_seconds: float, gpus: float, seconds: float) -> float:
    """The mean contention over a span: live jobs over the cluster's GPUs.

    Args:
        job_seconds: the integral of the number of live jobs over the span. With a running integral of the whole
            cluster, a job needs only its value at the job's submission.
        gpus: GPUs of the cluster.
        seconds: the length of the span; over an empty span, the contention is 1.
    """
    return job_seconds / (gpus * seconds) if seconds > 0 and gpus > 0 else 1.0


def budgets(rho: Sequence[float], exponent: float, weights: Sequence[float]) -> Floats:
    """The jobs' budgets: weights times the exponent-th power of rho; their sum is 1.

    Args:
        rho: for each job, its estimated finish-time fairness; values that are not finite count as 1.
        exponent: how strongly a job that is treated unfairly is preferred, at least 0 (k).
        weights: for each job, its weight; see ``account_weights``.

    Raises:
        ValueError: the exponent or a weight is wrong.
    """
    if not (np.isfinite(exponent) and exponent >= 0):
        raise ValueError(f"the exponent of rho is {exponent}; give a number from 0, such as 5")
    given = np.asarray(weights, dtype=float)
    if not (np.isfinite(given) & (given > 0)).all():
        raise ValueError("a job's weight is not above 0; give each job a finite weight above 0")
    known = np.nan_to_num(np.asarray(rho, dtype=float), nan=1.0, posinf=1.0, neginf=1.0)
    found = given * np.clip(known, *RHO_RANGE) ** exponent
    return np.asarray(found / found.sum())


def account_weights(
    accounts: Sequence[str], weights: Sequence[float], weight_of_account: Mapping[str, float]
) -> list[float]:
    """The jobs' weights where accounts have weights: each account's is divided among its jobs, by their weights.

    Args:
        accounts: for each job, its account.
        weights: for each job, its weight among the jobs of its account.
        weight_of_account: weights of accounts; 1 for accounts that are left out.
    """
    sums: dict[str, float] = {}
    for account, weight in zip(accounts, weights, strict=True):
        sums[account] = sums.get(account, 0.0) + weight
    return [
        weight_of_account.get(account, 1.0) * weight / sums[account]
        for account, weight in zip(accounts, weights, strict=True)
    ]
