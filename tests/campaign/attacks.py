"""How long another user waits while a user attacks the daemon: `python -m tests.campaign.attacks [--only ATTACK]`.

The daemon's controller, store and mailbox are the real ones, on a fake Slurm. The clock advances by what each poll
takes, and by its pause. The attacker begins, and five seconds later another user's job arrives on a free node. The
exit status is 1 where the job waits more than twice as long as without an attack, and over a second longer.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import structlog

from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm, Trainer
from tests.unit.site import ME, FakeSite

BEFORE = 5.0  # seconds of the attack before the other user's job arrives
PATIENCE = 120.0
MOST = 2.0  # times as long as without an attack
SLACK = 1.0  # seconds, for a busy machine
REPORTS, REPORT_BYTES = 40, 49_000_000
LINE = b'{"v": 1, "kind": "progress", "step": 1}\n'


LOCKS = """
import fcntl, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)  # a lease stays although another process opens the file
files = [open(name, "r+b") for name in sys.argv[1:]]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("locked", flush=True)
time.sleep(3600)
"""


class Attack:
    """One attacker's work; `begin` and `end` are called once, and `go_on` after each poll."""

    def begin(self, site):
        """Begin."""

    def go_on(self, site):
        """Go on."""

    def end(self):
        """End what runs on."""


class Array(Attack):
    """An array of 10,000 tasks."""

    def begin(self, site):
        site.slurm.add(
            "--hold", "--array=0-9999", "--gres=gpu:1", "--nodelist=n1", comment="metasched", user="attacker"
        )


class Submissions(Attack):
    """1,000 submissions a second."""

    seconds = 0.0

    def begin(self, site):
        self.seconds = site.slurm.now

    def go_on(self, site):
        number = min(int((site.slurm.now - self.seconds) * 1000), 5000)
        self.seconds = site.slurm.now
        for _ in range(number):
            site.slurm.add("--hold", "--gres=gpu:1", "--nodelist=n1", comment="metasched", user="attacker")


class Comments(Attack):
    """The comments of 200 waiting jobs change before each poll."""

    def begin(self, site):
        self.jobs = [
            site.slurm.add("--hold", "--gres=gpu:4", "--nodelist=n1", comment="metasched", user="attacker")
            for _ in range(200)
        ]

    def go_on(self, site):
        for number, job in enumerate(self.jobs):
            comment = f"metasched min_gpus={number % 9} {'x' * 900}"
            site.slurm._show(site.slurm._one(job), comment=comment, admin_comment=comment)


class Reports(Attack):
    """40 report files in the directories of own running jobs: `how` names what stands in their place."""

    def __init__(self, how):
        self.how = how
        self.locker = None

    def begin(self, site):
        jobs = [site.add("--gres=gpu:1", "--nodelist=n1") for _ in range(8)]
        site.run_until(lambda: any(site.state(job) is JobState.RUNNING for job in jobs))
        source = site.base / "flood.jsonl"
        with source.open("wb") as file:
            for _ in range(REPORT_BYTES // len(LINE) // 1000):
                file.write(LINE * 1000)
        for number in range(REPORTS):
            record = site.record(jobs[number % len(jobs)])
            directory = site.base / "shared" / "reports" / record.uid
            directory.mkdir(parents=True, exist_ok=True)
            place = directory / f"incarnation-{number + 1}.jsonl"
            place.unlink(missing_ok=True)  # the trainer's own
            if self.how == "fifo":
                os.mkfifo(place)
            elif self.how == "locks":
                place.write_bytes(LINE)
            elif self.how == "symbolic link":
                place.symlink_to("/dev/zero")
            elif self.how == "copy":
                shutil.copyfile(source, place)
            else:
                place.hardlink_to(source)
        if self.how == "locks":
            places = sorted((site.base / "shared" / "reports").glob("*/*"))
            self.locker = subprocess.Popen([sys.executable, "-c", LOCKS, *places], stdout=subprocess.PIPE, text=True)
            assert self.locker.stdout.readline() == "locked\n"

    def end(self):
        if self.locker is not None:
            self.locker.kill()
            self.locker.communicate()


class Links(Attack):
    """Links in place of the report directories of own jobs."""

    def begin(self, site):
        jobs = [
            site.slurm.add("--hold", "--gres=gpu:4", "--nodelist=n1", comment="metasched", user=ME) for _ in range(20)
        ]
        site.controller.poll()
        for job in jobs:
            uid = site.record(job).uid
            (site.base / "shared" / "reports").mkdir(exist_ok=True)
            (site.base / "shared" / "reports" / uid).symlink_to("/proc/self")


class Wrapper(Attack):
    """Own jobs whose wrapper was replaced (PATH, LD_PRELOAD): they ignore every signal, and report nothing."""

    def begin(self, site):
        for _ in range(8):
            site.slurm.add(
                "--hold",
                *("--gres=gpu:1", "--nodelist=n1"),
                comment="metasched",
                user="attacker",
                trainer=Trainer(stop_seconds=None),
            )


class Stamps(Attack):
    """100 jobs with the stamp of another live job."""

    def begin(self, site):
        own = site.slurm.add("--hold", "--gres=gpu:4", "--nodelist=n1", comment="metasched", user="attacker")
        site.controller.poll()
        stamp = site.slurm.job(own).admin_comment
        for _ in range(100):
            job = site.slurm.add("--hold", "--gres=gpu:1", "--nodelist=n1", comment="metasched", user="attacker")
            site.slurm._show(site.slurm._one(job), admin_comment=stamp)


ATTACKS = {
    "none": Attack,
    "array of 10,000": Array,
    "1,000 submissions a second": Submissions,
    "comments in a loop": Comments,
    "40 x 49 MB of hard-linked reports": lambda: Reports("hard link"),
    "40 x 49 MB of copied reports": lambda: Reports("copy"),
    "40 reports that are links to /dev/zero": lambda: Reports("symbolic link"),
    "40 reports that are FIFOs": lambda: Reports("fifo"),
    "40 reports under locks and leases": lambda: Reports("locks"),
    "links as report directories": Links,
    "8 jobs with a replaced wrapper": Wrapper,
    "100 copied stamps": Stamps,
}


def poll(site, longest):
    """Poll, and let the clock pass by the poll's own seconds and its pause; returns the longest poll so far."""
    began = time.perf_counter()
    pause = site.controller.poll()
    took = time.perf_counter() - began
    site.slurm.now += took  # Slurm starts nothing before the poll has released it
    site.slurm.tick(max(pause, 0.05))
    return max(longest, took)


def waits(attack):
    """The seconds from submission to start of another user's job, and those of the longest poll; None: not started."""
    nodes = (FakeNode("n1"), FakeNode("n2"))
    with ExitStack() as stack:
        base = stack.enter_context(tempfile.TemporaryDirectory())
        site = stack.enter_context(closing(FakeSite(Path(base), FakeSlurm(nodes=nodes))))
        poll(site, 0.0)
        stack.callback(attack.end)
        attack.begin(site)
        longest, until = 0.0, site.slurm.now + BEFORE
        while site.slurm.now < until:
            attack.go_on(site)
            submitted = site.slurm.now  # as late as possible: right after this poll has listed the jobs
            longest = poll(site, longest)
        for job in site.slurm.jobs():  # the other user's node is free again, whatever the attacker has started there
            if "n2" in job.allocated:
                site.slurm.exit(job.slurm_job_id, 0)
        other = site.slurm.add("--hold", "--gres=gpu:1", comment="metasched", user="other")
        while site.state(other) is not JobState.RUNNING:
            attack.go_on(site)
            longest = poll(site, longest)
            if site.slurm.now - submitted > PATIENCE:
                return None, longest
        started = site.slurm.job(other).started
        return started - submitted, longest


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.attacks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="ATTACK")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    alone, _ = waits(Attack())
    red = []
    print("| attack | another user's job waits, s | times as long | longest poll, s |\n|---|---|---|---|")  # noqa: T201
    for name in args.only:
        seconds, longest = waits(ATTACKS[name]())
        if seconds is None or seconds > max(MOST * alone, alone + SLACK):
            red.append(name)
        told = "never" if seconds is None else f"{seconds:.2f} | {seconds / alone:.1f}"
        print(f"| {name} | {told} | {longest:.2f} |", flush=True)  # noqa: T201
    print(f"too long: {', '.join(red) or 'none'}")  # noqa: T201
    return bool(red)


if __name__ == "__main__":
    sys.exit(main())
