"""The checks of an installation: from facts to findings, each with its fix. Pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from metasched.installation.facts import Directory, Facts, Slurm
from metasched.installation.job_submit_lua import OtherSharedError, check_shared, shared_dir_of
from metasched.slurm.associations import enforces_limits
from metasched.slurm.errors import SlurmError
from metasched.slurm.json_releases import OLDEST
from metasched.slurm.leaked_gpus import CURE
from metasched.slurm.reused_ids import drained_by_reused_id, resume_command

GIB = 1 << 30
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "fuse.sshfs", "9p", "afs", "panfs"}
)
CLOCK_SECONDS = 2.0
ROLES = frozenset({"operator", "administrator"})
POLLS_OF_MEMORY = 5
RESTARTS_OF_A_ROUND = 3  # in a shorter round a restarted job trains for less than two thirds of the time

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ``error`` where metasched cannot work as configured, ``warning`` where it works less well.
        subject: the configuration key, file or part of Slurm that was checked.
        text: its state, in words for an administrator.
        fix: the command or setting that mends it; "" where there is nothing to do.
    """

    level: Level
    subject: str
    text: str
    fix: str = ""


def check(facts: Facts) -> list[Finding]:
    """Run all checks; findings are in the order in which an administrator would mend them."""
    found = [*_state(facts), *_shared(facts), *_started(facts), *_rounds(facts)]
    slurm = facts.slurm
    if isinstance(slurm, SlurmError):
        fix = "run this where Slurm's commands work, with slurmctld up"
        return [*found, Finding("error", "Slurm", f"does not answer: {slurm}", fix)]
    found += [*_version(slurm), *_role(facts, slurm), *_associations(facts, slurm), *_conf(facts, slurm)]
    found += [*_plugin(facts, slurm), *_nodes(slurm), *_types(facts, slurm), *_intake(facts, slurm), *_clock(slurm)]
    return found


def _state(facts: Facts) -> Iterator[Finding]:
    subject, directory = "[paths] state", facts.state
    yield from _usable(subject, directory, facts.user)
    if directory.readable_by_all:
        text = f"every user may enter {directory.path}: a reader of the database can keep the daemon from writing"
        yield Finding("error", subject, text, f"chmod o-rwx,g-w {directory.path}")
    if directory.filesystem in NETWORK:
        text = f"{directory.path} is on {directory.filesystem}: SQLite is not safe there"
        yield Finding("error", subject, text, "name a directory on a local disk")
    if os.path.normpath(directory.path) == os.path.normpath(facts.shared.path):
        text = f"{directory.path} is [paths] shared as well: the database is for the daemon alone"
        yield Finding("error", subject, text, "name another directory, on a local disk")


def _shared(facts: Facts) -> Iterator[Finding]:
    subject, directory = "[paths] shared", facts.shared
    if directory.missing and directory.problem is None:
        text = f"{directory.path} does not exist yet: the daemon makes it; whether nodes see it is not known yet"
        yield Finding("warning", subject, text, f"install -d -o {facts.user} {directory.path}")
    else:
        yield from _usable(subject, directory, facts.user)
    if directory.locks is False:
        text = f"{directory.filesystem} at {directory.path} has no locks: two daemons could run at once"
        yield Finding("error", subject, text, "mount it with locks (Lustre: -o flock), or name another directory")
    if directory.problem is None and directory.grants is False:
        text = (
            f"{directory.filesystem or 'the file system'} at {directory.path} has no access control lists: owners of "
            "jobs and admins see no loss, speed and progress, and under PrivateData no jobs"
        )
        fix = "mount it with POSIX access control lists (`acl`), or name another directory; a daemon of root needs none"
        yield Finding("warning", subject, text, fix)
    several = not isinstance(facts.slurm, SlurmError) and len(facts.slurm.nodes) > 1
    if directory.problem is None and directory.filesystem not in NETWORK and several:
        text = (
            f"{directory.path} is on {directory.filesystem or 'an unknown file system'}, which other hosts may not see"
        )
        yield Finding(
            "warning", subject, text, "make sure that every node mounts it; `metasched check --nodes` checks the nodes"
        )
    if facts.daemon is not None:
        yield Finding("ok", "daemon", f"one runs: {facts.daemon}")


def _started(facts: Facts) -> Iterator[Finding]:
    """Check what else would keep the daemon from starting: the database and the client for writes."""
    if facts.store is not None:
        yield Finding("error", "database", facts.store, "`metasched db check` says more")
    if facts.unknown_admins:
        text = f"this host knows no user or group {_some(facts.unknown_admins)}: they see what everybody sees"
        yield Finding("warning", "[access]", text, "correct the names, or let the host know them (nsswitch.conf)")
    if facts.writer is not None:
        yield Finding("error", "[slurm] client", facts.writer)


def _rounds(facts: Facts) -> Iterator[Finding]:
    """Compare the length of a round with the restarts that the daemon has measured."""
    if not facts.restarts:
        return
    subject, length, cost = "[schedule] round_seconds", facts.config.schedule.round_seconds, median(facts.restarts)
    measured = f"a restart takes {cost:.0f} s (median of the last {len(facts.restarts)}), and a round {length:g} s"
    least = math.ceil(RESTARTS_OF_A_ROUND * cost)
    if length < least:
        text = f"{measured}: a job that has been preempted trains for less than two thirds of its next round"
        yield Finding("warning", subject, text, f"round_seconds = {least}, or more")
    else:
        yield Finding("ok", subject, measured)


def _usable(subject: str, directory: Directory, user: str) -> Iterator[Finding]:
    if directory.problem is not None:
        yield Finding("error", subject, directory.problem, f"install -d -o {user} {directory.path}")
    elif directory.free is not None and directory.free < GIB:
        text = f"{directory.path} has {directory.free / GIB:.2f} GiB left"
        yield Finding("warning", subject, text, "free some space: the daemon stops when it cannot write")
    else:
        yield Finding("ok", subject, f"{directory.path} can be {'made' if directory.missing else 'used'}")
    if directory.open_to_all:
        text = f"every user may replace files in {directory.path}, which metasched trusts"
        yield Finding("error", subject, text, f"chmod go-w {directory.path}")


def _version(slurm: Slurm) -> Iterator[Finding]:
    major, minor, *_ = (*slurm.settings.version, 0, 0)
    name = f"Slurm {major}.{minor:02}, cluster {slurm.settings.cluster}"
    if (major, minor) < OLDEST:
        yield Finding("error", "Slurm", f"{name} is too old", f"{OLDEST[0]}.{OLDEST[1]:02} is the oldest that works")
    else:
        yield Finding("ok", "Slurm", name)


def _role(facts: Facts, slurm: Slurm) -> Iterator[Finding]:
    owner = slurm.settings.values.get("SlurmUser", "").partition("(")[0]
    level = slurm.admin_level or "none"
    if facts.uid == 0 or facts.user == owner:
        yield Finding("ok", "role", f"{facts.user} may do everything")
    elif level.lower() == "operator" and "lua" not in slurm.settings.job_submit_plugins:
        text = f"{facts.user} is {level}, which may not write AdminComment, where a job's identity is kept"
        fix = "install job_submit.lua, which writes it at submission, or make the user Administrator"
        yield Finding("error", "role", text, fix)
    elif level.lower() in ROLES:
        yield Finding("ok", "role", f"{facts.user} is {level}")
    else:
        text = f"{facts.user} is neither SlurmUser ({owner}) nor an operator: Slurm would refuse what the daemon asks"
        fix = _make_operator(facts) if _has_accounting(slurm) else f"run it as {owner}"
        yield Finding("error", "role", text, fix)


def _make_operator(facts: Facts) -> str:
    return f"sacctmgr modify user {facts.user} set adminlevel=Operator"


def _has_accounting(slurm: Slurm) -> bool:
    return "none" not in slurm.settings.values.get("AccountingStorageType", "none")


def _associations(facts: Facts, slurm: Slurm) -> Iterator[Finding]:
    subject = "accounting"
    if not facts.config.accounting.refresh_seconds:
        yield Finding("ok", subject, "shares and limits are ignored: [accounting] refresh_seconds = 0")
    elif not _has_accounting(slurm):
        yield Finding("ok", subject, "Slurm has none, so there are no shares of accounts and no limits")
    elif slurm.associations is None:
        text = f"Slurm does not show {facts.user} all associations: shares and limits are ignored"
        yield Finding("warning", subject, text, _make_operator(facts))
    elif not enforces_limits(slurm.settings.values):
        yield Finding("ok", subject, "shares are used; limits are not, because AccountingStorageEnforce lacks `limits`")
    else:
        yield Finding("ok", subject, f"{len(slurm.associations.rows)} associations: shares and limits are used")


def _conf(facts: Facts, slurm: Slurm) -> Iterator[Finding]:
    values, options = slurm.settings.values, facts.config.slurm
    select = values.get("SelectType", "")
    if not select.endswith("/cons_tres"):
        text = f"SelectType={select}: GPUs of a node cannot be given to several jobs"
        yield Finding("error", "slurm.conf", text, "SelectType=select/cons_tres")
    if options.exit_code not in slurm.settings.requeue_exit_hold:
        text = f"RequeueExitHold does not name {options.exit_code}: the wrapper alone puts a stopped job back"
        yield Finding("warning", "slurm.conf", text, f"RequeueExitHold={options.exit_code}")
    if values.get("JobFileAppend", "0") != "1":
        text = "a job's next run overwrites its output"
        yield Finding("warning", "slurm.conf", text, "JobFileAppend=1, or users write #SBATCH --open-mode=append")
    kept = _seconds(values.get("MinJobAge", ""))
    least = math.ceil(POLLS_OF_MEMORY * facts.config.schedule.poll_seconds)
    if kept is not None and kept < least:
        text = f"MinJobAge={kept:g}: ended jobs may be forgotten before the daemon sees how they ended"
        yield Finding("warning", "slurm.conf", text, f"MinJobAge={max(least, 300)}, or a lower poll_seconds")


def _plugin(facts: Facts, slurm: Slurm) -> Iterator[Finding]:
    subject, text = "job_submit", slurm.plugin
    if "lua" not in slurm.settings.job_submit_plugins:
        message = "no lua plugin: jobs are held only when the daemon reads them, and may have started before"
        yield Finding(
            "warning",
            subject,
            message,
            "JobSubmitPlugins=lua, with metasched's job_submit.lua in slurm.conf's directory",
        )
    elif text is None:
        yield Finding("ok", subject, "lua (job_submit.lua cannot be read from this host, so it is not checked)")
    elif "metasched" not in text:
        fix = "copy the functions of metasched's job_submit.lua into yours"
        yield Finding("warning", subject, "job_submit.lua in slurm.conf's directory does not mention metasched", fix)
    else:
        shared = facts.config.paths.shared
        if shared_dir_of(text) is None:
            message = "job_submit.lua names no SHARED: jobs learn the shared directory from their environment alone"
            yield Finding(
                "warning", subject, message, f'local SHARED = "{shared}" at its top, or METASCHED_SHARED for all jobs'
            )
        else:
            try:
                check_shared(text, shared)
            except OtherSharedError as error:
                yield Finding("error", subject, error.finding, error.fix)
            else:
                yield Finding("ok", subject, "job_submit.lua holds tagged jobs")
        yield from _plugin_intake(facts, slurm, text)


def _plugin_intake(facts: Facts, slurm: Slurm, text: str) -> Iterator[Finding]:
    """Check that job_submit.lua names the jobs of the configuration; a script of another form is not checked."""
    subject, intake = "job_submit", facts.config.intake
    for name, taken, fold in (("PARTITIONS", intake.partitions, str), ("QOS", intake.qos, str.lower)):
        table = re.search(rf"^\s*local {name}\s*=\s*\{{([^{{}}]*)\}}", text, re.MULTILINE)
        if table is None:
            continue
        held = re.findall(r"""["']([^"']+)["']""", table[1])
        if set(map(fold, held)) != set(map(fold, taken)):
            words = _some(sorted(held)) or "none", _some(sorted(taken)) or "none"
            message = f"{name} of job_submit.lua: {words[0]}; [intake] {name.lower()} of the configuration: {words[1]}"
            yield Finding("error", subject, message, "make them the same: the daemon takes in what the plugin stamps")
    shards = re.search(r"^\s*local SHARDS\s*=\s*([0-9]+|nil)", text, re.MULTILINE)
    of_nodes = {node.shards_per_gpu for node in slurm.nodes if node.shards_per_gpu}
    if shards is None:
        return
    if shards[1] == "nil" and of_nodes:
        message = "nodes have shards, and job_submit.lua has SHARDS = nil: jobs that request GPUs do not share them"
        yield Finding("warning", subject, message, f"local SHARDS = {min(of_nodes)} at its top")
    elif shards[1] != "nil" and int(shards[1]) not in of_nodes:
        message = f"job_submit.lua has SHARDS = {shards[1]}, and no node has that number of shards of each GPU"
        yield Finding("error", subject, message, "set it to the number of gres.conf and of Gres= of the nodes")


def _nodes(slurm: Slurm) -> Iterator[Finding]:
    mixed = [node.name for node in slurm.nodes if len(node.gpus) > 1]
    if mixed:
        text = f"{_some(mixed)}: more than one type of GPU on a node, so nothing is placed there"
        yield Finding("warning", "nodes", text, "leave them to other jobs, or split the types over nodes")
    drained = [node.name for node in slurm.nodes if not node.accepts and drained_by_reused_id(node.reason)]
    if drained:
        text = f"{_some(drained)}: drained by Slurm (Duplicate jobid): slurmctld crashed and gave a job's id away again"
        fix = f"`squeue -w {drained[0]}` and its processes show no job that Slurm has lost: {resume_command(drained)}"
        yield Finding("warning", "nodes", text, fix)
    if slurm.leaked:
        names = _some([f"{gpus} of {name}" for name, gpus in sorted(slurm.leaked.items())])
        text = f"GPUs that no job holds, and that Slurm counts as allocated: {names}; nothing is started on them"
        yield Finding("warning", "nodes", text, f"`{CURE}`, upon which slurmctld counts the GPUs of its jobs again")
    kinds: dict[str, int] = {}
    for node in slurm.nodes:
        for kind, count in node.gpus.items():
            kinds[kind] = kinds.get(kind, 0) + count
    if not kinds:
        text = "no node has GPUs: only jobs without GPUs can be scheduled"
        yield Finding(
            "warning", "nodes", text, "GresTypes=gpu, and Gres= on the nodes, in slurm.conf; gres.conf on them"
        )
    else:
        words = ", ".join(f"{count} {kind or 'untyped'}" for kind, count in sorted(kinds.items()))
        yield Finding("ok", "nodes", f"{len(slurm.nodes)} nodes, GPUs: {words}")


def _types(facts: Facts, slurm: Slurm) -> Iterator[Finding]:
    known = {kind for node in slurm.nodes for kind in node.gpus}
    if missing := sorted(facts.config.policy.parameters.gpu_types - known):
        text = f"no node has GPUs of type {_some(missing)}"
        typed = sorted(known - {""})
        fix = f"name some of: {_some(typed)}" if typed else "name none, or give the GPUs types in gres.conf"
        yield Finding("warning", "[policy.parameters]", text, fix)


def _intake(facts: Facts, slurm: Slurm) -> Iterator[Finding]:
    intake = facts.config.intake
    known = frozenset(name for node in slurm.nodes for name in node.partitions)
    if missing := sorted(set(intake.partitions) - known):
        text = f"Slurm has no partition {_some(missing)} with nodes"
        yield Finding("error", "[intake] partitions", text, f"name some of: {_some(sorted(known))}")
    known_qos = frozenset(name.lower() for name in slurm.qos or ())  # which are the same in any case
    if slurm.qos is not None and (missing := sorted(name for name in intake.qos if name.lower() not in known_qos)):
        yield Finding(
            "error", "[intake] qos", f"Slurm has no QOS {_some(missing)}", f"name some of: {_some(sorted(slurm.qos))}"
        )


def _clock(slurm: Slurm) -> Iterator[Finding]:
    if slurm.ahead is not None and abs(slurm.ahead) > CLOCK_SECONDS:
        way = "ahead of" if slurm.ahead > 0 else "behind"
        text = f"this host is {abs(slurm.ahead):.0f} s {way} the controller"
        yield Finding("warning", "clock", text, "run NTP (chrony) on both")


def _seconds(text: str) -> float | None:
    """Read the seconds of ``300 sec``; None where there is no number."""
    match = re.match(r"[0-9]+", text)
    return float(match[0]) if match else None


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
