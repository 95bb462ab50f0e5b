"""Jobs under the daemon on a private Slurm, and the same jobs in the simulator (Shockwave, NSDI 2023, Table 3).

    python -m contrib.benchmarks.daemon_fidelity [--jobs N] [--seed N] [--greedy] [--json]

Jobs have 1, 2 or 4 GPUs of two nodes of four, and train 10 to 80 s alone. Half of them double their batch twice, by a
rule that they declare. Their speed does not depend on the machine. The simulator has the arrivals of the real run, and
the mean time that its runs held GPUs without training. ``--greedy`` repeats both with a Shockwave that neither predicts
nor reacts to another batch.
"""

from __future__ import annotations

import math
import random
import shlex
import statistics
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from contrib.benchmarks import common
from contrib.benchmarks.preemption import BenchmarkError
from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchRegime
from metasched.core.finish_time_fairness import UNFAIR
from metasched.core.model import Node, Placement, Speed
from metasched.devcluster import DevCluster, NodeGroup
from metasched.shared_dir import published_status
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.linear_scaling import LinearTraining
from metasched.throughput.training import Pace, Training
from policies.shockwave.policy import Shockwave, ShockwaveParameters

NODES, NODE_GPUS, GPU_TYPE = 2, 4, "v100"
WIDTHS: Mapping[int, float] = {1: 0.6, 2: 0.3, 4: 0.1}
SECONDS = (10.0, 80.0)
GAP_SECONDS = 3.0
FIRST_BATCH = 16
STEP_SECONDS = 0.25
ROUND, MIN_ROUND = 8.0, 1.0
MOST_SECONDS = 900.0
GREEDY: Mapping[str, object] = {"predictor": "greedy", "reactive": False}
TRAINER = Path(__file__).with_name("paced_trainer.py")

CONFIG = """
[paths]
state = "{base}/state"
shared = "{base}/shared"

[schedule]
round_seconds = {round}
min_round_seconds = {least}
poll_seconds = 0.3
busy_poll_seconds = 0.1
start_seconds = 60

[policy]
name = "shockwave"

[policy.parameters]
{parameters}
"""


@dataclass(frozen=True, slots=True)
class DoublingTraining:
    """A training whose script doubles its batch, and whose steps take equally long at all: a ``ScriptedTraining``.

    Attributes:
        total: steps at the first batch in all.
        doublings: progress at which the batch doubles, ascending.
        gpus: the only number of GPUs that it runs on.
        step_seconds: the duration of a step.
    """

    total: float
    doublings: tuple[float, ...]
    gpus: int = 1
    step_seconds: float = STEP_SECONDS

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The speed until the batch doubles."""
        del placement, co_runner
        now = bisect_right(self.doublings, done)
        return Pace(2**now / self.step_seconds, min(self.doublings[now : now + 1], default=math.inf))

    def known(self, done: float) -> Speed:
        """The present speed."""
        return self._speed(2.0 ** bisect_right(self.doublings, done))

    def reported_batching(self, done: float) -> Batching:
        """The batches so far, with the declared rule and limit."""
        begins = (0.0, *self.doublings)[: bisect_right(self.doublings, done) + 1]
        return Batching(
            FIRST_BATCH,
            BatchControl.SCRIPT,
            global_batch=FIRST_BATCH << (len(begins) - 1),
            max_batch=FIRST_BATCH << len(self.doublings),
            regimes=tuple(BatchRegime(FIRST_BATCH << number, began) for number, began in enumerate(begins)),
            adapts=AdaptationRule.GNS,
            most_regimes=len(self.doublings) + 1,
        )

    @property
    def batch_speeds(self) -> Mapping[int, Speed]:
        """The speed in optimizer steps, at every batch."""
        return {FIRST_BATCH << number: self._speed(1.0) for number in range(len(self.doublings) + 1)}

    def _speed(self, factor: float) -> LinearTraining:
        return LinearTraining(self.total, self.gpus * self.step_seconds / factor)


@dataclass(frozen=True, slots=True)
class Figures:
    """What is compared.

    Attributes:
        makespan: seconds from the first arrival to the last end.
        jct: the average JCT in seconds.
        worst: the worst rho.
        unfair: the part of the jobs that are treated unfairly.
        adapting: the worst rho of the jobs that double their batch.
    """

    makespan: float
    jct: float
    worst: float
    unfair: float
    adapting: float


def jobs(count: int, seed: int) -> Workload:
    """The jobs, with the arrivals at which they are to be submitted."""
    rng = random.Random(f"fidelity {seed}")  # noqa: S311  no secret
    submissions, submitted = [], 0.0
    for number in range(1, count + 1):
        gpus = rng.choices(list(WIDTHS), list(WIDTHS.values()))[0]
        total = float(round(rng.uniform(*SECONDS) / STEP_SECONDS))
        doubles = number % 2 == 0
        first = round(total * rng.uniform(0.1, 0.3))
        marks = (float(first), float(round(first + total * rng.uniform(0.1, 0.3))))
        training = DoublingTraining(total, marks, gpus) if doubles else LinearTraining(total, STEP_SECONDS * gpus)
        submissions.append(Submission(trace_job(f"{number:03}", "paced", submitted, gpus), training))
        submitted += rng.expovariate(1.0 / GAP_SECONDS)
    return Workload(f"{count} jobs", tuple(submissions))


def figures(workload: Workload, jct: Mapping[str, float]) -> Figures:
    """The figures of some completion times, by uid."""
    contention = max(len(jct) / (NODES * NODE_GPUS), 1.0)
    rho = {uid: seconds / (alone(one) * contention) for uid, one in _by_uid(workload).items() for seconds in [jct[uid]]}
    begun = min(one.job.submitted for one in workload.submissions)
    ends = [one.job.submitted + jct[one.job.uid] for one in workload.submissions]
    return Figures(
        max(ends) - begun,
        statistics.fmean(jct.values()),
        max(rho.values()),
        sum(each > UNFAIR["shockwave"] for each in rho.values()) / len(rho),
        max(
            (rho[uid] for uid, one in _by_uid(workload).items() if isinstance(one.training, DoublingTraining)),
            default=0.0,
        ),
    )


def alone(one: Submission) -> float:
    """The seconds of a job's training on the GPUs that it asks for."""
    spread = (one.job.gpus,)
    place, done, seconds = Placement(("n1",), one.job.gpus, GPU_TYPE, spread), 0.0, 0.0
    while done < one.training.total:
        rate, until = one.training.pace(done, place)
        until = min(until, one.training.total)
        seconds, done = seconds + (until - done) / rate, until
    return seconds


def simulated(workload: Workload, overhead: float, parameters: Mapping[str, object]) -> Figures:
    """The figures in the simulator, where a start takes ``overhead`` seconds."""
    nodes = tuple(Node(f"n{each}", GPU_TYPE, NODE_GPUS, cpus=0, memory=0) for each in range(1, NODES + 1))
    settings = Settings(
        round_seconds=ROUND, min_round_seconds=MIN_ROUND, start_seconds=overhead, restart_seconds=overhead
    )
    policy = Shockwave(ShockwaveParameters.model_validate(dict(parameters)))
    outcome = simulate(workload, nodes, policy, settings)
    return figures(workload, {job.uid: job.jct or 0.0 for job in outcome.jobs})


def live(workload: Workload, parameters: Mapping[str, object]) -> tuple[Workload, Figures, float]:
    """The jobs with their real arrivals, their figures under the daemon, and the mean seconds of a start."""
    with common.private_cluster(NodeGroup(NODES, NODE_GPUS, GPU_TYPE)) as (cluster, base):
        (base / "shared").mkdir()
        words = "\n".join(
            f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
            for key, value in parameters.items()
        )
        config = CONFIG.format(base=base, round=ROUND, least=MIN_ROUND, parameters=words)
        with common.daemon(cluster, base, config):
            _wait("the daemon publishes", (base / "shared" / "status.json").exists)
            ids = _submitted(cluster, base, workload)
            _wait("all jobs end", lambda: len(_ended(base, ids)) == len(ids))
        ended = _ended(base, ids)
        wrong = [job.slurm_job_id for job in ended.values() if job.status != "completed"]
        if wrong:
            raise BenchmarkError(f"jobs {', '.join(wrong)} did not complete")
        trained = [float(line) for uid in ids for line in (base / f"job-{uid}" / "trained").read_text().split()]
        overhead = (sum(job.ran_seconds for job in ended.values()) - sum(trained)) / len(trained)
    first = min(job.submitted for job in ended.values())
    arrived = {uid: ended[uid].submitted - first for uid in ids}
    real = tuple(replace(one, job=one.job.evolve(submitted=arrived[one.job.uid])) for one in workload.submissions)
    ordered = replace(workload, submissions=tuple(sorted(real, key=lambda one: (one.job.submitted, one.job.uid))))
    jct = {uid: (job.finished or 0.0) - job.submitted for uid, job in ended.items()}
    return ordered, figures(ordered, jct), max(overhead, 0.0)


def _by_uid(workload: Workload) -> dict[str, Submission]:
    return {one.job.uid: one for one in workload.submissions}


def _wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not within {MOST_SECONDS:g} s: {what}")
        time.sleep(0.2)


def _submitted(cluster: DevCluster, base: Path, workload: Workload) -> dict[str, str]:
    """The Slurm job ids of the jobs, each submitted at its arrival, by uid."""
    begun, ids = time.monotonic(), {}
    for one in workload.submissions:
        time.sleep(max(begun + one.job.submitted - time.monotonic(), 0.0))
        directory = base / f"job-{one.job.uid}"
        directory.mkdir()
        marks = one.training.doublings if isinstance(one.training, DoublingTraining) else ()
        argv = [sys.executable, "-I", "-S", TRAINER, STEP_SECONDS, one.training.total, FIRST_BATCH, *marks]
        script = directory / "job.sh"
        script.write_text(f"#!/bin/bash\nexec metasched-run {shlex.join(map(str, argv))}\n")
        gpus = one.job.gpus
        tag = f"metasched model=paced-{gpus} total_steps={int(one.training.total)}{' batch=own' if marks else ''}"
        options = ["--nodes=1", f"--ntasks={gpus}", f"--gres=gpu:{gpus}", f"--comment={tag}", f"--chdir={directory}"]
        done = subprocess.run(
            ["sbatch", "--parsable", "--output=out.txt", *options, str(script)],
            env=common.environment(cluster, base / "shared"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(f"sbatch: {done.stderr.strip()}")
        ids[one.job.uid] = done.stdout.strip()
    return ids


def _ended(base: Path, ids: Mapping[str, str]) -> dict[str, published_status.JobStatus]:
    """The jobs that have ended, by uid."""
    found = {job.slurm_job_id: job for job in published_status.read(base / "shared").finished}
    return {uid: found[slurm_job_id] for uid, slurm_job_id in ids.items() if slurm_job_id in found}


HEAD = "| policy | where | makespan, s | average JCT, s | worst rho | unfair, % | worst rho of adapting jobs |"


def line(policy: str, where: str, found: Figures) -> str:
    """A row of the table."""
    cells = (
        f"{found.makespan:.0f} | {found.jct:.0f} | {found.worst:.2f} | {100 * found.unfair:.1f} | {found.adapting:.2f}"
    )
    return f"| {policy} | {where} | {cells} |"


def main(given: Sequence[str] | None = None) -> None:
    """Run, simulate, and print the table."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=common.positive, default=20)
    parser.add_argument("--seed", type=common.positive, default=1)
    parser.add_argument("--greedy", action="store_true", help="also without predictions and reactions")
    options = parser.parse_args(given)
    variants: dict[str, Mapping[str, object]] = {"shockwave": {}} | ({"greedy, lazy": GREEDY} if options.greedy else {})
    printed = {}
    print(f"{HEAD}\n|---|---|---|---|---|---|---|")
    for name, parameters in variants.items():
        workload, real, overhead = live(jobs(options.jobs, options.seed), parameters)
        model = simulated(workload, overhead, parameters)
        common.say(f"a start takes {overhead:.2f} s")
        print(line(name, "daemon", real), line(name, "simulator", model), sep="\n", flush=True)
        change = [
            100 * (ours / theirs - 1) for ours, theirs in ((model.makespan, real.makespan), (model.jct, real.jct))
        ]
        print(f"| {name} | difference | {change[0]:+.1f} % | {change[1]:+.1f} % | | | |", flush=True)
        printed[name] = {"makespan": change[0], "jct": change[1]}
    common.finish(printed, as_json=options.json)


if __name__ == "__main__":
    main()
