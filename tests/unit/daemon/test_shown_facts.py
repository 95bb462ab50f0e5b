"""What the status shows of nodes, of the order of jobs, of stops, and of finish-time fairness, from a whole daemon."""

from dataclasses import replace

import pytest

from metasched.core.model import Placement
from metasched.daemon import status_publisher
from metasched.daemon.fairness_status import alone_and_left, most_gpus_of_a_node
from metasched.slurm.client import Reservation
from tests.builders import job, node
from tests.fakes.fake_slurm import FakeNode, FakeSlurm, Trainer
from tests.unit.site import FakeSite


@pytest.fixture
def site(tmp_path):
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"), FakeNode("n2"))), policy="srtf")
    yield site
    site.close()


def shown(site, slurm_job_id):
    """The published status of a job."""
    return next(one for one in site.status().jobs if one.slurm_job_id == slurm_job_id)


def test_the_gpus_of_a_node_are_ours_others_free_or_down(site):
    """They add up to all of the node's; the reader learns which job holds which."""
    ours = site.add("--gres=gpu:1", seconds=1000)
    site.slurm.add("--gres=gpu:2", user="other", trainer=Trainer(seconds=1000))
    site.run(15)
    nodes = site.status().nodes
    assert all(one.gpus_total == 4 == one.gpus_used + one.gpus_others + one.gpus_free + one.gpus_down for one in nodes)
    assert (sum(one.gpus_used for one in nodes), sum(one.gpus_others for one in nodes)) == (1, 2)
    assert [one.jobs for one in nodes if one.jobs] == [{shown(site, ours).uid: 1}]
    site.slurm.node_down("n2")
    site.run(3)
    down = next(one for one in site.status().nodes if one.name == "n2")
    assert (down.gpus_free, down.gpus_down) == (0, 4 - down.gpus_used - down.gpus_others)


def test_a_node_says_who_drained_it_and_until_when_it_is_reserved(site, monkeypatch):
    """As Slurm tells it; a reason without effect is not shown."""
    nodes = site.slurm.nodes
    facts = {"reason": "bad fan", "reason_by": "root", "reason_at": 1_700_000_000.0}
    monkeypatch.setattr(
        site.slurm, "nodes", lambda: tuple(replace(one, accepts=one.name != "n1", **facts) for one in nodes())
    )
    now = site.slurm.now
    monkeypatch.setattr(
        site.slurm, "reservations", lambda: (Reservation("course", now - 1, now + 500, frozenset({"n2"})),)
    )
    site.run(3)
    first, second = site.status().nodes
    assert (first.reason, first.drained_by, first.drained_at) == ("bad fan", "root", 1_700_000_000.0)
    assert (second.reservation, second.reserved_until, second.accepts) == ("course", now + 500, False)
    assert (first.reservation, first.reserved_until) == ("", None)


def test_waiting_jobs_have_places_in_the_policys_order(site):
    """Under shortest remaining time the shorter job is the next to start; a job that must not start has no place."""
    for _ in range(2):
        site.add("--gres=gpu:4", tag="preempt=no", seconds=1000)
    site.run(12)
    long = site.add("--gres=gpu:4", tag="total_steps=1000000", seconds=100)
    later = site.add("--gres=gpu:4", "--begin=now+10000", seconds=100)
    site.run(12)
    waiting = [(one.slurm_job_id, one.place) for one in site.status().jobs if one.place is not None]
    assert waiting == [(long, 1)]
    second = site.add("--gres=gpu:4", seconds=100)
    site.run(12)
    places = {one.slurm_job_id: one.place for one in site.status().jobs}
    assert sorted((places[long], places[second])) == [1, 2]
    assert places[later] is None
    assert [places[uid] for uid in places if uid not in {long, second, later}] == [None, None]


def test_a_stop_says_for_whom_it_was(tmp_path):
    """The run in the store has the successor's uid, also after a restart of the daemon, and so has the status."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    site.parameters = {"queue_thresholds_gpu_seconds": (100.0,)}
    site.start()
    first = site.add("--gres=gpu:4", seconds=100)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=100)
    site.run_until(lambda: site.slurm.trainer(second).starts)
    site.run(5)
    uid, successor = site.record(first).uid, site.record(second).uid
    (stopped,) = [run for run in site.store.runs(uid) if run.stop_requested is not None]
    assert stopped.stopped_for == (successor,)
    assert shown(site, first).stopped_for == (successor,)
    site.start()
    site.run(2)
    assert shown(site, first).stopped_for == (successor,)
    assert shown(site, second).stopped_for == ()
    site.close()


def test_rho_is_estimated_while_a_job_lives_and_final_at_its_end(site):
    """A job alone on the cluster is treated fairly, whatever its speed; the ended job has the final rho."""
    only = site.add("--gres=gpu:2", tag="total_steps=100", seconds=200)
    site.run(30)
    assert shown(site, only).rho is None
    uid = site.record(only).uid
    with site.store.transaction():
        site.store._write("UPDATE jobs SET progress_steps = 15 WHERE uid = ?", [uid])
    site.run_until(lambda: site.record(only).finished is not None)
    site.run(2)
    record = site.store.fairness(uid)
    (ended,) = site.status().finished
    assert record.rho["pollux"] == pytest.approx((record.finished - ended.submitted) / 200, rel=0.02)
    assert ended.rho == record.rho["pollux"]


class Speeds:
    """Speeds by GPU type and spread."""

    def __init__(self, **by_type):
        self._by_type = by_type

    def steps_per_second(self, gpu_type, spread):
        return self._by_type.get(gpu_type, {}).get(spread)


NODES = (node("n1", 4), node("n2", 4), node("n3", 8, gpu_type="a100"))


def test_the_time_alone_is_on_the_fewest_nodes_of_the_fastest_type():
    """Eight GPUs are two nodes of the one type and one node of the other."""
    speeds = Speeds(v100={(4, 4): 2.0, (2, 2, 2, 2): 9.0}, a100={(8,): 4.0, (4, 4): 9.0})
    most = most_gpus_of_a_node(NODES)
    found = alone_and_left(job(gpus=8, total_steps=1000, progress_steps=400, speed=speeds), most)
    assert found == (250.0, 150.0)
    only = job(gpus=8, total_steps=1000, progress_steps=400, speed=speeds, gpu_types=("v100",))
    assert alone_and_left(only, most) == (500.0, 300.0)


def test_a_running_job_is_left_with_its_present_speed():
    """And a job whose steps, speed or GPUs are not known has no estimate."""
    most = most_gpus_of_a_node(NODES)
    running = job(gpus=4, total_steps=100, speed=Speeds(v100={(4,): 2.0}), steps_per_second=1.0)
    running = running.evolve(status=type(running.status)("running"), placement=Placement(("n1",), 4, "v100"))
    assert alone_and_left(running, most) == (50.0, 100.0)
    for unknown in ({"total_steps": None}, {"speed": None}, {"speed": Speeds()}, {"gpus": 0}):
        assert alone_and_left(running.evolve(**unknown), most) is None


def test_long_polls_leave_publishing_to_later_ones_for_some_seconds(site, monkeypatch):
    """What is published is never much older than the last poll, however long polls take."""
    site.run(1)
    monkeypatch.setattr(status_publisher, "LONG_POLL_SECONDS", -1.0)
    first = site.status().published
    slurm_job_id = site.add("--gres=gpu:1", seconds=1000)
    site.run(1)
    assert site.status().published == first
    site.run(2 * status_publisher.LATEST_SECONDS)
    assert shown(site, slurm_job_id).uid
    assert site.slurm.now - site.status().published <= status_publisher.LATEST_SECONDS + 1
