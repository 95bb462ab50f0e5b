"""The example of a hyper-parameter search: its trials are jobs under Pollux on a real Slurm."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "contrib" / "examples" / "hpo.py"


def test_a_search_learns_from_trials_that_metasched_schedules(small_site):
    """Each trial's result is read, two are there at a time, and a search that was killed goes on with its trials."""
    pytest.importorskip("optuna")
    site = small_site
    site.configure(policy="pollux")
    site.start()
    study = site.base / "study"
    env = {
        **site.cluster.env,
        "METASCHED_SHARED": str(site.base / "shared"),
        "PATH": f"{ROOT / 'slurm_scripts'}:{site.cluster.env['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, EXAMPLE, study, "--trials", "3", "--at-once", "2", "--small", "--", "--gres=gpu:1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as killed:
        site.wait(lambda: (status := site.status()) is not None and len(status.jobs) == 2)
        killed.kill()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + site.failure_report()
    trials = done.stdout.splitlines()
    values = [float(line.split()[3]) for line in trials[:3] if line.split()[2] == "complete"]
    assert len(values) == 3, trials
    assert f", error {min(values):.3f} " in trials[-1]
    jobs = site.wait(lambda: (ended := site.status().finished) and len(ended) == 3 and {job.name: job for job in ended})
    first, second, third = sorted(jobs.values(), key=lambda job: int(job.name.rpartition("-")[2]))
    assert third.submitted >= min(first.finished, second.finished) - 10
    assert {job.status for job in jobs.values()} == {"completed"}
