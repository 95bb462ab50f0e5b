"""Published statuses for tests of those who read them."""

import time

from metasched.shared_dir.published_status import JobStatus, NodeStatus, Status

NOW = time.time()


def job(**changes):
    """Return the published status of a running job, with changed fields."""
    fields = {
        "uid": "0123456789abcdef",
        "slurm_job_id": "12",
        "name": "resnet",
        "user": "ada",
        "account": None,
        "status": "running",
        "gpus": 2,
        "min_gpus": 1,
        "max_gpus": 4,
        "preempt": "checkpoint",
        "reason": "1st of 2 in line",
        "nodes": {"n1": 2},
        "gpu_type": "v100",
        "submitted": NOW - 100,
        "run_started": NOW - 60,
        "runs": 2,
        "preemptions": 1,
        "attained_service": 160.0,
        "ran_seconds": 80.0,
        "waited_seconds": 20.0,
        "progress_steps": 120,
        "total_steps": 400,
        "steps_per_second": 2.0,
        "loss": 0.25,
        "world_sizes": (4, 2),
    }
    return JobStatus(**(fields | changes))


def waiting(**changes):
    """Return the published status of a held job, with changed fields."""
    fields = {
        "uid": "f" * 16,
        "slurm_job_id": "13",
        "name": "bert",
        "status": "held",
        "nodes": {},
        "gpu_type": None,
        "run_started": None,
        "runs": 0,
        "preemptions": 0,
        "attained_service": 0.0,
        "ran_seconds": 0.0,
        "progress_steps": None,
        "steps_per_second": None,
        "loss": None,
        "world_sizes": (),
        "reason": "2nd of 2 in line; waits for 4 GPUs, 2 are free",
        "min_gpus": 4,
        "max_gpus": 4,
    }
    return job(**(fields | changes))


def published(**changes):
    """Return a published status with both jobs, with changed fields."""
    fields = {
        "published": time.time(),
        "poll_seconds": 2.0,
        "cluster": "dev",
        "host": "login1",
        "pid": 42,
        "policy": "las",
        "round": 17,
        "round_at": NOW,
        "next_round": NOW + 30,
        "slurm": "ok",
        "nodes": (NodeStatus("n1", "v100", 4, 2, accepts=True), NodeStatus("n2", "k80", 4, 0, accepts=False)),
        "jobs": (job(), waiting()),
    }
    return Status(**(fields | changes))
