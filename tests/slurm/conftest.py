"""Real Slurm clusters for tests."""

import os
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from metasched.devcluster import DevCluster, NodeGroup, Settings
from metasched.devcluster.errors import CommandError
from tests.slurm.site import Site

JOB_SUBMIT = Path(__file__).parents[2] / "slurm_scripts" / "job_submit.lua"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slurm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))  # the waits of a test, which have limits of their own, add up


def new_base():
    """A fresh directory with a name short enough for Unix sockets below it."""
    return Path(tempfile.mkdtemp(prefix="msched-"))


@pytest.fixture(scope="session")
def cluster():
    """The session's cluster: 4 nodes of 4 GPUs, tuned, with metasched's job_submit plugin. See also `clean_cluster`."""
    script = JOB_SUBMIT if JOB_SUBMIT.exists() else None
    with DevCluster.up(new_base(), job_submit=script, owner_pid=os.getpid()) as up:
        yield up


@pytest.fixture
def clean_cluster(cluster):
    """The session's cluster; afterwards its daemons run, its nodes are up and no job is left."""
    yield cluster
    restore(cluster)


@pytest.fixture
def make_cluster():
    """Makes the test's own clusters: `make_cluster(job_submit=..., **settings)`; all are down after the test."""
    with ExitStack() as stack:

        def make(job_submit=None, **settings):
            made = DevCluster.up(new_base(), Settings(**settings), job_submit=job_submit, owner_pid=os.getpid())
            return stack.enter_context(made)

        yield make


def restore(cluster):
    """Start dead daemons, cancel every job, and return nodes to service."""
    daemons = cluster.status()["daemons"]
    if daemons["slurmctld"] is None:
        cluster.start_controller()
    for node in cluster.nodes:
        if daemons[node] is None:
            cluster.start_node(node)
    deadline = time.monotonic() + 90
    while jobs := cluster.run("squeue", "-h", "-o", "%A").split():
        assert time.monotonic() < deadline, f"jobs do not end: {jobs}"
        # SIGKILL first, so that a job that is deaf to SIGTERM does not take KillWait seconds.
        for options in (["-s", "KILL"], []):
            with suppress(CommandError):
                cluster.run("scancel", *options, *jobs)
        time.sleep(0.1)
    for node, state in cluster.status()["nodes"].items():
        if state != "idle":
            with suppress(CommandError):
                cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    cluster.wait_nodes()


@pytest.fixture
def small_site(make_cluster):
    """A Site on a separate cluster of one node with 4 GPUs."""
    made = Site(make_cluster(groups=(NodeGroup(1, 4, "v100"),), job_submit=JOB_SUBMIT))
    yield made
    made.close()


@pytest.fixture
def one_gpu(make_cluster):
    """A Site on a separate cluster of one node with one GPU."""
    made = Site(make_cluster(groups=(NodeGroup(1, 1, "v100"),), job_submit=JOB_SUBMIT))
    yield made
    made.close()


@pytest.fixture
def site(clean_cluster):
    """The daemon's directories and helpers on the session's cluster; the test starts the daemon."""
    made = Site(clean_cluster)
    yield made
    made.close()
