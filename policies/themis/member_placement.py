"""The GPUs of one app, divided among its members: gangs whole, runs undisturbed where that is possible.

Members get equally many GPUs as far as they can use them (``finish_time.even_counts``, as bids assume). A run is moved
or resized only if another member would wait otherwise, or if a larger gang gains a multiple of what the restart costs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from metasched.capacity.shapes import units_within
from metasched.core.model import Job, Node, Placement, Quota
from policies.themis.finish_time import even_counts

GAIN_OF_GROWTH = 2.0
"""A larger gang gains at least this times what the restart costs, before the first of the app's leases ends."""


class Member(NamedTuple):
    """One member of an app.

    Attributes:
        job: the job.
        work: its work left; the member with the most comes first.
        restart_seconds: the seconds of a restart.
    """

    job: Job
    work: float
    restart_seconds: float = 0.0

    def least_growth(self, seconds: float) -> float:
        """By which factor a gang must grow for a restart to be worth it; infinity where no factor is large enough.

        Args:
            seconds: how long the larger gang is sure to last.
        """
        if not self.restart_seconds:
            return 1.0
        trained = seconds - self.restart_seconds
        return 1.0 + GAIN_OF_GROWTH * self.restart_seconds / trained if trained > 0.0 else math.inf


RunsOn = Callable[[Job, str, tuple[int, ...]], bool]
"""Whether a job runs on GPUs of a type, given their number on each node, descending."""


def anywhere(job: Job, gpu_type: str, spread: tuple[int, ...]) -> bool:
    """Whether a job runs that is not known to be unable to: always."""
    del job, gpu_type, spread
    return True


class ClusterSpace:
    """What is free on the nodes that accept jobs, and what quotas leave."""

    def __init__(
        self, nodes: Iterable[Node], quotas: Sequence[Quota], *, uneven: bool, runs: RunsOn = anywhere
    ) -> None:
        """Begin with empty nodes.

        Args:
            nodes: all nodes; those that accept no jobs are left out.
            quotas: the quotas of the round.
            uneven: whether jobs may have other numbers of GPUs on each of their nodes.
            runs: whether a job runs on GPUs of a type in a spread.
        """
        self._uneven, self._runs = uneven, runs
        self._nodes = {node.name: node for node in nodes if node.gpu_type is not None and node.accepts}
        self._left = {name: [node.gpus, node.cpus, node.memory] for name, node in self._nodes.items()}
        self._quotas = [(quota, [quota.left]) for quota in quotas]

    def gpus(self) -> dict[str, int]:
        """Free GPUs by node; nodes without free GPUs are left out."""
        return {name: left[0] for name, left in self._left.items() if left[0] > 0}

    def take(self, job: Job, place: Placement) -> None:
        """Give a job a placement. More than there is may be taken by jobs that hold it already."""
        self._add(job, place, -1)

    def give_back(self, job: Job, place: Placement) -> None:
        """Undo ``take``, for a job that moves."""
        self._add(job, place, 1)

    def _add(self, job: Job, place: Placement, sign: int) -> None:
        for name, gpus in place.node_gpus:
            if (left := self._left.get(name)) is not None:
                left[0] += sign * gpus
                left[1] += sign * job.node_cpus(gpus)
                left[2] += sign * job.node_memory(gpus)
        for quota, rest in self._quotas:
            if job.uid in quota.members and quota.gpu_type in (None, place.gpu_type):
                rest[0] += sign * quota.use(place.gpus)

    def most_gpus(self, job: Job, gpu_type: str | None = None) -> int:
        """The most GPUs that quotas leave a job, at most its ``max_gpus``; of any type where none is named."""
        most = job.max_gpus
        for quota, rest in self._quotas:
            if job.uid in quota.members and (quota.gpu_type is None or quota.gpu_type == gpu_type):
                most = min(most, rest[0] if not quota.of_jobs else most if rest[0] > 0 else 0)
        return most

    def holds(self, job: Job, place: Placement, gpus: Mapping[str, int]) -> bool:
        """Whether a placement suits the job, within the given GPUs by node and all that is free."""
        if not self._runs(job, place.gpu_type or "", place.spread):
            return False
        if place.gpus > self.most_gpus(job, place.gpu_type) or not job.min_gpus <= place.gpus <= job.max_gpus:
            return False
        if job.nodes not in (None, len(place.nodes)) or (job.max_nodes or len(place.nodes)) < len(place.nodes):
            return False
        if job.gpu_types and place.gpu_type not in job.gpu_types:
            return False
        return all(count <= self._units(job, name, gpus) for name, count in place.node_gpus) and all(
            self._nodes[name].gpu_type == place.gpu_type for name in place.nodes
        )

    def find(self, job: Job, count: int, gpus: Mapping[str, int]) -> Placement | None:
        """A placement of so many GPUs, out of the given GPUs by node; None where there is none.

        On the fewest nodes, of one rack where possible; on nodes of the job's last placement, or else on those with the
        fewest free GPUs.
        """
        units: dict[str, dict[str, int]] = {}
        for name in gpus:
            if (most := self._units(job, name, gpus)) > 0:
                units.setdefault(self._nodes[name].gpu_type or "", {})[name] = most
        choices = [
            place
            for gpu_type, by_node in sorted(units.items())
            if count <= self.most_gpus(job, gpu_type)
            for place in self._of_type(job, count, gpu_type, by_node)
        ]
        return min(choices, key=lambda place: len(place.nodes), default=None)

    def _of_type(self, job: Job, count: int, gpu_type: str, units: Mapping[str, int]) -> Iterator[Placement]:
        """Placements on GPUs of one type: the one on the fewest nodes with equal counts, and perhaps an uneven one."""
        if sum(units.values()) < count:
            return
        last = job.latest_placement
        near = set(last.nodes) if last is not None else set()
        names = sorted(units, key=lambda name: (name not in near, units[name], name))
        for k, g in job.spreads(count):
            fitting = [name for name in names if units[name] >= g]
            if len(fitting) >= k and self._runs(job, gpu_type, (g,) * k):
                yield Placement(tuple(self._of_one_rack(fitting, k)), g, gpu_type)
                break
        if self._uneven and job.nodes is None:
            largest = sorted(names, key=lambda name: -units[name])
            found, left = {}, count
            for name in largest[: job.max_nodes]:
                found[name] = min(units[name], left)
                left -= found[name]
                if not left and self._runs(job, gpu_type, tuple(sorted(found.values(), reverse=True))):
                    yield Placement(tuple(found), max(found.values()), gpu_type, tuple(found.values()))
                if not left:
                    break

    def _of_one_rack(self, names: Sequence[str], k: int) -> Sequence[str]:
        """The first ``k`` nodes of the first rack that has as many, or else of all."""
        racks: dict[str | None, list[str]] = {}
        for name in names if k > 1 else ():
            racks.setdefault(self._nodes[name].rack, []).append(name)
        return next((found[:k] for found in racks.values() if len(found) >= k), names[:k])

    def _units(self, job: Job, name: str, gpus: Mapping[str, int]) -> int:
        """How many of the given GPUs on a node the job could have."""
        node, most = self._nodes.get(name), gpus.get(name, 0)
        if node is None or most < 1 or not job.matches(node):
            return 0
        free, cpus, memory = self._left[name]
        return units_within(job, min(most, free), max(cpus, 0), max(memory, 0))


def place_members(
    apps: Mapping[str, Sequence[Member]],
    gpus: Mapping[str, Mapping[str, int]],
    space: ClusterSpace,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, Placement]:
    """Divide each app's GPUs among its members, and take them in ``space``. Runs of all apps come first.

    Args:
        apps: the members of each app, in any order.
        gpus: the GPUs of each app by node; apps without GPUs are left out.
        space: what is free, the apps' GPUs included.
        seconds: how long an app has all of them; for ever where it is missing.

    Returns:
        The placement of each member that runs, by uid.
    """
    lasting = seconds or {}
    divisions = [
        _Division(apps[app], gpus[app], space, lasting.get(app, math.inf)) for app in sorted(gpus) if app in apps
    ]
    placed: dict[str, Placement] = {}
    for division in divisions:
        division.complete()
        placed |= division.placed
    return placed


class _Division:
    """A division of GPUs in the making.

    Attributes:
        placed: the placements so far, by uid.
        wanted: how many GPUs each member is to have in an even division; none for those that are to wait.
    """

    def __init__(self, members: Sequence[Member], gpus: Mapping[str, int], space: ClusterSpace, seconds: float) -> None:
        self._members = sorted(members, key=lambda one: (-one.work, one.job.submitted, one.job.uid))
        self._space = space
        self._seconds = seconds
        self._left = Counter(gpus)
        self.placed: dict[str, Placement] = {}
        runs = []
        for one in sorted(members, key=lambda one: -_present_gpus(one.job)):
            place = one.job.held_or_released
            if place is not None and space.holds(one.job, place, self._left):
                self._take(one.job, place)
                runs.append(one)
        self._running = {one.job.uid for one in runs}
        self.wanted = self._even(sum(gpus.values()))

    def _even(self, total: int) -> dict[str, int]:
        """The even division among as many members as fit, those that run first."""
        chosen, left = [], total
        for one in sorted(self._members, key=lambda one: one.job.uid not in self._running):
            if one.job.min_gpus <= min(left, self._space.most_gpus(one.job) + _present_gpus(one.job)):
                chosen.append(one)
                left -= one.job.min_gpus
        if not chosen:
            return {}
        least = [one.job.min_gpus for one in chosen]
        most = [max(min(one.job.max_gpus, total), one.job.min_gpus) for one in chosen]
        counts = even_counts([one.work for one in chosen], least, most, total)
        return {one.job.uid: count for one, count in zip(chosen, counts, strict=True)}

    def complete(self) -> None:
        """Start the members that wait, and enlarge gangs by what is left."""
        self._give_back_large_runs()
        self._start_waiting()
        for most in (self.wanted, {one.job.uid: one.job.max_gpus for one in self._members}):
            self._grow(most)

    def _give_back_large_runs(self) -> None:
        """Give back the runs that are too large, if another member would have to wait, or would have much less."""
        waiting = self._waiting()
        tolerated = 1 if sum(job.min_gpus for job in waiting) <= self._left.total() else 0
        for one in self._members if waiting else ():
            place = self.placed.get(one.job.uid)
            if place is not None and place.gpus > self.wanted.get(one.job.uid, 0) + tolerated:
                self._give_back(one.job)

    def _waiting(self) -> list[Job]:
        """The members that are to have GPUs, and are not placed."""
        return [one.job for one in self._members if one.job.uid in self.wanted and one.job.uid not in self.placed]

    def _start_waiting(self) -> None:
        """Place the members that do not run, on as many GPUs as they are to have, or on fewer."""
        for job in sorted(self._waiting(), key=lambda job: -self.wanted[job.uid]):
            self._place(job, self.wanted[job.uid], job.min_gpus)
        for one in self._members:
            if one.job.uid not in self.placed:
                self._place(one.job, one.job.min_gpus, one.job.min_gpus)

    def _grow(self, most: Mapping[str, int]) -> None:
        """Enlarge gangs by what is left, up to the given numbers."""
        for one in self._members:
            place = self.placed.get(one.job.uid)
            free = self._left.total()
            if place is None or not free or (limit := min(most.get(one.job.uid, 0), place.gpus + free)) <= place.gpus:
                continue
            least = place.gpus + 1
            if one.job.uid in self._running and place == one.job.held_or_released:
                growth = one.least_growth(self._seconds)
                if place.gpus * growth > limit:
                    continue
                least = max(least, math.ceil(place.gpus * growth))
            self._give_back(one.job)
            if not self._place(one.job, limit, least):
                self._take(one.job, place)

    def _place(self, job: Job, most: int, least: int) -> bool:
        """Place a job on as many GPUs as possible between two numbers; whether that was possible."""
        for count in range(min(most, self._left.total(), self._space.most_gpus(job)), least - 1, -1):
            place = self._space.find(job, count, self._left)
            if place is not None:
                self._take(job, place)
                return True
        return False

    def _take(self, job: Job, place: Placement) -> None:
        self._space.take(job, place)
        self._left.subtract(dict(place.node_gpus))
        self.placed[job.uid] = place

    def _give_back(self, job: Job) -> None:
        place = self.placed.pop(job.uid)
        self._space.give_back(job, place)
        self._left.update(dict(place.node_gpus))


def _present_gpus(job: Job) -> int:
    place = job.held_or_released
    return place.gpus if place is not None else 0
