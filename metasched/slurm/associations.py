"""Slurm's associations and QOS as slurmctld has them: fair-shares, and limits on GPUs and running jobs.

They are read from ``scontrol -o show assoc_mgr``, which needs the Operator role wherever PrivateData hides usage. Other
limits than those on GPUs and running jobs are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from metasched.slurm import field_parsers

ROOT = "root"
_NUMBERED = re.compile(r"\([0-9]+\)$")
_BLOCK = re.compile(r"=\{([^{}]*)\}")
# A number of more digits is no limit.
_GPUS = re.compile(r"gres/gpu(?::([^=,()]+))?=([0-9]{1,18})(?![0-9])", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,18}(?![0-9])", re.ASCII)
_USE_PARENT = 0x7FFFFFFF
_SHARES = "SharesRaw/Norm/Level/Factor"


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """Limits on the resources held at the same time.

    Attributes:
        gpus: most GPUs by type, "" for all types together; a type without an entry has no limit of its own.
        jobs: most running jobs; None for no limit.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    jobs: int | None = None


NO_USAGE_LIMITS = UsageLimits()


@dataclass(frozen=True, slots=True)
class Association:
    """An account, or a user in an account.

    Attributes:
        account: the account's name.
        user: the user's name; "" for the account itself.
        partition: the only partition of the association; "" for all.
        parent: the account above; "" for the root.
        shares: raw fair-shares (sacctmgr's Fairshare); None for ``Fairshare=parent``.
        group: GrpTRES and GrpJobs, for all jobs of the association and of those below it.
        max_jobs: MaxJobs of a user, inherited ones included; None for no limit.
        per_job: MaxTRESPerJob of a user, inherited ones included.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    shares: int | None = 1
    group: UsageLimits = NO_USAGE_LIMITS
    max_jobs: int | None = None
    per_job: UsageLimits = NO_USAGE_LIMITS


@dataclass(frozen=True, slots=True)
class Qos:
    """A quality of service (QOS) with its limits.

    Attributes:
        group: GrpTRES and GrpJobs.
        per_user: MaxTRESPerUser and MaxJobsPerUser; known as soon as any user has a job of the QOS in the queue.
        per_account: MaxTRESPerAccount and MaxJobsPerAccount; known as soon as any account has such a job.
        per_job: MaxTRESPerJob.
    """

    group: UsageLimits = NO_USAGE_LIMITS
    per_user: UsageLimits = NO_USAGE_LIMITS
    per_account: UsageLimits = NO_USAGE_LIMITS
    per_job: UsageLimits = NO_USAGE_LIMITS


@dataclass(frozen=True)
class Associations:
    """All associations and QOS of the cluster.

    Attributes:
        rows: the associations of accounts and of users.
        qos: the QOS by name.
        partition_qos: the name of the partition QOS, by partition; partitions without one are missing.
    """

    rows: tuple[Association, ...]
    qos: Mapping[str, Qos] = field(default_factory=dict)
    partition_qos: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Normalised fair-shares by account, in [0, 1]: the parent's, times the account's part of the raw shares there.

        This is Slurm's own definition (SharesNorm), in which users directly below a parent count like accounts. Slurm's
        number itself is not set under ``PriorityType=priority/basic``.
        """
        accounts = {row.account: row for row in self.rows if not row.user}
        above = {name: _inside(accounts, row.parent or ROOT) for name, row in accounts.items()}
        total: dict[str, int] = {}
        for row in self.rows:
            if row.shares is not None and (row.account != ROOT or row.user):
                parent = above[row.account] if not row.user else _inside(accounts, row.account)
                total[parent] = total.get(parent, 0) + row.shares
        found = {ROOT: 1.0}

        def share(name: str, below: frozenset[str] = frozenset()) -> float:
            if name not in found:
                row, parent = accounts.get(name), above.get(name, ROOT)
                if row is None or name in below:
                    return 0.0
                part = 1.0 if row.shares is None else row.shares / max(total[parent], 1)
                found[name] = share(parent, below | {name}) * part
            return found[name]

        return {name: share(name) for name in accounts}

    @cached_property
    def _row(self) -> Mapping[tuple[str, str, str], Association]:
        return {(row.account, row.user, row.partition): row for row in self.rows}

    def chain(self, account: str, user: str, partition: str) -> tuple[Association, ...]:
        """Return the associations that limit a job, lowest first: the user's, the account's, all parent accounts'."""
        of_user = self._row.get((account, user, partition)) or self._row.get((account, user, ""))
        found = [of_user] if user and of_user is not None else []
        while (row := self._row.get((account, "", ""))) is not None and row not in found:
            found.append(row)
            account = row.parent
        return tuple(found)


def _inside(accounts: Mapping[str, Association], name: str) -> str:
    """Return the account whose shares the children of an account divide: ``Fairshare=parent`` accounts are skipped."""
    seen = set()
    while (row := accounts.get(name)) is not None and row.shares is None and row.parent and name not in seen:
        seen.add(name)
        name = row.parent
    return name


def enforces_limits(settings: Mapping[str, str]) -> bool:
    """Whether Slurm enforces limits (AccountingStorageEnforce), by its settings (``SlurmSettings.values``)."""
    return not {"limits", "safe", "all"}.isdisjoint(settings.get("AccountingStorageEnforce", "").split(","))


def parse(assoc_mgr: str, partitions: str = "") -> Associations | None:
    """Parse the outputs of ``scontrol -o show assoc_mgr flags=assoc,qos`` and ``scontrol -o show partition``.

    Returns:
        None where Slurm does not show all associations: accounting is off, or this user is no operator.
    """
    lines = assoc_mgr.splitlines()
    rows = tuple(_association(field_parsers.fields(line)) for line in lines if line.startswith("ClusterName="))
    if not any(row.account == ROOT and not row.user for row in rows):
        return None
    qos = dict(_qos(line) for line in lines if line.startswith("QOS="))
    of_partitions = (
        field_parsers.fields(line) for line in partitions.splitlines() if line.startswith("PartitionName=")
    )
    known = {fields["PartitionName"]: fields.get("QoS", "") for fields in of_partitions}
    return Associations(rows, qos, {name: of for name, of in known.items() if of in qos})


def _association(fields: Mapping[str, str]) -> Association:
    user = _name(fields.get("UserName", ""))
    shares = _count(fields.get(_SHARES, ""))
    return Association(
        account=_name(fields.get("Account", "")),
        user=user,
        partition=fields.get("Partition", ""),
        parent=_name(fields.get("ParentAccount", "")),
        shares=None if shares == _USE_PARENT else shares if shares is not None else 1,
        group=_quota(fields, "GrpTRES", "GrpJobs"),
        max_jobs=_count(fields.get("MaxJobs", "")) if user else None,
        per_job=_quota(fields, "MaxTRESPJ") if user else NO_USAGE_LIMITS,
    )


def _qos(line: str) -> tuple[str, Qos]:
    rest, _, users = line.partition(" User Limits=")
    own, _, accounts = rest.partition(" Account Limits=")
    fields = field_parsers.fields(own)
    found = Qos(
        group=_quota(fields, "GrpTRES", "GrpJobs"),
        per_user=_quota(_first_block(users), "MaxTRESPU", "MaxJobsPU"),
        per_account=_quota(_first_block(accounts), "MaxTRESPA", "MaxJobsPA"),
        per_job=_quota(fields, "MaxTRESPJ"),
    )
    return _name(fields["QOS"]), found


def _first_block(text: str) -> Mapping[str, str]:
    """Return the fields of the first ``{...}`` block: all users, or accounts, shown have the same limits."""
    block = _BLOCK.search(text)
    return {} if block is None else field_parsers.fields(block[1])


def _quota(fields: Mapping[str, str], tres: str, jobs: str = "") -> UsageLimits:
    gpus = {kind: int(count) for kind, count in _GPUS.findall(fields.get(tres, ""))}
    return UsageLimits(gpus, _count(fields.get(jobs, "")))


def _count(text: str) -> int | None:
    """Read the limit of ``4(2)``, a limit with its usage; None for no limit."""
    digits = _COUNT.match(text)
    return int(digits[0]) if digits else None


def _name(text: str) -> str:
    """Read the name of ``alice(2001)``, a name with its id."""
    return _NUMBERED.sub("", text)
