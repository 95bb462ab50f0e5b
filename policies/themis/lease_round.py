"""One round of leases: the members that auctions serve, and where they run on what their apps have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from metasched.capacity.shapes import ClusterShapes
from metasched.core.apps import App
from metasched.core.model import Job, Placement, Snapshot
from metasched.core.retention import holds_unassignable_nodes, is_non_preemptible
from policies.themis.app_work import Rates
from policies.themis.auction import Payment
from policies.themis.finish_time import ClampedSlowdown
from policies.themis.job_slowdown import MeasuredSlowdowns
from policies.themis.leases import Leases
from policies.themis.member_placement import ClusterSpace, Member, place_members
from policies.themis.node_kinds import NodeKinds
from policies.themis.runnable_sizes import RunnableSizes


@dataclass(frozen=True)
class Terms:
    """What all auctions and leases have in common; see ``ThemisParameters``."""

    fairness: float
    lease_seconds: float
    payment: Payment
    restart_seconds: float
    slot_gpus: int
    most_partial: int
    seed: int

    def restart(self, job: Job) -> float:
        """Seconds that a restart of the job costs."""
        return self.restart_seconds if job.restart_seconds is None else job.restart_seconds


@dataclass(frozen=True, eq=False)
class LeaseRound:
    """A round's jobs and nodes, as auctions see them.

    Attributes:
        snapshot: the round.
        terms: the terms of auctions and leases.
        slowdowns: what apps' jobs were measured to lose over distance.
        waiting: uids of apps that are not admitted.
    """

    snapshot: Snapshot
    terms: Terms
    slowdowns: MeasuredSlowdowns
    waiting: frozenset[str] = field(default=frozenset())

    @cached_property
    def app_of(self) -> Mapping[str, App]:
        """The app of each job, by the job's uid."""
        return {uid: app for app in self.snapshot.apps for uid in app.members}

    @cached_property
    def fixed(self) -> Mapping[str, Placement]:
        """What jobs hold that is not taken from them, by uid: pinned ones, and those whose nodes accept no others."""
        found = {}
        for job in self.snapshot.jobs:
            place = job.placement
            if job.gpus and place is not None and self._is_fixed(job):
                found[job.uid] = place
        return found

    def _is_fixed(self, job: Job) -> bool:
        return is_non_preemptible(job) or (job.active and holds_unassignable_nodes(job, self.snapshot.node))

    @cached_property
    def members(self) -> Mapping[str, tuple[Job, ...]]:
        """The members of each admitted app that auctions can serve, by the app's uid."""
        found: dict[str, list[Job]] = {}
        for job in self.snapshot.jobs:
            if not job.gpus or job.uid in self.fixed or (app := self.app_of.get(job.uid)) is None:
                continue
            if app.uid not in self.waiting and self._could_run(job):
                found.setdefault(app.uid, []).append(job)
        return {uid: tuple(jobs) for uid, jobs in found.items()}

    @cached_property
    def _shapes(self) -> ClusterShapes:
        return ClusterShapes(self.snapshot.nodes, self.snapshot.jobs, uneven=self.snapshot.uneven)

    @cached_property
    def sizes(self) -> RunnableSizes:
        """The numbers of GPUs on which jobs run."""
        return RunnableSizes(self._shapes)

    def _could_run(self, job: Job) -> bool:
        """Whether the nodes that accept jobs could hold the job if they were empty."""
        shape = self._shapes.of(job)
        return any(
            shape.consolidated(gpu_type, gpus) is not None
            for gpu_type, units in shape.units.items()
            for gpus in range(job.min_gpus, min(job.max_gpus, sum(units)) + 1)
        )

    @cached_property
    def kinds(self) -> NodeKinds:
        """The nodes that accept jobs, in kinds."""
        return NodeKinds(self.snapshot.nodes, [job for jobs in self.members.values() for job in jobs])

    @cached_property
    def rates(self) -> Mapping[str, Rates]:
        """How fast each app's jobs are."""
        types = sorted({*self.kinds.gpu_type.values()})
        return {uid: Rates.of(jobs, types) for uid, jobs in self.members.items()}

    def place(self, leases: Leases) -> tuple[dict[str, Placement], ClusterSpace]:
        """The placements of all members on what their apps have by some leases, by uid; and what is left free."""
        space = ClusterSpace(
            self.snapshot.nodes, self.snapshot.quotas, uneven=self.snapshot.uneven, runs=self.sizes.runs
        )
        for uid, place in self.fixed.items():
            space.take(self.snapshot.job[uid], place)
        seconds = {app: ends - self.snapshot.now for app, ends in leases.first_ends.items()}
        return place_members(self._placed_members, leases.gpus, space, seconds), space

    @cached_property
    def _placed_members(self) -> Mapping[str, Sequence[Member]]:
        return {uid: [self._member(uid, job) for job in jobs] for uid, jobs in self.members.items()}

    def _member(self, app: str, job: Job) -> Member:
        steps, rates = job.remaining_steps, self.rates[app]
        seconds = rates.seconds_per_step(job)
        work = math.inf if steps is None else steps * (seconds or 1.0)
        return Member(job, work, self.terms.restart(job))

    def slowdown(self, app: str, job: Job) -> ClampedSlowdown:
        """The slowdown that an app's agent counts with for a job; one object for jobs that are alike."""
        key = app, id(job.speed), job.min_gpus, job.max_gpus, job.nodes, job.max_nodes
        if key not in self._slowdowns:
            self._slowdowns[key] = self.slowdowns.of(app, job, self.rates[app].reference)
        return self._slowdowns[key]

    @cached_property
    def _slowdowns(self) -> dict[object, ClampedSlowdown]:
        return {}

    def used(self, leases: Leases, placed: Mapping[str, Placement]) -> Leases:
        """The leases without what the apps' members do not use."""
        gpus: dict[str, Counter[str]] = {}
        for uid, place in placed.items():
            gpus.setdefault(self.app_of[uid].uid, Counter()).update(dict(place.node_gpus))
        return leases.used(gpus)
