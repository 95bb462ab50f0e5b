import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict

import pytest

from metasched.core.policy_text import PolicyTextError
from metasched.forecast.result_file import ResultError
from metasched.forecast.what_if_result import WhatIfTask, read_result
from metasched.forecast.what_if_run import main, what_if
from metasched.slurm.client import JobState
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

SETTINGS = {"round_seconds": 10.0, "start_seconds": 1.0, "restart_seconds": 1.0}


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]))
    yield made
    made.close()


@pytest.fixture
def task(site, tmp_path):
    """Compares the live policy with two others, on one job that runs and one that waits for it."""
    first = site.add("--gres=gpu:4")
    site.add("--gres=gpu:4")
    site.run_until(lambda: site.state(first) is JobState.RUNNING)
    site.run(5)
    return WhatIfTask(
        *(str(site.store.path), str(tmp_path / "result.json"), ("srtf", "las:promote_knob=3"), "ann"),
        *(time.time(), SETTINGS, 500),
    )


def test_the_live_jobs_end_under_every_policy(site, task):
    """The round's own policy is first; both jobs complete, the one that runs first."""
    found = what_if(task)
    assert [one.name for one in found.policies] == ["fifo (now)", "srtf", "las:promote_knob=3"]
    assert all((one.completed, one.never, one.ended_by_tuner) == (2, 0, 0) for one in found.policies)
    assert found.round == site.store.last_round().round
    ends = [job.ends["fifo (now)"] for job in found.jobs]
    assert found.at < ends[0] < ends[1] == found.policies[0].last_end
    assert (found.problem, found.left_out) == ("", 0)


def test_a_what_if_changes_nothing(site, task):
    """The database has the same rounds, decisions and states as before."""

    def content():
        with closing(sqlite3.connect(f"file:{site.store.path}?mode=ro", uri=True)) as database:
            return list(database.iterdump())

    before = content()
    what_if(task)
    assert content() == before


def test_farther_jobs_are_left_out(task):
    """At most so many jobs are simulated as the task allows; the result says how many are missing."""
    found = what_if(WhatIfTask(**asdict(task) | {"jobs": 1, "policies": task.policies}))
    assert (len(found.jobs), found.left_out) == (1, 1)


def test_a_policy_that_cannot_be_used_is_the_problem(task, tmp_path, monkeypatch):
    """The message is raised, and the process keeps it as its result."""
    wrong = WhatIfTask(**asdict(task) | {"policies": ("nonsense",)})
    with pytest.raises(PolicyTextError):
        what_if(wrong)
    for name in ("os.nice", "resource.setrlimit", "end_with_standard_input"):
        monkeypatch.setattr(f"metasched.forecast.what_if_run.{name}", lambda *_: None)
    assert main(json.dumps(asdict(wrong))) == 0
    found = read_result(tmp_path / "result.json")
    assert "nonsense" in found.problem
    assert (found.asked, found.asked_by, found.jobs) == (("nonsense",), "ann", ())


@pytest.mark.parametrize("content", [b"", b"{}", b'{"asked_by": 1}', b"\xff" * 50])
def test_another_file_is_no_result(tmp_path, content):
    """A file of something else is refused."""
    (tmp_path / "what-if-1.json").write_bytes(content)
    with pytest.raises(ResultError):
        read_result(tmp_path / "what-if-1.json")


def test_a_what_if_ends_with_the_process_that_started_it():
    """Once its standard input is closed, the process ends, in whatever computation it is."""
    program = "from metasched.forecast import what_if_run as run; run.end_with_standard_input(); print(1, flush=True)"
    busy = f"{program}\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"1\n"
            assert process.poll() is None
            process.stdin.close()
            assert process.wait(60) == 1
        finally:
            process.kill()
