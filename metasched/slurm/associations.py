"""Slurm's associations and QOS as slurmctld has them: shares, and limits on GPUs and running jobs.

They are read from ``scontrol -o show assoc_mgr``, which needs the Operator role wherever PrivateData hides usage. What
is no limit on GPUs or running jobs is left out.
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
_GPUS = re.compile(r"gres/gpu(?::([^=,()]+))?=([0-9]+)")
_USE_PARENT = 0x7FFFFFFF
_SHARES = "SharesRaw/Norm/Level/Factor"


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """What may be held at once.

    Attributes:
        gpus: GPUs by type, "" for all types together; a type that is not in it has no limit of its own.
        jobs: running jobs; None for no limit.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    jobs: int | None = None

    def __bool__(self) -> bool:
        return bool(self.gpus) or self.jobs is not None


NO_USAGE_LIMITS = UsageLimits()


@dataclass(frozen=True, slots=True)
class Association:
    """An account, or a user in an account.

    Attributes:
        account: its name.
        user: "" for the account itself.
        partition: the only one that it is for; "" for all.
        parent: the account above; "" for the root.
        shares: as sacctmgr's Fairshare has them; None for those of its parent.
        group: GrpTRES and GrpJobs: of all jobs of it and of what is below it.
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
    """A quality of service.

    Attributes:
        group: GrpTRES and GrpJobs.
        per_user: MaxTRESPerUser and MaxJobsPerUser. Known as soon as any user has a job of it in the queue.
        per_account: MaxTRESPerAccount and MaxJobsPerAccount. The same for accounts.
        per_job: MaxTRESPerJob.
    """

    group: UsageLimits = NO_USAGE_LIMITS
    per_user: UsageLimits = NO_USAGE_LIMITS
    per_account: UsageLimits = NO_USAGE_LIMITS
    per_job: UsageLimits = NO_USAGE_LIMITS


@dataclass(frozen=True)
class Associations:
    """All of them.

    Attributes:
        rows: accounts and users.
        qos: by name.
        partition_qos: the QOS of partitions that have one, by partition.
    """

    rows: tuple[Association, ...]
    qos: Mapping[str, Qos] = field(default_factory=dict)
    partition_qos: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Each account's part of the whole, in [0, 1]: of its parent's part, its shares among all below that parent.

        That is Slurm's own definition, by which users right below an account count beside the accounts there. Slurm's
        number itself (SharesNorm) is not set under ``PriorityType=priority/basic``.
        """
        accounts = {row.account: row for row in self.rows if not row.user}
        above = {name: _parent(accounts, row) for name, row in accounts.items()}
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
        """What a job belongs to: the user's association, its account, and all accounts above."""
        of_user = self._row.get((account, user, partition)) or self._row.get((account, user, ""))
        found = [of_user] if user and of_user is not None else []
        while (row := self._row.get((account, "", ""))) is not None and row not in found:
            found.append(row)
            account = row.parent
        return tuple(found)


def _inside(accounts: Mapping[str, Association], name: str) -> str:
    """The account whose shares are divided among what is right below an account: one with its parent's is skipped."""
    seen = set()
    while (row := accounts.get(name)) is not None and row.shares is None and row.parent and name not in seen:
        seen.add(name)
        name = row.parent
    return name


def _parent(accounts: Mapping[str, Association], row: Association) -> str:
    return _inside(accounts, row.parent or ROOT)


def enforces_limits(settings: Mapping[str, str]) -> bool:
    """Whether Slurm heeds limits, by its settings (``SlurmSettings.values``)."""
    return not {"limits", "safe", "all"}.isdisjoint(settings.get("AccountingStorageEnforce", "").split(","))


def parse(assoc_mgr: str, partitions: str = "") -> Associations | None:
    """Read ``scontrol -o show assoc_mgr flags=assoc,qos`` and ``scontrol -o show partition``.

    None where Slurm does not show all of it: accounting is off, or we are no operator.
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
    """Limits are the same for all users, or accounts, that are shown."""
    block = _BLOCK.search(text)
    return {} if block is None else field_parsers.fields(block[1])


def _quota(fields: Mapping[str, str], tres: str, jobs: str = "") -> UsageLimits:
    gpus = {kind: int(count) for kind, count in _GPUS.findall(fields.get(tres, ""))}
    return UsageLimits(gpus, _count(fields.get(jobs, "")))


def _count(text: str) -> int | None:
    """Of ``4(2)``, a limit with its usage; None for no limit."""
    digits = re.match(r"[0-9]+", text, re.ASCII)
    return int(digits[0]) if digits else None


def _name(text: str) -> str:
    """Of ``alice(2001)``."""
    return _NUMBERED.sub("", text)
