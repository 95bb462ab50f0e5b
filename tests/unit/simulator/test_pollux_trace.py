from __future__ import annotations

import csv

import pytest

from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from tests.unit.published import DATA, needs

FILES = {
    "placements.csv": "placement,local_bsz,step_time,sync_time\n1,2,1.0,0.0\n1,8,4.0,0.0\n12,4,2.5,0.5\n12,2,1.5,0.5\n",
    "scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,4,2,3.0,2.0\n",
    "validation-8.csv": "progress,iteration,metric,grad_sqr,grad_var\n10.0,10,0.5,1.0,1.0\n20.0,20,0.6,1.0,3.0\n",
    "validation-16.csv": "progress,iteration,metric,grad_sqr,grad_var\n12.0,6,0.4,2.0,2.0\n24.0,12,0.6,2.0,6.0\n",
}
HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture
def folder(tmp_path):
    """A folder with one application."""
    (tmp_path / "traces" / "app").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "traces" / "app" / name).write_text(text)
    return tmp_path


def workload(folder, *lines):
    path = folder / "workload.csv"
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return path


def test_an_application_is_read_from_its_folder(folder):
    """Its placements are in any order; it has all batch sizes, and the epochs of the shortest file."""
    app = read_profiles(folder / "traces")["app"]
    assert (app.first_batch, app.most_batch, app.least_local, app.most_local) == (8, 16, 2, 8)
    assert app.ends == (10.0, 20.0)
    assert app.step_time((2, 1), 2) == (1.5, 0.5)


def test_jobs_are_elastic_up_to_the_gpus_that_their_batch_size_allows(folder):
    """Their requests and batch sizes are those of the workload."""
    profiles = read_profiles(folder / "traces")
    found = read_pollux(workload(folder, "a-0,5,app,2,8", "b-1,9,app,1,16"), profiles)
    first, second = found.submissions
    assert (first.job.uid, first.job.submitted, first.job.gpus) == ("2", 5.0, 2)
    assert (first.job.min_gpus, first.job.max_gpus, first.job.gpu_types) == (1, 4, ("t4",))
    assert second.training.batch == 16
    assert second.job.max_gpus == 8


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("a,-1,app,1,8", "time"),
        ("a,3,app,1,8", "time"),
        ("a,9,what,1,8", "application"),
        ("a,9,app,0,8", "num_replicas"),
        ("a,9,app,65,16", "num_replicas"),
        ("a,9,app,8,8", "num_replicas"),
        ("a,9,app,1,4", "batch_size"),
        ("a,9,app,1,17", "batch_size"),
        ("a,9,app,1,x", "batch_size"),
    ],
)
def test_a_bad_line_is_refused_by_line_and_column(folder, line, column):
    """The error names what cannot be simulated."""
    profiles = read_profiles(folder / "traces")
    with pytest.raises(TraceError) as caught:
        read_pollux(workload(folder, "ok,5,app,2,8", line), profiles, most_gpus=64)
    assert (caught.value.line, caught.value.column) == (3, column)


@pytest.mark.parametrize(
    ("file", "text", "column"),
    [
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1x,2,1.0,0.0\n", "placement"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,2,1.0,1.5\n", "sync_time"),
        ("scalability.csv", "num_nodes,num_replicas,step_time,sync_time\n4,4,3.0,2.0\n", "local_bsz"),
        ("validation-8.csv", "progress,iteration,grad_sqr,grad_var\n9,1,1,1\n8,2,1,1\n", "progress"),
    ],
)
def test_bad_measurements_are_refused_by_column(folder, file, text, column):
    """No profile is made from a part of a file."""
    (folder / "traces" / "app" / file).write_text(text)
    with pytest.raises(TraceError) as caught:
        read_profiles(folder / "traces")
    assert caught.value.column == column
    assert caught.value.file.name == file


def test_a_folder_without_applications_is_refused(tmp_path):
    """The result is an error, not an empty workload."""
    with pytest.raises(TraceError, match="holds no application"):
        read_profiles(tmp_path)


@needs("pollux")
def test_the_published_workload_asks_for_the_sizes_that_the_profiles_recommend():
    """Section 5.1's rule for tuned jobs, applied to the published measurements, gives the published configurations."""
    profiles = read_profiles(DATA / "pollux" / "traces")
    path = DATA / "pollux" / "workloads" / "workload-6.csv"
    found = read_pollux(path, profiles, most_gpus=64)
    assert len(found.submissions) == len(list(csv.reader(path.open()))) - 1 == 160
    for one in found.submissions:
        assert (one.job.gpus, one.training.batch) in one.training.profile.tuned_sizes()
