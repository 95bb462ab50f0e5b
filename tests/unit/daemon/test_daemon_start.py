"""The daemon refuses to start where it could do harm, with one message and no traceback."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from metasched.store import Store

ROOT = Path(__file__).parents[3]


@pytest.fixture
def site(tmp_path):
    (tmp_path / "state").mkdir()
    config = tmp_path / "metasched.toml"
    config.write_text(f'[paths]\nstate = "{tmp_path}/state"\nshared = "{tmp_path}/shared"\n[policy]\nname = "fifo"\n')
    return tmp_path


def refused(site):
    """Standard error of a daemon that must not start."""
    done = subprocess.run(
        [sys.executable, "-m", "metasched", "--config", str(site / "metasched.toml"), "daemon"],
        env={**os.environ, "PATH": str(site)},  # no Slurm command is needed to refuse
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def content(path):
    """All rows of a database, as SQL."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def test_a_wrong_configuration_is_refused(site):
    """The message has the file, the key and the nearest valid name."""
    with (site / "metasched.toml").open("a") as file:
        file.write("[schedule]\nround_second = 3\n")
    said = refused(site)
    for part in ("metasched.toml", "[schedule] round_second", "round_seconds"):
        assert part in said


def test_an_unknown_policy_is_refused(site):
    """The message has the known policies."""
    text = (site / "metasched.toml").read_text()
    (site / "metasched.toml").write_text(text.replace('"fifo"', '"fife"'))
    said = refused(site)
    assert "'fife'" in said
    assert "fifo" in said


def test_a_database_of_a_newer_version_is_refused_unchanged(site):
    """The message names the database."""
    path = site / "state" / "metasched.db"
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 9999")
        (table,) = db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%migrations%'").fetchone()
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        values = {"migration_set": "metasched", "name": "9999_from_the_future", "applied_at": "2099-01-01"}
        known = [column for column in columns if column in values]
        marks = ", ".join("?" * len(known))
        insert = f"INSERT INTO {table} ({', '.join(known)}) VALUES ({marks})"  # noqa: S608  the schema's own names
        db.execute(insert, [values[column] for column in known])
    before = content(path)
    said = refused(site)
    assert "metasched.db" in said
    assert "newer" in said
    assert content(path) == before


def test_a_file_that_is_not_a_database_is_refused_unchanged(site):
    """The message names the file."""
    path = site / "state" / "metasched.db"
    path.write_text("my thesis")
    assert "metasched.db" in refused(site)
    assert path.read_text() == "my thesis"


@pytest.mark.parametrize("key", ["state", "shared"])
def test_a_directory_that_cannot_be_made_is_an_error(site, key):
    """The message has the key of the configuration."""
    text = (site / "metasched.toml").read_text()
    (site / "file").write_text("")
    (site / "metasched.toml").write_text(text.replace(f"{site}/{key}", f"{site}/file/{key}"))
    said = refused(site)
    assert f"[paths] {key}" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_state_directory_is_an_error(site):
    """The message names the directory."""
    (site / "state").chmod(0o500)
    assert f"{site}/state" in refused(site)


def test_a_daemon_imports_no_library_that_its_policy_does_not_need(tmp_path):
    """A daemon under a simple policy, with a database of this version, has no solver and no scipy in its memory."""
    Store.open(tmp_path / "store.sqlite").close()
    script = (
        "import sys; from pathlib import Path; import metasched.daemon.process as daemon\n"
        "daemon.Store.open(Path(sys.argv[1])).close(); daemon.installed_policies().get('las')\n"
        "print(sorted({'highspy', 'pandas', 'pulp', 'scipy', 'sqlite_utils', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "store.sqlite"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
