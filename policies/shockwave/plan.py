"""A plan between rounds: which job runs in which rounds, as JSON-compatible data by uid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from metasched.core.model import PlannedRun
from policies.shockwave.round_market import RoundMarket, Way
from policies.shockwave.solver import Schedule

LATE = 0.1
"""The part of a round by which polls may be too early or late for its begin."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rounds of each job, and the prices by which they were given out.

    Attributes:
        began: the begin of its first round, unix seconds.
        round_seconds: the length of its rounds.
        rounds: the number of its rounds.
        jobs: by uid, the way in which the job runs and its rounds, from 0; jobs without rounds are left out.
        prices: by resource, the price of its whole supply.
        load_share: the part of the makespan's weight that the load has.
    """

    began: float
    round_seconds: float
    rounds: int
    jobs: Mapping[str, tuple[Way, tuple[int, ...]]]
    prices: Mapping[str, float]
    load_share: float

    @classmethod
    def of(cls, found: RoundMarket, schedule: Schedule, began: float) -> Self:
        """The plan of a schedule whose first round begins at an instant."""
        window = found.market.window
        jobs = {
            uid: (found.ways[uid][mode], tuple(np.flatnonzero(runs).tolist()))
            for uid, mode, runs in zip(schedule.keys, schedule.modes, schedule.runs, strict=True)
            if runs.any()
        }
        prices = dict(zip(found.resources, schedule.prices.tolist(), strict=True))
        return cls(began, window.round_seconds, window.rounds, jobs, prices, schedule.load_share)

    def elapsed(self, at: float) -> int:
        """The plan's rounds that are over at an instant, at most all; 0 where the clock was set back."""
        return min(max(int((at - self.began) / self.round_seconds + LATE), 0), self.rounds)

    def round_began(self, at: float) -> float:
        """The begin of the plan's round at an instant; the instant itself where the plan is over, or lies ahead."""
        over = self.elapsed(at)
        return self.began + over * self.round_seconds if self.began <= at and over < self.rounds else at

    def schedule(self, found: RoundMarket) -> Schedule:
        """The plan as a schedule of a market; jobs that are gone, or no longer have their way, are left out."""
        rows = {
            uid: (found.ways[uid].index(way), rounds)
            for uid, (way, rounds) in self.jobs.items()
            if way in found.ways.get(uid, ())
        }
        runs = np.zeros((len(rows), self.rounds), dtype=bool)
        for number, (_, rounds) in enumerate(rows.values()):
            runs[number, [each for each in rounds if each < self.rounds]] = True
        prices = np.array([self.prices.get(name, 0.0) for name in found.resources])
        modes = tuple(mode for mode, _ in rows.values())
        return Schedule(tuple(rows), modes, runs, 0.0, 0.0, prices, self.load_share)

    def next_runs(self, now: float) -> dict[str, PlannedRun]:
        """By uid, the next rounds without a break in which the job runs."""
        over, found = self.elapsed(now), {}
        for uid, (_, rounds) in self.jobs.items():
            left = [each for each in rounds if each >= over]
            if not left:
                continue
            length = next((n for n, each in enumerate(left) if each != left[0] + n), len(left))
            begins = max(self.began + left[0] * self.round_seconds, now)
            ends = self.began + (left[0] + length) * self.round_seconds
            if ends > begins:
                found[uid] = PlannedRun(begins, ends - begins)
        return found

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-compatible data."""
        return {
            "began": self.began,
            "round_seconds": self.round_seconds,
            "rounds": self.rounds,
            "jobs": {uid: [way.gpu_type, way.gpus, list(rounds)] for uid, (way, rounds) in self.jobs.items()},
            "prices": dict(self.prices),
            "load_share": self.load_share,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan that ``to_json`` wrote."""
        jobs = {uid: (Way(gpu_type, gpus), tuple(rounds)) for uid, (gpu_type, gpus, rounds) in data["jobs"].items()}
        return cls(data["began"], data["round_seconds"], data["rounds"], jobs, data["prices"], data["load_share"])
