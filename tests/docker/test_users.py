"""Two users: neither can read, forge or steer the other's job."""

import json

import pytest

from tests.docker.site import SHARED

pytestmark = pytest.mark.bounded
# What the kernel and Slurm say to who may not.
DENIED = ("permission", "denied", "not permitted", "not owner", "invalid user", "invalid job id", "access")


@pytest.fixture(scope="module")
def site(cluster):
    """One cluster at rest for all of these tests, and one training on it."""
    cluster.configure()
    yield cluster
    cluster.restore()


@pytest.fixture(scope="module")
def victim(site):
    """(training, uid) of a training of Alice's with reports, which Bob attacks in each test."""
    made = site.train("alice", "--epochs 100000 --step-seconds 0.1 --finish-file enough", "--gres=gpu:1", "-w", "c1")
    uid = site.wait_progress(made).uid
    yield made, uid
    site.sh("login", f"touch {made.directory}/enough", "alice")
    assert site.wait_status(made, "completed").runs == 1
    site.assert_nothing_lost(made)


@pytest.fixture
def training(site, victim):
    """The victim; after the test it still trains."""
    yield victim
    made, uid = victim
    site.sh("controller", "scancel -u bob")
    job = site.job(made)
    assert (job.uid, job.status, job.runs) == (uid, "running", 1), "Bob has done something to it"
    before = job.progress_steps
    site.wait(lambda: site.job(made).progress_steps > before, 60, "it does not train any more")


def test_nobody_else_writes_the_mailbox(site, training):
    """A lease can be neither changed, replaced nor removed, no stop forged, and no Slurm job id planted."""
    alice, uid = training
    box = f"{SHARED}/mailbox"
    lease = json.loads(site.run("login", "cat", f"{box}/{uid}/lease.json"))
    forged = json.dumps({**lease, "stop": {"run": lease["run"], "requested": 1, "deadline": 2, "reason": "forged"}})
    for user in ("bob", "alice"):  # not even her own: what a lease says is the daemon's decision
        for attempt in (
            f"echo '{forged}' > {box}/{uid}/lease.json",
            f"echo '{forged}' > /tmp/x && mv -f /tmp/x {box}/{uid}/lease.json",
            f"rm -f {box}/{uid}/lease.json",
            f"mv {box}/{uid} {box}/elsewhere",
            f"mkdir {box}/0123456789abcdef",
            f"echo {uid} > {box}/address/99999",
            f"echo 0123456789abcdef > {box}/address/{alice.slurm_job_id}",
            f"echo '{{}}' > {SHARED}/status.json",
            f"ln -sf /tmp/x {SHARED}/status.json",
            f"rm -f {SHARED}/daemon.lock",
            f"mv {SHARED}/reports {SHARED}/away",
        ):
            site.refused("login", attempt, user, *DENIED)
    assert json.loads(site.run("login", "cat", f"{box}/{uid}/lease.json"))["stop"] is None


def test_nobody_else_reads_or_writes_the_reports(site, training):
    """Another user's report files can be neither read, listed, written, replaced nor added to."""
    _, uid = training
    reports = f"{SHARED}/reports/{uid}"
    line = json.dumps({"v": 1, "t": 2e9, "kind": "end", "step": 10**6, "samples": 1, "loss": 0.0})
    for attempt in (
        f"cat {reports}/incarnation-1.jsonl",
        f"ls {reports}",
        f"echo '{line}' >> {reports}/incarnation-1.jsonl",
        f"echo '{line}' > {reports}/incarnation-2.jsonl",
        f"rm -f {reports}/incarnation-1.jsonl",
        f"mv {reports} {SHARED}/reports/away",
        f"rmdir {reports}",
    ):
        site.refused("login", attempt, "bob", *DENIED)


def test_reports_in_anothers_name_are_refused(site, training):
    """A link from Bob's reports to Alice's, or to a file that the daemon can read, brings nothing into the store."""
    _, uid = training
    bob = site.submit("bob", "sleep 20", "--gres=gpu:1", "-w", "c2")
    own = site.wait_status(bob, "running").uid
    site.sh("login", f"ln -s {SHARED}/reports/{uid} {SHARED}/reports/{own}", "bob")
    site.wait(lambda: _events(site, own, "reports-refused"), 90, "the daemon says nothing of the link")
    assert site.job(bob).progress_steps is None
    site.sh("login", f"rm {SHARED}/reports/{own} && mkdir {SHARED}/reports/{own}", "bob")
    site.sh("login", f"ln -s {SHARED}/status.json {SHARED}/reports/{own}/incarnation-1.jsonl", "bob")
    assert site.wait_status(bob, "completed").progress_steps is None


def test_a_foreign_directory_for_a_jobs_reports_is_moved_aside(site, training):
    """Bob creates the reports directory of Alice's next trainer: it is renamed, and her trainer creates its own."""
    blocker = site.submit("bob", "sleep 3600", "--gres=gpu:4", "-w", "c2", tag=None)
    site.wait(lambda: site.sh("controller", f"squeue -h -o %T -j {blocker.slurm_job_id}").strip() == "RUNNING")
    alice = site.train("alice", "--epochs 5", "--gres=gpu:1", "-w", "c2")
    uid = site.wait(lambda: (job := site.job(alice)) is not None and job).uid
    line = json.dumps({"v": 1, "t": 1.7e9, "kind": "declare", "total_steps": 1, "total_samples": 1, "global_batch": 1})
    site.sh("login", f"mkdir {SHARED}/reports/{uid}; echo '{line}' > {SHARED}/reports/{uid}/incarnation-1.jsonl", "bob")
    site.run("login", "scancel", blocker.slurm_job_id, user="bob")
    ended = site.wait_status(alice, "completed")
    assert _events(site, uid, "reports-taken")
    assert ended.progress_steps > 1
    assert ended.total_steps != 1
    assert ended.runs == 1
    site.assert_nothing_lost(alice)


def test_slurm_refuses_bobs_operations_on_alices_job(site, training):
    """The operations are cancel, signal, hold, release, requeue, update and attach."""
    alice, uid = training
    for attempt in (
        f"scancel {alice.slurm_job_id}",
        f"scancel -s USR2 {alice.slurm_job_id}",
        f"scontrol hold {alice.slurm_job_id}",
        f"scontrol release {alice.slurm_job_id}",
        f"scontrol requeue {alice.slurm_job_id}",
        f"scontrol update JobId={alice.slurm_job_id} Comment=metasched",
        f"scontrol update JobId={alice.slurm_job_id} AdminComment=metasched:{uid}",
        f"srun --jobid={alice.slurm_job_id} --overlap hostname",
    ):
        site.refused("login", attempt, "bob", *DENIED)
    assert alice.slurm_job_id not in site.sh("login", "squeue -h -o %i", "bob")


def test_only_the_daemon_writes_stamps(site, training):
    """Bob's job cannot carry Alice's uid: not by a comment, by AdminComment, or by variables of its environment."""
    _, uid = training
    bob = site.submit(
        "bob",
        f"export METASCHED_UID={uid} METASCHED_REPORTS={SHARED}/reports/{uid}\n"
        "exec metasched-run sh -c 'echo $METASCHED_UID $METASCHED_REPORTS; sleep 3'",
        "--gres=gpu:1",
    )
    posing = site.submit("bob", "sleep 1", "--gres=gpu:1", tag=f"metasched:{uid}")
    site.refused("login", f"scontrol update JobId={bob.slurm_job_id} AdminComment=metasched:{uid}", "bob")
    own = site.wait_status(bob, "completed").uid
    assert own != uid
    said = site.sh("login", f"cat {bob.directory}/out.txt", "bob")
    assert own in said
    assert uid not in said
    assert site.job(posing) is None


def test_a_tag_gives_no_advantage_over_others(site, training):
    """A weight above 1 is an error of the tag: the job is never started."""
    bob = site.submit("bob", "sleep 1", "--gres=gpu:1", tag="metasched weight=100")
    job = site.wait(lambda: (job := site.job(bob)) is not None and job.error and job)
    assert "weight" in job.error
    assert job.status == "held"
    site.refused(
        "login", f"scontrol release {bob.slurm_job_id} && squeue -h -t R,CG,CD -j {bob.slurm_job_id} | grep .", "bob"
    )


def test_apps_of_one_name_stay_two(site, training):
    """A search of Bob's has the name of a search of Alice's: his tuner ends one of his trials, and none of hers."""
    endless = "--epochs 100000 --step-seconds 0.1 --finish-file enough"
    hers = [site.train("alice", endless, "--gres=gpu:1", tag="metasched app=search") for _ in range(2)]
    tag = "metasched app=search tuner=halving,steps=40"
    his = [site.train("bob", f"{endless} --dropout {p}", "--gres=gpu:1", tag=tag) for p in (0.0, 0.9)]

    def apps():
        status = site.status()
        return {} if status is None else {one.uid: one for one in status.apps}

    site.wait(lambda: (one := apps().get("app:bob/search")) is not None and one.live == 1 and one.ended == 1)
    found = apps()
    assert [(one.user, one.name, one.live, one.ended) for _, one in sorted(found.items())] == [
        ("alice", "search", 2, 0),
        ("bob", "search", 1, 1),
    ]
    loser = site.wait(lambda: (job := site.job(his[1])) is not None and job.finished and job)
    assert "its loss" in loser.reason
    for made in (*hers, his[0]):
        site.wait_progress(made)
        site.sh("login", f"touch {made.directory}/enough", made.user)
    for made in (*hers, his[0]):
        assert site.wait_status(made, "completed").reason != loser.reason
        site.assert_nothing_lost(made)


def test_only_the_daemon_reads_and_writes_the_store(site):
    """On the daemon's own host no user can read or replace the database, or its copy on the shared volume."""
    for attempt in (
        "cat /var/lib/metasched/metasched.db",
        "ls /var/lib/metasched",
        "touch /var/lib/metasched/x",
        "metasched --config /etc/metasched/metasched.toml db query 'select * from jobs'",
    ):
        site.refused("scheduler", attempt, "bob")
    site.refused("login", f"cat {SHARED}/standby/*", "bob")
    found = site.sh("scheduler", "pgrep -o -u metasched -f 'bin/metasched daemon'").split()[0]
    site.refused("scheduler", f"kill {found}", "bob", *DENIED)
    site.refused("scheduler", f"cat /proc/{found}/environ", "bob", *DENIED)


def test_bobs_own_daemon_cannot_affect_alices_jobs(site, training):
    """On the cluster's directories it is refused; on his own directories it changes no job of hers."""
    _, uid = training
    refusal = site.refused("login", "metasched --config /cluster/etc/metasched.toml daemon", "bob")
    assert "traceback" not in refusal
    config = '[paths]\nstate = "/home/bob/state"\nshared = "/home/bob/shared"\n[schedule]\npoll_seconds = 0.5\n'
    site.run("login", "sh", "-c", "cat > own.toml", user="bob", stdin=config.encode())
    some_rounds = """metasched --config /home/bob/own.toml daemon > own.log 2>&1 & pid=$!
        for _ in $(seq 60); do [ -e shared/status.json ] && break; sleep 1; done
        sleep 3; kill $pid; wait $pid; true"""
    site.sh("login", some_rounds, "bob", timeout=120)
    assert uid not in site.sh("login", "cat own.log shared/status.json", "bob")


def _events(site, uid, kind):
    """Return a job's events of a kind from the daemon's store."""
    return [event for event in site.explain(uid)["events"] if event["kind"] == kind]
