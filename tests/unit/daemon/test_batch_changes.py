"""A running job takes up another batch plan, through the daemon and its lease."""

import json

import pytest

from metasched.core.batching import BatchPlan
from metasched.shared_dir import published_status
from metasched.shared_dir.mailbox import Mailbox
from metasched.shared_dir.published_status import PlanStatus
from metasched.slurm.client import JobState
from policies.baselines.fifo import Fifo
from tests.unit import site as sites
from tests.unit.site import FakeSite, Killed

DECLARED = {"global_batch": 64, "first_batch": 64, "max_batch": 1024, "max_per_gpu": 64, "adaptive": True}


class Tuned(Fifo):
    """FIFO, with one batch plan for each job that metasched may tune."""

    name = "tuned"
    batch = BatchPlan(64)

    def decide(self, snapshot, state):
        decision, state = super().decide(snapshot, state)
        tuned = [uid for uid, one in snapshot.job.items() if one.batching and one.batching.control.value == "scheduler"]
        grants = [
            type(grant)(**{name: getattr(grant, name) for name in grant.__slots__} | {"batch": self.batch})
            if grant.uid in tuned
            else grant
            for grant in decision.grants
        ]
        return type(decision)(tuple(grants), decision.fallback, decision.waits), state


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setitem(sites.POLICIES, "tuned", Tuned)
    monkeypatch.setattr(Tuned, "batch", BatchPlan(64))
    made = FakeSite(tmp_path, policy="tuned")
    yield made
    made.close()


def lease_batch(site, job):
    path = site.base / "shared" / "mailbox" / site.record(job).uid / "lease.json"
    return json.loads(path.read_text())["batch"]


def run_and_declare(site, tag="batch=adaptive", **declared):
    """A job that trains and has declared its batch."""
    job = site.add("--gres=gpu:2", tag=tag, seconds=300)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.slurm.trainer(job).write(site.slurm, kind="declare", **DECLARED | declared)
    site.run(25)
    return job


def retunes(site, job):
    return [one for one in site.store.recent_actions(100, site.record(job).uid) if one.kind == "retune"]


def test_a_running_job_takes_up_a_batch_plan(site):
    """The plan is in the lease under a number; the run continues, and is asked once for each plan."""
    job = run_and_declare(site)
    assert lease_batch(site, job) == {"plan": 1, "per_gpu": 64, "accumulation": 1, "theta": None}
    Tuned.batch = BatchPlan(32, 2)
    site.run(40)
    assert lease_batch(site, job) == {"plan": 2, "per_gpu": 32, "accumulation": 2, "theta": None}
    assert len(retunes(site, job)) == 2
    assert site.record(job).run == 1
    assert not site.slurm.trainer(job).signals


@pytest.mark.parametrize(("tag", "declared"), [("", {}), ("batch=adaptive", {"adaptive": False})])
def test_tag_and_script_must_both_consent(site, tag, declared):
    """Otherwise the lease has no plan; without the tag it says nothing of batches at all."""
    job = run_and_declare(site, tag, **declared)
    batch = lease_batch(site, job)
    assert batch is None if not tag else batch["plan"] == 0
    assert not retunes(site, job)


@pytest.mark.parametrize("after", [False, True])
def test_a_daemon_that_dies_while_it_asks_is_followed_by_one_that_has_asked(site, monkeypatch, after):
    """Whether the lease was written or not, the next daemon leaves the lease with the plan under one number."""
    job = run_and_declare(site)
    Tuned.batch = BatchPlan(16, 4)
    write = Mailbox.write_lease

    def dying(self, lease):
        if lease.batch is not None and lease.batch.plan == 2:
            if after:
                write(self, lease)
            raise Killed
        write(self, lease)

    monkeypatch.setattr(Mailbox, "write_lease", dying)
    with pytest.raises(Killed):
        site.run(40)
    monkeypatch.setattr(Mailbox, "write_lease", write)
    site.start()
    site.run(40)
    assert lease_batch(site, job) == {"plan": 2, "per_gpu": 16, "accumulation": 4, "theta": None}
    assert site.record(job).run == 1


def test_the_status_tells_progress_in_steps_at_the_first_batch(site):
    """Fractions of steps are published, and what a step at the present batch is worth of them."""
    job = run_and_declare(site)
    adaptive = {"progress": 8.5, "grad_square": 1.0, "grad_variance": 64.0, "plan": 1}
    speed = {"steps": 4, "samples": 512, "seconds": 1.0, "loss": None, "world_size": 2}
    batch = {"global_batch": 128, "per_gpu_batch": 64, "accumulation": 1}
    site.slurm.trainer(job).write(site.slurm, kind="steps", step=8, **speed, **batch, **adaptive)
    site.run(5)
    (found,) = published_status.read(site.base / "shared").jobs
    assert found.progress_steps == 8.5
    assert found.step_gain == pytest.approx((64 / 64 + 1) / (64 / 128 + 1))


def test_a_restarted_daemon_asks_for_the_plan_of_the_last_round(site):
    """The decided plans are stored with the targets."""
    job = run_and_declare(site)
    site.start()
    assert site.store.target_batches() == {site.record(job).uid: BatchPlan(64)}


def published_batch(site, job):
    status = published_status.read(site.base / "shared")
    return next(one for one in status.jobs if one.slurm_job_id == job).batch


def report_steps(site, job, plan, per_gpu, accumulation, **noise):
    batch = {"global_batch": 2 * per_gpu * accumulation, "per_gpu_batch": per_gpu, "accumulation": accumulation}
    counts = {"step": 10, "steps": 10, "samples": 10 * batch["global_batch"], "seconds": 10.0, "loss": None}
    site.slurm.trainer(job).write(
        site.slurm, kind="steps", world_size=2, progress=10.0, plan=plan, **counts, **batch, **noise
    )
    site.run(10)


def test_the_published_status_tells_the_batch_until_the_trainer_has_taken_it_up(site):
    """Once it has, another plan of the trainer's own is not waited for."""
    job = run_and_declare(site)
    found = published_batch(site, job)
    assert (found.adaptive, found.first_batch, found.present, found.note_code) == (
        *(True, 64, None),
        "batch_awaits_boundary",
    )
    assert found.wanted == PlanStatus(64, 1, 128)
    report_steps(site, job, 1, 64, 1, grad_square=1.0, grad_variance=64.0)
    found = published_batch(site, job)
    assert (found.present, found.wanted, found.note) == (PlanStatus(64, 1, 128), None, "")
    assert (found.noise_scale, found.efficiency) == (64.0, pytest.approx(128 / 192))
    report_steps(site, job, 0, 40, 2)
    assert published_batch(site, job).wanted is None
    Tuned.batch = BatchPlan(32, 4)
    site.run(40)
    found = published_batch(site, job)
    assert (found.present, found.wanted) == (PlanStatus(40, 2, 160), PlanStatus(32, 4, 256))


@pytest.mark.parametrize(
    ("tag", "declared", "note"),
    [
        ("", {}, "batch_without_tag"),
        ("batch=adaptive", {"adaptive": False}, "batch_without_consent"),
        ("", {"adaptive": False}, None),
    ],
)
def test_the_published_status_tells_which_consent_is_missing(site, tag, declared, note):
    """A job that asks for nothing has no batch there."""
    found = published_batch(site, run_and_declare(site, tag, **declared))
    assert (found and found.note_code) == note
    assert found is None or (not found.adaptive and found.wanted is None)


class Reactive(Fifo):
    """FIFO, which decides anew where a script has changed its batch size."""

    name = "reactive"

    @property
    def wakes_on_batch(self):
        return True


@pytest.mark.parametrize(("policy", "rounds"), [(Reactive, 1), (Fifo, 0)])
def test_a_batch_that_the_script_has_changed_brings_a_round_within_seconds(tmp_path, monkeypatch, policy, rounds):
    """Only where the policy asks for it; the first batch that a trainer reports is no change."""
    monkeypatch.setitem(sites.POLICIES, policy.name, policy)
    site = FakeSite(tmp_path, policy=policy.name, round_seconds=1000.0)
    job = site.add("--gres=gpu:2", seconds=600)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(25)
    report = {"kind": "steps", "steps": 10, "seconds": 1.0, "loss": None, "world_size": 2, "accumulation": 1}
    before = site.controller.round_number
    trainer = site.slurm.trainer(job)
    trainer.write(site.slurm, **report, step=10, samples=640, global_batch=64, per_gpu_batch=32)
    site.run(25)
    assert site.controller.round_number == before
    trainer.write(site.slurm, **report, step=20, samples=1280, global_batch=128, per_gpu_batch=64)
    site.run(25)
    assert site.controller.round_number == before + rounds
    site.close()


def test_a_declaration_is_believed_until_the_reports_contradict_it(site):
    """The tag's rule is that of the job; a batch beyond the limit is one event, which names the fix."""
    job = run_and_declare(site, "batch=own adapts=gns regimes=4", adaptive=False)
    report = {"kind": "steps", "steps": 10, "seconds": 1.0, "loss": None, "world_size": 2, "accumulation": 1}
    trainer = site.slurm.trainer(job)
    events = lambda: [one for one in site.store.recent_events(100, site.record(job).uid) if "batch-" in one.kind]  # noqa: E731
    for step, batch in enumerate([64, 128, 4096, 8192], 1):
        assert not events() or batch > 4096
        each = {"samples": 10 * batch, "global_batch": batch, "per_gpu_batch": batch // 2}
        trainer.write(site.slurm, **report, **each, step=10 * step)
        site.run(5)
    known = site.controller.current_snapshot().job[site.record(job).uid].batching
    assert (known.control.value, known.adapts.value, known.most_regimes) == ("script", "gns", 4)
    (status,) = published_status.read(site.base / "shared").jobs
    assert (status.batch.present.global_batch, status.batch.adaptive) == (8192, False)
    assert status.batch.note == "its script changes it by the rule gns: regime 4 of at most 4"
    (found,) = events()
    assert found.kind == "batch-beyond-limit"
    assert "its batch is 4096, above the declared max_batch of 1024: raise max_batch" in found.text
