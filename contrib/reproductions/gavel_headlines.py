"""The headlines of Gavel (OSDI 2020, section 7.3 to 7.6), in our simulator at the paper's settings.

    python -m contrib.reproductions.gavel_headlines --data DIR [--quick | --scale F] [--only NAME ...] [--plots DIR]
                                                 [--processes N] [--results FILE [--stored]]

The cluster has 36 GPUs of each of three types. Rounds last 360 s, arrivals are Poisson, jobs 4000 to 5000 are measured,
with three seeds. --scale F takes the fraction F of the GPUs, of the load, and of the jobs before and in the window
(jobs of several GPUs need 8 of a type, a scale of 0.25). --quick takes 12 GPUs of each type, the load in proportion,
jobs 200 to 350 and two seeds. Where the paper gives a ratio, our figure is the ratio of the same two policies, as mean
and standard deviation over the seeds. "Public code" is the figure of the authors' own runs of their simulator, where
the notebooks in their repository print it (scheduler/notebooks/figures/evaluation).

--processes N runs N pairs of a headline and a seed at once. --results FILE stores each finished simulation as a line of
JSON; another run skips the simulations that the file has. With --stored nothing is simulated, and the table has the
figures that follow from the file.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path

from contrib.benchmarks import common
from contrib.reproductions.gavel_estimator import estimator
from contrib.reproductions.gavel_experiments import (
    cost,
    demand,
    fifo,
    ftf,
    ftf_multiple,
    las,
    las_multiple,
    limits,
    makespan,
    placement,
    priorities,
    rounds,
    sharing,
    stable,
)
from contrib.reproductions.gavel_hierarchy import hierarchy
from contrib.reproductions.gavel_workloads import GPUS, Line, Scale
from contrib.reproductions.stored_results import Results, add_results
from metasched.throughput.throughput_table import ThroughputTable

HEADLINES: Mapping[str, Callable[[Scale], Iterator[Line]]] = {
    "limits": limits,
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
    "stable": stable,
    "sharing": sharing,
    "demand": demand,
}


def main() -> int:
    """Run the selected headlines, and print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small clusters, few jobs, two seeds")
    sizes.add_argument("--scale", type=float, default=1.0, help="fraction of the paper's GPUs, load and jobs")
    parser.add_argument("--only", nargs="+", choices=HEADLINES, default=list(HEADLINES), help="headlines")
    parser.add_argument("--gpus", type=common.positive, help="GPUs of each type")
    parser.add_argument(
        "--window",
        type=common.positive,
        nargs=2,
        help="positions of measured jobs: from, to",
    )
    parser.add_argument("--batch", type=common.positive, help="jobs that arrive at once, or have deadlines")
    parser.add_argument("--seeds", type=common.positive, help="number of seeds")
    parser.add_argument("--plots", type=Path, help="directory of the plots")
    parser.add_argument("--processes", type=common.positive, default=1, help="simulations at once")
    add_results(parser)
    parser.add_argument("--stored", action="store_true", help="simulate nothing, print what the file of results has")
    given = parser.parse_args()
    if given.stored and given.results is None:
        parser.error("--stored needs --results")
    first, last = (max(round(number * given.scale), number // 1000) for number in (4000, 5000))
    table = ThroughputTable.read(given.data / "gavel" / "simulation_throughputs.json")
    scale = Scale(
        table=table,
        gpus=given.gpus or (12 if given.quick else max(round(GPUS * given.scale), 1)),
        window=range(*(given.window or ((200, 350) if given.quick else (first, last)))),
        batch=given.batch or (100 if given.quick else max(round(500 * given.scale), 1)),
        seeds=range(given.seeds or (2 if given.quick else 3)),
        plots=given.plots,
        results=Results(given.results, stored_only=given.stored),
    )
    wanted = [(name, seed) for seed in scale.seeds for name in given.only]
    done = (
        {task: _run_headline(scale, *task) for task in wanted} if given.stored else _run(scale, wanted, given.processes)
    )
    print("| figure | paper | public code | ours | seeds |\n|---|---|---|---|---|")
    found = []
    for name in given.only:
        for lines in zip(*(done[name, seed] for seed in scale.seeds), strict=True):
            known = tuple(value for each in lines for value in each.ours if not math.isnan(value))
            if not known:
                continue  # no seed of it is stored
            line = replace(lines[0], ours=known)
            print(f"| {line.what} | {line.paper} | {line.public} | {line.cell} | {len(known)} |")
            found.append(asdict(line))
    common.finish({"headlines": found}, as_json=given.json)
    return 0


def _run(scale: Scale, wanted: Sequence[tuple[str, int]], processes: int) -> dict[tuple[str, int], list[Line]]:
    """The lines of pairs of a headline and a seed, some of them run at once.

    Raises:
        Exception: the first error of a headline, when all others have been run.
    """
    done: dict[tuple[str, int], list[Line]] = {}
    errors: list[BaseException] = []
    with ProcessPoolExecutor(processes, max_tasks_per_child=1) as pool:
        running = {pool.submit(_run_headline, scale, *task): task for task in wanted}
        for future in as_completed(running):
            name, seed = running[future]
            if (error := future.exception()) is not None:
                common.say(f"{name}, seed {seed}: {error!r}; the other headlines are still simulated and stored")
                errors.append(error)
            else:
                done[name, seed] = future.result()
    if errors:
        raise errors[0]
    return done


def _run_headline(scale: Scale, name: str, seed: int) -> list[Line]:
    """The lines of one headline with one seed."""
    gc.set_threshold(200_000, 50, 50)  # millions of small objects live as long as the simulation
    return list(HEADLINES[name](replace(scale, seeds=range(seed, seed + 1))))


if __name__ == "__main__":
    sys.exit(main())
