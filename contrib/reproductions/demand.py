"""What policies know of the jobs' demand in a headline: the true steps, wrong ones, or none."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from metasched.simulator.records import Submission, Workload


@dataclass(frozen=True)
class Demand:
    """One state of knowledge.

    Attributes:
        name: in words, for the tables.
        wrong: whether declared steps are the true ones times a factor between 0.5 and 2, uniform in its logarithm.
        undeclared: the fraction of the jobs that declare no steps.
        recurring: whether jobs have the names of their trainings, so that their service can be predicted from earlier
            jobs; else every job has a name of its own.
    """

    name: str
    wrong: bool = False
    undeclared: float = 0.0
    recurring: bool = True

    def known(self, workload: Workload, seed: int) -> Workload:
        """The workload as policies know it; jobs that are undeclared are so at every larger fraction, too."""
        rng = random.Random(f"demand {seed}")  # noqa: S311  no secret
        submissions = tuple(self._known(one, rng) for one in workload.submissions)
        return Workload(f"{workload.source}, demand {self.name}", submissions)

    def _known(self, submission: Submission, rng: random.Random) -> Submission:
        factor, drawn = 2.0 ** rng.uniform(-1.0, 1.0), rng.random()
        job = submission.job
        return replace(
            submission,
            job=job if self.recurring else job.evolve(name=job.uid),
            declared=drawn >= self.undeclared,
            declared_ratio=factor if self.wrong else 1.0,
        )


EXACT = Demand("exact")
WRONG = Demand("declared 0.5 to 2 times the truth", wrong=True)
QUARTER = Demand("25 % undeclared", undeclared=0.25)
HALF = Demand("50 % undeclared", undeclared=0.5)
UNKNOWN = Demand("100 % undeclared", undeclared=1.0)
UNPREDICTABLE = Demand("100 % undeclared, none predictable", undeclared=1.0, recurring=False)
