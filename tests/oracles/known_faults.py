"""Faults that the oracles have found and that are not mended yet; a mended one loses its line here, nothing else."""

from __future__ import annotations

import pytest

KNOWN_FAULTS = {
    "allocation of impossible jobs": "isolated counts jobs that can run nowhere",
    "ares on node sets": "jobs that can run nowhere, or on other types, count in the reference system and the pool",
    "ares growth": "a job that runs grows on free GPUs alone where its grant allows fewer; later jobs keep theirs",
    "gandiva pairing": "jobs that can run nowhere are drawn as partners, and use up the attempts",
    "gandiva_fair promises": "a job's part of the total is spread over its types whatever others need there",
    "gandiva_fair total": "the total that tickets divide includes GPUs that no job can use",
    "small shares": "where shares are renewed in every round, a deficit is but a tie-break",
    "sjf ties": "equal remaining times differ by rounding: 3599.9999999999995 s at 196 steps/s",
}


def marks_of(fault):
    """The marks of a test that a fault lets fail: none once the fault is mended."""
    reason = KNOWN_FAULTS.get(fault)
    return [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]


def fails_by(fault):
    """A decorator for such a test."""
    marks = marks_of(fault)
    return marks[0] if marks else lambda test: test
