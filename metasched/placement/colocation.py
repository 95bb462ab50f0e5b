"""Pairs of jobs that are to share GPUs: how a pair is placed as one job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metasched.core.model import Grant, Job, Node, Status
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_pinned
from metasched.placement.requests import RequestOrder, least_gpus


@dataclass(frozen=True, slots=True)
class Pair:
    """A host, its guest, and the joint request that stands for both.

    Attributes:
        host: the job that is granted first.
        guest: the job that gets the same GPUs.
        host_grant: the host's own grant.
        joint_job: the host with the CPUs and memory of both jobs, on nodes that suit both.
        joint_grant: the GPUs and types that both grants allow.
    """

    host: Job
    guest: Job
    host_grant: Grant
    joint_job: Job
    joint_grant: Grant


def are_colocated(one: Job, other: Job) -> bool:
    """Whether two jobs hold the same GPUs now, as co-runners."""
    return one.co_runner == other.uid and one.placement is not None and one.placement == other.placement


def joint_request(host: Job, guest: Job, host_grant: Grant, guest_grant: Grant, nodes: Sequence[Node]) -> Pair | None:
    """The pair with its joint request; None where no placement could suit both jobs."""
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
    if not are_colocated(host, guest):
        running = next((each for each in (host, guest) if each.status is Status.RUNNING), None)
        if running is not None:
            # The nodes of the running job are preferred for the pair, as those of its release are for a queued job.
            job = job.evolve(status=Status.QUEUED, placement=None, released=running.placement)
    least = max(least_gpus(host_grant), least_gpus(guest_grant))
    gpu_type = guest_grant.gpu_type if host_grant.gpu_type is None else host_grant.gpu_type
    exact = guest_grant.exact if host_grant.exact is None else host_grant.exact
    joint_grant = host_grant
    if (least, gpu_type, exact) != (least_gpus(host_grant), host_grant.gpu_type, host_grant.exact):
        joint_grant = replace(host_grant, at_least=least, gpu_type=gpu_type, exact=exact)
    return Pair(host, guest, host_grant, job, joint_grant)


class CoRunnerPairs:
    """The pairs of jobs that the grants ask to be co-runners.

    Attributes:
        pairs: pairs of which neither job is pinned, by the host's uid.
        pinned_hosts: by uid of a job, the uid of the pinned job whose GPUs it is to share.
        unpaired: by uid of a guest, the reason if it does not get its host's GPUs.
        guests: uids of the jobs for which no nodes are searched, because they can only get their host's.
    """

    def __init__(self, order: RequestOrder, nodes: Sequence[Node]) -> None:
        self.pairs: dict[str, Pair] = {}
        self.pinned_hosts: dict[str, str] = {}
        self.unpaired: dict[str, Reason] = {}
        for grant in order.grants:
            if grant.co_runner is not None:
                why = self._pair(order, nodes, order.job[grant.co_runner], order.job[grant.uid], grant)
                if why is not None:
                    self.unpaired[grant.uid] = why
        self.guests = {pair.guest.uid for pair in self.pairs.values()} | (
            self.unpaired.keys() - self.pinned_hosts.keys()
        )

    def _pair(self, order: RequestOrder, nodes: Sequence[Node], host: Job, guest: Job, grant: Grant) -> Reason | None:
        """Record that two jobs are to share GPUs; return why they cannot, or None."""
        if any(job.status is Status.SUSPENDED and not is_pinned(job) for job in (host, guest)):
            return Reason.of(Code.CO_RUNNER_SUSPENDED, co_runner=host.slurm_job_id)
        if is_pinned(host) and is_pinned(guest):
            pinned = Reason.of(Code.CO_RUNNER_FIXED, co_runner=host.slurm_job_id)
            return None if are_colocated(host, guest) else pinned
        pair = joint_request(host, guest, order.grants[order.rank[host.uid]], grant, nodes)
        if pair is None:
            return Reason.of(Code.NO_NODES_SUIT_PAIR, co_runner=host.slurm_job_id)
        if is_pinned(host):
            self.pinned_hosts[guest.uid] = host.uid
            self.unpaired[guest.uid] = Reason.of(Code.DOES_NOT_FIT_WITH_CO_RUNNER, co_runner=host.slurm_job_id)
        elif is_pinned(guest):
            self.pinned_hosts[host.uid] = guest.uid
        else:
            self.pairs[host.uid] = pair
            if are_colocated(host, guest) or not host.active:
                order.replace_request(pair.joint_job, pair.joint_grant)
        return None
