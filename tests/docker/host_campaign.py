"""A campaign on several hosts: random faults strike hosts and their network, and what must not happen is looked for."""

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.campaign import faults, notices
from tests.docker.site import CommandFailedError, Training

COMPUTE = ("c1", "c2")
MEAN_PAUSE = 15.0  # seconds from one fault to the next
POLICY_SECONDS = 60.0
POLICIES = ("las", "fifo", "gandiva_fair", "srtf")
LIVE = 3  # trainings at once
USERS = ("alice", "bob")
PATIENCE = 420.0  # seconds in which all trainings must end after the last fault, on a crowded machine
ENDED_SECONDS = 30.0  # for which a job has to be shown as ended: the daemon may put it back
VANISHED_SECONDS = 45.0  # for which Slurm's list has to lack a job
SILENT_SECONDS = 150.0  # without a step, after which a person would look at a job that Slurm shows as running
NODE_SECONDS = 90.0  # for which a host may be out of service after the last fault that explains it
PUBLISHED_SECONDS = 100.0  # in which the daemon publishes that a job has completed
ORPHAN_SECONDS = 60.0  # after the last job
FAILED = ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
SLURMS_OWN_DRAIN = "Duplicate jobid"
OPTIONS = "--step-seconds 0.1 --checkpoint-every 2 --finish-file enough"

HOST_KILLED, HOST_PAUSED, HOST_CUT = "compute host killed", "compute host paused", "compute host cut from controller"
HOSTS_CUT, SHARED_HIDDEN = "compute hosts cut from each other", "shared volume hidden from a compute host"
CONTROLLER_KILLED, CONTROLLER_PAUSED = "controller's host killed", "controller's host paused"
DAEMON_KILLED, DAEMON_PAUSED = "daemon's host killed", "daemon's host paused"
DAEMON_CUT, DATABASE_KILLED = "daemon's host cut from controller", "database's host killed"
TRAINERS_KILLED = "trainers killed"

# How often in a hand of cards, and the least and most seconds until the fault is undone.
KINDS = {
    HOST_KILLED: (2, 0.5, 20.0),
    HOST_PAUSED: (2, 1.0, 30.0),
    HOST_CUT: (2, 1.0, 30.0),
    HOSTS_CUT: (1, 1.0, 15.0),
    SHARED_HIDDEN: (1, 1.0, 10.0),
    CONTROLLER_KILLED: (2, 0.5, 10.0),
    CONTROLLER_PAUSED: (1, 1.0, 15.0),
    DAEMON_KILLED: (2, 0.5, 10.0),
    DAEMON_PAUSED: (1, 1.0, 15.0),
    DAEMON_CUT: (1, 1.0, 15.0),
    DATABASE_KILLED: (1, 0.5, 10.0),
    TRAINERS_KILLED: (2, 0.0, 0.0),
}
STRIKES_HOSTS = frozenset({HOST_KILLED, HOST_PAUSED, HOST_CUT, HOSTS_CUT, SHARED_HIDDEN, TRAINERS_KILLED})
"""Kinds after which a job on a struck host may end as FAILED."""


@dataclass
class Watched:
    """A training and what Slurm and its logs have told of it: all instants are unix seconds."""

    training: Training
    submitted: float
    epochs: int
    state: str = ""
    changed: float = 0.0  # since when it has that state
    seen: float = 0.0  # when Slurm listed it last
    hosts: set = field(default_factory=set)  # on which it has run
    size: int = 0  # of its logs, bytes
    active: float = 0.0  # when its logs grew last
    last_step: int | None = None  # of the finished training
    over: str = ""


class HostCampaign:
    """One campaign on a cluster at rest; the attributes have the outcome.

    Args:
        site: the cluster in containers.
        seed: decides all faults and trainings.
        seconds: of faults; the trainings then end by themselves.
    """

    def __init__(self, site, seed, seconds):
        self.site, self.seed, self.seconds = site, seed, seconds
        self.began = time.time()
        self.events, self.problems = [], []  # (seconds from the start, text)
        self.struck = Counter()
        self.strikes = []  # (unix seconds of the begin and the end, kind, host)
        self.boots = []  # unix seconds at which slurmctld may have been started again, at the earliest
        self.down = {}  # host: until when the campaign keeps it from service, unix seconds
        self.watched = []
        self.counts = Counter()
        self._shapes = faults.draw_shapes(seed)
        self._undo = []  # (unix seconds, kind, name in the site's list of faults)

    def run(self):
        """Strike, let the trainings end, and judge."""
        pending = list(faults.draw(KINDS, MEAN_PAUSE, self.seed, self.seconds))
        policies = 0
        while pending or self._undo:
            now = time.time() - self.began
            while pending and pending[0].at <= now:
                self._begin(pending.pop(0))
            for due in sorted(one for one in self._undo if one[0] <= time.time()):
                self._undo.remove(due)
                self._end(*due[1:])
            if now // POLICY_SECONDS > policies:
                policies = now // POLICY_SECONDS
                self._change_policy(POLICIES[int(self.seed + policies) % len(POLICIES)])
            self._look(submits=True)
            time.sleep(0.5)
        for one in self._live():
            self.site.sh("login", f"touch {one.training.directory}/enough", one.training.user)
        deadline = time.time() + PATIENCE
        while self._live() and time.time() < deadline:
            self._look(submits=False)
            time.sleep(1)
        self._judge()

    # Faults

    def _begin(self, fault):
        host = COMPUTE[int(fault.draw * len(COMPUTE))]
        try:
            name = self._strike(fault.kind, host)
        except (CommandFailedError, IndexError) as error:  # another fault has it already
            self._event(f"{fault.kind}: void, {str(error)[:150]}")
            return
        self.struck[fault.kind] += 1
        hosts = COMPUTE if fault.kind == HOSTS_CUT else (host,) if fault.kind in STRIKES_HOSTS else ()
        now = time.time()
        self.strikes += [(now, now + fault.seconds, fault.kind, one) for one in hosts]
        for one in hosts:
            self.down[one] = max(self.down.get(one, 0.0), now + fault.seconds)
        self._event(f"{fault.kind}{f' ({host})' if hosts else ''} for {fault.seconds:.1f} s")
        if name is not None:
            self._undo.append((now + fault.seconds, fault.kind, name))

    def _strike(self, kind, host):
        """Do it, and return the name under which the site undoes it; None for nothing to undo."""
        site = self.site
        other = {DAEMON_CUT: "scheduler", HOST_CUT: host, HOSTS_CUT: "c1"}.get(kind)
        if other is not None:
            to = "c2" if kind == HOSTS_CUT else "controller"
            site.cut(other, to)
            return f"join {other} {to}"
        if kind == SHARED_HIDDEN:
            site.hide(host, "/home")
            return f"show {host} /home"
        if kind == TRAINERS_KILLED:
            site.sh(host, "pkill -KILL -f '^[^ ]*python /home/train.py'")
            return None
        victim = {
            CONTROLLER_KILLED: "controller",
            CONTROLLER_PAUSED: "controller",
            DAEMON_KILLED: "scheduler",
            DAEMON_PAUSED: "scheduler",
            DATABASE_KILLED: "database",
        }.get(kind, host)
        if kind in (HOST_PAUSED, CONTROLLER_PAUSED, DAEMON_PAUSED):
            site.pause_host(victim)
            return f"unpause {victim}"
        site.kill_host(victim)
        return f"start {victim}"

    def _end(self, kind, name):
        if kind == CONTROLLER_KILLED:
            self.boots.append(time.time())
        try:
            self.site.undo(name)
        except (CommandFailedError, StopIteration) as error:
            self._event(f"undo of {kind}: {str(error)[:150]}")
        else:
            self._event(f"{kind}: undone")

    def _change_policy(self, policy):
        """Write another policy into the configuration, and let the daemon read it; one that is down reads it later."""
        try:
            self.site.write_config(f'[policy]\nname = "{policy}"\n')
            self.site.signal_daemon("HUP")
            self._event(f"policy {policy}")
        except CommandFailedError as error:
            self._event(f"policy {policy}: {str(error)[:100]}")

    # Users and administrator

    def _live(self):
        return [one for one in self.watched if not one.over]

    def _look(self, *, submits):
        """Follow every training as its user would, and return to service what needs a hand."""
        asked = time.time()
        try:
            command = "squeue -a -h -t all -o '%A|%T|%N|%r' && echo == && sinfo -h -N -o '%N|%T|%E'"
            jobs, _, nodes = self.site.sh("controller", command).partition("==\n")
        except CommandFailedError:  # the controller is away
            return
        listed = {row.split("|")[0]: row.split("|")[1:] for row in jobs.splitlines()}
        sizes = self._sizes()
        for one in self._live():
            self._follow(one, listed.get(one.training.slurm_job_id), sizes.get(one.training.directory), asked)
        for row in nodes.splitlines():
            self._look_at_node(*row.split("|", 2), asked)
        while submits and len(self._live()) < LIVE:
            try:
                self._submit()
            except CommandFailedError as error:
                self._event(f"submission: {str(error)[-150:]}")
                return

    def _submit(self):
        shape = next(self._shapes)
        user = USERS[len(self.watched) % len(USERS)]
        tag = f"metasched min_gpus={shape.least} max_gpus={shape.most}"
        options = f"{OPTIONS} --epochs {shape.epochs}"
        training = self.site.train(user, options, f"--gres=gpu:{shape.gpus}", tag=tag)
        now = time.time()
        self.watched.append(Watched(training, now, shape.epochs, seen=now, active=now))
        self._event(f"job {training.slurm_job_id} of {user}: {shape}")

    def _sizes(self):
        """Bytes of the logs of each live training, by directory."""
        names = " ".join(one.training.directory for one in self._live())
        script = f'for d in {names}; do echo "$d $(cat $d/trained-*.jsonl 2>/dev/null | wc -c)"; done'
        try:
            lines = self.site.sh("login", script).split("\n") if names else []
        except CommandFailedError:
            return {}
        return {name: int(size) for name, size in (line.split() for line in lines if line)}

    def _follow(self, one, row, size, asked):
        if row is None:
            if asked - max(one.seen, one.submitted) > VANISHED_SECONDS:
                self.counts["vanished"] += 1
                self._over(one, "vanished")
            return
        self._note(one, row, size, asked)
        if one.state == "COMPLETED":
            self._completed(one, asked)
        elif one.state in FAILED and asked - one.changed > ENDED_SECONDS:
            self._failed(one)
        elif one.state == "RUNNING" and asked - one.active > SILENT_SECONDS:
            self._requeue_by_hand(one)

    def _note(self, one, row, size, asked):
        """Note what Slurm and the logs tell of a training."""
        state, hosts, reason = row
        one.seen = asked
        if state != one.state:
            self._event(f"job {one.training.slurm_job_id}: {state} {hosts} {reason}")
            one.state, one.changed, one.active = state, asked, asked
        if state == "RUNNING":
            one.hosts.update(host for host in COMPUTE if hosts in {host, "c[1-2]"})
        if size is not None and size != one.size:
            one.size, one.active = size, asked

    def _completed(self, one, asked):
        job = self.site.job(one.training)
        if job is not None and job.finished is not None:
            one.last_step = job.progress_steps
            self._over(one, "completed")
        elif asked - one.changed > PUBLISHED_SECONDS:
            self.problem(f"job {one.training.slurm_job_id} is COMPLETED and not published so: {job}")
            self._over(one, "not published")

    def _failed(self, one):
        job_id = one.training.slurm_job_id
        if self._was_struck(one, one.changed - SILENT_SECONDS, one.changed):
            self.counts["failed_killed"] += 1
        else:
            self.counts["failed"] += 1
            self.problem(f"job {job_id} ended as {one.state}, and nothing had struck its hosts: {self._output(one)}")
        self._over(one, "failed")

    def _requeue_by_hand(self, one):
        """Requeue a job that Slurm shows as running and that makes no step, as a person would."""
        job_id = one.training.slurm_job_id
        text = f"job {job_id} is RUNNING and makes no step; requeued by hand"
        if any(one.active - 30 <= boot for boot in self.boots):
            self.counts["hands_for_runs_that_slurmctld_recovered"] += 1
            self._event(text)
        else:
            self.counts["hands"] += 1
            self.problem(f"{text}: {self._output(one)}")
        one.active = time.time()
        try:
            self.site.sh("controller", f"scontrol requeue {job_id}")
        except CommandFailedError as error:
            self._event(str(error)[-150:])

    def _was_struck(self, one, begin, end):
        return any(begin <= until + 30 and at <= end + 8 and host in one.hosts for at, until, _, host in self.strikes)

    def _look_at_node(self, node, state, why, asked):
        bad = any(word in state for word in ("down", "drain", "fail"))
        explained = self.down.get(node, self.began) + NODE_SECONDS
        if not bad or asked < max([explained, *(boot + NODE_SECONDS for boot in self.boots)]):
            return
        text = f"node {node} is {state} ({why}); returned to service by hand"
        if SLURMS_OWN_DRAIN in why and self.boots:
            self.counts["hands_for_drains_by_slurmctld"] += 1
            self._event(text)
        else:
            self.counts["hands"] += 1
            self.problem(text)
        self.down[node] = asked
        self.site.sh("controller", f"scontrol update nodename={node} state=resume")

    def _output(self, one):
        try:
            return self.site.sh("login", f"tail -c 700 {one.training.directory}/out.txt")
        except CommandFailedError as error:
            return str(error)[-200:]

    def _over(self, one, how):
        one.over = how
        self._event(f"job {one.training.slurm_job_id}: {how}")

    # The outcome

    def _judge(self):
        for one in self._live():
            self.problem(f"job {one.training.slurm_job_id} has not ended: {one.state}: {self._output(one)}")
        done = [one for one in self.watched if one.over == "completed"]
        wrong = 0
        for one in done:
            try:
                self.site.assert_nothing_lost(one.training, one.last_step)
            except AssertionError as error:
                wrong += 1
                self.problem(f"job {one.training.slurm_job_id}: samples twice or missing: {str(error)[:300]}")
        orphans = self._orphans()
        for orphan in orphans:
            self.problem(f"orphan process: {orphan}")
        log = self.site.daemon_log(self.began)
        unnoticed = notices.unnoticed(log, self.boots)
        for boot in unnoticed:
            self.problem(f"the daemon has not noticed the restart of slurmctld at {boot:.0f} before it started a job")
        early = notices.early_starts(log, self.boots)
        for at, seconds in early:
            self.problem(f"a job was started at {at} UTC, {seconds:.1f} s after slurmctld")
        self.counts |= {
            "faults": sum(self.struck.values()),
            "jobs": len(self.watched),
            "completed": len(done),
            "failed": self.counts["failed"],
            "hands": self.counts["hands"],
            "jobs with samples twice or missing": wrong,
            "orphans": len(orphans),
            "slurmctld_restarts": len(self.boots),
            "slurmctld_restarts_noticed": len(self.boots) - len(unnoticed),
            "starts_while_slurmctld_settled": len(early),
        }

    def _orphans(self):
        """Trainers and wrappers that still run some time after the last job has ended."""
        deadline = time.time() + ORPHAN_SECONDS
        while True:
            found = [
                f"{host}: {line}"
                for host in COMPUTE
                for line in self.site.sh(host, "pgrep -fa '/home/train.py' || true").splitlines()
                if "pgrep" not in line
            ]
            if not found or time.time() > deadline:
                return found
            time.sleep(1)

    def problem(self, text):
        """Note what must not happen."""
        self.problems.append((time.time() - self.began, text))
        self._event(f"RED: {text}")

    def _event(self, text):
        self.events.append((time.time() - self.began, text))

    def table(self):
        """A row for each kind of fault, and the counts below."""
        lines = [f"{kind:45}{self.struck[kind]}" for kind in KINDS]
        return "\n".join(["", *lines, "", *(f"{name.replace('_', ' ')}: {n}" for name, n in self.counts.items())])

    def red(self):
        """Every problem, and all events."""
        lines = [f"{at:8.2f}  {text}" for at, text in (*self.problems, *self.events)]
        return "\n".join([f"seed {self.seed}: RED", *lines])
