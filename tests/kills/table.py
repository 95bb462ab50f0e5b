"""What became of the kills."""

import statistics
from collections import defaultdict
from typing import NamedTuple


class Kill(NamedTuple):
    """One kill: seconds until everything of the old generation was gone, and until the next one trained."""

    victim: str
    outcome: str
    ended: float | None
    recovered: float | None


def table(kills):
    """A table with a row for each victim and outcome."""
    rows = [("victim", "outcome", "kills", "rest gone after, s", "", "trains again after, s", "")]
    rows.append(("", "", "", "median", "most", "median", "most"))
    groups = defaultdict(list)
    for kill in kills:
        groups[kill.victim, kill.outcome].append(kill)
    for (victim, outcome), group in sorted(groups.items()):
        numbers = []
        for name in ("ended", "recovered"):
            values = [value for kill in group if (value := getattr(kill, name)) is not None]
            numbers += [f"{f(values):.1f}" if values else "-" for f in (statistics.median, max)]
        rows.append((victim, outcome, str(len(group)), *numbers))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
