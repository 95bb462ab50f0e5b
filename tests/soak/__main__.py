"""Hours of jobs that come and go, on a simulated clock: `python -m tests.soak --hours 1`.

The controller, the store and its copies are those of the daemon, in one process that lives as long as the soak; Slurm
is the fake one. What the process and its directories hold is printed as a table. The exit status is 1 where something
grows by more than its bound for each 1,000 jobs, once the first quarter of the jobs is over.
"""

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import structlog

from metasched.configuration.file_names import COPIES, DATABASE
from metasched.daemon.failover import StoreCopier
from metasched.daemon.garbage import GarbageCollection
from metasched.slurm.client import JobState
from metasched.store.schema_version import TABLES
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

NODES = tuple(FakeNode(f"n{number}", gpus=4) for number in range(1, 7))
ARRIVAL_SECONDS = 1.8  # from one submission to the next, in the mean: 2,000 jobs an hour
WORK_SECONDS = (4.0, 40.0)
MIN_JOB_AGE = 60.0  # after which Slurm forgets an ended job
KEPT = 1 / 16  # the part of the soak for which details are kept
SAMPLES = 24
SEARCH_SECONDS = 30.0  # of the simulated clock, between two searches for garbage among all objects
ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
MIB = 2**20


class Measure(NamedTuple):
    """What is measured: its unit for the table, the value of one such unit, and the most growth for 1,000 jobs.

    `bound` is None where growth is a matter of the configured retention, and is only printed.
    """

    unit: str
    scale: float
    bound: float | None
    read: Callable


def entries(directory):
    """The number of files and directories below a directory."""
    return sum(len(names) + len(files) for _, names, files in os.walk(directory))


def left_in_mailbox(site):
    """The number of directories and addresses in the mailbox of jobs that have ended."""
    live = {job.uid for job in site.store.live_jobs()}
    mailbox = site.base / "shared" / "mailbox"
    owners = [path.name for path in mailbox.iterdir() if path.name != "address"]
    owners += [path.read_text().strip() for path in (mailbox / "address").iterdir()]
    return sum(uid not in live for uid in owners)


def store_bytes(site):
    """The bytes of the store's file and its log."""
    return sum(path.stat().st_size for path in (site.base / "state").glob(f"{DATABASE}*"))


def resident_bytes(_site):
    """The memory of this process, bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rows_of(table):
    """A reader of the number of a table's rows."""
    return lambda site: site.store._rows(f"SELECT count(*) FROM {table}")[0][0]  # noqa: S608  our own names


def policy_state_bytes(site):
    """The bytes of the states of policies and of apps that the store has."""
    sql = "SELECT coalesce(sum(length(data)), 0) FROM "
    return sum(site.store._rows(sql + table)[0][0] for table in ("policy_state", "apps"))


def remembered_jobs(site):
    """The number of jobs that have ended, and that a part of the controller still remembers."""
    controller = site.controller
    known = (controller._intake._marked, controller._run_tracking._waiting, controller._run_tracking._live)
    known += (controller._state_builder._described._known, controller._publisher._rendered)
    live = {job.uid for job in site.store.live_jobs()}
    return sum(len(set(found) - live) for found in known)


MEASURES = {
    "memory": Measure("MiB", MIB, 6 * MIB, resident_bytes),
    "blocks of Python": Measure("thousands", 1e3, 10e3, lambda _: sys.getallocatedblocks()),
    "descriptors": Measure("", 1, 0.5, lambda _: len(list(Path("/proc/self/fd").iterdir()))),
    "threads": Measure("", 1, 0.5, lambda _: len(list(Path("/proc/self/task").iterdir()))),
    "store": Measure("MiB", MIB, 3 * MIB, store_bytes),
    "left in mailbox": Measure("entries", 1, 0.5, left_in_mailbox),
    "reports": Measure("files", 1, None, lambda site: entries(site.base / "shared" / "reports")),
    "state": Measure("files", 1, 0.5, lambda site: entries(site.base / "state")),
    "live jobs": Measure("", 1, None, lambda site: len(site.store.live_jobs())),
}
# Printed as growth alone. Of jobs that have ended, the retention decides; it is a part of the soak.
GROWTH_MEASURES = {
    **{f"rows of {table}": Measure("rows", 1, 100, rows_of(table)) for table in TABLES},
    "states of policies": Measure("KiB", 1024, 30 * 1024, policy_state_bytes),
    "ended jobs in memory": Measure("jobs", 1, 1, remembered_jobs),
}
ALL_MEASURES = MEASURES | GROWTH_MEASURES


class Soak:
    """A cluster, a controller, and jobs for so many hours.

    Attributes:
        rows: (jobs that have ended, {measure: value}) of each sample.
    """

    def __init__(self, base, hours, seed):
        self.dice = random.Random(seed)  # noqa: S311  no secret
        self.slurm = FakeSlurm(nodes=NODES)
        self.began = self.slurm.now
        self.until = self.began + hours * 3600
        self.site = FakeSite(base, self.slurm, policy="las", poll_seconds=2.0, busy_poll_seconds=1.0)
        config = self.site.config
        kept = hours / 24 * KEPT
        days = {"days": kept, "reports_days": kept, "jobs_days": 2 * kept, "speeds_days": kept}
        history = config.history.model_copy(update=days)
        self.site.config = config.model_copy(update={"history": history})
        self.site.start()
        self.next_arrival = self.slurm.now
        self.submitted = 0
        self.rows = []

    def run(self):
        """Poll until the hours are over, and take samples on the way."""
        sample_seconds = (self.until - self.began) / SAMPLES
        next_sample = self.began + sample_seconds
        garbage = GarbageCollection(lambda: self.slurm.now, SEARCH_SECONDS)
        database = self.site.base / "state" / DATABASE
        with StoreCopier(database, self.site.base / "shared" / COPIES, 5.0):
            while self.slurm.now < self.until:
                self._submit()
                pause = self.site.controller.poll()
                garbage.after_poll()
                self.slurm.tick(max(pause, 0.5))
                self._forget()
                if self.slurm.now >= next_sample:
                    next_sample += sample_seconds
                    self.sample()
        garbage.end()
        self.site.controller.close()
        self.site.close()

    def _submit(self):
        while self.next_arrival <= self.slurm.now:
            gpus = self.dice.choice((1, 1, 1, 2, 4))
            options = (f"--gres=gpu:{gpus}", f"--mem={gpus}G")
            self.site.add(*options, tag="min_gpus=1", seconds=self.dice.uniform(*WORK_SECONDS))
            self.submitted += 1
            self.next_arrival += self.dice.expovariate(1 / ARRIVAL_SECONDS)

    def _forget(self):
        """Forget ended jobs, as Slurm does."""
        self.slurm.calls.clear()
        for name, job in list(self.slurm._jobs.items()):
            if job.shown.state in ENDED and self.slurm.now - job.shown.ended > MIN_JOB_AGE:
                del self.slurm._jobs[name]

    def sample(self):
        """Measure now."""
        ended = self.submitted - len(self.site.store.live_jobs())
        self.rows.append((ended, {name: measure.read(self.site) for name, measure in ALL_MEASURES.items()}))

    def growth(self, name):
        """The growth of a measure for each 1,000 jobs: from the median of the second quarter to that of the last.

        A median, as the copier of the store holds files open for moments.
        """
        quarter = len(self.rows) // 4
        early, late = self.rows[quarter : 2 * quarter], self.rows[-quarter:]
        jobs = median(ended for ended, _ in late) - median(ended for ended, _ in early)
        grown = median(row[name] for _, row in late) - median(row[name] for _, row in early)
        return 1000 * grown / jobs

    def excesses(self):
        """The measures that grow by more than their bounds, in words."""
        return [
            f"{name} grows by {self.growth(name) / measure.scale:.2f} {measure.unit} for each 1,000 jobs; "
            f"at most {measure.bound / measure.scale:g} is allowed"
            for name, measure in ALL_MEASURES.items()
            if measure.bound is not None and self.growth(name) > measure.bound
        ]

    def table(self):
        """The samples, and the growth for each 1,000 jobs."""
        heads = [f"{name}, {measure.unit}".rstrip(", ") for name, measure in MEASURES.items()]
        rows = [["jobs", *heads]]
        rows += [
            [str(ended), *(f"{row[name] / measure.scale:.4g}" for name, measure in MEASURES.items())]
            for ended, row in self.rows
        ]
        rows.append(["per 1,000", *(f"{self.growth(name) / m.scale:+.3g}" for name, m in MEASURES.items())])
        limits = ("none" if m.bound is None else f"{m.bound / m.scale:g}" for m in MEASURES.values())
        rows.append(["bound", *limits])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        for name, m in GROWTH_MEASURES.items():
            last, grown = self.rows[-1][1][name] / m.scale, self.growth(name) / m.scale
            lines.append(f"{name}: {last:.4g} {m.unit} at the end, {grown:+.3g} for each 1,000 jobs")
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="of the simulated clock")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help="about so many short jobs, in place of --hours")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if args.jobs is not None:
        args.hours = args.jobs * ARRIVAL_SECONDS / 3600
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as base:
        soak = Soak(Path(base), args.hours, args.seed)
        soak.run()
    print(soak.table())  # noqa: T201
    print(*soak.excesses(), sep="\n")  # noqa: T201
    seconds = time.monotonic() - began
    print(f"{args.hours:g} h, {soak.submitted} jobs, {soak.site.controller.round_number} rounds in {seconds:.0f} s")  # noqa: T201
    return bool(soak.excesses())


if __name__ == "__main__":
    sys.exit(main())
