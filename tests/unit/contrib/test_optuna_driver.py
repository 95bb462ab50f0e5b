"""The driver of an Optuna study: jobs, reports, orders and ends, with files in place of Slurm and the daemon."""

import importlib.util
import json
import math
import os
import time
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna")

DRIVER = Path(__file__).parents[3] / "contrib" / "integrations" / "metasched_optuna.py"
SPACE = {"lr": optuna.distributions.FloatDistribution(0.1, 1.0)}


@pytest.fixture
def module():
    spec = importlib.util.spec_from_file_location("metasched_optuna", DRIVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Site:
    """A shared directory with a status, and a study whose pruner wants less than 5."""

    def __init__(self, module, base):
        sbatch = base / "bin" / "sbatch"
        sbatch.parent.mkdir()
        sbatch.write_text(f'#!/bin/sh\necho "$@" >>{base}/calls\necho 12\n')
        sbatch.chmod(0o755)
        self.base = base
        self.study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=5.0))
        self.jobs = module.TrialJobs(self.study, base / "study", tag="max_gpus=2", shared=base)
        self.published = {"published": time.time(), "jobs": [], "finished": []}

    def submit(self):
        trial = self.study.ask(SPACE)
        self.jobs.submit(trial, "exec true")
        uid = f"{trial.number:016x}"
        (self.base / "reports" / uid).mkdir(parents=True)
        job = {"name": f"{self.jobs.app}-{trial.number}", "uid": uid, "status": "running", "finished": None}
        self.published["jobs"].append(job)
        return job

    def report(self, job, kind, **keys):
        with (self.base / "reports" / job["uid"] / "incarnation-1.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind} | keys) + "\n")

    def end(self, job, status):
        self.published["jobs"].remove(job)
        self.published["finished"].append(job | {"status": status, "finished": 1.0})

    def follow(self):
        summary = {key: value for key, value in self.published.items() if key != "jobs"}
        (self.base / "status.json").write_text(json.dumps(summary))
        (self.base / "status-jobs.json").write_text(json.dumps({"jobs": self.published["jobs"]}))
        left = self.jobs.follow()
        return left, [trial.state.name for trial in self.study.trials]

    def orders(self, job):
        path = self.base / "reports" / job["uid"] / "app.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def site(module, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return Site(module, tmp_path)


def test_trials_are_pruned_completed_and_failed(site):
    """Each by what its trainer reports and how its job ends; an order is written once."""
    good, bad, diverged, dead = (site.submit() for _ in range(4))
    site.report(good, "steps", step=10, metric=2.0)
    site.report(bad, "steps", step=10, metric=7.0)
    site.report(diverged, "steps", step=10, metric=None)
    site.report(dead, "steps", step=10, loss=1.0)
    assert site.follow()[0] == site.follow()[0] == 4
    (order,) = site.orders(bad)
    assert order == {"v": 1, "kind": "order", "uid": bad["uid"], "end": True, "words": "pruned at step 10"}
    assert site.orders(good) == []
    site.report(good, "end", step=20, metric=1.0)
    for job, status in ((good, "completed"), (bad, "completed"), (diverged, "completed"), (dead, "failed")):
        site.end(job, status)
    assert site.follow() == (0, ["COMPLETE", "PRUNED", "PRUNED", "FAIL"])
    assert site.study.best_value == 1.0
    assert list(site.study.trials[0].intermediate_values.values()) == [2.0, 1.0]
    assert math.isnan(site.study.trials[2].intermediate_values[10])
    first = (site.base / "calls").read_text().splitlines()[0]
    assert f"--comment=metasched app={site.jobs.app} tuner=outside max_gpus=2" in first


def test_a_trial_without_a_job_fails_after_a_while(module, site, monkeypatch):
    """But not while the daemon publishes nothing."""
    site.published["jobs"].remove(site.submit())
    monkeypatch.setattr(module, "LOST_SECONDS", -1.0)
    site.published["published"] -= 1000
    assert site.follow() == (1, ["RUNNING"])
    site.published["published"] += 1000
    assert site.follow() == (0, ["FAIL"])
