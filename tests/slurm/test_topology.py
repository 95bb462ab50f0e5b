"""Racks on a real cluster: Slurm's leaf switches decide where a job of several nodes runs."""

import pytest

from metasched.devcluster import NodeGroup
from metasched.slurm.command_line_client import CommandLineClient
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site


@pytest.mark.parametrize(
    ("nodes_per_switch", "racks", "expected"),
    [
        (2, {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}, ["n1", "n2"]),
        (None, {}, ["n1", "n3"]),
    ],
)
def test_a_job_of_two_nodes_runs_on_one_switch(make_cluster, nodes_per_switch, racks, expected):
    """Other jobs hold half of n1 and n3: without switches, best fit fills up these two."""
    cluster = make_cluster(groups=(NodeGroup(4, 4, "v100"),), job_submit=JOB_SUBMIT, nodes_per_switch=nodes_per_switch)
    client, site = CommandLineClient(cluster.env), Site(cluster)
    try:
        assert client.racks() == racks
        for name in ("n1", "n3"):
            site.submit("sleep 600", "--gres=gpu:2", "-w", name, tag=None)
        site.wait(lambda: [job.state.value for job in client.jobs()] == ["RUNNING"] * 2)
        site.start()
        site.wait(site.status)
        job = site.submit("sleep 600", "-N2", "--gres=gpu:2", tag="metasched preempt=no")
        site.wait_status(job, "running")
        assert sorted(next(found.allocated for found in client.jobs() if found.slurm_job_id == job)) == expected
    finally:
        client.close()
        site.close()
