"""Profiling runs: a few steps at another world size that measure the job's speed, and leave no checkpoint."""

import json

import pytest

pytestmark = pytest.mark.shim

STEPS = 4
JOB = ("--samples", 60, "--global-batch", 6, "--epochs", 2)


@pytest.fixture(scope="module")
def profiled(workplace):
    """A profiling run on two ranks, then the run itself on one."""
    place = workplace()
    file = place.directory / "trials.jsonl"
    trials = {"METASCHED_TRIALS": str(file)}
    place.codes = [place.launch(2, *JOB, **trials, METASCHED_TRIAL=str(STEPS)).wait()]
    place.before = place.checkpoint_files(), place.reports.exists()
    place.codes.append(place.launch(1, *JOB, **trials).wait())
    place.measured = [json.loads(line) for line in file.read_text().splitlines()]
    return place


def test_a_profiling_run_ends_after_its_steps(profiled):
    """All ranks of a profiling run exit with 0 after its steps."""
    assert profiled.codes == [[0, 0], [0]]


def test_a_profiling_run_measures_the_steps_after_the_warm_up(profiled):
    """Rank 0 writes one line of results, with the batch as this world splits it."""
    (line,) = profiled.measured
    assert line.pop("seconds") > 0
    assert line == {
        "steps": STEPS,
        "samples": STEPS * 6,
        "world_size": 2,
        "global_batch": 6,
        "per_gpu_batch": 3,
        "accumulation": 1,
    }


def test_a_profiling_run_leaves_nothing_behind(profiled):
    """No checkpoint, no report, and no claim on the checkpoint directory: the run is the first generation."""
    files, reported = profiled.before
    assert files == []
    assert not reported
    assert profiled.report(1)[0]["resumed"] is False
    assert profiled.report(1)[0]["incarnation"] == 1


def test_the_run_reports_what_the_profiling_runs_measured(profiled):
    """The run reports the profiling runs' results before its first steps."""
    kinds = [line["kind"] for line in profiled.report(1)]
    assert kinds.index("trial") < kinds.index("steps")
    (line,) = [line for line in profiled.report(1) if line["kind"] == "trial"]
    assert {key: line[key] for key in ("world_size", "steps", "samples")} == {
        "world_size": 2,
        "steps": STEPS,
        "samples": STEPS * 6,
    }


def test_the_run_after_a_profiling_run_trains_every_sample(profiled):
    """The run after a profiling run trains every sample once, from the first one on."""
    assert profiled.surviving() == {0: list(range(60)), 1: list(range(60))}


def test_a_profiling_run_stops_on_a_signal(workplace):
    """A profiling run that is stopped exits with the stop's code, and saves nothing."""
    place = workplace()
    profiling_run = place.launch(1, *JOB, "--step-seconds", 0.2, METASCHED_TRIAL="50")
    place.wait_for(lambda: list(place.directory.glob("trained-*.jsonl")), "the first step")
    profiling_run.signal(0)
    assert profiling_run.wait() == [85]
    assert place.checkpoint_files() == []


def test_profiling_runs_between_runs_do_not_disturb_the_checkpoint(workplace):
    """A stopped job that is profiled at another size resumes from its own checkpoint."""
    place = workplace()
    first = place.launch(1, *JOB, "--halt", 3)
    with place.halted(1, 3):
        first.signal(0)
    assert first.wait() == [85]
    saved = place.checkpoint_files()
    assert place.launch(2, *JOB, METASCHED_TRIAL=str(STEPS)).wait() == [0, 0]
    assert place.checkpoint_files() == saved
    assert place.launch(2, *JOB, run=2).wait() == [0, 0]
    assert place.report(2)[0]["resumed"] is True
