"""Descriptions of the live jobs, kept from poll to poll."""

import pytest

from metasched.core.declared_work import WorkContradiction
from metasched.daemon import described_jobs
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

JOBS = 8


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1", gpus=JOBS + 1),)))
    yield made
    made.close()


def uids_of_events(site, kind):
    return [event.uid for event in reversed(site.store.recent_events(1000)) if event.kind == kind]


def test_the_jobs_of_one_poll_are_looked_at_in_their_order(site, monkeypatch):
    """Only those that have changed are, but not in the order of a set, which differs in each process."""
    site.add("--gres=gpu:1")
    site.run(3)
    monkeypatch.setattr(described_jobs, "work_contradiction", lambda _: WorkContradiction.HISTORY)
    added = [site.add("--gres=gpu:1") for _ in range(JOBS)]
    site.run(6)
    uids = [site.record(job).uid for job in added]
    assert uids_of_events(site, "steps-history")[:JOBS] == uids
    holds = [job for method, job in site.slurm.calls if method == "hold"]  # of runs that have begun
    assert holds[-JOBS:] == added


def test_a_poll_that_was_cut_short_is_made_up_for(site, monkeypatch):
    """What a failed poll was about to describe, the next one describes."""
    site.add("--gres=gpu:1")
    site.run(3)
    described = site.controller._state_builder._described
    describe = described._describe

    def fail(*_):
        raise ZeroDivisionError

    late = site.add("--gres=gpu:1")
    monkeypatch.setattr(described, "_describe", fail)
    with pytest.raises(ZeroDivisionError):
        site.controller.poll()
    monkeypatch.setattr(described, "_describe", describe)
    site.controller.poll()
    assert site.record(late).uid in site.controller.current_snapshot().job
