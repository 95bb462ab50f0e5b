"""Ports for the processes that a test starts, which listen on them some seconds later."""

import os

from metasched.devcluster.ports import Ports

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def free_ports(count):
    """So many free ports that neither an outgoing connection nor another of pytest's workers takes."""
    with Ports(count * WORKERS) as ports:
        return tuple(port for port in ports.numbers if port % WORKERS == WORKER)


def free_port():
    """One of them."""
    return free_ports(1)[0]
