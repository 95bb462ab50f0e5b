"""Time shares within quotas, so that no job lacks time that its quotas do not allow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.capacity.quota_budget import QuotaBudget
from metasched.core.model import Quota
from metasched.time_shares.round_mechanism import Combination, TimeShares, gpu_type_of


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

    def of_members(quota: Quota) -> list[Combination]:
        """The combinations of each member of a quota; a pair of two members is among them twice."""
        return [combination for uid in sorted(quota.members) for combination in sorted(of.get(uid, ()))]

    def allowed_part(quota: Quota) -> float:
        """The part of its members' time shares that a quota allows; at least 1 where it allows all."""
        used = sum(
            time * quota.use(gpus[combination[0]])
            for combination in of_members(quota)
            for worker_type, time in found[combination].items()
            if quota.counts(gpu_type_of(worker_type))
        )
        return max(quota.left, 0) / used if used > 0 else 1.0

    for quota in sorted(quotas, key=allowed_part):
        part = allowed_part(quota)
        for combination in dict.fromkeys(of_members(quota)) if part < 1.0 else ():
            for uid in _reduce(found, combination, quota, part):
                of[uid].add((uid,))
    return found


def _reduce(
    shares: dict[Combination, dict[str, float]], combination: Combination, quota: Quota, part: float
) -> Sequence[str]:
    """Reduce the time share of a combination to a part of it; its jobs without the quota, which have the rest alone."""
    others = [uid for uid in combination if uid not in quota.members]
    for worker_type, time in list(shares[combination].items()):
        if quota.counts(gpu_type_of(worker_type)):
            shares[combination][worker_type] = time * part
            for uid in others:
                _add(shares, (uid,), worker_type, time * (1.0 - part))
    return others


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
