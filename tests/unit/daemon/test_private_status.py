"""Who sees what of the published status: everybody, owners, admins; with and without Slurm's PrivateData."""

import errno
import json
import os
import pwd
from contextlib import contextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from metasched.configuration.config import Access
from metasched.core.reasons import Code, Reason, without_strangers
from metasched.daemon.private_status import admins_of
from metasched.shared_dir import published_status
from metasched.shared_dir.published_status import PRIVATE_FIELDS
from tests.unit.site import FakeSite

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
NUMBERS = {name: pwd.getpwnam(name).pw_uid for name in ("nobody", "daemon", "games")}


@contextmanager
def user(name):
    """Let this process be another user."""
    os.seteuid(NUMBERS[name])
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def site(open_tmp):
    site = FakeSite(open_tmp)
    (open_tmp / "shared").chmod(0o755)
    for name in ("nobody", "daemon"):
        site.slurm.add("--hold", "--gres=gpu:4", comment="metasched", user=name, name=f"of-{name}")
    site.run(3)
    report(site, 0.25)
    site.run(3)
    yield site
    site.close()


def report(site, loss):
    """Let all jobs have a loss, and a progress of 40 steps."""
    with site.store.transaction():
        site.store._write("UPDATE jobs SET loss = ?, progress_steps = 40, total_steps = 100", [loss])


def hide_jobs(site, words="jobs,usage"):
    """Set Slurm's PrivateData, and let the daemon read it."""
    values = {**site.slurm._settings.values, "PrivateData": words}
    site.slurm._settings = replace(site.slurm._settings, values=values)
    site.run(70)


def of_user(site, name):
    """What a Unix user reads."""
    with user(name):
        return published_status.read(site.base / "shared")


def files(site):
    """The names in the private directory."""
    return {path.name for path in (site.base / "shared" / "private").iterdir()}


def test_everybody_sees_no_loss_speed_or_progress(site):
    """The two public files have every job and none of the private fields; ended jobs have none, either."""
    site.slurm.exit(site.status().jobs[0].slurm_job_id, 0, after=0.1)
    site.run(5)
    shared = site.base / "shared"
    live = json.loads((shared / "status-jobs.json").read_text())["jobs"]
    ended = json.loads((shared / "status.json").read_text())["finished"]
    assert (len(live), len(ended)) == (1, 1)
    for job in (*live, *ended):
        assert {name for name in PRIVATE_FIELDS & job.keys() if job[name] not in (None, 1.0, [])} == set()


def test_the_daemons_user_sees_all(site):
    """So do its commands and tests."""
    status = site.status()
    assert (status.seen, [job.loss for job in status.jobs]) == ("all", [0.25, 0.25])


@as_root
def test_owners_see_their_own_jobs_whole(site):
    """And of other jobs what everybody sees; a user without jobs sees the latter alone."""
    status = of_user(site, "nobody")
    assert (status.seen, [job.loss for job in status.jobs]) == ("own", [0.25, None])
    assert [job.progress_steps for job in status.jobs] == [40, None]
    status = of_user(site, "games")
    assert (status.seen, [job.loss for job in status.jobs]) == ("public", [None, None])


@as_root
def test_private_data_hides_whole_jobs(site):
    """Others' jobs, and their names in reasons, are neither in a user's status nor in a file for everybody."""
    hide_jobs(site)
    for name in ("status.json", "status-jobs.json"):
        text = (site.base / "shared" / name).read_text()
        assert "of-nobody" not in text
        assert "of-daemon" not in text
    status = of_user(site, "daemon")
    assert [job.name for job in status.jobs] == ["of-daemon"]
    assert "job 1" not in status.jobs[0].reason
    assert [node.jobs for node in of_user(site, "games").nodes if node.jobs] == []
    assert of_user(site, "games").jobs == ()
    assert [job.name for job in site.status().jobs] == ["of-nobody", "of-daemon"]
    hide_jobs(site, "none")
    assert len(of_user(site, "games").jobs) == 2


@as_root
def test_a_place_is_known_where_others_are_hidden(site):
    """The place counts the jobs of all users."""
    for number in range(8):
        name = "daemon" if number % 2 else "nobody"
        site.slurm.add("--hold", "--gres=gpu:4", comment="metasched", user=name, name=f"later-{number}")
    site.run(15)
    hide_jobs(site)
    whole = {job.name: job.place for job in site.status().jobs}
    own = {job.name: job.place for job in of_user(site, "daemon").jobs}
    assert own == {name: whole[name] for name in own}
    assert sorted(place for place in whole.values() if place) == list(range(1, 1 + sum(map(bool, whole.values()))))
    assert max(place or 0 for place in own.values()) > len(own)


@as_root
def test_admins_see_all(site):
    """An admin of the configuration reads the whole of every job; a reload that drops the admin takes that away."""
    access = Access(admins=("games",), admin_groups=("no-such-group",))
    site.controller.reconfigure(site.config.model_copy(update={"access": access}), site.controller.policy)
    site.run(3)
    status = of_user(site, "games")
    assert (status.seen, [job.loss for job in status.jobs]) == ("all", [0.25, 0.25])
    site.controller.reconfigure(site.config, site.controller.policy)
    site.run(3)
    assert of_user(site, "games").seen == "public"


def test_files_of_users_without_jobs_are_removed(site, monkeypatch):
    """Also those of an earlier daemon, at the first publication."""
    assert files(site) == {"all.json", f"{NUMBERS['nobody']}.json", f"{NUMBERS['daemon']}.json"}
    monkeypatch.setattr("metasched.daemon.status_publisher.FINISHED_SHOWN", 0)
    site.slurm.exit(site.status().jobs[0].slurm_job_id, 0, after=0.1)
    site.run(15)
    assert files(site) == {"all.json", f"{NUMBERS['daemon']}.json"}
    (site.base / "shared" / "private" / "77.json").write_text("{}")
    site.start()
    site.run(3)
    assert files(site) == {"all.json", f"{NUMBERS['daemon']}.json"}


def test_a_file_is_written_where_its_content_has_changed(site):
    """Progress of one job replaces the files that show it, and no file for everybody."""
    shared = site.base / "shared"
    paths = {
        name: shared / name
        for name in ("status-jobs.json", *(f"private/{NUMBERS[name]}.json" for name in ("nobody", "daemon")))
    }
    before = {name: path.stat().st_ino for name, path in paths.items()}
    uid = site.status().jobs[0].uid
    with site.store.transaction():
        site.store._write("UPDATE jobs SET loss = 0.125 WHERE uid = ?", [uid])
    site.run(3)
    assert [job.loss for job in site.status().jobs] == [0.125, 0.25]
    changed = {name for name, path in paths.items() if path.stat().st_ino != before[name]}
    assert changed == {f"private/{NUMBERS['nobody']}.json"}


def test_without_lists_owners_have_no_file(open_tmp, monkeypatch):
    """The daemon says so once and goes on; its own user sees all."""

    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("metasched.shared_dir.private_files.os.setxattr", unsupported)
    monkeypatch.setattr("metasched.shared_dir.private_files.os.fchown", unsupported)
    site = FakeSite(open_tmp)
    site.slurm.add("--hold", "--gres=gpu:1", comment="metasched", user="nobody")
    with capture_logs() as logs:
        site.run(10)
    assert files(site) == {"all.json"}
    assert site.status().seen == "all"
    assert [log["event"] for log in logs].count("status_not_shown_to_owners") == 1
    site.close()


def test_a_user_unknown_to_the_host_has_no_file(open_tmp):
    """Scheduling goes on."""
    site = FakeSite(open_tmp)
    site.slurm.add("--hold", "--gres=gpu:1", comment="metasched", user="no-such-user")
    site.run(5)
    assert files(site) == {"all.json"}
    site.close()


def test_unknown_admins_are_left_out():
    """The others remain."""
    found = admins_of(Access(admins=("no-such-user", "nobody"), admin_groups=("no-such-group",)))
    assert (found.users, found.groups) == ({NUMBERS["nobody"]}, frozenset())


def test_a_reason_names_known_jobs_alone():
    """Jobs of others are counted, and not named."""
    preempted = Reason.of(Code.PREEMPTED_FOR, jobs=("1", "2", "3"), more=2)
    assert dict(without_strangers(preempted, {"2"}).facts) == {"jobs": ("2",), "more": 4}
    assert dict(without_strangers(preempted, set()).facts) == {"jobs": ("another user's",), "more": 4}
    behind = Reason.of(Code.WAITS_BEHIND, job="7")
    assert without_strangers(behind, {"7"}) == behind
    assert dict(without_strangers(behind, {"8"}).facts) == {"job": "of another user"}
