"""The example of a training that submitit submits, on a real Slurm."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "contrib" / "examples" / "submitit_training.py"


def test_submitit_submits_a_job_that_metasched_schedules(small_site):
    """The tagged job is taken in, runs one process for each GPU, and submitit reads its result."""
    pytest.importorskip("submitit")
    site = small_site
    site.start()
    env = {
        **site.cluster.env,
        "METASCHED_SHARED": str(site.base / "shared"),
        "PATH": f"{ROOT / 'slurm_scripts'}:{site.cluster.env['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, EXAMPLE, site.base / "study", "--gpus", "2", "--epochs", "1"],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + site.failure_report()
    slurm_job_id = re.search(r"^job (\d+)$", done.stdout, flags=re.MULTILINE)[1]
    assert re.search(r"^trained by 2 processes, loss 0\.", done.stdout, flags=re.MULTILINE), done.stdout
    ended = site.wait(lambda: [job for job in site.status().finished if job.slurm_job_id == slurm_job_id])
    assert (ended[0].status, ended[0].max_gpus) == ("completed", 2)
