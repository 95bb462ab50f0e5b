"""The amounts that are left of quotas while jobs are granted GPUs one after the other. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from metasched.core.model import Job, Quota
from metasched.core.reasons import Code, Reason


def net_of(quotas: Sequence[Quota], jobs: Iterable[Job]) -> tuple[Quota, ...]:
    """The quotas, less what these jobs use of them with the GPUs that they have now."""
    budget = QuotaBudget(quotas)
    for job in jobs:
        if job.placement is not None:
            budget.charge([job.uid], job.placement.gpus, [job.placement.gpu_type])
    return tuple(replace(quota, left=left) for quota, left in zip(quotas, budget.left, strict=True))


def quota_reached(quota: Quota, most: float) -> Reason:
    """The reason of a job that a quota leaves ``most`` GPUs, fewer than it needs; negative: no further job may run."""
    return Reason.of(Code.QUOTA_REACHED, quota=quota.name, gpus_left=int(most) if most >= 0 else None)


class QuotaBudget:
    """The amounts that are left of each quota.

    Attributes:
        quotas: the quotas.
        left: for each quota, the GPUs or running jobs that are left.
        quotas_of: by uid of a job, the positions of its quotas.
    """

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self.quotas = quotas
        self.left = [quota.left for quota in quotas]
        self.quotas_of: dict[str, list[int]] = {}
        for i, quota in enumerate(quotas):
            for uid in quota.members:
                self.quotas_of.setdefault(uid, []).append(i)

    def charge(self, uids: Iterable[str], gpus: int, types: Collection[str | None]) -> None:
        """Charge running jobs with so many GPUs each to the quotas of all of these types (CPU-only: None)."""
        for number, amount in self._amounts(uids, gpus, types):
            self.left[number] -= amount

    def refund(self, uids: Iterable[str], gpus: int, types: Collection[str | None]) -> None:
        """Undo a ``charge`` with the same arguments."""
        for number, amount in self._amounts(uids, gpus, types):
            self.left[number] += amount

    def allows(self, uids: Iterable[str], gpus: int, gpu_type: str) -> bool:
        """Whether quotas leave jobs so many GPUs of a type each, all of them together."""
        needed: dict[int, int] = {}
        for number, amount in self._amounts(uids, gpus, [gpu_type]):
            needed[number] = needed.get(number, 0) + amount
        return all(amount <= self.left[number] for number, amount in needed.items())

    def counting(self, uids: Iterable[str], gpu_type: str) -> set[int]:
        """The positions of the quotas against which one of the jobs counts on GPUs of a type."""
        return {number for number, _ in self._amounts(uids, 0, [gpu_type])}

    def most_gpus(self, uid: str, types: Collection[str | None]) -> tuple[float, int]:
        """The most GPUs that a job may have by its quotas, whichever of some types they are of.

        Returns:
            the number of GPUs, negative where the job must not run at all; and the position of the quota that decides.
            Infinite, and -1, where no quota limits the job.
        """
        found: tuple[float, int] = (math.inf, -1)
        for number in self.quotas_of.get(uid, ()):
            quota, left = self.quotas[number], self.left[number]
            if quota.of_jobs:
                found = min(found, (math.inf if left > 0 else -1.0, number))
            elif any(map(quota.counts, types)):
                found = min(found, (max(left, 0), number))
        return found

    def _amounts(self, uids: Iterable[str], gpus: int, types: Collection[str | None]) -> Iterator[tuple[int, int]]:
        """The position of each quota that counts one of the jobs, and what that job uses of it."""
        for uid in uids:
            for number in self.quotas_of.get(uid, ()):
                quota = self.quotas[number]
                if any(map(quota.counts, types)):
                    yield number, quota.use(gpus)
