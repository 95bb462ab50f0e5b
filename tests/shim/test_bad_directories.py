"""Checkpoint directories that cannot be used: an error before the first step, on every rank, that says what to do."""

import json

import pytest

pytestmark = pytest.mark.shim

SCRIPT = """
import sys, torch, trainer_shim
ctx = trainer_shim.init("checkpoints")
if ctx.rank == 1 and "blind" in sys.argv:
    def blind(_):
        raise FileNotFoundError(2, "No such file or directory")
    ctx._checkpointing.checkpoints.load = blind
net = torch.nn.Linear(3 if "wider" in sys.argv else 2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
if "split" in sys.argv:
    optimizer = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias]}], 0.1)
loader = ctx.loader(torch.utils.data.TensorDataset(torch.randn(12, 2)), global_batch=4, check_samples=False)
ctx.track(net=net, **{"other" if "renamed" in sys.argv else "optimizer": optimizer})
print("tracked at", ctx.step_count)
for epoch in ctx.epochs(1):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
"""
JOB, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def run(run_code):
    """Run the script on a number of ranks, for a job with this uid; returns exit codes and outputs, by rank."""

    def run_script(*arguments, size=2, uid=None):
        return run_code(SCRIPT, *arguments, size=size, **({"METASCHED_UID": uid} if uid else {}))

    return run_script


def refused(outcome, *words):
    """Every rank has failed with a CheckpointError that has these words, and none has trained."""
    codes, outputs = outcome
    assert set(codes) == {1}, outputs
    for output in outputs:
        assert "CheckpointError: checkpoints" in output
        for word in words:
            assert word in output
        assert "finished" not in output


@pytest.mark.parametrize(("kind", "uid"), [("file", None), ("below a file", JOB), ("read-only", None)])
def test_an_unwritable_directory_is_refused(run, tmp_path, kind, uid):
    """Where no checkpoint could be written, the training does not begin."""
    directory = tmp_path / "checkpoints"
    if kind == "file":
        directory.write_text("")
    elif kind == "below a file":
        (tmp_path / "file").write_text("")
        directory.symlink_to(tmp_path / "file" / "deeper")
    else:
        directory.symlink_to("/proc/sys/kernel")  # where not even root makes files
    refused(run(size=1, uid=uid), "the checkpoint directory cannot be written", "give one that this job can write")


def test_a_directory_of_another_job_is_refused(run, tmp_path):
    """Another job is refused, before it takes the place of the first; removing one file hands the directory over."""
    assert run(size=1, uid=JOB)[0] == [0]
    refused(run(uid=OTHER), f"belongs to job {JOB}", f"and this is job {OTHER}", "remove checkpoints/job")
    assert len(list((tmp_path / "checkpoints" / "incarnations").iterdir())) == 1
    for uid in (JOB, None):
        codes, outputs = run(size=1, uid=uid)
        assert codes == [0]
        assert "resumed from step 3" in outputs[0]
    (tmp_path / "checkpoints" / "job").unlink()
    codes, outputs = run(size=1, uid=OTHER)
    assert codes == [0]
    assert "resumed from step 3" in outputs[0]
    assert (tmp_path / "checkpoints" / "job").read_text() == f"{OTHER}\n"


def test_checkpoints_of_another_version_are_refused(run, tmp_path):
    """Checkpoints of a newer version are refused, and left as they are."""
    assert run(size=1)[0] == [0]
    for manifest in (tmp_path / "checkpoints").glob("*.json"):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    refused(run(size=1), "was written by another version of trainer_shim, in format 99", "use that version, or another")
    assert not list((tmp_path / "checkpoints").glob("*.damaged"))


def test_a_checkpoint_of_another_script_is_refused(run):
    """Other names, another shape of a model, other parameter groups: each is an error that names the checkpoint."""
    assert run(size=1)[0] == [0]
    refused(
        run("renamed"), "incarnation-1-step-3", "holds ['net', 'optimizer'], and ctx.track() was given ['net', 'other']"
    )
    refused(run("wider", size=1), "incarnation-1-step-3", "the state of 'net' does not fit", "size mismatch for weight")
    refused(run("split", size=1), "the state of 'optimizer' does not fit", "different number of parameter groups")


def test_a_rank_that_cannot_read_fails_all_ranks(run):
    """Where one rank does not see the checkpoint, all of them fail before the first step."""
    assert run(size=1)[0] == [0]
    codes, outputs = run("blind")
    assert codes == [1, 1]
    assert "all nodes of the job share" in outputs[1]
    assert "CheckpointError" in outputs[0]
    assert "another rank could not load the checkpoint" in outputs[0]
    assert not any("tracked at" in output for output in outputs)
