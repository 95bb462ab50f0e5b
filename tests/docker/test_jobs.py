"""Jobs of ordinary users, from sbatch on the login host to their end."""

import pytest

pytestmark = pytest.mark.bounded


def test_jobs_of_two_users_are_preempted_resized_and_finish(site):
    """Alice's training over two hosts shrinks for Bob's job and grows again; it sees each sample once."""
    site.leave_one_gpu("c1", "c2")
    alice = site.train(
        "alice",
        "--epochs 1000 --step-seconds 0.05 --finish-file enough",
        "--gres=gpu:1",
        tag="metasched min_gpus=1 max_gpus=2",
    )
    site.wait(lambda: 2 in site.generations(alice).values(), why="Alice's training is not on both hosts")
    assert len(site.job(alice).nodes) == 2
    site.wait(lambda: site.job(alice).attained_service > 12)
    bob = site.submit("bob", "sleep 8", "--gres=gpu:1")  # what has had less service comes first
    site.wait_status(bob, "running")
    assert site.wait_status(bob, "completed").runs == 1
    site.wait(
        lambda: site.job(alice).world_sizes[-1] == 2 and site.job(alice).runs > 2, why="Alice's does not grow again"
    )
    site.sh("login", f"touch {alice.directory}/enough", "alice")
    ended = site.wait_status(alice, "completed")
    assert 1 in ended.world_sizes
    assert ended.world_sizes[-1] == 2
    assert ended.preemptions >= 1
    site.assert_nothing_lost(alice)


def test_a_job_without_a_tag_is_left_to_slurm(site):
    """The job starts by Slurm's own decision, and its GPUs count as taken."""
    other = site.submit("bob", "sleep 600", "--gres=gpu:4", "-w", "c1", tag=None)
    site.wait(lambda: "R" in site.sh("controller", f"squeue -h -o %t -j {other.slurm_job_id}"))
    ours = site.submit("alice", "sleep 1", "--gres=gpu:4", "-w", "c1")
    site.wait(lambda: (job := site.job(ours)) is not None and job.status == "held" and "GPU" in job.reason)
    assert "R" in site.sh("controller", f"squeue -h -o %t -j {other.slurm_job_id}")
    site.run("login", "scancel", other.slurm_job_id, user="bob")
    site.wait_status(ours, "completed")


def test_accounting_has_every_run_of_a_preempted_job(site):
    """`sacct --duplicates` shows each run under the owner's account."""
    alice = site.train("alice", "--epochs 1000 --step-seconds 0.05 --finish-file enough", "-w", "c1", "--gres=gpu:1")
    site.wait(lambda: 1 in site.generations(alice))
    site.wait(lambda: (job := site.job(alice)) is not None and job.attained_service > 12)
    bob = site.submit("bob", "sleep 1", "-w", "c1", "--gres=gpu:4")
    site.wait_status(bob, "completed")
    site.wait(lambda: 2 in site.generations(alice))
    site.sh("login", f"touch {alice.directory}/enough", "alice")
    ended = site.wait_status(alice, "completed")
    assert ended.account == "science"
    command = f"sacct -X -n -P --duplicates -o State,Account -j {alice.slurm_job_id}"
    rows = site.wait(
        lambda: "COMPLETED" in (text := site.sh("login", command, "alice")) and text.splitlines(), 30, "no accounting"
    )
    assert [row.split("|")[1] for row in rows] == ["science"] * ended.runs
    assert sum("COMPLETED" in row for row in rows) == 1
