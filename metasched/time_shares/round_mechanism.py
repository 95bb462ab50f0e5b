"""Gavel's round mechanism: from the shares of time that jobs should have to who runs this round.

A policy gives each job, or combination of two jobs on the same GPUs, a share of time on each GPU type. The mechanism
keeps account of the time that they have had, and gives the next round to those that lag most behind (Narayanan et al.,
OSDI 2020, sections 3.2 and 5, Algorithm 1). All of it is pure.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from metasched.core.model import Job

Combination = tuple[str, ...]
"""The uid of one job, or the two of a pair that has the same GPUs."""

Times = Mapping[Combination, Mapping[str, float]]
"""By combination and worker type (a GPU type, or one with ``APART``); what is not in it is 0."""

LEDGER, MADE_FOR = "ledger", "made_for"
"""Where policies keep it in the data of their state; and the jobs and GPUs that its shares were made for."""

APART = " unconsolidated"
"""After a GPU type: a worker type of its own, for jobs whose GPUs are spread over nodes (section 3.1)."""

PRIOR_ROUNDS = 0.5
"""So many rounds count as received by everybody from the start, so that who has had nothing yet has a priority, too."""

NOISE_DIGITS = 6  # of seconds: finer differences in attained service are rounding, and must not decide who is first


@dataclass(frozen=True, slots=True)
class TimeAccount:
    """What combinations should have, and what they have had.

    Attributes:
        shares: of time, in [0, 1].
        since: when these shares were made; None before the first.
        expired: whether they may be made anew whatever their age.
        received: seconds since then.
        owed: seconds that were missing (negative: too many) when earlier shares ended.
        seen: by uid, the GPU-seconds of each type that the job had attained at the last look.
        ran: the combinations that were given the present round.
        apart: those of their jobs that were given it unconsolidated.
    """

    shares: Times = field(default_factory=dict)
    since: float | None = None
    expired: bool = False
    received: Times = field(default_factory=dict)
    owed: Times = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ran: tuple[Combination, ...] = ()
    apart: tuple[str, ...] = ()

    def look(self, jobs: Iterable[Job]) -> Self:
        """Write down what has been received since the last look, and forget the jobs that are gone."""
        live = {job.uid: job for job in jobs if job.gpus > 0}
        received = {who: dict(times) for who, times in _of(self.received, live).items()}
        together = {uid: who for who in self.ran if all(uid in live for uid in who) for uid in who}
        news: dict[Combination, dict[str, float]] = {}
        for uid, job in live.items():
            before = self.seen.get(uid, job.attained)  # of one that comes, or comes back: nothing since the last look
            who = together.get(uid, (uid,))
            for gpu_type, attained in job.attained.items():
                seconds = (attained - before.get(gpu_type, 0.0)) / job.gpus
                if seconds > 0:
                    # Two that share GPUs have the same time, not twice as much.
                    new = news.setdefault(who, {})
                    kind = gpu_type + APART if uid in self.apart else gpu_type
                    new[kind] = max(new.get(kind, 0.0), seconds)
        for who, times in news.items():
            had = received.setdefault(who, {})
            for gpu_type, seconds in times.items():
                had[gpu_type] = round(had.get(gpu_type, 0.0) + seconds, NOISE_DIGITS)
        return replace(
            self,
            shares=_of(self.shares, live),
            received=received,
            owed=_of(self.owed, live),
            seen={uid: dict(job.attained) for uid, job in live.items()},
        )

    def renew(self, shares: Times, now: float, *, gpus: Mapping[str, int] | None = None) -> Self:
        """Begin with new shares; what the old ones left undone is owed.

        Args:
            shares: the new ones.
            now: unix seconds.
            gpus: of each job, by uid, if what some had beyond their shares is to count as received. Else nobody has
                received anything yet, so that under shares that are made anew all the time, the largest always come
                first, and the least never. Only what others went short of counts, who have a share of that type now.
        """
        elapsed = now - (now if self.since is None else self.since)
        owed: dict[Combination, dict[str, float]] = {}
        for who in dict.fromkeys(itertools.chain(self.shares, self.received, self.owed)):
            should, had, due = self.shares.get(who, {}), self.received.get(who, {}), self.owed.get(who, {})
            owed[who] = {
                gpu_type: due.get(gpu_type, 0.0) + should.get(gpu_type, 0.0) * elapsed - had.get(gpu_type, 0.0)
                for gpu_type in dict.fromkeys(itertools.chain(should, had, due))
            }
        received: Times = {}
        if gpus is not None:
            received = _beyond(owed, shares, gpus)
            owed = {who: {kind: max(seconds, 0.0) for kind, seconds in due.items()} for who, due in owed.items()}
        return replace(self, shares=shares, since=now, expired=False, received=received, owed=owed)

    def admit(self, shares: Times, now: float) -> Self:
        """Add shares for more jobs, which begin now, to those that there are."""
        elapsed = now - (now if self.since is None else self.since)
        before = {who: {kind: -part * elapsed for kind, part in share.items()} for who, share in shares.items()}
        return replace(self, shares={**self.shares, **shares}, owed={**self.owed, **before})

    def give(self, turns: Sequence[RoundGrant]) -> Self:
        """Note who has been given the round."""
        apart = tuple(uid for turn in turns if turn.apart for uid in turn.combination)
        return replace(self, ran=tuple(turn.combination for turn in turns), apart=apart)

    def to_json(self) -> dict[str, Any]:
        """As JSON-compatible data."""
        return {
            "shares": rows_of(self.shares),
            "since": self.since,
            "expired": self.expired,
            "received": rows_of(self.received),
            "owed": rows_of(self.owed),
            "seen": dict(self.seen),
            "ran": [list(who) for who in self.ran],
            "apart": list(self.apart),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From what ``to_json`` gave."""
        return cls(
            shares=times_of(data["shares"]),
            since=data["since"],
            expired=data["expired"],
            received=times_of(data["received"]),
            owed=times_of(data["owed"]),
            seen=data["seen"],
            ran=tuple(tuple(who) for who in data["ran"]),
            apart=tuple(data.get("apart", ())),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination that could run this round.

    Attributes:
        combination: who.
        gpus: that it needs.
        types: worker types where it runs.
        credit: seconds to be added to what it is owed.
        near: by GPU type on which it may also run unconsolidated, its GPUs on each node when it does not.
    """

    combination: Combination
    gpus: int
    types: tuple[str, ...]
    credit: float = 0.0
    near: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundGrant:
    """A round on GPUs of a type, for a combination; ``apart`` if they may be spread over nodes at its cost."""

    combination: Combination
    gpu_type: str
    gpus: int
    apart: bool = False


def priorities(ledger: TimeAccount, round_seconds: float) -> Times:
    """Shares over the rounds received since they were made (Figure 5): high for those who lag behind.

    Section 5 divides by a job's part of all time received on the type instead. That orders the jobs of one type alike,
    but two jobs that have always had one type, and never the other, would not seem to lag behind there.
    """
    nothing: Mapping[str, float] = {}
    found = {}
    for who, share in ledger.shares.items():
        had = ledger.received.get(who, nothing)
        found[who] = {
            gpu_type: part / (had.get(gpu_type, 0.0) / round_seconds + PRIOR_ROUNDS) for gpu_type, part in share.items()
        }
    return found


def choose(
    ledger: TimeAccount,
    candidates: Sequence[Candidate],
    capacity: Mapping[str, int],
    of: Times,
    *,
    types_in_turn: Sequence[str] = (),
    fill: bool = True,
    nodes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[RoundGrant, ...]:
    """Give a round away by Algorithm 1: highest priority first, each job once, whoever fits.

    Among equal priorities those come first to whom more is owed, then those with the larger share, then in the order of
    the candidates.

    Args:
        ledger: what they should have and have had.
        candidates: who could run, and where.
        capacity: GPUs by type.
        of: the ledger's ``priorities``.
        types_in_turn: fills one type after the other, in this order, and no others; empty for the highest priority over
            all types.
        fill: whether GPUs that nobody with a share can use go to those without.
        nodes: by GPU type, the GPUs of each node, for those who may run unconsolidated: they do where they must.
    """
    turn = {gpu_type: i for i, gpu_type in enumerate(types_in_turn)}
    entries: list[tuple[int, float, float, float, int, str]] = []
    nothing: Mapping[str, float] = {}
    for i, candidate in enumerate(candidates):
        who = candidate.combination
        priority, owed = of.get(who, nothing), ledger.owed.get(who, nothing)
        share = ledger.shares.get(who, nothing)
        for kind in candidate.types:
            high, place = priority.get(kind, 0.0), turn.get(gpu_type_of(kind)) if turn else 0
            if (high > 0 or fill) and place is not None:
                key = (-high, -owed.get(kind, 0.0) - candidate.credit, -share.get(kind, 0.0))
                entries.append((place, *key, i, kind))
    entries.sort()
    free = dict(capacity)
    rooms = {gpu_type: sorted(gpus) for gpu_type, gpus in (nodes or {}).items()}
    left = sum(free.values())
    busy: set[str] = set()
    turns = []
    for *_, i, kind in entries:
        if not left:
            break
        who, gpus, gpu_type = candidates[i].combination, candidates[i].gpus, gpu_type_of(kind)
        near = candidates[i].near.get(gpu_type, ()) if kind == gpu_type else ()
        fits = gpus <= free.get(gpu_type, 0) and busy.isdisjoint(who)
        if fits and (not near or _take(rooms.get(gpu_type, []), near)):
            free[gpu_type] -= gpus
            left -= gpus
            busy.update(who)
            turns.append(RoundGrant(who, gpu_type, gpus, apart=kind != gpu_type))
    return tuple(turns)


def _take(room: list[int], near: tuple[int, ...]) -> bool:
    """Take as many GPUs from each of some nodes, the tightest, if there are such; ``room`` is kept sorted."""
    each = near[0]
    first = bisect_left(room, each)
    if len(room) - first < len(near):
        return False
    for number in range(first, first + len(near)):
        room[number] -= each
    room.sort()
    return True


def _beyond(owed: Times, shares: Times, gpus: Mapping[str, int]) -> Times:
    """What combinations had too much, s; of each GPU type no more in all than others that have a share lack of it."""
    over: dict[str, float] = {}  # GPU-seconds by GPU type
    short: dict[str, float] = {}
    too_much: list[tuple[Combination, str, str, float]] = []
    for who, due in owed.items():
        share = shares.get(who, {})
        for kind, seconds in due.items():
            if not seconds or not share.get(kind):
                continue
            gpu_type, amount = gpu_type_of(kind), seconds * gpus[who[0]]
            if seconds > 0:
                short[gpu_type] = short.get(gpu_type, 0.0) + amount
            else:
                over[gpu_type] = over.get(gpu_type, 0.0) - amount
                too_much.append((who, kind, gpu_type, -seconds))
    found: dict[Combination, dict[str, float]] = {}
    for who, kind, gpu_type, seconds in too_much:
        if gpu_type in short:
            part = min(short[gpu_type] / over[gpu_type], 1.0)
            found.setdefault(who, {})[kind] = round(seconds * part, NOISE_DIGITS)
    return found


def gpu_type_of(kind: str) -> str:
    """The GPU type of a worker type."""
    return kind.removesuffix(APART)


def expire(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data of a policy's state, its shares to be made anew at the next change whatever their age."""
    return {**data, LEDGER: {**data[LEDGER], "expired": True}} if LEDGER in data else data


def members(data: Mapping[str, Any]) -> Collection[str] | None:
    """The jobs that the shares in a policy's state were made for; None where it has none."""
    return frozenset(data[MADE_FOR]["jobs"]) if MADE_FOR in data else None


def live(times: Times, jobs: Iterable[Job]) -> Times:
    """Without those whose jobs are gone."""
    return _of(times, {job.uid: job for job in jobs})


def alone(shares: Mapping[str, Mapping[str, float]]) -> Times:
    """Shares by uid as shares of combinations of one."""
    return {(uid,): share for uid, share in shares.items()}


def _of(times: Times, live: Mapping[str, object]) -> dict[Combination, Mapping[str, float]]:
    """Without those whose jobs are gone."""
    return {who: found for who, found in times.items() if all(uid in live for uid in who)}


def rows_of(times: Times) -> list[list[Any]]:
    """As JSON-compatible data."""
    return [[list(who), found] for who, found in times.items()]


def times_of(rows: Iterable[tuple[Sequence[str], Mapping[str, float]]]) -> Times:
    """From what ``rows_of`` gave."""
    return {tuple(who): found for who, found in rows}
