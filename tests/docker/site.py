"""The cluster of hosts in containers, for tests: users' commands, the daemon, and faults of hosts."""

import contextlib
import json
import os
import secrets
import shlex
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from metasched.shared_dir.published_status import JobsFile, Status
from tests import surviving

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "contrib" / "docker" / "etc" / "metasched.toml"
SHARED = "/home/metasched"
SAMPLES = 203


class CommandFailedError(AssertionError):
    """A command in a container, or of docker, did not succeed."""


def run(argv, timeout=60, stdin=None):
    """Return a command's standard output; raises CommandFailedError with its complaint."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout, input=stdin, check=False)
    except subprocess.TimeoutExpired:
        raise CommandFailedError(f"{shlex.join(map(str, argv))[:300]}: no end after {timeout} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise CommandFailedError(f"{shlex.join(map(str, argv))[:300]}: exit code {done.returncode}: {said[-3000:]}")
    return done.stdout.decode(errors="replace")


@dataclass
class Training:
    """A training job: its Slurm job id, its owner, and its directory on the shared volume."""

    slurm_job_id: str
    user: str
    directory: str


@dataclass
class Site:
    """All hosts. `mend` has (name, function that undoes it) for each fault of a test; `restore` undoes them all."""

    release: str
    number: int = 0
    mend: list = field(default_factory=list)

    # Commands

    def container(self, host):
        """Return the id of a host's container, even if the container is stopped or paused."""
        project = os.environ.get("COMPOSE_PROJECT_NAME", f"metasched-{self.release.replace('.', '')}")
        labels = [f"com.docker.compose.project={project}", f"com.docker.compose.service={host}"]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return run(["docker", "ps", "-aq", *filters]).split()[0]

    def run(self, host, *argv, user="root", timeout=60, stdin=None):
        """Run a command on a host, as root or as a user with the login environment, and return its standard output."""
        options = ["--user", user, *(["--interactive"] if stdin is not None else [])]
        command = argv if user == "root" else ("bash", "-lc", "cd ~ 2>/dev/null; exec " + shlex.join(argv))
        return run(["docker", "exec", *options, self.container(host), *command], timeout, stdin)

    def sh(self, host, script, user="root", timeout=60):
        """Run a line of shell on a host, and return its standard output."""
        return self.run(host, "bash", "-c", script, user=user, timeout=timeout)

    def refused(self, host, script, user, *words):
        """Check that a user's command fails with one of the words, if any are given; return its complaint."""
        try:
            said = self.sh(host, script, user)
        except CommandFailedError as error:
            text = str(error).lower()
            assert not words or any(word.lower() in text for word in words), text
            return text
        raise AssertionError(f"{user} could do it: {script}: {said}")

    # Jobs

    def submit(self, user, command, *options, tag="metasched"):
        """Submit a batch script from the login host, and return its Training."""
        self.number += 1
        directory = f"/home/{user}/job-{secrets.token_hex(4)}-{self.number}"
        # libuv: Debian's package of torch is built without it
        script = f"#!/bin/bash\nexport OMP_NUM_THREADS=1 USE_LIBUV=0\n{command.format(dir=directory)}\n"
        self.sh("login", f"mkdir {directory}", user)
        comment = [f"--comment={tag}"] if tag else []
        argv = ["sbatch", "--parsable", f"--chdir={directory}", "--output=out.txt", "--open-mode=append"]
        slurm_job_id = self.run("login", *argv, *comment, *options, user=user, stdin=script.encode())
        return Training(slurm_job_id.split()[-1], user, directory)

    def train(self, user, options, *sbatch, tag="metasched", before=""):
        """Submit a real training, and return its Training."""
        line = f"{before}\nexec metasched-run python /home/train.py {{dir}} --samples {SAMPLES} {options}"
        return self.submit(user, line, *sbatch, tag=tag)

    def leave_one_gpu(self, *hosts):
        """Occupy all GPUs but one of each host by an untagged job of Bob's, so that larger jobs spread over hosts."""
        for host in hosts:
            job = self.submit("bob", "sleep 3600", "--gres=gpu:3", "-w", host, tag=None)
            self.wait(lambda a=job.slurm_job_id: self.sh("controller", f"squeue -h -o %T -j {a}").strip() == "RUNNING")

    def status(self):
        """Return the published status with whole jobs, as root reads it; None if it cannot be read."""
        try:
            summary = msgspec.json.decode(self.run("login", "cat", f"{SHARED}/status.json"), type=Status)
            whole = msgspec.json.decode(self.run("login", "cat", f"{SHARED}/private/all.json"), type=JobsFile)
        except (CommandFailedError, msgspec.DecodeError):
            return None
        return replace(summary, jobs=whole.jobs, finished=whole.finished, apps=whole.apps, deferred=whole.deferred)

    def job(self, training):
        """Return the published status of a job, live or ended; None if it has none."""
        status = self.status()
        jobs = () if status is None else (*status.jobs, *status.finished)
        return next((job for job in jobs if job.slurm_job_id == training.slurm_job_id), None)

    def wait(self, condition, seconds=180, why=""):
        """Wait until a condition holds, and return its result; ``why`` is what to say else, or a function for it."""
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > deadline:
                told = why() if callable(why) else why
                raise AssertionError(f"{told or 'it did not happen'} within {seconds} s\n{self.scene()}")
            time.sleep(0.2)
        return result

    def wait_status(self, training, status, seconds=180):
        """Wait until a job is published with that status, and return the job."""
        return self.wait(
            lambda: (job := self.job(training)) is not None and job.status == status and job,
            seconds,
            lambda: f"job {training.slurm_job_id} is not {status}: {self.job(training)}",
        )

    def wait_progress(self, training, steps=5, seconds=180):
        """Wait until a job has reported more than ``steps`` steps, and return the job."""
        return self.wait(
            lambda: (job := self.job(training)) is not None and (job.progress_steps or 0) > steps and job,
            seconds,
            f"job {training.slurm_job_id} does not train",
        )

    def trained(self, training):
        """Return the steps that the trainers recorded: {(generation, rank): [step, ...]}."""
        script = (
            'cd "$0" && for file in trained-*.jsonl; do [ ! -e $file ] || { echo "= $file"; cat $file; echo; }; done'
        )
        found, steps = {}, []
        for line in self.run("login", "sh", "-c", script, training.directory).splitlines():
            if line.startswith("= trained-"):
                _, generation, rank = line.removesuffix(".jsonl").split("-")
                steps = found.setdefault((int(generation), int(rank)), [])
            else:
                with contextlib.suppress(ValueError):  # of a trainer that was killed as it wrote, or writes right now
                    steps.append(json.loads(line))
        return found

    def generations(self, training):
        """Return {generation: world size} of the trainers that have made a step."""
        sizes = {}
        for (generation, _), steps in self.trained(training).items():
            if steps:
                sizes[generation] = sizes.get(generation, 0) + 1
        return sizes

    def assert_nothing_lost(self, training, last_step=None):
        """Check that the surviving steps have every sample of every epoch exactly once."""
        trained = self.trained(training).items()
        steps = ((generation, step) for (generation, _), of_rank in trained for step in of_rank)
        seen = surviving.of_steps(steps, last_step)
        assert seen
        assert seen == {epoch: list(range(SAMPLES)) for epoch in range(len(seen))}

    # The daemon

    def configure(self, *, policy="las", parameters="queue_thresholds_gpu_seconds = [12.0]\npromote_knob = 1000.0"):
        """Give the daemon another policy, and wait until it decides under it."""
        text = f'[policy]\nname = "{policy}"\n'
        text += f"\n[policy.parameters]\n{parameters}\n" if parameters else ""
        self.write_config(text)
        self.wait_decides()  # it may just be starting
        self.signal_daemon("HUP")
        self.wait(lambda: (status := self.status()) is not None and status.policy == policy)

    def write_config(self, text, host="scheduler"):
        """Put a text in the place of the host's configuration from [policy] on."""
        whole = CONFIG.read_text().partition("[policy]")[0] + text
        self.run(host, "tee", "/etc/metasched/metasched.toml", stdin=whole.encode())

    def signal_daemon(self, name, host="scheduler"):
        """Send the daemon a signal."""
        self.run(host, "pkill", f"-{name}", "-u", "metasched", "-f", "bin/metasched daemon")

    def explain(self, uid, host="scheduler"):
        """Return the output of `metasched explain --json` on the host of the daemon."""
        as_daemon = "setpriv --reuid metasched --regid metasched --clear-groups /opt/metasched/bin/metasched"
        return json.loads(self.sh(host, f"{as_daemon} explain {uid} --state /var/lib/metasched --json"))

    def daemon_log(self, since=None, host="scheduler"):
        """Return the daemon's log, or the part since an instant (unix seconds)."""
        options = [] if since is None else ["--since", f"{since:.3f}"]
        done = subprocess.run(
            ["docker", "logs", *options, self.container(host)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def wait_decides(self, seconds=180):
        """Wait until the daemon has read Slurm and published a status, both after this call."""
        begun = time.time()

        def decides():
            status = self.status()
            return status is not None and status.published > begun and status.slurm == "ok"

        self.wait(decides, seconds, "the daemon does not publish, or does not reach Slurm")

    # What happens to hosts

    def kill_host(self, host):
        """Kill a host; `restore` starts it again."""
        run(["docker", "kill", self.container(host)])
        self.mend.append((f"start {host}", lambda: self.start_host(host)))

    def switch_off(self, host):
        """Kill a host that `restore` is not to start again."""
        with contextlib.suppress(CommandFailedError):  # it is off
            run(["docker", "kill", self.container(host)])

    def start_host(self, host):
        """Start a killed host."""
        run(["docker", "start", self.container(host)])

    def pause_host(self, host):
        """Freeze every process of a host."""
        run(["docker", "pause", self.container(host)])
        self.mend.append((f"unpause {host}", lambda: self.unpause_host(host)))

    def unpause_host(self, host):
        """Continue the processes of a frozen host."""
        run(["docker", "unpause", self.container(host)])

    def address(self, host):
        """Return the host's address in the cluster's network."""
        template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return run(["docker", "inspect", "--format", template, self.container(host)]).strip()

    def cut(self, host, *others):
        """Drop all packets from a host to the others."""
        for other in others:
            route = f"{self.address(other)}/32"
            self.sh(host, f"ip route add blackhole {route}")
            self.mend.append((f"join {host} {other}", lambda r=route: self.sh(host, f"ip route del blackhole {r}")))

    def hide(self, host, path):
        """Mount an empty read-only directory over a path of a host."""
        self.sh(host, f"mount -t tmpfs -o ro,mode=0555 cut-off {path}")
        self.mend.append((f"show {host} {path}", lambda: self.sh(host, f"umount -l {path}")))

    def undo(self, *names):
        """Undo the faults of these names."""
        for name in names:
            index = next(i for i, (known, _) in enumerate(self.mend) if known == name)
            self.mend.pop(index)[1]()

    def restore(self):
        """Undo all faults, end all jobs, and wait until all hosts are idle and the daemon decides again."""
        failures = []
        while self.mend:
            name, undo = self.mend.pop()
            try:
                undo()
            except CommandFailedError as error:
                failures.append(f"{name}: {error}")
        self.wait(self._idle, 180, "the cluster does not come back to rest")
        self.wait_decides()
        assert not failures, failures

    def _idle(self):
        with contextlib.suppress(CommandFailedError):
            self.sh("controller", "scancel -u alice; scancel -u bob")
            states = self.sh("controller", "sinfo -h -N -o '%N %T'").split("\n")
            for node, state in (line.split() for line in states if line):
                if "drain" in state or state == "down":
                    self.sh("controller", f"scontrol update nodename={node} state=resume")
            return not self.sh("controller", "squeue -h") and all(line.split()[1] == "idle" for line in states if line)
        return False

    def scene(self):
        """Return logs and queue, for the message of a failed wait."""
        parts = [self.daemon_log()[-5000:]]
        for command in (
            "squeue -a -t all -o '%i %u %T %r %N %V'",
            "sinfo -N -l",
            "tail -n 25 /var/log/slurm/slurmctld.log",
        ):
            with contextlib.suppress(CommandFailedError):
                parts.append(self.sh("controller", command))
        with contextlib.suppress(CommandFailedError):
            parts.append(self.sh("login", f"tail -n 15 /home/*/job-*-{self.number}/out.txt"))
        return "\n----\n".join(parts)
