"""Jobs that a real Slurm treats specially: arrays, whole nodes, unmet constraints; and a locked database."""

import sqlite3
from contextlib import closing


def test_tasks_of_an_array_run_under_their_leases(site):
    """Each task of an array has its own uid and run number; tasks that wait stay one record of Slurm."""
    site.start()
    command = (
        "exec metasched-run bash -c 'echo $METASCHED_UID $METASCHED_RUN; until [ -e {dir}/go ]; do sleep 0.2; done'"
    )
    array = site.submit(command, "--array=0-6", "--output=out-%a.txt", "--gres=gpu:4", "--nodes=1")
    site.wait(lambda: (job := site.job(f"{array}_3")) and job.status == "running")
    assert f"{array}_[4-6]" in site.cluster.run("squeue", "-h", "-t", "PD", "-o", "%i").split()
    (site.base / "job-1" / "go").touch()
    for task in (0, 4):
        uid = site.wait_status(f"{array}_{task}", "completed").uid
        assert uid.endswith(f"_{task}")
        assert f"{uid} 1\n" in (site.base / "job-1" / f"out-{task}.txt").read_text()


def test_an_exclusive_job_runs_once_while_another_process_locks_the_database(site):
    """--exclusive gives the job all GPUs of its node; it is not stopped for that. The lock ends no daemon."""
    site.start()
    job = site.submit("sleep 8", "--exclusive", "--gres=gpu:2")
    site.wait(lambda: f"start {job}" in site.log() and site.status())
    with closing(sqlite3.connect(site.base / "state" / "metasched.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        site.wait(lambda: "process" in site.status().store)
    assert site.wait_status(job, "completed").runs == 1
    assert site.status().store == "ok"
    assert site.log().count("store_locked") == 1


def test_a_job_with_unmet_constraints_is_released_once_a_round(site):
    """Slurm holds it with BadConstraints; its status has the reason."""
    site.start()
    job = site.submit("sleep 1", "--gres=gpu:1", "--sockets-per-node=3")
    site.wait(lambda: f"start {job}" in site.log())
    begun, before = site.wait(site.status).round, site.log().count(f"start {job}")
    site.wait(lambda: site.status().round >= begun + 2)
    starts = site.log().count(f"start {job}") - before
    assert starts <= site.status().round - begun + 1
    with site.store() as store:
        events = [event.text for event in store.recent_events(100, site.job(job).uid)]
    assert any("BadConstraints" in text for text in events)
