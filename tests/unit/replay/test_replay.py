import json
import math
import zlib
from dataclasses import replace
from types import MappingProxyType

import pytest
from click.testing import CliRunner
from hypothesis import given

from metasched.cli import main
from metasched.core.apps import App, Bracket, LossPoint, Phase, TrialOrder, TunerSettings
from metasched.core.batching import BatchControl, Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.core.model import Decision, Grant, Job, Node, Placement, Quota, Snapshot, Status
from metasched.core.policy import Policy, PolicyParameters, PolicyState, Registry, installed_policies
from metasched.core.reasons import Code, Reason
from metasched.replay.replay import NoSnapshotError, OtherParametersError, replay
from metasched.replay.snapshot_codec import CodecError, SnapshotEncoder, decode, encode
from metasched.store import JobRecord, Store
from metasched.throughput.measured_speed import MeasuredSpeed
from policies.baselines.las import Las
from tests.builders import job
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite
from tests.unit.strategies import snapshots


@given(snapshots(blocked=True))
def test_a_snapshot_survives_the_codec(snapshot):
    """The decoded snapshot is equal to the encoded one."""
    assert decode(encode(snapshot)) == snapshot


@given(snapshots(), snapshots())
def test_an_encoder_reuses_the_text_of_unchanged_jobs(first, second):
    """A snapshot with jobs of the one before is encoded as by a new encoder, jobs with a shared speed included."""
    speed = MeasuredSpeed("ann/gpt", {("v100", (2,)): 5.0})
    jobs = tuple(one.evolve(speed=speed, batch_speeds={32: speed}) for one in second.jobs)
    encoder = SnapshotEncoder()
    for snapshot in (first, replace(first, jobs=(*first.jobs[1:], *jobs)), replace(second, jobs=jobs), first):
        assert zlib.decompress(encoder.encode(snapshot)) == zlib.decompress(encode(snapshot))


def test_measured_speeds_survive_the_codec():
    """Jobs with one speed share one object again, because policies put such jobs into one class."""
    where = ("v100", (1,))
    speed = MeasuredSpeed("ann/gpt", untried=0.6).after(where, None, 4.0).after(where, "bob/bert", 3.0)
    jobs = tuple(job(f"{i}", speed=speed) for i in range(2))
    one, other = decode(encode(Snapshot(0.0, 1, 60.0, (), jobs))).jobs
    assert one.speed is other.speed
    assert (one.speed.subject, one.speed.alone, one.speed.untried) == ("ann/gpt", {where: 4.0}, 0.6)
    assert one.speed.colocated == {(where, "bob/bert"): 3.0}


def test_batch_sizes_and_noise_survive_the_codec():
    """A round that decided batch plans is decided again from the same batch sizes and noise."""
    batching = Batching(64, BatchControl.SCHEDULER, BatchPlan(32, 2), 128, 512, 8, 64, (BatchRegime(64, 0.0),))
    one = job("1", batching=batching, noise=GradientNoise(1e-9, 3.5), requested_batch=BatchPlan(16), most_gpus=4)
    one = one.evolve(iteration_parameters={"v100": (0.1, 0.01, 0.0, 0.0, 0.2, 0.05, 1.5)})
    snapshot = Snapshot(0.0, 1, 60.0, (), (one,))
    assert decode(encode(snapshot)) == snapshot


def test_apps_and_losses_survive_the_codec():
    """A round is decided again from the same losses, tuners and orders; a diverged loss stays infinite."""
    tuner = TunerSettings("halving", {"eta": 3.0})
    losses = (LossPoint(1.0, 2.5), LossPoint(2.0, math.inf))
    app = App(
        *("array:5", "sweep", "ann", ("5_1", "5_2"), 1.0, 2.0, 3.0, tuner),
        brackets=(Bracket(("5_1", "5_2"), (Phase(2, 10.0, 4), Phase(1, 20.0, 8)), 1),),
        problem=Reason.of(Code.ORDER_FOR_STRANGER, job="7", more=0),
    )
    snapshot = Snapshot(
        *(0.0, 1, 60.0, (), (job("5_1", app="array:5", tuner=tuner, losses=losses),)),
        completed_trials=frozenset({"5_2"}),
        trial_orders=(TrialOrder("array:5", "5_1", 2, end=True, words="pruned"),),
        apps=(app,),
    )
    assert decode(encode(snapshot)) == snapshot


def test_values_beyond_json_survive_the_codec():
    """A job may have an infinite time limit, and a policy may keep a random generator's state of 128 bits."""
    endless = Job(
        uid="1",
        slurm_job_id="1",
        name="j",
        user="ann",
        submitted=0.0,
        gpus=1,
        min_gpus=1,
        max_gpus=1,
        open_seconds=math.inf,
        attained=MappingProxyType({"v100": 2.5}),
    )
    snapshot = Snapshot(0.0, 1, 60.0, (), (endless,), precomputed={"state": 2**127})
    assert decode(encode(snapshot)) == snapshot


def test_a_snapshot_of_format_1_is_read():
    """Format 1 has earlier names of fields."""
    job = {
        "uid": "1",
        "address": "7",
        "name": "j",
        "user": "ann",
        "submitted": 0.0,
        "share": 0.25,
        "status": "running",
        "gpus": 1,
        "min_gpus": 1,
        "max_gpus": 1,
        "shares_with": "2",
        "part": True,
        "learns": True,
        "trials": True,
        "placement": {"nodes": ["n1"], "gpus_per_node": 1, "gpu_type": "v100"},
        "open_seconds": math.inf,
    }
    node = {"name": "n1", "gpu_type": "v100", "gpus": 4, "cpus": 8, "memory": 1, "features": ["ib"]}
    limit = {"name": "lab", "members": ["1"], "left": 2}
    facts = {"now": 5.0, "round": 3, "round_seconds": 60.0, "nodes": [node], "jobs": [job], "limits": [limit]}
    content = {"format": 1, "snapshot": {**facts, "worked": {"state": 1}}}
    assert decode(zlib.compress(json.dumps(content).encode())) == Snapshot(
        now=5.0,
        round=3,
        round_seconds=60.0,
        nodes=(Node("n1", "v100", 4, 8, 1, frozenset({"ib"})),),
        jobs=(
            Job(
                uid="1",
                slurm_job_id="7",
                name="j",
                user="ann",
                submitted=0.0,
                fair_share=0.25,
                status=Status.RUNNING,
                gpus=1,
                min_gpus=1,
                max_gpus=1,
                co_runner="2",
                half_gpus=True,
                learns_speed=True,
                profiled=True,
                placement=Placement(("n1",), 1, "v100"),
                open_seconds=math.inf,
            ),
        ),
        precomputed={"state": 1},
        quotas=(Quota("lab", frozenset({"1"}), 2),),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        zlib.compress(b"[]"),
        zlib.compress(b'{"format": 2}'),
        zlib.compress(b'{"format": 1, "snapshot": 3}'),
        zlib.compress(
            b'{"format": 2, "snapshot": '
            b'{"now": 1, "round": 1, "round_seconds": 1, "nodes": [], "jobs": [{"gpus": "one"}]}}'
        ),
    ],
)
def test_damaged_or_newer_bytes_are_refused(data):
    """Neither damaged bytes nor those of a newer version become a snapshot."""
    with pytest.raises(CodecError):
        decode(data)


@pytest.fixture
def site(tmp_path):
    """A daemon under LAS that has preempted one job for another, and resized a third."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="las")
    site.parameters = {"queue_thresholds_gpu_seconds": (100.0,), "promote_knob": 1000.0}
    site.start()
    site.add("--gres=gpu:4", seconds=60)
    site.run(40)
    site.add("--gres=gpu:4", seconds=20)
    site.add("--gres=gpu:2", tag="min_gpus=1 max_gpus=4", seconds=40)
    site.run(200)
    yield site
    site.close()


def test_replayed_rounds_are_decided_as_recorded(site):
    """From the stored snapshots, the same engine and policy make the daemon's decisions again."""
    found = list(replay(site.store, installed_policies(), 1000))
    assert len(found) > 10
    assert sum(one.jobs for one in found) > 20
    assert [one.differences for one in found if one.differences] == []


def test_recorded_parameters_that_the_policy_now_refuses_are_named(site, monkeypatch):
    """The parameters are those of an older release; the error names the round and the key."""
    monkeypatch.setattr(Las, "Parameters", PolicyParameters)
    with pytest.raises(OtherParametersError, match=r"round \d+ .*'las' refuses now: .*promote_knob"):
        list(replay(site.store, installed_policies(), 1000))


def test_another_policy_gives_differences_with_its_reasons(site):
    """Under FIFO, the preemption that LAS decided is a difference, with FIFO's reason."""
    differences = [d for one in replay(site.store, installed_policies(), 1000, _fifo()) for d in one.differences]
    assert {d.uid for d in differences} == {job.uid for job in site.records()}
    assert all(d.reason for d in differences)


class Granting(Policy):
    """Grants every job its GPUs and one batch plan."""

    name = "granting"

    def decide(self, snapshot, state):
        why = Reason.text("for the test")
        return Decision(tuple(Grant(one.uid, one.gpus, why, batch=BatchPlan(32)) for one in snapshot.jobs)), state


@pytest.mark.parametrize("recorded", [BatchPlan(32), BatchPlan(16, 2), None])
def test_another_batch_is_a_difference(tmp_path, recorded):
    """On the same GPUs, too."""
    one = job("1", 2, batching=Batching(64, BatchControl.SCHEDULER, max_batch=512, max_per_gpu=64))
    snapshot = Snapshot(0.0, 1, 60.0, (Node("n1", "v100", 2, 8, 1),), (one,))
    registry, place = Registry(), Placement(("n1",), 2, "v100")
    registry.register(Granting)
    with Store.open(tmp_path / "store.sqlite") as store:
        store.add_job(JobRecord(uid="1", slurm_job_id="1", name="j", user="ann", submitted=0.0))
        store.commit_round(
            1,
            at=0.0,
            policy="granting",
            parameters={},
            state=PolicyState(),
            targets={"1": place},
            reasons={"1": Reason.text("for the test")},
            decide_seconds=0.0,
            batches={} if recorded is None else {"1": recorded},
        )
        store.keep_snapshot(1, encode(snapshot), 10**6)
        (found,) = replay(store, registry, 1)
    expected = [] if recorded == BatchPlan(32) else [(place, place, recorded, BatchPlan(32))]
    assert [(d.stored, d.replayed, d.stored_batch, d.replayed_batch) for d in found.differences] == expected


def test_snapshots_are_kept_within_their_limit(tmp_path):
    """The newest snapshots stay within their limit of bytes; without any, a replay says so."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)))
    limit = replace_limit(site, 1500)
    site.add("--gres=gpu:1", seconds=1000)
    site.run(100)
    sizes = [len(data) for one in site.store.recent_rounds(100) if (data := site.store.snapshot(one.round))]
    assert 1 <= len(sizes) < len(site.store.recent_rounds(100))
    assert sum(sizes) <= limit
    replace_limit(site, 0)
    site.run(20)
    with pytest.raises(NoSnapshotError, match="snapshots_bytes"):
        list(replay(site.store, installed_policies(), 100))
    site.close()


def test_the_command_lists_differences_by_round_and_job(site, tmp_path):
    """The exit code is 3 only where the recorded policy decides otherwise."""
    call = lambda *argv: CliRunner().invoke(main, ["replay", "--state", str(tmp_path / "state"), *argv])  # noqa: E731
    same, other = call("--last", "1000"), call("--policy", "fifo")
    assert (same.exit_code, other.exit_code) == (0, 0)
    assert same.output.endswith(" 0 rounds with differences\n")
    assert "n1:4 -> waits: " in other.output
    assert {"round", "at", "policy", "jobs", "differences"} == set(json.loads(call("--json").output)["rows"][0])


def _fifo():
    return installed_policies().get("fifo")()


def replace_limit(site, limit):
    history = site.config.history.model_copy(update={"snapshots_bytes": limit})
    site.config = site.config.model_copy(update={"history": history})
    site.start()
    return limit
