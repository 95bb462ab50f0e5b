"""Gavel's round mechanism: chooses, round by round, the jobs that realise the time shares of a policy. Pure.

Source: Narayanan et al., OSDI 2020, sections 3.2 and 5, Algorithm 1, Figure 5. In every round:

    accounts = accounts.record_received(jobs)         # seconds that each job or pair received in the last round
    if the policy computed new time shares:
        accounts = accounts.renew(time_shares, now)   # deficits of the old time shares are carried over
    priority[c][t] = share[c][t] / (received[c][t] / round_seconds + 0.5)
    for (c, t) by priority, deficit, share, descending:       # ``granting.choose``
        grant c the round on worker type t, if its GPUs are free and none of its jobs has a round grant yet
    accounts = accounts.assign(round_grants)          # the time of this round will be received on their accounts

A combination c is one job, or a pair of jobs on the same GPUs. A worker type t is a GPU type, or a GPU type marked
unconsolidated (the GPUs may be on more nodes than needed).

The order by priority is that of stride scheduling (Waldspurger and Weihl, 1995): a combination that received r rounds
is due for the next one at (r + 0.5) / share, in rounds since the time shares came into force. With ``carry``, r is the
received time less the deficit. A combination is then due at the same time whether its time shares are renewed in every
round or never: for the first time after 0.5 / share rounds. ``deficits`` has the rules for deficits at a renewal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from metasched.core.model import Job

Combination = tuple[str, ...]
"""The uid of one job, or the two uids of a pair on the same GPUs, first the job that was submitted first."""

ByCombination = Mapping[Combination, Mapping[str, float]]
"""A number by combination and worker type; 0 where there is no entry."""

TimeShares = ByCombination
"""Fraction of the time, in [0, 1], by combination and worker type; 0 where there is no entry."""

Seconds = ByCombination
"""Seconds by combination and worker type; 0 where there is no entry."""

Priorities = ByCombination
"""Priority by combination and worker type, higher first; ``NO_PRIORITY`` where there is no entry."""

NO_PRIORITY = -math.inf
"""Priority of a combination on a worker type of which it has no time share."""

ACCOUNTS, COMPUTED_FOR = "ledger", "made_for"
"""Keys of a policy state's data: the time accounts, and the inputs for which its time shares were computed."""

UNCONSOLIDATED = " unconsolidated"
"""Suffix of a GPU type: the worker type of jobs whose GPUs may be on more nodes than needed (section 3.1)."""

PRIOR_ROUNDS = 0.5
"""Rounds that count as received by every combination from the start, so that priorities are finite (Figure 5)."""

STORED_NAMES = {"deficit": "owed", "attained": "seen", "granted": "ran", "unconsolidated": "apart"}
"""Keys of stored states by field of ``TimeAccounts``, where they differ: names in databases of earlier versions."""

NOISE_DIGITS = 6  # of seconds: smaller differences of attained service are rounding, and must not decide priorities


@dataclass(frozen=True, slots=True)
class TimeAccounts:
    """Time shares, received time and deficits of all combinations.

    Attributes:
        shares: the time shares in force.
        since: unix seconds at which these time shares came into force; None before the first.
        expired: whether the time shares may be recomputed whatever their age.
        received: seconds received since then.
        deficit: seconds that were missing (negative: in excess) when earlier time shares ended.
        attained: by uid, the job's attained service at the last ``record_received``, GPU-seconds by GPU type.
        granted: the combinations with a grant of the present round.
        unconsolidated: uids of their jobs whose grant is of an unconsolidated worker type.
        gap_fillers: the combinations whose grant fills a gap (``RoundGrant.fills_gap``).
        in_advance: the combinations whose grant is in advance (``RoundGrant.in_advance``).
        advances: seconds received in advance, which a renewal does not take for time on idle GPUs.
    """

    shares: TimeShares = field(default_factory=dict)
    since: float | None = None
    expired: bool = False
    received: Seconds = field(default_factory=dict)
    deficit: Seconds = field(default_factory=dict)
    attained: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    granted: tuple[Combination, ...] = ()
    unconsolidated: tuple[str, ...] = ()
    gap_fillers: frozenset[Combination] = frozenset()
    in_advance: frozenset[Combination] = frozenset()
    advances: Seconds = field(default_factory=dict)

    def record_received(self, jobs: Iterable[Job]) -> Self:
        """Add the time that jobs received since the last call, and drop combinations with a job that is gone.

        Args:
            jobs: all present jobs. The time of a job that was not present at the last call counts from this call on.
        """
        present = {job.uid: job for job in jobs if job.gpus > 0}
        received = {combination: dict(seconds) for combination, seconds in _present(self.received, present).items()}
        granted = {uid: pair for pair in self.granted if all(uid in present for uid in pair) for uid in pair}
        added: dict[Combination, dict[str, float]] = {}
        for uid, job in present.items():
            before = self.attained.get(uid, job.attained)
            combination = granted.get(uid, (uid,))
            for gpu_type, attained in job.attained.items():
                seconds = (attained - before.get(gpu_type, 0.0)) / job.gpus
                if seconds > 0:
                    # The two jobs of a pair run at the same time: the pair received the longer time, not the sum.
                    new = added.setdefault(combination, {})
                    worker_type = worker_type_of(gpu_type, unconsolidated=uid in self.unconsolidated)
                    new[worker_type] = max(new.get(worker_type, 0.0), seconds)
        advances = dict(_present(self.advances, present))
        for combination, times in added.items():
            if combination in self.in_advance:
                advances[combination] = summed(advances.get(combination, {}), times)
            total = received.setdefault(combination, {})
            for worker_type, seconds in times.items():
                total[worker_type] = round(total.get(worker_type, 0.0) + seconds, NOISE_DIGITS)
        return replace(
            self,
            shares=_present(self.shares, present),
            received=received,
            deficit=_present(self.deficit, present),
            advances=advances,
            attained={uid: dict(job.attained) for uid, job in present.items()},
        )

    def split_pairs(self, jobs: Iterable[Job], now: float) -> Self:
        """Pass the deficits and advances of pairs of which one job has ended to the other job.

        Args:
            jobs: all present jobs.
            now: unix seconds.
        """
        present = {job.uid for job in jobs}
        deficit: dict[Combination, Mapping[str, float]] = dict(self.deficit)
        advances: dict[Combination, Mapping[str, float]] = dict(self.advances)
        for pair in dict.fromkeys(itertools.chain(self.shares, self.received, self.deficit)):
            left = [uid for uid in pair if uid in present]
            if 0 < len(left) < len(pair):
                rest = (left[0],)
                deficit[rest] = summed(deficit.get(rest, {}), self._deficit(pair, now))
                if pair in advances:
                    advances[rest] = summed(advances.get(rest, {}), advances[pair])
        return replace(self, deficit=deficit, advances=advances)

    def renew(self, shares: TimeShares, now: float) -> Self:
        """Put new time shares into force at ``now``; deficits are the sums of those under all earlier time shares."""
        combinations = dict.fromkeys(itertools.chain(self.shares, self.received, self.deficit))
        deficit = {combination: self._deficit(combination, now) for combination in combinations}
        return replace(self, shares=shares, since=now, expired=False, received={}, deficit=deficit)

    def _deficit(self, combination: Combination, now: float) -> dict[str, float]:
        """The combination's deficit at ``now``, seconds by worker type, that under the present time shares included."""
        elapsed = now - (now if self.since is None else self.since)
        share, received = self.shares.get(combination, {}), self.received.get(combination, {})
        before = self.deficit.get(combination, {})
        return {
            worker_type: before.get(worker_type, 0.0)
            + share.get(worker_type, 0.0) * elapsed
            - received.get(worker_type, 0.0)
            for worker_type in dict.fromkeys(itertools.chain(share, received, before))
        }

    def admit(self, shares: TimeShares, now: float) -> Self:
        """Add time shares of further combinations, in force from ``now`` on (unix seconds); deficits are unchanged."""
        elapsed = now - (now if self.since is None else self.since)
        # renew() will credit them with the whole time since self.since; this takes back the part before now
        before = {
            combination: summed(
                self.deficit.get(combination, {}), {worker_type: -part * elapsed for worker_type, part in share.items()}
            )
            for combination, share in shares.items()
        }
        return replace(self, shares={**self.shares, **shares}, deficit={**self.deficit, **before})

    def assign(self, round_grants: Sequence[RoundGrant]) -> Self:
        """Record which combinations are granted the round, so that its time is received on their accounts."""
        unconsolidated = tuple(uid for grant in round_grants if grant.unconsolidated for uid in grant.combination)
        return replace(
            self,
            granted=tuple(grant.combination for grant in round_grants),
            unconsolidated=unconsolidated,
            gap_fillers=frozenset(grant.combination for grant in round_grants if grant.fills_gap),
            in_advance=frozenset(grant.combination for grant in round_grants if grant.in_advance),
        )

    def to_json(self) -> dict[str, Any]:
        """The accounts as JSON-compatible data, under the keys of stored states."""
        return {
            "shares": to_rows(self.shares),
            "since": self.since,
            "expired": self.expired,
            "received": to_rows(self.received),
            STORED_NAMES["deficit"]: to_rows(self.deficit),
            STORED_NAMES["attained"]: dict(self.attained),
            STORED_NAMES["granted"]: [list(combination) for combination in self.granted],
            STORED_NAMES["unconsolidated"]: list(self.unconsolidated),
            "gap_fillers": sorted(map(list, self.gap_fillers)),
            "in_advance": sorted(map(list, self.in_advance)),
            "advances": to_rows(self.advances),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The accounts that ``to_json`` wrote.

        Raises:
            KeyError: a key is missing.
        """
        return cls(
            shares=from_rows(data["shares"]),
            since=data["since"],
            expired=data["expired"],
            received=from_rows(data["received"]),
            deficit=from_rows(data[STORED_NAMES["deficit"]]),
            attained=data[STORED_NAMES["attained"]],
            granted=tuple(tuple(combination) for combination in data[STORED_NAMES["granted"]]),
            unconsolidated=tuple(data.get(STORED_NAMES["unconsolidated"], ())),
            gap_fillers=frozenset(map(tuple, data.get("gap_fillers", ()))),
            in_advance=frozenset(map(tuple, data.get("in_advance", ()))),
            advances=from_rows(data.get("advances", ())),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination that could run in this round.

    Attributes:
        combination: the job or pair.
        gpus: GPUs that it needs.
        worker_types: worker types on which it can run.
        credit: seconds that are added to its deficit.
        consolidated: GPUs on each node when it runs consolidated, by GPU type on which it may also run unconsolidated.
    """

    combination: Combination
    gpus: int
    worker_types: tuple[str, ...]
    credit: float = 0.0
    consolidated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundGrant:
    """A round on GPUs of one type for a combination.

    Attributes:
        combination: the job or pair.
        gpu_type: the GPU type.
        gpus: number of GPUs.
        unconsolidated: whether the GPUs may be on more nodes than needed, at the cost of speed.
        fills_gap: whether the GPUs did not suffice for a combination of higher priority.
        in_quantum: whether the combination keeps the GPUs of its present run, within its quantum.
        in_advance: whether it keeps them while a combination of higher priority waits.
    """

    combination: Combination
    gpu_type: str
    gpus: int
    unconsolidated: bool = False
    fills_gap: bool = False
    in_quantum: bool = False
    in_advance: bool = False

    @property
    def worker_type(self) -> str:
        """The worker type of the GPUs."""
        return worker_type_of(self.gpu_type, unconsolidated=self.unconsolidated)


def priorities(accounts: TimeAccounts, round_seconds: float, *, carry: bool = False) -> Priorities:
    """The priority of each combination on each worker type of which it has a time share.

    Section 5 divides by the combination's fraction of the type's time instead of its rounds. Within one type the order
    is the same. Across types it is not: jobs that have all run on one type only would have no higher priority on the
    others.

    Args:
        accounts: time shares, received time and deficits.
        round_seconds: regular seconds of a round.
        carry: whether deficits count.

    Returns:
        Without ``carry``, the time share over the rounds received under it (Figure 5). With it, the negative of the
        rounds from ``accounts.since`` to the time at which the combination is due. Without a deficit both have the same
        order; the second is also defined for a deficit of more than ``PRIOR_ROUNDS``.
    """
    nothing: Mapping[str, float] = {}
    found = {}
    for combination, share in accounts.shares.items():
        received, deficit = accounts.received.get(combination, nothing), accounts.deficit.get(combination, nothing)
        by_type = found[combination] = dict[str, float]()
        for worker_type, part in share.items():
            if part > 0 and carry:
                net = round(received.get(worker_type, 0.0) - deficit.get(worker_type, 0.0), NOISE_DIGITS)
                by_type[worker_type] = -(net / round_seconds + PRIOR_ROUNDS) / part
            elif part > 0:
                by_type[worker_type] = part / (received.get(worker_type, 0.0) / round_seconds + PRIOR_ROUNDS)
    return found


def worker_type_of(gpu_type: str, *, unconsolidated: bool) -> str:
    """The worker type of GPUs of a type, which may be ``unconsolidated``: on more nodes than needed."""
    return gpu_type + UNCONSOLIDATED if unconsolidated else gpu_type


def gpu_type_of(worker_type: str) -> str:
    """The GPU type of a worker type: the worker type without the suffix ``UNCONSOLIDATED``."""
    return worker_type.removesuffix(UNCONSOLIDATED)


def with_expired_shares(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A policy state's data, changed so that time shares are recomputed at the next change whatever their age."""
    return {**data, ACCOUNTS: {**data[ACCOUNTS], "expired": True}} if ACCOUNTS in data else data


def jobs_with_shares(data: Mapping[str, Any]) -> Collection[str] | None:
    """Uids of the jobs for which the time shares in a policy state's data were computed; None where it has none."""
    return frozenset(data[COMPUTED_FOR]["jobs"]) if COMPUTED_FOR in data else None


def pair_of(one: Job, other: Job) -> Combination:
    """The pair of two jobs, first the job that was submitted first."""
    first, second = sorted((one, other), key=lambda job: (job.submitted, job.uid))
    return first.uid, second.uid


def of_present_jobs(shares: TimeShares, jobs: Iterable[Job]) -> TimeShares:
    """The time shares of combinations of which every job is among ``jobs``."""
    return _present(shares, {job.uid: job for job in jobs})


def as_single_combinations(shares: Mapping[str, Mapping[str, float]]) -> TimeShares:
    """Time shares by uid as time shares of combinations of one job."""
    return {(uid,): share for uid, share in shares.items()}


def _present(times: ByCombination, present: Mapping[str, object]) -> dict[Combination, Mapping[str, float]]:
    """The entries of combinations of which every job is present, by uid."""
    return {combination: found for combination, found in times.items() if all(uid in present for uid in combination)}


def summed(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums of two mappings' values by key."""
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in dict.fromkeys(itertools.chain(one, other))}


def to_rows(times: ByCombination) -> list[list[Any]]:
    """Time shares or seconds as JSON-compatible rows: uids of the combination, numbers by worker type."""
    return [[list(combination), found] for combination, found in times.items()]


def from_rows(rows: Iterable[tuple[Sequence[str], Mapping[str, float]]]) -> ByCombination:
    """Time shares or seconds from the rows that ``to_rows`` made."""
    return {tuple(combination): found for combination, found in rows}
