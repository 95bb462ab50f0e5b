"""The jobs that are run under the daemon and simulated: what predicting and reacting is worth, and their trainer."""

import json
import os
import subprocess
import sys

import pytest

from contrib.benchmarks.daemon_fidelity import FIRST_BATCH, GREEDY, TRAINER, DoublingTraining, jobs, simulated
from metasched.core.model import Node
from metasched.simulator.metrics import measure
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.linear_scaling import LinearTraining
from policies.shockwave.policy import Shockwave, ShockwaveParameters


def rho(parameters):
    """The finish-time fairness of four jobs on two GPUs, by uid; "1" and "2" double their batch twice."""
    trainings = {
        "0": (0.0, LinearTraining(100.0, 1.0)),
        "1": (0.0, DoublingTraining(120.0, (26.0, 73.0), step_seconds=1.0)),
        "2": (0.0, DoublingTraining(120.0, (33.0, 46.0), step_seconds=1.0)),
        "3": (16.5, LinearTraining(20.0, 1.0)),
    }
    made = tuple(Submission(trace_job(uid, "paced", at, 1), each) for uid, (at, each) in trainings.items())
    two = tuple(Node(f"n{each}", "v100", 1, cpus=0, memory=0) for each in range(2))
    settings = Settings(round_seconds=8.0, min_round_seconds=1.0, start_seconds=1.0, restart_seconds=1.0)
    policy = Shockwave(ShockwaveParameters(restart_seconds=1.0, **parameters))
    workload = Workload("four jobs", made)
    return measure(simulate(workload, two, policy, settings), workload).fairness["shockwave"].rho


def test_a_job_whose_batch_doubles_twice_ends_within_its_fair_time():
    """Greedy and lazy, Shockwave takes the job for longer than it is, so that it ends too late."""
    assert max(rho({}).values()) < 0.9
    assert rho(dict(GREEDY))["2"] > 1.05


def test_the_jobs_of_the_comparison_are_fair_in_the_simulator():
    """A third of the jobs: all figures are known, and a job alone has a rho below 1."""
    found = simulated(jobs(7, 1), 1.0, {})
    assert 0.0 < found.jct < found.makespan
    assert found.adapting <= found.worst
    assert simulated(jobs(1, 1), 0.0, {}).worst == pytest.approx(1.0)


def trained(directory, *marks, total=12):
    """Run the trainer to its end, and return its report lines."""
    env = {
        **os.environ,
        "METASCHED_REPORTS": str(directory / "reports"),
        "METASCHED_RUN": "1",
        "METASCHED_SIGNAL": "SIGUSR2",
        "METASCHED_EXIT_CODE": "85",
    }
    argv = [sys.executable, "-I", "-S", TRAINER, "0.001", str(total), str(FIRST_BATCH), *map(str, marks)]
    subprocess.run(argv, env=env, cwd=directory, timeout=60, check=True)
    *_, last = sorted((directory / "reports").glob("*.jsonl"))
    return [json.loads(line) for line in last.read_text().splitlines()]


def test_the_trainer_doubles_its_batch_and_resumes(tmp_path):
    """Each change of the batch is reported at once; a longer training goes on from the checkpoint."""
    lines = trained(tmp_path, 2, 6)
    steps = [line for line in lines if line["kind"] == "steps"]
    assert [line["global_batch"] for line in steps] == [FIRST_BATCH, 2 * FIRST_BATCH, 4 * FIRST_BATCH]
    assert [line["progress"] for line in steps] == [2, 6, 14]
    assert lines[-1]["kind"] == "end"
    later = trained(tmp_path, 2, 6, total=22)
    assert (later[0]["resumed"], later[0]["progress"], later[-1]["progress"]) == (True, 14, 22)
