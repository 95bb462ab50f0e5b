"""The controller on a FakeSlurm: fast, deterministic, and killed at any write."""

import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from metasched.configuration.config import Config
from metasched.daemon.controller import Controller
from metasched.shared_dir import published_status
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.client import SlurmClient
from metasched.store import Store
from policies.baselines.fifo import Fifo
from policies.baselines.gandiva import Gandiva
from policies.baselines.las import Las
from policies.baselines.srtf import Srtf
from tests.fakes.fake_slurm import FakeSlurm, Trainer

ME = pwd.getpwuid(os.getuid()).pw_name
POLICIES = {"fifo": Fifo, "las": Las, "gandiva": Gandiva, "srtf": Srtf}
WRITES = frozenset(
    {
        "hold",
        "release",
        "await_dependency",
        "update",
        "stamp",
        "set_requeue",
        "signal",
        "requeue_hold",
        "cancel",
        "suspend",
        "resume",
    }
    & set(dir(SlurmClient))
)


class Killed(BaseException):
    """The daemon is killed here: no code catches the exception."""


class DyingClient:
    """A client that is killed before or after its n-th write."""

    def __init__(self, client, at, *, after):
        self._client, self._left, self._after = client, at, after

    def __getattr__(self, name):
        method = getattr(self._client, name)
        if name not in WRITES:
            return method

        def call(*arguments):
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            found = method(*arguments)
            if self._left == 0:
                raise Killed
            return found

        return call


@dataclass
class ShimTrainer(Trainer):
    """A trainer that reports like the shim: it says that it is ready, and that it has checkpointed when it stops."""

    shared: Path | None = None
    generation: int = 0
    starts: tuple = ()
    uid: str | None = None
    step: int = 0

    def started(self, slurm, job):
        self.generation += 1
        self.starts = (*self.starts, tuple(job.allocated.items()))
        slurm_job_id = self.shared / "mailbox" / "address" / job.slurm_job_id
        if not slurm_job_id.exists():
            return
        self.uid = slurm_job_id.read_text().strip()
        lease = json.loads((self.shared / "mailbox" / self.uid / "lease.json").read_text())
        self.write(
            slurm,
            kind="start",
            run=lease["run"],
            incarnation=self.generation,
            world_size=sum(job.allocated.values()) or 1,
            step=self.step,
            samples=self.step,
            resumed=self.generation > 1,
            init_seconds=0.1,
        )

    def not_launched(self, slurm, job):
        address = self.shared / "mailbox" / "address" / job.slurm_job_id
        if not address.exists():
            slurm.exit(job.slurm_job_id, 1, after=0.5)
            return
        uid = address.read_text().strip()
        lease = json.loads((self.shared / "mailbox" / uid / "lease.json").read_text())
        slurm.exit(job.slurm_job_id, 85 if lease["launch_retries"] else 1, after=0.5)  # as metasched-run does

    def signalled(self, slurm, job, signal):
        super().signalled(slurm, job, signal)
        if self.uid and self.stop_seconds is not None and signal in (self.stop_signal, "SIGTERM"):
            self.write(
                slurm,
                kind="stop",
                step=max(self.step, 1),
                cause="signal",
                noticed=slurm.now,
                checkpointed=self.stop_exit_code == 85,
            )

    def write(self, slurm, **line):
        directory = self.shared / "reports" / self.uid
        directory.mkdir(exist_ok=True)
        with (directory / f"incarnation-{self.generation}.jsonl").open("a") as file:
            file.write(json.dumps({"v": 1, "t": slurm.now, **line}) + "\n")


class FakeSite:
    """A cluster, a daemon and jobs."""

    def __init__(self, base, slurm=None, *, policy="fifo", **schedule):
        self.base = base
        self.slurm = slurm or FakeSlurm()
        self.policy = policy
        self.parameters = {}
        (base / "state").mkdir(exist_ok=True)
        (base / "shared").mkdir(exist_ok=True)
        defaults = {"round_seconds": 10.0, "min_round_seconds": 1.0, "poll_seconds": 1.0, "busy_poll_seconds": 0.5}
        self.config = Config.model_validate(
            {
                "paths": {"state": str(base / "state"), "shared": str(base / "shared")},
                "schedule": {**defaults, "grace_seconds": 20.0, "start_seconds": 20.0, **schedule},
            }
        )
        self.store = None
        self.start()

    def start(self, client=None):
        """Replace the controller and its store, as a restart of the daemon does."""
        if self.store is not None:
            self.store.close()
        self.store = Store.open(self.base / "state" / "metasched.db")
        kind = POLICIES[self.policy]
        client = client or self.slurm
        self.controller = Controller(
            self.config,
            client,
            client.settings(),
            self.store,
            Mailbox(self.base / "shared"),
            kind(kind.Parameters(**self.parameters)),
            clock=lambda: self.slurm.now,
        )

    def add(self, *options, tag="", script="#!/bin/bash\n", **trainer):
        """Submit a tagged job with a trainer of the shim, held as job_submit.lua does; returns its Slurm job id."""
        made = ShimTrainer(shared=self.base / "shared", **trainer)
        comment = f"metasched {tag}".strip()
        return self.slurm.add("--hold", *options, comment=comment, user=ME, trainer=made, script=script)

    def run(self, seconds):
        """Poll as the daemon does, for some simulated seconds."""
        until = self.slurm.now + seconds
        while self.slurm.now < until:
            self.slurm.tick(max(min(self.controller.poll(), until - self.slurm.now), 0.05))

    def run_until(self, condition, seconds=600):
        until = self.slurm.now + seconds
        while not condition():
            assert self.slurm.now < until, [
                (job.slurm_job_id, job.slurm_state, job.state, job.hold, job.reason) for job in self.slurm.jobs()
            ]
            self.slurm.tick(max(self.controller.poll(), 0.05))

    def status(self):
        """The published status."""
        return published_status.read(self.base / "shared")

    def state(self, slurm_job_id):
        return self.slurm.job(slurm_job_id).state

    def record(self, slurm_job_id):
        return next(job for job in self.records() if job.slurm_job_id == slurm_job_id)

    def records(self):
        """The live jobs, then the ended ones, latest first."""
        return [*self.store.live_jobs(), *self.store.recent_jobs(100)]

    def close(self):
        self.store.close()
