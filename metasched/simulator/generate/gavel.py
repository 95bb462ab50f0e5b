"""Gavel's workloads (Narayanan et al., OSDI 2020, section 7.1).

Job types are drawn uniformly. A job lasts 10^x minutes on the reference type, x uniform in [1.5, 3] for 80 % of the
jobs and in [3, 4] for the others; its steps are what it does in that time. In the ``multiple`` regime 70 % of the jobs
have one GPU, 25 % two to four (10 % have 2, 15 % have 4, as in the public simulator) and 5 % have 8; job types that do
not run on that many are drawn again. Continuous traces have Poisson arrivals, static ones have all jobs at 0.

The draws are those of the public simulator: with the job types in its order and a seed 2 above its own, the jobs are
the same. Its random streams differ by their seeds alone: ``seed`` for the jobs, ``seed + 1`` for the arrivals and
``seed + 4`` for the SLOs. Workloads whose seeds differ by 1, 3 or 4 therefore have a stream in common, used for other
draws. Independent repetitions take seeds further apart.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.parameters import TableParameters
from metasched.simulator.records import Submission, Workload, trace_job
from metasched.throughput.throughput_table import TableTraining, ThroughputTable

LONG = 0.2  # fraction of the jobs
SHORT_EXPONENTS, LONG_EXPONENTS = (1.5, 3.0), (3.0, 4.0)
GPUS = ((0.7, 1), (0.8, 2), (0.95, 4), (1.0, 8))  # (cumulative probability, GPUs)
URGENT, URGENT_WEIGHT = 0.2, 5.0  # fraction of the jobs, and their weight relative to the others
SLOS = ((0.33, 1.2), (0.67, 2.0), (1.0, 10.0))  # (cumulative probability, SLO over the job's duration)
ARRIVALS_SEED, SLO_SEED = 1, 4  # added to the seed, for separate random streams
HOUR = 3600.0


class GavelWorkloadParameters(TableParameters):
    """Parameters of ``gavel_jobs``.

    Attributes:
        jobs: the number of jobs.
        jobs_per_hour: the rate of Poisson arrivals, the first one at 0; None for all jobs at 0.
        multiple: whether some jobs have more than one GPU.
        weights: whether a fifth of the jobs has five times the weight of the others.
        slos: whether jobs have SLOs.
        models: job types to draw from; empty for all of the table's.
    """

    jobs: Annotated[int, Field(ge=1)]
    jobs_per_hour: Annotated[float, Field(gt=0)] | None = None
    multiple: bool = False
    weights: bool = False
    slos: bool = False
    models: tuple[str, ...] = Field(default=(), strict=False)


def gavel_jobs(table: ThroughputTable, parameters: GavelWorkloadParameters, seed: int = 0) -> Workload:
    """Draw a workload: a continuous one where ``jobs_per_hour`` is given, a static one otherwise.

    Raises:
        GeneratorError: the table lacks a model, a type or a speed that the parameters ask for.
    """
    regime = "multiple" if parameters.multiple else "single"
    rate = parameters.jobs_per_hour
    if rate is None:
        arrivals: Iterator[float] = itertools.repeat(0.0)
        source = f"Gavel static-{regime}, seed {seed}"
    else:
        rng = random.Random(seed + ARRIVALS_SEED)  # noqa: S311  no secret
        gaps = (-math.log(1.0 - rng.random()) * HOUR / rate for _ in itertools.count())
        arrivals = itertools.accumulate(gaps, initial=0.0)
        source = f"Gavel continuous-{regime}, {rate:g} jobs/h, seed {seed}"
    return Workload(source, tuple(_submissions(table, parameters, arrivals, seed)))


def _submissions(
    table: ThroughputTable, parameters: GavelWorkloadParameters, arrivals: Iterator[float], seed: int
) -> Iterator[Submission]:
    """The jobs, in the order of the draws."""
    rng, slo_rng = random.Random(seed), random.Random(seed + SLO_SEED)  # noqa: S311  no secret
    reference, weights = parameters.reference, parameters.weights
    models = _models(table, parameters)
    digits = len(str(parameters.jobs))
    for number, submitted in zip(range(1, parameters.jobs + 1), arrivals, strict=False):
        drawn = rng.uniform(0.0, 1.0)
        gpus = next(gpus for most, gpus in GPUS if drawn <= most) if parameters.multiple else 1
        exponents = LONG_EXPONENTS if rng.random() >= 1 - LONG else SHORT_EXPONENTS
        seconds = 60.0 * 10 ** rng.uniform(*exponents)
        if not any((model, gpus) in table.job_types for model in models):
            raise GeneratorError(f"the table has no job type on {gpus} GPUs; extend it, or ask for single GPUs")
        model = next(found for _ in itertools.count() if ((found := rng.choice(models)), gpus) in table.job_types)
        speed = table.speed(model, reference, (gpus,))
        if not speed:
            raise GeneratorError(f"the table has no speed of {model!r} on {gpus} GPUs of type {reference!r}")
        urgent = weights and rng.uniform(0.0, 1.0) <= URGENT
        slo = _slo_factor(slo_rng.random()) if parameters.slos else None
        job = trace_job(f"{number:0{digits}}", model, submitted, gpus).evolve(
            weight=1.0 if urgent or not weights else 1 / URGENT_WEIGHT,
            slo_seconds=None if slo is None else slo * seconds,
        )
        yield Submission(job, TableTraining(table, model, seconds * speed))


def _slo_factor(drawn: float) -> float:
    """The SLO over the job's duration, for a number drawn from [0, 1)."""
    return next(factor for most, factor in SLOS if drawn < most)


def _models(table: ThroughputTable, parameters: GavelWorkloadParameters) -> Sequence[str]:
    """The job types to draw from, all of which the table has."""
    if parameters.reference not in table.types:
        known = ", ".join(table.types) or "none"
        raise GeneratorError(f"the table has no GPU type {parameters.reference!r}; it has {known}")
    models = parameters.models or table.models
    for model in models:
        if model not in table.models:
            raise GeneratorError(f"the table has no job type {model!r}; it has {', '.join(table.models)}")
    if not models:
        raise GeneratorError("there is no job type to draw from; name one of the table")
    return models
