"""One job whose trainers are killed again and again, without Slurm; each generation has a size of its own."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import torch

from tests.kills.table import Kill
from tests.kills.train import GLOBAL_BATCH, Net, make_data, make_optimizer
from tests.kills.witness import Witness, whole_checkpoints
from tests.ports import free_port
from trainer_shim.data.sample_order import SampleOrder

TRAIN = Path(__file__).with_name("train.py")
PATIENCE = 90.0  # seconds for anything on a crowded machine
PEERS = 60.0  # seconds in which the other ranks of a killed one must end: at once as a rule, by the watchdog else (30)
ABORTED = -signal.SIGABRT
OVERTAKEN = "none: continues after its successor has started"
PAUSED = "all ranks paused, resumed after their successor has started"


class LostError(Exception):
    """Something that must not happen has happened."""


class Job:
    """One checkpoint directory and its generations. A context manager."""

    def __init__(self, server, directory, seed):
        self.server = server
        self.directory = directory
        self.dice = random.Random(seed)  # noqa: S311  no secret
        self.reports = directory / "reports" / "0123456789abcdef"
        self.reports.parent.mkdir()
        self.witness = Witness(directory, self.reports.parent)
        self.pids = []  # of the current generation
        self.older = []  # of earlier ones that may still live
        self.launches = 0
        self.abortions = 0

    def launch(self):
        """Start a generation, and return its number to be."""
        self.older += self.pids
        size = self.dice.choice([2, 2, 3, 3, 4])
        self.launches += 1
        environ = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        environ |= {"METASCHED_RUN": self.launches, "METASCHED_EXIT_CODE": 85, "METASCHED_REPORTS": self.reports}
        self.pids = []
        for rank in range(size):
            own = {name: str(value) for name, value in (environ | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            output = self.directory / f"output-{self.launches}-{rank}.txt"
            self.pids.append(self.server.start([TRAIN, self.directory], own, output))

    def kill(self, *pids, sig=signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    def await_training(self, above):
        """Wait until a generation above that number trains, and return its number."""
        end = time.monotonic() + PATIENCE
        while not (self.witness.newest > above and self.witness.last_step(self.witness.newest)):
            if time.monotonic() > end or all(self.server.exit_code(pid) is not None for pid in self.pids):
                raise LostError(f"launch {self.launches} does not train: {self.last_output()}")
            time.sleep(0.01)
        return self.witness.newest

    def await_writing(self, generation):
        with contextlib.suppress(TimeoutError):
            self.witness.wait(lambda: self.witness.writing(generation), PATIENCE, "a checkpoint")

    def await_end(self, pids, seconds=PEERS):
        """Wait until those processes have ended, and return their exit codes."""
        end = time.monotonic() + seconds
        while None in (codes := [self.server.exit_code(pid) for pid in pids]):
            if time.monotonic() > end:
                raise LostError(f"ranks still run {seconds} s after launch {self.launches} was hit: {codes}")
            time.sleep(0.01)
        self.abortions += codes.count(ABORTED)
        return codes

    def last_output(self):
        return "".join(path.read_text() for path in self.directory.glob(f"output-{self.launches}-*.txt"))[-4000:]

    def damage(self):
        """Break the newest checkpoint, as a node without power may, where there is another one."""
        found = whole_checkpoints(self.witness.checkpoints)
        if len(found) < 2:
            return False
        path = found[0].path if self.dice.random() < 0.3 else found[0].path.with_suffix(".pt")
        content = bytearray(path.read_bytes())
        if self.dice.random() < 0.5:
            content = content[: self.dice.randrange(len(content))]
        else:
            content[self.dice.randrange(len(content) // 4, len(content) // 2)] ^= 0x55
        path.write_bytes(content)
        return found[0] not in whole_checkpoints(self.witness.checkpoints)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill(*self.pids, *self.older)
        self.witness.close()


def start_of(job):
    """Any moment of a start."""
    time.sleep(job.dice.uniform(0.0, 1.2))
    return job.witness.newest


def in_training(job, before):
    """Any moment of the training."""
    number = job.await_training(before)
    time.sleep(job.dice.uniform(0.0, 0.9))
    return number


def in_checkpoint(job, before):
    """While a file of a checkpoint is being written."""
    number = job.await_training(before)
    job.await_writing(number)
    time.sleep(job.dice.uniform(0.0, 0.03))
    return number


def strike(job, victim, before):
    """Hit the victim at its moment; the outcome in a word."""
    first, *others = job.pids
    if victim == "any rank at its start":
        start_of(job)
        job.kill(job.dice.choice(job.pids))
    elif victim == "any rank":
        in_training(job, before)
        job.kill(job.dice.choice(job.pids))
    elif victim == "rank 0 in a checkpoint":
        in_checkpoint(job, before)
        job.kill(first)
    elif victim == "another rank in a checkpoint":
        in_checkpoint(job, before)
        job.kill(job.dice.choice(others))
    elif victim == "all ranks":
        job.dice.choice([in_training, in_checkpoint])(job, before)
        job.kill(*job.dice.sample(job.pids, len(job.pids)))
    elif victim == OVERTAKEN:
        in_training(job, before)
    elif victim == PAUSED:
        job.dice.choice([in_training, in_checkpoint])(job, before)
        job.kill(*job.pids, sig=signal.SIGSTOP)
    return time.monotonic()


VICTIMS = {
    "any rank at its start": 3,
    "any rank": 6,
    "rank 0 in a checkpoint": 5,
    "another rank in a checkpoint": 2,
    "all ranks": 3,
    OVERTAKEN: 2,
    PAUSED: 2,
}


def one_kill(job, before):
    """Launch, kill, launch the next; the kill, with the newest generation before the next launch."""
    victim = job.dice.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    at = strike(job, victim, before)
    known = job.witness.newest
    struck, ended, outcome = job.pids, None, "next start"
    if victim not in (OVERTAKEN, PAUSED):
        codes = job.await_end(struck)
        if 0 in codes:
            raise LostError(f"after {victim}: {codes}")
        ended = time.monotonic() - at
        if job.dice.random() < 0.25 and job.damage():
            outcome = "next start, newest checkpoint damaged"
    job.launch()
    if victim == "any rank at its start":
        return known, victim, outcome, ended, None
    job.await_training(known)
    recovered = time.monotonic() - at
    if victim == PAUSED:
        job.kill(*struck, sig=signal.SIGCONT)
    if victim in (OVERTAKEN, PAUSED):
        codes = job.await_end(struck, PATIENCE)
        ended = time.monotonic() - at
        if 76 not in codes:
            raise LostError(f"an old trainer was not superseded: {codes}")
        outcome = "superseded (76)"
    return known, victim, outcome, ended, recovered


def reference(epochs):
    """The parameters by plain torch, one process, undisturbed."""
    (features, targets), net = make_data(), Net()
    optimizer = make_optimizer(net)
    for epoch in range(epochs):
        for batch in SampleOrder(1, len(features), shuffle=True).epoch_indices(epoch).split(GLOBAL_BATCH):
            optimizer.zero_grad()
            net(features[batch], targets[batch]).backward()
            optimizer.step()
    return net.state_dict()


def judge_parameters(witness):
    """What differs between the job's final parameters and the undisturbed ones."""
    epochs = 1 + max(witness.history(), default=-1)
    expected, found = reference(epochs), torch.load(witness.directory / "final.pt")
    worst = max((found[name] - expected[name]).abs().max().item() for name in expected)
    return [f"parameters differ by {worst}"] if not worst < 1e-9 else []


def campaign(server, directory, kills, seed):
    """Kill ranks of one job `kills` times, then let the job finish; return its kills, its faults and its counts."""
    found, wrong = [], []
    with Job(server, directory, seed) as job:
        try:
            job.launch()
            before = 0
            for _ in range(kills):
                before, *kill = one_kill(job, before)
                found.append(Kill(*kill))
            job.await_training(before)
            (directory / "finish").touch()
            codes = job.await_end(job.pids, PATIENCE)
            if any(codes):
                wrong.append(f"the last generation ended with {codes}: {job.last_output()}")
            wrong += job.witness.judge(finished=True) + judge_parameters(job.witness)
        except (LostError, OSError) as error:
            wrong += [repr(error), *job.witness.judge(finished=False)]
        facts = {
            "generations": len(job.witness.claims),
            "checkpoints": job.witness.written,
            "steps": max(map(job.witness.last_step, job.witness.claims), default=0),
            "aborts": job.abortions,
        }
    return found, wrong, facts
