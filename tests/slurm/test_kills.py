"""A few of the kills of `make test-kills`, which strikes hundreds of times."""

import pytest

from metasched.devcluster import NodeGroup
from tests.kills import on_slurm
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site

VICTIMS = (
    on_slurm.RANK_0_IN_CHECKPOINT,
    on_slurm.SHELL,
    on_slurm.AGENT,
    on_slurm.WRAPPER,
    on_slurm.BATCH_DAEMON,
    on_slurm.NODE,
)


@pytest.fixture
def killed_site(make_cluster):
    """A Site on a cluster with a short KillWait."""
    made = Site(make_cluster(groups=(NodeGroup(2, 4, "v100"),), job_submit=JOB_SUBMIT, kill_wait=5))
    yield made
    made.close()


@pytest.mark.timeout(900)
def test_training_is_unchanged_when_every_part_of_a_job_is_killed(killed_site, tmp_path):
    """The job resumes from the last complete checkpoint, there is one writer, and no sample is lost or repeated."""
    kills, wrong, facts = on_slurm.campaign(killed_site, tmp_path, VICTIMS, seed=3)
    assert wrong == []
    assert len(kills) == len(VICTIMS)
    assert facts["aborts"] == 0
