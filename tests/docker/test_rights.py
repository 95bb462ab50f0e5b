"""Which rights the daemon has, and which it needs."""

import contextlib

import pytest

from tests.docker.site import SHARED, CommandFailedError

OPERATOR = "sacctmgr -i modify user metasched set adminlevel={}"


@pytest.mark.bounded
def test_the_daemon_has_no_right_on_its_host(site):
    """The daemon has its own account, no capabilities, and can never gain any."""
    lines = site.sh("scheduler", "cat /proc/$(pgrep -o -u metasched -f 'bin/metasched daemon')/status").splitlines()
    facts = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    assert set(facts["Uid"] + facts["Gid"]) == {"901"}
    assert facts["Groups"] == []
    assert {int(facts[key][0], 16) for key in facts if key.startswith("Cap")} == {0}
    assert facts["NoNewPrivs"] == ["1"]


@pytest.mark.bounded
def test_the_daemon_is_an_operator_and_no_administrator(site):
    """The daemon's Slurm role is Operator: it cannot change accounts' limits or shut Slurm down."""
    assert "Operator" in site.sh("controller", "sacctmgr -n -P show user metasched format=adminlevel")
    as_daemon = "setpriv --reuid metasched --regid metasched --clear-groups "
    for command in ("scontrol shutdown", "scontrol reconfigure"):
        with pytest.raises(CommandFailedError, match=r"(?i)permission|access|denied|invalid user"):
            site.sh("scheduler", as_daemon + command)


def test_without_the_operator_role_no_job_changes(site):
    """Slurm refuses the daemon's writes; the job stays held, the log has the reason, and the role mends it."""
    site.sh("controller", OPERATOR.format("none"))
    site.mend.append(("operator", lambda: site.sh("controller", OPERATOR.format("operator"))))
    job = site.submit("alice", "sleep 1", "--gres=gpu:1")
    slurm_job_id = job.slurm_job_id
    # What others may see of jobs is the site's choice (PrivateData); here it is nothing.
    with contextlib.suppress(AssertionError):
        site.wait(lambda: (seen := site.job(job)) is not None and seen.status != "held", 10)
        raise AssertionError("it was started by somebody who may not")
    assert "PENDING" in site.sh("controller", f"squeue -h -o %T -j {slurm_job_id}")
    site.undo("operator")
    site.wait_status(job, "completed")


def test_an_operator_is_enough_for_every_action(site):
    """Hold, resize, release, signal, requeue and suspend: none of them needs more than Operator."""
    as_daemon = "setpriv --reuid metasched --regid metasched --clear-groups "
    target = site.submit("alice", "sleep 300 & wait", "--gres=gpu:1", "-N1", tag=None).slurm_job_id
    site.wait(lambda: "RUNNING" in site.sh("controller", f"squeue -h -o %T -j {target}"))
    state = f"squeue -h -t all -o %T -j {target}"
    for command in (f"scontrol suspend {target}", f"scontrol resume {target}", f"scancel -s CONT {target}"):
        site.sh("scheduler", as_daemon + command)
    site.sh("scheduler", as_daemon + f"scontrol hold {target}")
    site.sh("scheduler", as_daemon + f"scontrol requeuehold {target}")
    site.wait(lambda: any(word in site.sh("controller", state) for word in ("PENDING", "SPECIAL_EXIT")))
    # The one thing that it may not is why job_submit.lua stamps jobs.
    with pytest.raises(CommandFailedError, match="denied"):
        site.sh("scheduler", as_daemon + f"scontrol update JobId={target} AdminComment=metasched:0123456789abcdef")
    for command in (
        f"scontrol update JobId={target} Priority=0 Requeue=1",
        f"scontrol update JobId={target} NumNodes=2-2 NumTasks=2 NumCPUs=2 Gres=gpu:1 ReqNodeList=c1,c2 StartTime=now",
    ):
        site.sh("scheduler", as_daemon + command)
    site.sh("scheduler", as_daemon + f"scontrol hold {target}")
    site.refused("login", f"scontrol release {target}", "alice", "denied")
    site.sh("scheduler", as_daemon + f"scontrol release {target}")
    site.wait(lambda: "RUNNING" in site.sh("controller", state))
    assert site.sh("controller", f"squeue -h -o %D -j {target}").strip() == "2"


def test_only_the_daemon_may_write_its_files(site):
    """The state directory is private; in the shared directory other users may write reports only."""
    assert site.run("scheduler", "stat", "-c", "%U %a", "/var/lib/metasched").split() == ["metasched", "700"]
    writable = site.sh("login", f"find {SHARED} -perm -o+w -not -type l").split()
    assert writable == [f"{SHARED}/reports"]
    assert site.run("login", "stat", "-c", "%U %a", f"{SHARED}/reports").split() == ["metasched", "3733"]
