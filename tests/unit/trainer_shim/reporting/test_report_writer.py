"""Reports on a file system that misbehaves: the training does not notice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_shim.reporting.report_writer import ReportWriter

ROOT = Path(__file__).parents[4]


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def hung(tmp_path):
    """Return a report file to which writes block: a pipe that is not open for reading."""
    path = tmp_path / "incarnation-1.jsonl"
    os.mkfifo(path)
    return path


def test_a_hung_file_system(hung, tmp_path):
    """While the first write hangs, further lines do not block the trainer; later the file has all lines in order."""
    reporter = ReportWriter(tmp_path, 1)
    for step in range(1000):
        reporter.emit("steps", step=step)
    with hung.open() as file:
        found = [json.loads(file.readline())["step"] for _ in range(1000)]
        assert found == list(range(1000))
        reporter.emit("end", step=1000)
        assert json.loads(file.readline())["kind"] == "end"


def test_the_queue_is_bounded(hung, tmp_path):
    """The lines that wait for a hung file system have a bounded number of bytes."""
    reporter = ReportWriter(tmp_path, 1)
    for _ in range(300):
        reporter.emit("steps", text="x" * 10_000)
    assert 1 << 19 < len(reporter._pending) < 1.1 * (1 << 20)
    with hung.open() as file:
        assert json.loads(file.readline())["text"] == "x" * 10_000


@pytest.mark.parametrize("before", ["nothing", "private", "open", "link"])
def test_who_may_read(tmp_path, before):
    """The daemon may read the reports, also where an earlier trainer was killed before it had seen to that."""
    directory, secrets = tmp_path / "uid", tmp_path / "secrets"
    secrets.mkdir(mode=0o700)
    if before == "link":
        directory.symlink_to(secrets)
    elif before != "nothing":
        directory.mkdir(mode=0o700 if before == "private" else 0o711)
    ReportWriter(directory, 1).emit("start")
    assert directory.stat().st_mode & 0o777 == {"open": 0o711, "link": 0o700}.get(before, 0o755)


def test_anothers_directory(tmp_path, monkeypatch):
    """Nothing is written into a directory that another user made; when it is out of the way, nothing is lost."""
    directory = tmp_path / "uid"
    directory.mkdir()
    reporter = ReportWriter(directory, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
        reporter.emit("start")
    directory.rmdir()  # fails where something was written
    reporter.emit("end")
    assert [line["kind"] for line in lines((directory / "incarnation-1.jsonl").read_text())] == ["start", "end"]


def test_the_last_lines_of_a_killed_trainer(tmp_path):
    """Every line that was emitted before a kill -9 is in the file."""
    script = """
import os, signal, sys
from pathlib import Path
from trainer_shim.reporting.report_writer import ReportWriter
reporter = ReportWriter(Path(sys.argv[1]), 1)
for step in range(200):
    reporter.emit("steps", step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [line["step"] for line in lines((tmp_path / "incarnation-1.jsonl").read_text())] == list(range(200))
