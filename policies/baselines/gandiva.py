"""Gandiva's packing by trial, as Gavel's authors restate it.

Sources: Gandiva (Xiao et al., OSDI 2018, section 3.2); Gavel (Narayanan et al., OSDI 2020, section 7.3). While all jobs
fit, each runs alone on its GPUs. When they do not, jobs with equal numbers of GPUs are paired at random. A pair that is
slower than time-slicing is separated, and its jobs are paired with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from metasched.core.model import Job
from metasched.core.resumable_rng import ResumableRng
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.equal_shares import equal_shares
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import Combination, TimeShares, pair_of


class GandivaParameters(TimeShareParameters):
    """Parameters of the policy Gandiva."""

    least_gain: float = Field(default=1.0, ge=0)
    """A pair is kept while the speeds of both jobs, each over its speed alone, sum up to at least this, in the mean
    over the GPU types; 1 equals time-slicing.
    """
    time_slices: bool = False
    """Whether the jobs of a pair are time-sliced (section 3.1): one is suspended in the GPU's memory while the other
    runs. Such pairs stay together. A simulation runs both at once all the same.
    """
    as_published: bool = False
    """Whether jobs are paired whatever is known of their speeds together, as in Gavel's public code, which then
    separates those that cannot run together.
    """


class Gandiva(TimeSharePolicy):
    """Equal time shares for jobs while they fit, and for pairs found by trial when they do not."""

    name: ClassVar[str] = "gandiva"
    Parameters: ClassVar[type[GandivaParameters]] = GandivaParameters
    parameters: GandivaParameters

    @property
    def time_slicing(self) -> bool:
        """Whether the jobs of a pair are time-sliced, the parameter ``time_slices``."""
        return self.parameters.time_slices

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """Equal time shares for jobs and pairs; the memory has the pairs, and how many random numbers were drawn."""
        jobs = {job.uid: job for job in inputs.jobs}
        pairs: list[Combination] = [
            (one, other)
            for one, other in memory.get("pairs", ())
            if one in jobs and other in jobs and self._gains(inputs, jobs[one], jobs[other])
        ]
        if _all_fit(inputs) or not inputs.sharing:
            return equal_shares(inputs), {**memory, "pairs": [list(pair) for pair in pairs]}
        rng = ResumableRng.resume(self.parameters.seed, memory.get("used", 0))
        paired = {uid for pair in pairs for uid in pair}
        single = [
            job for job in inputs.jobs if job.uid not in paired and not job.whole_gpus and inputs.gpus_per_node[job.uid]
        ]
        types = inputs.common_types if self.parameters.as_published else inputs.pair_types
        for _ in range(len(single)):
            if len(single) < 2:  # noqa: PLR2004  a pair
                break
            drawn = rng.sample(range(len(single)), 2)
            one, other = single[drawn[0]], single[drawn[1]]
            if one.gpus == other.gpus and types(one, other):
                for position in sorted(drawn, reverse=True):
                    del single[position]
                pairs.append(pair_of(one, other))
        paired = {uid for pair in pairs for uid in pair}
        alone = [(job.uid,) for job in inputs.jobs if job.uid not in paired]
        return equal_shares(inputs, [*pairs, *alone]), {"pairs": [list(pair) for pair in pairs], "used": rng.used}

    def _gains(self, inputs: AllocationInputs, one: Job, other: Job) -> bool:
        """Whether a pair reaches ``least_gain``; speeds that are not known count as time-slicing."""
        types = inputs.pair_types(one, other)
        if not types or types != inputs.common_types(one, other):
            return False
        if self.parameters.time_slices:
            return True
        gains = []
        for gpu_type in types:
            for job, co_runner in ((one, other), (other, one)):
                colocated, isolated = inputs.colocated_speed(job, co_runner, gpu_type), inputs.speed(job, gpu_type)
                gains.append(colocated / isolated if colocated is not None and isolated else 0.5)
        return 2 * sum(gains) / len(gains) >= self.parameters.least_gain


def _all_fit(inputs: AllocationInputs) -> bool:
    """Whether all jobs that can run have GPUs of their own at once, each on one type: widest first, where most is free.

    Jobs that no nodes could run do not count: packing other jobs would not help them.
    """
    free = dict(inputs.capacity)
    runnable = [job for job in inputs.jobs if inputs.gpus_per_node[job.uid]]
    for job in sorted(runnable, key=lambda job: (-job.gpus, len(inputs.gpus_per_node[job.uid]))):
        types = [gpu_type for gpu_type in inputs.gpus_per_node[job.uid] if free[gpu_type] >= job.gpus]
        if not types:
            return False
        free[max(types, key=lambda gpu_type: free[gpu_type])] -= job.gpus
    return True
