"""One round: a snapshot goes in, targets and reasons come out.

    snapshot    = the snapshot without the trials that their apps' tuners hold or have ended
    schedulable = snapshot without blocked and finished jobs, and without what such jobs still hold, quotas included
    decision    = the policy's answer for the schedulable snapshot, checked against the contract, and rounded to
                  numbers of GPUs on which the jobs can run
    placements  = nodes for as much of the decision as the quotas allow
    while quotas leave some jobs nothing, and those make others wait for free GPUs: decide again without them
    result      = placements and the allocations of hidden jobs, with a reason for every job

The policy and the placement see only jobs that may start. A job that runs although it must not start again, or that an
admin suspended, is hidden from them, and its allocation is taken off the nodes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from metasched.apps.app_round import AppRound, apply_apps
from metasched.capacity.quota_budget import net_of
from metasched.capacity.shapes import without_allocations
from metasched.core.apps import App, AppsState
from metasched.core.batching import BatchControl, BatchPlan
from metasched.core.model import Decision, Job, Placement, Snapshot, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import (
    consumes_quota_under_any_decision,
    continues_without_policy,
    suspended_by_others,
)
from metasched.placement import Placements, closing
from metasched.scheduling.allowed_sizes import round_to_allowed_sizes
from metasched.scheduling.contract_checks import check_decision
from metasched.scheduling.quota_enforcement import jobs_without_quota, place_within_quotas

# The policy is asked again at most this often in a round, each time without more jobs that quotas leave nothing.
MAX_REPEATED_DECISIONS = 16

NO_APPS = AppsState()
CANNOT_STOP = Reason(Code.NOT_PREEMPTIBLE)
SUSPENDED_BY_OTHERS = Reason(Code.SUSPENDED_BY_OTHERS)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The outcome of a round.

    Attributes:
        decision: the policy's decision.
        state: the policy's state, for the next round.
        targets: by uid, the placement that each job should have now, most important job first; other jobs should not
            run.
        reasons: by uid, for every live job, why it runs or waits.
        co_runners: by uid, the other job that should be on the same GPUs, for both jobs of each pair.
        batches: by uid, the batch plan that the trainer of a target should take up.
        ends: by uid, why a live trial is to end for good.
        apps: the apps' state, for the next round.
        searches: the live apps, without apps of one.
    """

    decision: Decision
    state: PolicyState
    targets: Mapping[str, Placement]
    reasons: Mapping[str, Reason]
    co_runners: Mapping[str, str] = field(default_factory=dict)
    batches: Mapping[str, BatchPlan] = field(default_factory=dict)
    ends: Mapping[str, Reason] = field(default_factory=dict)
    apps: AppsState = NO_APPS
    searches: tuple[App, ...] = ()

    @property
    def ranked(self) -> tuple[str, ...]:
        """The uids of the jobs of the decision that do not run, the next to start first.

        Grants that could not be placed come first, then the fallback, then the jobs that wait in the policy's order.
        Under a policy of time shares that is the order of this round alone: the next one ranks the jobs anew.
        """
        decision = self.decision
        uids = (*(grant.uid for grant in (*decision.grants, *decision.fallback)), *decision.waits)
        return tuple([uid for uid in uids if uid not in self.targets])


def run_round(snapshot: Snapshot, policy: Policy, state: PolicyState | None, apps: AppsState = NO_APPS) -> RoundResult:
    """Decide and place one round, as the module's pseudo-code says.

    Args:
        snapshot: all jobs and nodes.
        policy: the policy to ask.
        state: the policy's state from its last round; None at its first.
        apps: the apps' state from the last round.

    Raises:
        PolicyViolationError: the policy's decision breaks the contract.
    """
    searched = _apply_apps(snapshot, policy, apps)
    schedulable, hidden = _schedulable_snapshot(searched.snapshot)
    before = state if state is not None else policy.initial_state(schedulable)
    decision, after, placements, limited = _decide(snapshot, schedulable, policy, before)
    reasons = {**searched.held, **searched.ends, **{job.uid: reason for job, reason in hidden}}
    for _ in range(MAX_REPEATED_DECISIONS):
        if not (out := jobs_without_quota(snapshot, schedulable, decision, placements)):
            break
        reasons |= out
        schedulable = replace(schedulable, jobs=tuple([job for job in schedulable.jobs if job.uid not in out]))
        # The policy's next state remains the one that it decided upon with all jobs.
        decision, _, placements, limited = _decide(snapshot, schedulable, policy, before)
    reasons |= decision.waits
    reasons |= {grant.uid: grant.reason for grant in (*decision.grants, *decision.fallback)}
    if decision.degraded is not None:
        told = [job.uid for job in schedulable.jobs if job.uid in reasons]
        reasons |= {uid: reasons[uid].and_also(decision.degraded) for uid in told}
    unplaced = (job for job in schedulable.jobs if job.uid not in placements.placed)
    for more in (limited, placements.unplaced, placements.on_other_types, closing(unplaced, schedulable.nodes)):
        reasons |= {uid: reasons[uid].and_also(reason) for uid, reason in more.items()}
    reasons |= {uid: reasons[uid].and_also(why) for uid, why in searched.capped.items() if uid in reasons}
    for uid in placements.placed.keys() - reasons.keys():
        reasons[uid] = CANNOT_STOP
    retained = {
        job.uid: job.placement for job, _ in hidden if job.placement is not None and continues_without_policy(job)
    }
    targets = {**retained, **placements.placed}
    co_runners = {**placements.co_runners, **_retained_pairs(snapshot, retained, targets)}
    batches = _batches(schedulable, decision, targets)
    singles = {job.uid for job in snapshot.jobs if job.app is None}
    searches = tuple([app for app in searched.snapshot.apps if app.uid not in singles])
    return RoundResult(decision, after, targets, reasons, co_runners, batches, searched.ends, searched.state, searches)


def _decide(
    snapshot: Snapshot, schedulable: Snapshot, policy: Policy, state: PolicyState
) -> tuple[Decision, PolicyState, Placements, Mapping[str, Reason]]:
    """Ask the policy, check and round its decision, and place as much of it as the quotas allow.

    Returns:
        the decision, the policy's next state, the placements, and by uid, what quotas took from a job.

    Raises:
        PolicyViolationError: the policy's decision breaks the contract.
    """
    decision, after = policy.decide(schedulable, state)
    check_decision(policy.name, schedulable, decision)
    decision = round_to_allowed_sizes(schedulable, decision)
    return decision, after, *place_within_quotas(snapshot, schedulable, decision)


def precompute(
    snapshot: Snapshot, policy: Policy, state: PolicyState, apps: AppsState = NO_APPS
) -> Mapping[str, Any] | None:
    """The result of the policy's ``precompute`` on the schedulable snapshot, for a later round's ``precomputed``."""
    return policy.precompute(_schedulable_snapshot(_apply_apps(snapshot, policy, apps).snapshot)[0], state)


def _apply_apps(snapshot: Snapshot, policy: Policy, state: AppsState) -> AppRound:
    """The round of apps, with apps of one where the policy asks for them."""
    return apply_apps(snapshot, state, singles=policy.reads_apps)


def _batches(snapshot: Snapshot, decision: Decision, targets: Mapping[str, Placement]) -> Mapping[str, BatchPlan]:
    """The batch plans of the grants that were placed whole, by uid, where metasched changes the job's batch size."""
    found = {}
    for grant in (*decision.grants, *decision.fallback):
        if grant.batch is None or (target := targets.get(grant.uid)) is None or target.gpus != grant.gpus:
            continue
        batching = snapshot.job[grant.uid].batching
        if batching is not None and batching.control is BatchControl.SCHEDULER:
            found[grant.uid] = grant.batch
    return found


def _schedulable_snapshot(snapshot: Snapshot) -> tuple[Snapshot, list[tuple[Job, Reason]]]:
    """The snapshot that the policy sees, and the live jobs that are hidden from it, each with the reason."""
    jobs, finished, suspended = snapshot.jobs, Status.FINISHED, Status.SUSPENDED
    unusual = [job for job in jobs if job.blocked is not None or job.status is suspended or job.status is finished]
    hidden = [(job, why) for job in unusual if job.status is not finished and (why := _why_hidden(job)) is not None]
    left_out = {job.uid for job in unusual if job.status is finished} | {job.uid for job, _ in hidden}
    if not left_out:
        return snapshot, hidden
    shown = tuple([job for job in jobs if job.uid not in left_out])
    holders = [job for job, _ in hidden if continues_without_policy(job) or job.status is suspended]
    nodes = without_allocations(snapshot.nodes, holders) if holders else snapshot.nodes
    quotas = net_of(snapshot.quotas, (job for job, _ in hidden if consumes_quota_under_any_decision(job)))
    return replace(snapshot, jobs=shown, nodes=nodes, quotas=quotas), hidden


def _why_hidden(job: Job) -> Reason | None:
    """Why the job is hidden from the policy; None where it is not."""
    if suspended_by_others(job):
        return SUSPENDED_BY_OTHERS
    return job.blocked


def _retained_pairs(
    snapshot: Snapshot, retained: Mapping[str, Placement], targets: Mapping[str, Placement]
) -> Mapping[str, str]:
    """The pairs on the same GPUs of which one job is hidden from the policy, as long as both keep their allocations.

    Returns:
        by uid, the other job, for both jobs of each pair.
    """
    pairs: dict[str, str] = {}
    for uid, place in retained.items():
        other = snapshot.job[uid].co_runner
        if other is not None and targets.get(other) == place == snapshot.job[other].placement:
            pairs[uid], pairs[other] = other, uid
    return pairs
