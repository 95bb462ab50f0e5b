"""Sharded models: the same training at any world size, and checkpoints that all ranks write."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

pytestmark = pytest.mark.shim

SAMPLES, GLOBAL_BATCH, EPOCHS = 103, 12, 2
STEPS_PER_EPOCH = 9
EVERY_SAMPLE_ONCE = {epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)}
SLOW = ("--step-seconds", "0.05")


@pytest.fixture(scope="module")
def workplace(workplace):
    """Make workplaces whose trainers shard their model."""

    def make():
        place = workplace()
        place.script = Path(__file__).parent / "sharded" / "train.py"
        return place

    return make


def newest(place):
    """The checkpoint of the highest step, as its path without an ending."""
    manifest = max(place.manifests(), key=lambda path: [int(number) for number in re.findall("[0-9]+", path.name)])
    return manifest.with_suffix("")


def whole(place):
    """The newest checkpoint's states, read by torch alone; an optimizer's by parameter in the model's order."""
    stem = newest(place)
    states = torch.load(stem.with_suffix(".pt"), weights_only=False)
    shards = stem.with_suffix(".dcp")
    if shards.exists():
        dcp_to_torch_save(shards, place.directory / "whole.pt")
        states |= torch.load(place.directory / "whole.pt", weights_only=False)
        numbers = {name: number for number, name in enumerate(names_of(states["optimizer"]))}
        states["optimizer"]["state"] = {numbers[name]: kept for name, kept in states["optimizer"]["state"].items()}
    return states


def names_of(optimizer):
    return [name for group in optimizer["param_groups"] for name in group["params"]]


def assert_close(found, expected, tolerance):
    for name in ("model", "average"):
        torch.testing.assert_close(dict(found[name]), dict(expected[name]), rtol=0, atol=tolerance)
    loaded, wanted = found["optimizer"]["state"], expected["optimizer"]["state"]
    assert loaded.keys() == wanted.keys()
    for number, values in wanted.items():
        torch.testing.assert_close(loaded[number], values, rtol=0, atol=tolerance)
    assert found["schedule"] == expected["schedule"]


@pytest.fixture(scope="module")
def undisturbed(workplace):
    """The final states of one plain process, which was never stopped."""
    place = workplace()
    assert place.launch(1, "--plain", run=None).wait() == [0]
    return whole(place)


@pytest.fixture(scope="module")
def journey(workplace):
    """A job through worlds of 1, 4, 2 and 3 ranks."""
    place = workplace()
    place.server = None  # real starts: forked processes share the seed of the hashes of strings
    for run, (size, step) in enumerate([(1, 3), (4, 7), (2, 11)], start=1):
        place.write_lease(run=run)
        trainers = place.launch(size, "--halt", step, "--max-per-gpu", 3, run=run)
        with place.halted(run, step):
            trainers.signal(size - 1)
        assert trainers.wait() == [85] * size, trainers.output()
    place.write_lease(run=4)
    last = place.launch(3, "--max-per-gpu", 3, run=4)
    assert last.wait() == [0] * 3, last.output()
    return place


def test_parameters_through_all_sizes(journey, undisturbed):
    """Weights, averaged weights and the optimizer's state are those of the undisturbed run, up to rounding."""
    assert_close(whole(journey), undisturbed, 1e-12)


def test_every_sample_once_through_all_sizes(journey):
    """Every sample is trained exactly once in the surviving history."""
    assert journey.surviving() == EVERY_SAMPLE_ONCE


def test_every_rank_writes_its_part(journey):
    """The last checkpoint has a file of each rank, and the manifest has all of them."""
    stem = newest(journey)
    manifest = json.loads(stem.with_suffix(".json").read_text())
    parts = manifest["shards"]
    assert sorted(parts) == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]
    assert all((stem.with_suffix(".dcp") / name).stat().st_size == found["bytes"] for name, found in parts.items())
    checkpoints = [line for line in journey.report(4) if line["kind"] == "checkpoint"]
    assert checkpoints[-1]["bytes"] == manifest["bytes"] + sum(found["bytes"] for found in parts.values())


def test_the_newest_two_checkpoints_are_retained(journey):
    """Older directories are removed with their checkpoints, and nothing unfinished is left."""
    names = journey.checkpoint_files()
    assert len(names) == 6
    assert {name.rpartition(".")[2] for name in names} == {"pt", "json", "dcp"}


def test_same_size_is_bitwise(workplace):
    """Stopped and resumed at the same size, all states are equal to the last bit."""
    places = [workplace(), workplace()]
    undisturbed = places[0].launch(2, run=None)
    stopped = places[1].launch(2, "--halt", 5)
    with places[1].halted(1, 5):
        stopped.signal(1)
    assert stopped.wait() == [85, 85]
    assert places[1].launch(2).wait() + undisturbed.wait() == [0] * 4
    assert_close(whole(places[1]), whole(places[0]), 0.0)


def test_a_job_resumes_after_a_kill_and_a_damaged_shard(workplace, undisturbed):
    """After kill -9 the job resumes from the last checkpoint all ranks have written; damaged ones are skipped."""
    place = workplace()
    killed = place.launch(2, "--halt", 8, "--checkpoint-every", 0, "--await-saves")
    with place.halted(1, 8):
        place.wait_for(lambda: len(place.manifests()) >= 2, "two checkpoints")
        killed.signal(1, signal.SIGKILL)
    assert killed.processes[0].wait(60) not in {0, 85}
    damaged = newest(place)
    shard = next(damaged.with_suffix(".dcp").glob("__1_*"))
    os.truncate(shard, shard.stat().st_size - 1)
    (damaged.parent / "incarnation-1-step-99.dcp.partial").mkdir()  # of a save that was cut off
    resumed = place.launch(3)
    assert resumed.wait() == [0] * 3, resumed.output()
    assert f"{damaged}.json is skipped: its data has" in resumed.output()
    assert 1 <= place.report(2)[0]["step"] < int(damaged.name.rpartition("-")[2])
    assert place.surviving() == EVERY_SAMPLE_ONCE
    assert_close(whole(place), undisturbed, 1e-12)
    assert not list(damaged.parent.glob("incarnation-1-*.dcp*"))


def test_a_full_disk_on_one_rank_leaves_the_last_checkpoint(workplace):
    """Where one rank cannot write, no checkpoint is made, the last one stays, and training goes on."""
    place = workplace()
    trainers = place.launch(2, *SLOW, "--halt", 14, "--full-disk", 1, "--checkpoint-every", "0.3")
    with place.halted(1, 14):
        trainers.signal(0)
    assert trainers.wait() == [85, 85], trainers.output()
    assert "the last one stays: [Errno 28]" in trainers.output(0)
    assert "no checkpoint" not in trainers.output(1)
    assert not place.report(1)[-1]["checkpointed"]
    assert len(place.checkpoint_files()) == 3
    resumed = place.launch(1)
    assert resumed.wait() == [0]
    assert 1 <= place.report(2)[0]["step"] < 14


def test_a_sharded_checkpoint_of_another_model_is_refused(workplace):
    """A sharded checkpoint of another shape, or for a script that does not shard, is refused on all ranks."""
    place = workplace()
    assert place.launch(2, "--epochs", 1).wait() == [0, 0]
    for arguments, words in [
        (["--width", 8], "'model' does not fit this script's: 0.weight has the shape (16, 6) there, and the shape (8,"),
        (["--plain"], "shard the same models"),
    ]:
        trainers = place.launch(2, *arguments)
        assert trainers.wait() == [1, 1]
        for rank in (0, 1):
            assert re.search(r"CheckpointError: .*/incarnation-1-step-9", trainers.output(rank))
            assert words in trainers.output(rank)


ALONE = """
import os, torch, trainer_shim
from trainer_shim import SupersededError, UsageError
ctx = trainer_shim.init("checkpoints")
net = ctx.shard(torch.nn.Linear(4, 4))
optimizer = torch.optim.Adam(net.parameters())
def refused(words, **objects):
    try:
        ctx.track(**objects)
    except UsageError as error:
        assert words in str(error), error
    else:
        raise SystemExit(f"not refused: {words}")
refused("track the one module that has all of them", optimizer=optimizer)
refused("track the one module that has all of them", net=torch.nn.Linear(4, 4), optimizer=optimizer)
older = torch.distributed.fsdp.FullyShardedDataParallel.__new__(torch.distributed.fsdp.FullyShardedDataParallel)
torch.nn.Module.__init__(older)  # as much of one as a CPU can have
refused("use fully_shard", net=older)
try:
    torch.optim.swa_utils.AveragedModel(net)
except AssertionError as error:
    assert "does not support deepcopy" in str(error)
ctx.track(net=net, optimizer=optimizer)
before = os.listdir("checkpoints")
for last in range(4):
    checks = iter(range(last + 1))
    def check():
        if next(checks) == last:
            raise SupersededError("newer")
    try:
        ctx._checkpointing.checkpoints.save(ctx._checkpointing.states(), 1, ctx._position.progress, {}, check)
    except SupersededError:
        found = set(os.listdir("checkpoints")) - set(before)
        assert found <= {"incarnation-1-step-0.pt"}, found
    else:
        raise SystemExit("saved")
ctx._checkpointing.checkpoints.save(ctx._checkpointing.states(), 1, ctx._position.progress, {}, lambda: None)
assert ctx._checkpointing.checkpoints.latest().sharded == ["net", "optimizer"]
def stale(_):
    raise OSError(116, "Stale file handle")
ctx._checkpointing.checkpoints._remove_old = stale
try:
    ctx._checkpointing.checkpoints.save(ctx._checkpointing.states(), 1, ctx._position.progress, {}, lambda: None)
except OSError:
    assert ctx._checkpointing.checkpoints.latest().data.stem == "incarnation-1-step-0-2"
else:
    raise SystemExit("not noticed")
print("reached")
"""


def test_states_that_cannot_be_saved_sharded_are_refused(run_code):
    """What cannot be saved sharded is refused with the way to do it; a superseded save publishes nothing."""
    codes, (output,) = run_code(ALONE)
    assert codes == [0], output
    assert "reached" in output


EXPORT = """
import torch, trainer_shim
ctx = trainer_shim.init("checkpoints")

def make(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))

whole = make(0)
if ctx.rank == 0:
    torch.save(whole.state_dict(), "expected.pt")
net = make(0)
ctx.shard(net[0])
ctx.shard(net)
other = make(1)
if ctx.rank == 0:
    torch.save(other.state_dict(), "other.pt")
ctx.track(net=net, other=other)
ctx.export("export")
if ctx.size == 2:
    sharded = net.state_dict()["0.weight"]
    assert isinstance(sharded, torch.distributed.tensor.DTensor)
    assert sharded.to_local().numel() < sharded.numel()
print("exported")
"""


def test_an_export_of_a_sharded_model_is_whole(run_code, tmp_path):
    """Two ranks export FSDP2 shards; dcp/, NAME.pt and NAME.safetensors have the whole states, bit for bit."""
    load_file = pytest.importorskip("safetensors.torch").load_file
    codes, outputs = run_code(EXPORT, size=2)
    assert codes == [0, 0], outputs
    export = tmp_path / "export"
    dcp_to_torch_save(export / "dcp", tmp_path / "whole.pt")
    of_dcp = torch.load(tmp_path / "whole.pt", weights_only=True)
    for name, file in (("net", "expected.pt"), ("other", "other.pt")):
        expected = torch.load(tmp_path / file, weights_only=True)
        plain = torch.load(export / f"{name}.pt", weights_only=True)
        for found in (of_dcp[name], plain, load_file(export / f"{name}.safetensors")):
            torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=0)
    assert json.loads((export / "export.json").read_text())["modules"] == ["net", "other"]
