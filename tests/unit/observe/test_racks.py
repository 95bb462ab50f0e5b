"""Racks from Slurm's topology decide where a job of several nodes runs."""

import pytest

from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite


@pytest.mark.parametrize(("racks", "expected"), [(["s1", "s1", "s2", "s2"], {"n1", "n2"}), ([None] * 4, {"n1", "n3"})])
def test_a_job_of_two_nodes_runs_in_one_rack(tmp_path, racks, expected):
    """Other jobs hold half of n1 and n3: without racks, best fit fills up these two."""
    site = FakeSite(tmp_path, FakeSlurm([FakeNode(f"n{i}", rack=rack) for i, rack in enumerate(racks, start=1)]))
    for name in ("n1", "n3"):
        site.slurm.add("--gres=gpu:2", "-w", name)
    site.slurm.tick()
    job = site.add("-N2", "--gres=gpu:2")
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    assert set(site.slurm.job(job).allocated) == expected
    site.close()
