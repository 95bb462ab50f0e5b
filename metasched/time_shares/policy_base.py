"""The base of policies that give out shares of time: they say what is right, the round mechanism makes it so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from metasched.capacity.capacity_pool import is_fixed
from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.seeded_rng import SeededRng
from metasched.time_shares.allocation_inputs import AllocationInputs, allocation_inputs
from metasched.time_shares.round_mechanism import (
    LEDGER,
    MADE_FOR,
    PRIOR_ROUNDS,
    Candidate,
    Combination,
    RoundGrant,
    TimeAccount,
    Times,
    alone,
    choose,
    gpu_type_of,
    live,
    priorities,
    rows_of,
    times_of,
)

STATE_VERSION = 1
SPEED_NEWS = 0.05
"""Relative: what is known of a job's speed has changed when it has by more than this; less is noise of measurement."""
RUNS_ON = Reason(Code.NODES_CLOSED)
RUNS_TO_END = Reason(Code.RUNS_TO_END)
CPU_ONLY = Reason(Code.CPU_ONLY)
COMING = "coming"  # in the data of a state: shares that are made, and not in force yet
WITHOUT = "without"  # in the data of a state: the jobs that have been given no share, though shares were made for them
TYPES_SEED = 5  # added to the seed: the order of the types draws from a stream of its own


class TimeShareParameters(PolicyParameters):
    """What all policies of this kind have.

    Attributes:
        recompute_seconds: shares are made anew when jobs or GPUs come or go, or speeds change, but no more often than
            this; 0 for at every such change, as the paper has it.
        recompute_rounds: they come into force so many rounds after the round that found the change; 0 for in that very
            round. Until then the earlier shares hold, and new jobs have an equal part of every type. Where rounds are
            real, shares are then made beside them, and no round waits for a program to be solved.
        carry: whether time that a job had beyond its share, while others went short, still counts when shares are made
            anew. Without, as in the public simulator, small shares starve where that happens in every round.
        heed_speeds: whether they are made anew, too, when what is known of a job's speed changes, or of a pair's that
            shares GPUs: when it is measured, or when the job changes its batch size.
        types_in_turn: GPU types that rounds are given away on one after the other, in this order; empty for the highest
            priority over all types, as the paper has it.
        shuffle_types: whether that order is shuffled in every round.
        fill_pairs: whether GPUs that nobody with a share can use go to any two jobs together rather than to jobs alone,
            and pairs count as owed half a round more: as in the public simulator.
        seed: of chance.
    """

    recompute_seconds: float = Field(default=0.0, ge=0)
    recompute_rounds: int = Field(default=0, ge=0)
    carry: bool = True
    heed_speeds: bool = True
    types_in_turn: tuple[str, ...] = Field(default=(), strict=False)
    shuffle_types: bool = False
    fill_pairs: bool = False
    seed: int = Field(default=0, ge=0)

    @property
    def gpu_types(self) -> frozenset[str]:
        """Those of the turns."""
        return frozenset(self.types_in_turn)


class TimeSharePolicy(Policy):
    """Makes shares when something has changed, and has the round mechanism realise them.

    Rounds are of fixed length, as in the paper: neither arrivals nor completions begin one early.
    """

    Parameters: ClassVar[type[PolicyParameters]] = TimeShareParameters
    parameters: TimeShareParameters
    wakes_on_arrival: ClassVar[bool] = False
    wakes_on_completion: ClassVar[bool] = False
    fills: ClassVar[bool] = True  # whether GPUs that nobody with a share can use go to jobs without one

    @property
    def placement(self) -> bool:
        """Whether GPUs on few nodes and GPUs spread over many are two worker types (section 3.1)."""
        return False

    @property
    def time_slicing(self) -> bool:
        """Whether the two of a pair take turns on their GPUs, instead of running at once."""
        return False

    @property
    def solves_in_background(self) -> bool:
        """Whether shares are made beside the rounds."""
        return self.parameters.recompute_rounds > 0

    @abstractmethod
    def shares(self, claims: AllocationInputs, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """The share of time that each job or pair should have on each GPU type, and what to remember of how it came.

        Args:
            claims: of the jobs, and the GPUs that there are. Pairs name first who arrived first.
            memory: JSON-compatible, what the last call gave; empty at the first.
        """

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Make shares if they are due, and choose who lags behind them."""
        data = _known(state)
        ledger = TimeAccount.from_json(data[LEDGER]) if LEDGER in data else TimeAccount()
        ledger = ledger.look(snapshot.jobs)
        claims = allocation_inputs(snapshot, apart=self.placement)
        memory, made_for = data.get("memory", {}), data.get(MADE_FOR)
        lag = self.parameters.recompute_rounds
        coming = (snapshot.precomputed or data.get(COMING)) if lag else None
        if coming and snapshot.round >= coming["round"] + lag:
            ledger = self._renewed(ledger, claims, live(times_of(coming["shares"]), claims.jobs))
            memory, made_for, coming = coming["memory"], coming[MADE_FOR], None
        asked = {**self._asked(claims), **self._company(claims, ledger.shares)}
        mine = not lag or (not coming and snapshot.precomputed is None)
        if mine and _changed(made_for, asked) and self._may_renew(ledger, snapshot.now):
            if lag:
                coming = self._made(snapshot, claims, memory, asked)
            else:
                times, memory = self.shares(claims, memory)
                ledger, made_for = self._renewed(ledger, claims, times), {**asked, **self._company(claims, times)}
        if lag:
            ledger = ledger.admit(_in_the_interim(claims, ledger, made_for), snapshot.now)
        types, used = self._types(data.get("types_used", 0))
        candidates = _candidates(claims, ledger)
        if self.fills and self.parameters.fill_pairs:
            old = frozenset(made_for["jobs"] if made_for else ())
            candidates = _with_all_pairs(claims, candidates, old, PRIOR_ROUNDS * snapshot.round_seconds)
        of = priorities(ledger, snapshot.round_seconds)
        turns = choose(
            ledger, candidates, claims.capacity, of, types_in_turn=types, fill=self.fills, nodes=claims.nodes
        )
        ledger = ledger.give(turns)
        decision = _decision(
            snapshot, claims, _Reasons(ledger, types), turns, of, fill=self.fills, time_slicing=self.time_slicing
        )
        written = {LEDGER: ledger.to_json(), MADE_FOR: made_for, "memory": memory, "types_used": used}
        return decision, PolicyState(STATE_VERSION, {**written, COMING: coming} if coming else written)

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """The shares for a round's jobs, if they are due and none are coming; ``decide`` puts them into force."""
        data = _known(state)
        claims = allocation_inputs(snapshot, apart=self.placement)
        ledger = TimeAccount.from_json(data[LEDGER]) if LEDGER in data else TimeAccount()
        asked = {**self._asked(claims), **self._company(claims, ledger.shares)}
        changed = _changed(data.get(MADE_FOR), asked)
        if COMING in data or not (changed and self._may_renew(ledger, snapshot.now)):
            return None
        return self._made(snapshot, claims, data.get("memory", {}), asked)

    def _made(
        self, snapshot: Snapshot, claims: AllocationInputs, memory: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Shares that are to come into force, as JSON-compatible data."""
        times, memory = self.shares(claims, memory)
        without = {job.uid for job in claims.jobs}.difference(*times)
        made_for = {**asked, **self._company(claims, times), WITHOUT: sorted(without)}
        return {"round": snapshot.round, "shares": rows_of(times), MADE_FOR: made_for, "memory": memory}

    def _renewed(self, ledger: TimeAccount, claims: AllocationInputs, shares: Times) -> TimeAccount:
        """The ledger with new shares."""
        gpus = {job.uid: job.gpus for job in claims.jobs} if self.parameters.carry else None
        return ledger.renew(shares, claims.now, gpus=gpus)

    def _asked(self, claims: AllocationInputs) -> Mapping[str, Any]:
        """What shares for these claims are made for."""
        asked: dict[str, Any] = {
            "jobs": [job.uid for job in claims.jobs],
            "wishes": [[job.weight, job.slo_seconds, job.total_steps] for job in claims.jobs],
            "gpus": dict(claims.capacity),
            "parameters": self.parameters.model_dump(mode="json"),
        }
        if self.parameters.heed_speeds:
            asked["speeds"] = {uid: dict(speeds) for uid, speeds in claims.speeds.items()}
        else:
            asked["types"] = {uid: sorted(spreads) for uid, spreads in claims.spreads.items()}
        return asked

    def _company(self, claims: AllocationInputs, shares: Times) -> Mapping[str, Any]:
        """What is known of the pairs that these shares make, if speeds are heeded."""
        return {"together": _together(claims, shares)} if self.parameters.heed_speeds else {}

    def _may_renew(self, ledger: TimeAccount, now: float) -> bool:
        """Whether the shares are old enough to be made anew."""
        return ledger.since is None or ledger.expired or now - ledger.since >= self.parameters.recompute_seconds

    def _types(self, used: int) -> tuple[tuple[str, ...], int]:
        """The order of the types in this round, and how much chance is used up after it."""
        types = list(self.parameters.types_in_turn)
        if not self.parameters.shuffle_types:
            return tuple(types), used
        chance = SeededRng.resume(self.parameters.seed + TYPES_SEED, used)
        chance.shuffle(types)
        return tuple(types), chance.used


def _known(state: PolicyState) -> Mapping[str, Any]:
    """The data of a state, if its layout is known."""
    return state.data if state.version == STATE_VERSION else {}


def equal_parts(
    claims: AllocationInputs, who: Sequence[tuple[Combination, int]]
) -> dict[Combination, dict[str, float]]:
    """The cluster in equal parts for combinations of so many GPUs each; nobody gets more than all of the time."""
    parts = {}
    for combination, gpus in who:
        share = {
            kind: count / len(who) / gpus
            for kind, count in claims.capacity.items()
            if all(kind in claims.spreads[uid] for uid in combination)
        }
        too_much = max(sum(share.values()), 1.0)
        parts[combination] = {kind: part / too_much for kind, part in share.items()}
    return parts


def _in_the_interim(claims: AllocationInputs, ledger: TimeAccount, made_for: Mapping[str, Any] | None) -> Times:
    """Equal parts for the jobs for which no shares have been made yet (section 7.4: agnostic ones in the interim).

    So it is with a job that has lost its share since, with a partner that ended or while it could not start.
    """
    without = frozenset(made_for.get(WITHOUT, made_for["jobs"]) if made_for else ())
    served = {uid for who in live(ledger.shares, claims.jobs) for uid in who}
    new = [job.uid for job in claims.jobs if job.uid not in served and job.uid not in without]
    if not new:
        return {}
    parts = equal_parts(claims, [((job.uid,), job.gpus) for job in claims.jobs])
    return alone({uid: parts[uid,] for uid in new})


def _changed(made_for: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> bool:
    """Whether shares were made for something else; speeds that differ by little are the same."""
    if made_for is None or any(made_for.get(key) != asked[key] for key in asked.keys() - {"speeds", "together"}):
        return True
    pairs = {(one, other, kind): speeds for one, other, kind, *speeds in made_for.get("together", ())}
    for one, other, kind, *speeds in asked.get("together", ()):
        if any(map(_differ, speeds, pairs.get((one, other, kind), speeds))):
            return True
    before: Mapping[str, Mapping[str, float | None]] = made_for.get("speeds", {})
    return any(
        speeds.keys() != before[uid].keys() or any(_differ(speed, before[uid][kind]) for kind, speed in speeds.items())
        for uid, speeds in asked.get("speeds", {}).items()
        if uid in before
    )


def _together(claims: AllocationInputs, shares: Times) -> list[list[Any]]:
    """Rows of who is to share GPUs of which type, and the speeds of both there."""
    jobs = {job.uid: job for job in claims.jobs} if claims.sharing else {}
    found: list[list[Any]] = []
    for who, share in shares.items():
        if len(who) > 1 and all(uid in jobs for uid in who):
            one, other = (jobs[uid] for uid in who)
            for kind in share:
                if kind in claims.spreads[one.uid] and kind in claims.spreads[other.uid]:
                    speeds = claims.speed_beside(one, other, kind), claims.speed_beside(other, one, kind)
                    found.append([*who, kind, *speeds])
    return found


def _differ(speed: float | None, before: float | None) -> bool:
    if speed is None or before is None:
        return speed is not before
    return abs(speed - before) > SPEED_NEWS * before


def _candidates(claims: AllocationInputs, ledger: TimeAccount) -> list[Candidate]:
    """Every job, and the pairs that have shares."""
    found = [Candidate((job.uid,), job.gpus, claims.kinds(job.uid), near=claims.near(job.uid)) for job in claims.jobs]
    if claims.sharing:
        jobs = {job.uid: job for job in claims.jobs}
        pairs = (who for who in ledger.shares if len(who) > 1 and all(uid in jobs for uid in who))
        found += [_pair(claims, jobs[one], jobs[other]) for one, other in pairs]
    return found


def _with_all_pairs(
    claims: AllocationInputs, candidates: Iterable[Candidate], old: Collection[str], credit: float
) -> list[Candidate]:
    """All jobs and pairs by the arrival of the later of the two; pairs of old jobs have a credit."""
    found = []
    for i, (job, candidate) in enumerate(zip(claims.jobs, candidates, strict=False)):
        found.append(candidate)
        for other in claims.jobs[:i] if claims.sharing else ():
            if other.gpus == job.gpus:
                extra = credit if other.uid in old and job.uid in old else 0.0
                found.append(replace(_pair(claims, other, job), credit=extra))
    return found


def _pair(claims: AllocationInputs, one: Job, other: Job) -> Candidate:
    """Two jobs on the same GPUs, in the order of the policy's shares."""
    return Candidate((one.uid, other.uid), one.gpus, _common_types(claims, one, other))


def _common_types(claims: AllocationInputs, one: Job, other: Job) -> tuple[str, ...]:
    """Where two jobs can share GPUs, as far as is known."""
    return tuple(
        kind
        for kind in claims.spreads[one.uid]
        if kind in claims.spreads[other.uid]
        and claims.speed_beside(one, other, kind) != 0.0
        and claims.speed_beside(other, one, kind) != 0.0
    )


def _decision(
    snapshot: Snapshot,
    claims: AllocationInputs,
    reasons: _Reasons,
    turns: Sequence[RoundGrant],
    of: Times,
    *,
    fill: bool,
    time_slicing: bool,
) -> Decision:
    """Grants for those whose turn it is, largest first (section 5: to fragment less)."""
    grants = list(_staying(claims, time_slicing=time_slicing))
    for turn in sorted(turns, key=lambda turn: -turn.gpus):
        first, *rest = turn.combination
        reason = reasons.turn(first, turn.gpu_type)
        # Its speed on few nodes was counted on; where it may be apart, few are only preferred.
        near = () if turn.apart else claims.near(first).get(turn.gpu_type, ())
        most = len(near) or None
        grants.append(Grant(first, turn.gpus, reason, gpu_type=turn.gpu_type, max_nodes=most))
        grants += [
            Grant(uid, turn.gpus, reason.and_also(_with(snapshot.job[first])),
                  gpu_type=turn.gpu_type, max_nodes=most, co_runner=first, time_slicing=time_slicing)
            for uid in rest
        ]  # fmt: skip
    served = {grant.uid for grant in grants}
    fallback: list[tuple[float, Grant]] = []
    waits = {}
    for job in claims.jobs:
        if job.uid in served:
            continue
        if not claims.spreads[job.uid]:
            if (place := job.placement) is not None and place.gpus == job.gpus:
                stays = Grant(job.uid, job.gpus, Reason(Code.NO_NODE_AGAIN), gpu_type=place.gpu_type)
                fallback.append((0.0, stays))
                continue
            waits[job.uid] = _exceeds(job, beside_fixed=job.uid in claims.shut_out)
            continue
        priority = of.get((job.uid,), {})
        best = max(claims.kinds(job.uid), key=lambda kind: priority.get(kind, 0.0))
        reason = reasons.wait(job.uid, claims.kinds(job.uid))
        if fill or priority.get(best, 0.0) > 0:
            grant = Grant(job.uid, job.gpus, reason, gpu_type=gpu_type_of(best))
            fallback.append((-priority.get(best, 0.0), grant))
        else:
            waits[job.uid] = reason
    fallback.sort(key=lambda entry: entry[0])
    without = [Grant(job.uid, 0, CPU_ONLY) for job in snapshot.jobs if job.gpus == 0 and job.uid not in served]
    return Decision(tuple(grants), (*(grant for _, grant in fallback), *without), waits)


def _staying(claims: AllocationInputs, *, time_slicing: bool) -> Iterator[Grant]:
    """Grants of what they hold, for those who stay."""
    before: dict[str | None, Job] = {}
    for job in sorted(claims.stays, key=lambda job: not is_fixed(job)):  # of two, who cannot move is the host
        if (place := job.placement) is None:
            continue
        host = before.get(job.co_runner) if claims.sharing and not is_fixed(job) else None
        if host is not None and host.placement == place:
            reason = RUNS_ON.and_also(_with(host))
            yield Grant(
                job.uid, place.gpus, reason, gpu_type=place.gpu_type, co_runner=host.uid, time_slicing=time_slicing
            )
        else:
            reason = RUNS_TO_END if is_fixed(job) else RUNS_ON
            yield Grant(job.uid, place.gpus, reason, gpu_type=place.gpu_type)
        before[job.uid] = job


def _with(host: Job) -> Reason:
    """Why a job has GPUs that are another one's, too."""
    return Reason.of(Code.SHARES_GPUS, co_runner=host.slurm_job_id)


def _exceeds(job: Job, *, beside_fixed: bool) -> Reason:
    """Why no nodes could run a job."""
    if beside_fixed:
        return Reason.of(Code.EXCEEDS_NODES_BESIDE_FIXED, gpus=job.gpus, gpu_types=job.gpu_types)
    return Reason.of(Code.EXCEEDS_NODES, gpus=job.gpus, gpu_types=job.gpu_types, nodes=None, cpus=None)


class _Reasons:
    """Shares as reasons."""

    def __init__(self, ledger: TimeAccount, types_in_turn: Sequence[str]) -> None:
        self._types = types_in_turn
        self._shares: dict[str, Mapping[str, float]] = {}
        for who, share in ledger.shares.items():
            for uid in who:
                if before := self._shares.get(uid):
                    both = {kind: before.get(kind, 0.0) + share.get(kind, 0.0) for kind in {**before, **share}}
                    self._shares[uid] = both
                else:
                    self._shares[uid] = share
        self._told: dict[tuple[tuple[str, float], ...], tuple[tuple[str, int], ...]] = {}

    def turn(self, uid: str, gpu_type: str) -> Reason:
        """Why a job has GPUs of a type."""
        return Reason(Code.TIME_SHARE_TURN, (("gpu_type", gpu_type), ("shares", self._percents(uid))))

    def wait(self, uid: str, kinds: Iterable[str]) -> Reason:
        """Why it is not a job's turn that could have these worker types."""
        if self._types and not any(gpu_type_of(kind) in self._types for kind in kinds):
            return Reason(Code.TYPES_IN_TURN_EXCLUDE)
        return Reason(Code.TIME_SHARE_WAIT, (("shares", self._percents(uid)),))

    def _percents(self, uid: str) -> tuple[tuple[str, int], ...]:
        """A job's share of time by worker type, in whole percent: finer, the history would have a row every round."""
        share = tuple(self._shares.get(uid, {}).items())
        if share not in self._told:
            self._told[share] = tuple((kind, round(100 * part)) for kind, part in sorted(share) if part > 0)
        return self._told[share]
