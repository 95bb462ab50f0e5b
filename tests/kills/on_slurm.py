"""One training on a real Slurm cluster, with daemon, wrapper and shim, of which one part after another is killed."""

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

from metasched.devcluster import processes
from metasched.devcluster.errors import CommandError
from tests.kills.local import LostError, judge_parameters
from tests.kills.table import Kill
from tests.kills.witness import Witness

TRAIN = Path(__file__).with_name("train.py")
PATIENCE = 120.0  # seconds for anything on a crowded machine
NOTICE = 3.0  # seconds that Slurm and the daemon have to see to it by themselves, before an operator does
OVER = {"FAILED", "COMPLETED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL"}

RANK, RANK_0_IN_CHECKPOINT = "any rank", "rank 0 in a checkpoint"
WRAPPER, SHELL, BATCH_DAEMON, STEP_DAEMON = "wrapper", "batch shell", "batch step's slurmstepd", "step's slurmstepd"
AGENT, NODE = "node agent (slurmd), started again", "node: slurmd and all below it"
UNNOTICED = (BATCH_DAEMON, STEP_DAEMON)  # by Slurm, measured
VICTIMS = (RANK, RANK_0_IN_CHECKPOINT, WRAPPER, SHELL, BATCH_DAEMON, STEP_DAEMON, AGENT, NODE)


class SlurmJob:
    """One training, and its Slurm jobs one after the other. A context manager."""

    def __init__(self, site, directory, seed):
        self.site = site
        self.cluster = site.cluster
        self.directory = directory
        self.dice = random.Random(seed)  # noqa: S311  no secret
        self.witness = Witness(directory, site.base / "shared" / "reports")
        self.slurm_job_id = None
        self.outputs = []

    def submit(self):
        """Submit the training, for the first time or again; a later Slurm job resumes from the same directory."""
        command = f"metasched-run {sys.executable} {TRAIN} {self.directory}"
        self.slurm_job_id = self.site.submit(command, f"--gres=gpu:{self.dice.choice([2, 2, 3, 4])}")
        self.outputs.append(self.site.base / f"job-{self.site.number}" / "out.txt")

    def state(self):
        """Slurm's word for the job's state, and the node that it runs on."""
        with contextlib.suppress(CommandError):
            words = self.cluster.run("scontrol", "-o", "show", "job", self.slurm_job_id).split()
            fields = dict(word.split("=", 1) for word in words if "=" in word)
            return fields["JobState"], fields.get("BatchHost")
        return None, None

    def mine(self):
        """The job's processes, those of Slurm that serve it included."""
        mark = f"slurmstepd: [{self.slurm_job_id}."
        return [
            process
            for process in processes.everyone()
            if process.environ.get("SLURM_JOB_ID") == self.slurm_job_id or process.argv[0].startswith(mark)
        ]

    def trainers(self):
        """{rank: process}; the wrapper's and srun's arguments name the script, too."""
        return {int(p.environ["SLURM_PROCID"]): p for p in self.mine() if p.argv[1:2] == (str(TRAIN),) and is_python(p)}

    def find(self, victim):
        """The processes to kill."""
        mine = self.mine()
        if victim == WRAPPER:
            return [p for p in mine if is_python(p) and any(word.endswith("/metasched-run") for word in p.argv)]
        if victim == SHELL:
            return [p for p in mine if p.argv[-2].endswith("/slurm_script")]
        if victim in (BATCH_DAEMON, STEP_DAEMON):
            step = "batch" if victim == BATCH_DAEMON else "0"
            return [p for p in mine if p.argv[0].startswith(f"slurmstepd: [{self.slurm_job_id}.{step}]")]
        if victim == NODE:
            return mine
        trainers = self.trainers()
        rank = 0 if victim == RANK_0_IN_CHECKPOINT else self.dice.choice(sorted(trainers))
        return [trainers[rank]]

    def until(self, condition, what, seconds=PATIENCE):
        """Wait until a condition holds, and return what it returned."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                queue = self.cluster.run("squeue", "-a")
                raise LostError(f"timed out waiting for {what}\n{queue}\n{self.outputs[-1].read_text()[-3000:]}")
            time.sleep(0.03)
        return found

    def trains(self, above):
        """The newest generation, if its number is above that and it trains."""
        newest = self.witness.newest
        return newest > above and self.witness.last_step(newest) and newest

    def aborts(self):
        """Tasks that ended by SIGABRT, as srun tells."""
        return sum(path.read_text().count("Aborted") for path in self.outputs if path.exists())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(CommandError):
            self.cluster.run("scancel", self.slurm_job_id)
        self.witness.close()


def is_python(process):
    """Whether it runs Python."""
    return "python" in process.argv[0]


def strike(job, victim):
    """Kill the victim at a random moment, or in the middle of a checkpoint; the time and the trainers then."""
    current = job.witness.newest
    if victim == RANK_0_IN_CHECKPOINT:
        chosen = job.find(victim)
        with contextlib.suppress(TimeoutError):
            job.witness.wait(lambda: job.witness.writing(current), PATIENCE, "a checkpoint")
    else:
        time.sleep(job.dice.uniform(0.0, 1.5))
        chosen = [] if victim == AGENT else job.find(victim)
    trainers = list(job.trainers().values())
    if victim in (AGENT, NODE):
        node = job.state()[1]
        job.cluster.kill_node(node)
    elif not chosen:
        raise LostError(f"there is no {victim}")
    # A node dies in one moment: Slurm's own daemons must not have the time to tell of the others' deaths.
    for process in sorted(chosen, key=lambda process: not process.argv[0].startswith("slurmstepd")):
        processes.end(process)
    at = time.monotonic()
    if victim == AGENT:
        job.cluster.start_node(node)
    elif victim == NODE:  # what a health check does, and a reboot
        job.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=crash")
        job.cluster.start_node(node)
        with contextlib.suppress(CommandError):  # it may be back in service by itself
            job.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    return at, trainers


def recover(job, victim, before, trainers, at):
    """Do what an operator would, where something has to be done; (outcome in words, seconds until all old ones end)."""
    if victim == AGENT:
        step = job.witness.last_step(before)
        job.until(lambda: job.witness.last_step(before) > step + 20, "the training to go on")
        return "goes on", None
    outcomes, ended, submitted, over = [], None, False, None
    while not job.trains(before) or ended is None:
        seconds = time.monotonic() - at
        if seconds > PATIENCE:
            raise LostError(f"{victim}: no new generation\n{job.cluster.run('squeue', '-a')}\n{job.site.log()[-2000:]}")
        if ended is None and not any(map(alive, trainers)):
            ended = seconds
        state = job.state()[0]
        over = (over or seconds) if state in OVER else None
        if over and seconds - over > NOTICE and not submitted:
            outcomes.append(f"{state}, submitted again")
            submitted = True
            job.submit()
        elif state == "RUNNING" and not outcomes and victim in UNNOTICED and seconds > NOTICE:
            outcomes.append("unnoticed, requeued by hand")
            job.cluster.run("scontrol", "requeue", job.slurm_job_id)
        time.sleep(0.05)
    return ", then ".join(outcomes) or "requeued", ended


def campaign(site, directory, victims, seed):
    """Kill those victims of one training one after the other, then let it end: (kills, what is wrong, facts)."""
    found, wrong = [], []
    site.start()
    with SlurmJob(site, directory, seed) as job:
        try:
            job.submit()
            current = job.until(lambda: job.trains(0), "the training")
            for victim in victims:
                at, trainers = strike(job, victim)
                outcome, ended = recover(job, victim, current, trainers, at)
                found.append(Kill(victim, outcome, ended, time.monotonic() - at))
                current = job.witness.newest
            (directory / "finish").touch()
            job.until(lambda: job.state()[0] == "COMPLETED" or (directory / "final.pt").exists(), "the end")
            job.until(lambda: job.state()[0] == "COMPLETED", "the job's end")
            wrong += job.witness.judge(finished=True) + judge_parameters(job.witness)
        except (LostError, OSError, CommandError, AssertionError, subprocess.SubprocessError) as error:
            wrong += [repr(error), *job.witness.judge(finished=False)]
        facts = {
            "generations": len(job.witness.claims),
            "checkpoints": job.witness.written,
            "steps": max(map(job.witness.last_step, job.witness.claims), default=0),
            "aborts": job.aborts(),
        }
    return found, wrong, facts


def alive(process):
    """Whether exactly this process still runs."""
    now = processes.read(process.pid)
    return now is not None and now.started == process.started
