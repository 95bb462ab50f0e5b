"""Our policies in the loops of published simulators, compared with those simulators' figures.

    python -m contrib.reproductions.parity --data DIR [--only WORDS] [--json]

Each row runs one of our policies through the daemon's own engine, on the artifact's trace, in the loop of the
artifact's simulator. A figure agrees if it equals the artifact's to the last known digit. The exit status is 1 if a
figure differs without an explanation, or if the data of a row is missing.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from contrib.benchmarks import common
from contrib.reproductions import parity_rows
from contrib.reproductions.parity_rows import row
from metasched.core.errors import MetaschedError


@dataclass(frozen=True, slots=True)
class Result:
    """A row with its results.

    Attributes:
        row: the row.
        ours: our figures, in the order of the row's measures.
        seconds: wall time of the row.
    """

    row: row.Row
    ours: tuple[float, ...]
    seconds: float

    @property
    def verdicts(self) -> list[str]:
        """The verdict on each figure."""
        return [m.verdict(ours, self.row.reason) for m, ours in zip(self.row.measures, self.ours, strict=True)]


def modules() -> list[ModuleType]:
    """The modules that have rows, ordered by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(parity_rows.__path__))
    found = (importlib.import_module(f"{parity_rows.__name__}.{name}") for name in names)
    return [module for module in found if hasattr(module, "rows")]


def run(one: row.Row) -> Result:
    """Run one row, and print its name as progress."""
    common.say(f"{one.artifact}, {one.workload}: {one.policy}")
    begun = time.perf_counter()
    ours = one.run()
    return Result(one, ours, time.perf_counter() - begun)


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table, with the reasons for differences below."""
    lines = [
        "| artifact | workload | policy | figure | artifact's | ours | | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        one = result.row
        for measure, ours, word in zip(one.measures, result.ours, result.verdicts, strict=True):
            cells = (one.artifact, one.workload, one.policy, measure.name)
            figures = (f"{measure.theirs:.{measure.decimals}f}", f"{ours:.{measure.decimals}f}")
            lines.append(f"| {' | '.join((*cells, *figures, word, f'{result.seconds:.2f}'))} |")
    notes = [f"- {r.row.artifact}, {r.row.policy}: {r.row.reason}" for r in results if r.row.reason]
    return "\n".join([*lines, *(["", "Why figures differ:", *notes] if notes else [])])


def main() -> int:
    """Run the selected rows, and print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    parser.add_argument("--only", default="", help="rows whose artifact, workload or policy contain these words")
    given = parser.parse_args()
    results, failed = [], 0
    for module in modules():
        try:
            rows = module.rows(given.data)
        except (MetaschedError, OSError) as error:
            common.say(f"no rows of {module.__name__}: {error}")
            failed += 1
            continue
        wanted = [one for one in rows if given.only.lower() in f"{one.artifact} {one.workload} {one.policy}".lower()]
        results += [run(one) for one in wanted]
    print(table(results))
    as_json = [
        {
            "artifact": r.row.artifact,
            "workload": r.row.workload,
            "policy": r.row.policy,
            "figures": {m.name: [m.theirs, ours] for m, ours in zip(r.row.measures, r.ours, strict=True)},
            "verdicts": r.verdicts,
            "seconds": round(r.seconds, 3),
        }
        for r in results
    ]
    common.finish({"rows": as_json}, as_json=given.json)
    return 1 if failed or any(row.DIFFERENT in r.verdicts for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
