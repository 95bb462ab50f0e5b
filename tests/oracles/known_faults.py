"""Faults that the oracles have found and that are not mended yet; a mended one loses its line here, nothing else."""

from __future__ import annotations

import pytest

KNOWN_FAULTS: dict[str, str] = {}


def marks_of(fault):
    """The marks of a test that a fault lets fail: none once the fault is mended."""
    reason = KNOWN_FAULTS.get(fault)
    return [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]


def fails_by(fault):
    """A decorator for such a test."""
    marks = marks_of(fault)
    return marks[0] if marks else lambda test: test
