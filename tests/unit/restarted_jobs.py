"""A store with the restarts of jobs."""

from metasched.core.model import Placement
from metasched.learning.restart_cost import RestartCosts
from metasched.store import EndCause, JobRecord, Store

TWO = Placement(("n1",), 2, "v100")


class RestartedJobs:
    """A store with jobs that are restarted at some cost."""

    def __init__(self, path):
        self.store = Store.open(path)
        self.costs = RestartCosts(self.store)
        self.count = 0

    def job(self, user="ann", *, model=None, cost=None):
        self.count += 1
        uid = f"{self.count:016x}"
        record = JobRecord(
            uid=uid,
            slurm_job_id=f"{self.count}",
            name="train",
            user=user,
            submitted=float(self.count),
            requirements={"model": model},
        )
        self.store.add_job(record)
        if cost is not None:
            self.restart(uid, cost)
        return uid

    def restart(self, uid, cost):
        """Stop the job's run at the instant 50, and start it again, with its first step after ``cost`` seconds."""
        if self.store.require_job(uid).current is None:
            self.begin(uid, 0.0)
        self.stop(uid, 50.0)
        self.begin(uid, cost)

    def cut_start(self, uid, seconds):
        """Stop the job's run if there is one, start the job, and stop it some seconds later, before its first step."""
        if self.store.require_job(uid).current is not None:
            self.stop(uid, 50.0)
        self.begin(uid)
        self.stop(uid, 100.0 + seconds)

    def begin(self, uid, cost=None):
        """Start the job at the instant 100. Its first step comes after ``cost`` seconds; None for no first step."""
        run = self.store.require_job(uid).run + 1
        self.store.release(uid, run, TWO, 100.0)
        self.store.run_started(uid, run, 100.0, TWO)
        if cost is not None:
            sql = "UPDATE runs SET ready_at = ?1, first_step_at = ?1 WHERE uid = ?2 AND run = ?3"
            self.store._write(sql, [100.0 + cost, uid, run])

    def stop(self, uid, at):
        """Request the stop of the job's run, which ends at once."""
        run = self.store.require_job(uid).run
        self.store.stop_requested(uid, run, at)
        self.store.run_ended(uid, run, at, EndCause.PREEMPTED)

    def cost(self, uid, model=None):
        self.costs.begin_poll()
        return self.costs.cost(self.store.require_job(uid), model).restart_seconds

    def cut_start_seconds(self, uid):
        return self.costs.cost(self.store.require_job(uid), None).cut_start_seconds
