from __future__ import annotations

import os
from pathlib import Path

import pytest

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.gavel import COLUMNS, read_gavel
from metasched.throughput.throughput_table import ThroughputTable
from tests.unit.gavel_tables import small_table

GOOD = {
    "job_type": "quick",
    "command": "python3 main.py --data '%s/x'",
    "working_directory": "images",
    "num_steps_argument": "--steps",
    "needs_data_directory": "1",
    "total_steps": "500",
    "scale_factor": "1",
    "priority_weight": "1",
    "slo": "-1.000000",
    "arrival_seconds": "0",
}


def trace(tmp_path, *lines):
    """A trace; each line is what differs from a good one, or text as it is."""
    path = tmp_path / "jobs.trace"
    rows = (line if isinstance(line, str) else "\t".join((GOOD | line)[name] for name in COLUMNS) for line in lines)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def drawn(table, seed=0, **parameters):
    return gavel_jobs(table, GavelWorkloadParameters(**parameters), seed)


def test_each_line_of_a_trace_is_a_job(tmp_path):
    """A job has the model, GPUs, steps and arrival of its line; uids sort as the lines do, ids are their numbers."""
    lines = [{}] * 9 + [{"job_type": "steady", "scale_factor": "2", "arrival_seconds": "12.5"}]
    found = read_gavel(trace(tmp_path, *lines), small_table())
    jobs = [submission.job for submission in found.submissions]
    assert [job.uid for job in jobs] == [f"{i:02}" for i in range(1, 11)]
    assert [job.slurm_job_id for job in jobs] == [str(i) for i in range(1, 11)]
    assert (jobs[-1].name, jobs[-1].gpus, jobs[-1].submitted) == ("steady", 2, 12.5)
    assert found.submissions[-1].training.total == 500
    assert found.source == "jobs.trace"


def test_weights_are_relative_to_the_largest(tmp_path):
    """Weights of 5 and 1 become 1 and 0.2."""
    found = read_gavel(trace(tmp_path, {}, {"priority_weight": "5.0"}), small_table())
    assert [submission.job.weight for submission in found.submissions] == [0.2, 1.0]


def test_an_slo_is_a_factor_on_the_isolated_duration(tmp_path):
    """500 steps at 10 steps/s take 50 s; an SLO of 2 allows 100."""
    found = read_gavel(trace(tmp_path, {"slo": "2.0"}, {}), small_table())
    assert [submission.job.slo_seconds for submission in found.submissions] == [100.0, None]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("job_type", "slow", "'slow' is not known"),
        ("job_type", " ", "is empty"),
        ("total_steps", "many", "not a number"),
        ("total_steps", "0", "below 1"),
        ("total_steps", "1.5", "not whole"),
        ("scale_factor", "0", "below 1"),
        ("scale_factor", "8", "no speed is known"),
        ("scale_factor", "16", "asks for 16 GPUs, and the cluster can give one job 8"),
        ("priority_weight", "-1", "below 0"),
        ("slo", "nan", "not finite"),
        ("arrival_seconds", "-3", "below 0"),
        ("arrival_seconds", "1", "before the line above"),
    ],
)
def test_a_bad_field_is_refused_by_line_and_column(tmp_path, column, value, words):
    """The error names file, line and column, the fault, and a fix."""
    path = trace(tmp_path, {"arrival_seconds": "2"}, {"arrival_seconds": "2"} | {column: value})
    with pytest.raises(TraceError) as caught:
        read_gavel(path, small_table(), most_gpus=8)
    assert (caught.value.file, caught.value.line, caught.value.column) == (path, 2, column)
    assert words in caught.value.fault
    assert str(path) in str(caught.value)
    assert caught.value.fix in str(caught.value)


def test_an_slo_of_a_job_that_cannot_run_on_the_reference_type_is_refused(tmp_path):
    """Its isolated duration there is not known."""
    path = trace(tmp_path, {"job_type": "steady", "scale_factor": "2", "slo": "2.0"})
    with pytest.raises(TraceError, match="line 1, column 'slo'"):
        read_gavel(path, small_table(), reference="k80")


def test_missing_and_superfluous_fields_are_refused(tmp_path):
    """A short line names the first column that is missing; a long one is refused as a whole."""
    with pytest.raises(TraceError, match="line 2, column 'working_directory'"):
        read_gavel(trace(tmp_path, {}, "quick\tpython3"), small_table())
    with pytest.raises(TraceError, match="line 1: the line has 11 fields"):
        read_gavel(trace(tmp_path, "\t".join(["x"] * 11)), small_table())


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """The error names the file, and no line."""
    with pytest.raises(TraceError) as caught:
        read_gavel(tmp_path / "gone", small_table())
    assert (caught.value.line, caught.value.column) == (None, None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_gavel(tmp_path / "binary", small_table())


def test_the_published_trace_is_read():
    """The trace has 15 jobs, each of at most two GPUs."""
    data = os.environ.get("METASCHED_DATA")
    if data is None:
        pytest.skip("METASCHED_DATA does not name the folder of the public data")
    folder = Path(data) / "gavel"
    table = ThroughputTable.read(folder / "simulation_throughputs.json")
    found = read_gavel(folder / "traces" / "artifact_evaluation.trace", table, most_gpus=2)
    assert len(found.submissions) == 15
    assert found.submissions[0].training.total == 2931


def wide_table():
    """One job type on 1 to 8 GPUs, and one on a single GPU alone."""
    alone = {("many", gpus): 10.0 * gpus for gpus in (1, 2, 4, 8)} | {("one", 1): 5.0}
    return ThroughputTable({"v100": alone}, {})


def test_a_seed_fixes_the_generated_jobs():
    """The same seed gives the same jobs, another seed gives others."""
    first, again, other = (drawn(wide_table(), seed, jobs=50, jobs_per_hour=4) for seed in (1, 1, 2))
    assert [s.job for s in first.submissions] == [s.job for s in again.submissions]
    assert [s.job.submitted for s in first.submissions] != [s.job.submitted for s in other.submissions]


def test_continuous_jobs_are_those_of_the_paper():
    """Durations on the reference, sizes and arrivals have the paper's distributions."""
    made = drawn(wide_table(), 3, jobs=4000, jobs_per_hour=4, multiple=True).submissions
    minutes = [s.training.total / wide_table().speed(s.job.name, "v100", (s.job.gpus,)) / 60 for s in made]
    assert min(minutes) >= 10**1.5
    assert max(minutes) <= 10**4
    assert sum(m > 1000 for m in minutes) / 4000 == pytest.approx(0.2, abs=0.03)
    sizes = [s.job.gpus for s in made]
    assert [sizes.count(gpus) / 4000 for gpus in (1, 2, 4, 8)] == pytest.approx([0.7, 0.1, 0.15, 0.05], abs=0.03)
    assert all(s.job.name == "many" for s in made if s.job.gpus > 1)
    assert made[0].job.submitted == 0.0
    assert made[-1].job.submitted / 3999 == pytest.approx(900.0, rel=0.1)


def test_static_jobs_all_arrive_at_once():
    """Without ``multiple`` each has one GPU."""
    made = drawn(wide_table(), 1, jobs=30).submissions
    assert {(s.job.submitted, s.job.gpus) for s in made} == {(0.0, 1)}


def test_weights_and_slos_are_given_on_request():
    """A fifth has five times the weight; SLOs are 1.2, 2 or 10 times the duration."""
    made = drawn(wide_table(), 1, jobs=2000, weights=True, slos=True).submissions
    weights = [s.job.weight for s in made]
    assert set(weights) == {0.2, 1.0}
    assert weights.count(1.0) / 2000 == pytest.approx(0.2, abs=0.04)
    speed = {"many": 10.0, "one": 5.0}
    factors = {round(s.job.slo_seconds / (s.training.total / speed[s.job.name]), 6) for s in made}
    assert factors == {1.2, 2.0, 10.0}


@pytest.mark.parametrize(
    ("table", "more", "words"),
    [
        (wide_table(), {"models": ["other"]}, "no job type 'other'"),
        (ThroughputTable({"v100": {}}, {}), {}, "no job type to draw from"),
        (wide_table(), {"reference": "a100"}, "no GPU type 'a100'"),
        (ThroughputTable({"v100": {("one", 1): 5.0}}, {}), {"multiple": True, "jobs": 200}, "no job type on"),
        (ThroughputTable({"v100": {("one", 1): 0.0}}, {}), {}, "no speed of 'one'"),
    ],
)
def test_a_workload_that_the_table_cannot_provide_is_refused(table, more, words):
    """The error names what the table lacks."""
    with pytest.raises(GeneratorError, match=words):
        drawn(table, **({"jobs": 5} | more))
