"""Two jobs on one GPU of a real Slurm: by its shards, at once or in turns."""

import itertools
import sys
import time
from pathlib import Path

import pytest

from metasched.devcluster import NodeGroup
from metasched.slurm.command_line_client import CommandLineClient
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site
from tests.slurm.test_whole_path import assert_every_sample_once, has_trained

PACED = Path(__file__).parent / "paced.py"
COMPUTING = "RUNNING"


@pytest.fixture
def shared(make_cluster):
    """A Site on one node with two GPUs, each of which two jobs may share."""
    made = Site(make_cluster(groups=(NodeGroup(1, 2, "v100", shards=2),), job_submit=JOB_SUBMIT))
    yield made
    made.close()


@pytest.fixture
def single(make_cluster):
    """A Site on one node with one GPU, which two jobs may share."""
    made = Site(make_cluster(groups=(NodeGroup(1, 1, "v100", shards=2),), job_submit=JOB_SUBMIT))
    yield made
    made.close()


def paced(site, *options, rate=10):
    """Submit a light trainer, and return (id, directory)."""
    slurm_job_id = site.submit(f"exec metasched-run {sys.executable} {PACED} {{dir}} v100={rate}", *options)
    return slurm_job_id, site.base / f"job-{site.number}"


def slurm_jobs(site):
    """Return Slurm's records of all jobs by id."""
    return {job.slurm_job_id: job for job in CommandLineClient(site.cluster.env, 30).jobs()}


def states(site, jobs):
    seen = slurm_jobs(site)
    return [seen[job].state.value for job in jobs]


def gpus(site):
    """Return the ids of running and suspended jobs by GPU of the one node."""
    there = {}
    for slurm_job_id, job in slurm_jobs(site).items():
        for index in job.gpu_indices.get("n1", ()) if job.state.value in ("RUNNING", "SUSPENDED") else ():
            there.setdefault(index, set()).add(slurm_job_id)
    return there


def request(job):
    """Return a job's request per node, such as ``shard:v100:2``; None for another form of request."""
    kind, count = ("shard", job.shards_per_node) if job.shards_per_node else ("gpu", job.gpus_per_node)
    return None if count is None else ":".join(filter(None, (kind, job.gpu_type, str(count))))


def beats(directory):
    path = directory / "beats"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def test_four_jobs_run_on_two_gpus(shared):
    """Each GPU has two shards, each job one; when a co-runner ends the other job continues, without a restart."""
    shared.configure(policy="gandiva")
    jobs = dict(paced(shared, "--gres=shard:2") for _ in range(4))
    shared.start()
    shared.wait(lambda: states(shared, jobs) == [COMPUTING] * 4)
    couples = gpus(shared)
    assert sorted(couples) == [0, 1]
    assert [len(couple) for couple in couples.values()] == [2, 2]
    shared.wait(lambda: all(len(beats(directory)) > 10 for directory in jobs.values()))
    published = shared.wait(
        lambda: (status := shared.status()) and all(job.co_runner for job in status.jobs) and status
    )
    assert published.sharing
    partner = {job.slurm_job_id: job.co_runner for job in published.jobs}
    assert all({slurm_job_id, partner[slurm_job_id]} in couples.values() for slurm_job_id in jobs)
    ends, stays = sorted(couples[0])
    shared.cluster.run("scancel", ends)
    shared.wait_status(ends, "cancelled")
    before = len(beats(jobs[stays]))
    shared.wait(lambda: len(beats(jobs[stays])) > before + 30)
    others = [job for job in jobs if job != ends]
    assert states(shared, others) == [COMPUTING] * 3
    assert [slurm_jobs(shared)[job].restarts for job in others] == [0, 0, 0]
    assert gpus(shared)[0] == {stays}
    assert sum(node.gpus_used for node in shared.status().nodes) == 2


def test_a_job_leaves_a_gpu_that_slurm_gives_to_an_untagged_job(shared):
    """Slurm 22.05 counts a GPU free when the first of two jobs on it has ended; the tagged job is moved."""
    if CommandLineClient(shared.cluster.env, 30).settings().version >= (23, 2):
        pytest.skip("this Slurm remembers that the other job is still there")
    shared.configure(policy="gandiva")
    jobs = dict(paced(shared, "--gres=shard:2") for _ in range(4))
    shared.start()
    shared.wait(lambda: states(shared, jobs) == [COMPUTING] * 4)
    ends, stays = sorted(gpus(shared)[0])
    shared.wait(lambda: len(beats(jobs[stays])) > 10)
    shared.kill()  # in peace
    shared.cluster.run("scancel", ends)
    shared.wait(lambda: ends not in gpus(shared).get(0, ()))
    stranger = shared.submit("sleep 100", "--gres=gpu:1", tag=None)
    shared.wait(lambda: stranger in slurm_jobs(shared) and states(shared, [stranger]) == [COMPUTING])
    assert stranger in gpus(shared)[0]
    shared.start()
    shared.wait(lambda: stays not in gpus(shared).get(0, ()))
    shared.wait(lambda: (directory := jobs[stays]) and (directory / "checkpoint").exists())
    assert states(shared, [stranger]) == [COMPUTING]


def test_a_pair_is_stopped_and_started_as_a_pair(shared):
    """Under a policy that never shares, the daemon stops a pair and starts one job alone; then the reverse."""
    shared.configure(policy="gandiva")
    jobs = dict(paced(shared, "--gres=shard:1") for _ in range(3))
    shared.start()
    shared.wait(lambda: states(shared, jobs) == [COMPUTING] * 3 and len(gpus(shared)) == 2)
    shared.terminate()
    shared.configure(policy="fifo")
    shared.start()
    alone = [COMPUTING, COMPUTING, "PENDING"]
    shared.wait(lambda: states(shared, jobs) == alone and [len(who) for who in gpus(shared).values()] == [1, 1])
    shared.terminate()
    shared.configure(policy="gandiva")
    shared.start()
    shared.wait(lambda: states(shared, jobs) == [COMPUTING] * 3)
    shared.wait(lambda: any(len(who) == 2 for who in gpus(shared).values()))


TURNS = {"policy": "gandiva", "parameters": "time_slices = true"}


def turns(site, trainers):
    """Submit two jobs that are time-sliced on the one GPU, and wait until one is suspended."""
    text = site.config.read_text().replace("[schedule]", "[schedule]\nslice_seconds = 2")
    site.config.write_text(text)
    jobs = dict(trainers() for _ in range(2))
    site.start()
    site.wait(lambda: sorted(states(site, jobs)) == ["RUNNING", "SUSPENDED"])
    return jobs


def suspensions(site):
    """Return the number of suspensions of a job."""
    with site.store() as store:
        return [action.kind for action in store.recent_actions(1000)].count("suspend")


def test_two_jobs_take_turns_on_a_gpu(single):
    """Both jobs stay on the GPU, one at a time makes progress, about as much as the other, and neither restarts."""
    single.configure(**TURNS)
    jobs = turns(single, lambda: paced(single, "--gres=shard:2"))
    since = time.time()  # until one of them rested, they may have run at once

    def ticks():
        found = ((at, who) for who, directory in jobs.items() for at in beats(directory) if at > since)
        return [who for _, who in sorted(found)]

    def lengths():
        return [len(list(turn)) for _, turn in itertools.groupby(ticks())]

    single.wait(lambda: (seen := ticks()) and all(seen.count(job) > 60 for job in jobs) and len(lengths()) >= 4)
    assert gpus(single) == {0: set(jobs)}
    assert [slurm_jobs(single)[job].restarts for job in jobs] == [0, 0]
    assert len(ticks()) / len(lengths()) > 5  # long turns, not one step each
    with single.store() as store:
        kinds = {action.kind for job in jobs for action in store.recent_actions(100, single.job(job).uid)}
    assert {"suspend", "resume"} <= kinds
    assert "stop" not in kinds


def test_no_job_stays_suspended_after_the_daemon_is_killed(single):
    """The next daemon resumes the suspended job, even if its co-runner has ended."""
    single.configure(**TURNS)
    jobs = turns(single, lambda: paced(single, "--gres=shard:2"))
    single.kill()
    seen = dict(zip(jobs, states(single, jobs), strict=True))
    rests = next(job for job, state in seen.items() if state == "SUSPENDED")
    single.cluster.run("scancel", *(job for job in jobs if job != rests))
    time.sleep(1)
    assert states(single, [rests]) == ["SUSPENDED"]
    single.start()
    single.wait(lambda: states(single, [rests]) == ["RUNNING"])
    before = len(beats(jobs[rests]))
    single.wait(lambda: len(beats(jobs[rests])) > before)
    assert slurm_jobs(single)[rests].restarts == 0


def test_trainers_of_several_ranks_survive_suspension(make_cluster):
    """Real training on two nodes: collectives survive suspensions without a checkpoint; each sample is used once."""
    site = Site(make_cluster(groups=(NodeGroup(2, 1, "v100", shards=2),), job_submit=JOB_SUBMIT))
    try:
        site.configure(**TURNS)
        options = "--epochs 1000 --step-seconds 0.1 --finish-file enough"
        jobs = turns(site, lambda: site.train(options, "-N2", "--gres=shard:2"))
        site.wait(lambda: all(has_trained(directory, 1) for directory in jobs.values()))
        before = suspensions(site)
        site.wait(lambda: suspensions(site) >= before + 3)
        for slurm_job_id, directory in jobs.items():
            (directory / "enough").touch()
            ended = site.wait_status(slurm_job_id, "completed", 180)
            assert (ended.runs, ended.world_sizes, ended.preemptions) == (1, (2,), 0)
            assert_every_sample_once(directory)
    finally:
        site.close()


def test_the_plugin_requests_shards_in_place_of_one_gpu(make_cluster, tmp_path):
    """Only tagged jobs of one GPU on each node, whose number may not change, are rewritten."""
    script = tmp_path / "job_submit.lua"
    text = JOB_SUBMIT.read_text()
    assert "local SHARDS = nil" in text
    script.write_text(text.replace("local SHARDS = nil", "local SHARDS = 2"))
    site = Site(make_cluster(groups=(NodeGroup(2, 2, "v100", shards=2),), job_submit=script))
    try:
        asked = {
            ("--gres=gpu:1",): "shard:2",
            ("--gres=gpu",): "shard:2",
            ("--gres=gpu:v100:1",): "shard:v100:2",
            ("--gres=gpu:v100",): "shard:v100:2",
            ("--gpus-per-node=1", "-N2"): "shard:2",
            ("--gres=gpu:2",): "gpu:2",
            ("--gpus=1",): None,
            ("--gres=shard:1",): "shard:1",
        }
        for options, wanted in asked.items():
            slurm_job_id = site.submit("true", "--hold", *options)
            assert request(slurm_jobs(site)[slurm_job_id]) == wanted
        for tag in (None, "metasched max_gpus=2"):
            slurm_job_id = site.submit("true", "--hold", "--gres=gpu:1", tag=tag)
            assert request(slurm_jobs(site)[slurm_job_id]) == "gpu:1"
    finally:
        site.close()


def test_rounds_that_change_nothing_leave_leases_as_they_are(shared):
    """Two jobs keep their allocation, their only run and its lease for many rounds; status and past say so."""
    shared.configure(policy="gavel_las")
    shared.start()
    jobs = dict(paced(shared, "--gres=gpu:1") for _ in range(2))
    leases = shared.base / "shared" / "mailbox"
    shared.wait(lambda: all((seen := shared.job(job)) and seen.status == "running" for job in jobs))
    before = {path: path.read_bytes() for path in leases.glob("*/lease.json")}
    assert len(before) == len(jobs)
    renewed = [shared.wait(lambda job=job: (seen := shared.job(job)) and seen.renewals >= 4 and seen) for job in jobs]
    records = slurm_jobs(shared)
    for seen in renewed:
        job = records[seen.slurm_job_id]
        assert (seen.runs, seen.preemptions, job.restarts) == (1, 0, 0)
        path = leases / seen.uid / "lease.json"
        assert path.read_bytes() == before[path]
        with shared.store() as store:
            assert store.runs(seen.uid)[0].renewals >= 4
            assert {action.kind for action in store.recent_actions(100, seen.uid)} <= {"start", "hold"}
    # In all those rounds no decision about them has changed.
    before = {job: beats(directory) for job, directory in jobs.items()}
    shared.wait(lambda: all(len(beats(directory)) > len(before[job]) + 20 for job, directory in jobs.items()))


def test_gavel_co_locates_two_jobs_of_known_speeds(single):
    """Each is measured alone in turn; then they share the GPU, are measured together, and stay: sharing is faster."""
    single.configure(policy="gavel_las")
    single.start()
    jobs = dict(paced(single, "--gres=shard:2") for _ in range(2))
    single.wait(lambda: states(single, jobs) == [COMPUTING] * 2 and len(gpus(single)) == 1)

    def measured():
        with single.store() as store:
            return [record for record in store.speeds() if record.co_runner is not None]

    together = single.wait(lambda: len(found := measured()) == 2 and found)
    assert {record.subject for record in together} == {record.co_runner for record in together}
    before = {job: slurm_jobs(single)[job].restarts for job in jobs}
    counts = {job: len(beats(directory)) for job, directory in jobs.items()}
    single.wait(lambda: all(len(beats(directory)) > counts[job] + 60 for job, directory in jobs.items()))
    assert {job: slurm_jobs(single)[job].restarts for job in jobs} == before
