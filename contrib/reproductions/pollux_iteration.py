"""The error of Pollux's model of the iteration time on the published measurements (OSDI 2021, section 3.2).

    METASCHED_DATA=DIR python -m contrib.reproductions.pollux_iteration [--data DIR] [--json]

For each application, the model is fitted to all measured placements and batch sizes (``placements.csv``). The error is
the mean of that of each measurement, relative to the measured seconds. The paper says that it is at most 10 %.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contrib.benchmarks import common
from metasched.throughput.iteration_fit import MeasuredIteration, fit_iteration, mean_error
from metasched.throughput.iteration_time import IterationParameters

MOST = 0.10


class Fitted(NamedTuple):
    """The fit of one application: measurements, CPU milliseconds, mean error as a fraction, and parameters."""

    measurements: int
    milliseconds: float
    error: float
    theta: IterationParameters


def read_placements(path: Path) -> list[MeasuredIteration]:
    """The measurements of a ``placements.csv``."""
    with path.open(encoding="utf-8") as file:
        return [
            MeasuredIteration(
                gpus=sum(map(int, row["placement"])),
                multi_node=len(row["placement"]) > 1,
                per_gpu=int(row["local_bsz"]),
                accumulation=1,
                seconds=float(row["step_time"]),
            )
            for row in csv.DictReader(file)
        ]


def fitted(path: Path) -> Fitted:
    """Fit the model to one application's measurements."""
    measured = read_placements(path)
    begun = time.process_time()
    theta = fit_iteration(measured)
    return Fitted(len(measured), 1e3 * (time.process_time() - begun), mean_error(theta, measured), theta)


def main(given: Sequence[str] | None = None) -> int:
    """Fit, and print the table; the exit status is 1 if an error is larger than the paper's."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    options = parser.parse_args(given)
    paths = sorted((options.data / "pollux" / "traces").glob("*/placements.csv"))
    found = {path.parent.name: fitted(path) for path in paths}
    print(f"| application | measurements | fit, ms | mean error | {' | '.join(IterationParameters._fields)} |")
    print("|---" * (4 + len(IterationParameters._fields)) + "|")
    for name, one in found.items():
        theta = " | ".join(f"{value:.3g}" for value in one.theta)
        print(f"| {name} | {one.measurements} | {one.milliseconds:.0f} | {one.error:.1%} | {theta} |")
    common.finish({name: one._asdict() for name, one in found.items()}, as_json=options.json)
    return 1 if not found or any(one.error > MOST for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
