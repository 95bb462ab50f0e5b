"""Gavel's Figure 16: LAS with estimated co-located throughputs, on 4 GPUs of each type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from contrib.reproductions.gavel_fluid_limit import fluid_limit
from contrib.reproductions.gavel_workloads import BELOW_LIMIT, Line, Scale, fixed_rounds, ratio
from metasched.core.model import Placement, Speed
from metasched.simulator.records import Workload
from metasched.throughput.estimator import EstimatedSpeed, Estimator
from metasched.throughput.throughput_table import TableSpeed, TableTraining, ThroughputTable
from metasched.throughput.training import Pace, Training
from policies.gavel.policies import GavelLas

GPUS_OF_TYPE = 4  # GPUs of each type
PAPER_RATE = 6.0  # jobs/h on 36 GPUs of each type; on fewer, arrivals are in proportion
MEASURED = 0.2  # fraction of a new job's fingerprint that is measured
Seen = set[tuple[str, int, str, str]]
"""(GPU type, GPUs, model, model) of the pairs that have been co-located."""


@dataclass(frozen=True, eq=False)
class ObservedSpeed:
    """A job's speed as far as its runs have measured it: a ``Speed``. Isolated speeds are all known."""

    truth: TableSpeed
    seen: Seen

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The true isolated speed."""
        return self.truth.steps_per_second(gpu_type, spread)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The co-located speed where the two models have been co-located before; None elsewhere."""
        co_runner = other.alone if isinstance(other, EstimatedSpeed) else other
        if not isinstance(co_runner, ObservedSpeed):
            return None
        key = (gpu_type, sum(spread), self.truth.model, co_runner.truth.model)
        return self.truth.steps_per_second_with(co_runner.truth, gpu_type, spread) if key in self.seen else None


@dataclass(frozen=True)
class EstimatedTraining:
    """A training of whose co-located speeds policies know an estimate until they are measured: a ``Training``."""

    truth: TableTraining
    speed: Speed
    seen: Seen

    @property
    def total(self) -> float:
        """Optimizer steps of the whole training."""
        return self.truth.total

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The true pace; a co-located pair counts as measured from here on."""
        if not isinstance(co_runner, EstimatedTraining):
            return self.truth.pace(done, placement, co_runner)
        self.seen.add((placement.gpu_type or "", placement.gpus, self.truth.model, co_runner.truth.model))
        return self.truth.pace(done, placement, co_runner.truth)

    def known(self, done: float) -> Speed:
        """The speed with estimates, as policies know it after ``done`` steps."""
        del done
        return self.speed


def estimator(scale: Scale) -> Iterator[Line]:
    """Figure 16, on 4 GPUs of each type, at the paper's load and below the limit of the cluster without sharing."""
    reference = Estimator(scale.table)
    yield Line("estimator: mean error of the fraction of a speed that co-location leaves", "", (_error(reference),), "")
    below = BELOW_LIMIT * fluid_limit(scale.table, scale.paper_gpus, multiple=False, sharing=False)
    for rate, load in (
        (PAPER_RATE, f"{PAPER_RATE:g} jobs/h"),
        (below, f"{BELOW_LIMIT:g} of the limit without sharing ({below:.2f} jobs/h)"),
    ):
        found = _jcts(replace(scale, gpus=GPUS_OF_TYPE), reference, rate)
        what = f"estimator, {GPUS_OF_TYPE} GPUs of each type, {load}: LAS"
        yield Line(f"{what} with sharing, estimated / oracle", "about 1", ratio(found["estimated"], found["oracle"]))
        yield Line(f"{what}, without sharing / with it, oracle", "more", ratio(found["isolated"], found["oracle"]))


def _jcts(scale: Scale, reference: Estimator, rate: float) -> Mapping[str, list[float]]:
    """The average JCTs in hours, one for each seed, by what policies know of co-located speeds."""
    found: dict[str, list[float]] = {}
    for seed in scale.seeds:
        arrivals = scale.arriving(rate, seed)
        changed = partial(_estimated, reference=reference, seed=seed)
        estimated = replace(arrivals, words=f"{arrivals.words}, estimated speeds", changed=changed)
        for name, jobs, sharing in (
            ("oracle", arrivals, True),
            ("estimated", estimated, True),
            ("isolated", arrivals, False),
        ):
            found.setdefault(name, []).append(scale.jct(jobs, GavelLas(), fixed_rounds(sharing=sharing)))
    return found


def _estimated(workload: Workload, reference: Estimator, seed: int) -> Workload:
    """The workload with estimated co-located speeds: each model is measured with a few reference jobs only."""
    made: dict[str, Speed] = {}
    seen: Seen = set()
    submissions = []
    for one in workload.submissions:
        model, truth = one.job.name, one.training
        assert isinstance(truth, TableTraining)  # noqa: S101  the generator's
        if model not in made:
            others, known = _profiled(reference, model, seed)
            like = TableSpeed(reference.table, others.closest(known))
            made[model] = EstimatedSpeed(ObservedSpeed(TableSpeed(reference.table, model), seen), like)
        submissions.append(replace(one, training=EstimatedTraining(truth, made[model], seen)))
    return replace(workload, submissions=tuple(submissions))


def _profiled(
    reference: Estimator, model: str, seed: int
) -> tuple[Estimator, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The estimator without one reference job, and the measured part of that job's fingerprint (NaN elsewhere)."""
    table = reference.table

    def without_model(cells: Mapping[tuple[str, int], object]) -> dict[tuple[str, int], object]:
        return {key: cell for key, cell in cells.items() if key[0] != model}

    alone = {sheet: without_model(cells) for sheet, cells in table.alone.items()}
    colocated = {
        sheet: {key: without_model(row) for key, row in without_model(cells).items()}  # type: ignore[arg-type]
        for sheet, cells in table.colocated.items()
    }
    others = Estimator(ThroughputTable(alone, colocated), reference.gpus)  # type: ignore[arg-type]
    number = reference.models.index(model)
    columns = [reference.column(gpu_type, other) for gpu_type in table.types for other in others.models]
    row = reference.fingerprints[number][columns]
    rng = np.random.default_rng([seed, number])
    known = rng.permutation(len(row)) < MEASURED * len(row)
    return others, np.where(known, row, np.nan)


def _error(reference: Estimator) -> float:
    """The mean absolute error of completed fingerprints, where each model in turn is the new one."""
    errors = []
    for number, model in enumerate(reference.models):
        others, known = _profiled(reference, model, 0)
        columns = [reference.column(gpu_type, other) for gpu_type in reference.table.types for other in others.models]
        truth = reference.fingerprints[number][columns]
        hidden = np.isnan(known) & ~np.isnan(truth)
        errors.append(float(np.abs(others.fingerprint(known) - truth)[hidden].mean()))
    return fmean(errors)
