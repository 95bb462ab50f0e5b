"""Equal time shares, which need no speeds: of the simple baselines, and of new jobs until shares are computed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.round_mechanism import Combination


def equal_shares(
    inputs: AllocationInputs, combinations: Sequence[Combination] | None = None
) -> dict[Combination, dict[str, float]]:
    """Time shares under which each of n combinations has 1/n of every GPU type's time; n counts those that can run.

    Args:
        inputs: allocation inputs of the round.
        combinations: jobs and pairs of the inputs; None for each job alone.

    Returns:
        The fraction of the time by combination and GPU type on which it can run: 1/n of the type's GPUs over the
        combination's GPUs, reduced where the sum over types would be above 1.
    """
    jobs = {job.uid: job for job in inputs.jobs}
    combinations = [(uid,) for uid in jobs] if combinations is None else combinations
    types = {
        combination: inputs.gpus_per_node[combination[0]]
        if len(combination) == 1
        else inputs.pair_types(*(jobs[uid] for uid in combination))
        for combination in combinations
    }
    count = sum(1 for usable in types.values() if usable)
    found = {}
    for combination, usable in types.items():
        share = {gpu_type: inputs.capacity[gpu_type] / count / jobs[combination[0]].gpus for gpu_type in usable}
        excess = max(sum(share.values()), 1.0)
        found[combination] = {gpu_type: part / excess for gpu_type, part in share.items()}
    return found
