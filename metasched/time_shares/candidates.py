"""Candidates of the round mechanism: each job alone, and the pairs of jobs that may have the same GPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.round_mechanism import Candidate, TimeShares


def candidates_of(inputs: AllocationInputs, shares: TimeShares) -> list[Candidate]:
    """Every job, in order, and then every pair of these jobs that has a time share."""
    found = [
        Candidate((job.uid,), job.gpus, inputs.worker_types(job.uid), consolidated=inputs.consolidated(job.uid))
        for job in inputs.jobs
    ]
    if inputs.sharing:
        jobs = {job.uid: job for job in inputs.jobs}
        pairs = (pair for pair in shares if len(pair) > 1 and all(uid in jobs for uid in pair))
        found += [_pair(inputs, jobs[one], jobs[other]) for one, other in pairs]
    return found


def with_all_pairs(
    inputs: AllocationInputs, candidates: Iterable[Candidate], earlier: Collection[str], credit: float
) -> list[Candidate]:
    """Every job, each followed by its pairs with earlier jobs of the same number of GPUs (``fill_pairs``).

    Args:
        inputs: allocation inputs of the round.
        candidates: ``candidates_of`` them; its pairs are not used.
        earlier: uids of the jobs for which the time shares were computed.
        credit: seconds that are added to the deficit of a pair of such jobs.
    """
    found = []
    for i, (job, candidate) in enumerate(zip(inputs.jobs, candidates, strict=False)):
        found.append(candidate)
        for other in inputs.jobs[:i] if inputs.sharing else ():
            if other.gpus == job.gpus:
                extra = credit if other.uid in earlier and job.uid in earlier else 0.0
                found.append(replace(_pair(inputs, other, job), credit=extra))
    return found


def _pair(inputs: AllocationInputs, one: Job, other: Job) -> Candidate:
    """Two jobs on the same GPUs, of the types on which they are not known to be unable to run co-located."""
    return Candidate((one.uid, other.uid), one.gpus, tuple(inputs.pair_types(one, other)))
