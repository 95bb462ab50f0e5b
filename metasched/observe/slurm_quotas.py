"""What Slurm's associations and QOS say of our jobs: their accounts' shares, and how much is left to whom. Pure.

Slurm counts a job against every limit that it falls under, and holds it to those that are defined first: by the QOS of
its partition, then its own, then its association and all accounts above. So a QOS can widen what an account may have.
Usage is counted from the jobs that Slurm lists, which are always of the same moment as the rest of a snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from metasched.core.model import Job, Quota
from metasched.core.reasons import Code, Reason
from metasched.slurm.associations import Association, Associations, Qos, UsageLimits
from metasched.slurm.client import JobState, SlurmJob

HOLDING = frozenset({JobState.RUNNING, JobState.SUSPENDED})

Owner = tuple[str, str, str, str]
"""Account, user, partition and QOS of a job."""


@dataclass(frozen=True, slots=True)
class _Count:
    """Something that a limit counts, for some of all jobs.

    Attributes:
        whose: the QOS, account or user.
        word: sacctmgr's name of the limit.
        who: the user or account, of limits for each.
        kind: the GPU type, "" for all; None for running jobs.
    """

    whose: str
    word: str
    who: str
    kind: str | None

    def name(self, most: int) -> str:
        """As an admin knows it."""
        what = f"={most}" if self.kind is None else f" gres/gpu{':' if self.kind else ''}{self.kind}={most}"
        return f"{self.whose}: {self.word}{what}{' for ' if self.who else ''}{self.who}"


@dataclass(frozen=True, slots=True)
class _Rules:
    """The limits of one owner.

    Attributes:
        counted: those that its jobs count against, and how much they allow.
        held: those of them that its jobs are held to.
        per_job: how many GPUs each job may have, by type ("" for all), with the limit's name.
    """

    counted: Mapping[_Count, int]
    held: frozenset[_Count]
    per_job: Mapping[str, tuple[int, str]]


_NO_RULES = _Rules({}, frozenset(), {})


@dataclass(slots=True)
class SlurmQuotas:
    """What is known of Slurm's associations.

    Attributes:
        associations: as read last; None where nothing is known.
        limited: whether Slurm enforces their limits.
    """

    associations: Associations | None = None
    limited: bool = True
    _rules: dict[Owner, _Rules] = field(default_factory=dict)

    def apply(self, job: Job, slurm: SlurmJob) -> Job:
        """The job with its account's share, and no larger than each job may be."""
        if self.associations is None:
            return job
        share = self.associations.shares.get(slurm.account)
        job = job if share is None else job.evolve(fair_share=share)
        most, name = self._of(slurm).per_job.get("", (job.max_gpus, ""))
        most = max(most, job.placement.gpus if job.placement is not None else 0)
        if most >= job.max_gpus or not self.limited or not _whole(slurm):
            return job
        if job.min_gpus > most:
            too_small = Reason.of(Code.QUOTA_TOO_SMALL, gpus=job.min_gpus, quota=name)
            return job.evolve(blocked=job.blocked or too_small)
        return job.evolve(max_gpus=most, gpus=min(job.gpus, most))

    def limits(self, ours: Iterable[tuple[Job, SlurmJob]], others: Iterable[SlurmJob]) -> tuple[Quota, ...]:
        """What is left to our jobs, of the limits that could keep one from something."""
        if self.associations is None or not self.limited:
            return ()
        used: Counter[_Count] = Counter()
        members: dict[tuple[_Count, int], list[Job]] = {}
        found: list[Quota] = []
        owned: dict[Owner, list[tuple[Job, SlurmJob]]] = {}
        for job, slurm in ours:
            owned.setdefault(owner_of(slurm), []).append((job, slurm))
        for jobs_of_one in owned.values():
            rules = self._of(jobs_of_one[0][1])
            for count in rules.held:
                counted = [job for job, slurm in jobs_of_one if count.kind is None or _whole(slurm)]
                members.setdefault((count, rules.counted[count]), []).extend(counted)
            beside = rules.counted.keys() - rules.held
            for job, slurm in jobs_of_one if beside or rules.per_job else ():
                used.update(_uses(slurm, beside))
                found += _of_one_job(job, slurm, rules)
        for slurm in others:
            used.update(_uses(slurm, self._of(slurm).counted))
        for (count, most), jobs in members.items():
            left = most - used[count]
            if left < (len(jobs) if count.kind is None else sum(job.max_gpus for job in jobs)):
                uids = frozenset(job.uid for job in jobs)
                found.append(Quota(count.name(most), uids, left, count.kind is None, count.kind or None))
        return tuple(sorted(found, key=lambda limit: limit.name))

    def _of(self, job: SlurmJob) -> _Rules:
        owner = owner_of(job)
        if owner not in self._rules:
            self._rules[owner] = _rules(self.associations, owner) if self.associations is not None else _NO_RULES
        return self._rules[owner]


def owner_of(job: SlurmJob) -> Owner:
    """Whose limits it falls under; of several partitions, those of the first."""
    return job.account, job.user, job.partition.partition(",")[0], job.qos


def _rules(known: Associations, owner: Owner) -> _Rules:
    account, user, partition, qos = owner
    made = _Collection()
    for name in dict.fromkeys((known.partition_qos.get(partition, ""), qos)):
        if (found := known.qos.get(name)) is not None:
            made.add_qos(f"QOS {name}", found, user, account)
    for row in known.chain(account, user, partition):
        made.add_association(row)
    return _Rules(made.counted, frozenset(made.held), made.per_job)


class _Collection:
    """An owner's limits, as they come: those first that are defined first."""

    def __init__(self) -> None:
        self.counted: dict[_Count, int] = {}
        self.held: set[_Count] = set()
        self.per_job: dict[str, tuple[int, str]] = {}
        self._by_qos: set[tuple[str, str | None]] = set()  # words and kinds of limits that a QOS has defined

    def add_qos(self, whose: str, qos: Qos, user: str, account: str) -> None:
        """What it defines goes before what comes after it."""
        found = {
            **_counts(whose, "GrpTRES", "GrpJobs", qos.group),
            **_counts(whose, "MaxTRESPerUser", "MaxJobsPerUser", qos.per_user, user),
            **_counts(whose, "MaxTRESPerAccount", "MaxJobsPerAccount", qos.per_account, account),
        }
        self._add(found)
        self._by_qos |= {(count.word, count.kind) for count in found}
        self._add_per_job(whose, qos.per_job)

    def add_association(self, row: Association) -> None:
        """It holds as far as no QOS has defined the same, beside other associations."""
        whose = f"account {row.account}"
        whose += f", user {row.user}" if row.user else ""
        whose += f", partition {row.partition}" if row.partition else ""
        self._add(_counts(whose, "GrpTRES", "GrpJobs", row.group))
        of_user = _counts(whose, "", "MaxJobs", UsageLimits(jobs=row.max_jobs))
        if self._by_qos.isdisjoint({("MaxJobsPerUser", None), ("MaxJobsPerAccount", None)}):
            self._add(of_user)
        self.counted |= of_user
        self._add_per_job(whose, row.per_job)

    def _add(self, found: Mapping[_Count, int]) -> None:
        self.counted |= found
        self.held |= {count for count in found if (count.word, count.kind) not in self._by_qos}

    def _add_per_job(self, whose: str, quota: UsageLimits) -> None:
        for count, most in _counts(whose, "MaxTRESPerJob", "", quota).items():
            self.per_job.setdefault(count.kind or "", (most, count.name(most)))


def _counts(whose: str, gpus: str, jobs: str, quota: UsageLimits, who: str = "") -> dict[_Count, int]:
    """The limits of a quota, by sacctmgr's words for them."""
    found = {_Count(whose, gpus, who, kind): most for kind, most in quota.gpus.items()}
    return found if quota.jobs is None else found | {_Count(whose, jobs, who, None): quota.jobs}


def _of_one_job(job: Job, slurm: SlurmJob, rules: _Rules) -> Iterator[Quota]:
    """The limits of one type's GPUs for each job: unlike one of all GPUs they leave it others."""
    for kind, (most, name) in rules.per_job.items():
        has = job.placement.gpus if job.placement is not None and job.placement.gpu_type == kind else 0
        if kind and max(most, has) < job.max_gpus and _whole(slurm):
            yield Quota(name, frozenset({job.uid}), max(most, has), gpu_type=kind)


def _whole(job: SlurmJob) -> bool:
    """Whether what it holds counts as GPUs; Slurm counts shards as something else."""
    return job.shards_per_node is None and not job.shards


def _uses(job: SlurmJob, counts: Iterable[_Count]) -> dict[_Count, int]:
    """What a job takes of limits now."""
    if job.state not in HOLDING:
        return {}
    gpus = sum(job.allocated.values()) if _whole(job) else 0
    return {
        count: 1 if count.kind is None else gpus for count in counts if count.kind in (None, "", job.allocated_gpu_type)
    }
