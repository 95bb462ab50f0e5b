"""Time budgets of reading reports: by poll and by user, with a stub in place of the ingest."""

import pytest

from metasched.intake import report_reading
from metasched.intake.report_reading import POLL_SECONDS, USER_SECONDS, ReportReader
from metasched.store import IngestResult, JobRecord

READ_SECONDS = 0.1


class Desk:
    """A reader whose every read takes ``READ_SECONDS``, and the uids that it has read."""

    reports = None

    def __init__(self, monkeypatch):
        self.now, self.read, self.endless = 0.0, [], set()
        monkeypatch.setattr(report_reading, "user_id", lambda _user: 1000)
        monkeypatch.setattr(report_reading, "ingest", self.ingest)
        self.reader = ReportReader(self, self, lambda: None, timer=lambda: self.now)

    def require_job(self, uid):
        return uid

    def event(self, *_arguments, **_named):
        pass

    def free_reports(self, _uid, _owner):
        return None

    def ingest(self, _store, _reports, uid, _owner, _now):
        self.now += READ_SECONDS
        self.read.append(uid)
        return IngestResult(lines=1, more=uid in self.endless)

    def poll(self, live, ended=()):
        """Read as a poll does; returns what was read, and which ended jobs are read to their end."""
        self.read.clear()
        self.reader.begin_poll()
        turns = self.reader.in_turn([*live, *ended])
        for record in turns:
            if record in live:
                self.reader.read(record, 0.0)
        done = [record.uid for record in turns if record in ended and self.reader.read_to_end(record, 0.0)]
        return list(self.read), done


@pytest.fixture
def desk(monkeypatch):
    return Desk(monkeypatch)


def jobs(user, number):
    return [
        JobRecord(uid=f"{user}-{i}", slurm_job_id=str(i), name="j", user=user, submitted=0.0) for i in range(number)
    ]


def test_one_user_takes_a_limited_time_of_each_poll_and_every_job_has_its_turn(desk):
    """What a poll does not read, a later one does; the other user's reports are read in every poll."""
    flood, honest = jobs("mallory", 40), jobs("ann", 2)
    desk.endless = {record.uid for record in flood}
    seen = set()
    for _ in range(10):
        read, _ = desk.poll([*flood, *honest])
        assert len(read) <= USER_SECONDS / READ_SECONDS + 1 + len(honest)
        assert {"ann-0", "ann-1"} <= set(read)
        seen |= set(read)
    assert len(seen) == 42


def test_last_reports_of_ended_jobs_come_last_and_within_the_time(desk):
    """Endless last reports neither delay live jobs nor the end of another user's job."""
    flood, live, ended = jobs("mallory", 40), jobs("ann", 2), jobs("bob", 1)
    desk.endless = {record.uid for record in flood}
    desk.poll(live, flood)
    read, done = desk.poll(live, [*flood, *ended])
    assert read[:2] == ["ann-0", "ann-1"]
    assert done == ["bob-0"]
    assert len(read) <= 3 + USER_SECONDS / READ_SECONDS + 1


def test_all_users_together_take_a_limited_time_of_each_poll(desk):
    """A hundred users with a job each are read in turn."""
    crowd = [record for number in range(100) for record in jobs(f"user{number}", 1)]
    most = POLL_SECONDS / READ_SECONDS + 1
    reads = [desk.poll(crowd)[0] for _ in range(6)]
    assert max(map(len, reads)) <= most
    assert len(set().union(*reads)) == 100
