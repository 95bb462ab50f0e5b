"""Workloads of apps like those of Themis (Mahajan et al., NSDI 2020, sections 2.2, 4.3.2 and 5), from its description.

An app searches hyper-parameters by successive halving: n configurations begin, as jobs, with one GPU each; after every
phase the better half continues, with twice as many GPUs at most. The ranking is drawn at random, so that a job that is
cut after k phases is a job of k phases. A tenth of the apps has one job. Models of an app are of one domain: vision
10 %, language 60 %, others (the paper: speech) 30 %. Sizes spread over orders of magnitude; half of all jobs take less
than 3.75 GPU-hours.

The jobs of an app are a job array: uid ``<base>_<task>``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.parameters import TableParameters
from metasched.simulator.records import Submission, Workload, trace_job
from metasched.throughput.throughput_table import TableTraining, ThroughputTable

DOMAINS: Mapping[str, float] = {"vision": 0.1, "language": 0.6, "others": 0.3}
VISION, LANGUAGE = ("ResNet", "CycleGAN"), ("LM", "Transformer")
CONFIGURATIONS: Mapping[int, float] = {1: 0.1, 32: 0.25, 64: 0.4, 128: 0.25}
"""Fraction of the apps by their number of configurations: a median of about 75, and about 100 at most."""
MEDIAN_HOURS = 3.75
"""The median duration of a phase on one GPU of the reference type."""
SPREAD = math.log(10.0)
"""Standard deviation of the logarithm of durations: "many" jobs are ten times as long or as short as the median."""
MAX_GPUS = 8
"""The most GPUs of one job."""


class ThemisWorkloadParameters(TableParameters):
    """Parameters of ``themis_apps``.

    Attributes:
        apps: the number of apps.
        gap_seconds: the mean time between arrivals of apps.
    """

    apps: Annotated[int, Field(ge=1)] = 20
    gap_seconds: Annotated[float, Field(gt=0)] = 1200.0


def themis_apps(
    table: ThroughputTable,
    parameters: ThemisWorkloadParameters,
    seed: int = 0,
    *,
    configurations: Mapping[int, float] = CONFIGURATIONS,
) -> Workload:
    """Draw a workload whose first app arrives at 0; apps arrive as a Poisson process.

    Args:
        table: speeds of the models.
        parameters: see there.
        seed: of the random draws.
        configurations: fraction of the apps by the number of jobs that they begin with, a power of two.

    Raises:
        GeneratorError: the table has no model that runs on one GPU of the reference type, or a number of
            configurations is no power of two.
    """
    rng = random.Random(f"themis {seed}")  # noqa: S311  no secret
    apps, reference = parameters.apps, parameters.reference
    if odd := [count for count in configurations if count < 1 or count & (count - 1)]:
        raise GeneratorError(f"{odd[0]} configurations cannot be halved to one; give powers of two")
    domains = _models_by_domain(table, reference)
    digits = len(str(apps))
    submitted = 0.0
    submissions = []
    for number in range(1, apps + 1):
        domain = rng.choices(list(domains), [DOMAINS[name] for name in domains])[0]
        model = rng.choice(domains[domain])
        count = rng.choices(list(configurations), list(configurations.values()))[0]
        seconds = 3600.0 * MEDIAN_HOURS * math.exp(rng.gauss(0.0, SPREAD))
        steps = max(seconds * (table.speed(model, reference, (1,)) or 0.0), 1.0)
        ranks = list(range(count))
        rng.shuffle(ranks)
        for task, rank in enumerate(ranks):
            phases = _phases(count, rank)
            name = f"{model}, {phases} of {count.bit_length()} phases"
            max_gpus = _max_gpus(table, model, reference, min(2 ** (phases - 1), MAX_GPUS))
            job = trace_job(f"{number:0{digits}}_{task}", name, submitted, 1, max_gpus=max_gpus)
            job = job.evolve(user=f"app{number}")
            submissions.append(Submission(job, TableTraining(table, model, steps * phases)))
        submitted += rng.expovariate(1.0 / parameters.gap_seconds)
    submissions.sort(key=lambda one: (one.job.submitted, one.job.uid))
    return Workload(f"Themis, an app every {parameters.gap_seconds:g} s, seed {seed}", tuple(submissions))


def _phases(count: int, rank: int) -> int:
    """The phases of the configuration of a rank (0 is the best) among ``count``, of which each phase halves."""
    phases = 1
    while (count := count // 2) > rank:
        phases += 1
    return phases


def _max_gpus(table: ThroughputTable, model: str, reference: str, gpus: int) -> int:
    """The largest power of two up to ``gpus`` that a model has a speed for."""
    most = 1
    while 2 * most <= gpus and table.speed(model, reference, (2 * most,)):
        most *= 2
    return most


def _models_by_domain(table: ThroughputTable, reference: str) -> dict[str, Sequence[str]]:
    """The table's models that run on one GPU, by domain; domains without models are left out."""
    found: dict[str, list[str]] = {}
    for model in table.models:
        if table.speed(model, reference, (1,)):
            domain = "vision" if model.startswith(VISION) else "language" if model.startswith(LANGUAGE) else "others"
            found.setdefault(domain, []).append(model)
    if not found:
        raise GeneratorError(f"the table has no model that runs on a GPU of type {reference!r}; name another type")
    return {domain: found[domain] for domain in DOMAINS if domain in found}
