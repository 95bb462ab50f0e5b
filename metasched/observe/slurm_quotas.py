"""Shares of accounts, and what the limits of Slurm's associations and QOS leave to metasched's jobs. Pure.

Slurm counts a job against every limit that covers it, and enforces the one that is defined first: by the QOS of the
job's partition, then by the job's QOS, then by its association and all accounts above. So a QOS can widen what an
account may have. Usage is counted from the jobs that Slurm lists, which are of the same instant as the snapshot.
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
"""Account, user, partition and QOS of a job: jobs that are equal in these fall under the same limits."""


@dataclass(frozen=True, slots=True)
class _Count:
    """The counter of a limit: the GPUs of the jobs that the limit covers, or their number while they run.

    Attributes:
        whose: the QOS, account or user that defines the limit.
        word: sacctmgr's name of the limit.
        who: the user or account that is counted, for limits on each of them; else "".
        gpu_type: the GPU type that is counted, "" for all types; None where running jobs are counted.
    """

    whose: str
    word: str
    who: str
    gpu_type: str | None

    def name(self, most: int) -> str:
        """Return the limit in sacctmgr's words, for admins."""
        what = f"={most}" if self.gpu_type is None else f" gres/gpu{':' if self.gpu_type else ''}{self.gpu_type}={most}"
        return f"{self.whose}: {self.word}{what}{' for ' if self.who else ''}{self.who}"


@dataclass(slots=True)
class _Rules:
    """The limits of one owner, added in Slurm's order: a limit that is defined first is enforced.

    Attributes:
        counted: most GPUs or jobs, by the counter; the owner's jobs count against all of these.
        enforced: the counters whose limits Slurm enforces for the owner's jobs.
        per_job: most GPUs of each job, by type ("" for all types), with the limit's name.
    """

    counted: dict[_Count, int] = field(default_factory=dict)
    enforced: set[_Count] = field(default_factory=set)
    per_job: dict[str, tuple[int, str]] = field(default_factory=dict)
    _by_qos: set[tuple[str, str | None]] = field(
        default_factory=set
    )  # words and GPU types of limits that a QOS defines

    def add_qos(self, whose: str, qos: Qos, user: str, account: str) -> None:
        """Add the limits of a QOS, which replace the same limits of what is added later."""
        found = {
            **_counts(whose, "GrpTRES", "GrpJobs", qos.group),
            **_counts(whose, "MaxTRESPerUser", "MaxJobsPerUser", qos.per_user, user),
            **_counts(whose, "MaxTRESPerAccount", "MaxJobsPerAccount", qos.per_account, account),
        }
        self._add(found)
        self._by_qos |= {(count.word, count.gpu_type) for count in found}
        self._add_per_job(whose, qos.per_job)

    def add_association(self, row: Association) -> None:
        """Add the limits of an association; those that no QOS has defined are enforced, of every association."""
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
        self.enforced |= {count for count in found if (count.word, count.gpu_type) not in self._by_qos}

    def _add_per_job(self, whose: str, quota: UsageLimits) -> None:
        for count, most in _counts(whose, "MaxTRESPerJob", "", quota).items():
            self.per_job.setdefault(count.gpu_type or "", (most, count.name(most)))


@dataclass(slots=True)
class SlurmQuotas:
    """Slurm's associations as read last, applied to jobs.

    Attributes:
        associations: shares and limits; None where they are not known.
        limited: whether Slurm enforces their limits.
    """

    associations: Associations | None = None
    limited: bool = True
    _rules: dict[Owner, _Rules] = field(default_factory=dict)

    def apply(self, job: Job, slurm: SlurmJob) -> Job:
        """Return the job with its account's fair share, and its sizes within the limit on the GPUs of each job."""
        if self.associations is None:
            return job
        share = self.associations.shares.get(slurm.account)
        job = job if share is None else job.evolve(fair_share=share)
        most, name = self._of(slurm).per_job.get("", (job.max_gpus, ""))
        most = max(most, job.placement.gpus if job.placement is not None else 0)
        if most >= job.max_gpus or not self.limited or not _counts_as_gpus(slurm):
            return job
        if job.min_gpus > most:
            too_small = Reason.of(Code.QUOTA_TOO_SMALL, gpus=job.min_gpus, quota=name)
            return job.evolve(blocked=job.blocked or too_small)
        return job.evolve(max_gpus=most, gpus=min(job.gpus, most))

    @property
    def limits_jobs(self) -> bool:
        """Whether ``limits`` can name any."""
        return self.associations is not None and self.limited

    def limits(self, ours: Iterable[tuple[Job, SlurmJob]], others: Iterable[SlurmJob]) -> tuple[Quota, ...]:
        """Return what the limits leave to metasched's jobs, for limits that could keep one of them from its GPUs.

        Args:
            ours: metasched's live jobs.
            others: the other jobs that Slurm lists, which count as well.
        """
        if not self.limits_jobs:
            return ()
        used: Counter[_Count] = Counter()
        members: dict[tuple[_Count, int], list[Job]] = {}
        found: list[Quota] = []
        owned: dict[Owner, list[tuple[Job, SlurmJob]]] = {}
        for job, slurm in ours:
            owned.setdefault(owner_of(slurm), []).append((job, slurm))
        for jobs_of_one in owned.values():
            rules = self._of(jobs_of_one[0][1])
            for count in rules.enforced:
                counted = [job for job, slurm in jobs_of_one if count.gpu_type is None or _counts_as_gpus(slurm)]
                members.setdefault((count, rules.counted[count]), []).extend(counted)
            only_counted = rules.counted.keys() - rules.enforced
            for job, slurm in jobs_of_one if only_counted or rules.per_job else ():
                used.update(_uses(slurm, only_counted))
                found += _of_one_job(job, slurm, rules)
        for slurm in others:
            used.update(_uses(slurm, self._of(slurm).counted))
        for (count, most), jobs in members.items():
            left = most - used[count]
            if left < (len(jobs) if count.gpu_type is None else sum(job.max_gpus for job in jobs)):
                uids = frozenset(job.uid for job in jobs)
                found.append(Quota(count.name(most), uids, left, count.gpu_type is None, count.gpu_type or None))
        return tuple(sorted(found, key=lambda limit: limit.name))

    def _of(self, job: SlurmJob) -> _Rules:
        owner = owner_of(job)
        if owner not in self._rules:
            self._rules[owner] = _Rules() if self.associations is None else _rules(self.associations, owner)
        return self._rules[owner]


def owner_of(job: SlurmJob) -> Owner:
    """Return the owner whose limits cover the job; of several partitions, the first counts."""
    return job.account, job.user, job.partition.partition(",")[0], job.qos


def _rules(known: Associations, owner: Owner) -> _Rules:
    account, user, partition, qos = owner
    rules = _Rules()
    for name in dict.fromkeys((known.partition_qos.get(partition, ""), qos)):
        if (found := known.qos.get(name)) is not None:
            rules.add_qos(f"QOS {name}", found, user, account)
    for row in known.chain(account, user, partition):
        rules.add_association(row)
    return rules


def _counts(whose: str, gpus: str, jobs: str, quota: UsageLimits, who: str = "") -> dict[_Count, int]:
    """Return the limits as counters and what they allow; ``gpus`` and ``jobs`` are sacctmgr's words for them."""
    found = {_Count(whose, gpus, who, gpu_type): most for gpu_type, most in quota.gpus.items()}
    return found if quota.jobs is None else found | {_Count(whose, jobs, who, None): quota.jobs}


def _of_one_job(job: Job, slurm: SlurmJob, rules: _Rules) -> Iterator[Quota]:
    """Yield the limits on one type's GPUs of each job: the job may still have GPUs of other types."""
    for gpu_type, (most, name) in rules.per_job.items():
        has = job.placement.gpus if job.placement is not None and job.placement.gpu_type == gpu_type else 0
        if gpu_type and max(most, has) < job.max_gpus and _counts_as_gpus(slurm):
            yield Quota(name, frozenset({job.uid}), max(most, has), gpu_type=gpu_type)


def _counts_as_gpus(job: SlurmJob) -> bool:
    """Whether Slurm counts what the job holds or asks for as GPUs; shards are counted apart."""
    return job.shards_per_node is None and not job.shards


def _uses(job: SlurmJob, counts: Iterable[_Count]) -> dict[_Count, int]:
    """Return what the job adds to each counter now; nothing while it holds no allocation."""
    if job.state not in HOLDING:
        return {}
    gpus = sum(job.allocated.values()) if _counts_as_gpus(job) else 0
    return {
        count: 1 if count.gpu_type is None else gpus
        for count in counts
        if count.gpu_type in (None, "", job.allocated_gpu_type)
    }
