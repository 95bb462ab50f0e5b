"""A training on a cluster whose size follows it (Pollux, OSDI 2021, section 5.4.1, Figure 9): table ``autoscale``.

    python -m contrib.reproductions.pollux_autoscale --data DIR [--application NAME] [--nodes N,N,...] [--json]

The number of nodes is that of Pollux's advice (``policies/pollux/autoscaling.py``), asked for once a minute. It goes
by goodput, or by throughput alone, for which every sample counts alike, as the auto-scaler of Or et al. has it (MLSys
2020). Each uses the batch that it takes for the best. The time of an iteration is fitted to what the job has run. A
change of the nodes costs a restart. The cost is that of all node-hours.

The paper does not say how many nodes there were at most; the more there are, the more the training by throughput gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from contrib.benchmarks import common
from metasched.core.batching import GradientNoise
from metasched.core.model import Job, Node, Placement, Snapshot, Status
from metasched.simulator.agent import Agent
from metasched.simulator.traces.pollux import read_profile, submission
from metasched.throughput.adaptive_profile import AdaptiveProfileTraining
from metasched.throughput.goodput_profile import GoodputProfile
from metasched.throughput.job_goodput import job_goodput
from policies.pollux.autoscaling import GROW_ABOVE, MOST_GROWTH, SHRINK_BELOW, node_advice
from policies.pollux.round_problem import round_problem

NODE_GPUS = 4
STEP_SECONDS = 60.0
RESTART_SECONDS = 30.0
NO_SIGNAL = GradientNoise(1.0, 1e30)
"""The noise under which a larger batch is as efficient as the first one."""

GOODPUT, THROUGHPUT = "goodput", "throughput"

PAPER = {"cost": -25.0, "hours": 6.0}
"""What Figure 9's run by goodput costs more than the run by throughput, in percent."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        hours: its duration.
        node_hours: its cost.
        nodes: the number of nodes in each of ten equal parts of its progress, the mean over time.
        efficiency: the statistical efficiency, the mean over time.
        restarts: how often the number of nodes changed.
    """

    hours: float
    node_hours: float
    nodes: tuple[float, ...]
    efficiency: float
    restarts: int


def train(profile: GoodputProfile, *, by_goodput: bool, most_nodes: int) -> Run:
    """Train an application to its end, on as many nodes as the advice says.

    Args:
        profile: the application.
        by_goodput: whether batch and nodes are chosen by goodput; else by throughput.
        most_nodes: the most nodes of the cluster.
    """
    training = AdaptiveProfileTraining(profile, profile.first_batch)
    agent = Agent(training, fits=True)
    gpus = NODE_GPUS * most_nodes
    job = submission("1", profile.name, 0.0, profile, gpus=1, batch=profile.first_batch, adaptive=True).job
    job = job.evolve(max_gpus=min(job.max_gpus, gpus), status=Status.RUNNING, run=1, restart_seconds=RESTART_SECONDS)
    done = now = node_seconds = efficiency = 0.0
    nodes, lost, restarts = 1, 0.0, 0
    parts = [[0.0, 0.0] for _ in range(10)]  # of the progress: node-seconds and seconds
    while done < training.total:
        place = placement(nodes, profile.gpu_type, job.max_gpus)
        job = job.evolve(placement=place, most_gpus=max(job.most_gpus, place.gpus))
        seen = seen_job(agent.report(job, done), by_goodput=by_goodput)
        if seen.batching is not None:
            best = job_goodput(seen, [profile.gpu_type])[profile.gpu_type].best(place.gpus, multi_node=nodes > 1)
            agent.plan = None if best is None else best.plan
        agent.measure(done, place)
        rate = agent.pace(done, place, None).steps_per_second
        seconds = min(STEP_SECONDS, lost + (training.total - done) / rate) if rate else STEP_SECONDS
        part = parts[min(int(10 * done / training.total), 9)]
        part[0] += nodes * seconds
        part[1] += seconds
        done += max(seconds - lost, 0.0) * rate
        batch = profile.first_batch if agent.plan is None else agent.plan.global_batch(place.gpus)
        batch = min(batch, profile.most_batch)
        efficiency += seconds * training.noise(done, batch).efficiency(profile.first_batch, batch)
        now, node_seconds, lost = now + seconds, node_seconds + nodes * seconds, max(lost - seconds, 0.0)
        wanted = min(advised(seen_job(agent.report(job, done), by_goodput=by_goodput), nodes, now), most_nodes)
        if wanted != nodes:
            nodes, lost, restarts = wanted, RESTART_SECONDS, restarts + 1
    shares = tuple(spent / seconds if seconds else math.nan for spent, seconds in parts)
    return Run(now / 3600, node_seconds / 3600, shares, efficiency / now, restarts)


def placement(nodes: int, gpu_type: str, most: int) -> Placement:
    """All GPUs of the nodes, or as many of each as the job can use."""
    return Placement(tuple(f"n{number}" for number in range(nodes)), max(min(NODE_GPUS, most // nodes), 1), gpu_type)


def seen_job(job: Job, *, by_goodput: bool) -> Job:
    """The job as the auto-scaler sees it."""
    return job if by_goodput or job.noise is None else job.evolve(noise=NO_SIGNAL)


def advised(job: Job, nodes: int, now: float) -> int:
    """The advised number of nodes for one job that has all present ones."""
    assert job.placement is not None  # noqa: S101  it runs
    there = tuple(Node(name, job.placement.gpu_type, NODE_GPUS, 1 << 20, 1 << 50) for name in job.placement.nodes)
    snapshot = Snapshot(now, 1, STEP_SECONDS, there, (job,))
    found = round_problem(
        snapshot, p=-1.0, avoid_interference=True, restart_seconds=RESTART_SECONDS, growth=MOST_GROWTH
    )
    (advice,) = node_advice(found, found.problem.present)
    assert advice.nodes == nodes  # noqa: S101  all nodes accept jobs
    return advice.advised


def compared(goodput: Run, throughput: Run) -> dict[str, float]:
    """What the run by goodput costs more than the run by throughput, and takes longer, in percent."""
    return {
        "cost": 100 * (goodput.node_hours / throughput.node_hours - 1),
        "hours": 100 * (goodput.hours / throughput.hours - 1),
    }


def table(runs: Mapping[tuple[int, str], Run]) -> list[str]:
    """The lines of the table, by the most nodes and what the cluster is scaled by."""
    head = (
        "nodes at most",
        "scaled by",
        "hours",
        "node-hours",
        "efficiency",
        "restarts",
        "nodes by tenth of the progress",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (most, name), run in runs.items():
        nodes = ", ".join(f"{one:.1f}" for one in run.nodes)
        cells = f"{run.hours:.2f} | {run.node_hours:.1f} | {run.efficiency:.0%} | {run.restarts} | {nodes}"
        lines.append(f"| {most} | {name} | {cells} |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    parser.add_argument("--application", default="imagenet", help="folder of the application (default imagenet)")
    common.add_numbers(parser, "--nodes", (8, 10, 16), "most nodes of the cluster")
    given = parser.parse_args(argv)
    profile = read_profile(given.data / "pollux" / "traces" / given.application)
    runs = {
        (most, name): train(profile, by_goodput=name == GOODPUT, most_nodes=most)
        for most in given.nodes
        for name in (GOODPUT, THROUGHPUT)
    }
    print(f"{given.application}: more nodes above a utility of {GROW_ABOVE:.2f}, fewer below {SHRINK_BELOW:.2f}\n")
    print("\n".join(table(runs)))
    found = {most: compared(runs[most, GOODPUT], runs[most, THROUGHPUT]) for most in given.nodes}
    for most, gaps in found.items():
        said = ", ".join(f"{name} {gap:+.0f} % (paper {PAPER[name]:+.0f} %)" for name, gap in gaps.items())
        print(f"by goodput, on {most} nodes at most: {said}")
    results = [{"nodes": most, "by": name, **asdict(run)} for (most, name), run in runs.items()]
    common.finish({"runs": results, "compared": found}, as_json=given.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
