"""Reservations: which jobs may start on which nodes, computed, placed, and under the daemon on a fake Slurm."""

from math import inf

import pytest

from metasched.core import reason_words
from metasched.core.model import Grant, Node, Placement, Snapshot, Status
from metasched.core.policy import installed_policies
from metasched.core.reasons import Reason
from metasched.observe.reservations import Reservations
from metasched.placement import place
from metasched.scheduling.engine import run_round
from metasched.slurm.client import JobState, Reservation
from policies.baselines.fifo import Fifo, FifoParameters
from tests import builders
from tests.builders import node
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import ME, FakeSite

NOW = 1000.0


def reserved(name, nodes="n1", begins=-10, lasts=500, **more):
    return Reservation(name, NOW + begins, NOW + begins + lasts, frozenset(nodes.split(",")) - {""}, **more)


def job(uid, gpus=4, **more):
    return builders.job(uid, gpus, **more)


def asking(reservation, time_limit=None):
    """A job of Ann's as Slurm shows it."""
    slurm = FakeSlurm()
    options = [f"--reservation={reservation}"] if reservation else []
    options += [f"--time={time_limit}"] if time_limit else []
    return slurm.job(slurm.add(*options, user="ann"))


@pytest.mark.parametrize(
    ("listed", "holder", "open_seconds"),
    [
        ([], "", None),
        ([reserved("past", begins=-100, lasts=50)], "", None),
        ([reserved("other", "n2")], "", None),
        ([reserved("a")], "a", None),
        ([reserved("a", begins=60)], "", 60.0),
        ([reserved("a"), reserved("b", begins=60)], "a", 60.0),
        ([reserved("a"), reserved("m", flags=frozenset({"MAINT"}))], "m", None),
        (
            [reserved("m", flags=frozenset({"MAINT"})), reserved("z", begins=60, flags=frozenset({"OVERLAP"}))],
            "m",
            None,
        ),
        ([reserved("o", flags=frozenset({"OVERLAP"})), reserved("m", begins=9, flags=frozenset({"MAINT"}))], "o", 9.0),
    ],
)
def test_the_reservation_of_the_highest_rank_rules_a_node(listed, holder, open_seconds):
    """Maintenance ranks before overlapping reservations, and these before others; upcoming ones limit the open time."""
    found = Reservations(listed, NOW).on(node(), {"", "a", "b", "m", "o"}, reserved=bool(holder))
    assert (found.reservation, found.open_seconds, found.accepts) == (holder, open_seconds, True)


def test_a_node_of_an_unasked_or_unknown_reservation_accepts_no_job():
    """So policies do not count its GPUs."""
    assert not Reservations([reserved("a")], NOW).on(node(), {"", "b"}, reserved=True).accepts
    assert not Reservations([], NOW).on(node(), {""}, reserved=True).accepts
    assert Reservations([reserved("a")], NOW).on(node(), {"b,a"}, reserved=True).accepts


@pytest.mark.parametrize(
    ("asks", "allowed", "why"),
    [
        ("", "", None),
        ("now", "now", None),
        ("later", "later", "has not begun"),
        ("gone", "gone", "is over"),
        ("bens", "bens", "does not admit user ann"),
        ("barred", "barred", "does not admit user ann"),
        ("bens,now", "bens,now", None),
        ("flex", "flex,", None),
        ("licence", "", None),
    ],
)
def test_a_job_may_use_active_reservations_that_admit_it(asks, allowed, why):
    """Otherwise it has the reason. A flexible one allows other nodes, too; one without nodes restricts nothing."""
    known = Reservations(
        [
            reserved("now", users=frozenset({"ann"})),
            reserved("later", begins=60),
            reserved("bens", users=frozenset({"ben"})),
            reserved("barred", barred_users=frozenset({"ann"})),
            reserved("flex", flags=frozenset({"FLEX"})),
            reserved("licence", nodes=""),
        ],
        NOW,
    )
    asked = asking(asks)
    assert known.asked_by(asked) == allowed
    waits = known.why_waits(asked)
    assert waits is None if why is None else why in reason_words.words(waits)


def test_time_limits_with_the_same_open_nodes_are_equal():
    """However many time limits there are, jobs differ only by the nodes that close too soon for them."""
    known = Reservations([reserved("a", begins=60), reserved("b", "n2", begins=600)], NOW)
    assert [known.open_seconds(limit) for limit in (10, 60, 61, 600, 601, None)] == [0.0, 0.0, 600.0, 600.0, inf, inf]
    assert Reservations([], NOW).open_seconds(None) == 0.0


NODES = (node("n1", reservation="r"), node("n2", open_seconds=60.0), node("n3"))


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({}, {"n2", "n3"}),
        ({"open_seconds": inf}, {"n3"}),
        ({"reservation": "r"}, {"n1"}),
        ({"reservation": "x,r", "open_seconds": inf}, {"n1"}),
        ({"reservation": "r,"}, {"n1", "n2", "n3"}),
        ({"reservation": "x"}, set()),
    ],
)
def test_a_job_is_placed_only_where_its_reservation_and_its_limit_allow(more, where):
    """Of three equal jobs as many run as there are such nodes."""
    jobs = tuple(job(uid, **more) for uid in "abc")
    placed = place(Snapshot(NOW, 1, 60.0, NODES, jobs), [Grant(uid, 4, Reason.text("because")) for uid in "abc"]).placed
    assert {name for found in placed.values() for name in found.nodes} == where


@pytest.mark.parametrize("name", ["las", "gavel_las", "gavel_fifo", "ares"])
@pytest.mark.parametrize(
    "there", [{"open_seconds": 50.0}, {"reservation": "a"}, {"accepts": False}], ids=["closing", "reserved", "drained"]
)
def test_a_job_keeps_nodes_on_which_it_could_not_start(name, there):
    """Under any policy: the nodes are drained, reserved, or reserved before another run could end."""
    place = Placement(("n1",), 4, "v100")
    runs = job("j", open_seconds=60.0, status=Status.RUNNING, placement=place, run=1, run_started=NOW - 60)
    policy = installed_policies().get(name)
    shot = Snapshot(NOW, 1, 60.0, (node(**there), Node("n2", None, 0, 16, 64)), (runs,))
    assert run_round(shot, policy(policy.Parameters()), None).targets == {"j": place}


def test_a_job_that_waits_for_its_time_limit_has_that_reason():
    """Either the policy sees that no node suits, or placement finds none."""
    nodes = tuple(node(name, open_seconds=60.0) for name in ("n1", "n2"))
    shot = Snapshot(NOW, 1, 60.0, nodes, (job("a", open_seconds=inf),))
    text = reason_words.words(run_round(shot, Fifo(FifoParameters()), None).reasons["a"])
    assert "on 2 nodes that would suit it a reservation begins" in text


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path)
    yield made
    made.close()


def nodes_of(site, slurm_job_id):
    return set(site.slurm.job(slurm_job_id).allocated)


def runs(site, *job_ids):
    return lambda: all(site.state(slurm_job_id) is JobState.RUNNING for slurm_job_id in job_ids)


def test_the_daemon_keeps_to_reservations(site):
    """Members start on reserved nodes alone, others never there; jobs that run there stay."""
    early = site.add("--gres=gpu:4", "-w", "n1")
    site.run_until(runs(site, early))
    now = site.slurm.now
    site.slurm.reserve(Reservation("mine", now, now + 300, frozenset({"n1", "n2"}), frozenset({ME})))
    site.slurm.reserve(Reservation("maintenance", now + 600, now + 900, frozenset({"n3"})))
    member = site.add("--gres=gpu:4", "--reservation=mine")
    long, short = site.add("--gres=gpu:4"), site.add("--gres=gpu:4", "--time=5")
    last = site.add("--gres=gpu:4")
    site.run_until(runs(site, member, long, short))
    assert [nodes_of(site, one) for one in (early, member, long, short)] == [{"n1"}, {"n2"}, {"n4"}, {"n3"}]
    site.run(30)
    assert site.state(last) is JobState.PENDING
    assert len(site.slurm.trainer(early).starts) == 1
    late = site.add("--gres=gpu:4", "--reservation=mine")  # not behind the last, which cannot have these GPUs
    site.slurm.cancel(early)
    site.run_until(runs(site, late))
    assert nodes_of(site, late) == {"n1"}
    site.run_until(lambda: site.slurm.now > now + 310)  # the first reservation is over
    site.slurm.cancel(late)
    site.run_until(runs(site, last))
    assert nodes_of(site, last) == {"n1"}
    assert not [call for call in site.slurm.calls if call[0] == "requeue_hold"]


def test_a_job_whose_reservation_does_not_admit_it_is_not_released(site):
    """Its status has the reason."""
    now = site.slurm.now
    site.slurm.reserve(Reservation("bens", now, now + 300, frozenset({"n1"}), frozenset({"ben"})))
    job = site.add("--gres=gpu:1", "--reservation=bens")
    site.run(20)
    assert ("release", job) not in site.slurm.calls
    assert "does not admit user" in reason_words.words(site.controller.reason(site.record(job).uid))
