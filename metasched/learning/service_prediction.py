"""What a job will need, from what earlier ones like it needed: most training jobs recur (Ares, section 2.3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RECENT = 5
"""So many of the latest count."""
LEAST = 2
"""With fewer, nothing recurs."""
APART = 4.0
"""Where the largest of them is more than so many times the least, they tell nothing."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that was done.

    Attributes:
        service: GPU-seconds that it had.
        script: the hash of its batch script; None where that is not known.
    """

    service: float
    script: str | None = None


def expected_service(past: Sequence[PastJob], script: str | None = None) -> float | None:
    """GPU-seconds that the next one should need: the median of the latest; None where they do not tell.

    Those of the same script count if there are enough of them, else those whose script is not known. Where the next
    one's script is not known, all count.

    Args:
        past: done jobs of the same user and name, the latest first.
        script: the hash of the next one's batch script; None where that is not known.
    """
    same = [one for one in past if script in (None, one.script)]
    if len(same) < LEAST:
        same = [one for one in past if one.script is None]
    services = [one.service for one in same if one.service > 0][:RECENT]
    if len(services) < LEAST or max(services) > APART * min(services):
        return None
    return median(services)
