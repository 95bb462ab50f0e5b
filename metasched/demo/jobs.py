"""The demo's jobs: when each is submitted, its script, and the daemon's configuration.

One node has v100 GPUs, and three jobs ask for them. Policy LAS favours jobs with little attained service:

1. ``wide`` is submitted first and gets all four. Above the threshold of attained service it falls to the second queue.
2. ``deep`` is submitted, is favoured, and gets two GPUs: ``wide`` is resized from four to two.
3. ``short`` is submitted when ``deep`` has fallen to the second queue as well, and gets two GPUs: ``deep``, which
   started later than ``wide``, is preempted until ``short``, whose tag says ``preempt=no``, has ended.
4. When the others have ended, ``wide`` grows to four again.

``spread`` trains on two nodes of the other type meanwhile. A job is submitted when others have made
progress, never by the clock, so the demo is the same on a slow machine.
"""

from __future__ import annotations

import getpass
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.devcluster import NodeGroup, Settings
from metasched.shared_dir.published_status import JobStatus, Status

SETTINGS = Settings((NodeGroup(1, 4, "v100"), NodeGroup(3, 4, "k80")))
THRESHOLD_GPU_SECONDS = 24.0
ChosenPolicy = tuple[str, Mapping[str, Any]]
"""A policy's name and its parameters, as the configuration has them."""
_ENOUGH_STEPS = 40


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the demo.

    Attributes:
        name: name of the job and of its directory.
        tag: text after ``metasched`` in the job's comment.
        nodes, gpus_per_node, gpu_type: the request to Slurm.
        epochs: number of epochs that the job trains.
        after: name of the job that must have trained some steps, and attained more service than the threshold, before.
    """

    name: str
    tag: str
    nodes: int
    gpus_per_node: int
    gpu_type: str
    epochs: int
    after: str | None = None

    def due(self, status: Status) -> bool:
        """Whether the job is to be submitted at this status of the cluster."""
        if self.after is None:
            return True
        return any(job.name == self.after and _is_past_threshold(job) for job in (*status.jobs, *status.finished))

    def script(self, seconds_per_step: float) -> str:
        """Return the job's sbatch script."""
        train = shlex.join([sys.executable, "-m", "metasched.demo.train", "--epochs", str(self.epochs)])
        return f"""#!/bin/bash
#SBATCH --job-name={self.name}
#SBATCH --comment="{f"metasched {self.tag}".strip()}"
#SBATCH --nodes={self.nodes} --ntasks-per-node={self.gpus_per_node} --gres=gpu:{self.gpu_type}:{self.gpus_per_node}
#SBATCH --output=output.txt
export OMP_NUM_THREADS=1 TMPDIR="$PWD"
exec metasched-run {train} --seconds-per-step {seconds_per_step}
"""


def _is_past_threshold(job: JobStatus) -> bool:
    return (job.progress_steps or 0) >= _ENOUGH_STEPS and job.attained_service > THRESHOLD_GPU_SECONDS


JOBS = (
    DemoJob("wide", "min_gpus=1 max_gpus=4", 1, 4, "v100", epochs=12),
    DemoJob("spread", "", 2, 1, "k80", epochs=8),
    DemoJob("deep", "", 1, 2, "v100", epochs=4, after="wide"),
    DemoJob("short", "preempt=no", 1, 2, "v100", epochs=2, after="deep"),
)


LAS: ChosenPolicy = ("las", {"queue_thresholds_gpu_seconds": [THRESHOLD_GPU_SECONDS], "promote_knob": 1000})
"""Name and parameters of the policy under which the jobs preempt and resize each other."""


def configuration(state: Path, shared: Path, policy: ChosenPolicy = LAS) -> str:
    """Return the text of the configuration file of the daemon and the web page."""
    name, parameters = policy
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in parameters.items())
    return f"""[paths]
state = "{state}"
shared = "{shared}"

[access]
admins = ["{getpass.getuser()}"]

[shadow]
policies = ["fifo"]
pause_seconds = 2

[forecast]
pause_seconds = 2

[web]
state = "{state}/web"

[schedule]
round_seconds = 5
min_round_seconds = 1
poll_seconds = 0.5
grace_seconds = 30

[policy]
name = {json.dumps(name)}

[policy.parameters]
{keys}
"""
