from __future__ import annotations

import json

import pytest

from metasched.core.model import Placement
from metasched.simulator.traces.elasticflow import read_curves, read_elasticflow
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.helios import read_helios
from metasched.simulator.traces.microsoft import read_microsoft
from metasched.simulator.traces.philly import read_philly
from tests.unit.published import DATA, needs

MICROSOFT = "job_id,submission_time,duration,num_gpu\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
ELASTICFLOW = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"


def write(folder, text, name="trace"):
    path = folder / name
    path.write_text(text)
    return path


def facts(workload):
    return [(s.job.name, s.job.submitted, s.job.gpus, s.training.total) for s in workload.submissions]


# -- Microsoft ----------------------------------------------------------------------------------------------------


def test_microsofts_jobs_are_ordered_by_arrival(tmp_path):
    """The clock begins with the first job; durations are those of the trace."""
    found = read_microsoft(write(tmp_path, MICROSOFT + "b,50,7,2\na,20,5,1\n"))
    assert facts(found) == [("a", 0.0, 1, 5.0), ("b", 30.0, 2, 7.0)]
    assert [s.job.uid for s in found.submissions] == ["1", "2"]
    assert not any(s.job.elastic for s in found.submissions)


def test_a_speed_up_makes_jobs_elastic(tmp_path):
    """They run on one GPU to twice as many as they had."""
    [one] = read_microsoft(write(tmp_path, MICROSOFT + "a,20,5,4\n"), speed_up=1.0).submissions
    assert (one.job.min_gpus, one.job.gpus, one.job.max_gpus) == (1, 4, 8)
    assert one.training.pace(0, Placement(("n",), 8, "any")).steps_per_second == 2.0


@pytest.mark.parametrize(
    ("line", "column"),
    [("a,-1,5,1", "submission_time"), ("a,1,0,1", "duration"), ("a,1,5,9", "num_gpu"), (",1,5,1", "job_id")],
)
def test_microsofts_bad_lines_are_refused(tmp_path, line, column):
    """The error names the line and the column."""
    with pytest.raises(TraceError) as caught:
        read_microsoft(write(tmp_path, f"{MICROSOFT}ok,1,5,1\n{line}\n"), most_gpus=8)
    assert (caught.value.line, caught.value.column) == (3, column)


@needs("microsoft")
def test_the_published_microsoft_trace_is_read():
    """The workload has as many jobs as the trace."""
    path = DATA / "microsoft" / "cluster01.csv"
    assert len(read_microsoft(path).submissions) == len(path.read_text().split()) - 1


# -- Helios -------------------------------------------------------------------------------------------------------


def test_helios_gpu_jobs_that_ran_are_read(tmp_path):
    """They have their user and virtual cluster; jobs without GPUs, or that never ran, are left out."""
    lines = [
        "7,uA,vcA,8,64,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:51:01,600,0",
        "8,uB,vcA,0,4,1,COMPLETED,2020-06-09 18:41:02,2020-06-09 18:41:01,2020-06-09 18:51:01,600,0",
        "9,uB,vcB,1,4,1,CANCELLED,2020-06-09 18:41:03,2020-06-09 18:41:03,2020-06-09 18:41:03,0,0",
        "10,uB,vcB,1,4,1,FAILED,2020-06-09 18:42:01,2020-06-09 18:42:01,2020-06-09 18:42:31,30,0",
    ]
    found = read_helios(write(tmp_path, HELIOS + "\n".join(lines)))
    assert facts(found) == [("7", 0.0, 8, 600.0), ("10", 60.0, 1, 30.0)]
    assert [(s.job.user, s.job.account) for s in found.submissions] == [("uA", "vcA"), ("uB", "vcB")]


def test_helios_bad_times_are_refused(tmp_path):
    """The error names the line and the column."""
    line = "7,uA,vcA,8,64,1,COMPLETED,yesterday,2020-06-09 18:41:01,2020-06-09 18:51:01,600,0"
    with pytest.raises(TraceError) as caught:
        read_helios(write(tmp_path, f"{HELIOS}{line}\n"))
    assert (caught.value.line, caught.value.column) == (2, "submit_time")


# -- Philly -------------------------------------------------------------------------------------------------------


def attempt(start, end, *gpus):
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{j}" for j in range(count)]} for i, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def philly(folder, *jobs):
    return write(folder, json.dumps(jobs), "cluster_job_log")


def entry(name, *attempts, **more):
    start = {"status": "Pass", "vc": "v1", "user": "u1", "submitted_time": "2017-10-07 01:00:00"}
    return {**start, "jobid": name, "attempts": list(attempts), **more}


def test_durations_of_phillys_attempts_are_added_up(tmp_path):
    """The GPUs are those of the last attempt."""
    one = attempt("2017-10-07 01:00:00", "2017-10-07 01:01:00", 8)
    two = attempt("2017-10-07 02:00:00", "2017-10-07 02:00:30", 8, 4)
    found = read_philly(philly(tmp_path, entry("j", one, two)))
    assert facts(found) == [("j", 0.0, 12, 90.0)]
    assert found.submissions[0].job.account == "v1"


def test_phillys_jobs_without_a_complete_attempt_are_left_out(tmp_path):
    """As its authors say, the log has such jobs."""
    unfinished = attempt("2017-10-07 01:00:00", None, 8)
    fine = attempt("2017-10-07 01:00:00", "2017-10-07 01:01:00", 1)
    found = read_philly(philly(tmp_path, entry("a"), entry("b", unfinished), entry("c", fine, unfinished)))
    assert facts(found) == [("c", 0.0, 1, 60.0)]


@pytest.mark.parametrize(
    ("job", "where"),
    [
        (entry("a", submitted_time=None), "[1].submitted_time"),
        (entry("a", submitted_time="soon"), "[1].submitted_time"),
        (entry("a", attempts=None), "[1].attempts"),
        (entry("a", attempt("2017-10-07 01:01:00", "2017-10-07 01:00:00", 1)), "[1].attempts[0].end_time"),
        (entry("a", attempt("2017-10-07 01:00:00", "2017-10-07 01:01:00", 8, 8)), "[1].attempts"),
        (entry(None, attempt("2017-10-07 01:00:00", "2017-10-07 01:01:00", 1)), "[1].jobid"),
        (7, "[1]"),
    ],
)
def test_phillys_bad_entries_are_refused(tmp_path, job, where):
    """The error names their position in the document."""
    with pytest.raises(TraceError) as caught:
        read_philly(philly(tmp_path, entry("ok"), job), most_gpus=8)
    assert caught.value.column == where


def test_a_log_that_is_not_json_is_refused_by_line(tmp_path):
    """The error names the line that the JSON parser names."""
    with pytest.raises(TraceError) as caught:
        read_philly(write(tmp_path, '[\n{"jobid": }\n]'))
    assert caught.value.line == 2


# -- ElasticFlow --------------------------------------------------------------------------------------------------


@pytest.fixture
def curves(tmp_path):
    """One model at two batch sizes."""
    (tmp_path / "curves").mkdir()
    write(tmp_path / "curves", "global_batch_size,1,2,4,8\n64,10,18,30,0\n128,5,9,nan,\n", "net.csv")
    return read_curves(tmp_path / "curves")


def test_elasticflows_curves_are_read(curves):
    """An empty field or nan was not measured; at speed 0 the job does not run."""
    assert curves["net", 64].points == ((1, 10.0), (2, 18.0), (4, 30.0), (8, 0.0))
    assert curves["net", 128].points == ((1, 5.0), (2, 9.0))


def test_elasticflows_jobs_have_the_curve_of_their_model(tmp_path, curves):
    """They are elastic over the sizes at which they run, and have a deadline."""
    path = write(tmp_path, ELASTICFLOW + "0,100,600,net,400,64,2,33\n1,90,50,net,900,128,1,10\n")
    second, first = read_elasticflow(path, curves, gpu_type="a100").submissions
    assert (first.job.submitted, first.job.slo_seconds, first.training.total) == (10.0, 300.0, 600)
    assert (first.job.min_gpus, first.job.gpus, first.job.max_gpus) == (1, 2, 4)
    assert second.job.max_gpus == 2
    assert first.training.pace(0, Placement(("n",), 4, "a100")).steps_per_second == 30.0


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("0,100,600,other,400,64,2,33", "model_name"),
        ("0,100,600,net,400,32,2,33", "batch_size"),
        ("0,100,600,net,400,64,8,33", "num_gpu"),
        ("0,100,600,net,99,64,2,33", "ddl"),
        ("0,100,0,net,400,64,2,33", "iteration"),
    ],
)
def test_elasticflows_bad_lines_are_refused(tmp_path, curves, line, column):
    """The error names the line and the column."""
    with pytest.raises(TraceError) as caught:
        read_elasticflow(write(tmp_path, f"{ELASTICFLOW}{line}\n"), curves)
    assert (caught.value.line, caught.value.column) == (2, column)


@needs("elasticflow")
def test_the_published_curves_are_read():
    """They are those of all models, on both GPU types."""
    for folder in ("throughputs_A100", "throughputs_T4"):
        path = DATA / "elasticflow" / folder
        assert {model for model, _ in read_curves(path)} == {file.stem for file in path.glob("*.csv")}
