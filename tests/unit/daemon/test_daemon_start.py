"""The daemon refuses to start where it could do harm: one message, no traceback, nothing half-done."""

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
    """What a daemon that must not start says."""
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
    """All that a database holds."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def test_a_wrong_configuration(site):
    """The file, the key and the nearest valid name are told."""
    with (site / "metasched.toml").open("a") as file:
        file.write("[schedule]\nround_second = 3\n")
    said = refused(site)
    for part in ("metasched.toml", "[schedule] round_second", "round_seconds"):
        assert part in said


def test_an_unknown_policy(site):
    """The known ones are told."""
    text = (site / "metasched.toml").read_text()
    (site / "metasched.toml").write_text(text.replace('"fifo"', '"fife"'))
    said = refused(site)
    assert "'fife'" in said
    assert "fifo" in said


def test_a_database_from_a_newer_version(site):
    """It is named and left as it is."""
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


def test_a_database_that_is_none(site):
    """A file of something else is named, and not overwritten."""
    path = site / "state" / "metasched.db"
    path.write_text("my thesis")
    assert "metasched.db" in refused(site)
    assert path.read_text() == "my thesis"


@pytest.mark.parametrize("key", ["state", "shared"])
def test_a_directory_that_cannot_be_made(site, key):
    """The key of the configuration is told."""
    text = (site / "metasched.toml").read_text()
    (site / "file").write_text("")
    (site / "metasched.toml").write_text(text.replace(f"{site}/{key}", f"{site}/file/{key}"))
    said = refused(site)
    assert f"[paths] {key}" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_that_is_read_only(site):
    """The directory is told."""
    (site / "state").chmod(0o500)
    assert f"{site}/state" in refused(site)
