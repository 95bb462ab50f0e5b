"""Two jobs on one GPU, on a FakeSlurm that assigns GPU shards as the real one does."""

import itertools
import random

import pytest

from metasched.configuration.config import Sharing
from metasched.core.model import Grant, Hold
from metasched.core.reasons import Reason
from metasched.shared_dir import published_status
from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import DyingClient, FakeSite, Killed
from tests.unit.strategies import FixedPolicy


def shared_site(base, gpus=2, *, nodes=1, parameters=None, **schedule):
    slurm = FakeSlurm([FakeNode(f"n{i + 1}", gpus=gpus, shards=2) for i in range(nodes)])
    schedule = {"min_round_seconds": 1.0, "slice_seconds": 5.0, **schedule}
    site = FakeSite(base, slurm, policy="gandiva", **schedule)
    site.parameters = parameters or {}
    site.start()
    return site


@pytest.fixture
def site(tmp_path):
    made = shared_site(tmp_path)
    yield made
    made.close()


def running(site):
    return [job for job in site.slurm.jobs() if job.state is JobState.RUNNING]


def jobs_by_gpu(site):
    """Slurm job ids by (node, GPU)."""
    there = {}
    for job in site.slurm.jobs():
        for node, which in job.gpu_indices.items():
            for gpu in which:
                there.setdefault((node, gpu), set()).add(job.slurm_job_id)
    return there


def restarts(site, *jobs):
    return [site.slurm.job(job).restarts for job in jobs]


def test_more_jobs_than_gpus_share_them_in_pairs(site):
    """Four jobs on two GPUs: two on each, all running, and each with the co-runner that the policy chose."""
    jobs = [site.add("--gres=shard:2") for _ in range(4)]
    site.run_until(lambda: len(running(site)) == 4)
    assert sorted(map(len, jobs_by_gpu(site).values())) == [2, 2]
    wanted, _ = site.store.target_co_runners()
    for on_gpu in jobs_by_gpu(site).values():
        one, other = (site.record(slurm_job_id).uid for slurm_job_id in on_gpu)
        assert wanted[one] == other
    site.run(60)
    assert restarts(site, *jobs) == [0, 0, 0, 0]


def test_the_end_of_a_co_runner_changes_nothing_for_the_other(site):
    """The remaining job neither restarts nor moves; neither does any other job."""
    jobs = [site.add("--gres=shard:2") for _ in range(3)]
    site.run_until(lambda: len(running(site)) == 3)
    on_gpu = next(on_gpu for on_gpu in jobs_by_gpu(site).values() if len(on_gpu) == 2)
    ends, remains = sorted(on_gpu)
    before = site.slurm.job(remains).gpu_indices
    site.slurm.cancel(ends)
    site.run(30)
    assert (site.slurm.job(remains).gpu_indices, site.slurm.job(remains).restarts) == (before, 0)
    assert site.slurm.job(jobs[2]).restarts == 0


def test_a_job_restarts_when_slurm_assigns_its_gpu_to_another_user(site):
    """Slurm before 23.02 counts a GPU as free when the first of two jobs has ended; the other one restarts."""
    jobs = [site.add("--gres=shard:2") for _ in range(3)]
    site.run_until(lambda: len(running(site)) == 3)
    ends, remains = sorted(next(on_gpu for on_gpu in jobs_by_gpu(site).values() if len(on_gpu) == 2))
    site.slurm.cancel(ends)
    site.slurm.tick(1)
    foreign = site.slurm.add("--gres=gpu:1", user="somebody")
    site.slurm.tick(1)
    assert site.slurm.job(foreign).gpu_indices == site.slurm.job(remains).gpu_indices
    site.run_until(lambda: site.slurm.job(remains).restarts == 1)
    site.run(30)
    assert {foreign} in jobs_by_gpu(site).values()
    assert site.state(foreign) is JobState.RUNNING
    assert all(site.state(job) is not JobState.FAILED for job in jobs)


def pairs_as_wanted(site):
    """Whether jobs that should share GPUs do, and no others."""
    wanted, _ = site.store.target_co_runners()
    slurm_job_id = {record.uid: record.slurm_job_id for record in site.store.live_jobs()}
    expected = {
        frozenset((slurm_job_id[one], slurm_job_id[other]))
        for one, other in wanted.items()
        if {one, other} <= set(slurm_job_id)
    }
    return {frozenset(on_gpu) for on_gpu in jobs_by_gpu(site).values() if len(on_gpu) > 1} == expected


@pytest.mark.parametrize("seed", range(6))
def test_pairs_form_under_random_arrivals_and_ends(tmp_path, seed):
    """Never three jobs on a GPU, and in the end all target pairs share one."""
    rng = random.Random(seed)  # noqa: S311  nothing secret
    site = shared_site(tmp_path, gpus=3, nodes=2, parameters={"seed": seed})
    jobs = []
    for _ in range(25):
        if len(jobs) < 10 and rng.random() < 0.6:
            jobs.append(site.add(rng.choice(("--gres=shard:2", "--gres=shard:1", "--gres=gpu:1"))))
        elif jobs:
            site.slurm.cancel(jobs.pop(rng.randrange(len(jobs))))
        site.run(rng.choice((1, 4, 15)))
        whole = {job.slurm_job_id for job in running(site) if job.gpu_indices and not job.shards}
        assert all(
            len(on_gpu) <= 2 and (len(on_gpu) == 1 or not on_gpu & whole) for on_gpu in jobs_by_gpu(site).values()
        )
    while len(jobs) < 8:
        jobs.append(site.add("--gres=shard:2"))
    site.run_until(lambda: len(running(site)) >= 6 and pairs_as_wanted(site), 400)
    site.close()


def time_sliced(tmp_path, **trainer):
    site = shared_site(tmp_path, gpus=1, parameters={"time_slices": True})
    jobs = [site.add("--gres=shard:2", **trainer) for _ in range(2)]
    site.run_until(lambda: all(site.state(job) in (JobState.RUNNING, JobState.SUSPENDED) for job in jobs))
    site.run_until(lambda: JobState.SUSPENDED in map(site.state, jobs))
    return site, jobs


def test_a_time_sliced_pair_alternates_without_checkpoints(tmp_path):
    """One runs at a time, each has about half of the time, and neither is asked to stop or restarts."""
    site, jobs = time_sliced(tmp_path)
    seen = []
    for _ in range(60):
        site.run(1)
        states = list(map(site.state, jobs))
        assert sorted(state.value for state in states) == ["RUNNING", "SUSPENDED"]
        seen.append(states.index(JobState.RUNNING))
    assert 20 <= sum(seen) <= 40
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert 8 <= changes <= 13
    assert restarts(site, *jobs) == [0, 0]
    assert all(site.slurm.trainer(job).signals == [] for job in jobs)
    site.close()


def test_a_time_sliced_job_remains_held_for_its_owners_requeue(tmp_path):
    """Slurm drops the hold when it resumes a job; the daemon sets it again."""
    site, jobs = time_sliced(tmp_path)
    site.run(30)
    runs = next(job for job in jobs if site.state(job) is JobState.RUNNING)
    site.slurm.owner_requeue(runs)
    site.slurm.tick(1)
    assert site.slurm.job(runs).hold is Hold.ADMIN
    site.close()


def test_attained_service_excludes_the_co_runners_time_slices(tmp_path):
    """A suspended job receives no service."""
    site, jobs = time_sliced(tmp_path)
    site.run(60)
    service = [sum(site.record(job).attained_at(site.slurm.now).values()) for job in jobs]
    assert sum(service) == pytest.approx(60, abs=12)
    site.close()


def test_a_suspended_job_is_resumed_when_its_co_runner_ends(tmp_path):
    """No job remains suspended without a co-runner, even if the daemon was dead in the meantime."""
    site, jobs = time_sliced(tmp_path)
    suspended, runs = sorted(jobs, key=lambda job: site.state(job) is JobState.RUNNING)
    site.slurm.cancel(runs)
    site.slurm.tick(20)  # without a poll
    site.start()
    site.run(5)
    assert site.state(suspended) is JobState.RUNNING
    assert site.slurm.job(suspended).restarts == 0
    site.close()


def test_a_suspended_job_is_resumed_before_it_is_stopped(tmp_path):
    """A stop reaches a trainer that can answer it: it checkpoints, and no run is lost."""
    site, jobs = time_sliced(tmp_path)
    site.policy, site.parameters = "fifo", {}
    blocker = site.slurm.add("--gres=shard:2", user="somebody")
    site.slurm.node_drain("n1")
    site.start()
    suspended = next(job for job in jobs if site.state(job) is JobState.SUSPENDED)
    site.run(30)
    kinds = [action.kind for action in site.store.recent_actions(100, site.record(suspended).uid)][::-1]
    assert kinds.index("resume") > kinds.index("suspend")
    assert site.state(blocker) is JobState.PENDING
    site.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 14))
def test_a_daemon_killed_at_any_write_is_succeeded(tmp_path, at, after):
    """Around starts and time slices: afterwards exactly one of the two runs, and both hold the GPU."""
    site = shared_site(tmp_path, gpus=1, parameters={"time_slices": True})
    jobs = [site.add("--gres=shard:2") for _ in range(2)]
    site.start(DyingClient(site.slurm, at, after=after))
    with pytest.raises(Killed):
        site.run(120)
    site.start()
    site.run(40)
    states = sorted(site.state(job).value for job in jobs)
    assert states == ["RUNNING", "SUSPENDED"]
    assert [len(on_gpu) for on_gpu in jobs_by_gpu(site).values()] == [2]
    site.close()


def test_a_job_that_requested_whole_gpus_never_gets_a_co_runner(site):
    """Its request cannot be turned into one for shards; the other jobs share."""
    whole = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(whole) is JobState.RUNNING)
    shared = {site.add("--gres=shard:2") for _ in range(3)}

    def paired():
        assert all(on_gpu == {whole} for on_gpu in jobs_by_gpu(site).values() if whole in on_gpu)
        return any(on_gpu <= shared and len(on_gpu) == 2 for on_gpu in jobs_by_gpu(site).values())

    site.run_until(paired)
    site.run(60)
    assert paired() or len(running(site)) == 2


def test_without_shards_no_gpu_is_shared(tmp_path):
    """The snapshot says so."""
    site = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=1)]), policy="gandiva")
    for _ in range(3):
        site.add("--gres=gpu:1")
    site.run(60)
    assert not site.controller.current_snapshot().sharing
    assert all(len(on_gpu) == 1 for on_gpu in jobs_by_gpu(site).values())
    site.close()


def test_a_round_that_leaves_a_job_undisturbed_renews_its_lease(site):
    """The run counts the rounds; a new run counts from 0."""
    job = site.add("--gres=gpu:1")
    site.run_until(lambda: site.state(job) is JobState.RUNNING)
    site.run(45)
    run = site.record(job).current
    assert 3 <= run.renewals <= 5
    (shown,) = published_status.read(site.base / "shared").jobs
    assert (shown.renewals, shown.runs) == (run.renewals, 1)
    site.slurm.owner_requeue(job)
    site.run_until(lambda: site.record(job).run == 2 and site.state(job) is JobState.RUNNING)
    assert site.record(job).current.renewals == 0
    assert site.store.runs(site.record(job).uid)[0].renewals >= 3


def test_each_job_of_a_pair_has_half_of_a_gpus_shards(tmp_path):
    """Two of four shards; nodes with another number of shards than most are not used for such jobs."""
    nodes = [FakeNode("n1", gpus=1, shards=4), FakeNode("n2", gpus=1, shards=4), FakeNode("n3", gpus=4, shards=2)]
    site = FakeSite(tmp_path, FakeSlurm(nodes), policy="gandiva")
    blocked = [site.slurm.add("--gres=gpu:4", "-w", "n3", user="somebody")]
    site.slurm.tick(1)
    jobs = [site.add("--gres=shard:4") for _ in range(3)]
    site.run_until(lambda: all(site.state(job) is JobState.RUNNING for job in jobs))
    assert sorted(job.shards[node] for job in running(site) for node in job.shards) == [2, 2, 4]
    assert {node for node, _ in jobs_by_gpu(site) if blocked[0] not in jobs_by_gpu(site)[node, 0]} == {"n1", "n2"}
    site.close()


def test_the_configuration_can_switch_gpu_sharing_off(site):
    """Jobs that request shards then have whole GPUs; the status says why."""
    site.config = site.config.model_copy(update={"sharing": Sharing(enabled=False)})
    site.start()
    jobs = [site.add("--gres=shard:1") for _ in range(3)]
    site.run(30)
    assert sum(site.state(job) is JobState.RUNNING for job in jobs) == 2
    assert {job.shards["n1"] for job in running(site)} == {2}
    shown = published_status.read(site.base / "shared")
    assert (shown.sharing, shown.sharing_note) == (False, "[sharing] enabled is false")


def test_a_policy_that_pairs_jobs_of_whole_gpus_is_refused(site):
    """Its round is not carried out, and an event says why."""

    def pair(view):
        one, other = (job.uid for job in view.jobs)
        return (Grant(one, 1, Reason.text("first")), Grant(other, 1, Reason.text("second"), co_runner=one)), ()

    for _ in range(2):
        site.add("--gres=gpu:1")
    site.controller.policy = FixedPolicy(pair)
    site.run(5)
    assert not running(site)
    assert any("asked for whole ones" in event.text for event in site.store.recent_events(10))
