"""Gavel's workloads (Narayanan et al., OSDI 2020, section 7.1).

Job types are drawn uniformly. A job lasts 10^x minutes on the reference type, x uniform in [1.5, 3] for 80 % of the
jobs and in [3, 4] for the others; its steps are what it does in that time. In the ``multiple`` regime 70 % of the jobs
have one GPU, 25 % two to four (10 % have 2, 15 % have 4, as in the public simulator) and 5 % have 8; job types that do
not run on that many are drawn again. Continuous traces have Poisson arrivals, static ones have all jobs at 0.

The draws are those of the public simulator: with the job types in its order and a seed 2 above its own, the jobs are
its own, too. Its streams of chance are apart by their seeds alone, which are the given one for the jobs, the next for
the arrivals and the fourth after it for the SLOs: workloads whose seeds are 1, 3 or 4 apart have a stream in common,
used for other draws. Repetitions that are to be independent take seeds further apart.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from metasched.core.model import Job
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.records import Submission, Workload
from metasched.throughput.throughput_table import Table, TableTraining

LONG = 0.2  # part of the jobs
SHORT_EXPONENTS, LONG_EXPONENTS = (1.5, 3.0), (3.0, 4.0)
GPUS = ((0.7, 1), (0.8, 2), (0.95, 4), (1.0, 8))  # up to this probability, so many
URGENT, URGENT_WEIGHT = 0.2, 5.0  # part of the jobs, and their weight relative to the others
SLOS = ((0.33, 1.2), (0.67, 2.0), (1.0, 10.0))  # below this probability, so many times the job's duration
ARRIVALS_SEED, SLO_SEED = 1, 4  # added to the seed: streams of their own
HOUR = 3600.0


def continuous_jobs(
    table: Table,
    *,
    jobs: int,
    jobs_per_hour: float,
    multiple: bool = False,
    weights: bool = False,
    slos: bool = False,
    seed: int = 0,
    models: Sequence[str] | None = None,
    reference: str = "v100",
) -> Workload:
    """Jobs that arrive as a Poisson process, the first one at 0.

    Args:
        table: speeds.
        jobs: how many.
        jobs_per_hour: the rate of arrivals.
        multiple: whether some have more than one GPU.
        weights: whether a fifth of the jobs has five times the weight of the others.
        slos: whether jobs have SLOs.
        seed: of all chance.
        models: job types to draw from; None for all of the table's.
        reference: the GPU type that durations hold for.

    Raises:
        GeneratorError: the table does not have what this takes.
    """
    chance = random.Random(seed + ARRIVALS_SEED)  # noqa: S311  no secret
    gaps = (-math.log(1.0 - chance.random()) * HOUR / jobs_per_hour for _ in itertools.count())
    arrivals = itertools.accumulate(gaps, initial=0.0)
    made = _jobs(
        table,
        jobs,
        arrivals,
        seed=seed,
        models=models,
        reference=reference,
        multiple=multiple,
        weights=weights,
        slos=slos,
    )
    kind = "multiple" if multiple else "single"
    return Workload(f"Gavel continuous-{kind}, {jobs_per_hour:g} jobs/h, seed {seed}", tuple(made))


def static_jobs(
    table: Table,
    *,
    jobs: int,
    multiple: bool = False,
    weights: bool = False,
    slos: bool = False,
    seed: int = 0,
    models: Sequence[str] | None = None,
    reference: str = "v100",
) -> Workload:
    """Jobs that are all there at 0; the arguments are those of ``continuous_jobs``.

    Raises:
        GeneratorError: the table does not have what this takes.
    """
    arrivals = itertools.repeat(0.0)
    made = _jobs(
        table,
        jobs,
        arrivals,
        seed=seed,
        models=models,
        reference=reference,
        multiple=multiple,
        weights=weights,
        slos=slos,
    )
    return Workload(f"Gavel static-{'multiple' if multiple else 'single'}, seed {seed}", tuple(made))


def _jobs(
    table: Table,
    count: int,
    arrivals: Iterator[float],
    *,
    seed: int,
    models: Sequence[str] | None,
    reference: str,
    multiple: bool,
    weights: bool,
    slos: bool,
) -> Iterator[Submission]:
    """One submission after the other, in the order of the draws."""
    chance, slo_chance = random.Random(seed), random.Random(seed + SLO_SEED)  # noqa: S311  no secret
    types = _types(table, models, reference)
    digits = len(str(count))
    for number, submitted in zip(range(1, count + 1), arrivals, strict=False):
        drawn = chance.uniform(0.0, 1.0)
        gpus = next(gpus for most, gpus in GPUS if drawn <= most) if multiple else 1
        exponents = LONG_EXPONENTS if chance.random() >= 1 - LONG else SHORT_EXPONENTS
        seconds = 60.0 * 10 ** chance.uniform(*exponents)
        if not any((model, gpus) in table.kinds for model in types):
            raise GeneratorError(f"the table has no job type on {gpus} GPUs; extend it, or ask for single GPUs")
        model = next(found for _ in itertools.count() if ((found := chance.choice(types)), gpus) in table.kinds)
        speed = table.speed(model, reference, (gpus,))
        if not speed:
            raise GeneratorError(f"the table has no speed of {model!r} on {gpus} GPUs of type {reference!r}")
        urgent = weights and chance.uniform(0.0, 1.0) <= URGENT
        slo = _slo(slo_chance.random()) if slos else None
        job = Job(
            uid=f"{number:0{digits}}",
            slurm_job_id=str(number),
            name=model,
            user="trace",
            submitted=submitted,
            gpus=gpus,
            min_gpus=gpus,
            max_gpus=gpus,
            cpus_per_unit=0,
            weight=1.0 if urgent or not weights else 1 / URGENT_WEIGHT,
            slo_seconds=None if slo is None else slo * seconds,
        )
        yield Submission(job, TableTraining(table, model, seconds * speed))


def _slo(drawn: float) -> float:
    return next(factor for most, factor in SLOS if drawn < most)


def _types(table: Table, models: Sequence[str] | None, reference: str) -> Sequence[str]:
    """The job types to draw from, all of them known."""
    if reference not in table.types:
        raise GeneratorError(f"the table has no GPU type {reference!r}; it has {', '.join(table.types) or 'none'}")
    found = table.models if models is None else models
    for model in found:
        if model not in table.models:
            raise GeneratorError(f"the table has no job type {model!r}; it has {', '.join(table.models)}")
    if not found:
        raise GeneratorError("there is no job type to draw from; name one of the table")
    return found
