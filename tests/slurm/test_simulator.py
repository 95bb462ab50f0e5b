import json
import subprocess
import sys
import time
from pathlib import Path

from tests.small_scenario import JOBS, SCENARIO

ROOT = Path(__file__).parents[2]

RESEARCHER = """
import json, sys
from metasched.api import Cluster, what_if

cluster = Cluster.connect(config=sys.argv[1])
running, waiting = cluster.jobs(states=["running"])[0], cluster.jobs(states=["waiting"])[0]
found = what_if(["las:queue_thresholds_gpu_seconds=[1.0],promote_knob=null"], config=sys.argv[1], assume_hours=1)
print(json.dumps({
    "jobs": [running.slurm_job_id, waiting.slurm_job_id],
    "why": cluster.explain(waiting.uid),
    "runs": [one.placement.gpus for one in cluster.runs(running.slurm_job_id)],
    "rounds": len(cluster.rounds()),
    "granted": [one["granted"] is not None for one in cluster.decisions(running.uid).to_dicts()],
    "ends": [row for row in found.jobs.to_dicts()],
    "columns": list(cluster.events().to_pandas()),
}))
"""


def metasched(site, *argv, config=True):
    options = ["--config", str(site.config)] if config else []
    line = [sys.executable, "-m", "metasched", *options, *map(str, argv)]
    return subprocess.run(
        line, env=site.cluster.env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_what_if_of_the_live_queue(small_site):
    """The table shows when a running and a waiting job would end under each policy; Slurm sees no change."""
    site = small_site
    site.start()
    first = site.submit("sleep 600", "--gres=gpu:4")
    site.wait_status(first, "running")
    second = site.submit("sleep 600", "--gres=gpu:4")
    site.wait_status(second, "held")
    las, now = "las:queue_thresholds_gpu_seconds=[1.0],promote_knob=null", "fifo (now)"
    argv = ["--policy", las, "--assume-hours", "1", "--restart-seconds", "0", "--json"]
    done = metasched(site, "what-if", *argv)
    assert done.returncode == 0, done.stderr
    one, other = json.loads(done.stdout)["rows"]
    assert [one["slurm_job_id"], other["slurm_job_id"]] == [first, second]
    assert (one["work_from"], other["work_from"]) == ("assumed", "assumed")
    assert 0 < one["ends"][now] - time.time() < 3600 <= other["ends"][now] - one["ends"][now] < 3610
    assert one["preemptions"] == {now: 0, las: 1}
    assert one["ends"][las] > one["ends"][now]
    assert site.job(first).status == "running"
    assert site.job(second).status == "held"
    _a_researcher_sees(site, first, second)


def _a_researcher_sees(site, first, second):
    """The Python API has the live jobs, why one waits, the history, and the same what-if."""
    done = subprocess.run(
        [sys.executable, "-c", RESEARCHER, site.config],
        env={**site.cluster.env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["jobs"] == [first, second]
    assert seen["why"][0].startswith(f"Job {second} ")
    assert (seen["runs"], seen["granted"][-1]) == ([4], True)
    assert seen["rounds"] > 0
    assert {"at", "kind", "text"} <= set(seen["columns"])
    assert [row["slurm_job_id"] for row in seen["ends"]] == [first, second]
    assert seen["ends"][0]["ends fifo (now)"] < seen["ends"][1]["ends fifo (now)"]


def test_a_sweep_runs_as_a_job_array(small_site):
    """Slurm runs the simulations; the same command collects their results, and repeats none."""
    site = small_site
    (site.base / "scenario.toml").write_text(SCENARIO)
    (site.base / "jobs.txt").write_text(JOBS)
    argv = ["compare", site.base / "scenario.toml", "--policy", "fifo", "--policy", "las", "--out", site.base / "out"]
    done = metasched(site, *argv, "--slurm", "--ntasks=1 --comment=plain", config=False)
    assert done.returncode == 0, done.stderr
    results = site.base / "out" / "results"
    site.wait(lambda: len(list(results.glob("*.json"))) == 2)
    times = {path: path.stat().st_mtime_ns for path in results.iterdir()}
    done = metasched(site, *argv, "--json", config=False)
    assert done.returncode == 0, done.stderr
    assert {one["label"] for one in json.loads(done.stdout)["rows"]} == {"fifo", "las"}
    assert {path: path.stat().st_mtime_ns for path in results.iterdir()} == times
    assert (site.base / "out" / "summary.csv").read_text().count("\n") == 3
