"""A Site: the daemon on a real cluster, with the helpers of tests."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from metasched.shared_dir import published_status as published
from metasched.store import Store

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "tests" / "shim" / "train.py"

CONFIG = """
[paths]
state = "{base}/state"
shared = "{base}/shared"

[schedule]
round_seconds = 3
min_round_seconds = 0.5
poll_seconds = 0.3
busy_poll_seconds = 0.1
grace_seconds = {grace}
start_seconds = 30

[policy]
name = "{policy}"
{parameters}
"""


class Site:
    """One daemon with its directories, on a given cluster. Ends what it started."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.base = Path(tempfile.mkdtemp(prefix="msite-"))
        self.config = self.base / "metasched.toml"
        self.daemon = None
        self.number = 0
        self.configure()

    def configure(self, *, policy="fifo", parameters="", grace=30, extra=""):
        section = f"[policy.parameters]\n{parameters}" if parameters else ""
        text = CONFIG.format(base=self.base, policy=policy, parameters=section, grace=grace)
        self.config.write_text(text + extra)

    def start(self, *options):
        with (self.base / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                # A test run that is killed must not leave a daemon behind.
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    sys.executable,
                    "-m",
                    "metasched",
                    "--config",
                    self.config,
                    "daemon",
                    *options,
                ],
                env=self.cluster.env,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    def kill(self):
        """Kill the daemon and the commands that it runs, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.daemon.pid, signal.SIGKILL)
        self.daemon.wait()

    def terminate(self):
        self.daemon.terminate()
        assert self.daemon.wait(90) == 0, self.log()

    def close(self):
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill()
        shutil.rmtree(self.base, ignore_errors=True)

    def log(self):
        return (self.base / "daemon.log").read_text()

    def store(self):
        return Store.open(self.base / "state" / "metasched.db", read_only=True)

    def status(self):
        """Return the published status, or None before the first."""
        try:
            return published.read(self.base / "shared")
        except published.StatusError:
            return None

    def job(self, slurm_job_id):
        """Return the published status of one job, live or ended, or None."""
        status = self.status()
        jobs = () if status is None else (*status.jobs, *status.finished)
        return next((job for job in jobs if job.slurm_job_id == slurm_job_id), None)

    def wait(self, condition, seconds=300):
        """Wait until a condition holds, and return its result."""
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, self.failure_report()
            assert self.daemon is None or self.daemon.poll() is None or self.daemon.returncode < 0, self.log()
            time.sleep(0.05)
        return result

    def wait_status(self, slurm_job_id, status, seconds=300):
        """Wait until a job has a status, and return its published status; fail at once where it ended with another."""

        def has_status():
            job = self.job(slurm_job_id)
            ended = job is not None and job.finished is not None
            assert not ended or job.status == status, f"job {slurm_job_id}: {job.status}\n{self.failure_report()}"
            return job is not None and job.status == status and job

        return self.wait(has_status, seconds)

    def failure_report(self):
        """Return the published jobs, the end of the daemon's log, the jobs in Slurm, and their output."""
        try:
            status = published.read(self.base / "shared")
            states = [
                f"job {job.slurm_job_id}: {job.status} on {dict(job.nodes)}, step {job.progress_steps}: {job.reason}"
                for job in (*status.jobs, *status.finished)
            ]
        except published.StatusError as error:
            states = [str(error)]
        outputs = [f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in self.base.glob("job-*/out.txt")]
        return "\n".join([*states, self.log()[-3000:], self.cluster.run("scontrol", "show", "jobs"), *sorted(outputs)])

    def submit(self, command, *options, tag="metasched", user=None):
        """Submit a batch script of one command with its own output directory, and return the job's id."""
        self.number += 1
        directory = self.base / f"job-{self.number}"
        directory.mkdir()
        script = directory / "job.sh"
        script.write_text(f"#!/bin/bash\nexport OMP_NUM_THREADS=1\n{command.format(dir=directory)}\n")
        env = {
            **self.cluster.env,
            "METASCHED_SHARED": str(self.base / "shared"),
            "PATH": f"{ROOT / 'slurm_scripts'}:{self.cluster.env['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        comment = [f"--comment={tag}"] if tag else []
        argv = ["sbatch", "--parsable", f"--chdir={directory}", "--output=out.txt", *comment, *options, str(script)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def train(self, options, *sbatch, tag="metasched"):
        """Submit a real training job, and return (id, directory)."""
        slurm_job_id = self.submit(f"exec metasched-run {sys.executable} {TRAIN} {{dir}} {options}", *sbatch, tag=tag)
        return slurm_job_id, self.base / f"job-{self.number}"
