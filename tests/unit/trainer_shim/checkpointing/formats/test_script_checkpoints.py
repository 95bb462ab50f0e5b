"""Checkpoints, the fence and reports on disk."""

import errno
import json
import os
import resource
import threading
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from trainer_shim.adaptive_batch.adaptive_progress import AdaptiveProgress
from trainer_shim.checkpointing import atomic_files, directory_owner
from trainer_shim.checkpointing.directory_owner import claim_directory
from trainer_shim.checkpointing.formats import script_checkpoints
from trainer_shim.checkpointing.formats.script_checkpoints import FORMAT, Progress, ScriptCheckpoints, States
from trainer_shim.checkpointing.generation import claim_generation, highest_generation
from trainer_shim.environment.job import read_job
from trainer_shim.errors import CheckpointError, SupersededError
from trainer_shim.reporting.report_writer import ReportWriter, process_age

ORDER = {"seed": 1, "size": 10, "shuffle": True}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts to read
    return ScriptCheckpoints(tmp_path)


@contextmanager
def largest_file(size):
    """Let files have ``size`` bytes at most, as on a full disk; only within the block, as pytest writes a log, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save(store, step, generation=1, check=lambda: None):
    return store.save(States({"model": {"w": torch.full((100,), step)}}), generation, Progress(step=step), ORDER, check)


def fails():
    raise OSError("full")


def names(store, pattern="*"):
    return sorted(path.name for path in store.directory.glob(pattern))


def test_the_position_of_an_adaptive_training(store):
    """The position comes back exactly; that of a fixed batch is written as by earlier versions."""
    adaptive = AdaptiveProgress(7.1, 21.0, 2, 64, 0.1, 1e-300, 0.3)
    progress = Progress(epoch=1, cursor=20, step=4, samples=80, adaptive=adaptive)
    store.save(States({}), 1, progress, ORDER, lambda: None)
    assert store.latest().progress == progress
    fixed = Progress(epoch=1, cursor=20, step=4, samples=80)
    assert fixed.to_json() == {"epoch": 1, "cursor": 20, "step": 4, "samples": 80, "finished": False}
    assert Progress.from_json(fixed.to_json()) == fixed


def test_round_trip(store):
    """A checkpoint comes back with its states, its position and the order of its samples."""
    size = save(store, 3)
    found = store.latest()
    assert found.progress == Progress(step=3)
    assert found.order == ORDER
    assert found.data.stat().st_size == size
    assert torch.equal(store.load(found)["model"]["w"], torch.full((100,), 3))


def test_empty(store):
    """Where there is no checkpoint there is none, and that is no error."""
    assert store.latest() is None
    assert ScriptCheckpoints(store.directory / "nowhere").latest() is None


def test_the_newest_two_stay(store):
    """The newest two are retained, by generation first and then by step; nothing else is left behind."""
    for generation, step in [(1, 9), (1, 10), (2, 5), (2, 20)]:
        save(store, step, generation)
    stems = {"incarnation-2-step-5", "incarnation-2-step-20"}
    assert set(names(store)) == {f"{stem}.{end}" for stem in stems for end in ("pt", "json")}
    assert store.latest().progress.step == 20
    save(store, 1, 10)
    assert store.latest().generation == 10
    assert store.newest_generation() == 10


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_checkpoint_is_skipped(store, damage, caplog):
    """A damaged newest checkpoint is named and set aside, and the one before is used."""
    save(store, 1)
    save(store, 2)
    data, manifest = (store.directory / f"incarnation-1-step-2.{end}" for end in ("pt", "json"))
    if damage == "truncate":
        os.truncate(data, 100)
    elif damage == "flip":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif damage == "remove":
        data.unlink()
    else:
        manifest.write_text("{")
    assert store.latest().progress.step == 1
    assert str(manifest) in caplog.text
    assert names(store, "*.damaged") == ["incarnation-1-step-2.json.damaged"]


def test_none_is_whole(store):
    """Where every checkpoint is damaged, training does not begin again without a word."""
    save(store, 1)
    os.truncate(store.directory / "incarnation-1-step-1.pt", 10)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="none of its 1 checkpoints is whole"):
            store.latest()


def failing(monkeypatch, place, name, error, times):
    """The first calls of a function that reads fail."""
    failures, read = iter([error] * times), getattr(place, name)

    def fail(*args, **kwargs):
        for failure in failures:
            raise failure
        return read(*args, **kwargs)

    monkeypatch.setattr(place, name, fail)


@pytest.mark.parametrize(
    ("place", "name"), [(script_checkpoints, "_read_manifest"), (script_checkpoints, "_verify_file"), (torch, "load")]
)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT])
def test_a_read_that_fails_for_a_moment(store, monkeypatch, place, name, number):
    """A good checkpoint is used although its first reads fail, also where a file seems not to be there."""
    save(store, 1)
    save(store, 2)
    failing(monkeypatch, place, name, OSError(number, "a hiccup"), 2)
    found = store.latest()
    assert found.progress.step == 2
    assert store.load(found)["model"]["w"][0] == 2


def test_an_unreadable_checkpoint_stays(store, monkeypatch, caplog):
    """A checkpoint that cannot be read is skipped with a warning, not removed, and not counted for the retention."""
    save(store, 1)
    save(store, 2)
    before = names(store)
    failing(monkeypatch, script_checkpoints, "_verify", OSError(errno.ESTALE, "Stale file handle"), 4)
    assert store.latest().progress.step == 1
    assert "incarnation-1-step-2.json is skipped: [Errno 116]" in caplog.text
    assert names(store) == before
    save(store, 3, 2)
    assert [name.partition(".")[0][-1] for name in names(store, "*.json")] == ["1", "2", "3"]
    save(store, 4, 2)
    assert [name.partition(".")[0][-1] for name in names(store, "*.pt")] == ["3", "4"]


def test_the_same_step_again(store):
    """A later checkpoint of the same step is the newer one, and leaves the files of the first as they are."""
    save(store, 3)
    first = {path.name: (path.stat().st_ino, path.read_bytes()) for path in store.directory.iterdir()}
    final = Progress(epoch=1, step=3, finished=True)
    for _ in range(2):
        before = names(store)
        with pytest.raises(OSError, match="full"):
            store.save(States({}), 1, final, ORDER, fails)
        assert names(store) == before
    store.save(States({"w": torch.zeros(1)}), 1, final, ORDER, lambda: None)
    assert {
        name: ((store.directory / name).stat().st_ino, (store.directory / name).read_bytes()) for name in first
    } == first
    assert store.latest().progress == final
    os.truncate(store.latest().data, 5)
    assert store.latest().progress == Progress(step=3)
    store.save(States({}), 1, final, ORDER, lambda: None)
    store.save(States({"w": 1}), 1, final._replace(epoch=2), ORDER, lambda: None)
    assert names(store, "*.json") == ["incarnation-1-step-3-2.json", "incarnation-1-step-3-3.json"]
    assert store.latest().progress.epoch == 2


def test_a_position_that_was_changed_is_damage(store):
    """A checkpoint whose manifest was changed after the save is skipped, though the manifest is valid JSON."""
    save(store, 1)
    save(store, 2)
    manifest = store.directory / "incarnation-1-step-2.json"
    content = json.loads(manifest.read_text())
    content["progress"]["cursor"] += 1
    manifest.write_text(json.dumps(content))
    assert store.latest().progress.step == 1


def test_newer_format(store):
    """A checkpoint of a newer version is refused, not skipped."""
    save(store, 1)
    manifest = store.directory / "incarnation-1-step-1.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(CheckpointError, match="another version"):
        store.latest()


def test_older_format(store):
    """A checkpoint of the version that knew no shards is continued."""
    save(store, 1)
    manifest = store.directory / "incarnation-1-step-1.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(
        json.dumps({key: content[key] for key in ("bytes", "crc32", "progress", "order")} | {"format": 1})
    )
    assert store.latest().progress.step == 1


def test_data_without_manifest_is_no_checkpoint(store):
    """A write that was cut off is no checkpoint; the next one of a later trainer clears it away."""
    for name in ("incarnation-1-step-7.pt", "incarnation-1-step-8.pt.partial"):
        (store.directory / name).write_bytes(b"x")
    assert store.latest() is None
    save(store, 1, 2)
    assert names(store, "incarnation-1*") == []


@pytest.mark.parametrize("error", [SupersededError("newer"), OSError("full")])
def test_a_failed_save_changes_nothing(store, error):
    """A save that is refused or fails at its last moment leaves everything as it was."""
    save(store, 1)
    before = names(store)

    def fail():
        raise error

    with pytest.raises(type(error)):
        save(store, 2, check=fail)
    assert names(store) == before


@pytest.mark.parametrize("size", [100, 100_000, 400_000])
def test_full_disk(store, size):
    """A disk that fills up, early or late in the data, is an OSError, and leaves nothing behind."""
    with largest_file(size), pytest.raises(OSError, match="File too large"):
        store.save(States({"w": torch.zeros(100_000)}), 1, Progress(step=1), ORDER, lambda: None)
    assert names(store) == []


def test_other_files_are_left_alone(store):
    """What is not a checkpoint's is never touched."""
    (store.directory / "notes.json").write_text("mine")
    for step in range(4):
        save(store, step)
    assert (store.directory / "notes.json").read_text() == "mine"


def test_claims(tmp_path):
    """Each claim is one higher than all before, and than what checkpoints show."""
    claims = tmp_path / "deep" / "incarnations"
    assert highest_generation(claims) == 0
    assert [
        claim_generation(claims, 0),
        claim_generation(claims, 0),
        claim_generation(claims, 7),
        claim_generation(claims, 0),
    ] == [1, 2, 8, 9]
    assert highest_generation(claims) == 9


def test_claims_are_exclusive(tmp_path):
    """Trainers that start at the same time get different generations."""
    found = []
    threads = [
        threading.Thread(target=lambda: found.extend(claim_generation(tmp_path, 0) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 81))


def test_a_failed_claim_of_a_generation_leaves_no_file(tmp_path):
    """A trainer that cannot claim its generation on a full disk does not supersede the running trainer."""
    claim_generation(tmp_path, 0)
    with largest_file(5), pytest.raises(OSError, match="File too large"):
        claim_generation(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("no_links", [errno.EPERM, errno.ENOSYS])
def test_claims_without_hard_links(tmp_path, monkeypatch, no_links):
    """Where a file system knows none, claims are exclusive all the same."""

    def refuse(*_):
        raise OSError(no_links, "no links")

    monkeypatch.setattr("os.link", refuse)
    assert [claim_generation(tmp_path, 0), claim_generation(tmp_path, 0)] == [1, 2]
    with pytest.raises(FileExistsError):
        atomic_files.create_exclusively(tmp_path / "2", "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert "claimed" in json.loads((tmp_path / "2").read_text())


def test_reports(tmp_path):
    """Lines are whole, appended, and know no NaN."""
    for step in (1, 2):
        ReportWriter(tmp_path / "uid", 3).emit("steps", step=step, loss=float("nan"))
    lines = (tmp_path / "uid" / "incarnation-3.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert [json.loads(line)["loss"] for line in lines] == [None, None]
    assert all(line.endswith("\n") for line in lines)


def test_reports_that_cannot_be_written(tmp_path, caplog):
    """A report that cannot be written is one warning, and is written when it can be."""
    place = tmp_path / "missing" / "uid"
    report = ReportWriter(place, 1)
    report.emit("start")
    report.emit("end")
    assert len(caplog.records) == 1
    place.parent.mkdir()
    report.emit("later")
    assert (place / "incarnation-1.jsonl").read_text().count("\n") == 3


def test_reports_follow_no_link(tmp_path):
    """A link where the report should be is not followed."""
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "incarnation-1.jsonl").symlink_to(target)
    ReportWriter(tmp_path, 1).emit("start")
    assert target.read_text() == ""


def test_process_age():
    """The age of a process is positive and less than a day in a test run."""
    assert 0 < process_age() < 86_400


FIRST, SECOND = "a" * 16, "b" * 16


def test_a_directory_has_one_owner(tmp_path):
    """The first job with an identity owns a directory; a trainer without one leaves no note, and heeds none."""
    directory = tmp_path / "deep" / "checkpoints"
    claim_directory(directory, read_job({}))
    assert not directory.exists()
    for _ in range(2):
        claim_directory(directory, read_job({"METASCHED_UID": FIRST}))
    with pytest.raises(CheckpointError, match=f"belongs to job {FIRST}.*, and this is job {SECOND}: .* remove .*/job"):
        claim_directory(directory, read_job({"METASCHED_UID": SECOND}))
    claim_directory(directory, read_job({}))
    (directory / "job").unlink()
    claim_directory(directory, read_job({"METASCHED_UID": SECOND}))
    assert [path.name for path in directory.iterdir()] == ["job"]


def test_a_job_that_has_ended_leaves_its_directory(tmp_path, monkeypatch):
    """A directory goes over to another job when its owner is gone from the mailbox, and not before."""
    monkeypatch.setattr(directory_owner, "END_SECONDS", 0.0)
    for uid in (FIRST, SECOND):
        (tmp_path / "mailbox" / uid).mkdir(parents=True)
    jobs = [
        read_job({"METASCHED_UID": uid, "METASCHED_LEASE": str(tmp_path / "mailbox" / uid / "lease.json")})
        for uid in (FIRST, SECOND)
    ]
    claim_directory(tmp_path, jobs[0])
    with pytest.raises(CheckpointError, match="has not ended"):
        claim_directory(tmp_path, jobs[1])
    (tmp_path / "mailbox" / FIRST).rmdir()
    for _ in range(2):
        claim_directory(tmp_path, jobs[1])
    with pytest.raises(CheckpointError, match=r"has not ended.* remove .*/job\.2"):
        claim_directory(tmp_path, jobs[0])
    (tmp_path / "job.2").write_text("../somebody")
    with pytest.raises(CheckpointError, match="/somebody"):
        claim_directory(tmp_path, jobs[1])


def test_the_end_of_the_owner_is_awaited(tmp_path, monkeypatch):
    """The daemon may notice later that the owner has ended than that this job is to start."""
    jobs = []
    for uid in (FIRST, SECOND):
        lease = tmp_path / "mailbox" / uid / "lease.json"
        lease.parent.mkdir(parents=True)
        jobs.append(read_job({"METASCHED_UID": uid, "METASCHED_LEASE": str(lease)}))
    claim_directory(tmp_path, jobs[0])
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            (tmp_path / "mailbox" / FIRST).rmdir()

    monkeypatch.setattr(directory_owner.time, "sleep", sleep)
    claim_directory(tmp_path, jobs[1])
    assert (tmp_path / "job.2").read_text().strip() == SECOND
    assert len(waited) == 3


def test_an_empty_note_is_nobodys(tmp_path):
    """A job that died as it was written shuts nobody out, itself included."""
    (tmp_path / "job").touch()
    for _ in range(2):
        claim_directory(tmp_path, read_job({"METASCHED_UID": FIRST}))
    with pytest.raises(CheckpointError, match=f"belongs to job {FIRST}.* remove .*/job.2"):
        claim_directory(tmp_path, read_job({"METASCHED_UID": SECOND}))


@pytest.mark.parametrize(("owned", "reads"), [(False, 1), (True, 1), (True, 2)])
def test_of_jobs_that_come_at_once_one_becomes_the_owner(tmp_path, monkeypatch, owned, reads):
    """Also where one comes right behind what the other has read, and whether the directory had an owner or not."""
    directory = tmp_path / "checkpoints"
    jobs = []
    for uid in (FIRST, SECOND):
        lease = tmp_path / "mailbox" / uid / "lease.json"
        lease.parent.mkdir(parents=True)
        jobs.append(read_job({"METASCHED_UID": uid, "METASCHED_LEASE": str(lease)}))
    if owned:
        claim_directory(directory, read_job({"METASCHED_UID": "c" * 16}))
    turns, read_text = iter(range(1, 100)), Path.read_text

    def read(path, **options):
        try:
            return read_text(path, **options)
        finally:
            if next(turns) == reads:
                claim_directory(directory, jobs[1])

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(directory_owner, "END_SECONDS", 0.0)
    with pytest.raises(CheckpointError, match=f"belongs to job {SECOND}"):
        claim_directory(directory, jobs[0])


@pytest.mark.parametrize("sizes", [[10], [70_000, 3, 200_000], [atomic_files._FLUSH_BYTES + 5, 1]])
def test_what_is_written_is_summed(tmp_path, sizes):
    """Size and checksum of pieces large and small are those of the file that is read back."""
    path = tmp_path / "file"
    with atomic_files.synced_file(path) as file:
        for number, size in enumerate(sizes):
            file.write(bytes([number]) * size)
        assert file.tell() == sum(sizes)
    content = path.read_bytes()
    assert (
        file.checksum
        == atomic_files.FileChecksum(len(content), zlib.crc32(content))
        == atomic_files.checksum_file(path)
    )


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "remove all"])
def test_a_damaged_shard(store, damage, caplog):
    """A checkpoint one of whose shards is damaged or gone is skipped, and its directory goes when it is old."""
    save(store, 1)
    save(store, 2)
    shards = store.directory / "incarnation-1-step-2.dcp"
    shards.mkdir()
    shard = shards / "__7_0.distcp"
    shard.write_bytes(b"0123456789")
    manifest = store.directory / "incarnation-1-step-2.json"
    content = json.loads(manifest.read_text())
    found = atomic_files.checksum_file(shard)
    content["shards"][shard.name] = {"bytes": found.size, "crc32": found.crc32}
    content["own_crc32"] = script_checkpoints._manifest_checksum(content)
    manifest.write_text(json.dumps(content))
    assert store.latest().progress.step == 2
    if damage == "truncate":
        os.truncate(shard, 5)
    elif damage == "flip":
        shard.write_bytes(b"0123456780")
    else:
        shard.unlink()
    if damage == "remove all":
        shards.rmdir()
    assert store.latest().progress.step == 1
    assert "__7_0.distcp" in caplog.text
    save(store, 1, 2)
    assert not shards.exists()
