"""Moves of running jobs to fewer nodes."""

import pytest

from metasched.core.model import Grant, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.core.reasons import Reason
from metasched.placement import place

SPREAD = Placement(("n1", "n2"), 1, "v100")
TIGHT = {"n3": 2}


class Slower:
    """A job that trains at 1 step/s on one node, and at half of that on more."""

    def steps_per_second(self, gpu_type, spread):
        return 1.0 if len(spread) == 1 else 0.5

    def steps_per_second_with(self, other, gpu_type, spread):
        return None


def job(**changes):
    values = {
        "uid": "a",
        "slurm_job_id": "1",
        "name": "train",
        "user": "ann",
        "submitted": 0.0,
        "gpus": 2,
        "min_gpus": 2,
        "max_gpus": 2,
        "status": Status.RUNNING,
        "placement": SPREAD,
        "speed": Slower(),
        "total_steps": 1000,
        "progress_steps": 0,
        "restart_seconds": 60.0,
    }
    return Job(**{**values, **changes})


def placed(jobs, free=2, **grant):
    nodes = tuple(
        Node(name, "v100", gpus, cpus=64, memory=2**40) for name, gpus in (("n1", 1), ("n2", 1), ("n3", free))
    )
    snapshot = Snapshot(now=0.0, round=1, nodes=nodes, jobs=tuple(jobs), round_seconds=60.0)
    grants = [Grant(each.uid, each.gpus, Reason.text(""), **grant) for each in jobs]
    return {uid: dict(where.node_gpus) for uid, where in place(snapshot, grants).placed.items()}


def test_a_job_moves_to_the_node_that_becomes_free():
    """A thousand seconds at half speed are lost on two nodes, and a restart costs 60 s."""
    assert placed([job()], consolidate=True) == {"a": TIGHT}


@pytest.mark.parametrize(
    "changes",
    [
        {"progress_steps": 900},  # 100 s are gained, not twice the 60 s of the restart
        {"total_steps": None, "ran_seconds": 200.0},
        {"restart_seconds": 600.0},
        {"speed": None},
        {"stop_requested": 1.0},
        {"preempt": Preempt.NO},
        {"nodes": 2},
        {"status": Status.QUEUED, "placement": None, "released": SPREAD},
    ],
)
def test_a_job_stays_where_a_move_does_not_pay(changes):
    """A job that gains too little, or cannot move, keeps its nodes."""
    assert placed([job(**changes)], consolidate=True) == {"a": {"n1": 1, "n2": 1}}


def test_a_job_stays_unless_its_grant_lets_it_move():
    """The policy decides whether its jobs move."""
    assert placed([job()]) == {"a": {"n1": 1, "n2": 1}}


def test_no_other_job_loses_its_place():
    """A move takes free GPUs only."""
    other = job(uid="b", slurm_job_id="2", gpus=1, min_gpus=1, max_gpus=1, placement=Placement(("n3",), 1, "v100"))
    assert placed([job(), other], consolidate=True) == {"a": {"n1": 1, "n2": 1}, "b": {"n3": 1}}
