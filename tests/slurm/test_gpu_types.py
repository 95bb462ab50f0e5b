"""Nodes with GPUs of two types: what the daemon learns of jobs' speeds there, and where policies put them."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from metasched.devcluster import NodeGroup
from metasched.slurm.client import JobState
from metasched.slurm.command_line_client import CommandLineClient
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site

PACED = Path(__file__).parent / "paced.py"
FAST, SLOW = "v100=40 k80=4", "v100=8 k80=4"  # steps/s: the first gains ten times from a V100, the second twice


@pytest.fixture
def mixed(make_cluster):
    """A Site on one node with one V100, and one with one K80."""
    groups = (NodeGroup(1, 1, "v100"), NodeGroup(1, 1, "k80"))
    made = Site(make_cluster(groups=groups, job_submit=JOB_SUBMIT))
    yield made
    made.close()


def paced(site, rates, *options, tag=""):
    command = f"exec metasched-run {sys.executable} {PACED} {{dir}} {rates}"
    return site.submit(command, "--gres=gpu:1", *options, tag=f"metasched {tag}")


def train(site, kind, seconds):
    """Submit real training by the real shim, with a duration of its steps by GPU type."""
    options = f"--epochs 1000 --checkpoint-every 600 --step-seconds {seconds}"
    return site.train(options, "--gres=gpu:1", tag=f"metasched model=net gpu_types={kind}")


def known(site):
    """Return the learned speeds, steps/s by model and GPU type."""
    with site.store() as store:
        return {
            (record.subject.partition("/")[2], record.gpu_type): record.steps_per_second for record in store.speeds()
        }


def test_jobs_get_the_gpu_type_of_their_largest_speedup(mixed):
    """Both jobs are fastest on the V100; the one with the larger speedup, by the trainers' reports, gets it."""
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


def test_the_daemon_learns_speeds_from_the_shims_reports(mixed):
    """Steps take four times as long on the K80, and the learned speed is several times lower there."""
    mixed.start()
    for kind, seconds in (("v100", 0.1), ("k80", 0.4)):
        train(mixed, kind, seconds)
    mixed.wait(mixed.status)

    def taught():
        speeds = known(mixed)
        slow, fast = speeds.get(("net", "k80")), speeds.get(("net", "v100"))
        return slow and fast and slow < 3 and fast > 1.5 * slow

    mixed.wait(taught)


def add_second_type(cluster):
    """Change one of n1's two V100s into a K80."""
    gres, conf, device = cluster.layout.etc / "gres.conf", cluster.conf, cluster.layout.dev / "nvidia"
    line = "NodeName=n1 Name=gpu Type={} File={} Flags=nvidia_gpu_env\n".format
    both = line("v100", f"{device}0") + line("k80", f"{device}1")
    gres.write_text(gres.read_text().replace(line("v100", f"{device}[0-1]"), both))
    conf.write_text(conf.read_text().replace("Gres=gpu:v100:2", "Gres=gpu:v100:1,gpu:k80:1"))
    cluster.kill_node("n1")
    cluster.kill_controller()
    cluster.start_controller()
    cluster.start_node("n1")
    cluster.wait_nodes()


def test_jobs_with_gpus_of_several_types_are_counted(make_cluster):
    """All GPUs of an untagged one are counted; a tagged one is not started, and its error says what to change."""
    cluster = make_cluster(groups=(NodeGroup(1, 2, "v100"), NodeGroup(1, 1, "k80")), job_submit=JOB_SUBMIT)
    add_second_type(cluster)
    with closing(Site(cluster)) as site, closing(CommandLineClient(cluster.env)) as client:
        several = "--gres=gpu:v100:1,gpu:k80:1"
        other = site.submit("exec sleep 600", several, tag="")
        site.wait(lambda: [job.state for job in client.jobs()] == [JobState.RUNNING])
        ours = site.submit("exec sleep 600", several)
        site.start()
        assert "several types ('k80', 'v100')" in site.wait_status(ours, "held").reason
        assert {job.slurm_job_id: job.allocated for job in client.jobs()} == {other: {"n1": 2}, ours: {}}
