"""Equal time shares, which need no speeds: of the simple baselines, and of new jobs until shares are computed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.round_mechanism import Combination


def equal_shares(
    inputs: AllocationInputs, combinations: Sequence[tuple[Combination, int]]
) -> dict[Combination, dict[str, float]]:
    """Time shares under which each of n combinations has 1/n of every GPU type's time.

    Args:
        inputs: allocation inputs of the round.
        combinations: each combination with its number of GPUs.

    Returns:
        The fraction of the time by combination and GPU type on which all of its jobs can run: 1/n of the type's GPUs
        over the combination's GPUs, reduced where the sum over types would be above 1.
    """
    found = {}
    for combination, gpus in combinations:
        share = {
            gpu_type: count / len(combinations) / gpus
            for gpu_type, count in inputs.capacity.items()
            if all(gpu_type in inputs.gpus_per_node[uid] for uid in combination)
        }
        excess = max(sum(share.values()), 1.0)
        found[combination] = {gpu_type: part / excess for gpu_type, part in share.items()}
    return found
