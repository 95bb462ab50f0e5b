"""Repeated preemptions of a job as its owner sees them: mails, accounting records and dependent jobs."""

import pytest

MAIL_PROG = "/usr/local/bin/log-mail"
CONF = "/etc/slurm/slurm.conf"


@pytest.fixture
def mails(site):
    """Return the subjects of the mails to a user so far: the cluster's mail program records them."""
    script = "#!/bin/sh\nprintf '%s\\n' \"$*\" >> /tmp/mails\n"
    site.run("controller", "tee", MAIL_PROG, stdin=script.encode())
    site.sh("controller", f"chmod 755 {MAIL_PROG}; rm -f /tmp/mails; sed -i '/^MailProg=/d' {CONF}")
    site.sh("controller", f"echo MailProg={MAIL_PROG} >> {CONF}; scontrol reconfigure")
    site.mend.append(("mail", lambda: site.sh("controller", f"sed -i '/^MailProg=/d' {CONF}; scontrol reconfigure")))

    def of(training):
        found = site.sh("controller", "touch /tmp/mails; cat /tmp/mails").splitlines()
        subjects = [line for line in found if f"Job_id={training.slurm_job_id} " in line]
        assert all(line.endswith(f" {training.user}") for line in subjects)
        return [next(word for word in ("Began", "Requeued", "Ended", "Failed") if word in line) for line in subjects]

    return of


def squeue(site, training, what):
    return site.sh("controller", f"squeue -h -a -t all -o {what} -j {training.slurm_job_id}").strip()


def runs_of(site, training, *options):
    """Return the states of a job's runs in accounting."""
    argv = ("sacct", "-X", "-n", "-P", "-o", "State", *options, "-j", training.slurm_job_id)
    return site.run("login", *argv, user=training.user).split()


def preempt(site, training, times):
    """Preempt a job by a job of Bob's, and wait until it runs again."""
    site.wait(lambda: site.job(training).attained_service > 12)  # what has had less comes first from now on
    other = site.submit("bob", "sleep 1", "-w", "c1", "--gres=gpu:4")
    site.wait_status(other, "completed")
    site.wait(lambda: site.job(training).runs == times + 1 and site.job(training).status == "running")


def test_a_job_that_is_preempted_twice_is_one_job_to_its_owner(site, mails):
    """The owner gets a mail per preemption and one for the end; accounting has each run; a dependent starts once."""
    train = "--epochs 1000 --step-seconds 0.05 --finish-file enough"
    alice = site.train("alice", train, "-w", "c1", "--gres=gpu:1", "--mail-type=END,FAIL,REQUEUE")
    after = [f"--dependency=afterok:{alice.slurm_job_id}", "--mail-type=BEGIN"]
    ours, other = site.submit("alice", "sleep 1", *after), site.submit("alice", "sleep 1", *after, tag=None)
    for times in (1, 2):
        site.wait(lambda n=times: len(site.generations(alice)) == n, why="it does not train")
        preempt(site, alice, times)
        site.wait(lambda n=times: mails(alice) == ["Requeued"] * n)  # Slurm sends them from a queue
        assert [squeue(site, one, "%T") for one in (ours, other)] == ["PENDING", "PENDING"]
    site.sh("login", f"touch {alice.directory}/enough", "alice")
    ended = site.wait_status(alice, "completed")
    assert site.wait_status(ours, "completed").run_started is None
    site.wait(lambda: squeue(site, other, "%T") == "COMPLETED")
    site.wait(lambda: mails(alice) == ["Requeued", "Requeued", "Ended"])
    site.wait(lambda: [mails(one) for one in (ours, other)] == [["Began"], ["Began"]])
    site.wait(lambda: runs_of(site, alice) == ["COMPLETED"], 30, "no accounting")
    assert runs_of(site, alice, "--duplicates") == ["REQUEUED", "REQUEUED", "COMPLETED"]
    assert ended.runs == 3
    begun = [squeue(site, one, "%S") for one in (ours, other)]  # text that sorts as time does
    assert min(begun) >= squeue(site, alice, "%e")
    site.assert_nothing_lost(alice)


def test_a_dependent_of_a_failed_job_never_starts(site, mails):
    """A job that fails after a preemption: one mail says so, and its afterok dependents stay, with the reason."""
    wait = "until [ -e {dir}/enough ]; do sleep 0.1; done; exit 1"
    alice = site.submit("alice", wait, "-w", "c1", "--gres=gpu:4", "--mail-type=END,FAIL,REQUEUE")
    ours = site.submit("alice", "sleep 1", f"--dependency=afterok:{alice.slurm_job_id}")
    site.wait_status(alice, "running")
    preempt(site, alice, 1)
    site.sh("login", f"touch {alice.directory}/enough", "alice")
    site.wait_status(alice, "failed")
    site.wait(lambda: "Failed" in mails(alice))
    assert mails(alice) == ["Requeued", "Failed"]
    site.wait(lambda: "afterok" in site.job(ours).reason and "failed" in site.job(ours).reason)
    assert site.job(ours).runs == 0
