"""Scripts that fail on a number of GPUs that is new to them."""

import json
from dataclasses import dataclass

import pytest

from metasched.core.model import Decision, Grant
from metasched.core.reason_words import words
from metasched.core.reasons import Reason, from_text
from metasched.intake.size_failures import SIZE_FAILED
from metasched.presentation.job_explanation import explanation
from metasched.scheduling import engine
from metasched.slurm.client import JobState
from metasched.store import FIRST_STEPS, EndCause
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import ME, FakeSite, ShimTrainer

FAILS_ON = 3


@dataclass
class FailingTrainer(ShimTrainer):
    """A trainer that fails after some steps on some numbers of GPUs, and trains on every other number."""

    steps: int = 0
    wrapper: bool = True
    lost: bool = False
    fails_on: frozenset = frozenset({FAILS_ON})

    def started(self, slurm, job):
        super().started(slurm, job)
        gpus = sum(job.allocated.values())
        steps = self.steps if gpus in self.fails_on else FIRST_STEPS
        if steps:
            self.train(slurm, gpus, steps)
        if self.lost and gpus in self.fails_on:
            slurm.after(0.5, lambda: slurm.owner_requeue(job.slurm_job_id))
        elif gpus in self.fails_on:
            slurm.exit(job.slurm_job_id, self.exit_code_of_failure(gpus, steps), after=0.5)

    def train(self, slurm, gpus, steps):
        self.step += steps
        self.write(
            slurm,
            kind="steps",
            step=self.step,
            steps=steps,
            samples=12 * steps,
            seconds=0.1,
            loss=1.0,
            world_size=gpus,
            global_batch=12,
            per_gpu_batch=12 // gpus,
            accumulation=1,
        )

    def exit_code_of_failure(self, gpus, steps):
        """What metasched-run exits with, after it has left its word."""
        lease = json.loads((self.shared / "mailbox" / self.uid / "lease.json").read_text())
        good = lease["known_good"]
        if not self.wrapper or good is None or steps >= good["first_steps"]:
            return 1
        assert good["gpus"] != gpus
        word = {"v": 1, "run": lease["run"], "exit_code": 1}
        (self.shared / "reports" / self.uid / "failed-run.json").write_text(json.dumps(word))
        return 85


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site whose policy grants its job ``site.gpus`` GPUs."""
    made = FakeSite(tmp_path, FakeSlurm(), round_seconds=5.0)
    made.gpus = 2
    round_to_allowed_sizes = engine.round_to_allowed_sizes

    def round_other(snapshot, _decision):
        grants = tuple(Grant(job.uid, made.gpus, Reason.text("its turn")) for job in snapshot.jobs)
        return round_to_allowed_sizes(snapshot, Decision(grants=grants))

    monkeypatch.setattr(engine, "round_to_allowed_sizes", round_other)
    yield made
    made.close()


def add(site, **trainer):
    made = FailingTrainer(shared=site.base / "shared", **trainer)
    return site.slurm.add("--hold", "--gres=gpu:2", comment="metasched min_gpus=1 max_gpus=4", user=ME, trainer=made)


def sizes(site, job):
    return [sum(count for _, count in start) for start in site.slurm.trainer(job).starts]


def grow(site, job):
    """Let the job train on two GPUs, and then grant it the number on which it fails, until that run has begun."""
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(3)
    site.gpus = FAILS_ON
    site.run_until(lambda: len(site.slurm.trainer(job).starts) == 2)


@pytest.mark.parametrize("wrapper", [True, False])
@pytest.mark.parametrize("steps", [0, FIRST_STEPS - 1])
def test_a_job_is_put_back_once_to_the_size_at_which_it_trained(site, wrapper, steps):
    """It trains on there, never gets the failed number again, and gets others; the daemon helps without a wrapper."""
    job = add(site, wrapper=wrapper, steps=steps)
    grow(site, job)
    site.run(40)
    assert sizes(site, job) == [2, 3, 2]
    record = site.record(job)
    assert (record.failed_sizes, record.known_good_gpus, record.finished) == ((3,), 2, None)
    assert [run.cause for run in site.store.runs(record.uid)] == [EndCause.RESIZED, EndCause.SIZE_FAILED, None]
    site.gpus = 4
    site.run(20)
    site.gpus = 3
    site.run(20)
    assert sizes(site, job) == [2, 3, 2, 4, 2]


def test_an_event_and_explain_say_so(site):
    """Words name the exit code and both numbers of GPUs."""
    job = add(site)
    grow(site, job)
    site.run_until(lambda: site.record(job).put_back)
    (event,) = [one for one in site.store.recent_events(100, site.record(job).uid) if one.kind == SIZE_FAILED]
    assert words(from_text(event.text)) == (
        "its script failed with exit code 1 in its first steps on 3 GPUs; "
        "put back to 2 GPUs, where it trained last, and never again on 3"
    )
    site.run(0.5)
    (shown,) = site.status().jobs
    told = " ".join(explanation(shown, site.status(), site.slurm.now))
    assert "Its script failed in its first steps on 3 GPUs, so it no longer gets that number." in told
    assert "It is put back to 2 GPUs, where it trained last." in told


def test_a_script_that_fails_on_its_last_good_size_too_ends_as_failed(site):
    """The second failure is not the size's."""
    job = add(site)
    grow(site, job)
    site.slurm.trainer(job).fails_on = frozenset({2, 3})
    site.run_until(lambda: site.record(job).finished)
    assert sizes(site, job) == [2, 3, 2]
    assert site.record(job).end_state == "FAILED"


def test_a_failure_after_the_first_steps_is_the_scripts_own(site):
    """A run that has trained on the new number ends the job, although the daemon has not read its reports yet."""
    job = add(site, steps=FIRST_STEPS)
    grow(site, job)
    site.run_until(lambda: site.record(job).finished)
    assert (sizes(site, job), site.record(job).failed_sizes) == ([2, 3], ())


def test_a_first_run_that_fails_ends_the_job(site):
    """There is no number on which it trained."""
    site.gpus = FAILS_ON
    job = add(site)
    site.run(20)
    assert (sizes(site, job), site.record(job).end_state) == ([3], "FAILED")


def test_a_run_that_is_lost_is_no_failure_of_the_size(site):
    """A requeue by the owner, or a lost node, leaves the number allowed."""
    job = add(site, lost=True)
    grow(site, job)
    site.run_until(lambda: len(site.slurm.trainer(job).starts) > 2)
    assert (sizes(site, job)[2], site.record(job).failed_sizes) == (3, ())


@pytest.mark.parametrize(
    "word", ["[]", "{", '{"v":1,"run":1,"exit_code":1}', '{"v":1,"run":2,"exit_code":0}', "[" * 5000]
)
def test_a_word_that_is_not_the_protocols_is_ignored(site, word):
    """The run then counts as lost."""
    job = add(site, lost=True)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(1)
    (site.base / "shared" / "reports" / site.record(job).uid / "failed-run.json").write_text(word)
    grow(site, job)
    site.run_until(lambda: len(site.slurm.trainer(job).starts) > 2)
    assert site.record(job).failed_sizes == ()
