"""The wrapper and a real trainer on real Slurm."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UID = "0123456789abcdef"
PYTHON = f"env CUDA_VISIBLE_DEVICES= {sys.executable}"  # the cluster's GPUs are fake, its numbers may choose real ones
EXAMPLE = f"{ROOT}/contrib/examples/train_elastic.py --samples 640 --seconds-per-step 0.05"
TRAIN = f"{PYTHON} {EXAMPLE}"


class Job:
    """One sbatch job of `nodes` x `nodes` GPUs, with the daemon's part played by the test."""

    def __init__(self, cluster, directory, command, requeue_by, nodes):
        self.cluster = cluster
        self.directory = directory
        self.shared = directory / "shared"
        (self.shared / "reports").mkdir(parents=True)
        script = directory / "job.sh"
        script.write_text(
            "#!/bin/bash\n"
            f"export METASCHED_SHARED={self.shared} PYTHONPATH={ROOT} OMP_NUM_THREADS=1\n"
            f"{ROOT}/slurm_scripts/metasched-run {command}\n"
        )
        gpus = [f"--nodes={nodes}", f"--gpus-per-node=v100:{nodes}", f"--ntasks-per-node={nodes}"]
        output = ["--output=output.txt", "--open-mode=append", f"--chdir={directory}"]
        found = cluster.run("sbatch", "--parsable", "--hold", "--requeue", *gpus, *output, str(script))
        self.id = found.strip().partition(";")[0]
        self.requeue_by = requeue_by
        self.write_lease(run=1)
        cluster.run("scontrol", "release", self.id)

    def write_lease(self, run, stop=None):
        box = self.shared / "mailbox" / UID
        box.mkdir(parents=True, exist_ok=True)
        lease = {
            "format": 1,
            "uid": UID,
            "address": self.id,
            "run": run,
            "requeue": {"by": self.requeue_by, "exit_code": 85},
            "signal": "SIGUSR2",
            "stop": stop,
        }
        (box / "partial").write_text(json.dumps(lease))
        (box / "partial").replace(box / "lease.json")
        slurm_job_id = self.shared / "mailbox" / "address" / self.id
        slurm_job_id.parent.mkdir(exist_ok=True)
        slurm_job_id.write_text(f"{UID}\n")

    def show(self, key):
        text = self.cluster.run("scontrol", "-o", "show", "job", self.id)
        return re.search(rf"(?:^|\s){key}=(\S+)", text)[1]

    def output(self):
        path = self.directory / "output.txt"
        return path.read_text() if path.exists() else ""

    def reports(self, generation, kind):
        path = self.shared / "reports" / UID / f"incarnation-{generation}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def wait(self, condition, what):
        end = time.monotonic() + 240
        while not (found := condition()):
            assert time.monotonic() < end, f"timed out waiting for {what}; the job's output: {self.output()}"
            time.sleep(0.1)
        return found

    def wait_state(self, state):
        self.wait(lambda: self.show("JobState") == state, f"state {state}")

    def wait_report(self, generation, kind):
        return self.wait(lambda: self.reports(generation, kind), f"{kind} of generation {generation}")[0]


@pytest.fixture
def submit(tmp_path):
    """Submit a job; it is cancelled at the end."""
    jobs = []

    def make(cluster, command=f"{TRAIN} --epochs 1000", requeue_by="slurm", nodes=1):
        jobs.append(Job(cluster, tmp_path, command, requeue_by, nodes))
        return jobs[-1]

    yield make
    for job in jobs:
        job.cluster.run("scancel", job.id)
        job.wait(lambda job=job: job.id not in job.cluster.run("squeue", "-h", "-o", "%A").split(), "the end")


def test_a_stopped_job_resumes_at_another_size(clean_cluster, submit):
    """The signal stops all ranks, Slurm requeues and holds, and the job resumes at another size."""
    slow_in_run_1 = "--seconds-per-step $((METASCHED_RUN == 1))"
    job = submit(clean_cluster, f"bash -c 'exec {TRAIN} --epochs 12 {slow_in_run_1}'", nodes=2)
    assert job.wait_report(1, "start")["world_size"] == 4
    job.wait_report(1, "steps")
    job.cluster.run("scancel", "-s", "USR2", job.id)
    job.wait_state("PENDING")
    assert job.show("Restarts") == "1"  # though the exit code asks for a requeue as well
    stop = job.wait_report(1, "stop")
    assert (stop["cause"], stop["checkpointed"]) == ("signal", True)
    assert stop["step"] > 0

    job.write_lease(run=2)
    size = ["NumNodes=1-1", "NumTasks=2", "NumCPUs=2", "Gres=gpu:v100:2", "StartTime=now+1"]
    job.cluster.run("scontrol", "update", f"JobId={job.id}", *size)
    job.cluster.run("scontrol", "release", job.id)
    start = job.wait_report(2, "start")
    assert (start["run"], start["world_size"], start["step"], start["resumed"]) == (2, 2, stop["step"], True)
    job.wait_state("COMPLETED")
    assert job.reports(2, "end")[0]["step"] == 120
    assert "accuracy" in job.output()


def test_torchrun_is_stopped_and_resized(clean_cluster, submit):
    """Torchrun on two nodes is stopped by the signal alone, requeued by its exit code, and ends at another size."""
    job = submit(clean_cluster, f"{PYTHON} -m torch.distributed.run {EXAMPLE} --epochs 1000", nodes=2)
    assert job.wait_report(1, "start")["world_size"] == 4
    job.wait_report(1, "steps")
    job.cluster.run("scancel", "-s", "USR2", job.id)
    job.wait_state("PENDING")
    assert job.show("Restarts") == "1"
    stop = job.wait_report(1, "stop")
    assert (stop["cause"], stop["checkpointed"]) == ("signal", True)

    job.write_lease(run=2)
    size = ["NumNodes=1-1", "NumTasks=2", "NumCPUs=2", "Gres=gpu:v100:2", "StartTime=now+1"]
    job.cluster.run("scontrol", "update", f"JobId={job.id}", *size)
    job.cluster.run("scontrol", "release", job.id)
    start = job.wait_report(2, "start")
    assert (start["run"], start["world_size"], start["step"], start["resumed"]) == (2, 2, stop["step"], True)
    job.wait_report(2, "steps")
    job.cluster.run("scontrol", "requeuehold", job.id)  # SIGTERM to all processes of the step
    again = job.wait_report(2, "stop")
    assert (again["cause"], again["checkpointed"]) == ("sigterm", True)
    job.wait_state("PENDING")


def test_the_wrapper_requeues_without_requeue_exit_hold(make_cluster, submit):
    """The wrapper requeues and holds; it does not requeue a cancelled job."""
    job = submit(make_cluster(requeue_exit=None), requeue_by="wrapper")
    job.wait_report(1, "steps")
    job.cluster.run("scancel", "-s", "USR2", job.id)
    job.wait_state("PENDING")
    assert job.show("Reason") == "job_requeued_in_held_state"
    assert job.show("Restarts") == "1"
    assert job.wait_report(1, "stop")["checkpointed"]

    job.write_lease(run=2)
    job.cluster.run("scontrol", "update", f"JobId={job.id}", "StartTime=now+1")
    job.cluster.run("scontrol", "release", job.id)
    job.wait_report(2, "steps")
    job.cluster.run("scancel", job.id)
    assert job.wait_report(2, "stop")["cause"] == "sigterm"
    job.wait_state("CANCELLED")


def test_slurms_own_requeue_leaves_time_for_a_checkpoint(clean_cluster, submit):
    """`scontrol requeue` gives the trainer its time to checkpoint."""
    job = submit(clean_cluster)
    job.wait_report(1, "steps")
    job.cluster.run("scontrol", "requeuehold", job.id)
    stop = job.wait_report(1, "stop")
    assert (stop["cause"], stop["checkpointed"]) == ("sigterm", True)
    job.wait_state("PENDING")


def test_a_stop_before_the_trainer_handles_signals_requeues(clean_cluster, submit):
    """A command that the signal kills is requeued when the lease requests a stop."""
    job = submit(clean_cluster, "bash -c 'echo up; sleep 60'", nodes=2)
    job.wait(lambda: job.output().count("up") == 4, "four tasks")
    job.write_lease(run=1, stop={"run": 1, "requested": time.time(), "deadline": time.time() + 60, "reason": "a test"})
    job.cluster.run("scancel", "-s", "USR2", job.id)
    job.wait_state("PENDING")
