"""What users can send in large numbers: array tasks, jobs and reports. Other users' jobs do not wait for it."""

import itertools

import pytest

from metasched.configuration.config import Intake
from metasched.core.model import Hold
from metasched.intake import admission
from metasched.presentation.job_lookup import JobNotFoundError, find
from metasched.slurm import write_budget
from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import ME, FakeSite


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)))
    yield made
    made.close()


def submit(site, *options, stamped=True):
    """Submit a job with a hold that its owner could release; job_submit.lua leaves it stamped."""
    job = site.slurm.add("--hold", *options, comment="metasched", user=ME)
    for one in site.slurm._find(job):
        site.slurm._show(one, admin_comment=f"metasched:{int(job):016x}" if stamped else "")
    return job


def writes(site):
    return [call for call in site.slurm.calls if call[0] in {"hold", "adopt", "update", "release", "stamp"}]


@pytest.mark.parametrize("stamped", [True, False])
def test_an_array_is_held_by_one_write_and_split_where_it_starts(site, stamped):
    """The tasks that wait stay one record of Slurm, whatever their number."""
    array = submit(site, "--array=0-99", "--gres=gpu:1", stamped=stamped)
    site.run(8)
    assert writes(site)[0] == ("hold" if stamped else "adopt", array)
    assert [call for call in writes(site) if call[0] in {"hold", "adopt"} and call[1] == array] == [writes(site)[0]]
    assert len(writes(site)) == 1 + 3 * 4  # update, release, and a hold of the run, for each of the tasks that fit
    states = [job.state for job in site.slurm.jobs()]
    assert states.count(JobState.RUNNING) == 4
    assert len({job.job_id for job in site.slurm.jobs()}) == 5


def test_an_array_that_its_owner_released_is_held_by_one_write(site):
    """A release by others between two polls splits no task off either."""
    site.slurm.add("--gres=gpu:4", user="somebody")
    site.slurm.tick(1)
    array = submit(site, "--array=0-99", "--gres=gpu:1")
    site.slurm.owner_release(array)
    site.run(8)
    assert writes(site) == [("hold", array)]
    assert {job.hold for job in site.slurm.jobs() if job.array_job_id} == {Hold.ADMIN}


@pytest.mark.parametrize("stamped", [True, False])
def test_a_poll_makes_few_writes_for_many_jobs_and_starts_some_meanwhile(site, stamped, monkeypatch):
    """Holds over the budget are left to later polls; the first poll decides, starts and publishes already."""
    monkeypatch.setattr(write_budget, "MOST_WRITES", 20)
    jobs = [submit(site, "--gres=gpu:1", stamped=stamped) for _ in range(60)]
    site.controller.poll()
    assert len(writes(site)) <= 20 + 20 + 2 * 4  # of intake, of the plan, and of the starts
    assert [call[0] for call in writes(site)].count("release") == 4
    assert site.status().round == 1
    site.run(8)
    assert {site.slurm.job(job).hold for job in jobs if site.state(job) is JobState.PENDING} == {Hold.ADMIN}


def test_a_slow_slurm_gets_writes_for_a_limited_time(monkeypatch):
    """The budget is in time as well, because Slurm may need a second for each write."""
    now = itertools.count(step=write_budget.MOST_SECONDS / 2)
    budget = write_budget.WriteBudget(timer=lambda: next(now))
    assert [budget.admits() for _ in range(5)] == [True, True, True, False, False]
    assert budget.exhausted
    budget.renew()
    assert budget.admits()


def limited(tmp_path, policy="fifo", **intake):
    """A site with limits on what users may ask for."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy=policy)
    site.config = site.config.model_copy(update={"intake": Intake.model_validate(intake)})
    site.start()
    return site


def deferred(site):
    return {(one.user, one.jobs, one.job_ids, one.reason_code) for one in site.status().deferred}


def test_the_only_task_that_is_taken_in_is_held_by_the_record_of_its_array(tmp_path):
    """The tasks that are deferred share the record, too: a hold of the task alone would split it off."""
    site = limited(tmp_path, live_jobs=1)
    site.slurm.add("--gres=gpu:4", user="somebody")
    site.slurm.tick(1)
    array = submit(site, "--array=0-2", "--gres=gpu:1")
    site.slurm.owner_release(array)
    site.run(5)
    assert len(site.store.live_jobs()) == 1
    assert {call[1] for call in writes(site)} == {array}
    site.close()


def test_a_large_array_is_taken_in_by_parts_and_other_users_need_not_wait(site, monkeypatch):
    """A poll takes in few jobs, one of each user in turn; those that are not taken in are held."""
    monkeypatch.setattr(admission, "NEW_JOBS", 50)
    array = submit(site, "--array=0-199", "--gres=gpu:1")
    other = site.slurm.add("--hold", "--gres=gpu:1", comment="metasched", user="somebody")
    site.controller.poll()
    assert len(site.store.live_jobs()) == 50
    assert "somebody" in {job.user for job in site.store.live_jobs()}
    assert deferred(site) == {(ME, 151, (array,), "intake_continues")}
    site.run(5)
    assert len(site.store.live_jobs()) == 201
    assert not site.status().deferred
    assert other


def test_jobs_that_fit_free_gpus_are_taken_in_first(tmp_path):
    """A poll whose time is over has recorded the jobs that a round could start, and later polls record the others."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)))
    site.config = site.config.model_copy(update={"intake": Intake(seconds=1.0)})
    site.start()
    site.controller._intake._timer = map(float, range(10**6)).__next__  # each look at the clock takes a second
    large = [site.add("--nodes=2", "--gres=gpu:4") for _ in range(2)]
    small = site.add("--gres=gpu:2")
    site.controller.poll()
    assert [job.slurm_job_id for job in site.store.live_jobs()] == [small]
    assert {(one.jobs, one.reason_code) for one in site.status().deferred} == {(2, "intake_continues")}
    assert site.store.targets()
    site.run(5)
    assert {job.slurm_job_id for job in site.store.live_jobs()} == {small, *large}
    site.close()


def test_a_user_has_at_most_as_many_live_jobs_as_the_limit_says(tmp_path):
    """Further jobs are held, named in the status, and taken in as others end."""
    site = limited(tmp_path, limits=({"users": ["nobody", ME[:2] + "*"], "live_jobs": 6},))
    array = submit(site, "--array=0-9", "--gres=gpu:1", stamped=False)
    for one in site.slurm._find(array):
        one.trainer.seconds = 10
    site.run(5)
    assert len(site.store.live_jobs()) == 6
    assert deferred(site) == {(ME, 4, (array,), "too_many_live_jobs")}
    assert {job.hold for job in site.slurm.jobs() if job.state is JobState.PENDING} == {Hold.ADMIN}
    with pytest.raises(JobNotFoundError, match=f"not taken in yet: {ME} has 6 live jobs"):
        find(site.status(), f"{array}_9")
    site.slurm.owner_release(array)
    site.run(5)
    assert {job.hold for job in site.slurm.jobs() if job.state is JobState.PENDING} == {Hold.ADMIN}
    site.run_until(lambda: all(job.state is JobState.COMPLETED for job in site.slurm.jobs()))
    site.close()


def test_an_array_with_more_tasks_than_the_limit_is_not_taken_in_and_its_owner_is_told(tmp_path):
    """Slurm shows the reason in the array's AdminComment, written once; without the limit the array is taken in."""
    site = limited(tmp_path, limits=({"qos": ["BIG"], "array_tasks": 100}, {"array_tasks": 3}))
    array = submit(site, "--array=0-9", "--gres=gpu:1")
    exempt = submit(site, "--array=0-9", "--gres=gpu:1", "--qos=big")
    site.run(5)
    assert {job.slurm_job_id.partition("_")[0] for job in site.store.live_jobs()} == {exempt}
    told = "its array has 10 tasks, and [intake] limits allow 3: submit smaller arrays"
    assert site.slurm.job(f"{array}_9").admin_comment == f"metasched:{int(array):016x} not scheduled: {told}"
    assert [call for call in writes(site) if call[1] == array] == [("adopt", array)]
    site.config = site.config.model_copy(update={"intake": Intake()})
    site.start()
    site.run(5)
    assert len(site.store.live_jobs()) == 20
    assert site.slurm.job(f"{array}_9").admin_comment == f"metasched:{int(array):016x}"
    site.close()


def test_jobs_that_cannot_be_preempted_hold_no_more_gpus_than_the_limit(tmp_path):
    """Under LAS four jobs with preempt=no would keep all GPUs from others; over the limit they wait, and are told."""
    site = limited(tmp_path, "las", limits=({"non_preemptible_gpus": 2},))
    greedy = [site.add("--gres=gpu:1", tag="preempt=no", seconds=1000) for _ in range(4)]
    wide = site.add("--gres=gpu:4", tag="preempt=no")
    site.run(12)
    assert [site.state(job) for job in greedy].count(JobState.RUNNING) == 2
    honest = [site.add("--gres=gpu:1", seconds=20) for _ in range(2)]
    site.run_until(lambda: all(site.state(job) is JobState.COMPLETED for job in honest))
    told = {job.slurm_job_id: job.reason for job in site.status().jobs}
    waiting = next(job for job in greedy if site.state(job) is JobState.PENDING)
    assert f"; the limit [intake] non_preemptible_gpus=2 for {ME} leaves it" in told[waiting]
    assert told[wide] == f"it needs 4 GPUs, and the limit is [intake] non_preemptible_gpus=2 for {ME}"
    site.close()


def test_a_job_that_declares_two_steps_is_not_served_first_for_ever(tmp_path):
    """Under SRTF it comes first until it has done more steps; then its declaration counts no more, and it is told."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1", gpus=1),)), policy="srtf")
    liar = site.add("--gres=gpu:1", tag="model=m total_steps=2", seconds=1000)
    site.run(5)
    trainer = site.slurm.trainer(liar)

    def report(one, step):
        sizes = {"world_size": 1, "global_batch": 1, "per_gpu_batch": 1, "accumulation": 1}
        one.step = step
        one.write(site.slurm, kind="steps", step=step, steps=5, samples=5, seconds=5.0, loss=0.5, **sizes)

    report(trainer, 1)
    honest = site.add("--gres=gpu:1", tag="model=m total_steps=400", seconds=60)
    site.run(15)
    assert site.state(liar) is JobState.RUNNING
    report(trainer, 50)
    site.run_until(lambda: site.state(honest) is JobState.RUNNING)
    events = site.store.recent_events(100, site.record(liar).uid)
    assert "steps-passed" in {event.kind for event in events}
    site.close()
