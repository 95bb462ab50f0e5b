"""The base of policies that give out time shares: a policy computes them, the round mechanism realises them.

What ``TimeSharePolicy.decide`` does in a round:

1. Accounts (``round_mechanism``): the time that jobs received in the last round is added to the time accounts.
2. Inputs (``allocation_inputs``): the jobs that can have time shares, and the GPUs that retained jobs leave.
3. Recomputation (``recomputation``): time shares are computed when jobs, GPUs, weights or speeds have changed since,
   at most every ``recompute_seconds``. Deficits are carried over (``deficits``).
4. In force: at once with ``recompute_rounds = 0`` (under the daemon, as with 1 for ``background_jobs`` or more jobs).
   Otherwise that many rounds after the round in which they were computed, by ``decide`` itself or by ``precompute`` in
   a background process; meanwhile they are *pending*, the earlier time shares hold, and jobs without a time share have
   an equal one (``equal_shares``).
5. Round grants (``candidates``, ``granting``): the combinations that run in this round.
6. Decision: grants for the round grants and the retained jobs; the other jobs are fallback or wait.

Keys of the state's data (version 1): ``ledger``, the time accounts; ``made_for``, the inputs for which the time shares
in force were computed; ``memory``, the memory of ``time_shares``, with ``DEGRADED`` where these come from a substitute;
``types_used``, how many random words were drawn for ``shuffle_types``; ``coming``, pending time shares.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from metasched.capacity.quota_budget import QuotaBudget, quota_reached
from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.resumable_rng import ResumableRng
from metasched.core.retention import is_non_preemptible
from metasched.time_shares.allocation_inputs import AllocationInputs, allocation_inputs
from metasched.time_shares.candidates import candidates_of, with_all_pairs
from metasched.time_shares.deficits import carried_over
from metasched.time_shares.equal_shares import equal_shares
from metasched.time_shares.granting import choose, runs_within_quantum
from metasched.time_shares.quota_limits import within_quotas
from metasched.time_shares.recomputation import has_changed, pair_speeds
from metasched.time_shares.round_mechanism import (
    ACCOUNTS,
    COMPUTED_FOR,
    NO_PRIORITY,
    PRIOR_ROUNDS,
    Priorities,
    RoundGrant,
    TimeAccounts,
    TimeShares,
    as_single_combinations,
    from_rows,
    gpu_type_of,
    of_present_jobs,
    priorities,
    to_rows,
)

STATE_VERSION = 1
NODES_CLOSED = Reason(Code.NODES_CLOSED)
RUNS_TO_END = Reason(Code.RUNS_TO_END)
CPU_ONLY = Reason(Code.CPU_ONLY)
PENDING = "coming"  # key of a state's data: time shares that are computed, and not in force yet
DEGRADED = "degraded"  # key of a policy's memory: the substitute that the time shares come from, if they do
NO_SHARE = "without"  # key of ``COMPUTED_FOR``: uids of the jobs to which the computed time shares give nothing
TYPES_SEED = 5  # added to the seed, so that the order of the GPU types has a sequence of random numbers of its own


class TimeShareParameters(PolicyParameters):
    """Parameters of all time-share policies."""

    recompute_seconds: float = Field(default=0.0, ge=0)
    """Least seconds between two computations of time shares, which follow an arrival or end of jobs, a change of GPUs,
    or a change of speeds. 0, as in the paper: at every such change.
    """
    recompute_rounds: int = Field(default=0, ge=0)
    """Rounds between the round that found the change and the round in which new time shares come into force; 0: the
    same round. In the interim the earlier time shares hold, and new jobs have an equal time share of every GPU type.
    Under the daemon a background process then solves the program, and no round waits.
    """
    background_jobs: int = Field(default=500, ge=1)
    """Live jobs from which on the daemon computes time shares in the background, as with ``recompute_rounds = 1``. A
    simulation computes them in the round.
    """
    carry: bool = True
    """Whether deficits from earlier time shares decide the order of combinations. Without, as in the public code, they
    only order equal priorities, and small time shares starve where time shares are recomputed in every round.
    """
    quantum_restarts: float = Field(default=20.0, ge=0)
    """Length of a run's quantum, in which no other job takes its GPUs although it is due: in restarts of the job, at
    most 10 rounds. 0, as in the paper: none. Only with ``carry``, and for jobs with a known restart cost or a cut
    start.
    """
    heed_speeds: bool = True
    """Whether time shares are also recomputed when the known speed of a job, or of a pair on the same GPUs, changes:
    when it is measured, or when the job changes its batch size.
    """
    types_in_turn: tuple[str, ...] = Field(default=(), strict=False)
    """GPU types on which rounds are given out one after the other, in this order, and on no others; empty, as in the
    paper: by the highest priority over all types.
    """
    shuffle_types: bool = False
    """Whether that order is shuffled in every round."""
    fill_pairs: bool = False
    """Whether GPUs that no job with a time share can use go to any two jobs together rather than to one alone, and
    pairs have a deficit of half a round more, as in the public code.
    """
    seed: int = Field(default=0, ge=0)
    """Seed of all random choices."""

    @property
    def gpu_types(self) -> frozenset[str]:
        """GPU types that the parameters name, for the check against those of the cluster."""
        return frozenset(self.types_in_turn)


class TimeSharePolicy(Policy):
    """Base: computes time shares when their inputs have changed, and realises them by the round mechanism.

    Rounds are of fixed length, as in the paper: neither arrivals nor completions begin a round early.
    """

    Parameters: ClassVar[type[PolicyParameters]] = TimeShareParameters
    parameters: TimeShareParameters
    wakes_on_arrival: ClassVar[bool] = False
    wakes_on_completion: ClassVar[bool] = False
    fills: ClassVar[bool] = True  # whether GPUs that no job with a time share can use go to jobs without one

    @property
    def placement(self) -> bool:
        """Whether consolidated and unconsolidated GPUs of a type are two worker types (Gavel, section 3.1)."""
        return False

    @property
    def time_slicing(self) -> bool:
        """Whether the two jobs of a pair are time-sliced on their GPUs, instead of running at once."""
        return False

    @property
    def quantum_restarts(self) -> float:
        """Length of a quantum, in restarts; 0 for no quanta."""
        return self.parameters.quantum_restarts if self.parameters.carry else 0.0

    @property
    def solves_in_background(self) -> bool:
        """Whether ``precompute`` may compute time shares in another process, which come into force rounds later."""
        return True

    def precomputes(self, snapshot: Snapshot) -> bool:
        """Whether time shares are computed by ``precompute``: with ``recompute_rounds``, or for many live jobs."""
        return self.parameters.recompute_rounds > 0 or len(snapshot.jobs) >= self.parameters.background_jobs

    @abstractmethod
    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """Compute the fraction of the time that each job or pair should have on each worker type.

        Args:
            inputs: the jobs, and the GPUs for them.
            memory: JSON-compatible data that the last call returned; empty at the first.

        Returns:
            The time shares, pairs named by the job that was submitted first; and the memory for the next call. With
            the key ``DEGRADED``, the memory says which substitute of the policy's program they come from.
        """

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Recompute time shares if that is due, and grant the round by the round mechanism."""
        data = _data(state)
        accounts = _accounts(data)
        if self.parameters.carry:
            accounts = accounts.split_pairs(snapshot.jobs, snapshot.now)
        inputs = allocation_inputs(snapshot, placement=self.placement)
        sized = {job.uid: job for job in inputs.jobs}
        accounts = accounts.record_received([sized.get(job.uid, job) for job in snapshot.jobs])
        memory, computed_for = data.get("memory", {}), data.get(COMPUTED_FOR)
        delay = self.parameters.recompute_rounds
        if snapshot.precomputed is not None and self.precomputes(snapshot):
            delay = max(delay, 1)
        pending = (snapshot.precomputed or data.get(PENDING)) if delay else None
        if pending and snapshot.round >= pending["round"] + delay:
            shares = of_present_jobs(from_rows(pending["shares"]), inputs.jobs)
            accounts = self._renewed(accounts, inputs, shares, snapshot.round_seconds)
            memory, computed_for, pending = pending["memory"], pending[COMPUTED_FOR], None
        current = {**self._dependencies(inputs), **self._pair_dependencies(inputs, accounts.shares)}
        computes_here = not delay or (not pending and snapshot.precomputed is None)
        if computes_here and has_changed(computed_for, current) and self._may_recompute(accounts, snapshot.now):
            if delay:
                pending = self._pending(snapshot, inputs, memory, current)
            else:
                shares, memory = self._shares_within_quotas(inputs, memory)
                accounts = self._renewed(accounts, inputs, shares, snapshot.round_seconds)
                computed_for = {**current, **self._pair_dependencies(inputs, shares)}
        if delay:
            accounts = accounts.admit(_interim_shares(inputs, accounts, computed_for), snapshot.now)
        types, used = self._types(data.get("types_used", 0))
        candidates = candidates_of(inputs, accounts.shares)
        if self.fills and self.parameters.fill_pairs:
            earlier = frozenset(computed_for["jobs"] if computed_for else ())
            candidates = with_all_pairs(inputs, candidates, earlier, PRIOR_ROUNDS * snapshot.round_seconds)
        priority = priorities(accounts, snapshot.round_seconds, carry=self.parameters.carry)
        runs = runs_within_quantum(accounts, snapshot.job, snapshot.now, self.quantum_restarts, snapshot.round_seconds)
        round_grants = choose(
            accounts,
            candidates,
            inputs.capacity,
            priority,
            within_quantum=runs,
            types_in_turn=types,
            fill=self.fills,
            nodes=inputs.node_gpus,
            quotas=inputs.quotas,
        )
        accounts = accounts.assign(round_grants)
        decision = _decision(
            snapshot,
            inputs,
            _Reasons(accounts, types),
            round_grants,
            priority,
            fill=self.fills,
            time_slicing=self.time_slicing,
        )
        if DEGRADED in memory:
            decision = replace(decision, degraded=Reason.of(Code.TIME_SHARES_DEGRADED, substitute=memory[DEGRADED]))
        written = {ACCOUNTS: accounts.to_json(), COMPUTED_FOR: computed_for, "memory": memory, "types_used": used}
        return decision, PolicyState(STATE_VERSION, {**written, PENDING: pending} if pending else written)

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Compute time shares for a round's jobs, for a later ``decide`` to put into force.

        Returns:
            JSON-compatible data for ``Snapshot.precomputed``; None where no recomputation is due, or one is pending.
        """
        data = _data(state)
        accounts, inputs = _accounts(data), allocation_inputs(snapshot, placement=self.placement)
        current = {**self._dependencies(inputs), **self._pair_dependencies(inputs, accounts.shares)}
        changed = has_changed(data.get(COMPUTED_FOR), current)
        if PENDING in data or not (changed and self._may_recompute(accounts, snapshot.now)):
            return None
        return self._pending(snapshot, inputs, data.get("memory", {}), current)

    def _shares_within_quotas(
        self, inputs: AllocationInputs, memory: Mapping[str, Any]
    ) -> tuple[TimeShares, Mapping[str, Any]]:
        """The policy's time shares, reduced to what quotas allow, and the memory for the next call."""
        shares, memory = self.time_shares(inputs, memory)
        return within_quotas(shares, inputs.quotas, {job.uid: job.gpus for job in inputs.jobs}), memory

    def _pending(
        self, snapshot: Snapshot, inputs: AllocationInputs, memory: Mapping[str, Any], current: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Time shares that come into force later, with the inputs that they are computed for, JSON-compatible."""
        shares, memory = self._shares_within_quotas(inputs, memory)
        no_share = {job.uid for job in inputs.jobs}.difference(*shares)
        computed_for = {**current, **self._pair_dependencies(inputs, shares), NO_SHARE: sorted(no_share)}
        return {"round": snapshot.round, "shares": to_rows(shares), COMPUTED_FOR: computed_for, "memory": memory}

    def _renewed(
        self, accounts: TimeAccounts, inputs: AllocationInputs, shares: TimeShares, round_seconds: float
    ) -> TimeAccounts:
        """The accounts with new time shares in force, deficits carried over where the parameters say so."""
        renewed = accounts.renew(shares, inputs.now)
        if not self.parameters.carry or accounts.since is None:
            return renewed
        gpus = {job.uid: job.gpus for job in inputs.jobs}
        elapsed = max(inputs.now - accounts.since, 0.0)
        deficit, advances = carried_over(
            renewed.deficit, shares, gpus, elapsed, round_seconds, advances=renewed.advances
        )
        return replace(renewed, deficit=deficit, advances=advances)

    def _dependencies(self, inputs: AllocationInputs) -> Mapping[str, Any]:
        """The inputs on which time shares depend, as JSON-compatible data: when they change, shares are recomputed."""
        current: dict[str, Any] = {
            "jobs": [job.uid for job in inputs.jobs],
            "wishes": [[job.weight, job.slo_seconds, job.total_steps, job.gpus] for job in inputs.jobs],
            "gpus": dict(inputs.capacity),
            "quotas": [[quota.left, quota.of_jobs, quota.gpu_type, sorted(quota.members)] for quota in inputs.quotas],
            "parameters": self.parameters.model_dump(mode="json"),
        }
        if self.parameters.heed_speeds:
            current["speeds"] = {uid: dict(speeds) for uid, speeds in inputs.speeds.items()}
        else:
            current["types"] = {uid: sorted(by_type) for uid, by_type in inputs.gpus_per_node.items()}
        return current

    def _pair_dependencies(self, inputs: AllocationInputs, shares: TimeShares) -> Mapping[str, Any]:
        """The known speeds of the pairs of these time shares; nothing where changes of speeds do not count."""
        return {"together": pair_speeds(inputs, shares)} if self.parameters.heed_speeds else {}

    def _may_recompute(self, accounts: TimeAccounts, now: float) -> bool:
        """Whether the time shares are older than ``recompute_seconds``, expired, or absent."""
        return accounts.since is None or accounts.expired or now - accounts.since >= self.parameters.recompute_seconds

    def _types(self, used: int) -> tuple[tuple[str, ...], int]:
        """The order of ``types_in_turn`` in this round, and how many random numbers are drawn after it."""
        types = list(self.parameters.types_in_turn)
        if not self.parameters.shuffle_types:
            return tuple(types), used
        rng = ResumableRng.resume(self.parameters.seed + TYPES_SEED, used)
        rng.shuffle(types)
        return tuple(types), rng.used


def _data(state: PolicyState) -> Mapping[str, Any]:
    """The data of a state; empty where the state is of another version."""
    return state.data if state.version == STATE_VERSION else {}


def _accounts(data: Mapping[str, Any]) -> TimeAccounts:
    """The time accounts in a state's data; new ones where there are none."""
    return TimeAccounts.from_json(data[ACCOUNTS]) if ACCOUNTS in data else TimeAccounts()


def _interim_shares(
    inputs: AllocationInputs, accounts: TimeAccounts, computed_for: Mapping[str, Any] | None
) -> TimeShares:
    """Equal time shares for jobs that have none, except those that the last computation left without (section 7.4).

    These jobs are new, or lost their time share because their co-runner ended or because they could not start.
    """
    no_share = frozenset(computed_for.get(NO_SHARE, computed_for["jobs"]) if computed_for else ())
    served = {uid for combination in of_present_jobs(accounts.shares, inputs.jobs) for uid in combination}
    new = [job.uid for job in inputs.jobs if job.uid not in served and job.uid not in no_share]
    if not new:
        return {}
    shares = equal_shares(inputs)
    return as_single_combinations({uid: shares[uid,] for uid in new})


def _decision(
    snapshot: Snapshot,
    inputs: AllocationInputs,
    reasons: _Reasons,
    round_grants: Sequence[RoundGrant],
    priority: Priorities,
    *,
    fill: bool,
    time_slicing: bool,
) -> Decision:
    """The decision of a round.

    Returns:
        Grants of retained jobs, then of the round grants, those of most GPUs first (section 5: less fragmentation). As
        fallback, the other jobs that may fill GPUs, by priority, and jobs without GPUs. All other jobs wait.
    """
    grants = list(_retained_grants(inputs, time_slicing=time_slicing))
    for granted in sorted(round_grants, key=lambda granted: -granted.gpus):
        first, *guests = granted.combination
        # A consolidated round was granted for the speed on few nodes. For an unconsolidated round few are preferred.
        consolidated = () if granted.unconsolidated else inputs.consolidated(first).get(granted.gpu_type, ())
        most = len(consolidated) or None
        reason = reasons.round_grant(first, granted.gpu_type, in_quantum=granted.in_quantum)
        others = inputs.other_types(first, granted.gpu_type) if fill and not guests else ()
        host = Grant(first, granted.gpus, reason, gpu_type=granted.gpu_type, max_nodes=most, other_types=others)
        grants.append(host)
        for uid in guests:
            shares_gpus = reason.and_also(_shares_gpus_of(snapshot.job[first]))
            grants.append(replace(host, uid=uid, reason=shares_gpus, co_runner=first, time_slicing=time_slicing))
    served = {grant.uid for grant in grants}
    budget = QuotaBudget(inputs.quotas)
    for granted in round_grants:
        budget.charge(granted.combination, granted.gpus, [granted.gpu_type])
    fallback: list[tuple[float, Grant]] = []
    waits = {}
    for job in inputs.jobs:
        if job.uid in served:
            continue
        if job.uid in inputs.over_quota:
            waits[job.uid] = inputs.over_quota[job.uid]
            continue
        if not inputs.gpus_per_node[job.uid]:
            if (place := job.placement) is not None and place.gpus == job.gpus:
                held = Grant(job.uid, job.gpus, Reason(Code.NO_NODE_AGAIN), gpu_type=place.gpu_type)
                fallback.append((NO_PRIORITY, held))
            else:
                waits[job.uid] = _exceeds(job, displaced=job.uid in inputs.displaced)
            continue
        by_type, worker_types = priority.get((job.uid,), {}), inputs.worker_types(job.uid)
        best = max(worker_types, key=lambda worker_type: by_type.get(worker_type, NO_PRIORITY))
        reason = reasons.wait(job.uid, worker_types)
        beyond_quota = None if fill else _beyond_quota(job, inputs.gpus_per_node[job.uid], budget)
        if fill or (best in by_type and beyond_quota is None):
            gpu_type = gpu_type_of(best)
            others = inputs.other_types(job.uid, gpu_type) if fill else ()
            grant = Grant(job.uid, job.gpus, reason, gpu_type=gpu_type, other_types=others)
            fallback.append((by_type.get(best, NO_PRIORITY), grant))
        else:
            waits[job.uid] = beyond_quota or reason
    fallback.sort(key=lambda entry: -entry[0])
    without = [Grant(job.uid, 0, CPU_ONLY) for job in snapshot.jobs if job.gpus == 0 and job.uid not in served]
    return Decision(tuple(grants), (*(grant for _, grant in fallback), *without), waits)


def _retained_grants(inputs: AllocationInputs, *, time_slicing: bool) -> Iterator[Grant]:
    """Grants of their present allocations, for the retained jobs."""
    before: dict[str | None, Job] = {}
    # Non-preemptible jobs come first: the co-runner of such a job is granted the same GPUs.
    for job in sorted(inputs.retained, key=lambda job: not is_non_preemptible(job)):
        if (place := job.placement) is None:
            continue
        reason = RUNS_TO_END if is_non_preemptible(job) else NODES_CLOSED
        grant = Grant(job.uid, place.gpus, reason, gpu_type=place.gpu_type)
        host = before.get(job.co_runner) if inputs.sharing and not is_non_preemptible(job) else None
        if host is not None and host.placement == place:
            reason = reason.and_also(_shares_gpus_of(host))
            grant = replace(grant, reason=reason, co_runner=host.uid, time_slicing=time_slicing)
        yield grant
        before[job.uid] = job


def _shares_gpus_of(host: Job) -> Reason:
    """The reason of a job that has the GPUs of another one."""
    return Reason.of(Code.SHARES_GPUS, co_runner=host.slurm_job_id)


def _beyond_quota(job: Job, gpu_types: Iterable[str], budget: QuotaBudget) -> Reason | None:
    """The reason of a job that cannot run on what quotas leave of any of its types; None where it can."""
    gpus, number = max(budget.most_gpus(job.uid, [gpu_type]) for gpu_type in gpu_types)
    return quota_reached(budget.quotas[number], gpus) if gpus < job.min_gpus else None


def _exceeds(job: Job, *, displaced: bool) -> Reason:
    """The reason of a job that no nodes could run; ``displaced``: without the retained jobs, some could."""
    if displaced:
        return Reason.of(Code.EXCEEDS_PREEMPTIBLE_NODES, gpus=job.gpus, gpu_types=job.gpu_types)
    return Reason.of(Code.EXCEEDS_NODES, gpus=job.gpus, gpu_types=job.gpu_types, nodes=None, cpus=None)


class _Reasons:
    """The reasons of jobs with time shares."""

    def __init__(self, accounts: TimeAccounts, types_in_turn: Sequence[str]) -> None:
        self._types_in_turn = types_in_turn
        self._shares: dict[str, Mapping[str, float]] = {}
        for combination, share in accounts.shares.items():
            for uid in combination:
                if before := self._shares.get(uid):
                    self._shares[uid] = {t: before.get(t, 0.0) + share.get(t, 0.0) for t in {**before, **share}}
                else:
                    self._shares[uid] = share
        self._in_percent: dict[tuple[tuple[str, float], ...], tuple[tuple[str, int], ...]] = {}

    def round_grant(self, uid: str, gpu_type: str, *, in_quantum: bool) -> Reason:
        """The reason of a job with a round grant on a GPU type, whose run there is within its quantum or is not."""
        code = Code.TIME_SHARE_QUANTUM if in_quantum else Code.TIME_SHARE_TURN
        return Reason(code, (("gpu_type", gpu_type), ("shares", self._percents(uid))))

    def wait(self, uid: str, worker_types: Iterable[str]) -> Reason:
        """The reason of a job that can run on these worker types, and has no round grant."""
        if self._types_in_turn and not any(gpu_type_of(one) in self._types_in_turn for one in worker_types):
            return Reason(Code.TYPES_IN_TURN_EXCLUDE)
        return Reason(Code.TIME_SHARE_WAIT, (("shares", self._percents(uid)),))

    def _percents(self, uid: str) -> tuple[tuple[str, int], ...]:
        """A job's time share by worker type, in whole percent: finer, the history would have a row every round."""
        share = tuple(self._shares.get(uid, {}).items())
        if share not in self._in_percent:
            self._in_percent[share] = tuple((name, round(100 * part)) for name, part in sorted(share) if part > 0)
        return self._in_percent[share]
