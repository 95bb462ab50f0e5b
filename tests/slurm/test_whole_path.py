"""Real Slurm, the real daemon, real training."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metasched.store import FIRST_STEPS
from tests import surviving
from tests.saved import until_cluster_saved
from tests.slurm.site import ROOT

SAMPLES = 203
TRIAL = ROOT / "tests" / "slurm" / "trial.py"


def every_sample_once(epochs):
    return {epoch: list(range(SAMPLES)) for epoch in range(epochs)}


def assert_every_sample_once(directory, last_step=None):
    """Each epoch of the training that ended there, with that step, has each sample exactly once."""
    seen = surviving.of_directory(directory, last_step)
    assert seen
    assert seen == every_sample_once(len(seen))


def has_trained(directory, generation):
    """Whether a rank of that generation has made a step."""
    return any(path.stat().st_size for path in directory.glob(f"trained-{generation}-*.jsonl"))


def slurm_state(site, slurm_job_id):
    return site.cluster.run("squeue", "-h", "-a", "-o", "%T", "-j", slurm_job_id).strip()


def test_a_job_grows_and_shrinks_and_sees_every_sample_once(small_site):
    """1 -> 4 -> 2 GPUs by the policy, the job finishes, and each epoch has each sample exactly once."""
    site = small_site
    site.start()
    blocker = site.submit("exec sleep 1000", "--gres=gpu:3", tag="metasched preempt=no")
    site.wait_status(blocker, "running")
    slurm_job_id, directory = site.train(
        "--epochs 1000 --step-seconds 0.05 --finish-file enough",
        "--gres=gpu:1",
        tag="metasched min_gpus=1 max_gpus=4",
    )
    site.wait(lambda: has_trained(directory, 1))
    site.cluster.run("scancel", blocker)
    site.wait(
        lambda: len(list(directory.glob("trained-2-*.jsonl"))) == 4 and len(surviving.of_directory(directory)) > 1
    )
    late = site.submit("exec sleep 1000", "--gres=gpu:2", tag="metasched preempt=no")
    site.wait_status(late, "running")
    site.wait(lambda: len(list(directory.glob("trained-3-*.jsonl"))) == 2)
    (directory / "enough").touch()
    ended = site.wait_status(slurm_job_id, "completed")
    assert ended.world_sizes == (1, 4, 2)
    assert_every_sample_once(directory)


def test_the_last_task_of_an_array_is_preempted_alone(small_site):
    """Its own job id is that of the array, by which Slurm signals and requeues all tasks."""
    site = small_site
    threshold = 15.0  # GPU-seconds, upon which a task may be preempted
    site.configure(policy="las", parameters=f"queue_thresholds_gpu_seconds = [{threshold}]\npromote_knob = 1000.0")
    site.start()
    command = f"exec metasched-run {sys.executable} {TRIAL} {{dir}}"
    blocker = site.submit("exec sleep 1000", "--gres=gpu:1", tag="metasched preempt=no")
    site.wait_status(blocker, "running")
    array = site.submit(f"{command} 100000", "--array=0-3", "--gres=gpu:1")
    tasks = [f"{array}_{number}" for number in range(4)]
    for task in tasks[:3]:
        site.wait_status(task, "running")
    site.cluster.run("scancel", blocker)  # the last task starts last, so that it is preempted first
    site.wait(
        lambda: all((job := site.job(task)).progress_steps and job.attained_service > threshold for task in tasks)
    )
    young = site.submit(f"{command} 10", "--array=0", "--gres=gpu:1")
    site.wait_status(f"{young}_0", "completed")

    def restarts():
        shown = (site.cluster.run("scontrol", "show", "job", task) for task in tasks)
        return [int(re.search(r"Restarts=(\d+)", text)[1]) for text in shown]

    site.wait(lambda: site.job(tasks[3]).status == "running")
    assert restarts() == [0, 0, 0, 1]


def test_a_script_that_dies_at_a_new_size_is_put_back_once(small_site):
    """Of 3 free GPUs it gets 2 (sizes=1,2,4); it fails on 4, continues on 2 with words, and gets no 4 again."""
    site = small_site
    site.start()
    blocker = site.submit("exec sleep 1000", "--gres=gpu:1", tag="metasched preempt=no")
    site.wait_status(blocker, "running")
    fails_on_4 = "export SLURM_ARRAY_TASK_ID=0; test $SLURM_NTASKS != 4 && exec"
    slurm_job_id = site.submit(
        f"exec metasched-run sh -c '{fails_on_4} {sys.executable} {TRIAL} {{dir}} 12 9'",
        "--gres=gpu:1",
        tag="metasched min_gpus=1 max_gpus=4 sizes=1,2,4",
    )
    directory = site.base / f"job-{site.number}"
    site.wait(lambda: (job := site.job(slurm_job_id)) is not None and (job.progress_steps or 0) >= FIRST_STEPS)
    site.cluster.run("scancel", blocker)
    site.wait(lambda: (job := site.job(slurm_job_id)).failed_sizes and job.status == "running")
    (directory / "gate-9").touch()
    ended = site.wait_status(slurm_job_id, "completed")
    assert ended.world_sizes == (2, 4, 2)
    output = (directory / "out.txt").read_text()
    assert "the script failed on 4 GPUs with exit code 1 after 0 steps" in output
    assert "the job is put back to 2 GPUs, and is not given 4 again" in output


def test_a_job_without_the_wrapper_is_requeued(site):
    """A plain script is stopped by Slurm's own requeue, and starts again from its beginning."""
    site.configure(policy="las", parameters="queue_thresholds_gpu_seconds = [8.0]\npromote_knob = 1000.0")
    site.start()
    plain = site.submit("until [ -e {dir}/enough ]; do sleep 0.2; done", "--gres=gpu:4", "-w", "n1")
    site.wait(lambda: (job := site.job(plain)) is not None and job.attained_service > 8)
    other = site.submit("sleep 1", "--gres=gpu:4", "-w", "n1")
    site.wait_status(other, "completed")
    (site.base / "job-1" / "enough").touch()
    assert site.wait_status(plain, "completed").preemptions == 1


def test_an_untagged_job_is_never_touched(site):
    """An untagged job starts by Slurm's decision; its GPUs count as taken, and a tagged job waits with a reason."""
    site.start()
    other = site.submit("sleep 1000", "--gres=gpu:4", "-w", "n1", tag=None)
    site.wait(lambda: slurm_state(site, other) == "RUNNING")
    ours = site.submit("sleep 1", "--gres=gpu:4", "-w", "n1")
    waiting = site.wait(lambda: (job := site.job(ours)) is not None and "GPU" in job.reason and job)
    assert waiting.status == "held"
    assert slurm_state(site, other) == "RUNNING"
    site.cluster.run("scancel", other)
    site.wait_status(ours, "completed")


@pytest.mark.parametrize("releaser", ["nobody", None], ids=["owner", "administrator"])
def test_a_job_that_was_submitted_held_waits_for_its_release(small_site, releaser):
    """Other jobs start earlier, and its status has the reason; after its release it is scheduled and runs once."""
    if os.geteuid() != 0:
        pytest.skip("only root can submit as somebody else")
    site = small_site
    site.start()
    owner = ("--uid=nobody", "--gid=nogroup", "--output=/dev/null")
    job = site.submit("sleep 1", "--gres=gpu:4", "--chdir=/", "--hold", *owner)
    site.wait(lambda: (seen := site.job(job)) is not None and "--hold" in seen.reason)
    other = site.submit("sleep 1", "--gres=gpu:4")
    site.wait_status(other, "completed")
    assert site.job(job).status == "held"
    subprocess.run(["scontrol", "release", job], env=site.cluster.env, user=releaser, timeout=30, check=True)
    assert site.wait_status(job, "completed").runs == 1


def test_an_administrator_delays_a_waiting_job_by_a_dependency(site):
    """`scontrol hold` would change nothing, because the job is held. The job starts after the end of the other job."""
    site.start()
    blocker = site.submit("sleep 1000", "--gres=gpu:4", "-w", "n1", tag="metasched preempt=no")
    site.wait_status(blocker, "running")
    job = site.submit("sleep 1", "--gres=gpu:4", "-w", "n1")
    site.wait_status(job, "held")
    key = site.submit("true", "--hold", tag=None)
    site.cluster.run("scontrol", "update", f"JobId={job}", f"Dependency=afterany:{key}")
    site.wait(lambda: f"afterany:{key}" in site.job(job).reason)
    site.cluster.run("scancel", blocker)
    other = site.submit("sleep 1", "--gres=gpu:4", "-w", "n1")
    site.wait_status(other, "completed")
    assert site.job(job).status == "held"
    site.cluster.run("scancel", key)
    assert site.wait_status(job, "completed").runs == 1


def test_a_malformed_tag_stays_held_and_says_why(site):
    """The owner reads the error in the status and in AdminComment; the job never starts."""
    site.start()
    slurm_job_id = site.submit("sleep 1", "--gres=gpu:1", tag="metasched min_gpu=1")
    job = site.wait(lambda: (job := site.job(slurm_job_id)) is not None and job.error and job)
    assert "min_gpus" in job.error
    shown = site.wait(
        lambda: "min_gpus" in (text := site.cluster.run("scontrol", "show", "job", slurm_job_id)) and text
    )
    assert "AdminComment=metasched:" in shown
    assert slurm_state(site, slurm_job_id) == "PENDING"


def test_an_unknown_gpu_type_is_an_error_that_names_the_known_ones(site):
    """A tag with a type that no node has stays held; the message lists what exists."""
    site.start()
    slurm_job_id = site.submit("sleep 1", "--gres=gpu:1", tag="metasched gpu_types=v101")
    job = site.wait(lambda: (job := site.job(slurm_job_id)) is not None and job.error and job)
    assert "v101" in job.error
    assert "v100" in job.error


def test_a_trainer_that_ignores_signals_is_requeued_after_its_grace(site):
    """A trainer that survives a stop request is requeued by the daemon, and resumes from its last checkpoint."""
    site.configure(policy="las", parameters="queue_thresholds_gpu_seconds = [12.0]\npromote_knob = 1000.0", grace=2)
    site.start()
    options = "--epochs 1000 --step-seconds 0.1 --finish-file enough --checkpoint-every 1"
    slurm_job_id, directory = site.train(options, "--gres=gpu:4", "-w", "n1")
    site.wait(lambda: (job := site.job(slurm_job_id)) is not None and (job.progress_steps or 0) > 5)
    site.wait(lambda: site.job(slurm_job_id).attained_service > 12)
    trainers = _pids_of(directory)
    assert trainers
    for pid in trainers:
        os.kill(pid, signal.SIGSTOP)
    other = site.submit("sleep 1", "--gres=gpu:4", "-w", "n1")
    site.wait_status(other, "completed")
    (directory / "enough").touch()
    ended = site.wait_status(slurm_job_id, "completed")
    assert ended.preemptions == 1
    assert_every_sample_once(directory, ended.progress_steps)


def test_a_wrapper_that_its_owner_has_replaced_keeps_its_gpus_no_longer_than_the_grace(site):
    """With PATH or LD_PRELOAD a user can have metasched-run do anything, with the user's rights and inside the job."""
    site.configure(policy="las", parameters="queue_thresholds_gpu_seconds = [6.0]\npromote_knob = 1000.0", grace=2)
    site.start()
    script = """
        mkdir {dir}/first
        printf '#!/bin/sh\\ntrap "" TERM INT\\nwhile :; do sleep 0.2; done\\n' > {dir}/first/python3
        chmod +x {dir}/first/python3
        trap "" TERM
        export PATH={dir}/first:$PATH
        metasched-run sleep 600
    """
    attacker = site.submit(script, "--gres=gpu:4", "-w", "n1")
    site.wait(lambda: (job := site.job(attacker)) is not None and job.attained_service > 6)
    other = site.submit("sleep 1", "--gres=gpu:4", "-w", "n1")
    site.wait_status(other, "completed")
    assert site.job(attacker).preemptions == 1


def _pids_of(directory):
    """Python trainers whose command line names a directory."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with Path(f"/proc/{entry.name}/cmdline").open("rb") as file:
                    argv = file.read().split(b"\0")
            except OSError:
                continue
            if str(directory).encode() in argv and argv[1].endswith(b"train.py"):
                found.append(int(entry.name))
    return found


def test_cpu_only_jobs_share_their_node_by_suspension(site):
    """Two CPU-only jobs that each need the whole node run in turns: a suspended one resumes where it was."""
    site.configure(policy="las", parameters="queue_thresholds_gpu_seconds = [3.0]\npromote_knob = 1000.0")
    site.start()
    first = site.submit(
        "until [ -e {dir}/enough ]; do echo $((++i)); sleep 0.1; done",
        "-n1",
        "-c16",
        "--mem=1000",
        "-w",
        "n1",
        tag="metasched preempt=suspend",
    )
    site.wait(lambda: (job := site.job(first)) is not None and job.attained_service > 3)
    second = site.submit("sleep 1", "-n1", "-c16", "--mem=1000", "-w", "n1", tag="metasched preempt=suspend")
    site.wait_status(second, "completed")
    (site.base / "job-1" / "enough").touch()
    ended = site.wait_status(first, "completed")
    assert ended.runs == 1
    with site.store() as store:
        assert {"suspend", "resume"} <= {action.kind for action in store.recent_actions(100, ended.uid)}
    output = (site.base / "job-1" / "out.txt").read_text().split()
    assert output == [str(i) for i in range(1, len(output) + 1)]


def test_an_owners_requeue_starts_no_second_run(site):
    """A job that its owner requeues is held again, and runs when the plan says so, not twice."""
    site.start()
    slurm_job_id, directory = site.train("--epochs 1000 --step-seconds 0.1 --finish-file enough", "--gres=gpu:2")
    site.wait(lambda: (job := site.job(slurm_job_id)) is not None and (job.progress_steps or 0) > 3)
    site.cluster.run("scontrol", "requeue", slurm_job_id)
    site.wait(lambda: site.job(slurm_job_id).runs == 2 and has_trained(directory, 2))
    (directory / "enough").touch()
    ended = site.wait_status(slurm_job_id, "completed")
    assert ended.runs == 2
    assert_every_sample_once(directory)
    with site.store() as store:
        events = {event.kind for event in store.recent_events(1000, ended.uid)}
    assert "lost" in events


def test_sigterm_stops_the_daemon_and_leaves_jobs_running(site):
    """SIGTERM ends the daemon with code 0; the job continues, and the next daemon finds it."""
    site.start()
    slurm_job_id = site.submit("until [ -e {dir}/enough ]; do sleep 0.2; done", "--gres=gpu:1")
    before = site.wait_status(slurm_job_id, "running")
    site.terminate()
    assert slurm_state(site, slurm_job_id) == "RUNNING"
    site.start()
    site.wait(lambda: site.status().pid == site.daemon.pid)
    (site.base / "job-1" / "enough").touch()
    after = site.wait_status(slurm_job_id, "completed")
    assert (after.uid, after.runs) == (before.uid, 1)


def test_sighup_switches_the_policy_without_losing_a_job(site):
    """A reload changes the policy; a broken file is refused with a message and changes nothing."""
    site.start()
    slurm_job_id = site.submit("sleep 1000", "--gres=gpu:1")
    site.wait_status(slurm_job_id, "running")
    good = site.config.read_text()
    site.config.write_text(good.replace("[schedule]", "[shedule]"))
    site.daemon.send_signal(signal.SIGHUP)
    site.wait(lambda: "reload_refused" in site.log() and "schedule" in site.log())
    assert site.status().policy == "fifo"
    site.config.write_text(good.replace('"fifo"', '"las"'))
    site.daemon.send_signal(signal.SIGHUP)
    site.wait(lambda: site.status().policy == "las")
    assert slurm_state(site, slurm_job_id) == "RUNNING"
    assert site.job(slurm_job_id).runs == 1


def test_a_second_daemon_is_refused(site):
    """The lock keeps two daemons apart, and the message names the first."""
    site.start()
    site.wait(site.status)
    argv = [sys.executable, "-m", "metasched", "--config", str(site.config), "daemon"]
    second = subprocess.run(
        argv, env=site.cluster.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert f"pid {site.daemon.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_dry_run_prints_the_plan_and_does_nothing(site):
    """`daemon --dry-run` prints the jobs that it would start; the job is unchanged and no file of state appears."""
    slurm_job_id = site.submit("sleep 1", "--gres=gpu:1")
    before = site.cluster.run("scontrol", "show", "job", slurm_job_id)
    argv = [sys.executable, "-m", "metasched", "--config", str(site.config), "daemon", "--dry-run"]
    done = subprocess.run(argv, env=site.cluster.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"start {slurm_job_id}" in done.stdout
    assert site.cluster.run("scontrol", "show", "job", slurm_job_id) == before
    assert not (site.base / "state").exists()


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_the_daemon_may_be_killed_at_any_moment(site, moment):
    """After kill -9 around a preemption the next daemon continues; every job finishes, none runs twice at once."""
    site.configure(policy="las", parameters="queue_thresholds_gpu_seconds = [12.0]\npromote_knob = 1000.0")
    site.start()
    options = "--epochs 1000 --step-seconds 0.1 --finish-file enough"
    slurm_job_id, directory = site.train(options, "--gres=gpu:4", "-w", "n1")
    site.wait(lambda: (job := site.job(slurm_job_id)) is not None and (job.progress_steps or 0) > 3)
    site.wait(lambda: site.job(slurm_job_id).attained_service > 12)
    if moment == "before":
        site.kill()
    # of one GPU, so that it does not soon have as much behind it as the training
    other = site.submit("until [ -e {dir}/go ]; do sleep 0.1; done", "--gres=gpu:1", "-w", "n1")
    if moment == "during":
        site.wait(lambda: "stop " + slurm_job_id in site.log())
        site.kill()
    elif moment == "after":
        site.wait_status(other, "running")
        site.kill()
    time.sleep(1)
    site.start()
    site.wait_status(other, "running")
    (site.base / "job-2" / "go").touch()
    site.wait_status(other, "completed")
    site.wait(lambda: has_trained(directory, 2))
    (directory / "enough").touch()
    ended = site.wait_status(slurm_job_id, "completed")
    assert_every_sample_once(directory)
    assert site.job(other).runs == 1
    assert ended.preemptions == 1
    starts = [path.name for path in directory.glob("trained-*-0.jsonl")]
    assert len(starts) == ended.runs


def test_slurmctld_may_be_killed(site):
    """A restart after kill -9, which no command fails by, is noticed and said; no job that waited for GPUs fails."""
    site.start()
    slurm_job_id, directory = site.train("--epochs 1000 --step-seconds 0.1 --finish-file enough", "--gres=gpu:2")
    blocker = site.submit("until [ -e {dir}/go ]; do sleep 0.1; done", "--gres=gpu:4", "-N3")
    waiting = [site.submit("exec metasched-run sleep 1", "--gres=gpu:4") for _ in range(4)]
    site.wait(lambda: (job := site.job(slurm_job_id)) is not None and (job.progress_steps or 0) > 3)
    site.wait_status(blocker, "running")
    until_cluster_saved(site.cluster, slurm_job_id)
    before = site.log().count("slurmctld_restarted")  # 1 where the cluster has only just started
    site.cluster.kill_controller(signal.SIGKILL)
    site.cluster.start_controller()
    (site.base / "job-2" / "go").touch()
    site.wait(lambda: "slurmctld has restarted" in site.status().slurm)
    for job in waiting:
        site.wait_status(job, "completed")
    assert site.log().count("slurmctld_restarted") == before + 1
    (directory / "enough").touch()
    site.wait_status(slurm_job_id, "completed")
    assert_every_sample_once(directory)
