"""Nodes whose GPUs a slurmctld that was killed counts as allocated for ever."""

from contextlib import closing

import pytest
from rich.console import Console

from metasched.cli.status_tables import overview
from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite


@pytest.fixture
def site(tmp_path):
    with closing(FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"), FakeNode("n2"))))) as made:
        yield made


def nodes_of(site, job):
    return set(site.slurm.job(job).allocated)


def test_no_job_is_placed_on_leaked_gpus_until_slurm_counts_them_again(site):
    """Jobs run on the other node, one after the other, and none waits for the node that starts nothing."""
    site.slurm.leak_gpus("n1")
    site.run(30)
    jobs = [site.add("--gres=gpu:4", seconds=20) for _ in range(3)]
    ran = set()
    while any(site.state(job) is not JobState.COMPLETED for job in jobs):
        site.run(2)
        ran |= set().union(*map(nodes_of, [site] * 3, jobs))
        assert site.slurm.now < 1_800_000_000 + 150
    assert ran == {"n2"}
    site.slurm.reconfigure()
    both = [site.add("--gres=gpu:4", seconds=20) for _ in range(2)]
    site.run(10)
    assert set().union(*(nodes_of(site, job) for job in both)) == {"n1", "n2"}


def test_the_admin_is_told_of_leaked_gpus_with_the_cure(site):
    """In the status, and once in an event."""
    job = site.add("--gres=gpu:2", "--nodelist=n2")
    site.run(3)
    site.slurm.leak_gpus("n2")
    site.run(60)
    console = Console(width=200)
    with console.capture() as text:
        console.print(overview(site.status(), site.slurm.now, 10))
    assert "Slurm counts GPUs as allocated that no job holds: 2 of n2" in text.get()
    assert "scontrol reconfigure" in text.get()
    assert [event.kind for event in site.store.recent_events(100)].count("gpus_leaked") == 1
    assert site.state(job) is JobState.RUNNING
    site.slurm.reconfigure()
    site.run(5)
    assert [node.gpus_leaked for node in site.status().nodes] == [0, 0]
