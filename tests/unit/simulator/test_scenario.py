import csv
import json
import subprocess

import pytest
from click.testing import CliRunner

from metasched.cli import main
from metasched.simulator import results
from metasched.simulator.plots import cdf, draw
from metasched.simulator.scenario import ScenarioError, load_scenario
from metasched.simulator.sweep import Case, at_load, fingerprint, run_case

SCENARIO = """
[[nodes]]
count = 2
gpus = 4
gpu_type = "v100"
racks = 2

[workload]
format = "sacct"
path = "jobs.txt"
speed_up = 0.8

[settings]
round_seconds = 100.0
restart_seconds = 10.0

[prices]
v100 = 2.0
"""
JOBS = """JobID|JobName|User|Account|Submit|ElapsedRaw|AllocTRES
1|a|ann|ml|2025-03-01T10:00:00|3600|gres/gpu=4
2|b|bob|ml|2025-03-01T10:10:00|600|gres/gpu=8
3|c|bob|ml|2025-03-01T10:20:00|900|gres/gpu=1
4|d|ann|ml|2025-03-01T10:30:00|60|gres/gpu=2
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "jobs.txt").write_text(JOBS)
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def call(*argv):
    return CliRunner().invoke(main, [str(word) for word in argv], env={"COLUMNS": "300"})


def test_a_scenario_is_read(scenario):
    """Nodes are numbered and spread over their racks; jobs come from the trace."""
    found = load_scenario(scenario)
    assert [(node.name, node.gpus, node.rack) for node in found.nodes] == [("n1", 4, "v100-1"), ("n2", 4, "v100-2")]
    assert [one.job.name for one in found.workload(0).submissions] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("count = 2", "count = 0", "count"),
        ("gpus = 4", "gpu = 4", "[nodes.0] gpu: no such key"),
        ('format = "sacct"', 'format = "excel"', "workload"),
        ('path = "jobs.txt"', "", "path: missing"),
        ("round_seconds = 100.0", "round_seconds = -1", "[settings] round_seconds"),
        ("gpus = 4", 'gpus = "4"', "gpus"),
        ("v100 = 2.0", "v1000 = 2.0", "[prices] v1000: no node has such GPUs; did you mean 'v100'?"),
        ("[prices]", "[", "is not TOML"),
    ],
)
def test_a_wrong_scenario_is_refused(scenario, before, after, told):
    """The error names the file and the key."""
    scenario.write_text(SCENARIO.replace(before, after))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario)
    assert told in str(caught.value)
    assert str(scenario) in str(caught.value)


def test_a_missing_trace_is_an_error_of_the_command(scenario):
    """The command ends with the one message of the reader."""
    (scenario.parent / "jobs.txt").unlink()
    done = call("simulate", scenario)
    assert done.exit_code == 1
    assert "jobs.txt" in done.output


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (JOBS.replace("gres/gpu", "gres/shard").splitlines(), ["none of 4 jobs has GPUs", "AccountingStorageTRES"]),
        (JOBS.splitlines()[:1], ["has no jobs"]),
    ],
)
def test_a_trace_without_jobs_to_simulate_is_refused(scenario, lines, told):
    """The error names the cause, also what the accounting lacks."""
    (scenario.parent / "jobs.txt").write_text("\n".join(lines))
    done = call("simulate", scenario)
    assert done.exit_code == 1
    assert all(part in done.output for part in ["jobs.txt", *told])


def test_the_same_seed_gives_the_same_result(scenario):
    """All but the wall times is equal, also after the result is written and read."""
    found = load_scenario(scenario)
    one, other = (run_case(found, Case("las")) for _ in range(2))
    times = results.Result.__slots__.index("seconds")
    assert [getattr(one, n) for n in results.Result.__slots__[:times]] == [
        getattr(other, n) for n in results.Result.__slots__[:times]
    ]
    path = scenario.parent / "r.json"
    results.write(path, one)
    assert results.read(path) == one


def test_load_makes_jobs_arrive_faster(scenario):
    """At load 2 jobs arrive in half the time, with the same work."""
    workload = load_scenario(scenario).workload(0)
    twice = at_load(workload, 2.0)
    for one, other in zip(workload.submissions, twice.submissions, strict=True):
        assert other.job.submitted == one.job.submitted / 2
        assert other.training == one.training


@pytest.mark.parametrize("content", ["", "{}", '{"format": 2}', "[1]"])
def test_a_damaged_result_is_refused(tmp_path, content):
    """The error names the file and the remedy."""
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(results.ResultError, match="remove it"):
        results.read(path)


def test_simulate_prints_metrics_and_wall_times(scenario):
    """The cost is by the scenario's prices."""
    done = call("simulate", scenario, "--policy", "fifo:elastic=false", "--plots", scenario.parent / "plots")
    assert done.exit_code == 0, done.output
    assert "JCT MEAN h" in done.output
    assert "fifo(elastic=False)" in done.output
    found = json.loads(call("simulate", scenario, "--policy", "fifo:elastic=false", "--json").output)
    assert found["metrics"]["cost"] == pytest.approx(2.0 * found["metrics"]["gpu_hours"])
    assert len(found["jobs"]) == 4
    assert all(path.read_text().rstrip().endswith("</svg>") for path in (scenario.parent / "plots").iterdir())


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("nobody", "known: "),
        ("LAS", "did you mean 'las'?"),
        ("las:elastic", "KEY=VALUE"),
        ("las:elastic=7", "elastic"),
        ("las:elastik=1", "did you mean 'elastic'?"),
    ],
)
def test_an_unknown_policy_or_parameter_is_refused(scenario, policy, told):
    """The command fails as for a wrong call, and names the nearest one."""
    done = call("simulate", scenario, "--policy", policy)
    assert (done.exit_code, "--policy" in done.output, told in done.output) == (2, True, True)


def test_compare_skips_finished_simulations(scenario):
    """Other data and other parameters are simulated again."""
    out = scenario.parent / "out"
    argv = [
        "compare",
        scenario,
        "--policy",
        "fifo",
        "--policy",
        "las",
        "--seeds",
        "2",
        "--out",
        out,
        "--processes",
        "1",
    ]
    assert call(*argv, "--plots").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    assert len(before) == 4
    next(iter(before)).unlink()
    done = call(*argv, "--json")
    assert len(json.loads(done.stdout)["rows"]) == 4
    after = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    assert sum(after[path] == before[path] for path in after) == 3
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"]) for row in rows] == [("fifo", "0"), ("fifo", "1"), ("las", "0"), ("las", "1")]
    (scenario.parent / "jobs.txt").write_text(JOBS.replace("3600", "3601"))
    assert call(*argv).exit_code == 0
    assert len(list((out / "results").iterdir())) == 8


def test_compare_gives_the_same_results_in_several_processes(scenario):
    """Parallel processes give the results of one process."""
    found = []
    for processes in ("1", "2"):
        out = scenario.parent / processes
        argv = ["compare", scenario, "--policy", "fifo", "--policy", "las", "--out", out, "--processes", processes]
        found.append([{**one, "seconds": None} for one in json.loads(call(*argv, "--json").stdout)["rows"]])
    assert found[0] == found[1]


def test_a_sweep_can_run_as_a_slurm_array(scenario, tmp_path, monkeypatch):
    """Slurm gets an array with one task for each simulation, and a script that runs one of them."""
    seen = []

    def sbatch(argv, **options):
        seen.append((argv, options["input"].decode()))
        return subprocess.CompletedProcess(argv, 0, b"77\n", b"")

    monkeypatch.setattr(subprocess, "run", sbatch)
    out = tmp_path / "a b"
    done = call("compare", scenario, "--policy", "fifo", "--seeds", "3", "--out", out, "--slurm", "-p cpu")
    assert done.output == "77\n"
    (argv, script), *_ = seen
    assert {"--array=0-2", "-p", "cpu"} <= set(argv)
    assert f"--out '{out}'" in script
    assert script.endswith('--only "$SLURM_ARRAY_TASK_ID"\n')
    monkeypatch.undo()
    assert call("compare", scenario, "--policy", "fifo", "--seeds", "3", "--out", out, "--only", "1").exit_code == 0
    assert call("compare", scenario, "--policy", "fifo", "--seeds", "3", "--out", out, "--only", "3").exit_code == 2
    assert len(list((out / "results").iterdir())) == 1


def test_cdf_has_ascending_values_and_fractions():
    """The fraction of a value is that of the values up to it."""
    assert cdf([3.0, 1.0]) == ([1.0, 3.0], [0.5, 1.0])


def test_equal_results_give_equal_plots(scenario):
    """The files are equal to the byte."""
    found = [run_case(load_scenario(scenario), Case("fifo"))]
    pages = [[path.read_bytes() for path in draw(found, scenario.parent / name)] for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_allocation_histories_are_thinned():
    """A result has at most a few thousand points, with the last one."""
    points = [(float(i), i) for i in range(100_001)]
    kept = results.thinned(points)
    assert len(kept) <= 2 * results.POINTS
    assert kept[-1] == points[-1]


def test_jobs_without_a_time_limit_get_one(scenario):
    """It is a multiple of the isolated duration, distance costs included."""
    scenario.write_text(SCENARIO.replace("round_seconds", "limit_factor = 3.0\ncluster_factor = 0.5\nround_seconds"))
    found = [one.job.time_limit_seconds for one in load_scenario(scenario).workload(0).submissions]
    assert found == [3 * 3600.0, 3 * 1200.0, 3 * 900.0, 3 * 60.0]


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ('format = "pollux"\npath = "jobs.txt"\nthroughputs = "apps"', ["apps/a/speeds.csv", "apps/b/speeds.csv"]),
        ('format = "history"\npath = "metasched.db"', ["metasched.db", "metasched.db-wal"]),
    ],
)
def test_changed_data_files_give_another_fingerprint(scenario, source, files):
    """So does each file of a folder, and the log of a database."""
    scenario.write_text(SCENARIO.replace('format = "sacct"\npath = "jobs.txt"\nspeed_up = 0.8', source))

    def write(*texts):
        for name, text in zip(files, texts, strict=True):
            path = scenario.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return fingerprint(load_scenario(scenario), Case("fifo"))

    assert write("1", "2") == write("1", "2")
    assert len({write("1", "2"), write("3", "2"), write("1", "3"), write("1", "")}) == 4


@pytest.mark.parametrize(("first", "last"), [(4, 9), (3, 3)])
def test_a_window_without_jobs_is_refused(scenario, first, last):
    """The error says which jobs the workload has; a window may end after the last job."""
    scenario.write_text(f"{SCENARIO}\n[window]\nfirst = {first}\nlast = {last}\n")
    with pytest.raises(ScenarioError, match=f"from {first} up to {last}.*jobs 0 to 3, which arrive from 0 s to 1800 s"):
        run_case(load_scenario(scenario), Case("fifo"))
    scenario.write_text(f"{SCENARIO}\n[window]\nfirst = 3\nlast = 9\n")
    assert run_case(load_scenario(scenario), Case("fifo")).metrics["jobs"] == 1


TABLE = {
    "v100": {
        f"('{model} (batch size {batch})', {gpus})": {"null": 10.0 * gpus}
        for model in ("ResNet-18", "LM", "Recommendation")
        for batch in (16, 32, 64, 128, 256)
        for gpus in (1, 2, 4, 8)
    }
}


@pytest.mark.parametrize(
    "workload",
    [
        'format = "generate-gavel"\njobs = 20\njobs_per_hour = 6.0\nmultiple = true\nthroughputs = "table.json"',
        'format = "generate-gavel"\njobs = 20\nthroughputs = "table.json"',
        'format = "generate-shockwave"\njobs = 20\nthroughputs = "table.json"',
        'format = "generate-themis"\napps = 3\nmost_trials = 8\ngpu_hours = 5.0',
        'format = "generate-pollux"\njobs = 20\ngpu_type = "v100"',
    ],
)
def test_generators_draw_by_the_seed(scenario, workload):
    """The same seed draws the same jobs, another seed others, and their simulation ends."""
    (scenario.parent / "table.json").write_text(json.dumps(TABLE))
    text = SCENARIO.replace('format = "sacct"\npath = "jobs.txt"\nspeed_up = 0.8', workload)
    scenario.write_text(text)
    found = load_scenario(scenario)
    same, again, other = ([one.job for one in found.workload(seed).submissions] for seed in (1, 1, 2))
    assert [job.evolve(speed=None) for job in same] == [job.evolve(speed=None) for job in again]
    assert [(job.submitted, job.name) for job in same] != [(job.submitted, job.name) for job in other]
    result = run_case(found, Case("fifo", seed=1))
    assert result.metrics["unfinished"] == 0


def test_a_simulation_tells_its_progress(scenario):
    """The number of jobs that have ended grows to that of all jobs."""
    told = []
    run_case(load_scenario(scenario), Case("fifo"), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert (told[0], told[-1]) == ((0, 4), (4, 4))
