import json
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from metasched.cli import health, main
from metasched.shared_dir.published_status import NodeStatus, Status, publish


def status(age=0, **changes):
    """Return a published status without a job, `age` seconds old."""
    fields = {
        "published": time.time() - age,
        "poll_seconds": 2.0,
        "cluster": "dev",
        "host": "login1",
        "pid": 42,
        "policy": "las",
        "round": 17,
        "round_at": time.time(),
        "next_round": time.time() + 30,
        "slurm": "ok",
        "nodes": (NodeStatus("n1", "v100", 4, 2, accepts=True),),
        "jobs": (),
    }
    return Status(**(fields | changes))


@pytest.fixture
def ask(tmp_path):
    """Publishes a status and calls `metasched health`."""

    def call(found, *argv):
        if found is not None:
            publish(tmp_path, found)
        return CliRunner().invoke(main, ["health", "--shared", str(tmp_path), *argv])

    return call


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({}, 0, "METASCHED OK - dev: policy las, round 17"),
        ({"age": 60}, 1, "published nothing for"),
        ({"age": 6000}, 2, "published nothing for"),
        ({"slurm": "down | x"}, 2, "Slurm: down / x"),
        ({"store": "locked"}, 1, "database: locked"),
        ({"store": "locked", "next_round": None}, 2, "database: locked"),
        ({"degraded": "no solution"}, 1, "degraded: no solution"),
        ({"nodes": (NodeStatus("n1", "v100", 4, 2, accepts=True, gpus_leaked=2),)}, 1, "2 GPUs allocated without"),
        ({"nodes": (NodeStatus("n1", "v100", 4, 0, accepts=False, reason="Duplicate jobid"),)}, 1, "1 node drained"),
    ],
)
def test_the_exit_code_is_that_of_a_nagios_plugin(ask, changes, code, text):
    """One line: the level, what is wrong, and the numbers behind the only bar."""
    result = ask(status(**changes))
    assert result.exit_code == code, result.output
    assert text in result.output
    assert (result.output.count("\n"), result.output.count("|")) == (1, 1)


def test_without_a_status_the_health_is_unknown(ask, tmp_path):
    """A missing status and a missing directory are exit code 3, on standard output, as monitors read it."""
    result = ask(None)
    assert (result.exit_code, result.stdout.startswith("METASCHED UNKNOWN - ")) == (3, True)
    nowhere = CliRunner().invoke(
        main, ["--config", str(tmp_path / "none.toml"), "health"], env={"METASCHED_SHARED": ""}
    )
    assert nowhere.exit_code == 3


@pytest.mark.parametrize(("free", "code"), [(500, 0), (30, 1), (5, 2)])
def test_a_full_disk_is_told(ask, monkeypatch, free, code):
    """Under 5 % of free space are a warning, under 1 % critical."""
    monkeypatch.setattr(health.os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_blocks=1000))
    assert ask(status()).exit_code == code


def test_the_worst_finding_decides(ask):
    """The worst stands first, and --json has all findings and the numbers."""
    result = ask(status(slurm="down", degraded="no solution"), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["level"], found["code"]) == (2, "critical", 2)
    assert found["findings"] == ["Slurm: down", "degraded: no solution"]
    assert found["numbers"]["gpus"] == 4


def test_thresholds_have_an_order(ask):
    """A critical age below the warning's is a wrong call."""
    assert ask(status(), "--warning", "60", "--critical", "30").exit_code == 2
