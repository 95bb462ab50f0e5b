"""Gandiva's packing by trial, as Gavel's authors restate it.

Sources: Gandiva (Xiao et al., OSDI 2018, section 3.2); Gavel (Narayanan et al., OSDI 2020, section 7.3). While the jobs
fit, everybody has GPUs of its own. Beyond that, jobs of the same size are put together in pairs by chance; a pair that
turns out slower together than one after the other is parted, and tried otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from metasched.core.model import Job
from metasched.core.seeded_rng import SeededRng
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy, equal_parts
from metasched.time_shares.round_mechanism import Times


class GandivaParameters(TimeShareParameters):
    """Parameters of Gandiva.

    Attributes:
        least_gain: a pair stays together while the speeds of its two jobs, each relative to its speed alone, add up to
            at least this, in the mean over the GPU types; 1 is as good as taking turns.
        time_slices: whether the two of a pair take turns, one of them being suspended in the GPU's memory while the
            other runs (section 3.1), instead of running at once; such pairs stay together. A simulation runs them at
            once all the same.
    """

    least_gain: float = Field(default=1.0, ge=0)
    time_slices: bool = False


class Gandiva(TimeSharePolicy):
    """Equal shares for jobs while they fit, and for pairs found by trial when they do not."""

    name: ClassVar[str] = "gandiva"
    Parameters: ClassVar[type[GandivaParameters]] = GandivaParameters
    parameters: GandivaParameters

    @property
    def time_slicing(self) -> bool:
        """As the parameter says."""
        return self.parameters.time_slices

    def shares(self, claims: AllocationInputs, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """Equal parts for jobs and pairs; remembers the pairs, and how much chance is used up."""
        jobs = {job.uid: job for job in claims.jobs}
        kept = [
            (one, other)
            for one, other in memory.get("pairs", ())
            if one in jobs and other in jobs and self._pays(claims, jobs[one], jobs[other])
        ]
        wanted = sum(job.gpus for job in claims.jobs)
        if wanted <= sum(claims.capacity.values()) or not claims.sharing:
            parts = equal_parts(claims, [((job.uid,), job.gpus) for job in claims.jobs])
            return parts, {**memory, "pairs": [list(pair) for pair in kept]}
        chance = SeededRng.resume(self.parameters.seed, memory.get("used", 0))
        paired = {uid for pair in kept for uid in pair}
        single = [job for job in claims.jobs if job.uid not in paired and not job.whole_gpus]
        alone = [job for job in claims.jobs if job.whole_gpus]
        for _ in range(len(single)):
            if len(single) < 2:  # noqa: PLR2004  a pair
                break
            one, other = chance.sample(single, 2)
            if one.gpus == other.gpus and _common(claims, one, other):
                single.remove(one)
                single.remove(other)
                kept.append((one.uid, other.uid) if _before(one, other) else (other.uid, one.uid))
        who = [*((pair, jobs[pair[0]].gpus) for pair in kept), *(((job.uid,), job.gpus) for job in (*single, *alone))]
        return equal_parts(claims, who), {"pairs": [list(pair) for pair in kept], "used": chance.used}

    def _pays(self, claims: AllocationInputs, one: Job, other: Job) -> bool:
        """Whether two jobs together are fast enough; what is not known of them yet is no reason to part them."""
        gains = []
        for kind in _common(claims, one, other):
            for job, beside in ((one, other), (other, one)):
                together, alone = claims.speed_beside(job, beside, kind), claims.speed(job, kind)
                if together == 0.0:
                    return False
                if self.parameters.time_slices:
                    return True
                gains.append(together / alone if together is not None and alone else 0.5)
        return bool(gains) and 2 * sum(gains) / len(gains) >= self.parameters.least_gain


def _common(claims: AllocationInputs, one: Job, other: Job) -> list[str]:
    """The types that both can have; whether they run there together is tried."""
    return [kind for kind in claims.spreads[one.uid] if kind in claims.spreads[other.uid]]


def _before(one: Job, other: Job) -> bool:
    """By submission."""
    return (one.submitted, one.uid) < (other.submitted, other.uid)
