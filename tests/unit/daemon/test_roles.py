"""A daemon whose account is an operator in Slurm: it may do all but write AdminComments."""

import pytest

from metasched.core import reason_words
from metasched.core.model import Hold
from metasched.slurm.client import OUT_OF_REACH, JobState
from metasched.slurm.errors import SlurmPermissionError
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

UID = "6b022f1c0014049b"


class OperatorSlurm(FakeSlurm):
    """Refuses what takes an administrator."""

    asked = 0

    def stamp(self, slurm_job_id, admin_comment):
        self.asked += 1
        raise SlurmPermissionError("Access/permission denied")

    def adopt(self, slurm_job_id, admin_comment):
        self.stamp(slurm_job_id, admin_comment)


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, OperatorSlurm())
    yield made
    made.close()


def stamped(site, slurm_job_id, uid=UID):
    """As job_submit.lua does."""
    FakeSlurm.stamp(site.slurm, slurm_job_id, f"metasched:{uid}")


def test_a_job_that_was_stamped_as_it_was_submitted_runs(site):
    """It is known by that stamp, and held by the daemon before its turn: neither takes an administrator."""
    slurm_job_id = site.add("--gres=gpu:1", seconds=5.0)
    stamped(site, slurm_job_id)
    site.run_until(lambda: site.state(slurm_job_id) is JobState.COMPLETED)
    assert site.record(slurm_job_id).uid == UID
    assert site.slurm.asked == 0


def test_a_job_that_was_submitted_held_waits_for_its_owner(site):
    """job_submit.lua notes that in the stamp, and turns the owner's release into a begin time that never comes."""
    slurm_job_id = site.add("--gres=gpu:1", seconds=5.0)
    FakeSlurm.stamp(site.slurm, slurm_job_id, f"metasched:{UID}:held")
    site.run(60)
    assert (site.state(slurm_job_id), site.slurm.job(slurm_job_id).hold) == (JobState.PENDING, Hold.USER)
    assert "--hold" in reason_words.words(site.controller.reason(UID))
    site.slurm._show(site.slurm._jobs[slurm_job_id], hold=Hold.NONE, eligible=OUT_OF_REACH)
    site.run_until(lambda: site.state(slurm_job_id) is JobState.COMPLETED)


def test_a_job_without_a_stamp_is_never_started(site):
    """Without its identity it could not be preempted: it stays held, with a reason that says what is missing."""
    slurm_job_id = site.add("--gres=gpu:1", seconds=5.0)
    site.run(60)
    assert site.state(slurm_job_id) is JobState.PENDING
    assert "job_submit.lua" in reason_words.words(site.controller.reason(site.record(slurm_job_id).uid))


def test_a_wrong_tag_of_a_stamped_job_is_written_once_and_then_left(site):
    """Its error cannot be written into AdminComment; that is not tried again at each poll."""
    slurm_job_id = site.add("--gres=gpu:1", tag="min_gpu=1", seconds=5.0)
    stamped(site, slurm_job_id)
    site.run(60)
    assert site.slurm.asked == 1
    assert "min_gpus" in site.record(slurm_job_id).error
    del site.slurm._jobs[slurm_job_id]
    site.run(2)
    assert not site.controller._writes.refused
