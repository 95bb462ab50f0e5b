"""GPUs that Slurm counts as allocated although no job holds them."""

from dataclasses import replace

import pytest

from metasched.slurm.client import JobState
from metasched.slurm.leaked_gpus import LEAK_SECONDS, LeakedGpus, excess_allocations
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm


@pytest.fixture
def slurm():
    made = FakeSlurm(nodes=(FakeNode("n1"), FakeNode("n2"), FakeNode("n3", shards=2)))
    made.add("--gres=gpu:2", "--nodelist=n1")
    made.tick(1)
    return made


def excess(slurm):
    return excess_allocations(slurm.nodes(), slurm.jobs())


def test_only_gpus_without_a_job_are_in_excess(slurm):
    """Nodes with shards are left out, and so are nodes of which Slurm tells no count."""
    assert excess(slurm) == {"n1": 0, "n2": 0}
    slurm.leak_gpus("n1")
    assert excess(slurm) == {"n1": 2, "n2": 0}
    nodes = [replace(node, gpus_allocated=None) for node in slurm.nodes()]
    assert excess_allocations(nodes, slurm.jobs()) == {}


def test_a_completing_job_tells_nothing_of_its_nodes(slurm):
    """Slurm no longer lists its GPUs."""
    jobs = [replace(job, state=JobState.COMPLETING) for job in slurm.jobs()]
    assert excess_allocations(slurm.nodes(), jobs) == {"n1": None, "n2": 0}


def test_gpus_are_leaked_once_every_look_of_some_time_has_found_them(slurm):
    """A job that starts between two reads is no leak; a completing job changes nothing; a new count ends the leak."""
    watch = LeakedGpus()

    def look(at):
        return watch.update(slurm.nodes(), slurm.jobs(), at)

    slurm.leak_gpus("n2")
    assert look(0.0) == look(LEAK_SECONDS - 1) == {}
    slurm.reconfigure()
    assert look(LEAK_SECONDS) == {}
    slurm.leak_gpus("n1")
    assert look(100.0) == look(99.0) == {}  # the clock was set back
    assert look(100.0 + LEAK_SECONDS) == {"n1": 2}
    completing = [replace(job, state=JobState.COMPLETING) for job in slurm.jobs()]
    assert watch.update(slurm.nodes(), completing, 150.0) == {"n1": 2}
    slurm.reconfigure()
    assert look(151.0) == {}
