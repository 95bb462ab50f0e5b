"""Workloads like those of Shockwave (Zheng et al., NSDI 2023, section 8.1, table 2), from its description.

Jobs last 0.2 to 5 hours in isolation, on 1, 2, 4 or 8 GPUs, and arrive as a Poisson process. 72 % of the jobs are
small, 20 % medium, 5 % large and 3 % extra large. The paper defines these categories by GPU time, with limits that its
durations cannot reach; here, as in its artifact, they are parts of the range of durations. Each job's batch size is
static, or adapts like Accordion or by the gradient noise scale. The shares of GPUs and modes, and the time between
arrivals, are those in the name of the published trace.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.parameters import TableParameters
from metasched.simulator.records import Submission, Workload, trace_job
from metasched.throughput.batch_size_regimes import Mode, RegimeTraining, parse_model
from metasched.throughput.throughput_table import ThroughputTable

FAMILIES = ("ResNet-50", "ResNet-18", "LM", "Transformer", "Recommendation")
HOURS = (0.2, 5.0)
CATEGORIES = ((0.72, 0.0, 0.2), (0.20, 0.2, 0.5), (0.05, 0.5, 0.9), (0.03, 0.9, 1.0))
"""Fraction of the jobs, and the lower and upper end of their part of the range ``HOURS``."""
GPUS: Mapping[int, float] = {1: 0.6, 2: 0.3, 4: 0.09, 8: 0.01}
MODES: Mapping[Mode, float] = {Mode.STATIC: 0.0, Mode.ACCORDION: 0.5, Mode.GNS: 0.5}
SHORT_SECONDS = 1000.0
"""Shorter jobs do not adapt like Accordion, because hardly anything would be left of them."""


class ShockwaveWorkloadParameters(TableParameters):
    """Parameters of ``shockwave_jobs``; the defaults are those of the published trace.

    Attributes:
        jobs: the number of jobs.
        gap_seconds: the mean time between arrivals.
    """

    jobs: Annotated[int, Field(ge=1)] = 120
    gap_seconds: Annotated[float, Field(gt=0)] = 40.0


def shockwave_jobs(
    table: ThroughputTable,
    parameters: ShockwaveWorkloadParameters,
    seed: int = 0,
    *,
    gpus: Mapping[int, float] = GPUS,
    modes: Mapping[Mode, float] = MODES,
) -> Workload:
    """Draw a workload whose first job arrives at 0.

    Args:
        table: speeds of the models, at all batch sizes that they adapt to.
        parameters: see there.
        seed: of the random draws.
        gpus: fraction of the jobs by their number of GPUs.
        modes: fraction of the jobs by how their batch size adapts.

    Raises:
        GeneratorError: the table has no model that runs on that number of GPUs of the reference type.
    """
    rng = random.Random(f"shockwave {seed}")  # noqa: S311  no secret
    jobs, reference = parameters.jobs, parameters.reference
    models = {count: _models(table, count, reference) for count, share in gpus.items() if share > 0}
    digits = len(str(jobs))
    submitted = 0.0
    submissions = []
    for number in range(1, jobs + 1):
        count = rng.choices(list(gpus), list(gpus.values()))[0]
        mode = rng.choices(list(modes), list(modes.values()))[0]
        seconds = 3600.0 * _hours(rng)
        if seconds < SHORT_SECONDS and mode is Mode.ACCORDION:
            mode = Mode.STATIC
        model = rng.choice(models[count])
        steps = max(int(seconds * (table.speed(model, reference, (count,)) or 0.0)), 1)
        job = trace_job(f"{number:0{digits}}", f"{model}, {mode.value}", submitted, count)
        submissions.append(Submission(job, RegimeTraining.of(table, mode, model, count, steps)))
        submitted += rng.expovariate(1.0 / parameters.gap_seconds)
    return Workload(f"Shockwave, a job every {parameters.gap_seconds:g} s, seed {seed}", tuple(submissions))


def _hours(rng: random.Random) -> float:
    """A job's isolated duration in hours at its first batch size."""
    _, low, high = rng.choices(CATEGORIES, [share for share, *_ in CATEGORIES])[0]
    return HOURS[0] + (HOURS[1] - HOURS[0]) * rng.uniform(low, high)


def _models(table: ThroughputTable, gpus: int, reference: str) -> Sequence[str]:
    """The paper's models that run on this number of GPUs of the reference type."""
    families = (model for model in table.models if model.partition(" (")[0] in FAMILIES)
    found = [model for model in families if parse_model(model) and table.speed(model, reference, (gpus,))]
    if not found:
        raise GeneratorError(
            f"the table has no speed of {', '.join(FAMILIES)} on {gpus} GPUs of type {reference!r}; extend it, or leave"
            " that many GPUs out"
        )
    return found
