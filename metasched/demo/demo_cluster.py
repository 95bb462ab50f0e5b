"""The demo's surroundings: a directory, a private Slurm cluster and the daemon; all are removed afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from metasched.configuration.file_names import DATABASE
from metasched.core.child_processes import stop
from metasched.core.errors import MetaschedError
from metasched.demo.demo_page import page
from metasched.demo.jobs import SETTINGS, ChosenPolicy, DemoJob, configuration
from metasched.devcluster import DevCluster
from metasched.devcluster.errors import tail
from metasched.devcluster.script_paths import slurm_script
from metasched.shared_dir import published_status as published
from metasched.shared_dir.published_status import Status
from metasched.slurm.command_runner import sbatch
from metasched.slurm.errors import SlurmError

_STOP_SECONDS = 20.0


class DemoError(MetaschedError):
    """The demo cannot continue."""


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """The running cluster, the daemon, and the directory below which all their files lie.

    ``page`` is the address of the web page; None where the page's packages are not installed.
    """

    base: Path
    cluster: DevCluster
    daemon: subprocess.Popen[bytes]
    page: str | None = None

    @property
    def database(self) -> Path:
        """Path of the daemon's database."""
        return self.base / "state" / DATABASE

    @property
    def shared(self) -> Path:
        """Path of the shared directory."""
        return self.base / "shared"

    def status(self) -> Status | None:
        """Return the status that the daemon published last; None before the first.

        Raises:
            DemoError: the daemon has ended.
        """
        if self.daemon.poll() is not None:
            raise DemoError(f"the daemon ended with code {self.daemon.returncode}; {tail(self.base / 'daemon.log')}")
        return published.read(self.shared) if (self.shared / published.FILE_NAME).exists() else None

    def submit(self, job: DemoJob, seconds_per_step: float) -> str:
        """Submit a job by sbatch from a directory of its own, and return its Slurm job id.

        Raises:
            DemoError: sbatch fails or refuses the job; the message names the job.
        """
        directory = self.base / "jobs" / job.name
        directory.mkdir(parents=True)
        script = directory / "job.sh"
        script.write_text(job.script(seconds_per_step), encoding="utf-8")
        programs = slurm_script("metasched-run").parent
        environment = {
            **self.cluster.env,
            "PATH": f"{programs}:{self.cluster.env['PATH']}",
            "METASCHED_SHARED": str(self.shared),
        }
        try:
            return sbatch([f"--chdir={directory}", str(script)], env=environment)[0]
        except SlurmError as error:
            raise DemoError(f"job {job.name}: {error}") from error

    @property
    def logs(self) -> list[Path]:
        """Paths of the outputs of the jobs (all runs of a job in one file) and of the daemon's log."""
        return [*sorted(self.base.glob("jobs/*/output.txt")), self.base / "daemon.log"]


@contextmanager
def stage(base: Path, policy: ChosenPolicy, *, keep: bool) -> Iterator[DemoCluster]:
    """Start cluster and daemon in an empty directory; on exit all processes end and, without ``keep``, all files go.

    Raises:
        MetaschedError: something cannot be started.
    """
    try:
        with DevCluster.up(
            base / "cluster", SETTINGS, job_submit=slurm_script("job_submit.lua"), owner_pid=os.getpid()
        ) as cluster:
            config = base / "metasched.toml"
            config.write_text(configuration(base / "state", base / "shared", policy), encoding="utf-8")
            with _daemon(config, cluster) as daemon, page(config, cluster.env) as address:
                yield DemoCluster(base, cluster, daemon, address)
    finally:
        # Without its files the cluster could not be taken down later.
        if not keep and not (base / "cluster").exists():
            shutil.rmtree(base, ignore_errors=True)


@contextmanager
def _daemon(config: Path, cluster: DevCluster) -> Iterator[subprocess.Popen[bytes]]:
    # The kernel ends the daemon where the demo is killed and cannot clean up.
    tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    argv = [*tied, sys.executable, "-m", "metasched", "--config", str(config), "daemon"]
    with (config.parent / "daemon.log").open("wb") as log:
        # In a session of its own: Ctrl-C is for the demo, which then stops the daemon in order.
        process = subprocess.Popen(
            argv, env=cluster.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        stop(process, _STOP_SECONDS)
