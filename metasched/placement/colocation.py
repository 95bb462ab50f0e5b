"""Two jobs on the same GPUs: how they are placed as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metasched.core.model import Grant, Job, Node, Status
from metasched.core.reasons import Code, Reason
from metasched.placement.requests import RequestOrder, least


@dataclass(frozen=True, slots=True)
class Pair:
    """A host and its guest, and what stands for both of them.

    Attributes:
        host, guest: the jobs.
        alone: the host's own grant.
        job: the host with the CPUs and memory of both, on nodes that suit both.
        grant: what both grants allow.
    """

    host: Job
    guest: Job
    alone: Grant
    job: Job
    grant: Grant

    @property
    def together(self) -> bool:
        """Whether they share GPUs already."""
        return are_together(self.host, self.guest)


def are_together(one: Job, other: Job) -> bool:
    """Whether two jobs hold the very same GPUs."""
    return one.co_runner == other.uid and one.placement is not None and one.placement == other.placement


def joined(host: Job, guest: Job, grant: Grant, guests: Grant, nodes: Sequence[Node]) -> Pair | None:
    """The pair; None where no place could suit both."""
    only = host.only_nodes
    if host.constraints != guest.constraints:
        only = frozenset(node.name for node in nodes if host.matches(node) and guest.matches(node))
        if not only:
            return None
    if host.nodes is not None and guest.nodes is not None and host.nodes != guest.nodes:
        return None
    job = host.evolve(
        cpus_per_unit=host.cpus_per_unit + guest.cpus_per_unit,
        memory_per_unit=host.memory_per_unit + guest.memory_per_unit,
        only_nodes=only,
        nodes=guest.nodes if host.nodes is None else host.nodes,
        max_nodes=min((most for most in (host.max_nodes, guest.max_nodes) if most is not None), default=None),
    )
    runs = next((each for each in (host, guest) if each.status is Status.RUNNING), None)
    if runs is not None and not are_together(host, guest):
        # One of them is there already: that is to the pair what the place of its release is to a queued job.
        job = job.evolve(status=Status.QUEUED, placement=None, released=runs.placement)
    both = replace(
        grant,
        at_least=max(least(grant), least(guests)),
        gpu_type=guests.gpu_type if grant.gpu_type is None else grant.gpu_type,
        exact=guests.exact if grant.exact is None else grant.exact,
    )
    return Pair(host, guest, grant, job, both)


class CoRunners:
    """Who is to share GPUs with whom.

    Attributes:
        pairs: by host.
        beside: by uid, the pinned job with whom it is to share.
        unpaired: guests without a host as yet, and why.
        guests: who has no place of its own to look for.
    """

    def __init__(self, order: RequestOrder, nodes: Sequence[Node]) -> None:
        self.pairs: dict[str, Pair] = {}
        self.beside: dict[str, str] = {}
        self.unpaired: dict[str, Reason] = {}
        for grant in order.grants:
            if grant.co_runner is not None:
                why = self._pair(order, nodes, order.job[grant.co_runner], order.job[grant.uid], grant)
                if why is not None:
                    self.unpaired[grant.uid] = why
        self.guests = {pair.guest.uid for pair in self.pairs.values()} | (self.unpaired.keys() - self.beside.keys())

    def _pair(self, order: RequestOrder, nodes: Sequence[Node], host: Job, guest: Job, grant: Grant) -> Reason | None:
        """Note that two jobs are to share GPUs, or say why they cannot."""
        if any(job.status is Status.SUSPENDED and not job.pinned for job in (host, guest)):
            return Reason.of(Code.CO_RUNNER_SUSPENDED, co_runner=host.slurm_job_id)
        if host.pinned and guest.pinned:
            fixed = Reason.of(Code.CO_RUNNER_FIXED, co_runner=host.slurm_job_id)
            return None if are_together(host, guest) else fixed
        pair = joined(host, guest, order.grants[order.rank[host.uid]], grant, nodes)
        if pair is None:
            return Reason.of(Code.NO_NODES_SUIT_PAIR, co_runner=host.slurm_job_id)
        if host.pinned:
            self.beside[guest.uid] = host.uid
            self.unpaired[guest.uid] = Reason.of(Code.NO_ROOM_WITH_CO_RUNNER, co_runner=host.slurm_job_id)
        elif guest.pinned:
            self.beside[host.uid] = guest.uid
        else:
            self.pairs[host.uid] = pair
            if pair.together or not host.active:
                order.stand_in(pair.job, pair.grant)
        return None
