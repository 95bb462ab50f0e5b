"""Our simulator in the artifacts' manners, beside the figures that their own simulators give.

    python -m contrib.reproductions.parity --data DIR [--only WORDS] [--json]

Every row runs one of our policies through the daemon's own engine, on the artifact's trace, in the artifact's manner of
keeping time. A figure agrees when it is equal to the last digit of the artifact's. The status is 1 if one differs
without a reason, or if a row could not run.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from contrib.benchmarks import bench
from contrib.reproductions import parity_rows
from contrib.reproductions.parity_rows import row
from metasched.core.errors import MetaschedError


@dataclass(frozen=True, slots=True)
class Result:
    """A row, with what it gave."""

    row: row.Row
    ours: tuple[float, ...]
    seconds: float

    @property
    def verdicts(self) -> list[str]:
        """Of each figure."""
        return [m.verdict(ours, self.row.reason) for m, ours in zip(self.row.measures, self.ours, strict=True)]


def modules() -> list[ModuleType]:
    """The modules of rows, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(parity_rows.__path__))
    found = (importlib.import_module(f"{parity_rows.__name__}.{name}") for name in names)
    return [module for module in found if hasattr(module, "rows")]


def run(one: row.Row) -> Result:
    """Run a row."""
    bench.say(f"{one.artifact}, {one.workload}: {one.policy}")
    begun = time.perf_counter()
    ours = one.run()
    return Result(one, ours, time.perf_counter() - begun)


def table(results: Sequence[Result]) -> str:
    """All of it as Markdown, with the reasons below."""
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
    """Run the rows that were asked for, and print the table."""
    parser = bench.arguments(__doc__ or "")
    bench.add_data(parser)
    parser.add_argument("--only", default="", help="rows whose artifact, workload or policy contain these words")
    given = parser.parse_args()
    results, failed = [], 0
    for module in modules():
        try:
            rows = module.rows(given.data)
        except (MetaschedError, OSError) as error:
            bench.say(f"no rows of {module.__name__}: {error}")
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
    bench.finish({"rows": as_json}, as_json=given.json)
    return 1 if failed or any(row.DIFFERENT in r.verdicts for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
