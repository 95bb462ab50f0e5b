"""The facts about this host and its Slurm that an installation depends on. Reads only; ``checks`` judges them."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from metasched.configuration.config import Config
from metasched.configuration.file_names import DATABASE, LOCK
from metasched.installation.job_submit_lua import read_plugin
from metasched.learning.restart_cost import restarts_of_site
from metasched.shared_dir.lock import LockFileError, holder
from metasched.shared_dir.private_files import Readers, grant
from metasched.slurm.associations import Associations
from metasched.slurm.client import SlurmClient, SlurmNode, SlurmSettings
from metasched.slurm.client_factory import make_client
from metasched.slurm.command_runner import run_command
from metasched.slurm.errors import SlurmError
from metasched.slurm.leaked_gpus import excess_allocations
from metasched.store import MissingStoreError, OlderStoreError, Store, StoreError

COMMAND_SECONDS = 30.0  # timeout of any one command
LOOKS = 3  # at GPUs that Slurm counts as allocated without a job: a job may just start or end
LOOK_SECONDS = 1.0  # from one look to the next
SOMEBODY = 65534  # a Unix user, `nobody` on most hosts, for whom a file is made readable to try it
PARALLEL_NODES = 16  # nodes that are checked at the same time

# Run as a job on a compute node: checks for the shared directory and for the programs that jobs need.
_ON_A_NODE = (
    'test -z "$1" || test -d "$1" || echo "does not see $1"; '
    'command -v metasched-run >/dev/null || echo "has no metasched-run on PATH"; '
    'command -v python3 >/dev/null || echo "has no python3 on PATH"'
)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that the configuration names.

    Attributes:
        path: the directory's path.
        problem: why the directory cannot be used, in words; None if it can.
        filesystem: the type of the file system, as the kernel names it ("" if not known).
        free: bytes left on the file system; None if not known.
        locks: whether POSIX locks work there; None if not tried.
        open_to_all: whether every user may make and remove files there.
        readable_by_all: whether every user may open the files there.
        missing: whether the directory does not exist yet.
        grants: whether this user can let another user read a file there; None if not tried.
    """

    path: Path
    problem: str | None
    filesystem: str
    free: int | None
    locks: bool | None
    open_to_all: bool = False
    readable_by_all: bool = False
    missing: bool = False
    grants: bool | None = None


@dataclass(frozen=True, slots=True)
class Slurm:
    """The facts about Slurm.

    Attributes:
        settings: Slurm's settings (slurm.conf).
        nodes: all nodes of the cluster.
        admin_level: this user's AdminLevel in the accounting; None without accounting or without such a user.
        qos: names of all QOS; None without accounting.
        ahead: seconds by which this host's clock is ahead of the controller's; None if not known.
        plugin: the text of job_submit.lua in slurm.conf's directory; None if it cannot be read from this host.
        associations: fair-shares and limits; None without accounting, or where Slurm does not show this user all.
        leaked: GPUs that Slurm counts as allocated although no job holds them, by node.
    """

    settings: SlurmSettings
    nodes: Sequence[SlurmNode]
    admin_level: str | None
    qos: frozenset[str] | None
    ahead: float | None
    plugin: str | None
    associations: Associations | None = None
    leaked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that the checks need.

    Attributes:
        config: the checked configuration.
        user, uid: name and id of this process's user.
        state, shared: the directories ``[paths]`` names.
        daemon: the text in the lock of the running daemon; None if none runs.
        slurm: the facts about Slurm, or the error where Slurm does not answer.
        writer: why the configured pyslurm client does not work; None if it works or is not configured.
        store: the damage of the database, in words; None if it is sound, or does not exist yet.
        restarts: seconds of each measured restart of the jobs that ran last; empty where none is known.
        unknown_admins: names in ``[access]`` that are no users and groups of this host.
    """

    config: Config
    user: str
    uid: int
    state: Directory
    shared: Directory
    daemon: str | None
    slurm: Slurm | SlurmError
    writer: str | None = None
    store: str | None = None
    restarts: tuple[float, ...] = ()
    unknown_admins: tuple[str, ...] = ()


def gather(config: Config, client: SlurmClient) -> Facts:
    """Gather all facts, Slurm's by ``client``; no file is left behind."""
    uid = os.geteuid()
    shared = probe_directory(config.paths.shared)
    damage, restarts = _read_store(config.paths.state / DATABASE)
    return Facts(
        config=config,
        user=pwd.getpwuid(uid).pw_name,
        uid=uid,
        state=probe_directory(config.paths.state),
        shared=shared,
        daemon=_daemon(config.paths.shared / LOCK) if shared.problem is None else None,
        slurm=_ask(client),
        writer=_writer(config),
        store=damage,
        restarts=restarts,
        unknown_admins=_unknown_admins(config),
    )


def probe_directory(path: Path) -> Directory:
    """Try to write and lock in a directory; a missing directory is tried in its nearest parent that exists."""
    problem, locks, grants = None, None, None
    try:
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
    except OSError as error:
        return Directory(path, f"{path} cannot be read by this user: {error.strerror}", "", None, None)
    if not existing.is_dir():
        problem = f"{existing} is not a directory"
    else:
        try:
            with tempfile.TemporaryFile(dir=existing) as file:
                locks, grants = _can_lock(file.fileno()), _can_grant(file.fileno())
        except OSError as error:
            problem = f"{existing} cannot be written by this user: {error.strerror}"
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(existing).free
    mode = existing.stat().st_mode if existing == path else 0
    return Directory(
        path,
        problem,
        _filesystem(existing),
        free,
        locks,
        open_to_all=mode & stat.S_IWOTH != 0,
        readable_by_all=mode & stat.S_IXOTH != 0,
        missing=existing != path,
        grants=grants,
    )


def _can_lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _can_grant(file: int) -> bool:
    try:
        grant(file, Readers(frozenset({SOMEBODY})))
    except OSError:
        return False
    return True


def _unknown_admins(config: Config) -> tuple[str, ...]:
    """Return the admins of the configuration that this host does not know."""
    unknown = []
    for names, look_up in ((config.access.admins, pwd.getpwnam), (config.access.admin_groups, grp.getgrnam)):
        for name in names:
            try:
                look_up(name)
            except KeyError:
                unknown.append(name)
    return tuple(unknown)


def _filesystem(path: Path) -> str:
    """Return the type of the file system that holds a path; "" if not known."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    mounted: dict[str, str] = {}
    for line in lines:
        mount, _, source = line.partition(" - ")
        mounted[mount.split()[4].encode().decode("unicode_escape")] = source.split()[0]
    real = path.resolve()
    return next((mounted[str(parent)] for parent in (real, *real.parents) if str(parent) in mounted), "")


def _daemon(path: Path) -> str | None:
    try:
        words = holder(path)
    except LockFileError:
        return None  # the directory's own check reports it
    return "a daemon that has not written its host and pid yet" if words == "" else words


def _writer(config: Config) -> str | None:
    if config.slurm.client != "pyslurm":
        return None
    try:
        make_client(config.slurm.client, config.slurm.timeout_seconds).close()
    except SlurmError as error:
        return str(error)
    return None


def _read_store(path: Path) -> tuple[str | None, tuple[float, ...]]:
    """Return the damage of the database, and the restarts of a sound one; see ``Facts``."""
    try:
        with Store.open(path, read_only=True) as store:
            if problems := store.problems():
                return "; ".join(problems), ()
            return None, tuple(restarts_of_site(store))
    except (MissingStoreError, OlderStoreError):  # the daemon makes one, or brings it up to date
        return None, ()
    except StoreError as error:
        return str(error), ()


def _ask(client: SlurmClient) -> Slurm | SlurmError:
    try:
        settings, nodes, associations = client.settings(), client.nodes(), client.associations()
        asked = time.time()
        leaked = _leaked(client, nodes)
    except SlurmError as error:
        return error
    return Slurm(
        settings=settings,
        nodes=nodes,
        admin_level=_accounting("user", pwd.getpwuid(os.geteuid()).pw_name, "format=AdminLevel"),
        qos=None if (names := _accounting("qos", "format=Name")) is None else frozenset(names.split()),
        ahead=None if settings.as_of is None else asked - settings.as_of,
        plugin=read_plugin(settings),
        associations=associations,
        leaked=leaked,
    )


def _leaked(client: SlurmClient, nodes: Sequence[SlurmNode]) -> dict[str, int]:
    """The GPUs that several looks, some seconds apart, find allocated without a job, by node.

    Raises:
        SlurmError: Slurm does not answer.
    """
    found: dict[str, int] = {}
    for look in range(LOOKS):
        excess = excess_allocations(nodes, client.jobs())
        found = {
            name: min(gpus, found.get(name, gpus))
            for name, gpus in excess.items()
            if gpus and (not look or name in found)
        }
        if not found:
            break
        if look + 1 < LOOKS:
            time.sleep(LOOK_SECONDS)
            nodes = client.nodes()
    return found


def _accounting(*words: str) -> str | None:
    try:
        argv = ["sacctmgr", "--noheader", "--parsable2", "--immediate", "show", *words]
        return run_command(argv, timeout=COMMAND_SECONDS)[0].strip() or None
    except SlurmError:
        return None


def on_nodes(nodes: Sequence[SlurmNode], shared: Path | None) -> Iterator[tuple[str, list[str] | SlurmError]]:
    """Yield each compute node's name with its faults, in words, or with the error of the job that checks the node.

    Each node has a job of its own (at most a minute), so that a node that is down or full delays no other.

    Args:
        nodes: the nodes to check.
        shared: the shared directory that each node must see; None to skip that check.
    """
    with ThreadPoolExecutor(PARALLEL_NODES) as pool:
        yield from pool.map(lambda node: (node.name, _on_node(node, shared)), nodes)


def _on_node(node: SlurmNode, shared: Path | None) -> list[str] | SlurmError:
    # The default partition may lack the node, and the default memory may be all of the node's.
    where = [f"--nodelist={node.name}", f"--partition={','.join(sorted(node.partitions))}"]
    size = ["--nodes=1", "--ntasks=1", "--mem=32M", "--immediate=20", "--time=1", "--quiet", "--chdir=/"]
    argv = ["srun", *where, *size, "/bin/sh", "-c", _ON_A_NODE, "sh", str(shared or "")]
    try:
        return run_command(argv, timeout=COMMAND_SECONDS, label="srun")[0].splitlines()
    except SlurmError as error:
        return error
