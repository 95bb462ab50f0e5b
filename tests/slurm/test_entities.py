"""What users and admins say of jobs reaches the policy: accounts, weights, deadlines."""

import subprocess
import sys

from tests.slurm.site import ROOT

ENTITIES = """
[policy.parameters.entities]
vision = { weight = 3 }
speech = { weight = 1 }
"""


def test_accounts_are_entities_with_the_weights_of_the_configuration(one_gpu):
    """The account of `sbatch -A` decides; within it, the weight of the tag."""
    one_gpu.configure(policy="gavel_hierarchical", extra=ENTITIES)
    one_gpu.start()
    asked = {"vision": ("weight=1", "weight=0.5"), "speech": ("weight=1",)}
    jobs = {
        (account, tag): one_gpu.submit("sleep 1000", "--gres=gpu:1", "-A", account, tag=f"metasched {tag}")
        for account, tags in asked.items()
        for tag in tags
    }
    shares = {("vision", "weight=1"): "50%", ("vision", "weight=0.5"): "25%", ("speech", "weight=1"): "25%"}

    def shared():
        seen = {who: one_gpu.job(slurm_job_id) for who, slurm_job_id in jobs.items()}
        return all(job and job.account == who[0] and shares[who] in job.reason for who, job in seen.items())

    one_gpu.wait(shared)


def test_a_deadline_is_read_stored_and_shown(one_gpu):
    """`explain` says by when the job should be done, and so does the published status."""
    one_gpu.start()
    slurm_job_id = one_gpu.submit("sleep 1000", "--gres=gpu:1", tag="metasched slo=2h model=gpt")
    one_gpu.wait(lambda: (job := one_gpu.job(slurm_job_id)) and job.slo_seconds == 7200)
    argv = [sys.executable, "-m", "metasched", "--config", str(one_gpu.config), "explain", slurm_job_id]
    done = subprocess.run(
        argv, env=one_gpu.cluster.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "should be done 2 h after its submission" in done.stdout, done.stderr
    with one_gpu.store() as store:
        (record,) = store.live_jobs()
    assert (record.requirements["slo_seconds"], record.requirements["model"]) == (7200, "gpt")
