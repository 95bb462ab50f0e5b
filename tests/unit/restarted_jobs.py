"""A store with the restarts of jobs."""

from metasched.core.model import Placement
from metasched.learning.restart_cost import RestartCosts
from metasched.store import EndCause, JobRecord, Store

TWO = Placement(("n1",), 2, "v100")


class RestartedJobs:
    """A store with jobs, each restarted once at some cost."""

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
        record = self.store.require_job(uid)
        if record.current is None:
            self.begin(uid, 1, 0.0)
        run = self.store.require_job(uid).run
        self.store.stop_requested(uid, run, 50.0)
        self.store.run_ended(uid, run, 50.0, EndCause.PREEMPTED)
        self.begin(uid, run + 1, cost)

    def begin(self, uid, run, cost):
        self.store.release(uid, run, TWO, 100.0)
        self.store.run_started(uid, run, 100.0, TWO)
        self.store._write("UPDATE runs SET ready_at = ? WHERE uid = ? AND run = ?", [100.0 + cost, uid, run])

    def cost(self, uid, model=None):
        self.costs.begin_poll()
        return self.costs.restart_seconds(self.store.require_job(uid), model)
