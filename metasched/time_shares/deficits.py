"""Deficits that are carried over when time shares are renewed: limited, passed on, without idle time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from metasched.time_shares.round_mechanism import Combination, Seconds, TimeShares, gpu_type_of, summed

FULL_ROUNDS = 10.0
"""Rounds of deficit or surplus that are carried over in full; what is beyond fades."""


def carried_over(
    deficit: Seconds,
    shares: TimeShares,
    gpus: Mapping[str, int],
    elapsed: float,
    round_seconds: float,
    *,
    advances: Seconds | None = None,
) -> tuple[Seconds, Seconds]:
    """The deficits with which new time shares begin, from the deficits under the old ones (negative: surplus).

    1. A deficit or surplus of more than ``FULL_ROUNDS`` fades, so that a job that no node could run for a day does not
       hold the GPUs for all of the next day.
    2. A deficit without a time share follows its jobs to the time shares that they have now, on other worker types or
       with other co-runners.
    3. A surplus counts as far as other combinations with a time share of that GPU type have a deficit there: time on
       GPUs that would have been idle is no surplus.
    4. The part of a surplus that was received in advance counts in any case, as the combinations that waited then may
       have ended since. Without a time share it follows its jobs, as a deficit does.

    Args:
        deficit: seconds by combination and worker type.
        shares: the new time shares.
        gpus: GPUs of each job, by uid; the two jobs of a pair have equally many.
        elapsed: seconds for which the old time shares were in force.
        round_seconds: regular seconds of a round.
        advances: seconds received in advance, by combination and worker type; none by default.

    Returns:
        The deficits, and the part of their surpluses that was received in advance.
    """
    most = FULL_ROUNDS * round_seconds
    faded = {
        combination: {worker_type: _faded(seconds, elapsed, most) for worker_type, seconds in times.items()}
        for combination, times in deficit.items()
    }
    before = _within_surplus(advances or {}, faded)
    in_advance = _following_jobs(before, shares)
    # Without a time share, only the part of a surplus that was received in advance follows its jobs.
    followed = _plus(_following_jobs(_plus(faded, before, 1.0), shares), in_advance, -1.0)
    found = _without_idle_time(followed, shares, gpus, in_advance)
    return found, _within_surplus(in_advance, found)


def _plus(one: Seconds, other: Seconds, factor: float) -> Seconds:
    """The sums of ``one``, and ``other`` times a factor."""
    found = dict(one)
    for combination, times in other.items():
        found[combination] = summed(found.get(combination, {}), {t: factor * seconds for t, seconds in times.items()})
    return found


def _within_surplus(advances: Seconds, deficit: Seconds) -> Seconds:
    """The seconds received in advance that are still surplus, by combination and worker type."""
    found = {}
    for combination, times in advances.items():
        lacking = deficit.get(combination, {})
        left = {t: min(seconds, -lacking[t]) for t, seconds in times.items() if lacking.get(t, 0.0) < 0}
        if left:
            found[combination] = left
    return found


def _faded(seconds: float, elapsed: float, most: float) -> float:
    """A deficit or surplus of which the part beyond ``most`` has faded; the order of any two remains.

    A deficit that grows by all of the elapsed time stays below 2 x ``most``, whatever the time between two renewals.
    """
    excess = abs(seconds) - most
    return seconds if excess <= 0 else math.copysign(most + excess / (1.0 + elapsed / most), seconds)


def _following_jobs(deficit: Seconds, shares: TimeShares) -> Seconds:
    """The deficits, those without a time share divided over all time shares of their jobs, in proportion to these.

    Both jobs of a pair lack its whole time. Of the deficits of two jobs that become a pair, the larger one counts. A
    job without any time share keeps its deficit. A surplus without a time share is dropped.
    """
    found: dict[Combination, dict[str, float]] = {}
    moving: dict[str, dict[str, float]] = {}  # seconds by uid and worker type
    for combination, times in deficit.items():
        share = shares.get(combination, {})
        for worker_type, seconds in times.items():
            if share.get(worker_type, 0.0) > 0:
                found.setdefault(combination, {})[worker_type] = seconds
            elif seconds > 0:
                for uid in combination:
                    mine = moving.setdefault(uid, {})
                    mine[worker_type] = mine.get(worker_type, 0.0) + seconds
    rate = _seconds_per_share(moving, shares)
    for combination, share in shares.items() if rate else ():
        if lacking := max(rate.get(uid, 0.0) for uid in combination):
            found[combination] = summed(found.get(combination, {}), {t: lacking * part for t, part in share.items()})
    return found | {(uid,): times for uid, times in moving.items() if uid not in rate}


def _seconds_per_share(moving: Mapping[str, Mapping[str, float]], shares: TimeShares) -> Mapping[str, float]:
    """The seconds of each uid, over its sum of time shares; uids without a time share are left out."""
    total = dict.fromkeys(moving, 0.0)
    for combination, share in shares.items() if moving else ():
        for uid in combination:
            if uid in total:
                total[uid] += sum(share.values())
    return {uid: sum(moving[uid].values()) / part for uid, part in total.items() if part > 0}


def _without_idle_time(deficit: Seconds, shares: TimeShares, gpus: Mapping[str, int], advances: Seconds) -> Seconds:
    """The deficits, with surpluses reduced to the deficits of other combinations with a time share of that GPU type.

    The GPU-seconds of all surpluses of a GPU type are reduced in proportion, none below what was received in advance.
    """
    over: dict[str, float] = {}  # GPU-seconds by GPU type
    short: dict[str, float] = {}
    for combination, times in deficit.items():
        for worker_type in shares.get(combination, {}):
            amount, gpu_type = times.get(worker_type, 0.0) * gpus[combination[0]], gpu_type_of(worker_type)
            side = short if amount > 0 else over
            side[gpu_type] = side.get(gpu_type, 0.0) + abs(amount)
    part = {gpu_type: min(short.get(gpu_type, 0.0) / amount, 1.0) for gpu_type, amount in over.items() if amount > 0}

    def counted(combination: Combination, worker_type: str, seconds: float) -> float:
        """A deficit, or the part of a surplus that counts, in seconds."""
        if seconds > 0:
            return seconds
        in_advance = min(-seconds, advances.get(combination, {}).get(worker_type, 0.0))
        return min(seconds * part.get(gpu_type_of(worker_type), 0.0), -in_advance)

    return {
        combination: {worker_type: counted(combination, worker_type, seconds) for worker_type, seconds in times.items()}
        for combination, times in deficit.items()
    }
