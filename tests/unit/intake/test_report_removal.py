"""Removal of old reports: after the retention, of ended jobs, and of nothing else."""

import os
import pwd

import pytest

from metasched.intake.report_removal import LIST_SECONDS, ReportRemoval
from metasched.shared_dir.mailbox import Mailbox
from metasched.store import JobRecord, Store

ME = pwd.getpwuid(os.geteuid()).pw_name
UIDS = [f"{number:016x}" for number in range(4)]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.sqlite") as store:
        for uid in UIDS:
            store.add_job(JobRecord(uid=uid, slurm_job_id=str(int(uid, 16)), name="j", user=ME, submitted=100.0))
        yield store


def reports(mailbox, uid):
    directory = mailbox.reports / uid
    directory.mkdir()
    (directory / "incarnation-1.jsonl").write_text("{}\n")
    return directory


def test_reports_of_ended_jobs_go_when_their_retention_is_over(store, tmp_path):
    """Those of live jobs, of jobs that ended lately, and of unknown jobs remain."""
    mailbox = Mailbox(tmp_path / "shared")
    old, late, live = (reports(mailbox, uid) for uid in UIDS[:3])
    unknown = reports(mailbox, "f" * 16)
    store.finish_job(UIDS[0], 200.0, "COMPLETED", 0)
    store.finish_job(UIDS[1], 900.0, "COMPLETED", 0)
    removal = ReportRemoval(store, mailbox)
    removal.remove_some(500.0, 1000.0)
    assert [path.exists() for path in (old, late, live, unknown)] == [False, True, True, True]
    removal.remove_some(950.0, 1000.0 + LIST_SECONDS)
    assert [path.exists() for path in (late, live, unknown)] == [False, True, True]


def test_no_link_is_followed_and_other_files_remain(store, tmp_path):
    """A user may have put links and files of their own there."""
    mailbox = Mailbox(tmp_path / "shared")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = elsewhere / "incarnation-1.jsonl"
    kept.write_text("not a report")
    (mailbox.reports / UIDS[0]).symlink_to(elsewhere)
    directory = reports(mailbox, UIDS[1])
    (directory / "incarnation-2.jsonl").symlink_to(kept)
    own = directory / "notes.txt"
    own.write_text("mine")
    last = reports(mailbox, UIDS[2])
    for uid in UIDS[:3]:
        store.finish_job(uid, 200.0, "COMPLETED", 0)
    removal = ReportRemoval(store, mailbox)
    for poll in range(4):
        removal.remove_some(500.0, 1000.0 + poll * LIST_SECONDS)
    assert kept.read_text() == "not a report"
    assert list(directory.iterdir()) == [own]
    assert not last.exists()
