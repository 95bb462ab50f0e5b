"""Who bids in a round of leases, and with which knowledge: each app's agent, made from its members and the offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from metasched.core.apps import App
from metasched.core.model import Job, Placement
from policies.themis.agent import Agent
from policies.themis.app_work import app_work
from policies.themis.lease_round import LeaseRound
from policies.themis.member_placement import ClusterSpace
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode


@dataclass(frozen=True)
class Bidder:
    """Members of one app that accept the same nodes. Usually these are all of its members.

    Attributes:
        name: the app's uid, with that of the first member where the app's members differ.
        app: the app.
        jobs: the members.
        kinds: the kinds of nodes that suit them.
    """

    name: str
    app: App
    jobs: tuple[Job, ...]
    kinds: frozenset[str]


def offer_of(found: LeaseRound, space: ClusterSpace) -> Offer:
    """What is free, as an offer."""
    free, nodes = space.gpus(), found.snapshot.node
    offered = (
        OfferedNode(name, kind, nodes[name].gpus, min(free[name], nodes[name].gpus), nodes[name].rack or "")
        for name, kind in found.kinds.of.items()
        if name in free
    )
    return Offer(tuple(offered), found.terms.slot_gpus)


def bidders_of(found: LeaseRound) -> Iterator[Bidder]:
    """The bidders of a round, whether they could use more GPUs or not."""
    apps = {app.uid: app for app in found.snapshot.apps}
    for uid, jobs in found.members.items():
        groups: dict[frozenset[str], list[Job]] = {}
        for job in jobs:
            groups.setdefault(found.kinds.suitable(job), []).append(job)
        for kinds, members in groups.items():
            name = uid if len(groups) == 1 else f"{uid} {members[0].uid}"
            yield Bidder(name, apps[uid], tuple(members), kinds)


def agent_of(
    found: LeaseRound, one: Bidder, placed: Mapping[str, Placement], space: ClusterSpace, offer: Offer
) -> Agent | None:
    """The agent of a bidder; None where the bidder can use no more of the GPUs on offer.

    Args:
        found: the round.
        one: the bidder.
        placed: the members that run on leases that hold, by uid.
        space: what is free beside them.
        offer: the same as an offer.
    """
    gpu_type, nodes = found.kinds.gpu_type, found.snapshot.node
    jobs = [capped for job in one.jobs if (capped := _within_quotas(job, placed, space, one, found)) is not None]
    has_types = {placed[job.uid].gpu_type or "" for job in jobs if job.uid in placed}
    kinds = frozenset(kind for kind in one.kinds if not has_types or gpu_type[kind] in has_types)
    on_offer = Counter[str]()
    for node in offer.nodes:
        if node.gpu_type in kinds:
            on_offer[node.gpu_type] += node.gpus
    if not on_offer.total():
        return None
    retained = Counter[str]()
    for job in jobs:
        if job.uid in placed:
            retained.update(dict(placed[job.uid].node_gpus))
    usable = sum(job.max_gpus for job in jobs)
    if usable <= retained.total():
        return None
    rates = found.rates[one.app.uid]
    work = app_work(
        one.app,
        jobs,
        rates,
        found.snapshot,
        slowdown=lambda job: found.slowdown(one.app.uid, job),
        sizes=found.sizes.of,
    )
    cluster = Counter[str]()
    for name, kind in found.kinds.of.items():
        if kind in one.kinds:
            cluster[kind] += nodes[name].gpus
    widest = max(kinds, key=lambda kind: (on_offer[kind], kind))
    return Agent(
        one.name,
        work,
        dict(cluster),
        speeds={kind: rates.speeds.get(gpu_type[kind], 1.0) for kind in one.kinds},
        retained=Bundle(widest, tuple(sorted(retained.values(), reverse=True))) if retained else NOTHING,
        held=_held(jobs, placed, offer, kinds),
        gpu_types=kinds,
        usable=usable,
    )


def _within_quotas(
    job: Job, placed: Mapping[str, Placement], space: ClusterSpace, one: Bidder, found: LeaseRound
) -> Job | None:
    """The job with no more GPUs than quotas leave it; None where they leave it too few."""
    more = max((space.most_gpus(job, found.kinds.gpu_type[kind]) for kind in one.kinds), default=0)
    has = placed[job.uid].gpus if job.uid in placed else 0
    most = min(job.max_gpus, has + max(more, 0))
    if most < job.min_gpus:
        return None
    return job if most == job.max_gpus else job.evolve(max_gpus=most)


def _held(jobs: list[Job], placed: Mapping[str, Placement], offer: Offer, kinds: frozenset[str]) -> dict[str, int]:
    """Of the GPUs on offer, those that jobs hold now, by node: of the kind of which they hold the most."""
    nodes = {node.name: node for node in offer.nodes if node.gpu_type in kinds}
    held = Counter[str]()
    for job in jobs:
        if job.uid not in placed and (place := job.held_or_released) is not None:
            held.update({name: gpus for name, gpus in place.node_gpus if name in nodes})
    found = {name: gpus for name, count in held.items() if (gpus := min(count, nodes[name].gpus))}
    by_kind = Counter[str]()
    for name, gpus in found.items():
        by_kind[nodes[name].gpu_type] += gpus
    most = max(by_kind, key=lambda kind: (by_kind[kind], kind), default="")
    return {name: gpus for name, gpus in found.items() if nodes[name].gpu_type == most}
