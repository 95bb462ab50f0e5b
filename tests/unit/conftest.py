"""The Hypothesis profile, log format, a faster way to make new stores, and fixtures of several files."""

import functools
import os
import signal
import sqlite3
import tempfile
from pathlib import Path

import pytest
import structlog

from metasched.store import schema
from tests.hypothesis_profiles import load_profile

load_profile()

# structlog's default renders tracebacks with all local variables, which takes most of the time of some tests
structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])

_migrate = schema.migrate


@functools.cache
def _new_store():
    """An empty store in memory, migrated as usual."""
    made = sqlite3.connect(":memory:", check_same_thread=False)
    _migrate(made)
    return made


def _copy_or_migrate(connection):
    """Fill an empty database from a new store, as all migrations are slow for thousands of tests; migrate any other."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        _new_store().backup(connection)
    else:
        _migrate(connection)


schema.migrate = _copy_or_migrate


@pytest.fixture
def open_tmp():
    """A temporary directory that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def trainer_process(tmp_path, monkeypatch):
    """This process as that of a new trainer, with reports in ``tmp_path``; signals and environment are restored."""
    # not at the top: most tests need no torch
    from trainer_shim.preemption.exit import process_exit  # noqa: PLC0415

    def leave(code):
        raise SystemExit(code)  # as process_exit does, without the end of this process behind it

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    for name in list(os.environ):
        if name.startswith(("METASCHED_", "SLURM_")) or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("METASCHED_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr(process_exit, "start", leave)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
