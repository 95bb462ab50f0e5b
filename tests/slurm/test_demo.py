import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest


def left_over(directory):
    """Return the command lines of processes that use files of a directory, or run in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().decode(errors="replace")
            if str(directory) in argv + str((process / "cwd").readlink()):
                found.append(argv)
        except OSError:
            continue
    return found


@pytest.fixture
def directory():
    """The directory of all files of the demo; its name is short, because Unix sockets will lie below it."""
    made = Path(tempfile.mkdtemp(prefix="msd-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def demo(directory):
    """Starts the demo with some options, and returns its process."""
    started = []

    def start(*options):
        argv = [sys.executable, "-m", "metasched", "demo", *options]
        environment = {**os.environ, "TMPDIR": str(directory), "COLUMNS": "200"}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.timeout(1100)
def test_the_demo_finishes_preempts_and_resizes(demo, directory):
    """Every job finishes with a loss, one is preempted, one resized; a replay decides the same; nothing is left."""
    output, errors = (process := demo()).communicate(timeout=1000)
    assert process.returncode == 0, output + errors
    table = output[output.index("FINAL LOSS") :].splitlines()
    rows = [line.split() for line in table if "COMPLETED" in line]
    assert len(rows) >= 4
    assert all(row[3] == "0" and re.fullmatch(r"\d+\.\d{4}", row[-1]) for row in rows)
    assert " → " in output
    assert int(re.search(r"^(\d+) rounds were decided, and replayed", output, re.MULTILINE)[1]) > 5
    assert list(directory.iterdir()) == []
    assert left_over(directory) == []


@pytest.mark.timeout(500)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_cleans_up(demo, directory, number):
    """Ctrl-C, SIGTERM and a hangup while jobs run leave neither processes nor files, however often they come."""
    process = demo()
    deadline = time.monotonic() + 450
    for line in process.stdout:
        if "running" in line:
            break
        assert time.monotonic() < deadline
    while process.poll() is None:
        process.send_signal(number)
        time.sleep(0.03)
        assert time.monotonic() < deadline
    assert process.returncode != 0
    assert list(directory.iterdir()) == []
    assert left_over(directory) == []
