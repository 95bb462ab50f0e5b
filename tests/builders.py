"""Records of the model for tests, with defaults for all fields."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.core.model import Job, Node, Placement, Snapshot, Status


@dataclass(frozen=True)
class ByGpus:
    """Steps per second by the number of GPUs; on other numbers it is not known."""

    known: tuple[tuple[int, float], ...]
    gpu_type: str = "v100"

    def steps_per_second(self, gpu_type, spread):
        return dict(self.known).get(sum(spread)) if gpu_type == self.gpu_type else None

    def steps_per_second_with(self, other, gpu_type, spread):
        return None


def linear(rate, most=64):
    """A speed proportional to the GPUs."""
    return ByGpus(tuple((n, rate * n) for n in range(1, most + 1)))


def job(uid="a", gpus=1, low=None, high=None, *, left=None, **fields):
    """A held job of Ann's; elastic from ``low`` to ``high`` GPUs, ``left`` steps from its end where they are given."""
    steps = {} if left is None else {"total_steps": float(left), "progress_steps": 0.0}
    request = {"uid": uid, "slurm_job_id": uid, "name": uid, "user": "ann", "submitted": 0.0, "gpus": gpus}
    sizes = {"min_gpus": gpus if low is None else low, "max_gpus": gpus if high is None else high}
    return Job(**request | sizes | steps | fields)


def running(one, *names, since=0.0):
    """The job, running on these nodes with its GPUs spread evenly."""
    place = Placement(names, one.gpus // len(names), "v100")
    return one.evolve(status=Status.RUNNING, placement=place, run=1, run_started=since)


def node(name="n1", gpus=4, gpu_type="v100", cpus=16, memory=64, **fields):
    """A node that accepts jobs; without GPUs it has no GPU type."""
    return Node(name, gpu_type if gpus else None, gpus, cpus, memory, **fields)


def nodes(count=1, gpus=4, kind="v100"):
    """Nodes of one GPU type, with more CPUs and memory than jobs need."""
    return tuple(node(f"{kind}-{i}", gpus, kind, 64, 1 << 40) for i in range(count))


def snapshot(jobs, the_nodes=None, now=0.0, **fields):
    """A round of 60 s, the jobs in the order of their submission."""
    ordered = tuple(sorted(jobs, key=lambda one: (one.submitted, one.uid)))
    return Snapshot(now, 1, 60.0, nodes() if the_nodes is None else tuple(the_nodes), ordered, **fields)
