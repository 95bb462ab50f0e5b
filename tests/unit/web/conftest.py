"""A small site: its status, and a client for each user."""

import contextlib
import socket
import time
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from starlette.testclient import TestClient

from metasched.shared_dir import published_status
from metasched.shared_dir.published_status import JobStatus, NodeStatus, Status
from metasched.web.application import create_application
from metasched.web.settings import WebSettings

HEADER = "X-Remote-User"
JOB = JobStatus(
    uid="u1",
    slurm_job_id="101",
    name="bert",
    user="ann",
    account="vision",
    status="running",
    gpus=4,
    min_gpus=4,
    max_gpus=4,
    preempt="requeue",
    reason="least attained service",
    nodes={"n1": 4},
    gpu_type="a100",
    submitted=1000.0,
    run_started=2000.0,
    runs=1,
    preemptions=0,
    attained_service=4000.0,
    ran_seconds=1000.0,
    waited_seconds=60.0,
    progress_steps=500.0,
    total_steps=1000,
    steps_per_second=2.5,
    loss=0.125,
    world_sizes=(4,),
)
WAITING = changed(
    JOB,
    uid="u2",
    slurm_job_id="102",
    name="gpt",
    user="bob",
    account="text",
    status="held",
    reason="needs 8 GPUs; 4 are free",
    nodes={},
    run_started=None,
    runs=0,
    ran_seconds=0.0,
    progress_steps=None,
    steps_per_second=None,
    loss=None,
    world_sizes=(),
)
NODES = (
    NodeStatus("n1", "a100", 8, 4, accepts=True),
    NodeStatus("n2", "a100", 8, 0, accepts=False, reason="fan broken"),
)


def listens(path):
    """Whether a page listens on a Unix socket; its path exists before, and after the page was killed."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def make_status(jobs=(JOB, WAITING), nodes=NODES, **changes):
    """A status that was published just now."""
    given = {
        "published": time.time(),
        "poll_seconds": 2.0,
        "cluster": "test",
        "host": "head",
        "pid": 1,
        "policy": "las",
        "round": 7,
        "round_at": time.time() - 10,
        "next_round": time.time() + 50,
        "slurm": "ok",
        "nodes": nodes,
        "jobs": jobs,
    }
    return Status(**given | changes)


class SiteUnderTest:
    """A web page on a directory of its own."""

    def __init__(self, directory, clients):
        self._clients = clients
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.settings = WebSettings(
            self.shared,
            directory / "metasched.db",
            trusts_header=True,
            admins=("root",),
            coordinators={"text": ("cho",)},
        )

    def publish(self, **changes):
        published_status.publish(self.shared, make_status(**changes))

    def client(self, user="ann", **settings):
        made = TestClient(create_application(replace(self.settings, **settings)), raise_server_exceptions=False)
        if user is not None:
            made.headers[HEADER] = user
        return self._clients.enter_context(made)  # one event loop for all requests


@pytest.fixture
def site(tmp_path):
    with contextlib.ExitStack() as clients:
        yield SiteUnderTest(tmp_path, clients)
