"""The smallest simulation of rounds: decisions come true at once, and jobs progress at their speeds."""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.core.model import Snapshot, Status
from metasched.scheduling.engine import run_round
from tests.oracles.instances import Instance

ROUND = 600.0


@dataclass
class Rounds:
    """Many rounds of one policy on an instance: decisions come true at once, and jobs progress at their speeds.

    Attributes:
        policy: the policy.
        instance: jobs, of which those with steps end, and nodes.
        newcomers: from the number of a round, the jobs that arrive; without steps, each ends after a round.
        live: live jobs by uid, as records.
        rounds: targets of each round.
        ended: by uid, the number of rounds after which a job ended.
    """

    policy: object
    instance: Instance
    newcomers: object = None
    live: dict = field(default_factory=dict)
    rounds: list = field(default_factory=list)
    ended: dict = field(default_factory=dict)
    state: object = None

    def __post_init__(self):
        start = self.instance.snapshot(0.0)
        self.nodes = start.nodes
        self.live = {one.uid: one for one in start.jobs}

    def snapshot(self):
        """The next round's snapshot."""
        now = len(self.rounds) * ROUND
        ordered = tuple(sorted(self.live.values(), key=lambda one: (one.submitted, one.uid)))
        return Snapshot(now, len(self.rounds) + 1, ROUND, self.nodes, ordered, sharing=self.instance.sharing)

    def run(self, rounds):
        """Decide several rounds, and return itself."""
        for _ in range(rounds):
            now = len(self.rounds) * ROUND
            for one in self.newcomers(len(self.rounds)) if self.newcomers else ():
                self.live[one.uid] = one.job.evolve(submitted=now)
            snapshot = self.snapshot()
            result = run_round(snapshot, self.policy, self.state)
            self.state = result.state
            self.rounds.append(dict(result.targets))
            for uid, one in list(self.live.items()):
                self.live[uid] = advanced(one, result.targets.get(uid), now)
                done = self.live[uid].progress_steps
                if (one.total_steps is not None and done >= one.total_steps) or (
                    one.total_steps is None and uid.startswith("new") and uid in result.targets
                ):
                    self.ended[uid] = len(self.rounds)
                    del self.live[uid]
        return self

    def ran(self, uid):
        """Whether the job ran, for each round."""
        return [uid in targets for targets in self.rounds]


def advanced(one, place, now):
    """A job after a round with a placement, or without."""
    if place is None:
        last = one.placement or one.last_placement
        return one.evolve(status=Status.HELD, placement=None, last_placement=last)
    speed = 0.0 if one.speed is None else one.speed.steps_per_second(place.gpu_type, place.spread) or 0.0
    attained = {**one.attained, place.gpu_type: one.attained.get(place.gpu_type, 0.0) + place.gpus * ROUND}
    return one.evolve(
        status=Status.RUNNING,
        placement=place,
        run_started=one.run_started if one.placement == place else now,
        run=max(one.run, 1),
        attained=attained,
        ran_seconds=one.ran_seconds + ROUND,
        progress_steps=(one.progress_steps or 0.0) + speed * ROUND,
    )
