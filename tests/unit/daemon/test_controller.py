from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metasched.core.model import Hold, NodeAdvice, PlannedRun
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason
from metasched.shared_dir import published_status
from metasched.slurm.client import JobState
from metasched.store import EndCause
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm, Trainer
from tests.unit.site import ME, DyingClient, FakeSite, Killed

LAS = {"queue_thresholds_gpu_seconds": (100.0,), "promote_knob": 1000.0}


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path)
    yield made
    made.close()


def done(site, *job_ids):
    """A function that returns whether the daemon has recorded all these jobs as completed."""

    def seen():
        ended = {record.slurm_job_id for record in site.store.recent_jobs(100) if record.end_state == "COMPLETED"}
        return ended >= set(job_ids)

    return seen


def causes(site, slurm_job_id):
    return [run.cause for run in site.store.runs(site.record(slurm_job_id).uid)]


def kinds(site, slurm_job_id):
    return [event.kind for event in site.store.recent_events(1000, site.record(slurm_job_id).uid)]


def test_a_held_job_is_stamped_admin_held_and_run(site):
    """Intake stamps a uid that the owner cannot change, and sets a hold that the owner cannot release."""
    blocker = site.add("--gres=gpu:4", "-N4", seconds=60, tag="preempt=no")
    site.run(5)
    job = site.add("--gres=gpu:1", seconds=5)
    site.run(5)
    assert site.slurm.job(job).hold is Hold.ADMIN
    assert site.slurm.job(job).admin_comment == f"metasched:{site.record(job).uid}"
    site.slurm.owner_release(job)
    site.run(5)
    assert site.state(job) is JobState.PENDING
    site.run_until(done(site, blocker, job))
    assert causes(site, job) == [EndCause.FINISHED]


def test_a_job_that_nobody_held_is_held_by_the_daemon(site):
    """Without the job_submit plugin the daemon holds a tagged job that pends unheld, and the plan starts it."""
    other = site.slurm.add("--gres=gpu:4", "-N4", user="somebody")
    site.slurm.tick(1)
    job = site.slurm.add("--gres=gpu:1", comment="metasched", user=ME)
    site.run(5)
    assert site.slurm.job(job).hold is Hold.ADMIN
    site.slurm.cancel(other)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)


def test_an_untagged_job_is_never_written_to(site):
    """No call to Slurm names a job without a tag; its GPUs count as taken."""
    other = site.slurm.add("--gres=gpu:4", "-N4", user="somebody")
    held = site.slurm.add("--hold", "--gres=gpu:1", user="somebody", comment="not metasched")
    job = site.add("--gres=gpu:1")
    site.run(30)
    assert site.state(job) is JobState.PENDING
    assert not [call for call in site.slurm.calls if call[1] in (other, held)]
    assert site.slurm.job(held).hold is Hold.USER


def test_jobs_of_configured_partitions_are_scheduled_without_a_tag(tmp_path):
    """The section [intake] names the partition."""
    site = FakeSite(tmp_path)
    site.config = site.config.model_copy(
        update={"intake": site.config.intake.model_copy(update={"partitions": ("main",)})}
    )
    site.start()
    job = site.slurm.add("--hold", "--gres=gpu:1", user=ME)
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.close()


def test_a_preempted_job_checkpoints_waits_and_resumes(tmp_path):
    """LAS preempts the job with more service by signal and mailbox; it completes in a second run."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    site.parameters = LAS
    site.start()
    first = site.add("--gres=gpu:4", seconds=100)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=20)
    site.run_until(done(site, second))
    assert [name for _, name in site.slurm.trainer(first).signals] == ["SIGUSR2"]
    site.run_until(done(site, first))
    assert causes(site, first) == [EndCause.PREEMPTED, EndCause.FINISHED]
    assert causes(site, second) == [EndCause.FINISHED]
    site.close()


def test_the_successor_is_queued_before_the_victim_is_stopped(tmp_path):
    """The swap order of the plan reaches Slurm: release of the successor, then the signal to the victim."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    site.parameters = LAS
    site.start()
    first = site.add("--gres=gpu:4", seconds=100)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=20)
    site.run_until(lambda: site.state(second) is JobState.RUNNING)
    calls = site.slurm.calls
    assert calls.index(("release", second)) < calls.index(("signal", first))
    site.close()


def test_a_trainer_that_is_not_ready_is_requeued_by_slurm(tmp_path):
    """The preemption signal would kill a script that has not reported to handle it, so Slurm requeues the job."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    site.parameters = LAS
    site.start()
    plain = site.slurm.add("--hold", "--gres=gpu:4", comment="metasched", user=ME)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=20)
    site.run_until(done(site, second))
    assert [name for _, name in site.slurm.trainer(plain).signals] == ["SIGTERM"]
    site.run_until(lambda: site.state(plain) is JobState.RUNNING)
    site.close()


def test_an_unresponsive_trainer_is_requeued_after_its_grace_time(tmp_path):
    """A run whose trainer ignores the stop request ends with the cause UNRESPONSIVE."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),), kill_wait=5.0), policy="las")
    site.parameters = LAS
    site.start()
    unresponsive = site.add("--gres=gpu:4", seconds=100, stop_seconds=None)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=5)
    asked = site.slurm.now
    site.run_until(done(site, second))
    assert site.slurm.now >= asked + site.config.schedule.grace_seconds
    assert causes(site, unresponsive)[0] is EndCause.UNRESPONSIVE
    site.run_until(done(site, unresponsive))
    site.close()


@pytest.mark.parametrize("code", [1, 137])
def test_a_job_that_fails_on_a_stop_request_is_requeued(tmp_path, code):
    """A run that fails on the daemon's request does not make the job fail."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    site.parameters = LAS
    site.start()
    clumsy = site.add("--gres=gpu:4", seconds=100, stop_exit_code=code)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=5)
    site.run_until(done(site, second, clumsy))
    assert "rescued" in kinds(site, clumsy)
    site.close()


def test_an_elastic_job_grows_when_others_end_and_shrinks_when_they_arrive(tmp_path):
    """A resize is a stop, an update and a start at another size; each run has the placement that was decided."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)))
    blocker = site.add("--gres=gpu:3", tag="preempt=no", seconds=30)
    job = site.add("--gres=gpu:1", tag="min_gpus=1 max_gpus=4", seconds=200)
    site.run(60)
    late = site.add("--gres=gpu:2", tag="preempt=no", seconds=500)
    site.run_until(done(site, blocker, job))
    runs = site.store.runs(site.record(job).uid)
    assert [run.placement.gpus for run in runs] == [1, 4, 2]
    assert [run.cause for run in runs] == [EndCause.RESIZED, EndCause.RESIZED, EndCause.FINISHED]
    assert site.state(late) is JobState.RUNNING
    site.close()


def test_a_cpu_only_job_is_suspended_while_another_runs(tmp_path):
    """Suspension frees CPUs: the other job runs meanwhile, and the first one completes in the same run."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1", gpus=0),)), policy="las")
    site.parameters = LAS
    site.start()
    first = site.add("-n1", "-c16", "--mem=1000", tag="preempt=suspend", seconds=150)
    site.run(120)
    second = site.add("-n1", "-c16", "--mem=1000", tag="preempt=suspend", seconds=10)
    site.run_until(lambda: site.state(first) is JobState.SUSPENDED)
    site.run_until(done(site, first, second))
    assert len(site.store.runs(site.record(first).uid)) == 1
    assert site.record(first).ran_seconds == pytest.approx(150, abs=5)
    site.close()


def test_a_job_that_an_admin_suspended_is_not_resumed(site):
    """Only the admin resumes the job."""
    job = site.add("--gres=gpu:1", seconds=30)
    site.run(5)
    site.slurm.suspend(job)
    site.run(60)
    assert site.state(job) is JobState.SUSPENDED
    site.slurm.resume(job)
    site.run_until(done(site, job))


def test_a_run_that_its_owner_requeues_is_recorded_as_lost(site):
    """The job is held again, and the plan starts it once more."""
    job = site.add("--gres=gpu:1", seconds=30)
    site.run(10)
    site.slurm.owner_requeue(job)
    site.run_until(done(site, job))
    assert causes(site, job) == [EndCause.LOST, EndCause.FINISHED]
    assert len(site.slurm.trainer(job).starts) == 2


def test_jobs_of_a_lost_node_start_elsewhere_at_once(site):
    """Slurm's own requeue would delay them by two minutes."""
    job = site.add("--gres=gpu:4", seconds=60)
    site.run(10)
    (node,) = site.slurm.job(job).allocated
    site.slurm.node_down(node)
    lost_at = site.slurm.now
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    assert node not in site.slurm.job(job).allocated
    assert site.slurm.now - lost_at < 60
    site.run_until(done(site, job))


def test_words_of_an_admin_in_admin_comment_are_kept(site):
    """They come after the stamp, and before the error of the tag while there is one."""
    job = site.slurm.add("--hold", "--gres=gpu:1", comment="metasched min_gpus=x", user=ME)
    site.slurm.stamp(job, "cost centre 7")
    site.run(5)
    stamp = f"metasched:{site.record(job).uid} cost centre 7"
    assert site.slurm.job(job).admin_comment.startswith(f"{stamp} not scheduled: ")
    site.slurm.owner_edit(job, comment="metasched")
    site.run(5)
    assert site.slurm.job(job).admin_comment == stamp


@pytest.mark.parametrize("earlier", [False, True], ids=["present", "earlier"])
def test_a_job_with_a_malformed_tag_runs_once_the_tag_is_corrected(site, earlier):
    """Status and AdminComment have the error, also in the form of earlier releases."""
    job = site.add("--gres=gpu:1", tag="min_gpu=1", seconds=5)
    site.run(30)
    assert site.state(job) is JobState.PENDING
    assert "min_gpus" in site.slurm.job(job).admin_comment
    (shown,) = published_status.read(site.base / "shared").jobs
    assert "min_gpus" in shown.reason
    if earlier:
        site.slurm.stamp(job, site.slurm.job(job).admin_comment.replace("not scheduled: ", ""))
        site.run(5)
    site.slurm.owner_edit(job, comment="metasched min_gpus=1")
    site.run_until(done(site, job))
    assert site.record(job).error is None
    assert site.slurm.job(job).admin_comment == f"metasched:{site.record(job).uid}"


def test_a_job_is_not_released_before_its_dependency_is_met(site):
    """The status names the dependency."""
    job = site.add("--gres=gpu:1", "--dependency=afterok:99")
    site.run(15)
    assert ("release", job) not in site.slurm.calls
    assert "afterok:99" in published_status.read(site.base / "shared").jobs[0].reason


@pytest.mark.parametrize("freed", [False, True])
def test_a_job_starts_once_its_dependency_is_met(site, freed):
    """Slurm updates dependencies of unheld jobs only: the job is held again, then released for its placement."""
    first = site.add("--gres=gpu:4", seconds=30)
    second = site.add("--gres=gpu:4", f"--dependency=afterok:{first}", seconds=5)
    site.run(10)
    if freed:
        site.slurm._show(site.slurm._jobs[second], eligible=site.slurm.now)
    site.run_until(done(site, first))
    assert site.slurm.trainer(second).starts == ()
    site.run_until(done(site, second))
    assert len(site.slurm.trainer(second).starts) == 1
    assert "started_without_us" not in {event.kind for event in site.store.recent_events()}


def test_a_job_is_not_released_before_its_begin_time(site):
    """The user's option --begin sets that time."""
    job = site.add("--gres=gpu:1", "--begin=now+100", seconds=5)
    submitted = site.slurm.now
    site.run_until(done(site, job))
    assert site.slurm.job(job).started >= submitted + 100


@pytest.mark.parametrize("kept_by", ["dependency", "begin", "hold"])
def test_a_job_that_has_become_startable_brings_a_round_forward(tmp_path, kept_by):
    """An early round starts as for an arrival; until then, the status no longer has the former obstacle."""
    site = FakeSite(tmp_path, policy="las", round_seconds=360.0, min_round_seconds=60.0)
    first = site.slurm.add("--gres=gpu:1", user="somebody", trainer=Trainer(seconds=40))
    options = {"dependency": [f"--dependency=afterok:{first}"], "begin": ["--begin=now+40"], "hold": []}[kept_by]
    job = site.add("--gres=gpu:1", *options, seconds=1000)
    if kept_by == "hold":
        site.slurm.stamp(job, "metasched:" + "0" * 16 + ":held")
    site.run(35)
    (shown,) = published_status.read(site.base / "shared").jobs
    assert shown.blocked
    if kept_by == "hold":
        site.slurm.owner_release(job)
    site.run(10)
    (shown,) = published_status.read(site.base / "shared").jobs
    assert (shown.blocked, shown.reason) == (False, "it waits for the next round")
    site.run(30)
    assert site.state(job) is JobState.RUNNING
    site.close()


def test_a_run_of_less_than_a_second_counts(site):
    """Slurm lists the same second as its start and its end."""
    job = site.add("--gres=gpu:1", seconds=0)
    site.run_until(done(site, job))
    assert causes(site, job) == [EndCause.FINISHED]
    assert published_status.read(site.base / "shared").finished[0].runs == 1


def test_a_released_job_that_slurm_does_not_start_gives_way_to_others(tmp_path):
    """It is held again after its start time, Slurm's reason is recorded, and other jobs get its GPUs."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), grace_seconds=5.0, start_seconds=5.0)
    stuck = site.add("--gres=gpu:4", seconds=5)
    site.slurm.node_down("n1")
    site.slurm._nodes.down.clear()
    nodes = site.slurm._nodes
    nodes.choose = lambda job, now: None if job.slurm_job_id == stuck else type(nodes).choose(nodes, job, now)
    other = site.add("--gres=gpu:4", seconds=5)
    site.run_until(done(site, other))
    assert "not_started" in kinds(site, stuck)
    del nodes.choose
    site.run_until(done(site, stuck))
    site.close()


def test_the_daemon_acts_only_some_time_after_an_outage(site):
    """During the outage nothing is decided; afterwards the daemon only observes for the settling time."""
    job = site.add("--gres=gpu:1", seconds=20)
    with site.slurm.outage():
        site.run(20)
        assert site.controller.slurm_error
    back = site.slurm.now
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    assert site.slurm.now >= back + site.config.slurm.settle_seconds
    site.run_until(done(site, job))


def test_details_of_old_jobs_and_rounds_are_deleted_at_each_poll(site):
    """The configured age decides; the job and its runs remain."""
    history = site.config.history.model_copy(update={"days": 30 / 86400})
    site.config = site.config.model_copy(update={"history": history})
    site.start()
    job = site.add("--gres=gpu:1", seconds=5)
    site.run_until(done(site, job))
    assert site.store.recent_actions()
    site.run(40)
    assert not site.store.recent_actions()
    assert site.store.recent_rounds()[-1].at >= site.slurm.now - 40
    assert causes(site, job) == [EndCause.FINISHED]


def test_a_reused_slurm_job_id_is_a_new_job(site):
    """After a controller crash the new job is recorded under its own uid, and the forgotten one ends as gone."""
    lost = site.add("--hold", "--gres=gpu:1", "--begin=now+1000")
    site.run(2)
    uid = site.record(lost).uid
    site.slurm.crash()
    again = site.add("--gres=gpu:1", seconds=5)
    assert again == lost
    site.run_until(done(site, again))
    site.run(40)
    old = site.store.job(uid)
    assert old.end_state == "GONE"
    assert len({record.uid for record in site.records()}) == 2


def test_array_tasks_are_jobs_of_their_own(site):
    """Each task has its own uid and runs; all carry the array's stamp."""
    array = site.add("--array=0-3", "--gres=gpu:4", seconds=5)
    tasks = [f"{array}_{task}" for task in range(4)]
    site.run_until(done(site, *tasks))
    uids = {site.record(task).uid for task in tasks}
    assert len(uids) == 4
    assert len({uid.partition("_")[0] for uid in uids}) == 1


def test_rounds_that_change_nothing_write_no_lease(site):
    """A job that keeps its placement runs on over many rounds, in which its lease is not written again."""
    job = site.add("--gres=gpu:1", seconds=100)
    site.run(5)
    lease = site.base / "shared" / "mailbox" / site.record(job).uid / "lease.json"
    before = lease.stat()
    site.run(50)
    assert site.record(job).current.renewals >= 4
    assert (lease.stat().st_ino, lease.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    site.run_until(done(site, job))
    assert causes(site, job) == [EndCause.FINISHED]


def test_a_policy_that_fails_leaves_the_last_round_in_force(site, monkeypatch):
    """An exception of third-party code ends neither the running jobs nor the daemon."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(5)

    def broken(snapshot, state):
        raise ZeroDivisionError

    monkeypatch.setattr(site.controller.policy, "decide", broken)
    site.run(30)
    assert site.state(job) is JobState.RUNNING
    assert any(event.kind == "policy_failed" for event in site.store.recent_events(100))


def test_a_round_whose_snapshot_cannot_be_stored_stands(site, monkeypatch):
    """A policy's computation may give what is no JSON: the jobs start all the same, and the daemon goes on."""

    def broken(snapshot):
        raise TypeError(snapshot)

    monkeypatch.setattr(site.controller._snapshots, "encode", broken)
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(5)
    assert site.state(job) is JobState.RUNNING
    assert site.store.snapshot(site.controller.round_number) is None


def test_the_actions_of_a_round_do_not_wait_for_its_snapshot(tmp_path):
    """It is stored at the end of the same poll; a daemon that is killed before that leaves a round without one."""
    site = FakeSite(tmp_path)
    site.add("--gres=gpu:1", seconds=60)
    site.start(DyingClient(site.slurm, 2, after=True))
    with pytest.raises(Killed):
        site.run(5)
    assert site.controller.round_number == 1
    assert site.store.snapshot(1) is None
    site.start()
    site.run(5)
    assert site.store.snapshot(site.controller.round_number) is not None
    assert [job.status for job in site.status().jobs] == ["running"]
    site.close()


def test_advice_on_the_number_of_nodes_is_published(site, monkeypatch):
    """It is that of the latest round."""
    advice, decide = NodeAdvice("v100", 4, 2, 0.25, 0.5), site.controller.policy.decide

    def advised(snapshot, state):
        decision, after = decide(snapshot, state)
        return replace(decision, advice=(advice,)), after

    monkeypatch.setattr(site.controller.policy, "decide", advised)
    site.run(70)
    (published,) = published_status.read(site.base / "shared").advice
    assert asdict(published) == asdict(advice)


def test_planned_runs_are_published_and_outlive_the_daemon(site, monkeypatch):
    """They are those of the latest round; the store has them for a daemon that starts."""
    job, decide, run = site.add("--gres=gpu:1", seconds=600), site.controller.policy.decide, PlannedRun(500.0, 240.0)

    def planning(snapshot, state):
        decision, after = decide(snapshot, state)
        return replace(decision, planned={one.uid: run for one in snapshot.jobs}), after

    monkeypatch.setattr(site.controller.policy, "decide", planning)
    site.run(70)
    (published,) = published_status.read(site.base / "shared").jobs
    assert asdict(published.planned) == asdict(run)
    assert site.state(job) is JobState.RUNNING
    assert site.store.planned_runs() == {published.uid: run}


def test_degraded_rounds_are_told_recorded_once_and_counted(site, monkeypatch):
    """Every job's reason has it, the status counts its rounds, and it ends with the first round without it."""
    site.add("--gres=gpu:1", seconds=600)
    site.run(5)
    decide, degraded = site.controller.policy.decide, Reason.of(Code.TIME_SHARES_DEGRADED, substitute="equal_shares")

    def degrades(snapshot, state):
        decision, after = decide(snapshot, state)
        return replace(decision, degraded=degraded), after

    monkeypatch.setattr(site.controller.policy, "decide", degrades)
    before = site.controller.round_number
    site.run(60)
    rounds = site.controller.round_number - before
    status = published_status.read(site.base / "shared")
    assert rounds > 1
    assert status.degraded_rounds == rounds
    assert status.degraded == words(degraded)
    assert all(words(degraded) in job.reason for job in status.jobs)
    assert [event.kind for event in site.store.recent_events(100)].count("policy_degraded") == 1
    monkeypatch.setattr(site.controller.policy, "decide", decide)
    site.run(60)
    status = published_status.read(site.base / "shared")
    assert (status.degraded, status.degraded_rounds) == ("", rounds)


def test_a_stop_request_is_sent_again_after_a_crash_before_its_signal(tmp_path):
    """A daemon killed between the record of a stop and its signal delays the successor by less than a grace time."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las", grace_seconds=1000.0)
    site.parameters = LAS
    site.start()
    first = site.add("--gres=gpu:4", seconds=1000)
    site.run(40)
    second = site.add("--gres=gpu:4", seconds=20)

    def die(slurm_job_id, signal):
        raise Killed

    site.slurm.signal = die
    with pytest.raises(Killed):
        site.run(20)
    del site.slurm.signal
    restarted = site.slurm.now
    site.start()
    site.run_until(lambda: site.state(second) is JobState.RUNNING)
    assert site.slurm.now - restarted < 60
    site.run(2)
    assert causes(site, first) == [EndCause.PREEMPTED]
    site.close()


def scenario(site):
    """Submit three jobs to one node: the first shrinks to 2 GPUs for the second, the third waits; return their ids."""
    site.parameters = LAS
    site.start()
    return [
        site.add("--gres=gpu:4", tag="min_gpus=1 max_gpus=4", seconds=60),
        site.add("--gres=gpu:2", "--begin=now+40", seconds=40),
        site.add("--gres=gpu:3", "--begin=now+60", seconds=20),
    ]


MOST_WRITES = 15  # two more than the scenario has; with a later one nothing is killed


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_all_jobs_complete_wherever_the_daemon_is_killed(tmp_path_factory, data):
    """The daemon is killed before or after any write to Slurm and started again: every job completes."""
    base = tmp_path_factory.mktemp("died")
    at = data.draw(st.integers(1, MOST_WRITES), label="write")
    after = data.draw(st.booleans(), label="after it")
    away = data.draw(st.sampled_from([0.0, 3.0, 200.0]), label="seconds until the restart")
    # the kills are at writes, so that few polls lose none of them
    site = FakeSite(base, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las", poll_seconds=4.0, busy_poll_seconds=2.0)
    jobs = scenario(site)
    site.start(DyingClient(site.slurm, at, after=after))
    try:
        site.run_until(done(site, *jobs))
    except Killed:
        site.slurm.tick(away)
        site.start()
    site.run_until(done(site, *jobs))
    for job in jobs:
        started = [run for run in site.store.runs(site.record(job).uid) if run.started is not None]
        assert len(started) == len(site.slurm.trainer(job).starts)
        assert site.slurm.trainer(job).done >= 0
    assert all(site.record(job).end_state == "COMPLETED" for job in jobs)
    site.close()
