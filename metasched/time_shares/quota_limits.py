"""What quotas leave of requests and of time shares, so that no job lacks time that its quotas do not allow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metasched.capacity.quota_budget import QuotaBudget, net_of
from metasched.core.model import Job, Quota, Snapshot
from metasched.core.retention import consumes_quota_under_any_decision
from metasched.time_shares.round_mechanism import Combination, TimeShares, gpu_type_of


def with_sizes_within_quotas(snapshot: Snapshot) -> Snapshot:
    """The snapshot, elastic jobs of which quotas allow fewer GPUs than they request with that many."""
    if not snapshot.quotas:
        return snapshot
    others = [job for job in snapshot.jobs if consumes_quota_under_any_decision(job)]
    budget = QuotaBudget(net_of(snapshot.quotas, others))
    elastic = {job.uid for job in snapshot.jobs if job.min_gpus < job.gpus} & budget.quotas_of.keys()
    elastic -= {job.uid for job in others}
    if not elastic:
        return snapshot
    types = sorted({node.gpu_type for node in snapshot.nodes if node.gpu_type is not None})
    sizes = {uid: _size_within_quotas(snapshot.job[uid], budget, types) for uid in elastic}
    jobs = (job.evolve(gpus=sizes[job.uid]) if job.uid in sizes else job for job in snapshot.jobs)
    return replace(snapshot, jobs=tuple(jobs))


def _size_within_quotas(job: Job, budget: QuotaBudget, types: Sequence[str]) -> int:
    """The most GPUs that an elastic job requests and quotas allow it; all that it requests where they allow too few."""
    allowed = max((budget.most_gpus(job.uid, [gpu_type])[0] for gpu_type in job.gpu_types or types), default=0)
    sizes = [size for size in job.sizes or range(job.min_gpus, job.gpus + 1) if size <= min(allowed, job.gpus)]
    return max(sizes, default=job.gpus)


def within_quotas(shares: TimeShares, quotas: Sequence[Quota], gpus: Mapping[str, int]) -> TimeShares:
    """The time shares, those of the members of an exceeded quota reduced in proportion.

    Pairs to which a quota never leaves enough become single jobs that share the time. The time that a pair loses goes
    to a co-runner without that quota, alone.

    Args:
        shares: the time shares.
        quotas: the quotas.
        gpus: GPUs of each job, by uid; the two jobs of a pair have equally many.
    """
    if not quotas:
        return shares
    found = _without_impossible_pairs(shares, quotas, gpus)
    of: dict[str, set[Combination]] = {}
    for combination in found:
        for uid in combination:
            of.setdefault(uid, set()).add(combination)
    members = [[one for uid in sorted(quota.members) for one in sorted(of.get(uid, ()))] for quota in quotas]

    def allowed_part(number: int) -> float:
        """The part of its members' time shares that a quota allows; at least 1 where it allows all."""
        quota = quotas[number]
        used = sum(
            time * quota.use(gpus[combination[0]])
            for combination in members[number]
            for worker_type, time in found[combination].items()
            if quota.counts(gpu_type_of(worker_type))
        )
        return max(quota.left, 0) / used if used > 0 else 1.0

    for number in sorted(range(len(quotas)), key=allowed_part):
        quota, part = quotas[number], allowed_part(number)
        for combination in dict.fromkeys(members[number]) if part < 1.0 else ():
            others = tuple(uid for uid in combination if uid not in quota.members)
            for worker_type, time in list(found[combination].items()):
                if quota.counts(gpu_type_of(worker_type)):
                    found[combination][worker_type] = time * part
                    if others:
                        _add(found, others, worker_type, time * (1.0 - part))
    return found


def _without_impossible_pairs(
    shares: TimeShares, quotas: Sequence[Quota], gpus: Mapping[str, int]
) -> dict[Combination, dict[str, float]]:
    """The time shares, the time of pairs that quotas never allow divided among the jobs that they allow alone."""
    budget = QuotaBudget(quotas)
    found: dict[Combination, dict[str, float]] = {}
    for combination, share in shares.items():
        for worker_type, time in share.items():
            width, gpu_type = gpus[combination[0]], gpu_type_of(worker_type)
            alone: list[Combination] = [(uid,) for uid in combination if budget.allows([uid], width, gpu_type)]
            if not alone or budget.allows(combination, width, gpu_type):
                alone = [combination]
            for one in alone:
                _add(found, one, worker_type, time / len(alone))
    return found


def _add(shares: dict[Combination, dict[str, float]], combination: Combination, worker_type: str, time: float) -> None:
    """Add a fraction of the time to the time share of a combination."""
    share = shares.setdefault(combination, {})
    share[worker_type] = share.get(worker_type, 0.0) + time
