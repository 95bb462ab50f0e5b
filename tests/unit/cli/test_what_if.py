import dataclasses
import importlib
import json

import pytest
from click.testing import CliRunner

from metasched.api.what_if import WhatIf
from metasched.cli.app import main
from metasched.simulator.what_if import Forecast
from metasched.store.gpu_use import GpuUse
from tests import builders

NOW = 10_000.0
POLICIES = ("las (now)", "fifo")


def found(uses):
    """Three jobs of four GPUs that end after an hour under LAS and two under FIFO; how idle their GPUs were, by uid."""
    jobs = [builders.job(uid, 4, name=f"train-{uid}") for uid in "abc"]
    ends = dict(zip(POLICIES, (NOW + 3600, NOW + 7200), strict=True))
    held = dict(zip(POLICIES, (4 * 3600.0, 8 * 3600.0), strict=True))
    return WhatIf(
        now=NOW,
        current="las (now)",
        others=("fifo",),
        forecasts=tuple(Forecast(job, "assumed", ends, dict.fromkeys(POLICIES, 0), {}, held) for job in jobs),
        planned={},
        gpu_use={uid: GpuUse(7200.0, 1 - idle, idle) for uid, idle in uses.items()},
        gpu_use_of_all=None,
    )


@pytest.fixture
def show(monkeypatch):
    """Run `metasched what-if` with these uses of GPUs, and return its output."""

    def call(uses, *options):
        module = importlib.import_module("metasched.api.what_if")  # metasched.api has a function of the same name
        monkeypatch.setattr(module, "what_if", lambda *_, **__: found(uses))
        done = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["what-if", "--policy", "fifo", *options])
        assert done.exit_code == 0, done.output
        return done.output

    return call


def test_jobs_whose_gpus_are_idle_are_named_with_the_hours_to_come(show):
    """A job that keeps its GPUs busy is not named, and counts in the sums; one without a measurement does neither."""
    output = show({"a": 0.5, "b": 0.05})
    named = output[output.index("Idle GPUs") :]
    rows = [line.split() for line in named.splitlines() if "train-" in line]
    assert rows == [["a", "train-a", "ann", "50%", "2.0", "4.0"]]
    assert "las (now): 2.2 of the 8.0 GPU hours of 2 measured jobs are idle" in named
    assert "fifo: 4.4 of the 16.0 GPU hours of 2 measured jobs are idle" in named


def test_an_empty_queue_is_said(monkeypatch):
    """Without jobs there is a sentence in place of a table's headings."""
    module = importlib.import_module("metasched.api.what_if")
    monkeypatch.setattr(module, "what_if", lambda *_, **__: dataclasses.replace(found({}), forecasts=()))
    done = CliRunner().invoke(main, ["what-if", "--policy", "fifo"])
    assert (done.exit_code, done.output) == (0, "No job waits or runs: there is nothing to simulate.\n")


def test_nothing_is_told_of_idle_gpus_where_nothing_was_measured(show):
    """The ends are shown alone."""
    output = show({})
    assert ("idle" in output.lower(), "train-a" in output) == (False, True)


def test_json_has_the_idle_hours_by_policy(show):
    """A job without a measurement has null, and the hours that it holds."""
    rows = json.loads(show({"a": 0.5}, "--json"))["rows"]
    assert rows[0]["idle_gpu_hours"] == {"las (now)": 2.0, "fifo": 4.0}
    assert (rows[1]["idle_gpu_hours"], rows[1]["gpu_hours"]) == (None, {"las (now)": 4.0, "fifo": 8.0})
