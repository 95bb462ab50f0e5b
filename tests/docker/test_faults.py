"""Faults of hosts and of what lies between them: nothing is lost, and the time to recover is printed."""

import time

import pytest

from tests.docker.site import CommandFailedError
from tests.saved import until_saved

LONG = "--epochs 1000 --step-seconds 0.1 --checkpoint-every 2 --finish-file enough"


def start(site, *sbatch, tag="metasched", before=""):
    """Return a training of Alice's that has made some steps."""
    training = site.train("alice", LONG, "--gres=gpu:1", *sbatch, tag=tag, before=before)
    site.wait_progress(training, 25)
    return training


def where(site, training):
    """Return the host of a running job."""
    return next(iter(site.job(training).nodes))


def finish(site, training, seconds=240):
    """Let a training end with its epoch, and check that no sample is lost."""
    site.sh("login", f"touch {training.directory}/enough", "alice")
    ended = site.wait_status(training, "completed", seconds)
    site.assert_nothing_lost(training, ended.progress_steps)
    return ended


def await_generation(site, training, generation, seconds=300):
    """Wait until that generation trains."""
    site.wait(lambda: generation in site.generations(training), seconds, f"no generation {generation} trains")


def await_service(site, host):
    """Wait until Slurm uses the host again."""
    site.wait(lambda: "idle" in site.sh("controller", f"sinfo -h -N -n {host} -o %T"), 240)


@pytest.mark.bounded
def test_a_compute_host_is_killed(site, recovery):
    """The job resumes from its checkpoint on another host; the host is used again when it is back."""
    training = start(site)
    lost = where(site, training)
    whole = recovery()
    site.kill_host(lost)
    await_generation(site, training, 2)
    whole("trains on another host")
    assert where(site, training) != lost
    whole = recovery()
    site.undo(f"start {lost}")
    await_service(site, lost)
    whole("the host is back in service")
    site.wait_status(site.submit("bob", "sleep 1", "--gres=gpu:1", "-w", lost), "completed")
    assert finish(site, training).runs == 2


def test_a_compute_host_of_several_is_killed(site, recovery):
    """A training over two hosts that loses one continues on the other."""
    site.leave_one_gpu("c1", "c2")
    training = start(site, tag="metasched min_gpus=1 max_gpus=2")
    site.wait(lambda: 2 in site.generations(training).values())
    before = max(site.generations(training))
    whole = recovery()
    site.kill_host("c2")
    await_generation(site, training, before + 1)
    whole("trains on the host that is left")
    finish(site, training)


def test_a_compute_host_hangs_and_wakes_up(site, recovery):
    """A frozen host's job resumes elsewhere; when the host wakes, the old trainer writes nothing more."""
    training = start(site)
    lost = where(site, training)
    whole = recovery()
    site.pause_host(lost)
    await_generation(site, training, 2)
    whole("trains on another host")
    site.undo(f"unpause {lost}")
    await_service(site, lost)
    site.wait(lambda: _asleep(site, training, 1), 120, "the old trainer still trains")
    finish(site, training)


def test_a_compute_host_is_cut_off_from_the_controller(site, recovery):
    """Its job resumes elsewhere; the old trainer, which still reaches the shared volume, is fenced."""
    training = start(site)
    lost = where(site, training)
    whole = recovery()
    site.cut(lost, "controller")
    await_generation(site, training, 2)
    whole("trains on another host")
    site.wait(lambda: _asleep(site, training, 1), 60, "the old trainer still trains")
    site.undo(f"join {lost} controller")
    await_service(site, lost)
    finish(site, training)


def test_a_compute_host_is_cut_off_from_the_shared_volume(site, recovery):
    """A training that cannot save ends; after the repair nothing is lost."""
    training = start(site)
    lost = where(site, training)
    site.hide(lost, "/home")
    time.sleep(8)
    site.wait_decides()  # it does not suffer from that
    whole = recovery()
    site.undo(f"show {lost} /home")
    site.wait(lambda: len(set(_steps(site, training))) > 25 and _trains(site, training), 240)
    whole("trains again after the volume is back")
    finish(site, training)


@pytest.mark.bounded
def test_the_controller_is_restarted(site, recovery):
    """Jobs continue, the daemon reports the outage, and scheduling resumes by itself."""
    training = start(site)
    until_saved(
        lambda: site.run("controller", "scontrol", "update", f"JobId={training.slurm_job_id}", "Nice=0"),
        lambda: site.sh("controller", "stat -c %y /var/lib/slurm/slurmctld/job_state || true"),
    )
    site.kill_host("controller")
    site.wait(lambda: (status := site.status()) is not None and status.slurm != "ok", 120)
    assert _trains(site, training)
    whole = recovery()
    site.undo("start controller")
    site.wait_decides()
    whole("the daemon talks to Slurm")
    site.wait_status(_submit(site), "completed", 240)
    whole("a new job has run")
    assert finish(site, training).runs == 1


@pytest.mark.parametrize("host", ["scheduler", "controller"])
def test_munge_is_stopped(site, recovery, host):
    """Without munge nothing is authenticated: the daemon waits, and continues when munge is back."""
    training = start(site)
    site.sh(host, "pkill -x munged")
    site.mend.append(
        ("munge", lambda: site.sh(host, "setpriv --reuid munge --regid munge --clear-groups munged --force"))
    )
    site.wait(lambda: (status := site.status()) is not None and status.slurm != "ok", 240)
    assert _trains(site, training)
    whole = recovery()
    site.undo("munge")
    site.wait_decides()
    whole("the daemon talks to Slurm")
    site.wait_status(_submit(site), "completed", 240)
    assert finish(site, training).runs == 1


@pytest.mark.bounded
def test_the_disk_of_the_daemons_host_is_full(site, recovery):
    """The daemon stops rather than lose records; with free space it continues, and jobs are not affected."""
    _small_disk(site, 24)
    training = start(site)
    uid = site.job(training).uid
    site.sh("scheduler", "head -c 1G /dev/zero > /var/lib/metasched/fill 2>/dev/null || true")
    began = time.time()
    second = site.submit("bob", "sleep 1", "--gres=gpu:1")
    site.wait(lambda: "full" in site.daemon_log(began), 60, "the daemon does not say that its disk is full")
    assert _trains(site, training)
    whole = recovery()
    site.sh("scheduler", "rm /var/lib/metasched/fill")
    site.wait_decides()
    whole("the daemon decides again")
    site.wait_status(second, "completed")
    ended = finish(site, training)
    assert (ended.uid, ended.runs) == (uid, 1)


def test_the_daemons_host_is_restarted(site, recovery):
    """Jobs continue without it; its store is unchanged."""
    training = start(site)
    uid = site.job(training).uid
    site.kill_host("scheduler")
    waiting = site.submit("bob", "sleep 1", "--gres=gpu:1")
    time.sleep(5)
    assert _trains(site, training)
    whole = recovery()
    site.undo("start scheduler")
    site.wait_decides()
    whole("the daemon decides again")
    site.wait_status(waiting, "completed")
    ended = finish(site, training)
    assert (ended.uid, ended.runs) == (uid, 1)


@pytest.mark.parametrize("skew", ["+60", "-60"])
def test_a_compute_hosts_clock_is_off(site, skew):
    """A minute fast or slow (a credential is valid for two): its jobs start, stop, resume and finish."""
    library = site.sh("c1", "ls /usr/lib/*/faketime/libfaketime.so.1").strip()
    _set_clock(site, f"LD_PRELOAD={library} FAKETIME={skew} FAKETIME_DONT_FAKE_MONOTONIC=1")
    site.mend.append(("clock", lambda: _set_clock(site, "")))
    site.wait(lambda: "idle" in site.sh("controller", "sinfo -h -N -n c1 -o %T"), 120)
    # The library does not bear Python's sleep: of a trainer, only what it reports is shifted.
    site.run("login", "install", "-d", "-m", "0755", "/home/skew")
    site.run("login", "tee", "/home/skew/sitecustomize.py", stdin=SHIFTED.encode())
    training = start(site, "-w", "c1", before=f"export PYTHONPATH=/home/skew SKEW={skew}")
    site.wait(lambda: site.job(training).attained_service > 12)
    other = site.submit("bob", "sleep 1", "--gres=gpu:4", "-w", "c1")
    site.wait_status(other, "completed", 240)
    await_generation(site, training, 2)
    ended = finish(site, training)
    assert ended.preemptions >= 1
    assert 0 < ended.ran_seconds < 600


SHIFTED = """import os, time
real, skew = time.time, float(os.environ["SKEW"])
time.time = lambda: real() + skew
"""


def _set_clock(site, environment):
    """Start slurmd of c1 afresh, in that environment; munged does not run under the library."""
    site.sh("c1", f"echo {environment} > /run/environment/slurmd; pkill -x slurmd || true")
    time.sleep(3)


def _steps(site, training):
    return [step["step"] for steps in site.trained(training).values() for step in steps]


def _trains(site, training):
    """Whether a generation makes steps."""
    before = len(_steps(site, training))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if len(_steps(site, training)) > before:
            return True
        time.sleep(0.3)
    return False


def _asleep(site, training, generation):
    """Whether a generation makes no more steps."""
    before = len(site.trained(training)[generation, 0])
    time.sleep(3)
    return len(site.trained(training)[generation, 0]) == before


def _submit(site):
    """Submit a job as soon as Slurm accepts it."""

    def attempt():
        try:
            return site.submit("bob", "sleep 1", "--gres=gpu:1")
        except CommandFailedError:
            return None

    return site.wait(attempt, 120)


def _small_disk(site, megabytes):
    """Move the daemon's state, with the daemon stopped, to a disk that a test may fill."""
    state, aside = "/var/lib/metasched", "/run/aside"

    def on(script):
        site.sh("scheduler", "touch /run/stopped/metasched")
        site.signal_daemon("TERM")
        site.wait(lambda: not site.sh("scheduler", "pgrep -u metasched -f 'bin/metasched daemon' || true"), 30)
        site.sh("scheduler", script)
        site.sh("scheduler", "rm /run/stopped/metasched")

    on(
        f"mkdir -p {aside} && cp -a {state}/. {aside} && mount -t tmpfs -o size={megabytes}m state {state} && "
        f"chmod 0700 {state} && chown metasched:metasched {state} && cp -a {aside}/. {state}"
    )
    site.mend.append(
        (
            "disk",
            lambda: on(
                f"rm -f {state}/fill; rm -rf {aside}; mkdir {aside}; cp -a {state}/. {aside}; umount {state}; "
                f"cp -a {aside}/. {state}; rm -rf {aside}"
            ),
        )
    )
