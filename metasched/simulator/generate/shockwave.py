"""Workloads like those of Shockwave (Zheng et al., NSDI 2023, section 8.1, table 2), from its description.

Jobs last 0.2 to 5 hours alone, on 1, 2, 4 or 8 GPUs, and arrive as a Poisson process. Most are small: 72 %, 20 %, 5 %
and 3 % are small, medium, large and extra large. The paper says so of GPU time, with limits that its durations cannot
reach; as in its artifact, the categories are parts of the range of durations. Each job's batch size is static, or
adapts like Accordion or by the gradient noise scale. The shares of GPUs and modes, and the time between arrivals, are
those in the name of the published trace.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from metasched.core.model import Job
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.records import Submission, Workload
from metasched.throughput.batch_size_regimes import Mode, RegimeTraining, parsed
from metasched.throughput.throughput_table import Table

FAMILIES = ("ResNet-50", "ResNet-18", "LM", "Transformer", "Recommendation")
HOURS = (0.2, 5.0)
CATEGORIES = ((0.72, 0.0, 0.2), (0.20, 0.2, 0.5), (0.05, 0.5, 0.9), (0.03, 0.9, 1.0))
"""Part of the jobs, and of the range of durations from where to where."""
GPUS: Mapping[int, float] = {1: 0.6, 2: 0.3, 4: 0.09, 8: 0.01}
MODES: Mapping[Mode, float] = {Mode.STATIC: 0.0, Mode.ACCORDION: 0.5, Mode.GNS: 0.5}
SHORT_SECONDS = 1000.0
"""Jobs shorter than this do not adapt like Accordion: hardly anything would be left of them."""


def shockwave_jobs(
    table: Table,
    *,
    jobs: int = 120,
    mean_gap_seconds: float = 40.0,
    gpus: Mapping[int, float] = GPUS,
    modes: Mapping[Mode, float] = MODES,
    seed: int = 0,
    reference: str = "v100",
) -> Workload:
    """A workload whose first job arrives at 0.

    Args:
        table: speeds of models, at all batch sizes that they adapt to.
        jobs: how many.
        mean_gap_seconds: between arrivals.
        gpus: how many GPUs jobs have, with the shares of jobs.
        modes: how they adapt, with the shares of jobs.
        seed: of all chance.
        reference: the GPU type that durations hold for.

    Raises:
        GeneratorError: the table has no model that runs on so many GPUs of the type.
    """
    chance = random.Random(f"shockwave {seed}")  # noqa: S311  no secret
    models = {count: _models(table, count, reference) for count, share in gpus.items() if share > 0}
    digits = len(str(jobs))
    submitted = 0.0
    submissions = []
    for number in range(1, jobs + 1):
        count = chance.choices(list(gpus), list(gpus.values()))[0]
        mode = chance.choices(list(modes), list(modes.values()))[0]
        seconds = 3600.0 * _hours(chance)
        if seconds < SHORT_SECONDS and mode is Mode.ACCORDION:
            mode = Mode.STATIC
        model = chance.choice(models[count])
        steps = max(int(seconds * (table.speed(model, reference, (count,)) or 0.0)), 1)
        job = Job(
            uid=f"{number:0{digits}}",
            slurm_job_id=str(number),
            name=f"{model}, {mode.value}",
            user="trace",
            submitted=submitted,
            gpus=count,
            min_gpus=count,
            max_gpus=count,
            cpus_per_unit=0,
        )
        submissions.append(Submission(job, RegimeTraining.of(table, mode, model, count, steps)))
        submitted += chance.expovariate(1.0 / mean_gap_seconds)
    return Workload(f"Shockwave, a job every {mean_gap_seconds:g} s, seed {seed}", tuple(submissions))


def _hours(chance: random.Random) -> float:
    """A job's duration alone, if its batch stayed as it is."""
    _, low, high = chance.choices(CATEGORIES, [share for share, *_ in CATEGORIES])[0]
    return HOURS[0] + (HOURS[1] - HOURS[0]) * chance.uniform(low, high)


def _models(table: Table, gpus: int, reference: str) -> Sequence[str]:
    """Models of the paper that run on so many GPUs."""
    families = (model for model in table.models if model.partition(" (")[0] in FAMILIES)
    found = [model for model in families if parsed(model) and table.speed(model, reference, (gpus,))]
    if not found:
        raise GeneratorError(
            f"the table has no speed of {', '.join(FAMILIES)} on {gpus} GPUs of type {reference!r}; extend it, or leave"
            " that many GPUs out"
        )
    return found
