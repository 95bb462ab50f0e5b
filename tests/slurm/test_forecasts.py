"""Forecasts on a real Slurm: published, compared with what came, and whole after the daemon was killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORECAST = "\n[forecast]\npause_seconds = 0.5\ncpu_share = 1.0\nsamples = 5\n\n[shadow]\npolicies = ['las']\n"


def printed(site, *argv):
    line = [sys.executable, "-m", "metasched", "--config", str(site.config), *argv, "--json"]
    done = subprocess.run(line, env=site.cluster.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.timeout(1500)  # forecasts come from processes of the lowest priority
def test_a_waiting_jobs_start_is_forecast_and_compared_with_what_came(small_site):
    """Status has the range of a held job; a kill of the daemon loses nothing, and the true start is recorded."""
    site = small_site
    site.configure(extra=FORECAST)
    site.start()
    first = site.submit("sleep 600", "--gres=gpu:4", "--time=10")
    site.wait_status(first, "running")
    second = site.submit("sleep 600", "--gres=gpu:4")
    site.wait(lambda: (job := site.job(second)) is not None and job.forecast is not None and job.forecast.start, 500)
    shown = next(job for job in printed(site, "status")["jobs"] if job["slurm_job_id"] == second)
    assert shown["forecast"]["start"]["low"] <= shown["forecast"]["start"]["median"]
    site.kill()
    site.start()
    subprocess.run(["scancel", first], env=site.cluster.env, timeout=30, check=True)
    site.wait_status(second, "running")

    def compared():  # a forecast of the first job, too, where it was seen before it ran
        rows = printed(site, "forecast")["rows"]
        return [one for one in rows if one["kind"] == "start" and one["uid"] == shown["uid"]]

    (outcome, *_) = site.wait(compared, 500)
    assert outcome["truth"] is not None
    with site.store() as store:
        assert store.problems() == []
    (row, *_) = site.wait(lambda: printed(site, "shadow")["rows"], 500)
    assert row["policy"] == "las"
