"""What the published status shows of nodes. Pure."""

from __future__ import annotations

from collections import Counter

from metasched.daemon.cluster_state import ClusterState
from metasched.shared_dir.published_status import NodeStatus


def node_statuses(state: ClusterState) -> tuple[NodeStatus, ...]:
    """The published status of the nodes; GPUs that two jobs share count once."""
    used: Counter[str] = Counter()
    for job in state.holding:
        second = job.co_runner is not None and job.co_runner < job.uid and job.co_runner in state.jobs
        if job.placement is not None and not second:
            used.update(dict(job.placement.node_gpus))
    found = []
    for node in state.snapshot.nodes:
        slurm, leaked, ours = state.slurm_nodes[node.name], state.leaked.get(node.name, 0), used[node.name]
        total, rest = sum(slurm.gpus.values()), max(0, node.gpus - ours)
        ruling = state.reservations.ruling(node.name)
        given = slurm.reason if not node.accepts else ""
        found.append(
            NodeStatus(
                name=node.name,
                gpu_type=node.gpu_type,
                gpus=node.gpus,
                gpus_used=ours,
                accepts=node.accepts,
                reason=given,
                gpus_leaked=leaked,
                gpus_total=total,
                gpus_others=max(0, total - node.gpus - leaked),
                gpus_free=rest if node.accepts else 0,
                gpus_down=0 if node.accepts else rest,
                drained_by=slurm.reason_by if given else "",
                drained_at=slurm.reason_at if given else None,
                reservation="" if ruling is None else ruling.name,
                reserved_until=None if ruling is None else ruling.end,
            )
        )
    return tuple(found)
