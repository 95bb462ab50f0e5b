"""Trials before a run: what the daemon learns of sizes that the job never had."""


def test_a_job_is_profiled_at_smaller_sizes_before_its_run(small_site):
    """The next job of the same model starts without profiling runs. The training's result is the same."""
    small_site.start()
    tag = "metasched min_gpus=1 max_gpus=4 model=net trials=yes"
    job, directory = small_site.train("--epochs 1 --step-seconds 0.02", "--gres=gpu:4", tag=tag)
    small_site.wait_status(job, "completed", 180)
    with small_site.store() as store:
        known = {record.spread for record in store.speeds()}
    assert {(1,), (2,)} <= known
    output = (directory / "out.txt").read_text()
    assert "no profiling run" not in output
    assert small_site.job(job).runs == 1
    again, directory = small_site.train("--epochs 1 --step-seconds 0.02", "--gres=gpu:4", tag=tag)
    small_site.wait_status(again, "completed", 180)
    lines = next((small_site.base / "shared" / "reports" / small_site.job(again).uid).glob("*.jsonl")).read_text()
    assert '"trial"' not in lines


def test_a_job_is_stopped_during_its_profiling_runs(small_site):
    """A stop does not wait for them, and the job runs again."""
    small_site.start()
    tag = "metasched min_gpus=1 max_gpus=4 trials=yes"
    job, directory = small_site.train("--epochs 1 --step-seconds 3", "--gres=gpu:4", tag=tag)
    small_site.wait_status(job, "running")
    small_site.wait(lambda: list(directory.glob("trained-*")))
    small_site.cluster.run("scontrol", "requeuehold", job)
    small_site.wait(lambda: (seen := small_site.job(job)) is not None and seen.runs >= 2)
