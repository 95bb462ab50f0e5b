"""Reservations and drained nodes on a real cluster: who starts where, and who stays."""

import getpass
import time
from contextlib import suppress

import pytest

from metasched.devcluster.errors import CommandError


@pytest.fixture
def reserve(site):
    """Reserves nodes for metasched's jobs; all reservations are gone after the test."""
    made = []

    def reserve(name, nodes, *, begins=0, flags=""):
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + begins)) if begins else "now"
        words = [f"ReservationName={name}", f"StartTime={start}", "Duration=10", f"Nodes={nodes}"]
        words += [f"Users={getpass.getuser()}", *([f"Flags={flags}"] if flags else [])]
        site.cluster.run("scontrol", "create", "reservation", *words)
        made.append(name)

    yield reserve
    if site.daemon is not None:
        site.kill()
    for name in made:

        def deleted(name=name):
            if f"ReservationName={name} " not in site.cluster.run("scontrol", "show", "reservation"):
                return True
            with suppress(CommandError):
                site.cluster.run("scancel", "-s", "KILL", "-u", getpass.getuser())
                site.cluster.run("scancel", "-u", getpass.getuser())
                site.cluster.run("scontrol", "delete", f"reservation={name}")
            return False

        site.wait(deleted)


def nodes_of(site, slurm_job_id):
    return set(site.wait_status(slurm_job_id, "running").nodes)


def test_jobs_start_where_reservations_allow(site, reserve):
    """Jobs of a reservation start on its nodes only; others on no node that is reserved within their time limit."""
    reserve("mine", "n1")
    reserve("maintenance", "n2", begins=3600, flags="MAINT")
    site.start()
    member = site.submit("exec sleep 600", "--gres=gpu:2", "--reservation=mine")
    long = [site.submit("exec sleep 600", "--gres=gpu:4") for _ in range(2)]
    short = site.submit("exec sleep 600", "--gres=gpu:4", "--time=30")
    assert [nodes_of(site, one) for one in (member, short)] == [{"n1"}, {"n2"}]
    assert nodes_of(site, long[0]) | nodes_of(site, long[1]) == {"n3", "n4"}
    waits = site.submit("exec sleep 600", "--gres=gpu:1")
    site.wait(lambda: "reservation begins before its time limit" in getattr(site.job(waits), "reason", ""))
    again = site.submit("exec sleep 600", "--gres=gpu:2", "--reservation=mine")
    assert nodes_of(site, again) == {"n1"}
    assert {site.job(one).runs for one in (member, *long, short)} == {1}


def test_a_job_that_runs_where_a_reservation_begins_stays(site, reserve):
    """Its node gets no other job until the reservation is gone."""
    first = site.submit("exec sleep 600", "--gres=gpu:2", "-w", "n1")
    site.start()
    site.wait_status(first, "running")
    reserve("mine", "n1", flags="IGNORE_JOBS")
    site.wait(lambda: not next(node for node in site.status().nodes if node.name == "n1").accepts)
    second = site.submit("exec sleep 600", "--gres=gpu:2", "-w", "n1")
    site.wait(lambda: (job := site.job(second)) is not None and "accept" in job.reason)
    site.cluster.run("scontrol", "delete", "reservation=mine")
    assert nodes_of(site, second) == {"n1"}
    assert site.job(first).runs == 1


def test_a_drained_node_gets_no_jobs_until_it_is_back(site):
    """Jobs that run on the node continue."""
    first = site.submit("exec sleep 600", "--gres=gpu:2", "-w", "n1")
    site.start()
    site.wait_status(first, "running")
    site.cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    second = site.submit("exec sleep 600", "--gres=gpu:2", "-w", "n1")
    site.wait(lambda: (job := site.job(second)) is not None and "accept" in job.reason)
    assert site.job(first).status == "running"
    site.cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    assert nodes_of(site, second) == {"n1"}
    assert site.job(first).runs == 1
