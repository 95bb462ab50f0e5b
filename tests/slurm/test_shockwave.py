"""Shockwave on a real cluster: a batch that grows is forecast, planned for, and answered within seconds."""

import json
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from metasched.core.batching import AdaptationRule
from metasched.devcluster import NodeGroup
from metasched.replay.snapshot_codec import decode
from policies.shockwave.predictor import Adaptation, predict
from tests.slurm import growing, paced
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import ROOT, Site

ROUND_SECONDS = 16.0
RIGID = "metasched total_steps=4000 model=paced"  # a job that has not run is as fast as the others
POLL_SECONDS = 2.0
"""The most by which a round's poll begins before a report that it reads, on a busy host."""
SECONDS = 6.0
"""How soon after a report of another batch a busy host has a round: a poll, and the least time between rounds."""


@pytest.fixture
def site(make_cluster):
    """A Site on two nodes of one GPU each, under Shockwave."""
    made = Site(make_cluster(groups=(NodeGroup(2, 1, "v100"),), job_submit=JOB_SUBMIT))
    made.configure(policy="shockwave", parameters="restart_seconds = 1.0")
    made.config.write_text(made.config.read_text().replace("round_seconds = 3\n", f"round_seconds = {ROUND_SECONDS}\n"))
    yield made
    made.close()


def explained(site, slurm_job_id):
    argv = [sys.executable, "-m", "metasched", "--config", str(site.config), "explain", slurm_job_id]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


def planned_for_later(site, slurm_job_ids):
    """A job that waits, and of which `explain` says when it is to run; None where there is none now."""
    waiting = (job for job in map(site.job, slurm_job_ids) if job is not None and job.planned and not job.nodes)
    return next((job for job in waiting if "It is planned " in explained(site, job.slurm_job_id)), None)


def test_a_growing_batch_is_forecast_and_the_plan_survives(site):
    """The job ends within its fair time; a killed daemon and a drained node leave a plan, and replays are equal."""
    site.start()
    site.wait(site.status)
    script = f"exec metasched-run {sys.executable} {growing.__file__} {{dir}}"
    grown = site.submit(script, "--gres=gpu:1", tag="metasched batch=own")
    directory = site.base / f"job-{site.number}"
    command = f"exec metasched-run {sys.executable} {paced.__file__} {{dir}} v100=20"
    rigid = [site.submit(command, "--gres=gpu:1", tag=RIGID) for _ in range(2)]

    # Each change of the batch brings a round; the declared schedule is the forecast.
    ended = site.wait_status(grown, "completed")
    assert ended.waited_seconds <= ended.ran_seconds  # three jobs share two GPUs, and restarts take time
    with site.store() as store:
        rounds = sorted(record.at for record in store.recent_rounds(1000))
        snapshots = [decode(store.snapshot(record.round)) for record in store.recent_rounds(1000)]
    lines = [json.loads(line) for path in sorted(directory.glob("steps-*")) for line in path.read_text().splitlines()]
    changed = [later["at"] for former, later in pairwise(lines) if later["batch"] > former["batch"]]
    assert len(changed) == 2
    for at in changed:
        assert any(at - POLL_SECONDS <= begun <= at + SECONDS for begun in rounds)
    assert min(later - former for former, later in pairwise(rounds)) < ROUND_SECONDS - 1
    known = next(job for one in snapshots if (job := one.job.get(ended.uid)) is not None and job.batching is not None)
    found = known.batching
    assert (found.adapts, found.most_regimes) == (AdaptationRule.SCHEDULE, 3)
    declared = Adaptation(found.adapts, known.total_steps, found.first_batch, found.max_batch, 3, found.schedule)
    assert [(each.batch, each.steps) for each in predict(declared, (), 0.0)] == [(8, 64), (16, 64), (32, 64)]

    # A node is drained: a job that waits is planned for later. The daemon dies while it plans the next window.
    rigid.append(site.submit(command, "--gres=gpu:1", tag=RIGID))
    site.cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    waiting = site.wait(lambda: planned_for_later(site, rigid))
    site.wait(lambda: ROUND_SECONDS / 8 < site.status().next_round - time.time() < ROUND_SECONDS / 4)
    with site.store() as store:
        plan = store.policy_state("shockwave").data
    site.kill()
    site.start()
    site.wait(lambda: site.status().pid == site.daemon.pid and site.status().round > len(rounds))
    with site.store() as store:
        assert store.policy_state("shockwave").data["solved_at"] == plan["solved_at"]
    site.cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    site.wait_status(waiting.slurm_job_id, "running")

    with site.store() as store:
        assert not [event for event in store.recent_events(1000) if event.kind in ("policy_failed", "policy_degraded")]
    argv = [sys.executable, "-m", "metasched", "--config", str(site.config), "replay", "--last", "1000"]
    replayed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert replayed.returncode == 0, replayed.stdout
    assert replayed.stdout.endswith(" 0 rounds with differences\n")
