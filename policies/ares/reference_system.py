"""The reference system of Ares: generalised processor sharing in virtual time.

Source: Liu et al., "Ares", 2025, section 3.2, Equations 2 and 3. At every instant the active jobs have all GPUs in
proportion to their weights, in arbitrarily small fractions. Virtual time is the service that a job of weight 1 would
have received since the beginning, in GPU-seconds. A job's virtual finish time is known when it arrives, and no later
event changes it: later arrivals and ends change the speed of virtual time alone.

The paper assumes that every job can use every GPU. Here each set of nodes has a virtual clock for the jobs that can use
these nodes and no others; its GPUs are the part that weighted max-min fairness gives these jobs (``max_min``). With one
set of nodes, that is the paper's system. The clock of jobs that no node can hold has no nodes, and stands still: such
jobs slow no other job down.

A job is not limited to the GPUs that it can use at most (``Job.max_gpus``), as in the paper: its end here is that of a
job that could use its whole part. Where jobs cannot, no schedule can end all of them by then; ``ares_bound`` says what
holds instead.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from metasched.capacity.max_min import Bottleneck, max_min_bottlenecks
from metasched.capacity.shapes import NodeSet

Entry = list[Any]
"""An active job: [virtual finish time, uid, weight]."""

IDLE = Bottleneck(0.0, 0.0)
"""The bottleneck of a clock without active jobs."""


class VirtualClock:
    """Virtual time of the jobs that can use one set of nodes. An arrival or an end costs O(log n) with n active jobs.

    Attributes:
        nodes: names of these nodes; empty for jobs that no node can hold.
        virtual: virtual time, GPU-seconds.
        weight: weight of all active jobs whose finish time is known.
        others: weight of the jobs of unknown demand, which have a fraction of the GPUs by their weight, too.
    """

    def __init__(
        self,
        nodes: Collection[str],
        *,
        virtual: float = 0.0,
        weight: float = 0.0,
        others: float = 0.0,
        active: Iterable[Entry] = (),
    ) -> None:
        self.nodes = frozenset(nodes)
        self.virtual = virtual
        self.weight = weight
        self.others = others
        self._active = list(active)  # a heap

    def to_json(self) -> dict[str, Any]:
        """Arguments of the constructor but ``nodes``, as JSON-compatible data."""
        return {"virtual": self.virtual, "weight": self.weight, "others": self.others, "active": self._active}

    @property
    def active(self) -> bool:
        """Whether any job whose finish time is known is active."""
        return bool(self._active)

    @property
    def ahead(self) -> float:
        """Virtual time until the next job ends; infinite if none ends."""
        return max(float(self._active[0][0]) - self.virtual, 0.0) if self._active else math.inf

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

    def end_first(self) -> str:
        """Set virtual time to the next end, and remove the job that ends; returns its uid."""
        self.virtual, uid, weight = heapq.heappop(self._active)
        self.weight = self.weight - weight if self._active else 0.0
        return str(uid)

    def leave(self, uids: Collection[str]) -> None:
        """Remove jobs before their end, in O(n); jobs that are not active are ignored."""
        self._remove({entry[1] for entry in self._active if entry[1] in uids})

    def move(self, other: VirtualClock, uids: Collection[str] | None = None) -> float:
        """Move active jobs to another clock, where they have the same remaining virtual time as here.

        Args:
            other: the other clock.
            uids: the jobs; None for all.

        Returns:
            By how much virtual times there are larger than here.
        """
        offset = other.virtual - self.virtual
        moved = [entry for entry in self._active if uids is None or entry[1] in uids]
        self._remove({uid for _, uid, _ in moved})
        for finish, uid, weight in moved:
            heapq.heappush(other._active, [max(finish + offset, other.virtual), uid, weight])
            other.weight += weight
        return offset

    def _remove(self, uids: Collection[str]) -> None:
        if uids:
            self._active = [entry for entry in self._active if entry[1] not in uids]
            heapq.heapify(self._active)
            self.weight = math.fsum(weight for _, _, weight in self._active)


class ReferenceSystem:
    """Generalised processor sharing among the jobs of all clocks.

    Args:
        gpus: GPUs by node.
        now: unix seconds up to which the system is advanced.
        clocks: the clocks; by default one of all nodes.

    Attributes:
        gpus: GPUs by node.
        now: unix seconds up to which the system is advanced.
        clocks: the virtual clocks.
    """

    def __init__(self, gpus: Mapping[str, float], now: float, clocks: Iterable[VirtualClock] | None = None) -> None:
        self.now = now
        self.clocks = [VirtualClock(gpus)] if clocks is None else list(clocks)
        self.gpus = dict(gpus)
        self._groups: list[tuple[list[str], float]] = []  # nodes that belong to the same clocks, and their GPUs
        self._group_gpus: dict[NodeSet, float] = {}  # bit i stands for group i
        self._node_sets: list[NodeSet] = []  # by clock
        self._regroup()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The system that ``to_json`` wrote.

        Raises:
            AttributeError, IndexError, KeyError, TypeError, ValueError: the data are something else.
        """
        groups = [(list(nodes), float(gpus)) for nodes, gpus in data["groups"]]
        clocks = []
        for clock in data["clocks"]:
            nodes = [name for i in clock["groups"] for name in groups[i][0]]
            numbers = {name: float(clock[name]) for name in ("virtual", "weight", "others")}
            clocks.append(VirtualClock(nodes, active=clock["active"], **numbers))
        return cls({name: gpus for nodes, gpus in groups for name in nodes}, float(data["now"]), clocks)

    def to_json(self) -> dict[str, Any]:
        """The whole system as JSON-compatible data. Groups are [names of nodes, GPUs of each]."""
        indices = range(len(self._groups))
        clocks = [
            {"groups": [i for i in indices if node_set >> i & 1], **clock.to_json()}
            for clock, node_set in zip(self.clocks, self._node_sets, strict=True)
        ]
        return {"now": self.now, "groups": [[names, gpus] for names, gpus in self._groups], "clocks": clocks}

    def change_nodes(self, gpus: Mapping[str, float], nodes: Sequence[Collection[str]]) -> None:
        """Change the cluster from now on.

        Args:
            gpus: GPUs by node.
            nodes: names of the nodes of each clock.
        """
        self.gpus = dict(gpus)
        for clock, names in zip(self.clocks, nodes, strict=True):
            clock.nodes = frozenset(names)
        self._regroup()

    def add(self, nodes: Collection[str]) -> VirtualClock:
        """A new clock, of the nodes with these names."""
        clock = VirtualClock(nodes)
        self.clocks.append(clock)
        self._regroup()
        return clock

    def discard_unused(self, in_use: Collection[VirtualClock]) -> None:
        """Remove the clocks that are not in use, and have no active jobs or no GPUs."""
        pairs = zip(self.clocks, self._node_sets, strict=True)
        self.clocks = [clock for clock, node_set in pairs if clock in in_use or (clock.active and node_set)]
        self._regroup()

    def rates(self) -> list[Bottleneck]:
        """By clock, the bottleneck of its jobs: their GPUs per weight are the speed of the clock's virtual time."""
        if len(self.clocks) == 1:  # as often as jobs arrive and end
            return [Bottleneck(sum(self._group_gpus.values()), self.clocks[0].weight + self.clocks[0].others)]
        weights: dict[NodeSet, float] = {}
        for clock, node_set in zip(self.clocks, self._node_sets, strict=True):
            if clock.weight + clock.others > 0:
                weights[node_set] = weights.get(node_set, 0.0) + clock.weight + clock.others
        found = max_min_bottlenecks(weights, self._group_gpus)
        return [found.get(node_set, IDLE) for node_set in self._node_sets]

    @property
    def next_end(self) -> float:
        """Unix seconds at which the next job ends if no other arrives; infinite if none ends."""
        return self._next_end(self.rates())[0]

    def advance(self, to: float) -> list[tuple[str, float]]:
        """Advance the system to a time (unix seconds); return the jobs that end by then with their ends, in order."""
        ended = []
        rates = self.rates()
        while (event := self._next_end(rates))[0] <= to and event[0] < math.inf:
            ends, index = event
            for i, clock in enumerate(self.clocks):
                if i != index:
                    self._run(clock, rates[i], ends - self.now)
            ended.append((self.clocks[index].end_first(), ends))
            self.now = ends
            rates = self.rates()
        if self.now < to < math.inf:
            for clock, rate in zip(self.clocks, rates, strict=True):
                self._run(clock, rate, to - self.now)
            self.now = to
        return ended

    def _run(self, clock: VirtualClock, rate: Bottleneck, seconds: float) -> None:
        clock.virtual += seconds * rate.gpus / rate.weight if rate.weight > 0 else 0.0

    def _next_end(self, rates: Sequence[Bottleneck]) -> tuple[float, int]:
        """The next end, unix seconds, and the index of its clock."""
        ends = [
            (self.now + clock.ahead * rate.weight / rate.gpus, i)
            for i, (clock, rate) in enumerate(zip(self.clocks, rates, strict=True))
            if clock.active and rate.gpus > 0
        ]
        return min(ends, default=(math.inf, 0))

    def _regroup(self) -> None:
        """Group the nodes by the clocks that they belong to, and by their GPUs."""
        membership: dict[str, int] = {}
        for i, clock in enumerate(self.clocks):
            for name in clock.nodes:
                if self.gpus.get(name):
                    membership[name] = membership.get(name, 0) | 1 << i
        groups: dict[tuple[int, float], list[str]] = {}
        for name in sorted(membership):
            groups.setdefault((membership[name], self.gpus[name]), []).append(name)
        self._groups = [(names, gpus) for (_, gpus), names in groups.items()]
        self._group_gpus = {1 << i: len(names) * amount for i, (names, amount) in enumerate(self._groups)}
        self._node_sets = [
            sum(1 << j for j, (members, _) in enumerate(groups) if members >> i & 1) for i in range(len(self.clocks))
        ]
