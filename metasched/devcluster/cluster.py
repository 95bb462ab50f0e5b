"""A private, real Slurm cluster on one host."""

import json
import os
import pwd
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from metasched.devcluster import processes, reaper, software
from metasched.devcluster.config import (
    Layout,
    NodeGroup,
    Settings,
    cgroup_conf,
    gres_conf,
    slurm_conf,
    topology_conf,
)
from metasched.devcluster.errors import (
    BadSettingError,
    BaseInUseError,
    CommandError,
    DevClusterError,
    LeftoverError,
    NoClusterError,
    StartError,
)
from metasched.devcluster.ports import Ports
from metasched.devcluster.processes import Process
from metasched.devcluster.software import Software

_FORMAT = 1
_START_SECONDS = 20.0
_DEATH_SECONDS = 20.0
_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.2
_SLURM_VARIABLES = ("SLURM", "SBATCH", "SALLOC", "SRUN", "SQUEUE", "SCANCEL", "SINFO", "SCONTROL", "SPANK")
_UP_STATES = {"idle", "mixed", "allocated", "completing"}


class Status(TypedDict):
    """Pids of the daemons by name (None: not running), and Slurm's node states ("unknown" without a controller)."""

    daemons: dict[str, int | None]
    nodes: dict[str, str]


@dataclass(frozen=True, slots=True)
class DevCluster:
    """A running cluster: started by `up`, found again by `attach`, ended by `down` or as a context manager.

    All files are below `base`, and the daemons listen on the loopback interface only. The daemons' names are "munged",
    "slurmctld" and the names of the nodes.
    """

    base: Path
    settings: Settings
    software: Software
    port: int

    @classmethod
    def up(
        cls,
        base: Path,
        settings: Settings = Settings(),  # noqa: B008  immutable
        *,
        job_submit: Path | None = None,
        owner_pid: int | None = None,
    ) -> Self:
        """Start a cluster, and return when all nodes are idle.

        Args:
            base: a directory of this user that is empty or does not exist yet; `down` removes it.
            settings: the cluster's settings, all but `job_submit`.
            job_submit: a lua script for Slurm's job_submit plugin; copied to `job_submit_lua`, where it may be edited.
            owner_pid: the process whose end takes the cluster down.

        Raises:
            DevClusterError: one of its subclasses; nothing of the cluster is left then.
        """
        settings = replace(settings, job_submit=job_submit is not None)
        layout = Layout(base.resolve())
        layout.check(settings)
        if job_submit is not None and not job_submit.is_file():
            raise BadSettingError(f"job_submit: no file {job_submit}")
        programs = software.find()
        with Ports(1 + len(settings.nodes)) as ports:
            cluster = cls(layout.base, settings, programs, ports.numbers[0])
            cluster._create_base()
            try:
                if owner_pid is not None:
                    reaper.watch(layout.base, owner_pid)
                cluster._write_files(ports.numbers, job_submit)
                cluster._start_all()
            except OSError as error:
                cluster.down()
                raise DevClusterError(f"cannot set up a cluster in {base}: {error}") from error
            except BaseException:
                cluster.down()
                raise
        return cluster

    @classmethod
    def attach(cls, base: Path) -> Self:
        """Return the cluster in `base`, running or crashed.

        Raises:
            NoClusterError: `base` holds no cluster.
            BadSettingError: `base` belongs to another user, or others may write to it.
        """
        layout = Layout(base.resolve())
        try:
            _check_owner(layout.base)
            state = json.loads(layout.state.read_text())
            if state.pop("format") != _FORMAT:
                raise NoClusterError(base, f"{layout.state} was written by another version of metasched")
            root = state["software"]
            settings = state["settings"]
            settings["groups"] = tuple(NodeGroup(**group) for group in settings["groups"])
            settings["extra_conf"] = tuple(settings["extra_conf"])
            return cls(layout.base, Settings(**settings), Software(root and Path(root)), state["port"])
        except OSError as error:
            raise NoClusterError(base, f"{layout.state}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoClusterError(base, f"{layout.state} is damaged: {error!r}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # Properties

    @property
    def layout(self) -> Layout:
        """The paths of the cluster's files."""
        return Layout(self.base)

    @property
    def conf(self) -> Path:
        """The path of the cluster's slurm.conf."""
        return self.layout.conf

    @property
    def job_submit_lua(self) -> Path:
        """The path of job_submit.lua; slurmctld reloads a changed file (not within the second of the last load)."""
        return self.layout.etc / "job_submit.lua"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the cluster's nodes."""
        return self.settings.nodes

    @property
    def env(self) -> dict[str, str]:
        """The whole environment for a child process that uses this cluster."""
        # Variables of an outer Slurm job and a user's defaults would change the commands' behaviour.
        base = {name: value for name, value in os.environ.items() if not name.startswith(_SLURM_VARIABLES)}
        return self.software.environment(base) | {"SLURM_CONF": str(self.conf)}

    @property
    def changes(self) -> dict[str, str | None]:
        """The changes of this process's environment that make it use the cluster: values by variable, None to unset."""
        env = self.env
        unset = dict.fromkeys(name for name in os.environ if name not in env)
        return unset | {name: value for name, value in env.items() if value != os.environ.get(name)}

    @property
    def shell_lines(self) -> list[str]:
        """The lines (`export`, `unset`) that make a shell use this cluster."""
        return [
            f"unset {shlex.quote(name)}" if value is None else f"export {name}={shlex.quote(value)}"
            for name, value in self.changes.items()
        ]

    def run(self, *argv: str, timeout: float = 30) -> str:
        """Run a command with this cluster's environment, and return its standard output; raises CommandError."""
        try:
            done = subprocess.run(
                argv, env=self.env, capture_output=True, text=True, timeout=timeout, input="", check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(argv, f"no end after {timeout} s") from error
        except OSError as error:
            raise CommandError(argv, str(error.strerror)) from error
        if done.returncode:
            raise CommandError(argv, f"exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def status(self) -> Status:
        """Return the daemons' pids and Slurm's node states."""
        daemons = {name: self._pid(name) for name in ("munged", "slurmctld", *self.nodes)}
        states = dict.fromkeys(self.nodes, "unknown")
        if daemons["slurmctld"] is not None:
            states |= self._node_states()
        return {"daemons": daemons, "nodes": states}

    # Operations

    def kill_controller(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send slurmctld a signal; after SIGKILL, SIGTERM and SIGINT, return when the process has ended."""
        self._kill("slurmctld", sig)

    def start_controller(self) -> None:
        """Start slurmctld; returns when it listens. Raises StartError."""
        self._start("slurmctld", "slurmctld")
        self._wait(self._listens, "slurmctld does not listen", "slurmctld")

    def kill_node(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send the node's slurmd a signal; its jobs and slurmstepds continue. Returns as `kill_controller` does."""
        self._kill(name, sig)

    def start_node(self, name: str) -> None:
        """Start the node's slurmd; raises StartError. Slurm shows the node as up soon afterwards (`wait_nodes`)."""
        if name not in self.nodes:
            raise BadSettingError(f"no node {name}: there are {', '.join(self.nodes)}")
        self._start(name, "slurmd", "-N", name, "-d", str(self.layout.sbin / "slurmstepd"))

    def wait_nodes(self, timeout: float = 60) -> None:
        """Return when Slurm could start jobs on all nodes; raises StartError after `timeout` seconds."""

        def all_up() -> bool:
            states = self._node_states()
            return all(states.get(node) in _UP_STATES for node in self.nodes)

        self._wait(all_up, "not all nodes are up", "slurmctld", timeout)

    def down(self) -> None:
        """End all processes of the cluster, jobs included, and remove its files. A second call does nothing.

        SIGINT, SIGTERM and SIGHUP are ignored meanwhile.

        Raises:
            LeftoverError: a process survived SIGKILL; the files are left.
            DevClusterError: a file could not be removed.
        """
        with processes.uninterrupted():
            self._end(self._owns)
            try:
                self._remove()
            except OSError as error:
                raise DevClusterError(f"cannot remove {error.filename}: {error.strerror}") from error
            # The reaper ends last: if this process is killed, the reaper finishes its work.
            self._end(lambda process: reaper.is_reaper(process.argv, self.base))

    def _end(self, belongs: Callable[[Process], bool]) -> None:
        left = processes.end_families(belongs, _DEATH_SECONDS)
        if left:
            raise LeftoverError(self.base, left)

    def _remove(self) -> None:
        """Remove the files; the state file last, so that attach finds the cluster as long as anything is left."""
        while self.base.exists():
            # A missing file was removed by a concurrent `down`.
            with suppress(FileNotFoundError):
                for path in self.base.iterdir():
                    if path != self.layout.state:
                        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                shutil.rmtree(self.base)

    # Starting

    def _create_base(self) -> None:
        """Create the base directory and the state file, which succeeds for one process only."""
        try:
            self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(self.base)
            if any(self.base.iterdir()):
                raise BaseInUseError(self.base, cluster=self.layout.state.exists())
            state = {
                "format": _FORMAT,
                "settings": asdict(self.settings),
                "software": self.software.root and str(self.software.root),
                "port": self.port,
            }
            with tempfile.NamedTemporaryFile("w", dir=self.base) as whole:
                json.dump(state, whole, indent=1)
                whole.flush()
                os.link(whole.name, self.layout.state)
        except FileExistsError as error:
            raise BaseInUseError(self.base, cluster=self.layout.state.exists()) from error
        except OSError as error:
            raise BadSettingError(f"base {self.base}: {error.strerror}") from error

    def _write_files(self, ports: Sequence[int], job_submit: Path | None) -> None:
        layout, settings = self.layout, self.settings
        for directory in layout.directories:
            directory.mkdir()
            directory.chmod(0o755)
        for name in software.DAEMONS:
            shutil.copy(self.software.program(name), layout.sbin / name)
        for gpu in range(max(group.gpus for group in settings.groups)):
            (layout.dev / f"nvidia{gpu}").symlink_to("/dev/null")
        conf = slurm_conf(settings, layout, ports, _user(), self.software.plugin_dir)
        _write(layout.conf, conf)
        _write(layout.etc / "gres.conf", gres_conf(settings, layout))
        if settings.nodes_per_switch is not None:
            _write(layout.etc / "topology.conf", topology_conf(settings))
        _write(layout.etc / "cgroup.conf", cgroup_conf(self.software.release))
        if job_submit is not None:
            _write(self.job_submit_lua, job_submit.read_text())
        key = layout.etc / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        # Any user's jobs read below root's base. Another user's slurmds run all jobs as that user, so no other user may
        # reach their munge.
        layout.base.chmod(0o755 if os.geteuid() == 0 else 0o700)

    def _start_all(self) -> None:
        run, log = self.layout.run, self.layout.log
        self._start(
            "munged",
            "munged",
            # munged's checks of directories refuse this private one.
            "--force",
            f"--key-file={self.layout.etc}/munge.key",
            f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid",
            f"--log-file={log}/munged.log",
            f"--seed-file={run}/munge.seed",
        )
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_nodes()

    def _start(self, name: str, program: str, *options: str) -> None:
        """Run a daemon, which detaches itself, and return when its pid file exists."""
        if self._pid(name) is not None:
            raise DevClusterError(f"{name} is already running")
        self._pid_file(name).unlink(missing_ok=True)
        log = self.layout.log / f"{name}.log"
        with (self.layout.log / "start.out").open("a") as out:
            try:
                subprocess.run(
                    (str(self.layout.sbin / program), *options),
                    env=self.env,
                    cwd="/",
                    umask=0o022,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    timeout=_START_SECONDS,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise StartError(f"{name} did not start: {error}", log if log.exists() else Path(out.name)) from error
        self._wait(lambda: True, f"{name} did not start", name)

    def _wait(self, condition: Callable[[], bool], what: str, daemon: str, timeout: float = _START_SECONDS) -> None:
        """Wait for the daemon to live and then for the condition; raises StartError with the daemon's log."""
        log = self.layout.log / f"{daemon}.log"
        deadline = time.monotonic() + timeout
        seen, pause = False, _POLL_SECONDS
        while True:
            alive = self._pid(daemon) is not None
            if seen and not alive:
                raise StartError(f"{daemon} ended", log)
            seen = alive
            if alive and condition():
                return
            if time.monotonic() > deadline:
                raise StartError(f"{what} after {timeout:g} s", log)
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_POLL_SECONDS)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def _node_states(self) -> dict[str, str]:
        """Slurm's long node states by node; empty if the controller does not answer."""
        try:
            rows = self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        except CommandError:
            return {}
        return dict(row.split() for row in rows)

    # The cluster's processes

    def _pid_file(self, name: str) -> Path:
        return self.layout.run / f"{name}.pid"

    def _daemon(self, name: str) -> Process | None:
        """Return the daemon's process; None where its pid file is missing or stale."""
        try:
            process = processes.read(int(self._pid_file(name).read_text()))
        except (OSError, ValueError):
            return None
        return process if process is not None and self._is_daemon(process) else None

    def _pid(self, name: str) -> int | None:
        daemon = self._daemon(name)
        return None if daemon is None else daemon.pid

    def _kill(self, name: str, sig: signal.Signals) -> None:
        daemon = self._daemon(name)
        if daemon is None:
            raise DevClusterError(f"{name} is not running")
        processes.end(daemon, sig)
        deadline = time.monotonic() + _DEATH_SECONDS
        while sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) and self._pid(name) is not None:
            if time.monotonic() > deadline:
                raise LeftoverError(self.base, [daemon.pid])
            time.sleep(_POLL_SECONDS)

    def _is_daemon(self, process: Process) -> bool:
        return process.exe.startswith(f"{self.layout.sbin}/")

    def _owns(self, process: Process) -> bool:
        in_job = process.environ.get("SLURM_CONF") == str(self.conf) and "SLURM_JOB_ID" in process.environ
        return self._is_daemon(process) or in_job


def _check_owner(base: Path) -> None:
    """Raise BadSettingError where other users could replace files below `base`, OSError where `base` is unreadable."""
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise BadSettingError(f"base {base}: no directory")
    if found.st_uid != os.geteuid():
        raise BadSettingError(
            f"base {base}: belongs to another user (id {found.st_uid}): run as that user, or choose another directory"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadSettingError(f"base {base}: others may write to it: run chmod go-w, or choose another directory")


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise BadSettingError(f"user id {os.geteuid()} has no name in passwd, and Slurm needs one") from error
