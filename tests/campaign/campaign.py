"""A campaign: faults strike a private Slurm cluster with trainings, and what must not happen is looked for."""

import json
import time
from collections import Counter
from contextlib import ExitStack

from metasched.devcluster import processes
from metasched.devcluster.errors import DevClusterError
from tests.campaign import faults, notices
from tests.campaign.injection import Injector, ServiceManager, StoreDisk, VoidError
from tests.campaign.trainings import Users

PATIENCE = 240.0  # seconds in which all trainings must end after the last fault
# After the last job, for Slurm to end what it knows of. A wrapper whose batch shell was killed has requeued its job,
# and waits for a SIGTERM of Slurm's, which does not come, for the 60 s of its TERM_SECONDS.
ORPHAN_SECONDS = 75.0
BEFORE, AFTER = 40.0, 10.0  # seconds of the events around a problem that are printed
NOTICE_SECONDS = 60.0  # in which a daemon that runs must have noticed the last restart of slurmctld


class Events:
    """What happened when, in seconds from the start."""

    def __init__(self):
        self.began = time.monotonic()
        self.lines = []

    def now(self):
        """Seconds from the start."""
        return time.monotonic() - self.began

    def add(self, text):
        """Note that something happened now."""
        self.lines.append((self.now(), text))

    def around(self, instants):
        """The events shortly before and after some instants."""
        near = [line for line in self.lines if any(-BEFORE <= line[0] - at <= AFTER for at in instants)]
        return [f"{at:8.2f}  {text}" for at, text in near]


class Campaign:
    """One campaign on a site's cluster.

    Args:
        site: a fresh Site, whose daemon has not been started.
        seed: decides all faults and trainings.
        seconds: of faults; the trainings then end by themselves.
        plain: whether the jobs are Slurm's alone, requeued but without metasched.
    """

    def __init__(self, site, seed, seconds, *, plain=False):
        self.site, self.seed, self.seconds, self.plain = site, seed, seconds, plain
        self.events = Events()
        self.struck, self.void = Counter(), Counter()
        self.problems = []  # (seconds from the start, text)
        self.counts = {}

    def run(self):
        """Let it happen; the attributes have the outcome."""
        events, site = self.events, self.site
        site.configure(policy=faults.POLICIES[self.seed % len(faults.POLICIES)], grace=10)
        with ExitStack() as stack:
            disk = stack.enter_context(StoreDisk(site.base / "state"))
            service = None if self.plain else ServiceManager(site, events)
            if service is not None:
                site.start()
                stack.callback(self._stop_daemon)
            users = stack.enter_context(Users(site, faults.draw_shapes(self.seed), events, plain=self.plain))
            injector = Injector(site, service, users, disk, events)
            self._strike(injector, service)
            users.finish()
            self._await_end(injector, service, users)
            injector.close()
            self._judge(injector, service, users)

    def _strike(self, injector, service):
        """Begin every fault at its time, and undo it at its time."""
        pending = faults.draw_faults(self.seed, self.seconds)
        undo = []
        while pending or undo:
            now = self.events.now()
            while pending and pending[0].at <= now:
                fault = pending.pop(0)
                try:
                    reverse = injector.begin(fault)
                except VoidError as error:
                    self.void[fault.kind] += 1
                    self.events.add(f"{fault.kind}: void, {error}")
                else:
                    self.struck[fault.kind] += 1
                    self.events.add(f"{fault.kind} {fault.draw:.3f} for {fault.seconds:.1f} s")
                    if reverse is not None:
                        undo.append((now + fault.seconds, fault.kind, reverse))
            for due in sorted((one for one in undo if one[0] <= now), key=lambda one: one[0]):
                undo.remove(due)
                try:
                    due[2]()
                except DevClusterError as error:
                    self.events.add(f"undo of {due[1]}: {str(error)[:150]}")
                self.events.add(f"{due[1]}: undone")
            if service is not None:
                service.keep_running()
            time.sleep(0.05)

    def _await_end(self, injector, service, users):
        """Wait until the trainings have ended."""
        until = time.monotonic() + PATIENCE
        while users.live() and time.monotonic() < until:
            if service is not None:
                service.keep_running()
            time.sleep(0.2)
        for training in users.live():
            users.problem(f"{training.name} (job {training.slurm_job_id}) has not ended: {training.state}")

    def problem(self, text):
        """Note what must not happen."""
        self.problems.append((self.events.now(), text))
        self.events.add(f"RED: {text}")

    def _stop_daemon(self):
        if self.site.daemon is not None and self.site.daemon.poll() is None:
            self.site.daemon.terminate()
            self.site.daemon.wait(90)

    def _judge(self, injector, service, users):
        self.problems += injector.problems
        wrong = [(training, fault) for training in users.trainings for fault in users.judge(training)]
        for training, fault in wrong:
            self.problem(f"training-{training.number}: {fault}")
        for orphan in self._orphans():
            self.problem(f"orphan process {orphan.pid}: {' '.join(orphan.argv)[:200]}")
        unnoticed = [] if self.plain else self._await_notices(injector.controller_boots)
        for boot in unnoticed:
            self.problem(f"the daemon has not noticed the restart of slurmctld at {boot:.0f} before it started a job")
        early = [] if self.plain else notices.early_starts(self.site.log(), injector.controller_boots)
        for at, seconds in early:
            self.problem(f"a job was started at {at} UTC, {seconds:.1f} s after slurmctld")
        ends = []
        if service is not None:
            ends = [(at, why) for at, why in service.ends if not self._disk_was_full(at)]
        self.problems += [(at, f"the daemon ended by itself: {why}") for at, why in ends]
        self.problems = sorted(self.problems + users.problems)
        kept, again = self._steps(users.trainings)
        self.counts = {
            "faults": sum(self.struck.values()) - self.struck[faults.POLICY],
            "trainings": len(users.trainings),
            "submissions": sum(training.submissions for training in users.trainings),
            **users.counts,
            "hands": users.counts["hands"] + len(injector.problems),
            "hands_for_drains_by_slurmctld": injector.slurms_hands,
            "hands_for_gpus_leaked_by_slurmctld": injector.reconfigurations,
            "steps": kept,
            "steps_trained_again": again,
            "steps_twice_or_missing": len(wrong),
            "orphans": sum("orphan process" in text for _, text in self.problems),
            "daemon_ended_by_itself": len(ends),
            "slurmctld_restarts": len(injector.controller_boots),
            "slurmctld_restarts_noticed": None if self.plain else len(injector.controller_boots) - len(unnoticed),
            "starts_while_slurmctld_settled": None if self.plain else len(early),
        }

    def _disk_was_full(self, at):
        return any(
            text.startswith((f"{faults.DISK_FULL} ", f"{faults.DISK_FULL}: undone")) and -12 <= when - at <= 3
            for when, text in self.events.lines
        )

    def _orphans(self):
        """Processes of jobs that still run some time after the last job has ended."""
        conf = str(self.site.cluster.conf)
        deadline = time.monotonic() + ORPHAN_SECONDS
        while found := [
            process
            for process in processes.everyone()
            if process.environ.get("SLURM_CONF") == conf and "SLURM_JOB_ID" in process.environ
        ]:
            if time.monotonic() > deadline:
                return found
            time.sleep(0.5)
        return []

    @staticmethod
    def _steps(trainings):
        """The optimizer steps that the ended trainings needed, and those that they trained more often than once."""
        kept = again = 0
        for training in trainings:
            steps = [step for number in training.witness.claims for step in training.witness.trained(number)]
            kept += len(set(steps))
            again += len(steps) - len(set(steps))
        return kept, again

    def _await_notices(self, boots):
        """The restarts that the daemon has not noticed, after some time for the last of them."""
        deadline = time.monotonic() + NOTICE_SECONDS
        while (unnoticed := notices.unnoticed(self.site.log(), boots)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return unnoticed

    # The outcome, in words

    def table(self):
        """A row for each kind of fault, and the counts below."""
        rows = [("fault", "struck", "nothing to strike")]
        rows += [(kind, str(self.struck[kind]), str(self.void[kind])) for kind in (*faults.KINDS, faults.POLICY)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines.append("")
        for name, value in self.counts.items():
            lines.append(f"{name.replace('_', ' ')}: {'not known' if value is None else value}")
        return "\n".join(lines)

    def red(self):
        """Every problem, and the events around it."""
        lines = [f"{at:8.2f}  {text}" for at, text in self.problems]
        around = self.events.around([at for at, _ in self.problems])
        heading = "events around it, in seconds from the start:"
        return "\n".join([f"seed {self.seed}: RED", *lines, "", heading, *around])

    def line(self):
        """The outcome as one line of JSON."""
        return json.dumps(
            {
                "seed": self.seed,
                "seconds": self.seconds,
                "plain": self.plain,
                "red": len(self.problems),
                **self.counts,
                "struck": dict(self.struck),
                "void": dict(self.void),
            }
        )
