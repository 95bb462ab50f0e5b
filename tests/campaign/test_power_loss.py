"""Losses of power: what was promised is on the disk, and what was not is absent or whole, never torn."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason
from metasched.shared_dir.mailbox import BadLeaseError, Lease, Mailbox
from metasched.store import JobRecord, Store
from trainer_shim.checkpointing.formats.script_checkpoints import Progress, ScriptCheckpoints, States
from trainer_shim.checkpointing.generation import claim_generation, highest_generation
from trainer_shim.errors import CheckpointError

UID = "0123456789abcdef"
CUTS = int(os.environ.get("POWER_CUTS", "2"))
"""Losses of power on a file system image."""


def lease(run, number=1):
    return Lease(uid=UID, slurm_job_id="1", run=run, round=number, round_end=9.0, gpus=1, gpu_type=None, nodes={"n": 1})


def commit(store, number):
    values = {"state": PolicyState(1, {"n": number}), "reasons": {UID: Reason.text(str(number))}, "targets": {}}
    store.commit_round(number, at=1.0, policy="p", parameters={}, decide_seconds=0.0, **values)


def save(checkpoints, step):
    states = States({"model": {"w": torch.full((5000,), float(step))}})
    checkpoints.save(states, 1, Progress(step=step), {"seed": 1}, lambda: None)


# -- the store, cut at any byte of its log


def test_a_store_whose_log_is_cut_at_any_byte_is_whole_and_has_all_that_was_durable(tmp_path):
    """Rounds and releases are there once committed; later transactions that are not durable may be undone, whole."""
    path = tmp_path / "store.db"
    log = tmp_path / "store.db-wal"
    durable = []  # size of the log after each durable transaction, and what is promised then
    with Store.open(path) as store:
        store.add_job(JobRecord(uid=UID, slurm_job_id="1", name="t", user="ann", submitted=1.0))
        commit(store, 1)
        store._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in (2, 3):
            commit(store, number)
            durable.append((log.stat().st_size, number, 0 if number == 2 else 1))
            store.event("kind", "text", at=1.0)  # not durable
            if number == 2:
                store.release(UID, 1, Placement(("n",), 1, None), 1.0)
                durable.append((log.stat().st_size, 2, 1))
        database, frames = path.read_bytes(), log.read_bytes()
    cuts = {*range(0, len(frames), 7919), *(size for size, *_ in durable), len(frames)}
    for cut in sorted(cuts):
        for tail in (b"", bytes(min(4096, len(frames) - cut))):  # the file ends there, or holds zeros
            for place, content in ((path, database), (log, frames[:cut] + tail)):
                place.write_bytes(content)
            path.with_name("store.db-shm").unlink(missing_ok=True)
            with Store.open(path, read_only=True) as store:
                assert store.problems() == []
                number, run = store.last_round().round, store.job(UID).run
                assert store.policy_state("p").data == {"n": number}
                assert [row.reason for row in store.decisions_of(number)] == [Reason.text(str(number))]
            promised = [(found, of_run) for size, found, of_run in durable if size <= cut]
            assert (number, run) >= max(promised, default=(1, 0))


def test_what_others_see_the_effects_of_is_durable(tmp_path):
    """The store asks SQLite to wait for the disk at rounds, releases and the begin of a term, and nowhere else."""
    with Store.open(tmp_path / "store.db") as store:
        seen = []
        store._db.set_trace_callback(seen.append)

        def waits(action):
            seen.clear()
            action()
            commits = [number for number, sql in enumerate(seen) if sql == "COMMIT"]
            assert len(commits) == 1
            modes = [sql for sql in seen[: commits[0]] if sql.startswith("PRAGMA synchronous")]
            assert store._rows("PRAGMA synchronous") == [(1,)]
            return modes == ["PRAGMA synchronous = FULL"]

        assert not waits(
            lambda: store.add_job(JobRecord(uid=UID, slurm_job_id="1", name="t", user="ann", submitted=1.0))
        )
        assert waits(lambda: commit(store, 1))
        assert waits(lambda: store.release(UID, 1, Placement(("n",), 1, None), 1.0))
        assert waits(lambda: store.begin_term(2))
        assert not waits(lambda: store.event("kind", "text", at=1.0))


# -- files: content before name, name before the next act


@pytest.fixture
def order(monkeypatch):
    """The order of renames, links and what was brought to disk, as (act, name)."""
    acts = []
    fsync, link, rename = os.fsync, os.link, os.rename

    def recording_fsync(descriptor):
        acts.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def recording_replace(source, target):
        acts.append(("name", Path(target).name))
        rename(source, target)

    def recording_link(source, target):
        acts.append(("name", Path(target).name))
        link(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    monkeypatch.setattr(os, "link", recording_link)
    return acts


def test_a_lease_is_on_the_disk_before_its_name_and_its_name_before_slurm_is_called(tmp_path, order):
    """A stop request and a job's index entry are brought to disk in the same order."""
    mailbox = Mailbox(tmp_path)
    mailbox.write_lease(lease(1))
    assert order == [("sync", ".lease.json.new"), ("name", "lease.json"), ("sync", UID)]
    order.clear()
    mailbox.request_stop(UID, 1, 1.0, 2.0, "why")
    assert order[-1] == ("sync", UID)
    order.clear()
    mailbox.index_job("1", UID)
    assert order == [("sync", ".1.new"), ("name", "1"), ("sync", "address")]


def test_a_checkpoint_is_on_the_disk_before_its_manifest_and_old_ones_are_removed_last(tmp_path, order):
    """After a loss of power there is the old or the new checkpoint, whole."""
    checkpoints = ScriptCheckpoints(tmp_path)
    for step in (1, 2, 3):
        order.clear()
        save(checkpoints, step)
        stem = f"incarnation-1-step-{step}"
        acts = [("sync", f"{stem}.pt.partial"), ("name", f"{stem}.pt"), ("sync", f"{stem}.json.partial")]
        assert order == [*acts, ("name", f"{stem}.json"), ("sync", tmp_path.name)]


def test_a_claimed_generation_is_on_the_disk_before_the_trainer_starts(tmp_path, order):
    """A claim that a loss of power undid would let two trainers write with one generation."""
    assert claim_generation(tmp_path / "incarnations", 0) == 1
    assert order[0] == ("sync", tmp_path.name)
    assert [act for act, _ in order[1:]] == ["sync", "name", "sync"]
    assert order[-1] == ("sync", "incarnations")


def test_a_checkpoint_that_is_cut_at_any_byte_or_lacks_a_file_leaves_the_one_before(tmp_path):
    """The names may reach the disk in any order: a manifest without its data is no checkpoint."""
    whole = tmp_path / "whole"
    whole.mkdir()
    for step in (1, 2):
        save(ScriptCheckpoints(whole), step)
    newest = {path.name: path.read_bytes() for path in whole.glob("incarnation-1-step-2.*")}
    for name, content in newest.items():
        for cut in (None, *range(0, len(content), len(content) // 3), len(content)):
            place = tmp_path / "cut"
            shutil.copytree(whole, place)
            if cut is None:
                (place / name).unlink()
            else:
                (place / name).write_bytes(content[:cut])
            checkpoints = ScriptCheckpoints(place)
            found = checkpoints.latest()
            assert found.progress.step == (2 if cut == len(content) else 1)
            assert checkpoints.load(found)["model"]["w"][0] == found.progress.step
            shutil.rmtree(place)


# -- everything together on a file system whose disk is cut off


WRITER = """
import sys
from pathlib import Path
from metasched.store import JobRecord, Store
from metasched.shared_dir.mailbox import Mailbox
from tests.campaign.test_power_loss import UID, commit, lease, save
from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoints
from trainer_shim.checkpointing.generation import claim_generation

base = Path(sys.argv[1])
(base / "checkpoints").mkdir()
store, mailbox, checkpoints = Store.open(base / "store.db"), Mailbox(base), ScriptCheckpoints(base / "checkpoints")
store.add_job(JobRecord(uid=UID, slurm_job_id="1", name="t", user="ann", submitted=1.0))
for number in range(1, 1_000_000):
    commit(store, number)
    print("round", number, flush=True)
    mailbox.write_lease(lease(number))
    print("lease", number, flush=True)
    save(checkpoints, number)
    print("checkpoint", number, flush=True)
    print("generation", claim_generation(base / "checkpoints" / "incarnations", 0), flush=True)
"""


@contextmanager
def mounted(image, place):
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"no loop mounts here: {done.stderr!r}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], timeout=30, check=True)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and ext4")
def test_a_file_system_cut_off_its_disk_has_all_that_was_acknowledged(tmp_path):
    """The image is copied while a writer works: what is not on the image's disk then is lost, as with its power."""
    image, copy = tmp_path / "image", tmp_path / "copy"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], timeout=30, check=True)
    with mounted(image, tmp_path / "mnt"):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "mnt")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as writer:
            try:
                for cut in range(CUTS):
                    said = {}
                    for _ in range(9 + 7 * cut):  # stops at another line each time
                        key, number = writer.stdout.readline().split()
                        said[key] = int(number)
                    writer.send_signal(signal.SIGSTOP)
                    shutil.copyfile(image, copy)
                    writer.send_signal(signal.SIGCONT)
                    holds_all(copy, tmp_path / f"cut{cut}", said)
            finally:
                writer.kill()


def holds_all(image, place, said):
    """Check an image of a disk: all that was said is there, and all that is there is whole."""
    with mounted(image, place):
        with closing(sqlite3.connect(place / "store.db")) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with Store.open(place / "store.db") as store:
            assert store.last_round().round >= said["round"]
            assert store.policy_state("p").data == {"n": store.last_round().round}
        found = msgspec.json.decode((place / "mailbox" / UID / "lease.json").read_bytes(), type=Lease)
        assert found.run >= said["lease"]
        checkpoints = ScriptCheckpoints(place / "checkpoints")
        newest = checkpoints.latest()
        assert newest.progress.step >= said["checkpoint"]
        assert checkpoints.load(newest)["model"]["w"][0] == newest.progress.step
        assert highest_generation(place / "checkpoints" / "incarnations") >= said["generation"]


def test_torn_files_are_errors_and_no_content(tmp_path):
    """A lease that a file system has torn all the same is an error, upon which the daemon writes it again."""
    mailbox = Mailbox(tmp_path)
    mailbox.write_lease(lease(1))
    path = tmp_path / "mailbox" / UID / "lease.json"
    content = path.read_bytes()
    for cut in range(0, len(content) - 2, 9):
        path.write_bytes(content[:cut])
        with pytest.raises(BadLeaseError):
            mailbox.read_lease(UID)
    path.write_bytes(bytes(len(content)))
    mailbox.write_lease(lease(1))
    assert mailbox.read_lease(UID) == lease(1)


def test_a_first_checkpoint_without_content_does_not_begin_the_training_anew(tmp_path):
    """Where no checkpoint is whole, the start fails: somebody has to decide."""
    save(ScriptCheckpoints(tmp_path), 1)
    (tmp_path / "incarnation-1-step-1.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of its 1 checkpoints is whole"):
        ScriptCheckpoints(tmp_path).latest()
