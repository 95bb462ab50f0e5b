"""The headlines of Gavel (OSDI 2020, section 7.3 to 7.6), in our simulator at the paper's settings.

    python -m contrib.reproductions.gavel_headlines --data DIR [--quick | --scale F] [--only NAME ...] [--plots DIR]
                                                 [--processes N] [--results FILE]

36 GPUs of each of three types, rounds of 360 s, Poisson arrivals, jobs 4000 to 5000 measured, three seeds. --scale has
that part of the GPUs, of the load, and of the jobs before and in the window (jobs of several GPUs need 8 of a type, a
scale of 0.25); --quick 12 GPUs of each type, the load in proportion, jobs 200 to 350 and two seeds. Where the paper
gives a ratio, ours is that of the same two policies, as mean and standard deviation over the seeds. "Public code" is
what the authors' own runs of their simulator gave, as the notebooks in their repository print it
(scheduler/notebooks/figures/evaluation), where they do.

--processes runs so many seeds and headlines at once. With --results, what is finished is kept in that file, a line of
JSON for each headline and seed, and another run with the same sizes goes on from there.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path

from contrib.benchmarks import bench
from contrib.reproductions.gavel_estimator import estimator
from contrib.reproductions.gavel_experiments import (
    cost,
    fifo,
    ftf,
    ftf_multiple,
    las,
    las_multiple,
    makespan,
    placement,
    priorities,
    rounds,
)
from contrib.reproductions.gavel_hierarchy import hierarchy
from contrib.reproductions.gavel_workloads import GPUS, Line, Scale
from metasched.throughput.throughput_table import Table

HEADLINES: Mapping[str, Callable[[Scale], Iterator[Line]]] = {
    "las": las,
    "las-multiple": las_multiple,
    "ftf": ftf,
    "ftf-multiple": ftf_multiple,
    "makespan": makespan,
    "fifo": fifo,
    "priorities": priorities,
    "cost": cost,
    "hierarchy": hierarchy,
    "placement": placement,
    "rounds": rounds,
    "estimator": estimator,
}


def main() -> int:
    """Run the headlines that were asked for, and print the table."""
    parser = bench.arguments(__doc__ or "")
    bench.add_data(parser)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small clusters, few jobs, two seeds")
    sizes.add_argument("--scale", type=float, default=1.0, help="this part of the paper's GPUs, load and jobs")
    parser.add_argument("--only", nargs="+", choices=HEADLINES, default=list(HEADLINES), help="headlines")
    parser.add_argument("--gpus", type=bench.positive, help="of each type")
    parser.add_argument("--window", type=bench.positive, nargs=2, help="first and last job measured")
    parser.add_argument("--batch", type=bench.positive, help="jobs that are there at once, or have deadlines")
    parser.add_argument("--seeds", type=bench.positive, help="how many")
    parser.add_argument("--plots", type=Path, help="where pictures go")
    parser.add_argument("--processes", type=bench.positive, default=1, help="how many simulate at once")
    parser.add_argument("--results", type=Path, help="file that keeps what is finished, for another run to go on from")
    given = parser.parse_args()
    first, last = (max(round(number * given.scale), number // 1000) for number in (4000, 5000))
    table = Table.read(given.data / "gavel" / "simulation_throughputs.json")
    scale = Scale(
        table=table,
        gpus=given.gpus or (12 if given.quick else max(round(GPUS * given.scale), 1)),
        window=range(*(given.window or ((200, 350) if given.quick else (first, last)))),
        batch=given.batch or (100 if given.quick else max(round(500 * given.scale), 1)),
        seeds=range(given.seeds or (2 if given.quick else 3)),
        plots=given.plots,
    )
    wanted = [(name, seed) for seed in scale.seeds for name in given.only]
    done = _kept(given.results, scale)
    with ProcessPoolExecutor(given.processes, max_tasks_per_child=1) as pool:
        running = {pool.submit(_lines, scale, *task): task for task in wanted if task not in done}
        for future in as_completed(running):
            done[running[future]] = future.result()
            _keep(given.results, scale, *running[future], future.result())
    print("| figure | paper | public code | ours |\n|---|---|---|---|")
    found = []
    for name in given.only:
        for lines in zip(*(done[name, seed] for seed in scale.seeds), strict=True):
            line = replace(lines[0], ours=tuple(value for each in lines for value in each.ours))
            print(f"| {line.what} | {line.paper} | {line.public} | {line.cell} |")
            found.append(asdict(line))
    bench.finish({"headlines": found}, as_json=given.json)
    return 0


def _lines(scale: Scale, name: str, seed: int) -> list[Line]:
    """One headline with one seed."""
    gc.set_threshold(200_000, 50, 50)  # millions of small objects live as long as the simulation
    return list(HEADLINES[name](replace(scale, seeds=range(seed, seed + 1))))


def _kept(file: Path | None, scale: Scale) -> dict[tuple[str, int], list[Line]]:
    """What is finished of the same sizes, by headline and seed."""
    found: dict[tuple[str, int], list[Line]] = {}
    if file is not None and file.exists():
        for text in file.read_text().splitlines():
            kept = json.loads(text)
            if kept["sizes"] == _sizes(scale):
                lines = [Line(**line | {"ours": tuple(line["ours"])}) for line in kept["lines"]]
                found[kept["headline"], kept["seed"]] = lines
    return found


def _keep(file: Path | None, scale: Scale, name: str, seed: int, lines: Sequence[Line]) -> None:
    """Add what is finished."""
    if file is not None:
        kept = {"sizes": _sizes(scale), "headline": name, "seed": seed, "lines": [asdict(line) for line in lines]}
        with file.open("a") as out:
            out.write(json.dumps(kept) + "\n")


def _sizes(scale: Scale) -> list[int]:
    """What results must have in common."""
    return [scale.gpus, scale.window.start, scale.window.stop, scale.batch]


if __name__ == "__main__":
    sys.exit(main())
