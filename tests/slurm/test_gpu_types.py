"""Nodes with GPUs of two types: what the daemon learns of jobs' speeds there, and where policies put them."""

import sys
from pathlib import Path

import pytest

from metasched.devcluster import NodeGroup
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site

PACED = Path(__file__).parent / "paced.py"
FAST, SLOW = "v100=40 k80=4", "v100=8 k80=4"  # steps/s: the first gains ten times from a V100, the second twice


@pytest.fixture
def mixed(make_cluster):
    """One node with one V100, and one with one K80."""
    groups = (NodeGroup(1, 1, "v100"), NodeGroup(1, 1, "k80"))
    made = Site(make_cluster(groups=groups, job_submit=JOB_SUBMIT))
    yield made
    made.close()


def paced(site, rates, *options, tag=""):
    command = f"exec metasched-run {sys.executable} {PACED} {{dir}} {rates}"
    return site.submit(command, "--gres=gpu:1", *options, tag=f"metasched {tag}")


def train(site, kind, seconds):
    """Submit real training by the real shim, whose steps take so long."""
    options = f"--epochs 1000 --checkpoint-every 600 --step-seconds {seconds}"
    return site.train(options, "--gres=gpu:1", tag=f"metasched model=net gpu_types={kind}")


def known(site):
    """Steps/s by model and type, as the daemon has learnt them."""
    with site.store() as store:
        return {
            (record.subject.partition("/")[2], record.gpu_type): record.steps_per_second for record in store.speeds()
        }


def test_jobs_go_where_they_are_relatively_fastest(mixed):
    """Both are fastest on the V100; what counts is who gains more by it. The speeds come from the trainers' reports."""
    mixed.configure(policy="gavel_throughput")
    mixed.start()
    mixed.wait(mixed.status)
    for model, rates in (("fast", FAST), ("slow", SLOW)):
        pinned = [paced(mixed, rates, tag=f"model={model} gpu_types={kind}") for kind in ("v100", "k80")]
        mixed.wait(lambda model=model: {(model, "v100"), (model, "k80")} <= known(mixed).keys())
        mixed.cluster.run("scancel", *pinned)
    speeds = known(mixed)
    assert speeds["fast", "v100"] / speeds["fast", "k80"] == pytest.approx(10, rel=0.5)
    assert speeds["slow", "v100"] / speeds["slow", "k80"] == pytest.approx(2, rel=0.5)
    # In this order a policy that does not know speeds would put each on the other's side.
    slow, fast = paced(mixed, SLOW, tag="model=slow"), paced(mixed, FAST, tag="model=fast")

    def settled():
        one, other = mixed.job(slow), mixed.job(fast)
        return one and other and (one.gpu_type, other.gpu_type) == ("k80", "v100")

    mixed.wait(settled)


def test_the_real_shims_reports_teach_the_daemon(mixed):
    """Steps that take four times as long on the K80 make it know a speed that is several times lower there."""
    mixed.start()
    for kind, seconds in (("v100", 0.1), ("k80", 0.4)):
        train(mixed, kind, seconds)
    mixed.wait(mixed.status)
    mixed.wait(lambda: {("net", "v100"), ("net", "k80")} <= known(mixed).keys())
    speeds = known(mixed)
    assert speeds["net", "k80"] < 3
    assert speeds["net", "v100"] > 1.5 * speeds["net", "k80"]
