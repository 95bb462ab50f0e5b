import os
import sys
import tempfile
import tomllib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

import trainer_shim
from metasched.cli import main
from metasched.configuration.config import load
from metasched.core.model import Placement
from metasched.core.policy import installed_policies
from metasched.demo import demo_run, train
from metasched.demo.demo_cluster import DemoCluster, DemoError
from metasched.demo.jobs import JOBS, SETTINGS, THRESHOLD_GPU_SECONDS, configuration
from metasched.demo.outcomes import outcome, problems
from metasched.devcluster import script_paths
from metasched.slurm.tags import parse_tag
from metasched.store import EndCause, JobRecord, RunRecord


def run(number, gpus, cause):
    """Return run number `number`, which started on `gpus` GPUs of node n1."""
    placement = Placement(("n1",), gpus, "v100")
    return RunRecord("a", number, placement, 0.0, placement, 10.0 * number, ended=10.0 * number + 5, cause=cause)


def record(**changes):
    fields = {"uid": "a", "slurm_job_id": "1", "name": "wide", "user": "ada", "submitted": 0.0, "finished": 40.0}
    return JobRecord(
        **(fields | {"ran_seconds": 30.0, "end_state": "COMPLETED", "exit_code": 0, "loss": 0.1} | changes)
    )


WITHDRAWN = RunRecord("a", 9, Placement(("n1",), 4, "v100"), 0.0, ended=1.0, cause=EndCause.WITHDRAWN)
GOOD = outcome(
    record(), [run(1, 4, EndCause.RESIZED), run(2, 2, EndCause.PREEMPTED), WITHDRAWN, run(3, 4, EndCause.FINISHED)]
)


def test_an_outcome_counts_preemptions_and_resizes():
    """The started runs have a world size each; a resize is a change of it, a preemption a stop for another job."""
    assert GOOD.world_sizes == (4, 2, 4)
    assert (GOOD.resizes, GOOD.preemptions, GOOD.waited_seconds) == (2, 1, 10.0)
    assert problems([GOOD], 1) == []


@pytest.mark.parametrize(
    ("job", "runs", "text"),
    [
        ({"exit_code": 1, "end_state": "FAILED"}, [], "ended as FAILED with code 1"),
        ({"loss": None}, [], "reported no loss"),
        ({}, [run(1, 4, EndCause.FINISHED)], "no job was preempted"),
        ({}, [run(1, 4, EndCause.PREEMPTED), run(2, 4, EndCause.FINISHED)], "no job was resized"),
    ],
)
def test_each_missing_event_is_a_problem(job, runs, text):
    """A failed job, a missing loss, no preemption and no resize are each named."""
    assert any(text in problem for problem in problems([outcome(record(**job), runs)], 1))


def test_a_missing_job_is_a_problem():
    """The message has the number of jobs in the database and in the demo."""
    assert problems([GOOD], 2) == ["only 1 of 2 jobs are in the database"]


def test_the_jobs_fit_the_cluster():
    """The demo's cluster has 4 nodes of 4 GPUs; each tag is valid; at most 8 ranks run at once."""
    assert [(group.count, group.gpus) for group in SETTINGS.groups] == [(1, 4), (3, 4)]
    assert len(JOBS) >= 4
    for job in JOBS:
        assert parse_tag(f"metasched {job.tag}") is not None
    v100 = sum(group.count * group.gpus for group in SETTINGS.groups if group.gpu_type == "v100")
    others = sum(job.nodes * job.gpus_per_node for job in JOBS if job.gpu_type != "v100")
    assert v100 + others <= 8


def test_a_job_is_due_when_another_is_past_the_threshold():
    """A later job is due when the named job has trained and is in the second queue; a first job is due at once."""
    first, later = JOBS[0], next(job for job in JOBS if job.after)

    def status(steps, service):
        one = SimpleNamespace(name=later.after, progress_steps=steps, attained_service=service)
        return SimpleNamespace(jobs=(one,), finished=())

    assert first.due(SimpleNamespace(jobs=(), finished=()))
    assert not later.due(SimpleNamespace(jobs=(), finished=()))
    assert not later.due(status(None, 1000.0))
    assert not later.due(status(1000, THRESHOLD_GPU_SECONDS))
    assert later.due(status(1000, THRESHOLD_GPU_SECONDS + 1))


def test_the_demos_configuration_is_valid(tmp_path):
    """The daemon reads the file that the demo writes."""
    path = tmp_path / "metasched.toml"
    path.write_text(configuration(tmp_path / "state", tmp_path / "shared"))
    assert load(path, installed_policies()).policy.name == "las"
    assert tomllib.loads(path.read_text())["paths"]["shared"] == str(tmp_path / "shared")


def test_another_policy_is_in_the_configuration(tmp_path):
    """The demo runs under any installed policy, with parameters; its jobs then need not move."""
    path = tmp_path / "metasched.toml"
    path.write_text(configuration(tmp_path / "state", tmp_path / "shared", ("fifo", {"backfill": True})))
    assert load(path, installed_policies()).policy.parameters.backfill is True
    assert problems([outcome(record(), [run(1, 4, EndCause.FINISHED)])], 1, moves=False) == []


def test_a_shortfall_ends_with_code_1(monkeypatch, tmp_path):
    """The demo shows the table, then the logs and the missing event."""
    result = demo_run.DemoResult([GOOD], 9, ["no job was resized"], ["the end of daemon.log:\noops \x1b[1m"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo_run, "run", lambda show, base, announce, **options: result)
    done = CliRunner().invoke(main, ["demo"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "4 → 2 → 4" in done.stdout
    assert r"oops \x1b[1m" in done.stderr
    assert "no job was resized" in done.stderr


@pytest.mark.parametrize("error", [DemoError("no luck"), KeyboardInterrupt()])
def test_kept_files_are_named_after_a_failure(monkeypatch, tmp_path, error):
    """With --keep the command prints the directory, however the demo ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo_run, "run", Mock(side_effect=error))
    result = CliRunner().invoke(main, ["demo", "--keep"])
    assert result.exit_code == 1
    assert f"kept in {next(tmp_path.iterdir())}\n" in result.stdout


def test_a_job_that_cannot_be_submitted_is_named(tmp_path):
    """The demo submits several jobs; sbatch's own message has none of their names."""
    cluster = DemoCluster(tmp_path, SimpleNamespace(env={"PATH": "/nowhere"}), None)
    with pytest.raises(DemoError, match=f"job {JOBS[0].name}: cannot start sbatch"):
        cluster.submit(JOBS[0], 0.1)


def test_the_demos_trainers_use_no_real_gpu(monkeypatch):
    """CUDA_VISIBLE_DEVICES is empty before torch could initialise a real GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(sys, "argv", ["train", "--epochs", "1"])
    monkeypatch.setattr(trainer_shim, "init", lambda _: sys.exit(os.environ["CUDA_VISIBLE_DEVICES"]))
    with pytest.raises(SystemExit) as left:
        train.main()
    assert left.value.code == ""


def test_the_slurm_scripts_are_found():
    """The wrapper is found in the checkout; the error for an unknown name lists the searched folders."""
    assert script_paths.slurm_script("metasched-run").is_file()
    with pytest.raises(script_paths.NotInstalledError, match="slurm_scripts"):
        script_paths.slurm_script("nothing-of-that-name")
