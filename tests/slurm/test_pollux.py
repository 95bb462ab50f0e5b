"""Pollux on a real cluster: the batches and GPUs of real trainings follow their noise and the queue."""

import json
import subprocess
import sys
from itertools import groupby
from statistics import fmean, stdev

import pytest

from metasched.devcluster import NodeGroup
from metasched.learning.restart_cost import measured_restarts
from metasched.replay.snapshot_codec import decode
from tests.slurm import noisy
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import ROOT, Site

ADAPTIVE = "metasched min_gpus=1 max_gpus=2 batch=adaptive"
FIXED = "metasched min_gpus=1 max_gpus=1"


@pytest.fixture
def site(make_cluster):
    """A Site on one node of three GPUs, under Pollux."""
    made = Site(make_cluster(groups=(NodeGroup(1, 3, "v100"),), job_submit=JOB_SUBMIT))
    made.configure(policy="pollux", parameters="restart_seconds = 1.0")
    yield made
    made.close()


class Training:
    """A training of noisy.py, as a job of the site."""

    def __init__(self, site, tag):
        command = f"exec metasched-run {sys.executable} {noisy.__file__} {{dir}}"
        self.slurm_job_id = site.submit(command, "--gres=gpu:1", tag=tag)
        self.directory = site.base / f"job-{site.number}"
        self._site = site

    @property
    def status(self):
        return self._site.job(self.slurm_job_id)

    def restarts(self):
        """The seconds of each restart, the last of which counts once its first step is known."""
        with self._site.store() as store:
            runs = store.runs(self.status.uid)
        return measured_restarts(runs if runs[-1].first_step_at is not None else runs[:-1])

    def steps(self, generation):
        """What rank 0 of a generation has written of its steps."""
        path = self.directory / f"steps-{generation}-0"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def batches(self, generation):
        """The batches of a generation, in order, without repetition."""
        return [batch for batch, _ in groupby(step["batch"] for step in self.steps(generation))]

    def leased_batch(self):
        """The `batch` in the lease, None before there is one."""
        status = self.status
        path = self._site.base / "shared" / "mailbox" / (status.uid if status else "none") / "lease.json"
        return json.loads(path.read_text())["batch"] if path.exists() else None

    def reports(self, kind):
        """The report lines of one kind of all generations."""
        files = sorted((self._site.base / "shared" / "reports" / self.status.uid).glob("*.jsonl"))
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]

    def has_larger_plan(self):
        """Whether the lease asks for a batch beyond the first one."""
        batch = self.leased_batch()
        return batch is not None and batch["plan"] and batch["per_gpu"] > noisy.FIRST_BATCH


def await_round(site):
    """Wait for another round."""
    decided = site.status().round
    site.wait(lambda: site.status().round > decided)


def test_batches_and_gpus_follow_the_noise_and_the_queue(site):
    """A job's batch grows while it runs; the job grows, and shrinks for another one. A fixed batch stays as it is."""
    site.start()
    blocker = site.submit("exec sleep 1000", "--gres=gpu:1", tag="metasched preempt=no")
    fixed, job = Training(site, FIXED), Training(site, ADAPTIVE)
    (job.directory / "halt").touch()

    # The daemon dies while a training that stands still is asked for a larger batch. The next one asks for no other.
    site.wait(lambda: len(job.steps(1)) == noisy.HALT_AT and job.has_larger_plan())
    site.kill()
    plan = job.leased_batch()
    assert job.batches(1) == [noisy.FIRST_BATCH]
    site.start()
    site.wait(lambda: site.status().pid == site.daemon.pid)
    await_round(site)
    assert job.leased_batch()["plan"] == plan["plan"]
    (job.directory / "halt").unlink()
    site.wait(lambda: noisy.MAX_PER_GPU in job.batches(1))
    assert job.batches(1) == [noisy.FIRST_BATCH, noisy.MAX_PER_GPU]
    assert len((job.directory / "pids").read_text().split()) == job.status.runs == 1

    site.cluster.run("scancel", blocker)
    site.wait(lambda: noisy.MAX_BATCH in job.batches(2))
    assert f"with a batch of {noisy.MAX_BATCH}" in job.status.reason
    later = Training(site, ADAPTIVE)
    site.wait(lambda: noisy.MAX_PER_GPU in job.batches(3) and later.steps(1) and len(job.restarts()) == 2)
    await_round(site)
    await_round(site)  # the first one may have begun before
    trainings = (job, later, fixed)
    for each in trainings:
        (each.directory / "enough").touch()
    ended = [site.wait_status(each.slurm_job_id, "completed") for each in trainings]
    assert [each.world_sizes for each in ended] == [(1, 2, 1), (1,), (1,)]

    assert fixed.leased_batch() is None
    assert fixed.batches(1) == [noisy.FIRST_BATCH]
    assert {line["global_batch"] for line in fixed.reports("steps")} == {noisy.FIRST_BATCH}
    output = (job.directory / "out.txt").read_text()
    assert output.count("batch plan {plan}: {per_gpu} samples, {per_gpu} on a GPU".format(**plan)) == 1
    numbers = [number for number, _ in groupby(line["plan"] for line in job.reports("steps"))]
    assert len(numbers) == len(set(numbers))
    final = job.steps(3)[-1]
    losses = [noisy.by_hand(round(final["progress"]), seed) for seed in range(8)]
    assert final["loss"] == pytest.approx(fmean(losses), abs=5 * stdev(losses))

    restarts = job.restarts()
    with site.store() as store:
        # a killed daemon may not have stored the snapshot of its last round
        snapshots = [decode(data) for one in store.recent_rounds(1000) if (data := store.snapshot(one.round))]
    costs = [known.restart_seconds for one in snapshots if (known := one.job.get(job.status.uid)) is not None]
    assert len(restarts) == 2
    assert costs[0] == pytest.approx(fmean(restarts))  # the latest round comes first
    assert costs[-1] is None
    assert any(cost == pytest.approx(restarts[0]) for cost in costs)
    argv = [sys.executable, "-m", "metasched", "--config", str(site.config), "replay", "--last", "1000"]
    replayed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert replayed.returncode == 0, replayed.stdout
    assert replayed.stdout.endswith(" 0 rounds with differences\n")
