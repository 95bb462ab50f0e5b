"""The settings of a private cluster, the paths of its files, and the texts of its configuration files. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from metasched.devcluster.errors import BadSettingError

TUNED = "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1"

_CGROUPS_CAN_BE_DISABLED = (24, 5)
_SOCKET_PATH_BYTES = 107
# Slurm reads blanks, '#', '%', '[' and ',' in paths as its own syntax.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]+")
_GPU_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes of a cluster.

    Attributes:
        count: number of nodes.
        gpus: GPUs of each node; 0 for CPU nodes.
        gpu_type: the GPUs' type; not used for CPU nodes.
        shards: shards (Slurm's gres/shard) of each GPU; 0 for whole GPUs only.
    """

    count: int = 4
    gpus: int = 4
    gpu_type: str = "v100"
    shards: int = 0

    def __post_init__(self) -> None:
        """Refuse values that Slurm would refuse later, with less clear messages."""
        if self.count < 1 or self.gpus < 0 or self.shards < 0:
            raise BadSettingError(f"{self}: needs count >= 1, gpus >= 0 and shards >= 0")
        if not _GPU_TYPE.fullmatch(self.gpu_type):
            raise BadSettingError(f"GPU type {self.gpu_type!r}: a letter, then letters, digits, '_' and '-'")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a cluster.

    Attributes:
        groups: the nodes, group after group.
        cpus: CPUs of each node.
        memory_mb: memory of each node, MiB.
        tuned: whether Slurm's scheduler is configured for low latency; otherwise it has Slurm's defaults.
        requeue_exit: the exit code after which Slurm requeues and holds a job; None for no code.
        job_submit: whether Slurm loads etc/job_submit.lua; `DevCluster.up` decides that.
        kill_wait: seconds between a job's SIGTERM and its SIGKILL.
        extra_conf: lines for the end of slurm.conf, where they overrule earlier ones.
        nodes_per_switch: nodes on each leaf switch (s1, s2, ..., below one switch "root") of a tree topology; None for
            a flat network without switches.
    """

    groups: tuple[NodeGroup, ...] = (NodeGroup(),)
    cpus: int = 16
    memory_mb: int = 64000
    tuned: bool = True
    requeue_exit: int | None = 85
    job_submit: bool = False
    kill_wait: int = 30
    extra_conf: tuple[str, ...] = ()
    nodes_per_switch: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that Slurm would refuse later, with less clear messages."""
        if not self.groups:
            raise BadSettingError("a cluster needs at least one group of nodes")
        if self.cpus < 1 or self.memory_mb < self.cpus:
            raise BadSettingError(f"cpus={self.cpus}, memory_mb={self.memory_mb}: need at least 1 CPU, 1 MiB a CPU")
        if self.requeue_exit is not None and not 1 <= self.requeue_exit <= 255:  # noqa: PLR2004  an exit code's range
            raise BadSettingError(f"requeue_exit={self.requeue_exit}: an exit code is 1 to 255")
        if self.nodes_per_switch is not None and self.nodes_per_switch < 1:
            raise BadSettingError(f"nodes_per_switch={self.nodes_per_switch}: at least 1, or None for no switches")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names, n1 to nN, group after group."""
        return tuple(f"n{i + 1}" for i in range(sum(group.count for group in self.groups)))


class Layout:
    """The paths of the cluster's files below the base directory.

    Attributes:
        base: the base directory.
        state: the state file, which marks the directory as a cluster; `attach` reads it.
        etc: the directory of slurm.conf, gres.conf and job_submit.lua.
        conf: Slurm's configuration file.
        sbin: the directory of the cluster's copies of the daemons; a process that runs one belongs to the cluster.
        run: the directory of pid files and of munge's socket.
        log: the directory of the daemons' log files.
        dev: the directory of the GPUs' device files.
        directories: all directories that must exist before a daemon starts.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.state = base / "devcluster.json"
        self.etc, self.sbin, self.run, self.log, self.dev = (
            base / name for name in ("etc", "sbin", "run", "log", "dev")
        )
        self.conf = self.etc / "slurm.conf"
        self.directories = (self.etc, self.sbin, self.run, self.log, self.dev, base / "state", base / "spool")

    def check(self, settings: Settings) -> None:
        """Raise BadSettingError where Slurm could not work below this base directory."""
        if not _PLAIN_PATH.fullmatch(str(self.base)):
            raise BadSettingError(f"base {self.base}: Slurm needs a path of letters, digits and ._+@-/ only")
        node = settings.nodes[-1]
        # slurmstepd's socket, with the longest job and step ids, is the longest of all.
        longest = self.base / "spool" / node / f"{node}_{2**26}.{2**32 - 1}"
        surplus = len(str(longest)) - _SOCKET_PATH_BYTES
        if surplus > 0:
            limit = len(str(self.base)) - surplus
            raise BadSettingError(
                f"base {self.base}: too long for Unix sockets below it; use at most {limit} characters"
            )


def slurm_conf(settings: Settings, layout: Layout, ports: Sequence[int], user: str, plugin_dir: Path | None) -> str:
    """Return the text of slurm.conf.

    Args:
        settings: the cluster's settings.
        layout: the cluster's paths.
        ports: one TCP port for slurmctld, then one for each node.
        user: the user that runs all daemons.
        plugin_dir: the directory of Slurm's plugins; None for the default of Slurm's build.
    """
    base = layout.base
    lines = [
        "ClusterName=dev",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"AuthInfo=socket={layout.run}/munge.sock,cred_expire=120",
        f"StateSaveLocation={base}/state",
        f"SlurmdSpoolDir={base}/spool/%n",
        f"SlurmctldPidFile={layout.run}/slurmctld.pid",
        f"SlurmdPidFile={layout.run}/%n.pid",
        f"SlurmctldLogFile={layout.log}/slurmctld.log",
        f"SlurmdLogFile={layout.log}/%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "AccountingStorageType=accounting_storage/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        # Memory counts, and a job without --mem takes its CPUs' share of it, so that jobs share nodes.
        "SelectTypeParameters=CR_Core_Memory",
        f"DefMemPerCPU={settings.memory_mb // settings.cpus}",
        # The nodes' sizes are these settings', not this host's.
        "SlurmdParameters=config_overrides",
        f"GresTypes={'gpu,shard' if any(group.shards for group in settings.groups) else 'gpu'}",
        "ReturnToService=2",
        "SlurmdTimeout=30",
        "TCPTimeout=2",
        # A launch may take long on a loaded machine; Slurm fails it after this time.
        "MessageTimeout=30",
        "JobRequeue=1",
        "JobFileAppend=1",
        f"KillWait={settings.kill_wait}",
        "MinJobAge=300",
        "MaxJobCount=20000",
    ]
    if plugin_dir is not None:
        lines.append(f"PluginDir={plugin_dir}")
    if settings.tuned:
        lines.append(f"SchedulerParameters={TUNED}")
    if settings.requeue_exit is not None:
        lines.append(f"RequeueExitHold={settings.requeue_exit}")
    if settings.job_submit:
        lines.append("JobSubmitPlugins=lua")
    if settings.nodes_per_switch is not None:
        lines.append("TopologyPlugin=topology/tree")
    lines += _node_lines(settings, ports)
    lines.append("PartitionName=main Default=YES Nodes=ALL MaxTime=INFINITE State=UP")
    return "\n".join([*lines, *settings.extra_conf, ""])


def gres_conf(settings: Settings, layout: Layout) -> str:
    """Return the text of gres.conf: `File=` makes Slurm set CUDA_VISIBLE_DEVICES, and ties shards to their GPU."""
    lines = []
    for first, group in _numbered(settings):
        nodes = f"NodeName={_hostlist(first, group)}"
        if group.gpus:
            files = f"{layout.dev}/nvidia{_range(0, group.gpus - 1)}"
            lines.append(f"{nodes} Name=gpu Type={group.gpu_type} File={files} Flags=nvidia_gpu_env\n")
        if group.shards:
            shards = (f"Name=shard Count={group.shards} File={layout.dev}/nvidia{gpu}" for gpu in range(group.gpus))
            lines += [f"{nodes} {shard}\n" for shard in shards]
    return "".join(lines)


def topology_conf(settings: Settings) -> str:
    """Return the text of topology.conf: leaf switches s1, s2, ... below one root; "" for a flat network."""
    if settings.nodes_per_switch is None:
        return ""
    firsts = range(1, len(settings.nodes) + 1, settings.nodes_per_switch)
    lasts = (min(first + settings.nodes_per_switch - 1, len(settings.nodes)) for first in firsts)
    leaves = [f"SwitchName=s{i} Nodes=n{_range(*ends)}" for i, ends in enumerate(zip(firsts, lasts, strict=True), 1)]
    return "\n".join([*leaves, f"SwitchName=root Switches=s{_range(1, len(leaves))}", ""])


def cgroup_conf(release: tuple[int, int]) -> str:
    """Return the text of cgroup.conf for a release of Slurm, such as (22, 5).

    The cluster uses no control groups, but earlier slurmds load a plugin for them: version 2's needs systemd, version
    1's needs nothing.
    """
    return f"CgroupPlugin={'disabled' if release >= _CGROUPS_CAN_BE_DISABLED else 'cgroup/v1'}\n"


def _node_lines(settings: Settings, ports: Sequence[int]) -> list[str]:
    cpus = settings.cpus
    return [
        f"NodeName={_hostlist(first, group)} NodeHostname=localhost NodeAddr=127.0.0.1 "
        f"Port={_range(ports[first], ports[first + group.count - 1])} "
        f"CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={settings.memory_mb} "
        + (f"Gres={_gres(group)} Feature={group.gpu_type}" if group.gpus else "Feature=cpu")
        for first, group in _numbered(settings)
    ]


def _gres(group: NodeGroup) -> str:
    shards = f",shard:{group.gpus * group.shards}" if group.shards else ""
    return f"gpu:{group.gpu_type}:{group.gpus}{shards}"


def _numbered(settings: Settings) -> list[tuple[int, NodeGroup]]:
    """Return each group with the number of its first node, from 1."""
    firsts = accumulate((group.count for group in settings.groups), initial=1)
    return list(zip(firsts, settings.groups, strict=False))


def _hostlist(first: int, group: NodeGroup) -> str:
    return f"n{_range(first, first + group.count - 1)}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"
