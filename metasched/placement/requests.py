"""What is asked for: grants, most important first."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.core.model import Grant, Job, Placement, Snapshot


class RequestOrder:
    """Who is to be placed, most important first.

    Attributes:
        grants: the grants, then the fallback.
        granted: how many of them are grants.
        rank: by uid, which of them is the job's.
        job: by uid; hosts may stand for themselves and their guests.
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

    def stand_in(self, job: Job, grant: Grant) -> None:
        """From here on this is what the job is, and is to have."""
        self.job[grant.uid] = job
        self.grants[self.rank[grant.uid]] = grant


def least(grant: Grant) -> int:
    """The fewest GPUs that a grant allows."""
    return grant.gpus if grant.at_least is None else grant.at_least


def answers(grant: Grant, place: Placement) -> bool:
    """Whether holding that place is one of the things that the grant allows."""
    if grant.exact is not None:
        return place == grant.exact
    if grant.gpu_type is not None and grant.gpu_type != place.gpu_type:
        return False
    if grant.max_nodes is not None and len(place.nodes) > grant.max_nodes:
        return False
    gpus = place.gpus
    return gpus == grant.gpus or least(grant) <= gpus <= grant.gpus
