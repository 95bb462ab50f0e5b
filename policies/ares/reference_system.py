"""The reference system of Ares: generalised processor sharing, in virtual time (section 3.2, Equations 2 and 3).

All active jobs have the same part of the GPUs at every instant, by weight, however small that is. The virtual time is
the service that a job of weight 1 would have had since the beginning, in GPU-seconds. When a job arrives, the instant
of virtual time at which it will end is known, and nothing that comes later changes it: only virtual time itself runs
faster or slower.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

Entry = list[Any]
"""An active job: [virtual finish time, uid, weight]."""


class Gps:
    """Generalised processor sharing. An event (an arrival, an end) costs O(log n) of n active jobs.

    Attributes:
        gpus: that are shared.
        now: unix time.
        virtual: time, GPU-seconds.
        weight: of all active jobs whose end is known.
        others: weight of jobs that have their part, too, and whose end is not known.
    """

    def __init__(
        self,
        gpus: float,
        now: float,
        *,
        virtual: float = 0.0,
        active: Iterable[Entry] = (),
        weight: float = 0.0,
        others: float = 0.0,
    ) -> None:
        self.gpus = gpus
        self.now = now
        self.virtual = virtual
        self.weight = weight
        self.others = others
        self._active = list(active)  # a heap

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What ``data`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        numbers = {name: float(data[name]) for name in ("gpus", "now", "virtual", "weight", "others")}
        return cls(active=data["active"], **numbers)

    def data(self) -> dict[str, Any]:
        """All of it, as JSON can have it."""
        numbers = {name: getattr(self, name) for name in ("gpus", "now", "virtual", "weight", "others")}
        return {**numbers, "active": self._active}

    @property
    def next_end(self) -> float:
        """When the next job ends if no other comes (unix time); infinite if none does."""
        if not self._active or self.gpus <= 0:
            return math.inf
        ahead: float = self._active[0][0] - self.virtual
        return self.now + max(ahead, 0.0) * (self.weight + self.others) / self.gpus

    def advance(self, to: float) -> list[tuple[str, float]]:
        """Let time pass; returns who ends until then, and when (unix time), in order."""
        ended = []
        while (ends := self.next_end) <= to and ends < math.inf:
            self.virtual, uid, weight = heapq.heappop(self._active)
            self.now = ends
            self.weight = self.weight - weight if self._active else 0.0
            ended.append((uid, ends))
        if self.now < to < math.inf:
            sharing = self.weight + self.others
            self.virtual += (to - self.now) * self.gpus / sharing if sharing > 0 else 0.0
            self.now = to
        return ended

    def arrive(self, uid: str, work: float, weight: float = 1.0, since: float | None = None) -> float:
        """A job comes now, with so many GPU-seconds of work; returns its virtual finish time.

        It may count as one that has been there ``since`` an earlier virtual time, and may have ended by now.
        """
        finish = (self.virtual if since is None else since) + work / weight
        if finish >= self.virtual:
            heapq.heappush(self._active, [finish, uid, weight])
            self.weight += weight
        return finish

    def leave(self, uids: Collection[str]) -> None:
        """Jobs go before their end, in O(n); who is not active has nothing to leave."""
        kept = [entry for entry in self._active if entry[1] not in uids]
        if len(kept) < len(self._active):
            heapq.heapify(kept)
            self._active = kept
            self.weight = math.fsum(weight for _, _, weight in kept)
