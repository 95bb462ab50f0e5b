"""Generalised processor sharing by brute force: every live job is followed from event to event."""

from __future__ import annotations


def fluid(jobs, gpus):
    """When each job ends; ``jobs`` are (uid, arrival, work in GPU-seconds, weight)."""
    left = {uid: work for uid, _, work, _ in jobs}
    weight = {uid: share for uid, _, _, share in jobs}
    waiting = sorted((at, uid) for uid, at, _, _ in jobs)
    live: list = []
    ends: dict = {}
    now = 0.0
    while waiting or live:
        total = sum(weight[uid] for uid in live)
        rate = {uid: gpus * weight[uid] / total for uid in live}
        coming = waiting[0][0] if waiting else float("inf")
        done = min((now + left[uid] / rate[uid] for uid in live), default=float("inf"))
        then = min(coming, done)
        for uid in live:
            left[uid] -= rate[uid] * (then - now)
        now = then
        for uid in [uid for uid in live if left[uid] <= 1e-9 * (1 + weight[uid])]:
            ends[uid] = now
            live.remove(uid)
        while waiting and waiting[0][0] <= now:
            live.append(waiting.pop(0)[1])
    return ends
