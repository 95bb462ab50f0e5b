"""The smallest simulator of rounds: targets come true at once, and time passes in steps of one round."""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.core.model import Job, Snapshot, Status
from metasched.scheduling.engine import run_round

ROUND = 600.0


@dataclass
class Rounds:
    """A cluster without latencies under one policy.

    ``work`` is the GPU-seconds (CPU-only: node-seconds) that each job needs to finish; a job that is not in it never
    finishes. ``arrivals`` are jobs by the round in which they are submitted. ``facts`` are further fields of snapshots.
    """

    policy: object
    nodes: tuple
    arrivals: dict[int, list[Job]]
    work: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    history: list[dict] = field(default_factory=list)
    reasons: list[dict] = field(default_factory=list)
    state: object = None
    facts: dict = field(default_factory=dict)

    def snapshot(self):
        live = sorted(self.jobs.values(), key=lambda job: (job.submitted, job.uid))
        return Snapshot(len(self.history) * ROUND, len(self.history), ROUND, self.nodes, tuple(live), **self.facts)

    def step(self):
        """Decide one round and let it pass."""
        for job in self.arrivals.get(len(self.history), ()):
            self.jobs[job.uid] = job.evolve(submitted=len(self.history) * ROUND)
        result = run_round(self.snapshot(), self.policy, self.state)
        self.state = result.state
        for uid, job in list(self.jobs.items()):
            self.jobs[uid] = self.advance(job, result.targets.get(uid))
            if self.jobs[uid].attained_service >= self.work.get(uid, float("inf")):
                self.finished[uid] = len(self.history)
                del self.jobs[uid]
        self.history.append(dict(result.targets))
        self.reasons.append(dict(result.reasons))

    def advance(self, job, place):
        if place is None:
            last = job.placement or job.last_placement
            return job.evolve(status=Status.HELD, placement=None, last_placement=last)
        units = place.gpus or len(place.nodes)
        kind = place.gpu_type or ""
        return job.evolve(
            status=Status.RUNNING,
            placement=place,
            run_started=job.run_started if job.placement == place else len(self.history) * ROUND,
            attained={**job.attained, kind: job.attained.get(kind, 0.0) + units * ROUND},
            ran_seconds=job.ran_seconds + ROUND,
        )

    def run(self, rounds):
        """Decide several rounds, and return the simulator."""
        for _ in range(rounds):
            self.step()
        return self

    def gpus(self, uid):
        """GPUs of a job in each round, 0 where it did not run."""
        return [targets[uid].gpus if uid in targets else 0 for targets in self.history]
