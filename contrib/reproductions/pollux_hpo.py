"""A search for hyper-parameters, four trials at a time: table 3 of Pollux (OSDI 2021, section 5.4.2).

    python -m contrib.reproductions.pollux_hpo [--data DIR] [--trials N] [--seeds N] [--per-gpu N,N,...] [--json]

Each trial trains ResNet-18 on CIFAR-10; its network's width makes its steps shorter or longer. The baseline gives each
trial four GPUs of one node and a fixed batch from its begin to its end; Pollux changes GPUs and batches. Here four
nodes of four T4 stand for the paper's two nodes of eight A100, because that is what was published. With ``--data`` the
application is the published one, else a made-up one. TPE itself is left out: it draws the next trial's parameters, and
that a trial waits for the end of an earlier one is all that matters here (`contrib/examples/hpo.py` is a real search).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from contrib.benchmarks import common
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.generate.hpo import HpoWorkloadParameters, hpo_trials
from metasched.simulator.generate.pollux import synthetic_profiles
from metasched.simulator.records import Settings, Workload
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.pollux import read_profile
from metasched.throughput.goodput_profile import GoodputProfile
from policies.baselines.fifo import Fifo
from policies.pollux.policy import Pollux, PolluxParameters

APPLICATION, AT_ONCE, NODES, NODE_GPUS = "cifar10", 4, 4, 4
SETTINGS = Settings(round_seconds=60.0, min_round_seconds=10.0, start_seconds=30.0, restart_seconds=30.0)

PAPER = {"jct": 25 / 34 - 1, "makespan": 10 / 14 - 1}
"""What Pollux needs more than the baseline in table 3: average JCT (25 and 34 min), makespan (10 and 14 h)."""


@dataclass(frozen=True)
class Search:
    """One search: its makespan in hours, and the average JCT of its trials in minutes."""

    makespan: float
    jct: float


def search(profile: GoodputProfile, seed: int, trials: int, per_gpu: int | None) -> Search:
    """Simulate one search.

    Args:
        profile: the application.
        seed: of the trials.
        trials: their number.
        per_gpu: samples of a GPU in the batch of the baseline; None for Pollux.
    """
    adaptive = per_gpu is None
    parameters = HpoWorkloadParameters(trials=trials, gpus=NODE_GPUS, per_gpu=per_gpu, adaptive=adaptive)
    drawn = hpo_trials(parameters, seed, profile)
    nodes = tuple(Node(f"n{number}", profile.gpu_type, NODE_GPUS, 1 << 20, 1 << 50) for number in range(NODES))
    policy: Policy = Pollux(PolluxParameters(seed=seed)) if adaptive else Fifo()
    outcome = simulate(Workload(drawn.source, drawn.submissions, AT_ONCE), nodes, policy, SETTINGS)
    times = [job.jct for job in outcome.jobs if job.jct is not None]
    assert len(times) == trials  # noqa: S101  every trial ends
    return Search(outcome.ended / 3600, fmean(times) / 60)


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, with the standard deviation where there are several values."""
    more = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{more}"


def gap(pollux: Sequence[Search], baseline: Sequence[Search], figure: str) -> str:
    """What Pollux needs more than the baseline, in percent."""
    pairs = zip(pollux, baseline, strict=True)
    return spread([100 * (getattr(one, figure) / getattr(other, figure) - 1) for one, other in pairs], 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, help="folder of the public data; none for a made-up application")
    parser.add_argument("--trials", type=common.positive, default=100, help="trials of a search (default 100)")
    parser.add_argument("--seeds", type=common.positive, default=1, help="searches, from seed 0 on (default 1)")
    common.add_numbers(parser, "--per-gpu", (32, 64, 128), "samples of a GPU in the batch of the baseline")
    given = parser.parse_args(argv)
    folder = None if given.data is None else given.data / "pollux" / "traces" / APPLICATION
    profile = synthetic_profiles()[APPLICATION] if folder is None else read_profile(folder)
    runs: dict[int | None, list[Search]] = {None: [], **{size: [] for size in given.per_gpu}}
    for seed in range(given.seeds):
        for per_gpu, found in runs.items():
            found.append(search(profile, seed, given.trials, per_gpu))
            common.say(f"seed {seed}, {per_gpu or 'pollux'}: {found[-1]}")
    pollux = runs[None]
    print("| policy | average JCT min | makespan h | pollux: JCT % | pollux: makespan % |\n|---|---|---|---|---|")
    for per_gpu, found in runs.items():
        cells = f"{spread([one.jct for one in found], 1)} | {spread([one.makespan for one in found], 2)}"
        gaps = " | " if per_gpu is None else f"{gap(pollux, found, 'jct')} | {gap(pollux, found, 'makespan')}"
        print(f"| {'pollux' if per_gpu is None else f'static, {per_gpu} samples per GPU'} | {cells} | {gaps} |")
    print(f"paper: JCT {100 * PAPER['jct']:.0f} %, makespan {100 * PAPER['makespan']:.0f} %")
    result = {str(per_gpu or "pollux"): [asdict(one) for one in found] for per_gpu, found in runs.items()}
    common.finish(result, as_json=given.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
