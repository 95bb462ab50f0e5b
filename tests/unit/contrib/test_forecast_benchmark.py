"""The workloads of the benchmark of forecasts, from a made-up trace."""

from itertools import chain

import pytest

from contrib.benchmarks import forecasts

BURSTS, MEMBERS = 12, 8


@pytest.fixture
def trace(tmp_path):
    """Bursts of eight jobs each, an hour apart; jobs of the n-th burst take some n thousand seconds."""
    rows = [
        f"{burst}-{member},{3600 * burst + member},{1000 * (burst + 1) + member},{1 + burst % 2}"
        for burst in range(BURSTS)
        for member in range(MEMBERS)
    ]
    path = tmp_path / "microsoft" / "cluster01.csv"
    path.parent.mkdir()
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows, "big,0,1000,16"]) + "\n")
    return path


def jobs_of(case):
    return [one.job.uid for one in case.workload.submissions]


def bursts_of(case):
    return {int(one.training.total // 1000) for one in case.workload.submissions}


@pytest.mark.parametrize("jobs", [MEMBERS * BURSTS // 3, 10])
def test_workloads_of_a_trace_are_disjoint_and_divide_no_burst(trace, jobs):
    """Each burst is in one workload, and each workload has jobs from the whole trace."""
    found = forecasts.traced(trace, 3, jobs, 0.7)
    assert [len(jobs_of(case)) for case in found] == [jobs] * 3
    assert len(set(chain.from_iterable(map(jobs_of, found)))) == 3 * jobs
    assert sorted(chain.from_iterable(map(bursts_of, found))) == [*range(1, BURSTS + 1)]


def test_more_workloads_than_the_trace_holds_are_refused(trace, capsys):
    """The fix is named before anything is simulated."""
    with pytest.raises(SystemExit):
        forecasts.main(["--data", str(trace.parents[1]), "--cases", "cluster01", "--workloads", "5", "--jobs", "20"])
    assert "give --workloads 4 or less" in capsys.readouterr().err
