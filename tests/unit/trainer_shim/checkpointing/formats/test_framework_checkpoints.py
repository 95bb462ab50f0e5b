"""Which checkpoints of a framework count, and which are kept."""

import json
import logging

import pytest

from trainer_shim.checkpointing.formats.framework_checkpoints import FrameworkCheckpoints
from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoints
from trainer_shim.errors import CheckpointError, SupersededError


def nothing():
    """A fence that nobody has passed."""


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    return FrameworkCheckpoints(tmp_path)


def make(checkpoints, generation, step, *, whole=True):
    """A checkpoint of two files in a directory."""
    path = checkpoints.generation_directory(generation) / f"checkpoint-{step}"
    (path / "deep").mkdir(parents=True)
    (path / "model").write_bytes(b"m" * 100)
    (path / "deep" / "state").write_bytes(b"s" * 10)
    if whole:
        assert checkpoints.publish(path, generation, step, {"global_batch": 8}, nothing) == 110
    return path


def test_the_newest_whole_one(checkpoints):
    """The highest generation comes before the highest step, and what is not entered does not exist."""
    assert checkpoints.latest() is None
    make(checkpoints, 1, 9)
    path = make(checkpoints, 2, 5)
    make(checkpoints, 2, 6, whole=False)
    found = checkpoints.latest()
    assert (found.path, found.generation, found.step, found.metadata) == (path, 2, 5, {"global_batch": 8})
    assert checkpoints.newest_generation() == 2


def test_a_checkpoint_may_be_one_file(checkpoints):
    """A single file is a checkpoint as well."""
    checkpoints.generation_directory(1).mkdir()
    path = checkpoints.generation_directory(1) / "step-3.ckpt"
    path.write_bytes(b"all")
    assert checkpoints.publish(path, 1, 3, {}, nothing) == 3
    assert checkpoints.latest().path == path
    path.write_bytes(b"al")
    with pytest.raises(CheckpointError):
        checkpoints.latest()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: (path / "model").unlink(), "No such file or directory"),
        (lambda path: (path / "model").write_bytes(b"m" * 99), "model has 99 bytes instead of 100"),
        (lambda path: (path / "deep" / "state").write_bytes(b"t" * 10), "deep/state has another checksum"),
        (lambda path: path.with_name("step-7.json").write_text("{"), "its manifest cannot be read"),
    ],
)
def test_a_damaged_one_is_skipped(checkpoints, caplog, harm, message):
    """A checkpoint with a missing, short or changed file is skipped with a warning; the older one is not removed."""
    older = make(checkpoints, 1, 5)
    harm(make(checkpoints, 1, 7))
    with caplog.at_level(logging.WARNING, "trainer_shim"):
        assert checkpoints.latest().path == older
    assert message in caplog.text
    make(checkpoints, 2, 6)
    checkpoints.remove_old(2)
    assert older.exists()


def test_all_checkpoints_are_damaged(checkpoints):
    """A directory with damaged checkpoints only is an error: the training does not start again at step 0."""
    (make(checkpoints, 1, 5) / "model").unlink()
    with pytest.raises(CheckpointError, match="none of its 1 checkpoints is whole"):
        checkpoints.latest()


def test_a_newer_version(checkpoints):
    """A checkpoint of another version is an error and no damage."""
    manifest = make(checkpoints, 1, 5).with_name("step-5.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2"):
        checkpoints.latest()


def test_an_empty_one_is_refused(checkpoints):
    """A checkpoint that the framework has not written is not published."""
    checkpoints.generation_directory(1).mkdir()
    with pytest.raises(FileNotFoundError):
        checkpoints.publish(checkpoints.generation_directory(1) / "checkpoint-1", 1, 1, {}, nothing)


def test_a_successor_in_the_last_moment(checkpoints):
    """A checkpoint whose trainer has a successor by the time that it is written does not count."""

    def fence():
        raise SupersededError("there is a newer one")

    path = make(checkpoints, 1, 5, whole=False)
    with pytest.raises(SupersededError):
        checkpoints.publish(path, 1, 5, {}, fence)
    assert checkpoints.latest() is None
    assert sorted(item.name for item in checkpoints.generation_directory(1).iterdir()) == ["checkpoint-5"]


def test_what_is_kept(checkpoints):
    """The newest two are kept and what is spared; older ones go, with what earlier generations left unfinished."""
    make(checkpoints, 1, 1, whole=False)
    protected = make(checkpoints, 2, 2)
    for step in (3, 4):
        make(checkpoints, 2, step)
    make(checkpoints, 3, 4, whole=False)
    make(checkpoints, 4, 5)
    unfinished = make(checkpoints, 4, 6, whole=False)
    newer = make(checkpoints, 5, 1, whole=False)
    checkpoints.remove_old(4, [protected])
    assert sorted(
        path.relative_to(checkpoints.root).as_posix() for path in checkpoints.root.glob("*/checkpoint-*")
    ) == [
        "incarnation-2/checkpoint-2",
        "incarnation-2/checkpoint-4",
        "incarnation-4/checkpoint-5",
        "incarnation-4/checkpoint-6",
        "incarnation-5/checkpoint-1",
    ]
    assert unfinished.exists()
    assert newer.exists()
    assert not checkpoints.generation_directory(1).exists()
    assert not checkpoints.generation_directory(3).exists()


def test_a_frameworks_checkpoints_are_not_begun_over(tmp_path):
    """The shim's own store refuses a directory that holds a framework's checkpoints."""
    (tmp_path / "incarnation-1").mkdir()
    (tmp_path / "incarnation-1" / "step-5.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"trainer_shim\.attach"):
        ScriptCheckpoints(tmp_path).latest()
