"""FaultySlurm: a FakeSlurm whose controller dies, blocks, forgets and miscounts as the real one was seen to.

- A command that meets a controller that is away does not fail at once: it blocks, tries again, and succeeds if the
  controller is back within RETRY_SECONDS. The clock advances meanwhile.
- A controller that was killed knows what it had saved, at most SAVE_SECONDS ago. Younger jobs are lost, and their ids
  are given to others. Jobs that started, ended or were requeued since then are queued again; their processes end when
  the node registers. Holds, releases, sizes and stamps since then are lost.
- For GRES_SECONDS after its restart the controller's count of GPUs is off: jobs that it starts fail before their
  trainer does.
- GPUs of such a job may stay allocated after its end, until the controller restarts.
- A node that was lost ends a run of a job that ran there before, by SIGTERM, if it starts there again within
  LATE_KILL_SECONDS.
"""

import random
from functools import partial

from metasched.core.model import Hold
from metasched.slurm.client import JobState, SlurmClient
from metasched.slurm.errors import SlurmTimeoutError, SlurmUnavailableError
from tests.fakes.fake_slurm import GRES_SECONDS, FakeSlurm

SAVE_SECONDS = 5.0
RETRY_SECONDS = 9.0
LATE_KILL_SECONDS = 2.0
ANSWER_SECONDS = 10.0
STEP_FAILS = 0.3  # seconds from a start to the end by a late kill
TERMINATED = 128 + 15
_RAN = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
WRITES = frozenset(
    {
        "adopt",
        "await_dependency",
        "cancel",
        "hold",
        "release",
        "requeue_hold",
        "resume",
        "set_requeue",
        "signal",
        "stamp",
        "suspend",
        "update",
    }
)
READS = frozenset(name for name in vars(SlurmClient) if not name.startswith("_")) - WRITES - {"close"}
assert vars(SlurmClient).keys() >= WRITES


class Killed(BaseException):
    """The daemon is killed here: no code catches the exception."""


class FaultySlurm(FakeSlurm):
    """A FakeSlurm with faults.

    Args:
        seed: of what is left to chance.
        loses_gres: whether jobs fail that start soon after a restart.
        leaks_gpus: whether the GPUs of such jobs stay allocated, until the controller restarts.
        kills_late: whether runs are ended that start soon on a node that was lost.
        options: of FakeSlurm.

    Attributes:
        away_until: when the controller answers again, unix seconds; in the past while it answers.
        lost: names of the jobs that a killed controller forgot.
    """

    def __init__(self, *, seed=0, loses_gres=True, leaks_gpus=False, kills_late=True, **options):
        super().__init__(**options)
        self.dice = random.Random(seed)  # noqa: S311  no secret
        self.loses_gres, self.leaks_gpus, self.kills_late = loses_gres, leaks_gpus, kills_late
        self.away_until = self.now
        self.lost = []
        self._saved = {}
        self._late_kills = {}  # (node, Slurm job id): until when
        self._save()

    # Faults

    def kill_controller(self, seconds):
        """Kill the controller, and start it again after some seconds."""
        self._roll_back()
        self.reconfigure()
        self.away_until = max(self.away_until, self.now + seconds)
        self._boot_time = self.away_until
        if self.loses_gres:
            self._gpus_counted_from = self.away_until + GRES_SECONDS

    def stop_controller(self, seconds):
        """Stop the controller's process, and continue it after some seconds."""
        self.away_until = max(self.away_until, self.now + seconds)

    def lose_node(self, name, seconds):
        """Lose a node, which is back after some seconds."""
        lost = [job.slurm_job_id for job in self.jobs_now() if name in job.allocated]
        self.node_down(name)

        def back():
            self.node_up(name)
            self._late_kills |= {(name, slurm_job_id): self.now + LATE_KILL_SECONDS for slurm_job_id in lost}

        self.after(seconds, back)

    def drain_node(self, name, seconds):
        """Drain a node, and return it to service after some seconds."""
        self.node_drain(name)
        self.after(seconds, lambda: self._nodes.drained.discard(name))

    def kill_rank(self, slurm_job_id):
        """Kill a process of a running job, as the out-of-memory killer does: the job fails."""
        self.exit(slurm_job_id, 137)

    def jobs_now(self):
        """The jobs as they are, also while the controller is away."""
        return tuple(job.shown for job in self._jobs.values())

    @property
    def is_away(self):
        """Whether the controller does not answer now."""
        return self.now < self.away_until

    def wait_for_controller(self):
        """Block as a command does.

        Raises:
            SlurmUnavailableError: the controller was not back in time.
        """
        if not self.is_away:
            return
        back = self.away_until <= self.now + RETRY_SECONDS
        self.tick(min(self.away_until - self.now, RETRY_SECONDS))
        if not back:
            raise SlurmUnavailableError("Unable to contact slurm controller (connect failure)")

    # Behind the scenes

    def tick(self, seconds=1.0):
        """Advance the clock, in two parts where the controller comes back meanwhile: it starts nothing before."""
        until = self.now + seconds
        if self.is_away and self.away_until < until:
            super().tick(self.away_until - self.now)
        super().tick(until - self.now)

    def _save(self):
        if not self.is_away:
            self._saved = {name: (job, job.run, job.shown, job.sticky_hold) for name, job in self._jobs.items()}
        self.after(SAVE_SECONDS, self._save)

    def _roll_back(self):
        for slurm_job_id, job in list(self._jobs.items()):
            saved = self._saved.get(slurm_job_id)
            if saved is None or saved[0] is not job:
                del self._jobs[slurm_job_id]
                self.lost.append(job.shown.name)
                self._vacate(job)
                continue
            _, run, shown, sticky = saved
            if job.run == run:  # the same run, or none, then and now
                if job.shown.state is shown.state:
                    job.shown, job.sticky_hold = shown, sticky
            elif shown.state is JobState.PENDING:  # it started since: its process ends when the node registers
                self._vacate(job)
                job.after, job.computing_since = None, None
                job.shown, job.sticky_hold = shown, sticky
            elif shown.state in _RAN:  # it ended, or was requeued: the node knows no such job
                job.sticky_hold = sticky
                self._show(job, restarts=shown.restarts)
                self._back_to_pending(job, Hold.NONE, "PENDING")
        self._next_id = max((job.shown.job_id for job in self._jobs.values()), default=0) + 1

    def _start_what_can(self):
        if not self.is_away:
            super()._start_what_can()

    def _start(self, job, nodes):
        late = self.kills_late and any(
            self.now < self._late_kills.get((name, job.shown.slurm_job_id), 0.0) for name in nodes
        )
        super()._start(job, nodes)
        if late:
            self.exit(job.shown.slurm_job_id, TERMINATED, after=STEP_FAILS)


class FaultyClient:
    """The daemon's client of a FaultySlurm: its calls block, lose their answers, and end the daemon.

    Attributes:
        lost_answers: the number of next writes that take effect and time out.
        writes_to_death: the number of writes after which the daemon is killed, before or after the last of them takes
            effect; None for never.
        dies_after: whether that last one takes effect.
    """

    def __init__(self, slurm):
        self.slurm = slurm
        self.lost_answers = 0
        self.writes_to_death = None
        self.dies_after = False

    def __getattr__(self, name):
        method = getattr(self.slurm, name)
        return partial(self._call, name, method) if name in WRITES | READS else method

    def _call(self, name, method, *arguments):
        self.slurm.wait_for_controller()
        if name in READS:
            return method(*arguments)
        dying = False
        if self.writes_to_death is not None:
            self.writes_to_death -= 1
            dying = self.writes_to_death <= 0
        if dying and not self.dies_after:
            raise Killed
        found = method(*arguments)
        if dying:
            raise Killed
        if self.lost_answers > 0:
            self.lost_answers -= 1
            self.slurm.tick(ANSWER_SECONDS)
            raise SlurmTimeoutError(f"{name} did not end within {ANSWER_SECONDS:g} s")
        return found
