"""Gavel's Figure 16: LAS with estimated co-located throughputs, on 4 GPUs of each type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from contrib.reproductions.gavel_workloads import Line, Scale, jct, ratio, run
from metasched.core.model import Placement, Speed
from metasched.simulator.records import Workload
from metasched.throughput.estimator import EstimatedSpeed, Estimator
from metasched.throughput.throughput_table import Table, TableSpeed, TableTraining
from metasched.throughput.training import Pace, Training
from policies.gavel.policies import (
    GavelLas,
)

MEASURED = 0.2  # of a new job's fingerprint, where speeds are estimated
Seen = set[tuple[str, int, str, str]]
"""GPU type, GPUs, and two models that have been co-located on them."""


@dataclass(frozen=True, eq=False)
class ObservedSpeed:
    """A job's speed as far as its runs have measured it: a ``Speed``. Isolated speeds are all known."""

    truth: TableSpeed
    seen: Seen

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Its own."""
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
        """Its own."""
        return self.truth.total

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """Its own."""
        if not isinstance(co_runner, EstimatedTraining):
            return self.truth.pace(done, placement, co_runner)
        self.seen.add((placement.gpu_type or "", placement.gpus, self.truth.model, co_runner.truth.model))
        return self.truth.pace(done, placement, co_runner.truth)

    def known(self, done: float) -> Speed:
        """The estimate."""
        del done
        return self.speed


def estimator(scale: Scale) -> Iterator[Line]:
    """Figure 16, on 4 GPUs of each type."""
    found: dict[str, list[float]] = {}
    small = replace(scale, gpus=4)
    reference = Estimator(scale.table)
    for seed in scale.seeds:
        workload = small.arriving(6.0, seed)
        guessed = _estimated(workload, reference, seed)
        for name, jobs, sharing in (
            ("oracle", workload, True),
            ("estimated", guessed, True),
            ("alone", workload, False),
        ):
            _, metrics = run(jobs, small.nodes(), GavelLas(), window=scale.window, sharing=sharing)
            found.setdefault(name, []).append(jct(metrics))
    yield Line("estimator: mean error of what is left of a speed", "", (_error(reference),), "")
    yield Line("LAS with sharing: estimated / oracle", "about 1", ratio(found["estimated"], found["oracle"]))
    yield Line("LAS: without sharing / with it, oracle", "more", ratio(found["alone"], found["oracle"]))


def _estimated(workload: Workload, reference: Estimator, seed: int) -> Workload:
    """Jobs whose model was not measured in advance, but beside a few reference jobs: each is taken for new."""
    made: dict[str, Speed] = {}
    seen: Seen = set()
    submissions = []
    for one in workload.submissions:
        model, truth = one.job.name, one.training
        assert isinstance(truth, TableTraining)  # noqa: S101  the generator's
        if model not in made:
            rest, known = _profiled(reference, model, seed)
            like = TableSpeed(reference.table, rest.closest(known))
            made[model] = EstimatedSpeed(ObservedSpeed(TableSpeed(reference.table, model), seen), like)
        submissions.append(replace(one, training=EstimatedTraining(truth, made[model], seen)))
    return replace(workload, submissions=tuple(submissions))


def _profiled(
    reference: Estimator, model: str, seed: int
) -> tuple[Estimator, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The reference jobs but one, and what was measured of the fingerprint of that."""
    table = reference.table

    def rest(cells: Mapping[tuple[str, int], object]) -> dict[tuple[str, int], object]:
        return {kind: cell for kind, cell in cells.items() if kind[0] != model}

    alone = {sheet: rest(cells) for sheet, cells in table.alone.items()}
    colocated = {sheet: {k: rest(row) for k, row in rest(cells).items()} for sheet, cells in table.colocated.items()}  # type: ignore[arg-type]
    others = Estimator(Table(alone, colocated), reference.gpus)  # type: ignore[arg-type]
    number = reference.models.index(model)
    columns = [reference.column(kind, other) for kind in table.types for other in others.models]
    row = reference.fingerprints[number][columns]
    chance = np.random.default_rng([seed, number])
    known = chance.permutation(len(row)) < MEASURED * len(row)
    return others, np.where(known, row, np.nan)


def _error(reference: Estimator) -> float:
    """Mean absolute error of completed fingerprints, each model taken for new."""
    wrong = []
    for number, model in enumerate(reference.models):
        others, known = _profiled(reference, model, 0)
        columns = [reference.column(kind, other) for kind in reference.table.types for other in others.models]
        truth = reference.fingerprints[number][columns]
        hidden = np.isnan(known) & ~np.isnan(truth)
        wrong.append(float(np.abs(others.fingerprint(known) - truth)[hidden].mean()))
    return fmean(wrong)
