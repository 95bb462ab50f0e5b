"""A daemon whose account is an operator in Slurm, and may write everything but AdminComment."""

import pytest

from metasched.core import reason_words
from metasched.core.model import Hold
from metasched.slurm.client import OUT_OF_REACH, JobState
from metasched.slurm.errors import SlurmPermissionError
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

UID = "6b022f1c0014049b"


class OperatorSlurm(FakeSlurm):
    """A Slurm that refuses the writes for which an account must be administrator."""

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
    """Stamp the job as job_submit.lua does."""
    FakeSlurm.stamp(site.slurm, slurm_job_id, f"metasched:{uid}")


def test_a_job_stamped_at_submission_runs(site):
    """The stamp identifies the job, and the daemon holds it: neither takes an administrator."""
    slurm_job_id = site.add("--gres=gpu:1", seconds=5.0)
    stamped(site, slurm_job_id)
    site.run_until(lambda: site.state(slurm_job_id) is JobState.COMPLETED)
    assert site.record(slurm_job_id).uid == UID
    assert site.slurm.asked == 0


def test_a_job_that_was_submitted_held_waits_for_its_owner(site):
    """job_submit.lua notes the hold in the stamp, and turns the owner's release into an unreachable begin time."""
    slurm_job_id = site.add("--gres=gpu:1", seconds=5.0)
    FakeSlurm.stamp(site.slurm, slurm_job_id, f"metasched:{UID}:held")
    site.run(60)
    assert (site.state(slurm_job_id), site.slurm.job(slurm_job_id).hold) == (JobState.PENDING, Hold.USER)
    assert "--hold" in reason_words.words(site.controller.reason(UID))
    site.slurm._show(site.slurm._jobs[slurm_job_id], hold=Hold.NONE, eligible=OUT_OF_REACH)
    site.run_until(lambda: site.state(slurm_job_id) is JobState.COMPLETED)


def test_a_job_without_a_stamp_is_never_started(site):
    """Without an identity the job could not be preempted: it stays held, with a reason that names the fix."""
    slurm_job_id = site.add("--gres=gpu:1", seconds=5.0)
    site.run(60)
    assert site.state(slurm_job_id) is JobState.PENDING
    assert "job_submit.lua" in reason_words.words(site.controller.reason(site.record(slurm_job_id).uid))


def test_an_error_that_cannot_be_written_to_admin_comment_is_tried_once(site):
    """The operator may not write AdminComment; later polls do not repeat the write."""
    slurm_job_id = site.add("--gres=gpu:1", tag="min_gpu=1", seconds=5.0)
    stamped(site, slurm_job_id)
    site.run(60)
    assert site.slurm.asked == 1
    assert "min_gpus" in site.record(slurm_job_id).error
    del site.slurm._jobs[slurm_job_id]
    site.run(2)
    assert not site.controller._writes.refused
