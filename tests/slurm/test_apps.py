"""A search on a real Slurm: an array of trials is halved to one by the tuner that its tag names."""

import subprocess
import sys

import pytest

from metasched.shared_dir.reports import CheckpointReport, parse_line
from tests.slurm import shim_trial, trial
from tests.slurm.site import ROOT

TRIALS, STEPS = 8, 40
GATES = (5, 10, 20, STEPS)
"""The last steps of the phases."""
TAG = "metasched min_gpus=1 max_gpus=4"
DEPENDENTS = (("afterok", "_0"), ("afterany", ""))
"""Of the winner, and of the whole array, which ends although tasks are cancelled."""
SCRIPT = f"""\
program={trial.__file__}
if [ $SLURM_ARRAY_TASK_ID = 7 ]; then program={shim_trial.__file__}; fi
exec metasched-run {sys.executable} $program {{dir}} {STEPS} {" ".join(map(str, GATES))}"""


def final_checkpoints(site, uid):
    """How many final checkpoints the trainers of a job have reported."""
    files = (site.base / "shared" / "reports" / uid).glob("incarnation-*.jsonl")
    reports = [parse_line(line, 1e10) for path in files for line in path.read_bytes().splitlines()]
    return sum(isinstance(one, CheckpointReport) and one.cause == "final" for one in reports)


def assert_replays(site):
    """The policy decides every stored round in the same way again."""
    argv = [sys.executable, "-m", "metasched", "--config", str(site.config), "replay", "--last", "1000"]
    replayed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert replayed.returncode == 0, replayed.stdout
    assert replayed.stdout.endswith(" 0 rounds with differences\n")


def note_losers(site, losers):
    """Add the losers that are live, uids by job id; one that was held is live for a poll after it was chosen."""
    with site.store() as store:
        losers |= {job.slurm_job_id: job.uid for job in store.live_jobs() if job.end_reason is not None}
    return losers


@pytest.mark.parametrize("policy", ["las", "themis"])
def test_an_array_is_halved_to_one(site, policy):
    """Losers end for good, although the daemon is killed after it has chosen them; the winner grows, and trains on.

    Under Themis it may train on without more GPUs: a step before the end, a restart for them does not pay.
    """
    site.configure(policy=policy)
    site.start()
    array = site.submit(SCRIPT, f"--array=0-{TRIALS - 1}", "--gres=gpu:1", tag=f"{TAG} tuner=halving,steps={STEPS}")
    directory = site.base / f"job-{site.number}"
    (directory / "deaf").touch()
    after = [site.submit("true", f"--dependency={kind}:{array}{of}", tag=None) for kind, of in DEPENDENTS]
    tasks = [f"{array}_{task}" for task in range(TRIALS)]

    def progress(task):
        job = site.job(task)
        return 0 if job is None else job.progress_steps or 0

    site.wait(lambda: all(progress(task) == GATES[0] - 1 for task in tasks[:7]) and (directory / "waits-7").exists())
    (app,) = site.status().apps
    assert (app.tuner, app.phases, app.live, app.ended) == (f"halving,steps={STEPS}", ((1, 4),), TRIALS, 0)
    (directory / f"gate-{GATES[0]}").touch()

    # The daemon dies when it has chosen the losers of the first phase, which have not obeyed yet.
    losers = {}
    site.wait(lambda: len(note_losers(site, losers)) >= TRIALS // 2 - 1)
    site.kill()
    assert losers.keys() <= set(tasks[TRIALS // 2 :])
    (directory / "deaf").unlink()
    site.start()
    other = site.submit("sleep 600", "--array=0-3", "--gres=gpu:4", tag=TAG)
    site.wait(lambda: any((job := site.job(f"{other}_{task}")) and job.status == "running" for task in range(4)))
    for gate in GATES[1:-1]:
        (directory / f"gate-{gate}").touch()

    def end_of(task):
        return site.wait(lambda: (job := site.job(task)) and job.finished and job)

    losers_ended = [end_of(task) for task in tasks[1:]]
    site.cluster.run("scancel", other)
    least = 4 if policy == "las" else 1
    site.wait(lambda: (job := site.job(tasks[0])) is not None and sum(job.nodes.values()) >= least)
    (directory / f"gate-{STEPS}").touch()
    ended = [end_of(tasks[0]), *losers_ended]

    assert ended[0].status == "completed"
    assert ended[0].progress_steps == STEPS
    assert "ranks" not in ended[0].reason
    for job in ended[1:]:
        assert "its loss" in job.reason
        # A trial that waited for others of its phase is cancelled, and has the checkpoint of its stop. How many of them
        # have stopped when the last trial of the phase reports depends on the time.
        assert job.status == "completed" if final_checkpoints(site, job.uid) else job.status == "cancelled"
    completed = [job for job in ended if job.status == "completed"]
    assert len(completed) >= 2, [job.status for job in ended]
    if ended[7].status == "completed":
        assert (directory / "ended-7").read_text() == "finish"
    with site.store() as store:
        runs_of_losers = [store.runs(job.uid) for job in ended[TRIALS // 2 :]]
        for job in ended:
            # An action without an outcome was in progress when the daemon died.
            kinds = [action.kind for action in store.recent_actions(1000, job.uid) if action.outcome == "ok"]
            assert kinds.count("end") <= (1 if job in completed else 2)
            assert final_checkpoints(site, job.uid) == (job in completed)
            assert "requeue" not in kinds
    assert all(len(runs) <= 2 for runs in runs_of_losers)

    site.wait(lambda: not site.cluster.run("squeue", "-h", "-j", ",".join(after), "-t", "PD,R,CG").split())
    assert_replays(site)
