"""Trials before a run: what the daemon learns of sizes that the job never had."""

import pytest

from metasched.devcluster import NodeGroup
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site


@pytest.fixture
def one_node(make_cluster):
    """A Site on one node with four GPUs."""
    made = Site(make_cluster(groups=(NodeGroup(1, 4, "v100"),), job_submit=JOB_SUBMIT))
    yield made
    made.close()


def test_a_job_is_profiled_at_smaller_sizes_before_its_run(one_node):
    """The next job of the same model starts without profiling runs. The training's result is the same."""
    one_node.start()
    tag = "metasched min_gpus=1 max_gpus=4 model=net trials=yes"
    job, directory = one_node.train("--epochs 1 --step-seconds 0.02", "--gres=gpu:4", tag=tag)
    one_node.wait_status(job, "completed", 180)
    with one_node.store() as store:
        known = {record.spread for record in store.speeds()}
    assert {(1,), (2,)} <= known
    output = (directory / "out.txt").read_text()
    assert "no profiling run" not in output
    assert one_node.job(job).runs == 1
    again, directory = one_node.train("--epochs 1 --step-seconds 0.02", "--gres=gpu:4", tag=tag)
    one_node.wait_status(again, "completed", 180)
    lines = next((one_node.base / "shared" / "reports" / one_node.job(again).uid).glob("*.jsonl")).read_text()
    assert '"trial"' not in lines


def test_a_job_is_stopped_during_its_profiling_runs(one_node):
    """A stop does not wait for them, and the job runs again."""
    one_node.start()
    tag = "metasched min_gpus=1 max_gpus=4 trials=yes"
    job, directory = one_node.train("--epochs 1 --step-seconds 3", "--gres=gpu:4", tag=tag)
    one_node.wait_status(job, "running")
    one_node.wait(lambda: list(directory.glob("trained-*")))
    one_node.cluster.run("scontrol", "requeuehold", job)
    one_node.wait(lambda: (seen := one_node.job(job)) is not None and seen.runs >= 2)
