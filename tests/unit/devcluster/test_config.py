"""The private cluster's configuration, search for programs, ports and processes; no Slurm."""

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from metasched.devcluster import DevCluster, NodeGroup, Settings, processes, reaper, software
from metasched.devcluster.__main__ import main
from metasched.devcluster.config import Layout, cgroup_conf, gres_conf, slurm_conf, topology_conf
from metasched.devcluster.errors import (
    BadSettingError,
    BaseInUseError,
    CommandError,
    DevClusterError,
    NoClusterError,
    SlurmMissingError,
)
from metasched.devcluster.ports import Ports
from tests.programs import write_program

LAYOUT = Layout(Path("/tmp/c"))  # noqa: S108  a name; nothing is written
MIXED = Settings(groups=(NodeGroup(2, 4, "v100"), NodeGroup(1, 1, "k80"), NodeGroup(2, 0)))


def conf(settings, plugin_dir=None):
    ports = range(17000, 17001 + len(settings.nodes))
    return slurm_conf(settings, LAYOUT, ports, "me", plugin_dir).splitlines()


def test_node_lines_number_the_groups_one_after_the_other():
    """Nodes are n1 to nN, each with its own port, and only nodes with GPUs have a Gres."""
    nodes = [line for line in conf(MIXED) if line.startswith("NodeName=")]
    assert [line.split()[0] for line in nodes] == ["NodeName=n[1-2]", "NodeName=n3", "NodeName=n[4-5]"]
    assert [line.split()[3] for line in nodes] == ["Port=[17001-17002]", "Port=17003", "Port=[17004-17005]"]
    assert "Gres=gpu:v100:4" in nodes[0]
    assert "Gres=gpu:k80:1" in nodes[1]
    assert "Gres" not in nodes[2]


def test_gres_lines_name_one_device_file_a_gpu():
    """Each group with GPUs has as many device files as GPUs a node; a CPU group has no line."""
    assert gres_conf(MIXED, LAYOUT).splitlines() == [
        "NodeName=n[1-2] Name=gpu Type=v100 File=/tmp/c/dev/nvidia[0-3] Flags=nvidia_gpu_env",
        "NodeName=n3 Name=gpu Type=k80 File=/tmp/c/dev/nvidia0 Flags=nvidia_gpu_env",
    ]


def test_shards_belong_to_one_device_file_each():
    """Slurm ties shards to a GPU by its file; the files of a cluster without shards do not mention them."""
    shared = Settings(groups=(NodeGroup(2, 2, "v100", shards=2), NodeGroup(1, 1, "k80")))
    assert "GresTypes=gpu,shard" in conf(shared)
    assert [line.split()[-2] for line in conf(shared) if line.startswith("NodeName=")] == [
        "Gres=gpu:v100:2,shard:4",
        "Gres=gpu:k80:1",
    ]
    assert [line for line in gres_conf(shared, LAYOUT).splitlines() if "shard" in line] == [
        "NodeName=n[1-2] Name=shard Count=2 File=/tmp/c/dev/nvidia0",
        "NodeName=n[1-2] Name=shard Count=2 File=/tmp/c/dev/nvidia1",
    ]
    assert "shard" not in "".join(conf(MIXED)) + gres_conf(MIXED, LAYOUT)


def test_each_leaf_switch_has_nodes_per_switch_nodes():
    """The last switch has the remaining nodes; without the setting the network is flat."""
    assert topology_conf(Settings(groups=(NodeGroup(3), NodeGroup(2, 0)), nodes_per_switch=2)).splitlines() == [
        "SwitchName=s1 Nodes=n[1-2]",
        "SwitchName=s2 Nodes=n[3-4]",
        "SwitchName=s3 Nodes=n5",
        "SwitchName=root Switches=s[1-3]",
    ]
    assert "TopologyPlugin=topology/tree" in conf(Settings(nodes_per_switch=2))
    assert topology_conf(Settings()) == ""
    assert "Topology" not in "".join(conf(Settings()))


def test_default_memory_is_proportional_to_cpus():
    """A job without --mem gets the part of a node's memory that belongs to its CPUs."""
    lines = conf(Settings(cpus=8, memory_mb=8001))
    assert "SelectTypeParameters=CR_Core_Memory" in lines
    assert "DefMemPerCPU=1000" in lines


@pytest.mark.parametrize(
    ("option", "off", "key"),
    [
        ("tuned", False, "SchedulerParameters"),
        ("requeue_exit", None, "RequeueExitHold"),
    ],
)
def test_disabled_settings_have_no_line(option, off, key):
    """Slurm's default holds then."""
    assert [line for line in conf(Settings()) if line.startswith(f"{key}=")]
    assert not [line for line in conf(Settings(**{option: off})) if line.startswith(f"{key}=")]


def test_extra_lines_come_last():
    """The caller's lines are at the end, where Slurm lets them overrule the earlier ones."""
    assert conf(Settings(extra_conf=("KillWait=5", "MinJobAge=10")))[-2:] == ["KillWait=5", "MinJobAge=10"]


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("slurm-wlm 22.05.8", "cgroup/v1"),
        ("slurm-wlm 23.11.4", "cgroup/v1"),
        ("slurm 24.05.0-rc1", "disabled"),
        ("slurm 25.11.7", "disabled"),
    ],
)
def test_each_release_gets_a_cgroup_plugin_that_it_can_load(tmp_path, said, word):
    """Releases from 24.05 on can disable control groups; earlier ones do not know the word."""
    (tmp_path / "usr/lib/x/slurm-wlm").mkdir(parents=True)
    write_program(tmp_path / "usr/sbin/slurmctld", f"#!/bin/sh\n[ $1 = -V ] && echo {said}\n")
    assert cgroup_conf(software.Software(tmp_path).release) == f"CgroupPlugin={word}\n"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: NodeGroup(count=0), "count"),
        (lambda: NodeGroup(gpus=-1), "gpus"),
        (lambda: NodeGroup(gpu_type="v100:4"), "v100:4"),
        (lambda: Settings(groups=()), "group"),
        (lambda: Settings(nodes_per_switch=0), "nodes_per_switch"),
        (lambda: Settings(cpus=0), "cpus"),
        (lambda: Settings(requeue_exit=0), "requeue_exit"),
    ],
)
def test_settings_that_slurm_would_refuse_are_refused_by_name(make, named):
    """A bad value is an error that names it."""
    with pytest.raises(BadSettingError, match=named):
        make()


def test_the_longest_base_fits_the_paths_of_slurms_sockets():
    """The error for a long base has the longest possible length, and a base of that length is accepted."""
    settings = Settings(groups=(NodeGroup(count=64),))
    with pytest.raises(BadSettingError, match="too long") as caught:
        Layout(Path("/" + "x" * 100)).check(settings)
    limit = int(str(caught.value).split()[-2])
    Layout(Path("/" + "x" * (limit - 1))).check(settings)
    with pytest.raises(BadSettingError, match="too long"):
        Layout(Path("/" + "x" * limit)).check(settings)


@pytest.mark.parametrize("name", ["a b", "a%n", "a[1-2]", "a,b", "a#b"])
def test_base_with_slurms_own_syntax_is_refused(name):
    """A character that Slurm would read as syntax is an error before anything is started."""
    with pytest.raises(BadSettingError, match="letters"):
        Layout(Path("/tmp", name)).check(Settings())  # noqa: S108  a name; nothing is written


def test_reserved_ports_are_kept_from_others_yet_a_daemon_can_listen():
    """Nobody else can reserve the ports, while a daemon that sets SO_REUSEADDR, as Slurm's do, can use them."""
    with Ports(3) as ports:
        address = ("127.0.0.1", ports.numbers[1])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind(address)
            daemon.listen()
            socket.create_connection(address).close()
    with socket.socket() as later:
        later.bind(("127.0.0.1", ports.numbers[2]))


def test_attach_to_a_directory_without_cluster_is_an_error(tmp_path):
    """An empty directory, a missing one and a damaged state file each hold no cluster."""
    for base in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoClusterError, match=r"devcluster\.json"):
            DevCluster.attach(base)
    for text in ("{", "[]", '{"format": 1}', json.dumps({"format": 99})):
        Layout(tmp_path).state.write_text(text)
        with pytest.raises(NoClusterError):
            DevCluster.attach(tmp_path)


def test_base_that_holds_other_files_is_left_alone(monkeypatch):
    """A directory with other files is refused, and the files stay."""
    monkeypatch.setattr(software, "find", lambda: software.Software(None))
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "thesis.tex").write_text("x")
        with pytest.raises(BaseInUseError, match="other files"):
            DevCluster.up(base)
        assert [path.name for path in base.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("enter", [DevCluster.up, DevCluster.attach])
def test_base_that_others_could_replace_is_refused(monkeypatch, tmp_path, enter):
    """Whoever can write below a base runs code as its cluster's user: it must be that user's, and only that one's."""
    monkeypatch.setattr(software, "find", lambda: software.Software(None))
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o775)
        with pytest.raises(BadSettingError, match="go-w"):
            enter(base)
        base.chmod(0o755)
        monkeypatch.setattr(os, "geteuid", lambda: base.stat().st_uid + 1)
        with pytest.raises(BadSettingError, match="another user"):
            enter(base)
        assert list(base.iterdir()) == []


def test_an_unknown_mode_is_refused(monkeypatch):
    """METASCHED_SLURM must be one of three words, and the error lists them."""
    monkeypatch.setenv("METASCHED_SLURM", "docker")
    with pytest.raises(BadSettingError, match="auto, system, unpacked"):
        software.find()


def test_missing_slurm_says_what_to_install(monkeypatch, tmp_path, capsys):
    """Where Slurm is neither installed nor can be fetched, the error has the command that installs it; `fetch` too."""
    monkeypatch.setattr(software, "_SYSTEM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("METASCHED_CACHE", str(tmp_path / "cache"))
    for mode in ("system", "auto"):
        monkeypatch.setenv("METASCHED_SLURM", mode)
        with pytest.raises(SlurmMissingError, match="apt-get install slurmctld slurmd"):
            software.find()
    assert main(["fetch"]) == 1
    assert "apt-get install slurmctld slurmd" in capsys.readouterr().err


def test_unpacked_programs_on_path_are_not_the_systems(monkeypatch, tmp_path):
    """A shell that uses another private cluster has unpacked programs on its PATH, without their libraries."""
    monkeypatch.setattr(software, "_SYSTEM_PATH", str(tmp_path))
    programs = tmp_path / "tree" / "usr" / "sbin"
    programs.mkdir(parents=True)
    for name in (*software.DAEMONS, "sbatch"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("METASCHED_SLURM", "system")
    assert software.find().program("slurmd").parent == programs
    (tmp_path / "tree" / software._COMPLETE).touch()
    with pytest.raises(SlurmMissingError):
        software.find()


def test_an_unwritable_cache_is_named(monkeypatch, tmp_path):
    """The error names the directory and the variable that selects another."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("METASCHED_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("METASCHED_SLURM", "unpacked")
    with pytest.raises(SlurmMissingError, match="METASCHED_CACHE"):
        software.find()


def test_a_partly_unpacked_tree_is_not_used(monkeypatch, tmp_path):
    """The cache serves only complete trees of this system."""
    monkeypatch.setenv("METASCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("METASCHED_SLURM", "unpacked")
    monkeypatch.setattr(software, "_fetch", lambda cache: cache / "fetched")

    def found():
        return software.find().root.relative_to(tmp_path)

    def on_debian(version):
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian", "VERSION_ID": version})

    on_debian("12")
    here = Path(f"debian-12-{platform.machine()}")
    assert found() == here / "fetched"
    (tmp_path / here / "slurm-1").mkdir()
    assert found() == here / "fetched"
    (tmp_path / here / "slurm-1" / ".whole").touch()
    assert found() == here / "slurm-1"
    on_debian("13")
    assert found().name == "fetched"


def test_the_environment_has_no_variables_of_an_outer_job(monkeypatch, tmp_path):
    """Variables that control Slurm's commands are removed from the environment and the shell lines; others stay."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SBATCH_PARTITION", "elsewhere")
    monkeypatch.setenv("KEPT", "1")
    cluster = DevCluster(tmp_path, Settings(), software.Software(None), 1)
    env = cluster.env
    assert cluster.changes["SLURM_JOB_ID"] is None
    shell = subprocess.check_output(["sh", "-c", "\n".join([*cluster.shell_lines, "env"])], text=True).splitlines()
    assert {"KEPT=1", f"SLURM_CONF={tmp_path}/etc/slurm.conf"} <= set(shell)
    assert not [line for line in shell if line.startswith("SBATCH_")]
    assert not {"SLURM_JOB_ID", "SBATCH_PARTITION"} & env.keys()
    assert env["KEPT"] == "1"
    assert env["SLURM_CONF"] == f"{tmp_path}/etc/slurm.conf"


def test_command_that_fails_or_hangs_is_an_error_with_its_words(tmp_path):
    """A command's failure carries its stderr; one that does not end is cut off; a missing one is named."""
    cluster = DevCluster(tmp_path, Settings(), software.Software(None), 1)
    with pytest.raises(CommandError, match=r"exit code 3: why"):
        cluster.run("sh", "-c", "echo why >&2; exit 3")
    with pytest.raises(CommandError, match="no end after"):
        cluster.run("sleep", "60", timeout=0.1)
    with pytest.raises(CommandError, match="no-such-command"):
        cluster.run("no-such-command")


@pytest.fixture
def sleeper():
    """A process that ends only when told to."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_with_a_reused_pid_is_not_killed(sleeper):
    """A process is identified by pid and start time."""
    real = processes.read(sleeper.pid)
    earlier = processes.Process(real.pid, real.parent, real.started - 1, real.exe, real.argv, real.environ)
    processes.end(earlier)
    assert processes.read(sleeper.pid) == real
    processes.end(real)
    assert sleeper.wait(30) == -signal.SIGKILL


def test_a_stale_pid_file_counts_as_a_dead_daemon(sleeper, tmp_path):
    """The pid belongs to another program by now, which is spared."""
    cluster = DevCluster(tmp_path, Settings(), software.Software(None), 1)
    cluster.layout.run.mkdir()
    (cluster.layout.run / "n1.pid").write_text(f"{sleeper.pid}\n")
    assert cluster.status()["daemons"]["n1"] is None
    with pytest.raises(DevClusterError, match="not running"):
        cluster.kill_node("n1")
    cluster.down()
    assert sleeper.poll() is None


def created(base):
    """Return a cluster that has only its state file."""
    cluster = DevCluster(base, Settings(), software.Software(None), 1)
    cluster._create_base()
    return cluster


def test_down_is_not_interrupted(monkeypatch, tmp_path):
    """SIGINT, SIGTERM and SIGHUP are ignored during `down`, and handled again afterwards."""
    before = signal.getsignal(signal.SIGINT)
    cluster = created(tmp_path / "c")

    def interrupted(*_):
        for number in processes.INTERRUPTS:
            signal.raise_signal(number)
        return []

    monkeypatch.setattr(processes, "end_families", interrupted)
    cluster.down()
    assert not cluster.base.exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_concurrent_downs_both_succeed(monkeypatch, tmp_path):
    """A file that the other `down` has just removed is no error."""
    cluster = created(tmp_path / "c")
    cluster.layout.etc.mkdir()
    rmtree = shutil.rmtree

    def removed_by_another(path):
        rmtree(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(shutil, "rmtree", removed_by_another)
    cluster.down()
    assert not cluster.base.exists()


def test_the_reaper_ends_last(monkeypatch, tmp_path, sleeper):
    """The reaper lives until the last file is removed, so that it would finish the work of a killed `down`."""
    cluster = created(tmp_path / "c")
    reaper.watch(cluster.base, sleeper.pid)

    def reapers():
        return [each for each in processes.everyone() if reaper.is_reaper(each.argv, cluster.base)]

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", Mock(side_effect=PermissionError(1, "no", "it")))
        with pytest.raises(DevClusterError, match="cannot remove"):
            cluster.down()
    assert reapers()
    cluster.down()
    assert not reapers()


def test_a_hidden_process_reads_as_none(monkeypatch):
    """Where /proc is mounted with hidepid=1, other users' processes cannot be read."""
    real = Path.read_text

    def hidden(path, *args, **options):
        if path == Path("/proc/1/stat"):
            raise PermissionError(1, "Operation not permitted")
        return real(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert processes.read(1) is None
    assert os.getpid() in {process.pid for process in processes.everyone()}


def test_families_hold_descendants_but_never_the_caller(sleeper):
    """A member's children are members; the calling process and its ancestors never are."""
    me = os.getpid()
    picked = {process.pid for process in processes.families(lambda process: process.pid in {me, os.getppid()})}
    assert sleeper.pid in picked
    assert not {me, os.getppid()} & picked


def test_zombie_counts_as_dead(sleeper):
    """A process that has ended without being waited for reads as None."""
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert processes.read(sleeper.pid) is None
