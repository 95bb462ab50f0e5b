"""The users of a campaign: they submit trainings, see to it that some always run, and submit again what was lost."""

import contextlib
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from metasched.devcluster import processes
from metasched.devcluster.errors import CommandError
from metasched.store import StoreError
from tests.campaign.faults import KILLS_OF_JOBS, UNNOTICED_BY_SLURM
from tests.kills.local import judge_parameters
from tests.kills.witness import Witness

TRAIN = Path(__file__).parents[1] / "kills" / "train.py"
LIVE = 4  # trainings at once
STEP_SECONDS = 0.04
VANISHED_SECONDS = 15.0  # for which Slurm's list has to lack a job
ENDED_SECONDS = 20.0  # for which a job has to be shown as ended: the daemon may put it back
SILENT_SECONDS = 90.0  # without a step, after which a person would look at a job that Slurm shows as running
UNNOTICED_SECONDS = 25.0  # the same where a slurmstepd was killed, which Slurm is known not to notice
COUNTS = (
    "completed",
    "failed_killed",
    "failed",
    "vanished",
    "came_back_after_their_end",
    "hands",
    "hands_after_killed_slurmstepds",
    "hands_for_runs_that_slurmctld_recovered",
)
ACTIVE = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")


@dataclass
class Training:
    """One training and its Slurm jobs, one after the other.

    Attributes:
        number: counted from 1.
        shape: what it asks for.
        directory: its checkpoints, and the logs of what was trained.
        witness: of that directory.
        slurm_job_id: of the present Slurm job; None before the first, or where the present one is not known yet.
        submissions: how often it was submitted.
        submitted: when it was submitted last, unix seconds.
        state: Slurm's word for the present job's state; "" while it is not known.
        strikes: (unix seconds, kind) of the kills that have struck it.
        stopped_until: unix seconds until which a process of the training is stopped by the campaign.
        done: whether it has ended, and needs no further submission.
    """

    number: int
    shape: object
    directory: Path
    witness: Witness
    slurm_job_id: str | None = None
    submissions: int = 0
    submitted: float = 0.0
    state: str = ""
    strikes: list = field(default_factory=list)
    stopped_until: float = 0.0
    done: bool = False
    seen: float = 0.0  # when Slurm listed it last
    active: tuple = (0, 0.0)  # size of its logs, and since when it is that

    @property
    def name(self):
        """The name of the present Slurm job, which tells it from others with a reused id."""
        return f"training-{self.number}-{self.submissions}"

    def was_killed(self, begin, end):
        """Whether a kill has struck it in that time, in unix seconds."""
        return any(begin - 2 <= at <= end + 8 and kind in KILLS_OF_JOBS for at, kind in self.strikes)

    def trainers(self):
        """Its trainers, by rank."""
        found = [
            process
            for process in processes.everyone()
            if process.argv[1:3] == (str(TRAIN), str(self.directory))
            and "python" in process.argv[0]
            and "SLURM_PROCID" in process.environ
        ]
        return sorted(found, key=lambda process: int(process.environ["SLURM_PROCID"]))

    def logs(self):
        """The size of what its trainers have logged, bytes."""
        return sum(path.stat().st_size for path in self.directory.glob("trained-*.jsonl"))


class Users:
    """Submit, watch and submit again, in a thread, as commands may take long. A context manager."""

    def __init__(self, site, shapes, events, *, plain):
        self.site = site
        self.shapes = shapes
        self.events = events
        self.plain = plain
        self.trainings = []
        self.finishing = False
        self.controller_kills = []  # unix seconds
        self.problems = []  # (seconds from the start, text)
        self.counts = dict.fromkeys(COUNTS, 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def live(self):
        """The trainings that have not ended."""
        return [training for training in list(self.trainings) if not training.done]

    def finish(self):
        """Let every training end with its present epoch, and begin no further one."""
        self.finishing = True
        for training in self.live():
            (training.directory / "finish").touch()

    def problem(self, text):
        """Note what must not happen."""
        self.problems.append((self.events.now(), text))
        self.events.add(f"RED: {text}")

    def _run(self):
        while not self._end.wait(0.5):
            try:
                self._step()
            except (CommandError, OSError, subprocess.SubprocessError) as error:
                self.events.add(f"users: {str(error)[:200]}")

    def _step(self):
        asked = time.time()
        rows = self.site.cluster.run("squeue", "-a", "-h", "-t", "all", "-o", "%j|%A|%T|%S|%r", timeout=30)
        listed = {}
        for row in rows.splitlines():
            name, *facts = row.split("|")
            listed[name] = facts
        for training in self.live():
            self._follow(training, listed.get(training.name), asked)
            self._cancel_earlier(training, listed)
        while not self.finishing and len(self.live()) < LIVE:
            number = len(self.trainings) + 1
            directory = self.site.base / f"training-{number}"
            directory.mkdir()
            self.trainings.append(Training(number, next(self.shapes), directory, Witness(directory, None)))
            self._submit(self.trainings[-1])

    def _submit(self, training):
        """Submit it; where the answer is lost, the name tells whether Slurm has the job."""
        shape = training.shape
        training.submissions += 1
        training.slurm_job_id, training.state = None, ""
        training.submitted = training.seen = time.time()
        command = f"metasched-run {sys.executable} {TRAIN} {training.directory} --epochs {shape.epochs}"
        command += f" --step-seconds {STEP_SECONDS} --checkpoint-every 1.0"
        tag = "" if self.plain else f"metasched min_gpus={shape.least} max_gpus={shape.most}"
        options = ["-J", training.name, f"--gres=gpu:{shape.gpus}", "--requeue"]
        try:
            training.slurm_job_id = self.site.submit(command, *options, tag=tag)
            self.events.add(f"{training.name} submitted as job {training.slurm_job_id}: {shape}")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.events.add(f"{training.name}: sbatch: {str(error)[:150]}")

    def _cancel_earlier(self, training, listed):
        """Cancel an earlier job of the training that Slurm or the daemon has put back since it was found ended.

        Two jobs cannot train in one directory, and the message of the one that is refused asks for that.
        """
        for number in range(1, training.submissions):
            job_id, state, *_ = listed.get(f"training-{training.number}-{number}", (None, ""))
            if state in ACTIVE and state != "COMPLETING":
                self.counts["came_back_after_their_end"] += 1
                self.events.add(f"training-{training.number}-{number} (job {job_id}) is {state} again; cancelled")
                self.site.cluster.run("scancel", job_id)

    def _follow(self, training, row, asked):
        if row is None:
            if asked - training.seen > VANISHED_SECONDS and training.submitted < asked - VANISHED_SECONDS:
                if training.slurm_job_id is not None:
                    self.counts["vanished"] += 1
                    self.events.add(f"{training.name} (job {training.slurm_job_id}) vanished; submitted again")
                self._submit(training)
            return
        job_id, state, started, reason = row
        training.seen, training.slurm_job_id = asked, job_id
        if state != training.state:
            self.events.add(f"{training.name} (job {job_id}): {state} {reason if state == 'PENDING' else ''}")
            training.state = state
            training.active = (training.active[0], asked)
        if state in ACTIVE:
            self._watch(training, started, asked)
        else:
            self._ended(training, started, asked)

    def _watch(self, training, started, asked):
        size, since = training.active
        if training.state != "RUNNING" or training.logs() != size or asked < training.stopped_until:
            training.active = (training.logs(), asked)
            return
        begun = unix_seconds(started) or since
        cause, patience = "hands", SILENT_SECONDS
        if any(at >= begun - 2 and kind in UNNOTICED_BY_SLURM for at, kind in training.strikes):
            cause, patience = "hands_after_killed_slurmstepds", UNNOTICED_SECONDS
        elif any(at >= begun for at in self.controller_kills) and not training.trainers():
            cause = "hands_for_runs_that_slurmctld_recovered"
        if asked - since < patience:
            return
        text = f"{training.name} (job {training.slurm_job_id}) is RUNNING and makes no step; requeued by hand"
        self.counts[cause] += 1
        if cause == "hands":
            self.problem(f"{text}: {self._output(training)}")
        else:
            self.events.add(text)
        training.active = (size, asked)
        self.site.cluster.run("scontrol", "requeue", training.slurm_job_id)

    def _ended(self, training, started, asked):
        finished = (training.directory / "final.pt").exists()
        if training.state == "COMPLETED" and finished:
            training.done = True
            self.counts["completed"] += 1
            return
        if training.state != "COMPLETED" and asked - training.active[1] < ENDED_SECONDS:
            return
        begun = unix_seconds(started) or training.submitted
        if training.was_killed(begun, training.active[1]):
            self.counts["failed_killed"] += 1
            self.events.add(f"{training.name} ended as {training.state} after a kill; submitted again")
        else:
            self.counts["failed"] += 1
            told = " although its training had finished" if finished else ""
            what = f"{training.name} (job {training.slurm_job_id}) ended as {training.state}"
            history = "\n".join(self._history(training))
            self.problem(f"{what}, and nobody had killed it{told}: {self._output(training)}\n{history}")
        self._submit(training)

    def _history(self, training):
        """The exit code of the present job, and the latest of its runs and events in the daemon's store, as lines."""
        with contextlib.suppress(CommandError):
            shown = self.site.cluster.run("scontrol", "show", "job", training.slurm_job_id, timeout=30)
            yield from (line.strip() for line in shown.splitlines() if "ExitCode=" in line or "StartTime=" in line)
        if self.plain:
            return
        with contextlib.suppress(StoreError), self.site.store() as store:
            for job in store.find_jobs(training.slurm_job_id, limit=1):
                for run in store.runs(job.uid)[-4:]:
                    yield f"run {run.run}: from {run.started} to {run.ended}, {run.cause}"
                for event in reversed(store.recent_events(8, job.uid)):
                    yield f"event at {event.at:.1f}: {event.kind}, {event.text}"

    def _output(self, training):
        """The last lines of the present job's output."""
        for path in sorted(self.site.base.glob("job-*/job.sh"), key=lambda path: -path.stat().st_mtime):
            if f" {training.directory} " in path.read_text():
                output = path.with_name("out.txt")
                return output.read_text(errors="replace")[-700:].strip() if output.exists() else "no output"
        return "no output"

    def judge(self, training):
        """What is wrong with an ended training."""
        wrong = training.witness.judge(finished=training.done)
        return wrong + (judge_parameters(training.witness) if training.done else [])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(120)
        for training in self.live():
            if training.slurm_job_id is not None:
                with contextlib.suppress(CommandError):
                    self.site.cluster.run("scancel", training.slurm_job_id)


def unix_seconds(text):
    """Of a time as squeue prints it; None for N/A."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    return None
