"""Faults around the daemon that must end neither a job nor the daemon."""

import datetime as dt
import errno
import json
import os
import pwd
import threading
from types import SimpleNamespace

import pytest
import time_machine
from apscheduler.events import EVENT_JOB_REMOVED
from apscheduler.executors.debug import DebugExecutor
from structlog.testing import capture_logs

from metasched.configuration.file_names import LOCK
from metasched.core.model import Hold, Node, Snapshot
from metasched.core.policy import PolicyState
from metasched.daemon import process
from metasched.daemon.controller import Controller
from metasched.daemon.poll_timer import ClockTolerantScheduler, VariablePause
from metasched.intake import report_reading
from metasched.intake.run_tracking import MISSING_SECONDS
from metasched.shared_dir import mailbox as mailboxes
from metasched.shared_dir.lock import DaemonLock, LockFileError, LockLostError
from metasched.shared_dir.mailbox import Mailbox
from metasched.shared_dir.published_status import read as read_status
from metasched.slurm.client import JobState
from metasched.slurm.errors import NoSuchJobError, SlurmCommandError, SlurmTimeoutError, SlurmUnavailableError
from metasched.store import EndCause
from metasched.store.report_ingest import IngestResult
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las, LasParameters
from tests import builders
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm, Trainer
from tests.unit.site import ME, FakeSite

LAS = {"queue_thresholds_gpu_seconds": (100.0,), "promote_knob": 1000.0}


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path)
    yield made
    made.close()


@pytest.fixture
def las(tmp_path):
    """One node under LAS, where a new job preempts one with 100 GPU-seconds of service."""
    made = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    made.parameters = LAS
    made.start()
    yield made
    made.close()


def completed(site, *job_ids):
    def seen():
        return set(job_ids) <= {r.slurm_job_id for r in site.store.recent_jobs(100) if r.end_state == "COMPLETED"}

    return seen


def runs(site, slurm_job_id):
    return site.store.runs(site.record(slurm_job_id).uid)


def lease_of(site, slurm_job_id):
    return site.base / "shared" / "mailbox" / site.record(slurm_job_id).uid / "lease.json"


class Failing:
    """A client one of whose methods raises at its first calls."""

    def __init__(self, client, name, error, times=1):
        self._client, self._name, self._error, self.left = client, name, error, times

    def __getattr__(self, name):
        if name == self._name and self.left:
            self.left -= 1
            raise self._error
        return getattr(self._client, name)


# -- mailbox


def test_a_torn_lease_is_written_again(site):
    """A lease that a power failure left empty is replaced in the next round; the daemon and the job continue."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(5)
    lease_of(site, job).write_bytes(b"")
    site.run(15)
    assert json.loads(lease_of(site, job).read_text())["run"] == 1
    site.run_until(completed(site, job))
    assert len(runs(site, job)) == 1


def test_a_job_with_an_unreadable_lease_is_stopped_by_slurms_requeue(las):
    """No stop request reaches the trainer through a torn lease, so Slurm requeues the job and its successor starts."""
    first = las.add("--gres=gpu:4", seconds=100)
    las.run(30)
    lease_of(las, first).write_bytes(b"torn")
    las.controller.poll = lambda poll=las.controller.poll: (lease_of(las, first).write_bytes(b"torn"), poll())[1]
    second = las.add("--gres=gpu:4", seconds=5)
    las.run_until(lambda: las.state(second) is JobState.RUNNING, 15)
    assert ("requeue_hold", first) in las.slurm.calls


def test_a_full_shared_disk_ends_neither_daemon_nor_jobs(site, monkeypatch):
    """While nothing can be written there, running jobs continue and others wait; afterwards all complete."""
    running = site.add("--gres=gpu:1", seconds=30)
    site.run(5)

    def full(*_arguments, **_options):
        raise mailboxes.MailboxError(os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(mailboxes, "_replace", full)
        waiting = site.add("--gres=gpu:1", seconds=5)
        site.run(20)
    site.run_until(completed(site, running, waiting))


def test_a_stop_reaches_the_trainer_when_the_shared_disk_is_full(las, monkeypatch):
    """Where the stop request cannot be written, the signal alone suffices."""
    first = las.add("--gres=gpu:4", seconds=100)
    las.run(30)
    second = las.add("--gres=gpu:4", seconds=5)

    def full(*_arguments, **_options):
        raise mailboxes.MailboxError(os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Mailbox, "request_stop", full)
    las.run_until(completed(las, second), 60)
    assert [name for _, name in las.slurm.trainer(first).signals] == ["SIGUSR2"]


def test_a_job_completes_when_its_mailbox_cannot_be_cleared(site, monkeypatch):
    """An error of the shared file system does not keep an ended job from being finished in the store."""
    job = site.add("--gres=gpu:1", seconds=5)
    site.run(3)

    def refuse(_self, _uid):
        raise mailboxes.MailboxError(os.strerror(errno.EIO))

    monkeypatch.setattr(Mailbox, "clear", refuse)
    site.run_until(completed(site, job))


def test_a_job_that_slurm_forgot_does_not_remove_a_reused_job_id_from_the_index(site):
    """When the old job ends as gone, the index entry of its reused Slurm job id still names the new job."""
    lost = site.add("--hold", "--gres=gpu:1", "--begin=now+1000")
    site.run(2)
    site.slurm.crash()
    again = site.add("--gres=gpu:1", seconds=1000)
    assert again == lost
    site.run(50)
    (uid,) = (record.uid for record in site.store.live_jobs())
    assert (site.base / "shared" / "mailbox" / "address" / again).read_text().strip() == uid


def test_a_running_trainer_gets_the_signal_of_its_lease(las):
    """After a reload with another signal, runs that began before it still get the signal that their trainers handle."""
    first = las.add("--gres=gpu:4", seconds=100)
    las.run(30)
    slurm = las.config.slurm.model_copy(update={"signal": "SIGUSR1", "exit_code": 86})
    las.controller.reconfigure(las.config.model_copy(update={"slurm": slurm}), las.controller.policy)
    las.run(15)
    assert json.loads(lease_of(las, first).read_text())["requeue"] == {"by": "slurm", "exit_code": 85}
    second = las.add("--gres=gpu:4", seconds=5)
    las.run_until(completed(las, second))
    assert [name for _, name in las.slurm.trainer(first).signals] == ["SIGUSR2"]
    assert runs(las, first)[0].cause is EndCause.PREEMPTED


def test_the_requeue_method_of_a_lease_follows_the_reloaded_exit_code(site):
    """The wrapper requeues for an exit code that Slurm does not requeue by itself."""
    slurm = site.config.slurm.model_copy(update={"exit_code": 86})
    site.controller.reconfigure(site.config.model_copy(update={"slurm": slurm}), site.controller.policy)
    job = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    assert json.loads(lease_of(site, job).read_text())["requeue"] == {"by": "wrapper", "exit_code": 86}


# -- Slurm


@pytest.mark.parametrize("error", [SlurmTimeoutError, SlurmUnavailableError])
def test_a_requeue_of_a_failed_run_is_retried_when_slurm_does_not_answer(las, error):
    """A run that failed on the daemon's stop is requeued although the controller was away for a moment."""
    clumsy = las.add("--gres=gpu:4", seconds=100, stop_exit_code=1)
    las.run(40)
    las.start(Failing(las.slurm, "requeue_hold", error("away"), times=3))
    second = las.add("--gres=gpu:4", seconds=5)
    las.run_until(completed(las, second, clumsy))


def test_a_job_on_whole_nodes_is_not_restarted(las):
    """A job that Slurm gives more GPUs than it asked for (--exclusive) completes in one run."""
    job = las.add("--exclusive", "--gres=gpu:2", seconds=60)
    other = las.add("--gres=gpu:2", seconds=5)
    las.run_until(completed(las, job, other))
    assert len(las.slurm.trainer(job).starts) == 1


def test_untyped_gpus_are_scheduled(tmp_path):
    """On a cluster whose GPUs have no type, jobs are not restarted."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1", gpu_type=""), FakeNode("n2", gpu_type=""))))
    jobs = [site.add("--gres=gpu:4", seconds=40) for _ in range(3)]
    elastic = site.add("--gres=gpu:1", tag="min_gpus=1 max_gpus=4", seconds=40)
    site.run_until(completed(site, *jobs, elastic))
    assert all(len(site.slurm.trainer(job).starts) == 1 for job in jobs)
    site.close()


def test_a_job_with_bad_constraints_is_released_again_a_round_later(site):
    """Slurm holds a job with bad constraints; its reason is recorded."""
    job = site.add("--gres=gpu:1")
    release = site.slurm.release

    def refuse(slurm_job_id):
        release(slurm_job_id)
        site.slurm._show(site.slurm._one(slurm_job_id), hold=Hold.USER, reason="BadConstraints")

    site.slurm.release = refuse
    site.run(40)
    assert site.slurm.calls.count(("release", job)) <= 5
    events = {event.kind: event.text for event in site.store.recent_events(100, site.record(job).uid)}
    assert "BadConstraints" in events["not_started"]


def test_intake_ends_at_the_first_call_that_slurm_does_not_answer(site):
    """Each further call of the same poll would wait for its timeout, too."""
    for _ in range(20):
        site.add("--gres=gpu:1")
    client = Failing(site.slurm, "adopt", SlurmTimeoutError("away"), times=1000)
    site.start(client)
    site.controller.poll()
    assert client.left == 999
    client.left = 0
    site.run_until(lambda: all(job.admin_comment for job in site.slurm.jobs()))


def test_arrivals_during_an_outage_start_an_early_round(tmp_path):
    """A job that arrives while Slurm settles after an outage does not wait for a regular round."""
    site = FakeSite(tmp_path, round_seconds=1000.0)
    site.run(5)
    with site.slurm.outage():
        site.run(5)
    site.run(2)
    job = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(job) is JobState.RUNNING, 30)
    site.close()


def test_a_restarted_daemon_decides_a_round_at_once(tmp_path):
    """A daemon that starts does not act for a whole round on the last decision of an earlier daemon."""
    site = FakeSite(tmp_path, round_seconds=1000.0)
    site.run(5)
    job = site.add("--gres=gpu:1")
    site.controller.current_snapshot()  # taken in, and then the daemon dies
    site.start()
    site.run_until(lambda: site.state(job) is JobState.RUNNING, 30)
    site.close()


def test_a_lost_node_starts_an_early_round(tmp_path):
    """Jobs of a node that goes down are placed on other nodes before the regular round."""
    site = FakeSite(tmp_path, round_seconds=1000.0)
    job = site.add("--gres=gpu:4", seconds=60)
    site.run(10)
    (node,) = site.slurm.job(job).allocated
    site.slurm.node_down(node)
    site.run_until(lambda: site.state(job) is JobState.RUNNING, 30)
    assert node not in site.slurm.job(job).allocated
    site.close()


def test_a_job_on_a_draining_node_runs_to_its_end_there(site):
    """A drained node accepts no new jobs, and its job is not restarted."""
    job = site.add("--gres=gpu:4", seconds=60)
    site.run(10)
    (node,) = site.slurm.job(job).allocated
    site.slurm.node_drain(node)
    site.run_until(completed(site, job))
    assert len(site.slurm.trainer(job).starts) == 1


def test_a_run_between_two_polls_is_recorded(site):
    """A job that started and ended while the daemon was away has its run and its service."""
    job = site.add("--gres=gpu:2", seconds=50)
    site.run_until(lambda: ("release", job) in site.slurm.calls)
    site.store.close()
    site.slurm.tick(100)
    site.store = None
    site.start()
    site.run_until(completed(site, job))
    (run,) = runs(site, job)
    assert run.cause is EndCause.FINISHED
    assert site.record(job).attained == {"v100": pytest.approx(100, abs=2)}


def test_a_released_job_that_is_cancelled_before_its_start_is_withdrawn(site):
    """Its only run ends with the cause WITHDRAWN."""
    blocker = site.slurm.add("--gres=gpu:4", "-N4", user="somebody")
    site.slurm.tick(1)
    site.slurm.node_drain("n1")
    job = site.add("--gres=gpu:1")
    site.slurm._nodes.choose = lambda job, now: None
    site.slurm.cancel(blocker)
    site.slurm.tick(31)
    site.run_until(lambda: ("release", job) in site.slurm.calls)
    site.slurm.cancel(job)
    site.run(5)
    assert [run.cause for run in runs(site, job)] == [EndCause.WITHDRAWN]


def test_a_job_with_an_unknown_gpu_type_runs_once_a_node_has_the_type(site):
    """The tag's error ends without an edit by the user."""
    job = site.add("--gres=gpu:1", tag="gpu_types=a100", seconds=5)
    site.run(5)
    assert site.record(job).error
    site.slurm._nodes.by_name["n5"] = FakeNode("n5", gpu_type="a100")
    site.run_until(completed(site, job))


def test_the_last_task_of_an_array_is_held_alone(site):
    """The last task has the array's own job id, by which Slurm would hold the other tasks, too."""
    array = site.add("--array=0-1", "--gres=gpu:4", seconds=30)
    last = f"{array}_1"
    site.run_until(lambda: site.state(last) is JobState.RUNNING)
    assert site.slurm.job(last).job_id == int(array)
    site.slurm.exit(last, 85)
    site.run_until(completed(site, f"{array}_0", f"{array}_1"))
    assert not [call for call in site.slurm.calls if call == ("hold", array)]


class Refusing:
    """A client some of whose methods raise for one job."""

    def __init__(self, client, slurm_job_id, error, *names):
        self._client, self._slurm_job_id, self._error, self.refuses = client, slurm_job_id, error, names

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(slurm_job_id, *arguments):
            if slurm_job_id == self._slurm_job_id:
                raise self._error
            return method(slurm_job_id, *arguments)

        return call if name in self.refuses else method


def test_a_job_that_slurm_refuses_to_start_waits_longer_each_time(site):
    """Other jobs get its GPUs meanwhile, the status has the error, attempts are few, and it starts in the end."""
    stuck = site.add("--gres=gpu:4", "-N4", seconds=5)
    site.start(Refusing(site.slurm, stuck, SlurmCommandError("no such licence"), "update"))
    site.run(5)
    others = [site.add("--gres=gpu:4", "-N4", seconds=30) for _ in range(2)]
    site.run_until(completed(site, *others), 200)
    site.run(5)
    (shown,) = (job for job in read_status(site.base / "shared").jobs if job.slurm_job_id == stuck)
    assert "no such licence" in shown.reason
    attempts = [action for action in site.store.recent_actions(1000) if action.uid == site.record(stuck).uid]
    assert 3 <= len(attempts) <= 6
    site.start()
    site.run_until(completed(site, stuck))


def test_a_job_whose_commands_time_out_does_not_keep_others_waiting(site):
    """After each outage that the job's commands cause, other jobs are started."""
    stuck = site.add("--gres=gpu:1")
    site.start(Refusing(site.slurm, stuck, SlurmTimeoutError("no answer"), "update"))
    other = site.add("--gres=gpu:1", seconds=5)
    site.run_until(completed(site, other), 100)


def test_a_job_that_cannot_be_stamped_does_not_keep_others_waiting(site):
    """Slurm does not answer the write for a new job: polls continue without it, and it runs once Slurm answers."""
    stuck = site.add("--gres=gpu:1", seconds=5)
    client = Refusing(site.slurm, stuck, SlurmTimeoutError("no answer"), "adopt")
    site.start(client)
    other = site.add("--gres=gpu:1", seconds=5)
    site.run_until(completed(site, other), 100)
    client.refuses = ()
    site.run_until(completed(site, stuck))


def test_a_failed_run_that_cannot_be_requeued_does_not_keep_others_waiting(las):
    """Slurm does not answer the requeue: polls continue, and the job stays live until it is requeued."""
    clumsy = las.add("--gres=gpu:4", seconds=35, stop_exit_code=1)
    las.run(30)
    client = Refusing(las.slurm, clumsy, SlurmTimeoutError("no answer"), "requeue_hold")
    las.start(client)
    las.add("--gres=gpu:4", seconds=5)
    las.run_until(lambda: las.state(clumsy) is JobState.FAILED)
    newcomer = las.add("--gres=gpu:1", seconds=20)
    las.run_until(lambda: "metasched" in las.slurm.job(newcomer).admin_comment, 100)
    client.refuses = ()
    las.run_until(completed(las, clumsy))


class Forgetful:
    """A client whose first releases get no answer; the very first does not reach Slurm either."""

    def __init__(self, client, times):
        self._client, self._times, self._calls = client, times, 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    def release(self, slurm_job_id):
        self._calls += 1
        if self._calls > 1:
            self._client.release(slurm_job_id)
        if self._calls <= self._times:
            raise SlurmTimeoutError("no answer")


def test_a_start_whose_answer_was_lost_is_not_counted_as_a_failure(site):
    """A job that runs is not deferred, neither now nor after a requeue."""

    def deferrals():
        return [event.kind for event in site.store.recent_events(1000, uid)].count("not_started")

    site.start(Forgetful(site.slurm, times=3))
    job = site.add("--gres=gpu:1")
    site.run(0.5)
    uid = site.record(job).uid
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(1)
    assert site.controller.current_snapshot().job[uid].blocked is None
    assert (deferrals(), site.record(job).not_before) == (1, None)
    site.run(20)
    site.slurm.requeue_hold(job)
    site.run_until(lambda: site.record(job).run > 2 and site.state(job) is JobState.RUNNING, 60)
    site.run(1)
    assert site.controller.current_snapshot().job[uid].blocked is None
    assert deferrals() == 1


def test_an_outage_during_the_actions_is_published(site):
    """The observe step of the same poll succeeded."""
    site.add("--gres=gpu:1")
    site.start(Failing(site.slurm, "update", SlurmUnavailableError("away")))
    site.run(1)
    assert read_status(site.base / "shared").slurm == "away"


def test_stops_of_a_round_are_signalled_together_and_one_that_is_refused_is_sent_again(las):
    """Each call of scancel reads Slurm's whole queue; one job's error keeps no other job from its signal."""
    jobs = [las.add("--gres=gpu:1", seconds=300) for _ in range(4)]
    las.run(150)
    sent, signal_jobs = [], las.slurm.signal

    def refusing(slurm_job_ids, signal):
        sent.append(list(slurm_job_ids))
        refused = {jobs[2]: SlurmCommandError("not now")} if len(sent) == 1 else {}
        return {**signal_jobs([one for one in slurm_job_ids if one not in refused], signal), **refused}

    las.slurm.signal = refusing
    second = las.add("--gres=gpu:4", seconds=5)
    las.run_until(completed(las, second))
    assert sorted(sent[0]) == sorted(jobs)
    assert sent[1:] == [[jobs[2]]]
    outcomes = [action.outcome for action in las.store.recent_actions(100) if action.kind == "stop"]
    assert sorted(outcomes) == ["not now", "ok", "ok", "ok", "ok"]
    assert {name for job in jobs for _, name in las.slurm.trainer(job).signals} == {"SIGUSR2"}


def test_an_outage_while_stops_are_signalled_leaves_all_of_them_to_later_polls(las):
    """Whether a signal has arrived is not known, so each job is sent its signal again, once Slurm answers."""
    jobs = [las.add("--gres=gpu:2", seconds=100) for _ in range(2)]
    las.run(40)
    client = Failing(las.slurm, "signal", SlurmUnavailableError("away"))
    las.start(client)
    second = las.add("--gres=gpu:4", seconds=5)
    las.run_until(lambda: not client.left)
    assert read_status(las.base / "shared").slurm == "away"
    las.run_until(completed(las, second))
    assert [name for job in jobs for _, name in las.slurm.trainer(job).signals] == ["SIGUSR2", "SIGUSR2"]
    outcomes = [action.outcome for action in las.store.recent_actions(100) if action.kind == "stop"]
    assert sorted(outcomes) == ["away", "away", "ok", "ok"]


def test_a_requeue_without_an_answer_keeps_no_trainer_from_its_signal(las):
    """The stop of a job without a trainer times out in the same poll."""
    trains = las.add("--gres=gpu:2", seconds=300)
    deaf = las.slurm.add("--gres=gpu:2", comment="metasched", user=ME, trainer=Trainer(seconds=300))
    las.run(150)
    las.start(Refusing(las.slurm, deaf, SlurmTimeoutError("no answer"), "requeue_hold"))
    las.run(1)
    las.add("--gres=gpu:4", seconds=5)
    since = las.slurm.now
    las.run(60)
    at, name = las.slurm.trainer(trains).signals[0]
    assert name == "SIGUSR2"
    assert at - since < 15


def test_a_refused_second_release_does_not_end_the_poll(site, monkeypatch):
    """The poll continues, and Slurm starts the job in a later cycle."""
    job = site.add("--gres=gpu:1")
    monkeypatch.setattr(site.slurm._nodes, "choose", lambda job, now: None)
    site.run_until(lambda: ("release", job) in site.slurm.calls)
    client = Failing(site.slurm, "release", NoSuchJobError("gone"))
    site.start(client)
    site.controller._actuator._delayed_starts[site.record(job).uid] = site.slurm.now - 5
    site.controller.poll()
    assert client.left == 0
    assert site.controller.slurm_error is None


def test_a_job_on_gpus_of_two_types_keeps_them_until_it_ends(site):
    """No plan can ask for such an allocation again, so the job is not restarted."""
    job = site.slurm.add("--gres=gpu:4", "-N2", user=ME, comment="metasched", trainer=Trainer(seconds=60))
    site.slurm.tick(1)
    site.slurm._show(site.slurm._one(job), allocated_gpu_type=None, gpu_type=None, gpu_types=("k80", "v100"))
    site.run(5)
    assert sorted(node.gpus for node in read_status(site.base / "shared").nodes) == [0, 0, 4, 4]
    site.run_until(completed(site, job))
    assert site.slurm.trainer(job).signals == []


# -- clock


def test_the_grace_time_begins_anew_when_the_clock_is_set_back(las):
    """An unresponsive trainer does not get an hour more when the clock is set back by an hour."""
    unresponsive = las.add("--gres=gpu:4", seconds=1000, stop_seconds=None)
    las.run(40)
    las.add("--gres=gpu:4", seconds=5)
    las.run_until(lambda: las.slurm.trainer(unresponsive).signals)
    las.run(5)
    las.slurm.now -= 3600
    las.run(15)
    assert ("requeue_hold", unresponsive) not in las.slurm.calls
    las.run(10)
    assert ("requeue_hold", unresponsive) in las.slurm.calls


def test_rounds_continue_when_the_clock_is_set_back(site):
    """A clock that was an hour ahead does not keep new jobs waiting for an hour."""
    site.run(5)
    site.slurm.now -= 3600
    job = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(job) is JobState.RUNNING, 30)


def test_the_daemon_ticks_on_when_the_clock_is_set_back():
    """Its scheduler goes by the clock on the wall, and must not sleep until that is as late again."""
    ticks = []

    def tick():
        ticks.append(dt.datetime.now(dt.UTC))
        if len(ticks) == 2:
            threading.Timer(0.1, clock.shift, [-3600]).start()

    scheduler = ClockTolerantScheduler(executors={"default": DebugExecutor()}, timezone=dt.UTC)
    scheduler.add_listener(lambda _: scheduler.shutdown(wait=False), EVENT_JOB_REMOVED)
    scheduler.add_job(tick, VariablePause(lambda: 0.4 if len(ticks) < 4 else None), misfire_grace_time=None)
    with time_machine.travel(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)) as clock:
        scheduler.start()
    assert (ticks[2] - ticks[1]).total_seconds() < -3000


# -- policies


def test_a_policy_state_that_cannot_be_stored_is_a_failure_of_the_policy(site, monkeypatch):
    """NaN in a policy's state leaves the last round in force, and the daemon continues."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(5)
    decide = site.controller.policy.decide
    monkeypatch.setattr(
        site.controller.policy,
        "decide",
        lambda snapshot, state: (decide(snapshot, state)[0], PolicyState(1, {"x": float("nan")})),
    )
    site.run(30)
    assert site.state(job) is JobState.RUNNING
    assert any(event.kind == "policy_failed" for event in site.store.recent_events(100))


def test_a_huge_elastic_request_does_not_stall_the_round():
    """A job that could use a hundred thousand GPUs is offered at most the GPUs of the cluster."""
    nodes = tuple(Node(f"n{i}", "v100", 4, 16, 64000, partitions=frozenset({"main"})) for i in range(4))
    jobs = [
        builders.job(uid, gpus, least, memory_per_unit=1)
        for uid, gpus, least in (("all", 16, 16), ("huge", 100_000, 1))
    ]
    decision, _ = Las(LasParameters()).decide(Snapshot(0.0, 1, 60.0, nodes, tuple(jobs)), PolicyState())
    offered = {grant.uid: grant.gpus for grant in (*decision.grants, *decision.fallback)}
    assert offered["huge"] <= 16


# -- users


def test_an_endless_report_file_does_not_stall_the_daemon(site, monkeypatch):
    """Users' sparse files are read to a limit when their jobs end, with a heartbeat for each read."""
    jobs = [site.add("--gres=gpu:1", seconds=5) for _ in range(4)]
    site.run(3)
    for job in jobs:
        directory = site.base / "shared" / "reports" / site.record(job).uid
        with (directory / "incarnation-1.jsonl").open("r+b") as file:
            file.truncate(2**40)
    monkeypatch.setattr(report_reading, "LAST_READS", 10)
    reads, signs = [], []
    ingest = report_reading.ingest
    monkeypatch.setattr(report_reading, "ingest", lambda *a: reads.append(1) or ingest(*a))
    site.controller._reports.heartbeat = lambda: signs.append(1)
    site.run_until(completed(site, *jobs))
    assert 40 <= len(reads) < 80
    assert len(signs) == len(reads)
    assert [event.kind for event in site.store.recent_events(100)].count("reports-unread") == 4


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_last_reports_of_many_jobs_are_read_over_several_polls(site, monkeypatch, forgotten):
    """After an outage no job is finished before its reports are read, whether Slurm still lists the job or not."""
    jobs = [site.add("--gres=gpu:1", seconds=30) for _ in range(3)]
    site.run(3)
    left = {site.record(job).uid: 4 for job in jobs}
    site.slurm.tick(60)
    if forgotten:
        site.slurm._jobs.clear()
        site.run(MISSING_SECONDS - 1)
    reads = []

    def ingest(_store, _reports, uid, *_arguments):
        reads[-1] += 1
        left[uid] -= 1
        return IngestResult(more=left[uid] > 0)

    monkeypatch.setattr(report_reading, "LAST_READS", 5)
    monkeypatch.setattr(report_reading, "ingest", ingest)
    while site.store.live_jobs():
        reads.append(0)
        site.slurm.tick(1)
        site.controller.poll()
        assert {uid for uid, more in left.items() if more} <= {record.uid for record in site.store.live_jobs()}
    assert set(left.values()) == {0}
    assert max(reads) <= 5 + len(jobs)


def test_report_directories_that_cannot_be_freed_are_one_event_of_each_job(site, monkeypatch):
    """A shared directory that refuses the rename at each poll does not fill the log."""

    def refuse(_mailbox, uid, _owner):
        raise mailboxes.MailboxError(f"reports/{uid}: Operation not permitted")

    monkeypatch.setattr(Mailbox, "free_reports", refuse)
    job = site.add("--gres=gpu:1")
    with capture_logs() as lines:
        site.run(10)
    assert not [line for line in lines if "Operation not permitted" in str(line)]
    events = [event.text for event in site.store.recent_events(100, site.record(job).uid)]
    assert len([text for text in events if "Operation not permitted" in text]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_report_directory_of_another_user_is_moved_aside(site):
    """The owner can make the directory and report in it; an event has the other user's id."""
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(3)
    uid = site.record(job).uid
    directory = site.base / "shared" / "reports" / uid
    os.chown(directory, 65534, 65534)
    site.run(3)
    assert not directory.exists()
    (told,) = (event.text for event in site.store.recent_events(100, uid) if event.kind == "reports-taken")
    assert "65534" in told
    directory.mkdir()
    line = {"v": 1, "t": site.slurm.now, "kind": "end", "step": 7, "samples": 7, "loss": None}
    (directory / "incarnation-2.jsonl").write_text(json.dumps(line) + "\n")
    site.run(3)
    assert site.record(job).progress_steps == 7


def test_an_unknown_user_is_looked_up_again(site, monkeypatch):
    """Reports are read as soon as the user's name is found."""
    report_reading.user_id.cache_clear()
    numbers = pwd.getpwnam
    asked = []

    def flaky(name):
        asked.append(name)
        if len(asked) < 5:
            raise KeyError(name)
        return numbers(name)

    monkeypatch.setattr(report_reading, "pwd", SimpleNamespace(getpwnam=flaky))
    job = site.add("--gres=gpu:1", seconds=60)
    site.run(20)
    assert site.record(job).current.ready_at is not None
    assert asked == [ME] * 5


# -- lock


def test_nothing_is_decided_once_the_lock_is_lost(site, tmp_path, monkeypatch):
    """The lock is checked before intake, and again after Slurm's answers, which may take long."""
    with DaemonLock(tmp_path / "lock") as lock:
        controller = Controller(
            site.config,
            site.slurm,
            site.slurm.settings(),
            site.store,
            Mailbox(tmp_path / "shared"),
            Fifo(),
            lock=lock,
            clock=lambda: site.slurm.now,
        )
        site.add("--gres=gpu:1")
        list_nodes = site.slurm.nodes
        monkeypatch.setattr(site.slurm, "nodes", lambda: (tmp_path / "lock").unlink() or list_nodes())
        with pytest.raises(LockLostError):
            controller.poll()
        assert controller.round_number == 0
        before = len(site.slurm.calls)
        with pytest.raises(LockLostError):
            controller.poll()
        assert len(site.slurm.calls) == before


def test_the_client_checks_the_lock_before_each_write(tmp_path, monkeypatch):
    """Much time may pass between a poll's check of the lock and a command."""
    config = tmp_path / "metasched.toml"
    config.write_text(f'[paths]\nstate = "{tmp_path}/state"\nshared = "{tmp_path}/shared"\n[policy]\nname = "fifo"\n')

    def write_without_lock(_choice, _timeout, before_write):
        (tmp_path / "shared" / LOCK).unlink()
        before_write()

    monkeypatch.setattr(process, "make_client", write_without_lock)
    with pytest.raises(LockLostError):
        process.run(config)


def test_a_file_system_without_locks_is_a_lock_file_error(tmp_path, monkeypatch):
    """ENOLCK does not mean that another daemon has the lock."""

    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("metasched.shared_dir.lock.fcntl.lockf", refuse)
    with pytest.raises(LockFileError):
        DaemonLock(tmp_path / "lock")
