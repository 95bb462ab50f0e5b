"""The daemon's host is lost: another host takes over, and the first is the standby when it is back."""

import re
import time

import pytest

from metasched.slurm.hostlist import expand
from tests.docker.site import SHARED

FIRST, SECOND = "scheduler", "standby"
LONG = "--epochs 1000 --step-seconds 0.1 --checkpoint-every 2 --finish-file enough"
FIFO = '[policy]\nname = "fifo"\n'
LAS = '[policy]\nname = "las"\n\n[policy.parameters]\nqueue_thresholds_gpu_seconds = [12.0]\n'
COPIES = "\n[standby]\ncopy_seconds = 1\n"
COPY = f"{SHARED}/standby/metasched.db"


@pytest.fixture
def standby(site, request):
    """A standby daemon on a second host, started for the test; both daemons copy the store every second."""
    config = getattr(request, "param", FIFO) + COPIES
    site.write_config(config, FIRST)
    before = site.status().pid
    site.signal_daemon("TERM", FIRST)
    site.wait(lambda: (status := site.status()) is not None and status.pid != before)
    started = time.time()
    site.start_host(SECOND)
    site.mend.append((f"switch off {SECOND}", lambda: site.switch_off(SECOND)))
    stands_by(site, SECOND, started)
    site.write_config(config, SECOND)
    restarted = time.time()
    site.signal_daemon("TERM", SECOND)
    stands_by(site, SECOND, restarted)


def stands_by(site, host, since):
    """Wait until the host's daemon is on standby."""
    site.wait(lambda: "standing_by" in site.daemon_log(since, host), 60, f"{host} does not stand by")


def await_decisions(site, host):
    """Wait until the daemon of that host decides."""
    site.wait(lambda: (status := site.status()) is not None and status.host == host, 60, f"{host} does not take over")
    site.wait_decides()


def copied(site):
    """Wait for two copies of the store: the first may have begun before this call."""
    for _ in range(2):
        last = site.sh(FIRST, f"stat -c %y {COPY}")
        site.wait(lambda last=last: site.sh(FIRST, f"stat -c %y {COPY}") != last, 120, "the store is not copied")


def history(site, training, host):
    """Return (run, released, started, placement) of a job's runs in a host's store."""
    runs = site.explain(site.job(training).uid, host)["runs"]
    return [(run["run"], run["released_at"], run["started"], run["placement"]) for run in runs]


def gpus(site):
    """Return the host and GPU of each running job, by Slurm."""
    shown = site.sh("controller", "scontrol -d show job")
    return [
        (node, gpu)
        for nodes, numbers in re.findall(r"^\s*Nodes=(\S+) .*IDX:([0-9,-]+)\)", shown, re.MULTILINE)
        for node in expand(nodes)
        for first, _, last in (part.partition("-") for part in numbers.split(","))
        for gpu in range(int(first), int(last or first) + 1)
    ]


def writes(site, host):
    """Return the number of requests in slurmctld's debug log that are not for information."""
    asked = rf"opcode [A-Z_]* from {re.escape(site.slurm_job_id(host))}:"
    log = site.sh("controller", f"grep -o '{asked}' /var/log/slurm/slurmctld.log || true")
    return sum("INFO from" not in line for line in log.splitlines())


def lose(site, how):
    """Lose the first host; return the name of the fault, for `undo`."""
    if how == "killed":
        site.kill_host(FIRST)
        return f"start {FIRST}"
    site.hide(FIRST, "/home")
    return f"show {FIRST} /home"


@pytest.mark.parametrize("how", ["killed", "cut off from the shared volume"])
def test_another_host_takes_over_and_back(site, standby, recovery, how):
    """No job is lost or restarted, no GPU allocated twice, and the copied history is kept."""
    one = site.train("alice", LONG, "--gres=gpu:1", "-w", "c1")
    two = site.train("bob", LONG, "--gres=gpu:1", "-N2")
    filler = site.submit("bob", "sleep 3600", "--gres=gpu:2", "-N2")
    waiting = site.submit("alice", "sleep 1", "--gres=gpu:3", "-w", "c2")
    running = (one, two, filler)
    for training in (one, two):
        site.wait_progress(training)
    site.wait_status(filler, "running")
    site.wait_status(waiting, "held")
    round_number = site.status().round
    copied(site)
    uids = [site.job(training).uid for training in (*running, waiting)]
    runs = [history(site, training, FIRST) for training in running]

    whole = recovery()
    back = lose(site, how)
    late = site.submit("alice", "sleep 1", "--gres=gpu:1")
    await_decisions(site, SECOND)
    whole("the second host decides")

    assert [site.job(training).uid for training in (*running, waiting)] == uids
    assert [history(site, training, SECOND) for training in running] == runs
    assert site.status().round >= round_number
    held = gpus(site)
    assert len(held) == len(set(held)) >= 7
    site.run("login", "scancel", filler.slurm_job_id, user="bob")
    for training in (waiting, late):
        assert site.wait_status(training, "completed").runs == 1

    began = time.time()
    site.undo(back)
    stands_by(site, FIRST, began)
    copied(site)
    whole = recovery()
    site.switch_off(SECOND)
    await_decisions(site, FIRST)
    whole("the first host decides again")
    assert [history(site, training, FIRST) for training in running] == runs
    assert site.job(waiting).status == "completed"
    for training in (one, two):
        site.sh("login", f"touch {training.directory}/enough", training.user)
        ended = site.wait_status(training, "completed")
        assert (ended.runs, set(site.generations(training))) == (1, {1})
        site.assert_nothing_lost(training, ended.progress_steps)


@pytest.mark.parametrize("standby", [LAS], indirect=True, ids=["las"])
def test_a_preemption_outlives_the_host_that_began_it(site, standby, recovery):
    """While the victim still writes its checkpoint, the daemon's host is killed: nothing is lost, and both jobs run."""
    victim = site.train("alice", f"{LONG} --slow-disk 4", "--gres=gpu:1", "-w", "c1")
    site.wait_progress(victim)
    site.wait(lambda: site.job(victim).attained_service > 12)
    copied(site)
    began = time.time()
    winner = site.submit("bob", "sleep 1", "--gres=gpu:4", "-w", "c1")
    site.wait(lambda: f"stop {victim.slurm_job_id}" in site.daemon_log(began), why="it is not preempted")
    whole = recovery()
    site.kill_host(FIRST)
    assert site.wait_status(winner, "completed").runs == 1
    whole("the job that it was preempted for has run")
    site.wait(lambda: 2 in site.generations(victim), why="the victim does not resume")
    assert site.status().host == SECOND
    site.sh("login", f"touch {victim.directory}/enough", victim.user)
    ended = site.wait_status(victim, "completed")
    assert (ended.runs, set(site.generations(victim))) == (2, {1, 2})
    site.assert_nothing_lost(victim, ended.progress_steps)


def test_a_frozen_host_writes_nothing_after_a_takeover(site, standby, recovery):
    """Its lock is removed, as the docs say; when it wakes up, it finds the takeover and ends."""
    site.sh("controller", "scontrol setdebugflags +Protocol")
    site.mend.append(("debug flags", lambda: site.sh("controller", "scontrol setdebugflags -Protocol")))
    training = site.train("alice", LONG, "--gres=gpu:1")
    site.wait_progress(training)
    site.sh(FIRST, "touch /run/stopped/metasched")  # once its daemon has ended, it stays so
    before = writes(site, FIRST)
    assert before > 0
    site.pause_host(FIRST)
    whole = recovery()
    site.sh("login", f"rm {SHARED}/daemon.lock")
    await_decisions(site, SECOND)
    whole("the second host decides")
    site.wait_status(site.submit("bob", "sleep 1", "--gres=gpu:1"), "completed")

    site.switch_off(SECOND)
    tempting = site.submit("bob", "sleep 1", "--gres=gpu:1")
    woken = time.time()
    site.undo(f"unpause {FIRST}")
    site.wait(lambda: "metasched ended" in site.daemon_log(woken, FIRST), 60, "the first daemon does not end")
    assert "has replaced or taken the lock" in site.daemon_log(woken, FIRST)
    assert writes(site, FIRST) == before

    site.sh(FIRST, "rm /run/stopped/metasched")
    assert site.wait_status(tempting, "completed").runs == 1
    assert writes(site, FIRST) > before
    site.sh("login", f"touch {training.directory}/enough", training.user)
    assert site.wait_status(training, "completed").runs == 1
    site.assert_nothing_lost(training)
