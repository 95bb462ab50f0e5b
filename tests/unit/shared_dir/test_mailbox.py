"""The daemon's side of the mailbox."""

import errno
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from metasched.shared_dir.mailbox import (
    BadLeaseError,
    BadNameError,
    Lease,
    LeasedBatch,
    Mailbox,
    MailboxError,
    NoLeaseError,
    NotOursError,
    RunRequest,
)

UID = "0123456789abcdef"
LEASE = Lease(
    uid=UID,
    slurm_job_id="123",
    run=2,
    round=17,
    round_end=1732118400.0,
    gpus=4,
    gpu_type="v100",
    nodes={"n1": 2, "n2": 2},
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def mailbox(tmp_path):
    before = os.umask(0o077)
    try:
        yield Mailbox(tmp_path / "shared")
    finally:
        os.umask(before)


@pytest.fixture
def shared(mailbox, tmp_path):
    return tmp_path / "shared"


def test_directories_have_the_modes_of_the_protocol(mailbox, shared):
    """Under any umask jobs find their leases, and make report directories of their own; nobody lists other jobs."""
    mailbox.index_job("123_4", UID)
    mailbox.write_lease(LEASE)
    assert mode(shared / "mailbox") == mode(shared / "mailbox" / "address") == 0o711
    assert mode(shared / "mailbox" / UID) == 0o755
    assert mode(shared / "reports") == 0o3733
    assert mailbox.reports == shared / "reports"
    assert mode(shared / "mailbox" / UID / "lease.json") == mode(shared / "mailbox" / "address" / "123_4") == 0o644
    Mailbox(shared)


@pytest.mark.parametrize("kind", ["directory", "file", "link", "nothing"])
def test_report_directories_of_other_users_are_moved_aside(mailbox, tmp_path, kind):
    """They get another name; the owner's own directory stays."""
    path, me = mailbox.reports / UID, os.geteuid()
    make = {"directory": path.mkdir, "file": path.touch, "link": lambda: path.symlink_to(tmp_path)}
    make.get(kind, bool)()
    assert mailbox.free_reports(UID, me) is None
    assert os.path.lexists(path) == (kind != "nothing")
    assert mailbox.free_reports(UID, me + 1) == (None if kind == "nothing" else me)
    assert not os.path.lexists(path)
    assert len(list(mailbox.reports.iterdir())) == (kind != "nothing")


def test_reports_that_their_owner_made_in_between_are_put_back(mailbox, monkeypatch):
    """Another user's directory may be replaced by the owner's during the rename."""
    path, me = mailbox.reports / UID, os.geteuid()
    lstat = Path.lstat
    path.mkdir()
    (path / "incarnation-1.jsonl").touch()

    def late(self):
        return SimpleNamespace(st_uid=me + 1) if self == path else lstat(self)

    monkeypatch.setattr(Path, "lstat", late)
    assert mailbox.free_reports(UID, me) is None
    assert (path / "incarnation-1.jsonl").exists()


def test_a_lease_has_the_protocols_keys(mailbox, shared):
    """The file reads back as the record."""
    mailbox.write_lease(LEASE)
    assert json.loads((shared / "mailbox" / UID / "lease.json").read_text()) == {
        "format": 1,
        "uid": UID,
        "address": "123",
        "run": 2,
        "round": 17,
        "round_end": 1732118400.0,
        "gpus": 4,
        "gpu_type": "v100",
        "nodes": {"n1": 2, "n2": 2},
        "requeue": {"by": "slurm", "exit_code": 85},
        "signal": "SIGUSR2",
        "trials": None,
        "stop": None,
        "finish": None,
        "batch": None,
        "launch_retries": 0,
        "known_good": None,
    }
    assert mailbox.read_lease(UID) == LEASE
    assert mailbox.read_lease("f" * 16) is None


def test_a_batch_plan_survives_the_lease(mailbox):
    """With the parameters of the time of an iteration, and without."""
    for theta in (None, (0.1, 0.01, 0.0, 0.0, 0.2, 0.05, 1.5)):
        lease = replace(LEASE, batch=LeasedBatch(3, 32, 2, theta))
        mailbox.write_lease(lease)
        assert mailbox.read_lease(UID) == lease


def test_an_equal_lease_is_not_written_again(mailbox, shared):
    """Another one replaces the file at once and leaves no other file."""
    path = shared / "mailbox" / UID / "lease.json"
    mailbox.write_lease(LEASE)
    first = path.stat().st_ino
    mailbox.write_lease(LEASE)
    assert path.stat().st_ino == first
    with path.open() as reader:
        mailbox.write_lease(replace(LEASE, round=18, round_end=1732118460.0))
        assert json.load(reader)["round"] == 17
    assert [file.name for file in path.parent.iterdir()] == ["lease.json"]


def test_a_stop_request_is_written_once(mailbox):
    """It keeps the rest of the lease; a second request for the run changes nothing."""
    mailbox.write_lease(LEASE)
    mailbox.request_stop(UID, 2, 100.0, 160.0, "others wait")
    mailbox.request_stop(UID, 2, 130.0, 190.0, "again")
    lease = mailbox.read_lease(UID)
    assert (lease.stop.run, lease.stop.requested, lease.stop.deadline, lease.stop.reason) == (
        2,
        100,
        160,
        "others wait",
    )
    assert replace(lease, stop=None) == LEASE


def test_a_request_to_finish_is_written_once_beside_a_stop(mailbox):
    """A later request of either kind changes nothing of the other."""
    mailbox.write_lease(LEASE)
    mailbox.request_finish(UID, 2, 100.0, 160.0, "it ranks last")
    mailbox.request_finish(UID, 2, 130.0, 190.0, "again")
    mailbox.request_stop(UID, 2, 150.0, 210.0, "others wait")
    lease = mailbox.read_lease(UID)
    assert lease.finish == RunRequest(2, 100.0, 160.0, "it ranks last")
    assert lease.stop == RunRequest(2, 150.0, 210.0, "others wait")


@pytest.mark.parametrize("request_name", ["request_stop", "request_finish"])
def test_a_request_needs_the_lease_of_its_run(mailbox, request_name):
    """A missing lease and the lease of another run are errors."""
    request = getattr(mailbox, request_name)
    with pytest.raises(NoLeaseError, match=UID):
        request(UID, 2, 100.0, 160.0, "others wait")
    mailbox.write_lease(LEASE)
    with pytest.raises(NoLeaseError, match="run 1"):
        request(UID, 1, 100.0, 160.0, "others wait")
    assert mailbox.read_lease(UID) == LEASE


def test_the_index_of_job_ids_is_written_replaced_and_cleared(mailbox, shared):
    """An entry names the job that has the Slurm job id now, and only that job removes it."""
    path = shared / "mailbox" / "address" / "123"
    mailbox.index_job("123", "f" * 16)
    mailbox.index_job("123", f"{UID}_4")
    assert path.read_text() == f"{UID}_4\n"
    mailbox.unindex_job("123", "f" * 16)
    assert path.exists()
    mailbox.unindex_job("123", f"{UID}_4")
    mailbox.unindex_job("123", f"{UID}_4")
    assert not path.exists()


def test_clear_removes_a_jobs_directory(mailbox, shared):
    """Unfinished files are removed, too; a second call is no error."""
    mailbox.write_lease(LEASE)
    (shared / "mailbox" / UID / ".lease.json.new").write_text("{")
    mailbox.clear(UID)
    mailbox.clear(UID)
    assert not (shared / "mailbox" / UID).exists()


def test_an_unfinished_file_of_a_crash_is_overwritten(mailbox, shared):
    """The next write of the lease replaces it."""
    mailbox.write_lease(LEASE)
    (shared / "mailbox" / UID / ".lease.json.new").write_text("{" * 10_000)
    mailbox.write_lease(replace(LEASE, run=3))
    assert mailbox.read_lease(UID).run == 3


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "stop": 3}'])
def test_a_malformed_lease_is_an_error_and_replaced(mailbox, shared, content):
    """Reading it is an error that names the file, and the next write replaces it."""
    mailbox.write_lease(LEASE)
    (shared / "mailbox" / UID / "lease.json").write_text(content)
    with pytest.raises(BadLeaseError, match=r"lease\.json"):
        mailbox.read_lease(UID)
    mailbox.write_lease(LEASE)
    assert mailbox.read_lease(UID) == LEASE


@pytest.mark.parametrize("name", ["../../etc", "", "x", "ABCDEF0123456789", f"{UID}/..", f"{UID}\n", "."])
def test_only_uids_and_job_ids_become_paths(mailbox, name):
    """Other texts are refused."""
    for call in (mailbox.read_lease, mailbox.clear):
        with pytest.raises(BadNameError):
            call(name)
    for call in (mailbox.index_job, mailbox.unindex_job):
        for slurm_job_id, uid in (("123", name), (name, UID)):
            with pytest.raises(BadNameError):
                call(slurm_job_id, uid)


@pytest.mark.parametrize("name", ["mailbox", "mailbox/address", "reports"])
def test_a_link_in_place_of_a_directory_is_refused(tmp_path, name):
    """The error names it, and nothing is made in its target."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    planted = tmp_path / "shared" / name
    planted.parent.mkdir(parents=True)
    planted.symlink_to(elsewhere)
    with pytest.raises(NotOursError, match=name):
        Mailbox(tmp_path / "shared")
    assert list(elsewhere.iterdir()) == []
    assert mode(elsewhere) == 0o700


def test_a_link_in_place_of_a_jobs_files_is_refused(mailbox, shared, tmp_path):
    """Neither the job's directory nor the file being written may be a link."""
    (shared / "mailbox" / UID).symlink_to(tmp_path)
    with pytest.raises(NotOursError):
        mailbox.write_lease(LEASE)
    assert not (tmp_path / "lease.json").exists()
    other = replace(LEASE, uid="f" * 16)
    mailbox.write_lease(other)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (shared / "mailbox" / other.uid / ".lease.json.new").symlink_to(victim)
    with pytest.raises(MailboxError, match=r"lease\.json"):
        mailbox.write_lease(replace(other, run=3))
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path):
    """The reports directory must be the daemon's."""
    (tmp_path / "reports").mkdir()
    os.chown(tmp_path / "reports", 65534, 65534)
    with pytest.raises(NotOursError, match="reports"):
        Mailbox(tmp_path)


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "mount it writable"), (errno.EIO, "check")]
)
def test_an_error_of_the_file_system_has_path_and_fix(mailbox, monkeypatch, number, fix):
    """The lease before it stays whole."""
    mailbox.write_lease(LEASE)

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(MailboxError, match=rf"lease\.json.*{fix}"):
        mailbox.write_lease(replace(LEASE, run=3))
    monkeypatch.undo()
    assert mailbox.read_lease(UID) == LEASE


def test_a_shared_directory_that_cannot_be_made_is_an_error(tmp_path):
    """The error names the path below a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MailboxError, match="file/shared"):
        Mailbox(tmp_path / "file" / "shared")
