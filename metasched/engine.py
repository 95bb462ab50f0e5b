"""One round: a snapshot goes in, targets and reasons come out.

The policy sees only jobs that may start. What the others hold (a job that runs although it must not start again, a job
that somebody else suspended) is taken off the nodes first, so neither policy nor placement can count on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from metasched.errors import MetaschedError
from metasched.model import Decision, Grant, Job, Node, Placement, Snapshot, Status
from metasched.placement import place
from metasched.policy import Policy, PolicyState

CANNOT_STOP = "it runs to its end: it cannot be preempted"


class PolicyViolationError(MetaschedError):
    """A policy's answer breaks the contract."""

    def __init__(self, policy: str, uid: str, rule: str) -> None:
        super().__init__(f"policy {policy!r}, job {uid}: {rule}")
        self.policy = policy
        self.uid = uid
        self.rule = rule


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round decided.

    Attributes:
        decision: the policy's answer.
        state: what the policy carries to the next round.
        targets: where each job that should run now belongs, most important first.
        reasons: for every live job, in words, why it runs or waits.
        shares: by uid, the other job on the same GPUs, for both of each pair.
    """

    decision: Decision
    state: PolicyState
    targets: Mapping[str, Placement]
    reasons: Mapping[str, str]
    shares: Mapping[str, str] = field(default_factory=dict)


def run_round(snapshot: Snapshot, policy: Policy, state: PolicyState | None) -> RoundResult:
    """Decide and place one round; ``state`` is None at the first round of a policy.

    Raises:
        PolicyViolationError: the policy's answer breaks the contract.
    """
    live = [job for job in snapshot.jobs if job.status is not Status.FINISHED]
    aside = {job.uid: words for job in live if (words := _why_aside(job)) is not None}
    left = [job for job in live if job.uid in aside]
    view = replace(
        snapshot,
        jobs=tuple(job for job in live if job.uid not in aside),
        nodes=_without(snapshot.nodes, left),
    )
    decision, state = policy.decide(view, state if state is not None else policy.initial_state(view))
    _check(policy.name, view, decision)
    placements = place(view, decision.grants, decision.fallback)
    reasons = aside | dict(decision.waits)
    for grant in (*decision.grants, *decision.fallback):
        missing = placements.unplaced.get(grant.uid)
        reasons[grant.uid] = grant.reason if missing is None else f"{grant.reason}; {missing}"
    granted = {grant.uid for grant in (*decision.grants, *decision.fallback)}
    reasons |= {job.uid: CANNOT_STOP for job in view.jobs if job.pinned and job.uid not in granted}
    kept = {job.uid: job.placement for job in left if job.placement is not None and _goes_on(job)}
    return RoundResult(decision, state, {**kept, **placements.placed}, reasons)


def _why_aside(job: Job) -> str | None:
    """Why the policy has no say about the job, if it has none."""
    if job.status is Status.SUSPENDED and not job.suspended_by_us:
        return "somebody else suspended it, and has to resume it"
    return job.blocked


def _goes_on(job: Job) -> bool:
    """Whether a job that was put aside goes on with what it holds: what forbids a start does not end a run."""
    stays = job.status is Status.RUNNING and job.stop_requested is None
    return stays or (job.status is Status.SUSPENDED and not job.suspended_by_us)


def _without(nodes: Iterable[Node], jobs: Iterable[Job]) -> tuple[Node, ...]:
    """The nodes without what these jobs hold; a suspension of ours frees CPUs, and nothing else."""
    by_name = {node.name: node for node in nodes}
    for job in jobs:
        if job.placement is None or not (_goes_on(job) or job.status is Status.SUSPENDED):
            continue
        gpus = job.placement.gpus_per_node
        for name in job.placement.nodes:
            if (node := by_name.get(name)) is not None:
                by_name[name] = replace(
                    node,
                    gpus=max(node.gpus - gpus, 0),
                    cpus=max(node.cpus - job.node_cpus(gpus), 0) if _goes_on(job) else node.cpus,
                    memory=max(node.memory - job.node_memory(gpus), 0),
                )
    return tuple(by_name.values())


def _check(policy: str, view: Snapshot, decision: Decision) -> None:
    """Hold a decision against the contract.

    Raises:
        PolicyViolationError: it breaks it.
    """
    seen: set[str] = set()
    for uid in (*(grant.uid for grant in (*decision.grants, *decision.fallback)), *decision.waits):
        if uid not in view.job:
            raise PolicyViolationError(policy, uid, "is not a job that may start")
        if uid in seen:
            raise PolicyViolationError(policy, uid, "appears twice in the decision")
        seen.add(uid)
    for grant in (*decision.grants, *decision.fallback):
        broken = _broken_rule(view.job[grant.uid], grant)
        if broken is not None:
            raise PolicyViolationError(policy, grant.uid, broken)
    for uid, words in decision.waits.items():
        if not words:
            raise PolicyViolationError(policy, uid, "waits without a reason")
    for job in view.jobs:
        if job.uid not in seen and not job.pinned:
            raise PolicyViolationError(policy, job.uid, "is missing from the decision")


def _broken_rule(job: Job, grant: Grant) -> str | None:
    """The rule of the contract that a grant breaks, in words."""
    least = grant.gpus if grant.at_least is None else grant.at_least
    rules = {
        "is granted without a reason": bool(grant.reason),
        f"is granted {grant.gpus} GPUs, it takes {job.min_gpus} to {job.max_gpus}": (
            job.min_gpus <= grant.gpus <= job.max_gpus
        ),
        f"is granted at least {least} GPUs, it takes {job.min_gpus} to {grant.gpus}": (
            job.min_gpus <= least <= grant.gpus
        ),
        f"is granted GPUs of type {grant.gpu_type}, it accepts {', '.join(job.gpu_types) or 'none'}": (
            grant.gpu_type is None or (job.gpus > 0 and (not job.gpu_types or grant.gpu_type in job.gpu_types))
        ),
    }
    if job.placement is not None and (job.pinned or job.status is Status.SUSPENDED):
        held = job.placement
        rules[f"is granted other than the {held.gpus} GPUs that it must keep"] = (
            least <= held.gpus <= grant.gpus and grant.gpu_type in (None, held.gpu_type)
        )
    return next((rule for rule, kept in rules.items() if not kept), None)
