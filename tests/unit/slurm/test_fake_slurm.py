"""The client contract on the fake, and what is the fake's own."""

import pytest

from metasched.core.model import Hold
from metasched.slurm.client import Geometry, JobState
from metasched.slurm.errors import NoSuchJobError, SlurmCommandError, SlurmUnavailableError
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm, Trainer

pytest.register_assert_rewrite("tests.fakes.client_contract")
from tests.fakes.client_contract import ClientContract  # noqa: E402  after the line above


class FakeWorld:
    """A FakeSlurm as the contract's world."""

    def __init__(self, nodes):
        self.client = FakeSlurm(
            [FakeNode(f"n{number + 1}", shards=2, rack=f"s{number // 2 + 1}") for number in range(nodes)], kill_wait=2
        )

    def submit(self, *options, does="sleep"):
        trainer = Trainer(stop_seconds=0.05)
        match does.split():
            case ["deaf"]:
                trainer.stop_seconds = None
            case ["exit", code]:
                trainer.seconds, trainer.exit_code = 0.5, int(code)
            case ["note", signal]:
                trainer.stop_signal = "none"
                assert signal == "USR2"
        return self.client.add(*options, trainer=trainer, script=does)

    def started(self, *options, does="sleep"):
        slurm_job_id = self.submit(*options, does=does)
        self.wait_state(slurm_job_id, JobState.RUNNING)
        return slurm_job_id

    def wait_ready(self, slurm_job_id):
        """A fake trainer is ready at once."""

    def job(self, slurm_job_id):
        return next(job for job in self.client.jobs() if job.slurm_job_id == slurm_job_id)

    def noted(self, slurm_job_id):
        return [name.removeprefix("SIG") for _, name in self.client.trainer(slurm_job_id).signals]

    def wait(self, condition, why):
        for _ in range(200):
            if condition({job.slurm_job_id: job for job in self.client.jobs()}):
                return
            self.client.tick(0.1)
        pytest.fail(f"never: {why}")

    def wait_state(self, slurm_job_id, state):
        self.wait(lambda seen: seen[slurm_job_id].state is state, f"job {slurm_job_id} is {state}")

    def pass_time(self, seconds):
        self.client.tick(seconds)

    def cancel(self, slurm_job_id):
        self.client.cancel(slurm_job_id)

    def owner_release(self, slurm_job_id):
        self.client.owner_release(slurm_job_id)

    def owner_requeue(self, slurm_job_id):
        self.client.owner_requeue(slurm_job_id)

    def node_down(self, name):
        self.client.node_down(name)

    def node_drain(self, name):
        self.client.node_drain(name)


class TestFakeSlurm(ClientContract):
    @pytest.fixture
    def world(self):
        return FakeWorld(4)

    @pytest.fixture
    def farm(self, request):
        return FakeWorld(request.param)


def two_by_two(delay=0):
    return Geometry(("n1", "n2"), 2, 4, 4, memory_per_node=2**30, delay=delay)


def state(slurm, slurm_job_id):
    return slurm.job(slurm_job_id).state


@pytest.fixture
def slurm():
    return FakeSlurm()


def test_nothing_happens_while_the_clock_stands(slurm):
    """A released job starts at the next tick."""
    job = slurm.add("--gres=gpu:1")
    assert state(slurm, job) is JobState.PENDING
    slurm.tick(0)
    assert state(slurm, job) is JobState.RUNNING


def test_a_trainers_work_ends_its_job_on_time(slurm):
    """Work done before a stop counts; time in suspension does not."""
    job = slurm.add("--gres=gpu:2", trainer=Trainer(seconds=100))
    slurm.tick(40)
    slurm.signal([job], "SIGUSR2")
    slurm.tick(1)
    assert (slurm.job(job).slurm_state, slurm.job(job).hold) == ("SPECIAL_EXIT", Hold.USER)
    slurm.update(job, two_by_two(delay=1))
    slurm.release(job)
    slurm.tick(2)
    assert slurm.job(job).allocated == {"n1": 2, "n2": 2}
    slurm.suspend(job)
    slurm.tick(1000)
    slurm.resume(job)
    slurm.tick(58)
    assert state(slurm, job) is JobState.RUNNING
    slurm.tick(1)
    assert (state(slurm, job), slurm.job(job).exit_code) == (JobState.COMPLETED, 0)
    assert slurm.job(job).ended == pytest.approx(slurm.now, abs=1)


def test_a_requeued_job_waits_two_minutes_unless_updated(slurm):
    """A release does not shorten the wait."""
    job = slurm.add("--gres=gpu:1")
    slurm.tick()
    slurm.requeue_hold(job)
    slurm.tick()
    slurm.release(job)
    slurm.tick(119)
    assert state(slurm, job) is JobState.PENDING
    slurm.tick(3)
    assert state(slurm, job) is JobState.RUNNING


def test_a_trainer_that_ignores_signals_is_killed_after_kill_wait(slurm):
    """The job is COMPLETING until then, and holds its GPUs."""
    job = slurm.add("--gres=gpu:4", trainer=Trainer(stop_seconds=None))
    slurm.tick()
    slurm.requeue_hold(job)
    slurm.tick(29)
    assert (state(slurm, job), slurm.job(job).allocated) == (JobState.COMPLETING, {"n1": 4})
    slurm.tick(2)
    assert (state(slurm, job), slurm.job(job).allocated) == (JobState.PENDING, {})


def test_a_successor_starts_when_its_nodes_are_free(slurm):
    """The job waits for the nodes that it requires, though others are free."""
    victim, successor = slurm.add("--gres=gpu:4", "-w", "n2"), slurm.add("--hold", "--gres=gpu:1")
    slurm.tick()
    slurm.update(successor, two_by_two())
    slurm.release(successor)
    slurm.tick(5)
    assert (state(slurm, successor), slurm.job(successor).reason) == (JobState.PENDING, "Resources")
    slurm.signal([victim], "SIGUSR2")
    slurm.tick(1)
    assert slurm.job(successor).started == slurm.job(victim).submitted


def test_a_lost_node_gets_no_jobs_until_it_is_back(slurm):
    """Its jobs are requeued without a hold."""
    job = slurm.add("-w", "n1")
    slurm.tick()
    slurm.node_down("n1")
    assert (state(slurm, job), slurm.job(job).hold) == (JobState.PENDING, Hold.NONE)
    slurm.tick(300)
    assert state(slurm, job) is JobState.PENDING
    slurm.node_up("n1")
    slurm.tick()
    assert state(slurm, job) is JobState.RUNNING


def test_an_outage_refuses_every_call_while_jobs_run_on(slurm):
    """The outage ends with the block."""
    job = slurm.add("--gres=gpu:1", trainer=Trainer(seconds=5))
    slurm.tick()
    with slurm.outage():
        slurm.tick(10)
        for call in (slurm.jobs, slurm.nodes, slurm.settings, lambda: slurm.hold(job)):
            with pytest.raises(SlurmUnavailableError):
                call()
    assert state(slurm, job) is JobState.COMPLETED


def test_a_crash_loses_young_jobs_and_reuses_their_ids(slurm):
    """Another job has the same id afterwards."""
    old = slurm.add("--hold", comment="old")
    slurm.tick(10)
    young = slurm.add("--hold", comment="young")
    slurm.crash()
    with pytest.raises(NoSuchJobError):
        slurm.job(young)
    again = slurm.add("--hold", comment="other")
    assert (again, slurm.job(old).comment, slurm.job(again).comment) == (young, "old", "other")


def test_a_scripted_trainer_sees_starts_and_signals(slurm):
    """The trainer acts through the fake: it exits, or schedules a call."""
    seen = []

    class Scripted(Trainer):
        def started(self, slurm, job):
            seen.append(("started", slurm.now, dict(job.allocated)))
            slurm.after(3, lambda: seen.append(("later", slurm.now)))

        def signalled(self, slurm, job, signal):
            seen.append((signal, slurm.now))
            slurm.exit(job.slurm_job_id, 85, after=2)

    job = slurm.add("--gres=gpu:1", trainer=Scripted())
    begin = slurm.now
    slurm.tick(1)
    slurm.signal([job], "SIGUSR2")
    slurm.tick(5)
    assert seen == [("started", begin, {"n1": 1}), ("SIGUSR2", begin + 1), ("later", begin + 3)]
    assert slurm.job(job).submitted == begin + 3


def test_a_time_limit_ends_a_run(slurm):
    """Each run has the whole limit."""
    job = slurm.add("-t", "1")
    slurm.tick(59)
    assert state(slurm, job) is JobState.RUNNING
    slurm.tick(2)
    assert state(slurm, job) is JobState.TIMEOUT


def test_a_comment_can_be_edited_by_its_owner(slurm):
    """Slurm allows this where no plugin refuses it."""
    job = slurm.add("--hold")
    slurm.owner_edit(job, comment="metasched")
    assert slurm.job(job).comment == "metasched"


def test_calls_are_counted(slurm):
    """Tests of a poll's cost count the calls."""
    job = slurm.add("--hold")
    slurm.hold(job)
    slurm.jobs()
    assert slurm.calls == [("hold", job), ("jobs", "")]


@pytest.mark.parametrize(
    "options", [["--frobnicate=1"], ["-Z", "3"], ["--mem=lots"], ["--begin=tomorrow"], ["--gres=gpu:99"]]
)
def test_unknown_and_impossible_options_are_refused(slurm, options):
    """The fake never guesses; like Slurm it refuses a request that no node can meet."""
    with pytest.raises(SlurmCommandError):
        slurm.add(*options)
