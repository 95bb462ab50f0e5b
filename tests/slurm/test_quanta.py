"""Under policies of time shares, the runs of a job whose restart cost is known have a quantum."""

import sys

from tests.slurm.site import TRAIN

ROUND = 3  # seconds, as the site is configured


def test_trainings_that_alternate_run_for_several_rounds_once_their_restarts_are_measured(one_gpu):
    """At first they alternate in every round; a quantum, the least of 20 restarts and 10 rounds, is more than six."""
    one_gpu.configure(policy="gavel_las")
    one_gpu.start()
    one_gpu.wait(one_gpu.status)
    jobs = [one_gpu.train("--epochs 100000 --step-seconds 0.05", "--gres=gpu:1")[0] for _ in range(2)]
    one_gpu.wait(lambda: all(map(one_gpu.job, jobs)))
    uids = [one_gpu.job(job).uid for job in jobs]

    def lengths():
        """The seconds of each run that the daemon has stopped, in the order of their ends."""
        with one_gpu.store() as store:
            runs = [run for uid in uids for run in store.runs(uid) if run.stop_requested and run.ended]
        return [run.stop_requested - run.started for run in sorted(runs, key=lambda run: run.ended)]

    one_gpu.wait(lambda: max(lengths(), default=0) > 6 * ROUND)
    assert lengths()[0] < 4 * ROUND


def test_trainings_whose_starts_take_longer_than_a_round_train(one_gpu):
    """A cut start tells how long a restart takes at least, and so gives the next run of the job a quantum."""
    one_gpu.configure(policy="gavel_las")
    one_gpu.start()
    one_gpu.wait(one_gpu.status)
    train = f"exec metasched-run {sys.executable} {TRAIN} {{dir}} --epochs 100000 --step-seconds 0.05"
    jobs = [one_gpu.submit(f"sleep {3 * ROUND}; {train}", "--gres=gpu:1") for _ in range(2)]
    one_gpu.wait(lambda: all(map(one_gpu.job, jobs)))
    uids = [one_gpu.job(slurm_job_id).uid for slurm_job_id in jobs]

    def trained():
        """The runs of the first job that has trained."""
        with one_gpu.store() as store:
            histories = [store.runs(uid) for uid in uids]
        return next((runs for runs in histories if any(run.first_step_at for run in runs)), None)

    first = one_gpu.wait(trained)[0]
    assert first.stop_requested is not None
    assert first.first_step_at is None
