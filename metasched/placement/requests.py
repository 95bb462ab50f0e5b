"""The requests of a call of ``place``: grants, most important first, then fallbacks."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.core.model import Grant, Job, Placement, Snapshot


class RequestOrder:
    """The requests in their order, most important first.

    Attributes:
        grants: the grants, then the fallbacks.
        granted: the number of grants among them.
        rank: by uid, the position of the job's request in ``grants``.
        job: jobs by uid; a host may be replaced by the joint job of a pair.
    """

    def __init__(self, snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant]) -> None:
        self.grants = [*grants, *fallback]
        self.granted = len(grants)
        self.rank = {grant.uid: i for i, grant in enumerate(self.grants)}
        self.job = dict(snapshot.job)
        for grant in self.grants:
            if grant.max_nodes is not None:
                job = self.job[grant.uid]
                self.job[grant.uid] = job.evolve(max_nodes=min(grant.max_nodes, job.max_nodes or grant.max_nodes))

    def replace_request(self, job: Job, grant: Grant) -> None:
        """Replace a job and its request, for example by those of a pair."""
        self.job[grant.uid] = job
        self.grants[self.rank[grant.uid]] = grant


def least_gpus(grant: Grant) -> int:
    """The fewest GPUs that satisfy a grant."""
    return grant.gpus if grant.at_least is None else grant.at_least


def allowed_spreads(grant: Grant, job: Job, gpus: int) -> tuple[tuple[int, int], ...]:
    """Even spreads of a number of GPUs, as (nodes, GPUs per node); none of a number that the grant does not allow."""
    return job.spreads(gpus) if not grant.sizes or gpus in grant.sizes else ()


def satisfies(grant: Grant, place: Placement) -> bool:
    """Whether the grant allows a placement, by GPUs, GPU type and number of nodes."""
    if grant.exact is not None:
        return place == grant.exact
    if grant.gpu_type is not None and grant.gpu_type != place.gpu_type:
        return False
    if grant.max_nodes is not None and len(place.nodes) > grant.max_nodes:
        return False
    gpus = place.gpus
    if grant.sizes and gpus not in grant.sizes:
        return False
    return gpus == grant.gpus or least_gpus(grant) <= gpus <= grant.gpus
