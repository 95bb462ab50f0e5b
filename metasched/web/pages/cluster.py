"""The page Cluster: every node with its GPUs, the jobs that hold them, and why a node takes no jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.shared_dir.published_status import JobStatus, NodeStatus, Status
from metasched.slurm.hostlist import compress
from metasched.web import query
from metasched.web.access import Viewer
from metasched.web.site import API, Page, View, json_response, site_of, wants_fragment
from metasched.web.text import tone

GROUPED_NODES = 64
"""Number of nodes from which alike ones are shown as one group."""
GROUPS = 256
"""Groups of nodes on one page at most."""
FREE, DOWN, OURS, PRIVATE, OTHERS, LEAKED = "free", "down", "job", "private", "others", "leaked"
"""Uses of GPUs: free, out of service, held by a job, by a job that the viewer may not see, by a job that metasched does
not schedule, and counted by Slurm as allocated although no job holds them."""
_FITTING = 4  # characters that fit above one GPU
USES = (OURS, PRIVATE, OTHERS, FREE, DOWN, LEAKED)


@dataclass(frozen=True, slots=True)
class Segment:
    """GPUs of a node that have one use.

    Attributes:
        use: one of ``USES``.
        gpus: number of GPUs.
        uid: the job's uid; None where no job that the viewer may see holds them.
        slurm_job_id: the job's Slurm job id, likewise.
        name: the job's name, likewise.
        user: the job's owner, likewise.
        shared: whether another job is on the same GPUs.
    """

    use: str
    gpus: int
    uid: str | None = None
    slurm_job_id: str | None = None
    name: str | None = None
    user: str | None = None
    shared: bool = False

    @property
    def label(self) -> str:
        """The Slurm job id as it fits: on a single GPU its last digits, where it is long."""
        text = self.slurm_job_id or ""
        return f"…{text[-_FITTING + 1 :]}" if self.gpus == 1 and len(text) > _FITTING else text

    @property
    def tone(self) -> int:
        """The colour of the job, 0 to 7."""
        return tone(self.uid or "")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike: the same GPUs, held by the same jobs, with the same note.

    Attributes:
        names: the nodes' names.
        gpu_type: their GPU type; None if not known.
        gpus: GPUs of each node.
        accepts: whether the nodes take jobs.
        reason: why they take none, in words; "" for no reason.
        drained_by: the Unix user who took them out of service; "" if not known.
        reservation: the reservation that rules them now; "" for none.
        reserved_until: its end, unix seconds; None if not known.
        segments: uses of a node's GPUs, jobs first.
    """

    names: tuple[str, ...]
    gpu_type: str | None
    gpus: int
    accepts: bool
    reason: str
    drained_by: str
    reservation: str
    reserved_until: float | None
    segments: tuple[Segment, ...]

    @property
    def label(self) -> str:
        """The names as Slurm's host list."""
        return compress(self.names)


def groups_of(status: Status, viewer: Viewer) -> list[NodeGroup]:
    """The nodes in the order of the status; many nodes are grouped where they are alike. Pure."""
    held: dict[str, list[JobStatus]] = {}
    for job in status.jobs:
        for node in job.nodes:
            held.setdefault(node, []).append(job)
    each = [_single(node, held.get(node.name, ()), viewer) for node in status.nodes]
    if len(each) < GROUPED_NODES:
        return each
    together: dict[NodeGroup, list[str]] = {}
    for group in each:
        together.setdefault(replace(group, names=()), []).extend(group.names)
    return [replace(alike, names=tuple(names)) for alike, names in together.items()]


def _single(node: NodeStatus, jobs: Sequence[JobStatus], viewer: Viewer) -> NodeGroup:
    return NodeGroup(
        names=(node.name,),
        gpu_type=node.gpu_type,
        gpus=max(node.gpus_total, node.gpus),
        accepts=node.accepts,
        reason=node.reason,
        drained_by=node.drained_by,
        reservation=node.reservation,
        reserved_until=node.reserved_until,
        segments=tuple(_segments(node, jobs, viewer)),
    )


def _segments(node: NodeStatus, jobs: Sequence[JobStatus], viewer: Viewer) -> Iterable[Segment]:
    left = max(node.gpus_total, node.gpus)
    shown: set[str] = set()
    held = hidden = 0
    for job in sorted(jobs, key=lambda job: job.uid):
        gpus = min(job.nodes[node.name], left - held)
        if job.slurm_job_id in shown or gpus <= 0:  # its co-runner is there already
            continue
        held += gpus
        if job.co_runner is not None:
            shown.add(job.co_runner)
        if viewer.may_see(job):
            yield Segment(OURS, gpus, job.uid, job.slurm_job_id, job.name, job.user, job.co_runner is not None)
        else:
            hidden += gpus
    hidden += max(0, node.gpus_used - held)  # of jobs that the page itself may not read
    left -= max(held, node.gpus_used)
    uses = {PRIVATE: hidden, OTHERS: min(node.gpus_others, max(left, 0))}
    left -= uses[OTHERS]
    uses[LEAKED] = min(node.gpus_leaked, max(left, 0))
    uses[FREE if node.accepts else DOWN] = left - uses[LEAKED]
    for use, gpus in uses.items():
        if gpus > 0:
            yield Segment(use, gpus)


def totals(groups: Iterable[NodeGroup]) -> Mapping[str, int]:
    """Number of GPUs by use, over all nodes."""
    found: Counter[str] = Counter(dict.fromkeys(USES, 0))
    for group in groups:
        for segment in group.segments:
            found[segment.use] += segment.gpus * len(group.names)
    return found


def _groups(view: View) -> list[NodeGroup]:
    return groups_of(view.status, view.viewer) if view.status else []


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    groups = _groups(view)
    shown, page, pages = query.page_of(groups, query.number(request, "page", 1), GROUPS)
    by_type = [
        (gpu_type, list(members))
        for gpu_type, members in groupby(sorted(shown, key=lambda group: group.gpu_type or ""), _type_of)
    ]
    counted = totals(groups)
    template = "cluster_grid.html" if wants_fragment(request) else "cluster.html"
    return site.render(
        request,
        template,
        view,
        by_type=by_type,
        totals=counted,
        gpus=sum(counted.values()),
        nodes=sum(len(group.names) for group in groups),
        page=page,
        pages=pages,
    )


def _type_of(group: NodeGroup) -> str | None:
    return group.gpu_type


def _json(request: Request) -> Response:
    view = site_of(request).view(request)
    groups = _groups(view)
    status = view.status
    return json_response(
        request,
        "cluster",
        {
            "published": status.published if status else None,
            "problem": view.warning,
            "cluster": status.cluster if status else None,
            "policy": status.policy if status else None,
            "round": status.round if status else None,
            "next_round": status.next_round if status else None,
            "gpus": dict(totals(groups)),
            "nodes": [asdict(group) for group in groups],
        },
    )


PAGE = Page(
    routes=[Route("/", _page, name="cluster"), Route(f"{API}/cluster", _json)], label="Cluster", path="/", order=10
)
