"""Rounds in which jobs come and go, and the policies of time shares that are tested with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.baselines.allox import AlloX
from policies.baselines.gandiva import Gandiva
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from policies.baselines.gavel_fifo import GavelFifo
from policies.baselines.isolated import Isolated
from policies.baselines.max_sum_throughput import MaxSumThroughput
from policies.gavel.policies import (
    GavelCost,
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelHierarchical,
    GavelLas,
    GavelLasParameters,
    GavelMakespan,
    GavelShortestFirst,
    GavelThroughput,
)
from tests.unit.gavel_tables import known_job
from tests.unit.rounds import Rounds


@dataclass
class Churn(Rounds):
    """Rounds in each of which a tiny job ends and another one arrives, so that time shares are always recomputed."""

    tiny: dict = field(default_factory=lambda: {"gpu_types": ("k80",)})

    def step(self):
        number = len(self.history)
        self.jobs.pop(f"tiny{number - 1}", None)
        self.arrivals.setdefault(number, []).append(known_job(f"tiny{number}", **self.tiny))
        super().step()

    def shares(self):
        """The time shares in force, by combination."""
        return {tuple(combination): share for combination, share in self.state.data["ledger"]["shares"]}


EVERY = (
    GavelLas(),
    GavelLas(GavelLasParameters(fill=True)),
    GavelHierarchical(),
    GavelMakespan(),
    GavelFinishTimeFairness(),
    GavelFirstCome(),
    GavelShortestFirst(),
    GavelThroughput(),
    GavelCost(),
    GandivaFair(GandivaFairParameters(by_user=False)),
    Isolated(),
    Gandiva(),
    AlloX(),
    GavelFifo(),
    MaxSumThroughput(),
)
