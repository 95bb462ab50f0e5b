"""Campaigns in one process and on a simulated clock: `python -m tests.campaign.simulated --campaigns 5000 --seed 1`.

The daemon's controller, store and mailbox are the real ones, on a FaultySlurm. The exit status is 1 where an invariant
was broken; the seed of that campaign repeats it.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import structlog

from metasched.configuration.file_names import DATABASE
from metasched.core.policy import installed_policies
from metasched.slurm.client import JobState
from metasched.slurm.errors import SlurmUnavailableError
from metasched.store import Store
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.faulty_slurm import FaultyClient, FaultySlurm, Killed
from tests.unit.site import POLICIES, FakeSite

SECONDS = 40.0  # of faults
PATIENCE = 900.0  # seconds of the simulated clock for the jobs' ends
QUIET = 60.0  # seconds after the last fault, in which what was lost is found
ADMIN_SECONDS = 30.0  # until the administrator does what the daemon says
REPEATS = 12  # of an action of a job that is like the one before, in QUIET_LIMIT seconds without a fault
JOBS = 4
CHUNK = 4  # campaigns that one process is given at once
NODES = tuple(FakeNode(f"n{number}", gpus=2, cpus=8) for number in range(1, 4))
POLICY_NAMES = ("fifo", "las", "srtf", "ares", "optimus", "gandiva")
KNOWN = ("loses_gres", "leaks_gpus", "kills_late")
FAULTS = (
    "controller killed",
    "controller killed",
    "controller killed",
    "controller stopped",
    "answers lost",
    "daemon killed at a write",
    "daemon killed",
    "node lost",
    "node lost",
    "node drained",
    "rank killed",
    "requeued by the owner",
)


class Simulated:
    """One campaign.

    Args:
        seed: decides everything.
        base: an empty directory.
        options: of FaultySlurm.

    Attributes:
        problems: what must not happen, in words with the time.
        events: everything that happened, in words with the time.
    """

    def __init__(self, seed, base, **options):
        self.dice = random.Random(seed)  # noqa: S311  no secret
        name = POLICY_NAMES[seed % len(POLICY_NAMES)]
        if name not in POLICIES:
            POLICIES[name] = installed_policies().get(name)
        self.slurm = FaultySlurm(seed=seed, nodes=NODES, kill_wait=5.0, **options)
        self.began = self.slurm.now
        self.client = FaultyClient(self.slurm)
        schedule = {"round_seconds": 5.0, "poll_seconds": 3.0, "busy_poll_seconds": 1.0, "grace_seconds": 10.0}
        _copy_empty_store(base / "state" / DATABASE)
        self.site = FakeSite(base, self.slurm, policy=name, **schedule)
        self.site.start(self.client)
        self.daemon_back = self.slurm.now
        self.problems, self.events = [], []
        self.jobs = {}  # name: (options, the trainer's behaviour, the present Slurm job id)
        self.killed = set()  # names of the jobs that a fault killed, until they are submitted again
        self.completed = set()
        self.last_fault = 0.0
        self.actions = 0

    def run(self):
        """Let it happen, and return the problems."""
        for number in range(JOBS):
            self._submit(f"job-{number}")
        number = self.dice.randint(3, 9)
        faults = sorted((self.dice.uniform(4.0, SECONDS), self.dice.choice(FAULTS)) for _ in range(number))
        self.last_fault = self.began + faults[-1][0]
        while len(self.completed) < JOBS and not self.problems:
            elapsed = self.slurm.now - self.began
            if elapsed > PATIENCE:
                states = [(job.name, job.slurm_state, job.hold, job.reason) for job in self.slurm.jobs_now()]
                self._problem(f"jobs do not end: {states}")
                break
            while faults and faults[0][0] <= elapsed:
                self._strike(faults.pop(0)[1])
            pause = self._poll()
            if faults:
                pause = min(pause, faults[0][0] - elapsed)
            self.slurm.tick(max(pause, 0.05))
            self._be_users()
            self._check()
        if not self.problems:
            self._check_actions()
        self.site.controller.close()
        self.site.close()
        return self.problems

    def _submit(self, name):
        if name not in self.jobs:
            gpus = self.dice.choice((1, 1, 2))
            most = self.dice.randint(gpus, 4)
            options = (f"--gres=gpu:{gpus}", f"--mem={gpus}G")
            trainer = {"seconds": self.dice.uniform(5.0, 25.0), "stop_seconds": self.dice.uniform(0.1, 3.0)}
            self.jobs[name] = (options, most, trainer, None)
        options, most, trainer, _ = self.jobs[name]
        slurm_job_id = self.site.add(*options, f"--job-name={name}", tag=f"min_gpus=1 max_gpus={most}", **trainer)
        self.slurm._show(self.slurm._one(slurm_job_id), name=name)
        self.jobs[name] = (options, most, trainer, slurm_job_id)

    def _strike(self, kind):
        slurm, dice = self.slurm, self.dice
        running = [job for job in slurm.jobs_now() if job.state is JobState.RUNNING]
        node = dice.choice(NODES).name
        seconds = dice.choice((0.3, 1.0, 3.0, 6.0, 12.0)) * dice.uniform(0.7, 1.3)
        victim = dice.choice(running) if running else None
        if kind == "controller killed":
            slurm.kill_controller(seconds)
        elif kind == "controller stopped":
            slurm.stop_controller(seconds)
        elif kind == "answers lost":
            self.client.lost_answers = dice.randint(1, 3)
        elif kind == "daemon killed at a write":
            self.client.writes_to_death, self.client.dies_after = dice.randint(1, 6), dice.random() < 0.5
        elif kind == "daemon killed":
            self.daemon_back = slurm.now + seconds
        elif kind == "node lost":
            slurm.lose_node(node, seconds)
        elif kind == "node drained":
            slurm.drain_node(node, seconds)
        elif victim is not None and kind == "rank killed":
            self.killed.add(victim.name)
            slurm.kill_rank(victim.slurm_job_id)
        elif victim is not None and kind == "requeued by the owner":
            slurm.owner_requeue(victim.slurm_job_id)
        self._event(f"{kind} ({seconds:.1f} s, {node}, {victim and victim.name})")

    def _poll(self):
        """Poll where a daemon runs, and return the seconds until the next poll."""
        now = self.slurm.now
        try:
            if self.daemon_back is not None:
                if now < self.daemon_back:
                    return self.daemon_back - now
                self.slurm.wait_for_controller()
                self.daemon_back = None
                self.site.start(self.client)
            return self.site.controller.poll()
        except Killed:
            self._event("the daemon is killed")
            self.client.writes_to_death = None
            self.daemon_back = self.slurm.now + self.dice.uniform(0.5, 5.0)
            return 0.5
        except SlurmUnavailableError:  # at the start of the daemon, which waits
            return 1.0

    def _be_users(self):
        """Submit again what is lost, and what a fault killed; let Slurm count leaked GPUs again as the daemon says."""
        if self.site.controller._leaked:
            self.slurm.after(ADMIN_SECONDS, self.slurm.reconfigure)
        shown = {job.name: job for job in self.slurm.jobs_now()}
        for name in self.jobs.keys() - self.completed:
            job = shown.get(name)
            if job is None:
                self._event(f"{name} is forgotten by Slurm")
                self._submit(name)
            elif job.state is JobState.COMPLETED:
                self.completed.add(name)
                self._event(f"{name} completed")
            elif job.state in {JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}:
                self._failed(job)

    def _failed(self, job):
        if job.name in self.killed:
            self.killed.discard(job.name)
            del self.slurm._jobs[job.slurm_job_id]
            self._submit(job.name)
        elif self.slurm.now - (job.ended or self.slurm.now) > QUIET / 2:  # time for the daemon to put it back
            how = f"{job.slurm_state} with exit code {job.exit_code}"
            self._problem(f"{job.name} (job {job.slurm_job_id}) {how}, and nobody had killed it")

    def _check(self):
        """What holds at every instant."""
        used = Counter()
        for job in self.slurm.jobs_now():
            if job.state is not JobState.RUNNING:
                continue
            for node, indices in job.gpu_indices.items():
                used.update((node, index) for index in indices)
            most = next((most for _, most, _, job_id in self.jobs.values() if job_id == job.slurm_job_id), None)
            gpus = sum(job.allocated.values())
            if most is not None and not 1 <= gpus <= most:
                self._problem(f"{job.name} runs on {gpus} GPUs")
            if len(set(job.allocated.values())) > 1:
                self._problem(f"{job.name} runs on an uneven part of its gang: {job.allocated}")
        if twice := [gpu for gpu, jobs in used.items() if jobs > 1]:
            self._problem(f"GPUs {twice} are given to two jobs")
        planned = Counter()
        for target in self.site.store.targets().values():
            planned.update(dict(target.node_gpus))
        for node in NODES:
            if planned[node.name] > node.gpus:
                self._problem(f"{planned[node.name]} GPUs of {node.name} are planned")

    def _check_actions(self):
        """No action of a job was repeated for ever."""
        actions = self.site.store.recent_actions(10_000)
        self.actions = len(actions)
        late = Counter((action.uid, action.kind) for action in actions if action.at > self.last_fault + QUIET)
        for (uid, kind), times in late.items():
            limit = REPEATS + (self.slurm.now - self.last_fault - QUIET) / 5.0
            if times > limit:
                self._problem(f"{uid}: {kind} {times} times since a minute after the last fault")

    def _event(self, text):
        self.events.append(f"{self.slurm.now - self.began:8.2f}  {text}")

    def _problem(self, text):
        self.problems.append(text)
        self._event(f"RED: {text}")


@cache
def _empty_store():
    """The bytes of a store without jobs: to make its tables takes longer than half a campaign."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, DATABASE)
        Store.open(path).close()
        return path.read_bytes()


def _copy_empty_store(path):
    path.parent.mkdir(mode=0o700)
    path.write_bytes(_empty_store())
    path.chmod(0o600)


class Outcome(NamedTuple):
    """Of one campaign: its seed, what must not have happened, all events in words, and the number of actions."""

    seed: int
    problems: list
    events: list
    actions: int


def campaign(seed, without=()):
    """Run the campaign of a seed in a directory of its own, in memory where that is possible."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    memory = Path("/dev/shm")  # noqa: S108  below it, a new directory for each campaign
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as base:
        one = Simulated(seed, Path(base), **{fault: fault not in without for fault in KNOWN})
        return Outcome(seed, one.run(), one.events, one.actions)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.simulated", description=__doc__)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first campaign; the next one has the next number")
    parser.add_argument("--without", nargs="*", default=[], choices=KNOWN, help="what the fake Slurm does not do")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="campaigns at once (default: the cores)")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    args = parser.parse_args()
    began, red, counts = time.monotonic(), [], Counter()
    seeds = range(args.seed, args.seed + args.campaigns)
    with ProcessPoolExecutor(args.processes) as pool:
        for one in pool.map(partial(campaign, without=tuple(args.without)), seeds, chunksize=CHUNK):
            counts["events"] += len(one.events)
            counts["actions"] += one.actions
            if one.problems or args.verbose:
                print(f"seed {one.seed}: {one.problems}", *one.events, sep="\n", flush=True)  # noqa: T201
            red += [one.seed] if one.problems else []
    seconds = time.monotonic() - began
    rate = args.campaigns / seconds * 60.0
    print(f"{args.campaigns} campaigns, {len(red)} red {red[:50]}, {dict(counts)}, {seconds:.0f} s, {rate:.0f}/min")  # noqa: T201
    return bool(red)


if __name__ == "__main__":
    sys.exit(main())
