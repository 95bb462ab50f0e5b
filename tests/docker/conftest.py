"""Tests on a Slurm cluster of several hosts in containers.

`make test-docker` starts it, runs them and ends it. On one that runs already (contrib/docker/cluster up 24.11), they
run with METASCHED_DOCKER=24.11.
"""

import os
import time
from pathlib import Path

import pytest

from tests.docker.site import ROOT, Site

HERE = Path(__file__).parent


def pytest_configure(config):
    config.addinivalue_line("markers", "docker: needs a Docker engine (make test-docker)")
    config.addinivalue_line("markers", "bounded: belongs to what CI runs of them (make test-docker SUBSET=bounded)")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.docker)
            if not os.environ.get("METASCHED_DOCKER"):
                item.add_marker(pytest.mark.skip(reason="make test-docker runs these: they need a Docker engine"))


@pytest.fixture(scope="session")
def cluster():
    """The running cluster (contrib/docker/cluster), with a training script in the shared volume."""
    made = Site(os.environ["METASCHED_DOCKER"])
    made.run("login", "tee", "/home/train.py", stdin=(ROOT / "tests" / "shim" / "train.py").read_bytes())
    return made


@pytest.fixture
def site(cluster):
    """The cluster at rest, under the policy of its configuration file; at rest again afterwards."""
    cluster.configure()
    yield cluster
    cluster.restore()


@pytest.fixture
def recovery(cluster, request):
    """Measures a recovery: call it at the fault; call its result, with the name of the awaited event, at that event."""

    def broken():
        begun = time.monotonic()

        def whole(what):
            seconds = time.monotonic() - begun
            RECOVERIES.append((request.node.name, what, seconds))

        return whole

    return broken


RECOVERIES: list[tuple[str, str, float]] = []


def pytest_terminal_summary(terminalreporter):
    if RECOVERIES:
        terminalreporter.section(f"seconds to recover, Slurm {os.environ.get('METASCHED_DOCKER')}")
        for name, what, seconds in RECOVERIES:
            terminalreporter.write_line(f"{seconds:7.1f}  {name}: {what}")
