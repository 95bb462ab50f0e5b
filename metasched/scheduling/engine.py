"""One round: a snapshot goes in, targets and reasons come out.

The policy sees only jobs that may start. What the others hold (a job that runs although it must not start again, a job
that somebody else suspended) is taken off the nodes first, so neither policy nor placement can count on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from metasched.capacity.capacity_pool import without
from metasched.core.errors import MetaschedError
from metasched.core.model import Decision, Grant, Job, Placement, Preempt, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.placement import Placements, closing
from metasched.scheduling.quota_enforcement import place_within, shut_out

# So often at most the policy is asked again in a round, each time without more jobs that limits leave nothing.
MOST_DECISIONS = 16

CANNOT_STOP = Reason(Code.NOT_PREEMPTIBLE)
SUSPENDED_BY_OTHERS = Reason(Code.SUSPENDED_BY_OTHERS)


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
        reasons: for every live job, why it runs or waits.
        co_runners: by uid, the other job on the same GPUs, for both of each pair.
    """

    decision: Decision
    state: PolicyState
    targets: Mapping[str, Placement]
    reasons: Mapping[str, Reason]
    co_runners: Mapping[str, str] = field(default_factory=dict)


def run_round(snapshot: Snapshot, policy: Policy, state: PolicyState | None) -> RoundResult:
    """Decide and place one round; ``state`` is None at the first round of a policy.

    Raises:
        PolicyViolationError: the policy's answer breaks the contract.
    """
    view, aside = _view(snapshot)
    before = state if state is not None else policy.initial_state(view)
    decision, after, placements, limited = _decide(snapshot, view, policy, before)
    reasons = {job.uid: reason for job, reason in aside}
    for _ in range(MOST_DECISIONS):
        if not (out := shut_out(snapshot, view, decision, placements)):
            break
        reasons |= out
        view = replace(view, jobs=tuple([job for job in view.jobs if job.uid not in out]))
        decision, _, placements, limited = _decide(snapshot, view, policy, before)  # ``after`` is that of all jobs
    reasons |= decision.waits
    reasons |= {grant.uid: grant.reason for grant in (*decision.grants, *decision.fallback)}
    closed = closing((job for job in view.jobs if job.uid not in placements.placed), view.nodes)
    for more in (limited, placements.unplaced, closed):
        reasons |= {uid: reasons[uid].and_also(reason) for uid, reason in more.items()}
    for uid in placements.placed.keys() - reasons.keys():
        reasons[uid] = CANNOT_STOP
    kept = {job.uid: job.placement for job, _ in aside if job.placement is not None and _goes_on(job)}
    targets = {**kept, **placements.placed}
    shares = {**placements.co_runners, **_still_shared(snapshot, kept, targets)}
    return RoundResult(decision, after, targets, reasons, shares)


def _decide(
    snapshot: Snapshot, view: Snapshot, policy: Policy, state: PolicyState
) -> tuple[Decision, PolicyState, Placements, Mapping[str, Reason]]:
    """Decide and place once, for the jobs of a view; the last is what limits took from whom.

    Raises:
        PolicyViolationError: the policy's answer breaks the contract.
    """
    decision, after = policy.decide(view, state)
    _check(policy.name, view, decision)
    return decision, after, *place_within(snapshot, view, decision)


def precompute(snapshot: Snapshot, policy: Policy, state: PolicyState) -> Mapping[str, Any] | None:
    """The policy's work beside the rounds, on what it sees of the cluster."""
    return policy.precompute(_view(snapshot)[0], state)


def _view(snapshot: Snapshot) -> tuple[Snapshot, list[tuple[Job, Reason]]]:
    """What the policy sees, and the live jobs that it does not, each with the reason."""
    jobs, finished, suspended = snapshot.jobs, Status.FINISHED, Status.SUSPENDED
    odd = [job for job in jobs if job.blocked is not None or job.status is suspended or job.status is finished]
    aside = [(job, reason) for job in odd if job.status is not finished and (reason := _why_aside(job)) is not None]
    hidden = {job.uid for job in odd if job.status is finished} | {job.uid for job, _ in aside}
    if not hidden:
        return snapshot, aside
    shown = tuple([job for job in jobs if job.uid not in hidden])
    held = [job for job, _ in aside if _goes_on(job) or job.status is suspended]
    return replace(snapshot, jobs=shown, nodes=without(snapshot.nodes, held) if held else snapshot.nodes), aside


def _why_aside(job: Job) -> Reason | None:
    """Why the policy has no say about the job, if it has none."""
    if job.status is Status.SUSPENDED and not job.suspended_by_us:
        return SUSPENDED_BY_OTHERS
    return job.blocked


def _goes_on(job: Job) -> bool:
    """Whether a job that was put aside goes on with what it holds: what forbids a start does not end a run."""
    stays = job.status is Status.RUNNING and job.stop_requested is None
    return stays or (job.status is Status.SUSPENDED and not job.suspended_by_us)


def _still_shared(
    snapshot: Snapshot, kept: Mapping[str, Placement], targets: Mapping[str, Placement]
) -> Mapping[str, str]:
    """The pairs of jobs on the same GPUs of which one was put aside, as long as neither leaves."""
    shares: dict[str, str] = {}
    for uid, place_kept in kept.items():
        other = snapshot.job[uid].co_runner
        if other is not None and targets.get(other) == place_kept == snapshot.job[other].placement:
            shares[uid], shares[other] = other, uid
    return shares


def _check(policy: str, view: Snapshot, decision: Decision) -> None:
    """Hold a decision against the contract.

    Raises:
        PolicyViolationError: it breaks it.
    """
    grants = (*decision.grants, *decision.fallback)
    jobs, granted = view.job, {grant.uid: grant for grant in grants}
    if len(granted) < len(grants) or (granted.keys() ^ decision.waits.keys()) != jobs.keys():
        _check_uids(policy, view, [*[grant.uid for grant in grants], *decision.waits])
    can_stop, suspended = Preempt.CHECKPOINT, Status.SUSPENDED
    for grant in grants:
        job = jobs[grant.uid]
        broken = _broken_rule(job, grant)
        if broken is None and (job.preempt is not can_stop or job.status is suspended):
            broken = _broken_hold(job, grant)
        if broken is None and (grant.exact is not None or grant.co_runner is not None):
            broken = _misplaced(view, grant) or _misshared(view, grant, granted)
        if broken is not None:
            raise PolicyViolationError(policy, grant.uid, broken)
    for uid, reason in decision.waits.items():
        if (wrong := _wrong_reason(reason)) is not None:
            raise PolicyViolationError(policy, uid, f"waits without a reason: {wrong}")
    if view.sharing:
        _check_pairs(policy, grants)


def _check_uids(policy: str, view: Snapshot, uids: Iterable[str]) -> None:
    """Every job of the view is answered once, except that pinned ones may be left out.

    Raises:
        PolicyViolationError: not so.
    """
    jobs = view.job
    seen: set[str] = set()
    for uid in uids:
        if uid not in jobs:
            raise PolicyViolationError(policy, uid, "is not a job that may start")
        if uid in seen:
            raise PolicyViolationError(policy, uid, "appears twice in the decision")
        seen.add(uid)
    if len(seen) < len(jobs):
        for job in view.jobs:
            if job.uid not in seen and not job.pinned:
                raise PolicyViolationError(policy, job.uid, "is missing from the decision")


def _check_pairs(policy: str, grants: Iterable[Grant]) -> None:
    """Hosts come before their guests, and nobody is in two pairs.

    Raises:
        PolicyViolationError: not so.
    """
    free: set[str] = set()
    for grant in grants:
        if grant.co_runner is None:
            free.add(grant.uid)
        elif grant.co_runner in free:
            free.remove(grant.co_runner)
        else:
            rule = f"is to share the GPUs of job {grant.co_runner}, which is not granted before it, or is in a pair"
            raise PolicyViolationError(policy, grant.uid, rule)


def _broken_rule(job: Job, grant: Grant) -> str | None:
    """The rule of the contract that a grant breaks, in words."""
    gpus, kind, fewest, low = grant.gpus, grant.gpu_type, job.min_gpus, grant.at_least
    if (wrong := _wrong_reason(grant.reason)) is not None:
        return f"is granted without a reason: {wrong}"
    if not fewest <= gpus <= job.max_gpus:
        return f"is granted {gpus} GPUs, it takes {fewest} to {job.max_gpus}"
    if low is not None and not fewest <= low <= gpus:
        return f"is granted at least {low} GPUs, it takes {fewest} to {gpus}"
    if kind is not None and (not job.gpus or (job.gpu_types and kind not in job.gpu_types)):
        return f"is granted GPUs of type {kind}, it accepts {', '.join(job.gpu_types) or 'none'}"
    if grant.max_nodes is not None and grant.max_nodes < (job.nodes or 1):
        return f"is granted at most {grant.max_nodes} nodes, it takes {job.nodes or 'at least 1'}"
    return None


def _wrong_reason(reason: object) -> str | None:
    """Why a policy's reason is none, in words; None where it is one."""
    if not isinstance(reason, Reason):
        return f"it has a {type(reason).__name__}, and a Reason is needed (Reason.text(...) makes one of words)"
    return None if reason.code else "its Reason has an empty code"


def _broken_hold(job: Job, grant: Grant) -> str | None:
    """The same, where the job may have to keep what it holds."""
    held = job.placement
    if held is None or not (job.status is Status.SUSPENDED or job.pinned):
        return None
    least = grant.gpus if grant.at_least is None else grant.at_least
    if not least <= held.gpus <= grant.gpus or grant.gpu_type not in (None, held.gpu_type):
        return f"is granted other than the {held.gpus} GPUs that it must keep"
    if grant.exact not in (None, held):
        return "is granted another place than the one that it must keep"
    return None


def _misplaced(view: Snapshot, grant: Grant) -> str | None:
    """What is wrong with the place that a grant prescribes, in words."""
    exact, job = grant.exact, view.job[grant.uid]
    if exact is None:
        return None
    if (exact.gpus, exact.gpu_type) != (grant.gpus, grant.gpu_type) or grant.at_least not in (None, grant.gpus):
        return (
            f"is granted {grant.gpus} GPUs of type {grant.gpu_type}, and a place with {exact.gpus} of {exact.gpu_type}"
        )
    if len(set(exact.nodes)) < len(exact.nodes) or (job.gpus and min(exact.spread, default=0) < 1):
        return "is granted a place with a node twice, or without GPUs"
    if exact.uneven and not view.uneven:
        return "is granted an uneven place, which this cluster cannot realise"
    k, asked = len(exact.nodes), job.nodes if job.gpus else job.nodes or 1
    if asked not in (None, k) or (job.max_nodes is not None and k > job.max_nodes):
        return (
            f"is granted a place on {k} nodes, it takes {'at most ' if asked is None else ''}{asked or job.max_nodes}"
        )
    return None


def _misshared(view: Snapshot, grant: Grant, granted: Mapping[str, Grant]) -> str | None:
    """What is wrong with the job whose GPUs a grant is to share, in words."""
    if grant.co_runner is None:
        return None
    host = granted.get(grant.co_runner)
    if not view.sharing:
        return "is to share GPUs, which this cluster cannot realise"
    if not grant.gpus or host is None or host.gpus != grant.gpus:
        return f"is to share the GPUs of job {grant.co_runner}, which is not granted the same {grant.gpus} GPUs"
    kinds, places = {grant.gpu_type, host.gpu_type} - {None}, {grant.exact, host.exact} - {None}
    if len(kinds) > 1 or len(places) > 1:
        return f"is to share the GPUs of job {grant.co_runner}, which is granted others"
    return None
