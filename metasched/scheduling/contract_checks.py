"""The checks that hold a policy's decision against the contract of ``core/policy.py``. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from metasched.core.batching import BatchControl, BatchPlan
from metasched.core.errors import MetaschedError
from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.reasons import Reason
from metasched.core.retention import is_immovable, is_pinned, may_be_retained


class PolicyViolationError(MetaschedError):
    """A policy's decision breaks the contract.

    Attributes:
        policy: the policy's name.
        uid: the job for which the rule is broken.
        rule: the broken rule, as the rest of a sentence about the job.
    """

    def __init__(self, policy: str, uid: str, rule: str) -> None:
        super().__init__(f"policy {policy!r}, job {uid}: {rule}")
        self.policy = policy
        self.uid = uid
        self.rule = rule


def check_decision(policy: str, snapshot: Snapshot, decision: Decision) -> None:
    """Check every grant and every wait of a decision.

    Args:
        policy: the policy's name.
        snapshot: the snapshot that the policy decided about.
        decision: the policy's decision.

    Raises:
        PolicyViolationError: the decision breaks a rule of the contract.
    """
    grants = (*decision.grants, *decision.fallback)
    jobs, granted = snapshot.job, {grant.uid: grant for grant in grants}
    if len(granted) < len(grants) or (granted.keys() ^ decision.waits.keys()) != jobs.keys():
        _check_uids(policy, snapshot, [*[grant.uid for grant in grants], *decision.waits])
    for grant in grants:
        job = jobs[grant.uid]
        broken = _broken_amount(job, grant)
        if broken is None and may_be_retained(job):
            broken = _broken_retention(job, grant)
        if broken is None and (grant.exact is not None or grant.co_runner is not None):
            broken = _broken_placement(snapshot, grant) or _broken_sharing(snapshot, grant, granted)
        if broken is None and grant.batch is not None:
            broken = _broken_batch(job, grant.gpus, grant.batch)
        if broken is not None:
            raise PolicyViolationError(policy, grant.uid, broken)
    for uid, reason in decision.waits.items():
        if (wrong := _wrong_reason(reason)) is not None:
            raise PolicyViolationError(policy, uid, f"waits without a reason: {wrong}")
    _check_planned(policy, snapshot, decision)
    if snapshot.sharing:
        _check_pairs(policy, grants)


def _check_planned(policy: str, snapshot: Snapshot, decision: Decision) -> None:
    """Check that planned runs are those of jobs of the snapshot, and have a begin and a length.

    Raises:
        PolicyViolationError: a planned run breaks the rule.
    """
    for uid, run in decision.planned.items():
        wrong = not (math.isfinite(run.begins) and math.isfinite(run.seconds) and run.seconds > 0)
        if wrong or uid not in snapshot.job:
            raise PolicyViolationError(policy, uid, f"is planned from {run.begins} for {run.seconds} s")


def _check_uids(policy: str, snapshot: Snapshot, uids: Iterable[str]) -> None:
    """Check that each job of the snapshot is answered exactly once; only pinned jobs may be left out.

    Raises:
        PolicyViolationError: an answer is missing, is repeated, or is for an unknown job.
    """
    jobs = snapshot.job
    seen: set[str] = set()
    for uid in uids:
        if uid not in jobs:
            raise PolicyViolationError(policy, uid, "is not a job that may start")
        if uid in seen:
            raise PolicyViolationError(policy, uid, "appears twice in the decision")
        seen.add(uid)
    if len(seen) < len(jobs):
        for job in snapshot.jobs:
            if job.uid not in seen and not is_pinned(job):
                raise PolicyViolationError(policy, job.uid, "is missing from the decision")


def _check_pairs(policy: str, grants: Iterable[Grant]) -> None:
    """Check that each host is granted before its guest, and that no job is in two pairs.

    Raises:
        PolicyViolationError: a guest's host is missing before it, or has another guest.
    """
    unpaired: set[str] = set()
    for grant in grants:
        if grant.co_runner is None:
            unpaired.add(grant.uid)
        elif grant.co_runner in unpaired:
            unpaired.remove(grant.co_runner)
        else:
            rule = f"is to share the GPUs of job {grant.co_runner}, which is not granted before it, or is in a pair"
            raise PolicyViolationError(policy, grant.uid, rule)


def _broken_amount(job: Job, grant: Grant) -> str | None:
    """The broken rule about amounts and types in a grant, in words; None where the grant breaks none."""
    gpus, gpu_type, fewest, low = grant.gpus, grant.gpu_type, job.min_gpus, grant.at_least
    if (wrong := _wrong_reason(grant.reason)) is not None:
        return f"is granted without a reason: {wrong}"
    if not fewest <= gpus <= job.max_gpus:
        return f"is granted {gpus} GPUs, it takes {fewest} to {job.max_gpus}"
    if low is not None and not fewest <= low <= gpus:
        return f"is granted at least {low} GPUs, it takes {fewest} to {gpus}"
    if gpu_type is not None and (refused := _refused_types(job, (gpu_type, *grant.other_types))):
        return f"is granted GPUs of type {', '.join(refused)}, it accepts {', '.join(job.gpu_types) or 'none'}"
    if grant.max_nodes is not None and grant.max_nodes < (job.nodes or 1):
        return f"is granted at most {grant.max_nodes} nodes, it takes {job.nodes or 'at least 1'}"
    return None


def _refused_types(job: Job, gpu_types: Sequence[str]) -> list[str]:
    """Those of the GPU types that a job does not accept; all of them for a CPU-only job."""
    if job.gpus and not job.gpu_types:
        return []
    return [one for one in gpu_types if not job.gpus or one not in job.gpu_types]


def _broken_batch(job: Job, gpus: int, batch: BatchPlan) -> str | None:
    """The broken rule about the batch plan in a grant, in words; None where the grant breaks none."""
    limits = job.batching
    if limits is None or limits.control is not BatchControl.SCHEDULER:
        return "is granted a batch plan, and does not let metasched change its batch size"
    if not limits.min_per_gpu <= batch.per_gpu <= (limits.max_per_gpu or batch.per_gpu) or batch.accumulation < 1:
        return (
            f"is granted a batch of {batch.per_gpu} samples per GPU in {batch.accumulation} micro-batches, "
            f"it takes {limits.min_per_gpu} to {limits.max_per_gpu or 'any number'} in one or more"
        )
    total = batch.global_batch(gpus)
    smaller = BatchPlan(batch.per_gpu - 1, batch.accumulation).global_batch(gpus)  # the GPUs' shares are rounded up
    if total < limits.first_batch or (limits.max_batch is not None and smaller >= limits.max_batch):
        return f"is granted a global batch of {total}, it takes {limits.first_batch} to {limits.max_batch or 'any'}"
    return None


def _wrong_reason(reason: object) -> str | None:
    """Why a policy's answer is not a valid ``Reason``, in words; None where it is one."""
    if not isinstance(reason, Reason):
        return f"it has a {type(reason).__name__}, and a Reason is needed (Reason.text(...) makes one of words)"
    return None if reason.code else "its Reason has an empty code"


def _broken_retention(job: Job, grant: Grant) -> str | None:
    """The broken rule about an immovable job's present placement, in words; None where the grant breaks none."""
    held = job.placement
    if held is None or not is_immovable(job):
        return None
    least = grant.gpus if grant.at_least is None else grant.at_least
    if not least <= held.gpus <= grant.gpus or grant.gpu_type not in (None, held.gpu_type):
        return f"is granted other than the {held.gpus} GPUs that it must keep"
    if grant.exact not in (None, held):
        return "is granted another placement than the one that it must keep"
    return None


def _broken_placement(snapshot: Snapshot, grant: Grant) -> str | None:
    """The broken rule about the placement that a grant prescribes, in words; None where the grant breaks none."""
    exact, job = grant.exact, snapshot.job[grant.uid]
    if exact is None:
        return None
    if (exact.gpus, exact.gpu_type) != (grant.gpus, grant.gpu_type) or grant.at_least not in (None, grant.gpus):
        granted, placed = f"{grant.gpus} GPUs of type {grant.gpu_type}", f"{exact.gpus} of {exact.gpu_type}"
        return f"is granted {granted}, and a placement with {placed}"
    if len(set(exact.nodes)) < len(exact.nodes) or (job.gpus and min(exact.spread, default=0) < 1):
        return "is granted a placement with a node twice, or without GPUs"
    if exact.uneven and not snapshot.uneven and exact not in (job.placement, job.released):
        return "is granted an uneven placement, which this cluster cannot realise"
    k, asked = len(exact.nodes), job.nodes if job.gpus else job.nodes or 1
    if asked not in (None, k) or (job.max_nodes is not None and k > job.max_nodes):
        takes = f"at most {job.max_nodes}" if asked is None else asked
        return f"is granted a placement on {k} nodes, it takes {takes}"
    return None


def _broken_sharing(snapshot: Snapshot, grant: Grant, granted: Mapping[str, Grant]) -> str | None:
    """The broken rule about the co-runner whose GPUs a grant shares, in words; None where the grant breaks none."""
    if grant.co_runner is None:
        return None
    host = granted.get(grant.co_runner)
    if not snapshot.sharing:
        return "is to share GPUs, which this cluster cannot realise"
    if not grant.gpus or host is None or host.gpus != grant.gpus:
        return f"is to share the GPUs of job {grant.co_runner}, which is not granted the same {grant.gpus} GPUs"
    types, placements = {grant.gpu_type, host.gpu_type} - {None}, {grant.exact, host.exact} - {None}
    if len(types) > 1 or len(placements) > 1:
        return f"is to share the GPUs of job {grant.co_runner}, which is granted other GPUs"
    return None
