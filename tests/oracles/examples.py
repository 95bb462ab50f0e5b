"""Checks of many random examples, the same on every run; a failure is reported for the smallest example that fails.

``ORACLE_EXAMPLES`` is the number of examples of each check: 200 unless it is set (``make oracles``: 5000).
"""

from __future__ import annotations

import os
import random

EXAMPLES = int(os.environ.get("ORACLE_EXAMPLES", "200"))
MOST_SIMPLIFICATIONS = 300


def for_examples(draw, check, simpler=lambda _: (), *, every=1):
    """Check examples; each is drawn from a random generator with a seed of its own.

    Args:
        draw: an example from a random generator.
        check: fails for an example by an exception.
        simpler: examples that are simpler than one.
        every: only one example of so many is drawn, for slow checks.
    """
    for seed in range(0, EXAMPLES, every):
        example = draw(random.Random(seed))  # noqa: S311
        try:
            check(example)
        except Exception as failed:  # noqa: BLE001  an example may fail by any error
            smallest, why = _smallest(example, check, simpler, failed)
            raise AssertionError(f"example {seed} fails, and so does {smallest}") from why


def _smallest(example, check, simpler, failed):
    """The example, simplified as long as it fails in the same way; and its failure."""
    for _ in range(MOST_SIMPLIFICATIONS):
        for other in simpler(example):
            try:
                check(other)
            except type(failed) as why:
                example, failed = other, why
                break
            except Exception:  # noqa: BLE001, S112  another failure: the simplified example is no legal one
                continue
        else:
            break
    return example, failed
