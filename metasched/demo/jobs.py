"""The demo's jobs: when each is submitted, its script, and the daemon's configuration.

One node has v100 GPUs, and three jobs want them; LAS favours those that have received little so far:

1. ``wide`` comes first and takes all four. Having received more than the threshold, it falls to the second queue.
2. ``deep`` comes, is favoured, and takes two: ``wide`` is resized from four to two.
3. ``short`` comes when ``deep`` has fallen to the second queue as well, and takes two: ``deep``, which started later
   than ``wide``, is preempted until ``short``, whose tag says ``preempt=no``, is done.
4. When the others are done, ``wide`` grows to four again.

``spread`` trains on two nodes of the other type meanwhile. A job is submitted when others have made
progress, never by the clock, so the demo is the same on a slow machine.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from metasched.devcluster import NodeGroup
from metasched.shared_dir.published_status import JobStatus, Status

GROUPS = (NodeGroup(1, 4, "v100"), NodeGroup(3, 4, "k80"))
THRESHOLD_GPU_SECONDS = 24.0
_ENOUGH_STEPS = 40


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the demo.

    Attributes:
        name: name of the job and of its directory.
        tag: text after ``metasched`` in the job's comment.
        nodes, gpus_per_node, gpu_type: request to Slurm.
        epochs: number of epochs that the job trains.
        after: name of the job that must have trained some steps, and received more than the threshold, before.
    """

    name: str
    tag: str
    nodes: int
    gpus_per_node: int
    gpu_type: str
    epochs: int
    after: str | None = None

    def due(self, status: Status | None) -> bool:
        """Whether the job is to be submitted now."""
        if self.after is None:
            return True
        jobs = () if status is None else (*status.jobs, *status.finished)
        return any(job.name == self.after and _has_had_its_share(job) for job in jobs)

    def script(self, seconds_per_step: float) -> str:
        """The job's sbatch script."""
        train = shlex.join([sys.executable, "-m", "metasched.demo.train", "--epochs", str(self.epochs)])
        return f"""#!/bin/bash
#SBATCH --job-name={self.name}
#SBATCH --comment="{f"metasched {self.tag}".strip()}"
#SBATCH --nodes={self.nodes} --ntasks-per-node={self.gpus_per_node} --gres=gpu:{self.gpu_type}:{self.gpus_per_node}
#SBATCH --output=output.txt
export OMP_NUM_THREADS=1 TMPDIR="$PWD"
exec metasched-run {train} --seconds-per-step {seconds_per_step}
"""


def _has_had_its_share(job: JobStatus) -> bool:
    return (job.progress_steps or 0) >= _ENOUGH_STEPS and job.attained_service > THRESHOLD_GPU_SECONDS


JOBS = (
    DemoJob("wide", "min_gpus=1 max_gpus=4", 1, 4, "v100", epochs=12),
    DemoJob("spread", "", 2, 1, "k80", epochs=8),
    DemoJob("deep", "", 1, 2, "v100", epochs=4, after="wide"),
    DemoJob("short", "preempt=no", 1, 2, "v100", epochs=2, after="deep"),
)


def configuration(state: Path, shared: Path) -> str:
    """Text of the daemon's configuration file."""
    return f"""[paths]
state = "{state}"
shared = "{shared}"

[schedule]
round_seconds = 5
min_round_seconds = 1
poll_seconds = 0.5
grace_seconds = 30

[policy]
name = "las"

[policy.parameters]
queue_thresholds_gpu_seconds = [{THRESHOLD_GPU_SECONDS}]
promote_knob = 1000
"""
