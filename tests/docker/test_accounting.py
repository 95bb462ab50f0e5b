"""Slurm's accounting: shares of accounts are weights, and limits on GPUs hold for what metasched decides."""

import pytest

# Stops when it is asked to, and is light enough for many.
WAITS = "exec metasched-run bash -c 'trap \"exit 85\" USR2 TERM; while :; do sleep 0.2; done'"
ACCOUNTING = "\n[accounting]\nrefresh_seconds = 1\n"


@pytest.fixture
def sacctmgr(site):
    """Change Slurm's accounting, after registering the command that undoes the change."""
    undo = []

    def change(what, *, undone_by=None):
        if undone_by is not None:
            undo.append(undone_by)
        site.sh("controller", f"sacctmgr -iQ {what}")

    yield change
    site.wait(lambda: not site.sh("controller", "scancel -u alice; scancel -u bob; squeue -h"), why="jobs do not end")
    for what in reversed(undo):
        site.sh("controller", f"sacctmgr -iQ {what}")


def test_accounts_have_gpus_by_their_shares(site, sacctmgr):
    """Four GPUs go three to one by fair-share, though the configuration names no account."""
    for account, user, shares in (("vision", "alice", 3), ("speech", "bob", 1)):
        sacctmgr(f"add account {account} cluster=main fairshare={shares}", undone_by=f"delete account {account}")
        sacctmgr(f"add user {user} account={account}", undone_by=f"delete user {user} account={account}")
    site.configure(policy="gavel_hierarchical", parameters=ACCOUNTING)
    site.submit("bob", "sleep 3600", "--gres=gpu:4", "-w", "c2", tag=None)
    jobs = {
        "vision": [site.submit("alice", WAITS, "--gres=gpu:1", "-A", "vision") for _ in range(4)],
        "speech": [site.submit("bob", WAITS, "--gres=gpu:1", "-A", "speech") for _ in range(2)],
    }

    def seen(account):
        return [job for training in jobs[account] if (job := site.job(training)) is not None]

    def shared():
        share = {"vision": "75% of v100", "speech": "50% of v100"}
        return all(share[account] in job.reason for account in jobs for job in seen(account))

    def had(account):
        return sum(job.attained_service for job in seen(account))

    site.wait(shared, why="the shares of time are not three of four GPUs and one of four")
    before = {account: had(account) for account in jobs}
    site.wait(lambda: sum(had(account) - before[account] for account in jobs) > 80)  # GPU-seconds
    vision, speech = (had(account) - before[account] for account in jobs)
    assert 1.7 < vision / speech < 5  # with equal weights it would be 1


def test_limits_on_gpus_are_enforced_and_explained(site, sacctmgr):
    """A user has the GPUs that the QOS leaves next to an untagged job, others the rest; `explain` has the reason."""
    sacctmgr(
        "modify qos normal set MaxTRESPerUser=gres/gpu=3", undone_by="modify qos normal set MaxTRESPerUser=gres/gpu=-1"
    )
    site.configure(policy="fifo", parameters=ACCOUNTING)
    site.submit("alice", "sleep 3600", "--gres=gpu:1", tag=None)
    elastic = site.submit("alice", WAITS, "--gres=gpu:1", tag="metasched min_gpus=1 max_gpus=3")
    waits = site.submit("alice", WAITS, "--gres=gpu:1")
    bob = site.submit("bob", WAITS, "--gres=gpu:3")
    site.wait_status(bob, "running")
    assert sum(site.wait_status(elastic, "running").nodes.values()) == 2
    limit = "QOS normal: MaxTRESPerUser gres/gpu=3 for alice"
    site.wait(lambda: limit in site.job(waits).reason, why=f"it does not wait on its limit: {site.job(waits)}")
    assert limit in site.sh("login", f"metasched explain {waits.slurm_job_id} --shared /home/metasched", "alice")
    sacctmgr("modify qos normal set MaxTRESPerUser=gres/gpu=5")
    site.wait_status(waits, "running")
    assert "did not start" not in site.daemon_log()


def test_an_accounts_limit_leaves_others_the_rest(site, sacctmgr):
    """The jobs of the limited account have its two GPUs, whatever the order of submission."""
    sacctmgr("add account vision cluster=main", undone_by="delete account vision")
    sacctmgr("add user alice,bob account=vision", undone_by="delete user alice,bob account=vision")
    sacctmgr("modify account vision set GrpTRES=gres/gpu=2")
    site.configure(policy="fifo", parameters=ACCOUNTING)
    inside = [site.submit(user, WAITS, "--gres=gpu:1", "-A", "vision") for user in ("alice", "bob", "alice")]
    rest = site.submit("bob", WAITS, "--gres=gpu:4")
    for training in (*inside[:2], rest):
        site.wait_status(training, "running")
    site.wait(lambda: "account vision: GrpTRES gres/gpu=2" in site.job(inside[2]).reason)
    assert site.job(inside[2]).status == "held"


def test_jobs_that_wait_for_a_limit_hold_up_no_others(site, sacctmgr):
    """Under time shares: five jobs of bob take turns on three GPUs, beside more jobs of an account without any left."""
    sacctmgr("add account vision cluster=main", undone_by="delete account vision")
    sacctmgr("add user alice account=vision", undone_by="delete user alice account=vision")
    sacctmgr("modify account vision set GrpTRES=gres/gpu=1")
    site.configure(policy="gavel_las", parameters="quantum_restarts = 0.0\n" + ACCOUNTING)
    site.submit("alice", "sleep 3600", "--gres=gpu:1", "-w", "c1", "-A", "vision", tag=None)
    site.submit("bob", "sleep 3600", "--gres=gpu:4", "-w", "c2", tag=None)
    limited = [site.submit("alice", WAITS, "--gres=gpu:1", "-A", "vision") for _ in range(5)]
    others = [site.submit("bob", WAITS, "--gres=gpu:1") for _ in range(5)]
    site.wait(
        lambda: all((job := site.job(training)) is not None and job.attained_service > 0 for training in others),
        why="a job of no limit does not run",
    )
    for training in limited:
        assert "account vision: GrpTRES gres/gpu=1" in site.job(training).reason
        assert site.job(training).attained_service == 0


def test_jobs_of_an_intake_qos_need_no_tag(site, sacctmgr):
    """All other jobs are left to Slurm."""
    sacctmgr("add qos train", undone_by="delete qos train")
    sacctmgr("modify user alice set qos+=train", undone_by="modify user alice set qos-=train")
    plugin = "/etc/slurm/job_submit.lua"
    site.sh(
        "controller",
        f"cp -p {plugin} {plugin}.before; sed -i 's/^local QOS = {{}}/local QOS = {{\"train\"}}/' {plugin}",
    )
    site.mend.append(("plugin", lambda: site.sh("controller", f"mv {plugin}.before {plugin}; touch {plugin}")))
    site.configure(policy="fifo", parameters='\n[intake]\nqos = ["train"]\n')
    ours = site.submit("alice", WAITS, "--gres=gpu:1", "--qos=train", tag=None)
    other = site.submit("alice", "sleep 3600", "--gres=gpu:1", tag=None)
    assert site.wait_status(ours, "running").reason
    site.wait(lambda: site.sh("controller", f"squeue -h -o %T -j {other.slurm_job_id}").strip() == "RUNNING")
    assert site.job(other) is None
