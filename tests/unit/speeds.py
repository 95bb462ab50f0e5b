"""Jobs whose speed a policy knows, for the tests of policies that ask for it."""

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


def nodes(count=1, gpus=4, kind="v100"):
    return tuple(Node(f"{kind}-{i}", kind, gpus, 64, 1 << 40) for i in range(count))


def job(uid, gpus=1, low=None, high=None, *, left=None, **more):
    """A held job; ``left`` are its remaining steps."""
    low, high = gpus if low is None else low, gpus if high is None else high
    total = {} if left is None else {"total_steps": float(left), "progress_steps": 0.0}
    return Job(
        uid=uid,
        slurm_job_id=uid,
        name=uid,
        user=more.pop("user", "ann"),
        submitted=more.pop("submitted", 0.0),
        gpus=gpus,
        min_gpus=low,
        max_gpus=high,
        **total,
        **more,
    )


def running(one, *names, since=0.0):
    """The job on these nodes, its GPUs in equal parts."""
    place = Placement(names, one.gpus // len(names), "v100")
    return one.evolve(status=Status.RUNNING, placement=place, run=1, run_started=since)


def snapshot(jobs, the_nodes=None, now=0.0, **more):
    ordered = tuple(sorted(jobs, key=lambda one: (one.submitted, one.uid)))
    return Snapshot(now, 1, 60.0, the_nodes if the_nodes is not None else nodes(), ordered, **more)
