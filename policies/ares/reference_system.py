"""The reference system of Ares: generalised processor sharing in virtual time.

Source: Liu et al., "Ares", 2025, section 3.2, Equations 2 and 3. At every instant the active jobs have all GPUs in
proportion to their weights, in arbitrarily small fractions. Virtual time is the service that a job of weight 1 would
have received since the beginning, in GPU-seconds. A job's virtual finish time is known when it arrives, and no later
event changes it: later arrivals and ends change the speed of virtual time alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

Entry = list[Any]
"""An active job: [virtual finish time, uid, weight]."""


class ReferenceSystem:
    """Generalised processor sharing. An arrival or an end costs O(log n) with n active jobs.

    Attributes:
        gpus: GPUs that the jobs share.
        now: unix seconds up to which the system is advanced.
        virtual: virtual time, GPU-seconds.
        weight: weight of all active jobs whose finish time is known.
        others: weight of the jobs of unknown demand, which have a fraction of the GPUs by their weight, too.
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
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The system that ``to_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data are something else.
        """
        numbers = {name: float(data[name]) for name in ("gpus", "now", "virtual", "weight", "others")}
        return cls(active=data["active"], **numbers)

    def to_json(self) -> dict[str, Any]:
        """The whole system as JSON-compatible data."""
        numbers = {name: getattr(self, name) for name in ("gpus", "now", "virtual", "weight", "others")}
        return {**numbers, "active": self._active}

    @property
    def next_end(self) -> float:
        """Unix seconds at which the next job ends if no other arrives; infinite if none ends."""
        if not self._active or self.gpus <= 0:
            return math.inf
        ahead: float = self._active[0][0] - self.virtual
        return self.now + max(ahead, 0.0) * (self.weight + self.others) / self.gpus

    def advance(self, to: float) -> list[tuple[str, float]]:
        """Advance the system to a time (unix seconds); return the jobs that end by then with their ends, in order."""
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
        """Add a job that arrives now.

        Args:
            uid: the job's uid.
            work: the job's demand, GPU-seconds.
            weight: the job's weight, above 0.
            since: earlier virtual time from which the job counts as present; it may have ended by now. None for now.

        Returns:
            Its virtual finish time.
        """
        finish = (self.virtual if since is None else since) + work / weight
        if finish >= self.virtual:
            heapq.heappush(self._active, [finish, uid, weight])
            self.weight += weight
        return finish

    def leave(self, uids: Collection[str]) -> None:
        """Remove jobs before their end, in O(n); jobs that are not active are ignored."""
        kept = [entry for entry in self._active if entry[1] not in uids]
        if len(kept) < len(self._active):
            heapq.heapify(kept)
            self._active = kept
            self.weight = math.fsum(weight for _, _, weight in kept)
