"""Apps in the daemon: tags, losses and ends, on a FakeSlurm."""

import contextlib
import json
from dataclasses import dataclass

import pytest

from metasched.core.model import End, Hold
from metasched.core.reason_words import words
from metasched.observe.observed_job import ENDED
from metasched.presentation.job_explanation import explanation
from metasched.shared_dir import published_status as published
from metasched.slurm.client import JobState
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import ME, DyingClient, FakeSite, Killed, ShimTrainer

STEPS = 16


@dataclass
class Trial(ShimTrainer):
    """A trial that does a step in ``pace`` seconds, reports its array task as its loss, and obeys its lease."""

    pace: float = 1.0
    deaf: bool = False
    metric: float | None = None

    def started(self, slurm, job):
        super().started(slurm, job)
        self._train(slurm, job.slurm_job_id, self.generation)

    def _train(self, slurm, slurm_job_id, generation):
        job = slurm.job(slurm_job_id)
        if generation != self.generation or job.state is not JobState.RUNNING:
            return
        self.step += 1
        task = job.array_task_id if self.metric is None else self.metric
        sizes = {"world_size": 1, "global_batch": 1, "per_gpu_batch": 1, "accumulation": 1}
        self.write(slurm, kind="steps", step=self.step, steps=1, samples=1, seconds=1.0, loss=float(task or 0), **sizes)
        lease = json.loads((self.shared / "mailbox" / self.uid / "lease.json").read_text())
        if lease["finish"] is not None and not self.deaf:
            self.write(slurm, kind="end", step=self.step, samples=self.step, loss=None)
            slurm.exit(slurm_job_id, 0)
        elif self.step == STEPS:
            slurm.exit(slurm_job_id, 0)
        else:
            slurm.after(self.pace, lambda: self._train(slurm, slurm_job_id, generation))

    def signalled(self, slurm, job, signal):
        if not self.deaf:
            super().signalled(slurm, job, signal)


class Site(FakeSite):
    """A FakeSite whose jobs are trials."""

    def add(self, *options, tag, user=ME, **trainer):
        made = Trial(shared=self.base / "shared", **trainer)
        return self.slurm.add("--hold", *options, comment=f"metasched {tag}", user=user, trainer=made)

    def tasks(self, array, count):
        return [self.slurm.job(f"{array}_{task}") for task in range(count)]

    def reasons(self, array, count):
        return [self.record(f"{array}_{task}").end_reason for task in range(count)]


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path, round_seconds=2.0, grace_seconds=3.0)
    yield made
    made.close()


ARRAY = ("--array=0-3", "--gres=gpu:1")
HALVING = f"tuner=halving,steps={STEPS}"


def is_over(site, array, count=4):
    return lambda: all(job.state in ENDED for job in site.tasks(array, count))


def test_an_array_is_halved_to_one(site):
    """Losers that run finish and complete, and are never requeued; the winner trains to its end."""
    array = site.add(*ARRAY, tag=f"max_gpus=4 {HALVING}")
    site.run_until(lambda: site.tasks(array, 4)[3].state is JobState.RUNNING)
    site.run(2)
    status = published.read(site.base / "shared")
    (app,) = status.apps
    assert (app.tuner, app.phases, app.live, app.ended, app.problem) == (f"halving,steps={STEPS}", ((1, 3),), 4, 0, "")
    told = " ".join(explanation(status.jobs[3], status, site.slurm.now))
    assert "its app's tuner gives it at most 1 GPU while several trials live" in told
    assert "phase 1 of 3: 4 of its jobs live, 0 trials ended so far" in told
    site.run_until(is_over(site, array))
    assert [job.state for job in site.tasks(array, 4)] == [JobState.COMPLETED] * 4
    assert [job.restarts for job in site.tasks(array, 4)[2:]] == [0, 0]
    steps = [site.slurm.trainer(f"{array}_{task}").step for task in range(4)]
    assert steps[0] == STEPS
    assert STEPS / 2 <= steps[1] < STEPS
    assert all(STEPS / 4 <= done < STEPS / 2 for done in steps[2:])
    site.run(2)
    status = published.read(site.base / "shared")
    told = {job.slurm_job_id: explanation(job, status, site.slurm.now)[-1] for job in status.finished}
    assert told[f"{array}_3"].endswith("its loss 3 at step 4 ranks 4th of 4 trials, of which 2 continue.")
    assert status.apps == ()
    reasons = site.reasons(array, 4)
    assert reasons[0] is None
    assert words(reasons[3]) == "its loss 3 at step 4 ranks 4th of 4 trials, of which 2 continue"
    actions = [action.kind for action in site.store.recent_actions(1000)]
    assert actions.count("end") == 3
    assert "requeue" not in actions


def test_a_trial_that_waits_is_cancelled(site):
    """It was stopped at the end of its phase, because another trial is late; that one is not cancelled."""
    array = site.add("--array=0-1", "--gres=gpu:1", tag=HALVING)
    site.run_until(lambda: site.tasks(array, 2)[1].state is JobState.RUNNING)
    slow = site.slurm.trainer(f"{array}_0")
    slow.pace = 3.0
    site.run_until(is_over(site, array, 2))
    assert [job.state for job in site.tasks(array, 2)] == [JobState.COMPLETED, JobState.CANCELLED]
    assert slow.step == STEPS


def test_a_deaf_trial_is_cancelled_after_its_grace_time(site):
    """Its reason stays in the record."""
    array = site.add("--array=0-1", "--gres=gpu:1", tag=HALVING)
    site.run_until(lambda: site.tasks(array, 2)[1].state is JobState.RUNNING)
    site.slurm.trainer(f"{array}_1").deaf = True
    site.run_until(is_over(site, array, 2))
    site.run(2)
    assert site.tasks(array, 2)[1].state is JobState.CANCELLED
    assert site.reasons(array, 2)[1] is not None
    kinds = [action.kind for action in site.store.recent_actions(1000) if action.uid.endswith("_1")]
    assert kinds.count("end") == 2


@pytest.mark.parametrize("code", [1, 85])
def test_a_loser_that_fails_while_it_finishes_is_not_requeued(site, code):
    """Neither by the daemon nor, for long, by Slurm."""
    array = site.add("--array=0-1", "--gres=gpu:1", tag=HALVING)
    site.run_until(lambda: site.tasks(array, 2)[1].state is JobState.RUNNING)
    loser = site.slurm.trainer(f"{array}_1")
    loser.deaf = True
    site.run_until(lambda: any(action.kind == "end" for action in site.store.recent_actions(100)))
    site.slurm.exit(f"{array}_1", code)
    site.run_until(is_over(site, array, 2))
    assert site.tasks(array, 2)[1].state is (JobState.FAILED if code == 1 else JobState.CANCELLED)
    assert site.tasks(array, 2)[0].state is JobState.COMPLETED


@pytest.mark.parametrize(("at", "after"), [("choice", None), ("cancel", False), ("cancel", True)])
def test_the_daemon_is_killed_between_choosing_and_ending_losers(tmp_path, monkeypatch, at, after):
    """No loser is ended twice or survives, and no winner is ended."""
    site = Site(tmp_path, round_seconds=2.0, grace_seconds=3.0)
    array = site.add("--array=0-3", "--gres=gpu:1", tag=HALVING)
    site.run_until(lambda: all(job.state is JobState.RUNNING for job in site.tasks(array, 4)))
    if at == "cancel":
        for task in (2, 3):
            site.slurm.trainer(f"{array}_{task}").deaf = True
        site.run_until(lambda: sum(action.kind == "end" for action in site.store.recent_actions(99)) == 2)
        site.start(DyingClient(site.slurm, 1, after=after))
    else:
        actuator = site.controller._actuator
        perform = actuator.perform

        def perform_or_die(actions, *rest):
            if any(isinstance(action, End) for action in actions):
                raise Killed
            return perform(actions, *rest)

        monkeypatch.setattr(actuator, "perform", perform_or_die)
    with pytest.raises(Killed):
        site.run(60)
    chosen = {task for task, reason in enumerate(site.reasons(array, 4)) if reason is not None}
    assert {2, 3} <= chosen <= {1, 2, 3}
    site.start()
    site.run_until(is_over(site, array))
    states = [job.state for job in site.tasks(array, 4)]
    expected = JobState.CANCELLED if at == "cancel" else JobState.COMPLETED
    assert states == [JobState.COMPLETED, JobState.COMPLETED, expected, expected]
    assert site.slurm.trainer(f"{array}_0").step == STEPS
    site.close()


def test_the_same_trial_wins_however_often_the_daemon_is_killed(site):
    """It is killed at every third write, before and after it in turn."""
    array = site.add("--array=0-3", "--gres=gpu:1", tag=HALVING)
    kills = 0
    while not is_over(site, array)():
        site.start(DyingClient(site.slurm, 3, after=kills % 2 == 1))
        with contextlib.suppress(Killed):
            site.run_until(is_over(site, array))
        kills += 1
        assert kills < 50
    site.start()
    site.run(2)
    assert kills > 2
    assert [reason is None for reason in site.reasons(array, 4)] == [True, False, False, False]
    assert site.slurm.trainer(f"{array}_0").step == STEPS
    assert {job.state for job in site.tasks(array, 4)} <= {JobState.COMPLETED, JobState.CANCELLED}


def test_apps_of_two_users_are_two(site):
    """Each user's jobs of one app are compared with one another only; jobs of others do not suffer."""
    ours = [site.add("--gres=gpu:1", tag=f"app=search {HALVING}", metric=float(n)) for n in range(2)]
    theirs = site.add("--gres=gpu:1", tag=f"app=search {HALVING}", user="nobody", metric=9.0)
    site.run_until(lambda: all(site.state(job) in ENDED for job in (*ours, theirs)))
    site.run(2)
    assert [site.record(job).end_reason is None for job in (*ours, theirs)] == [True, False, True]
    assert site.slurm.trainer(theirs).step == STEPS


@pytest.mark.parametrize(
    ("tag", "error"),
    [
        ("tuner=halfing", "no tuner is named 'halfing'; did you mean 'halving'?"),
        ("tuner=halving,eta=1", "eta"),
        ("tuner=halving,eto=2", "eto"),
    ],
)
def test_a_tuner_that_cannot_be_is_a_wrong_tag(site, tag, error):
    """The job stays held, and its record says what to change."""
    job = site.add("--gres=gpu:1", tag=tag)
    site.run(10)
    assert site.slurm.job(job).hold is Hold.ADMIN
    assert error in site.record(job).error


def test_an_owner_cannot_requeue_a_trial_that_was_ended(site):
    """It is cancelled again."""
    array = site.add("--array=0-1", "--gres=gpu:1", tag=HALVING)
    site.run_until(is_over(site, array, 2))
    site.run(2)
    site.slurm.owner_requeue(f"{array}_1")
    site.run(10)
    assert site.tasks(array, 2)[1].state is JobState.CANCELLED


def test_the_cluster_of_these_tests_has_a_gpu_for_each_trial():
    """So that no trial is preempted for another one."""
    assert sum(sum(node.gpus.values()) for node in FakeSlurm().nodes()) >= 4


def order(site, job, **keys):
    """Write an order as a driver does, into the directory of one trial."""
    directory = site.base / "shared" / "reports" / site.record(job).uid
    directory.mkdir(exist_ok=True)
    with (directory / "app.jsonl").open("a") as file:
        file.write(json.dumps({"v": 1, "kind": "order", "uid": site.record(job).uid} | keys) + "\n")


def test_a_driver_ends_its_own_trials_only(site):
    """An order for a job of another app is ignored, and named; one that is no order is an event of the job."""
    tag = "app=search tuner=outside"
    mine, pruned, other = (site.add("--gres=gpu:1", tag=one) for one in (tag, tag, "app=other tuner=outside"))
    site.run(3)
    order(site, mine, uid=site.record(other).uid, end=True)
    order(site, pruned, end=True, words="pruned at step 3")
    order(site, pruned, end="yes")
    site.run_until(lambda: all(site.state(job) in ENDED for job in (mine, pruned, other)))
    assert words(site.record(pruned).end_reason) == "its app's driver has ended it: pruned at step 3"
    assert [site.record(job).end_reason for job in (mine, other)] == [None, None]
    kinds = {event.kind for event in site.store.recent_events(1000, site.record(pruned).uid)}
    assert "orders-lines-refused" in kinds


def test_an_order_for_a_stranger_is_told(site):
    """The app's status names the job."""
    tag = "app=search tuner=outside max_gpus=4"
    job, stranger = site.add("--gres=gpu:1", tag=tag), site.add("--gres=gpu:1", tag="")
    site.run(3)
    order(site, job, uid=site.record(stranger).uid, end=True)
    site.run(12)
    status = published.read(site.base / "shared")
    (app,) = status.apps
    assert app.problem_code == "order_for_stranger"
    assert site.record(stranger).uid in " ".join(explanation(status.jobs[0], status, site.slurm.now))
