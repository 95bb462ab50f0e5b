"""Workloads of apps like those of Themis (Mahajan et al., NSDI 2020, sections 2.2, 4.3.2 and 5), from its description.

An app searches hyper-parameters by successive halving: n configurations begin, as jobs, with one GPU each; after every
phase the better half goes on, with twice as many GPUs at most. How good they are is chance, fixed by the seed, so each
job is as long as it survives: who is cut after k phases has k phases to do. A tenth of the apps has one job. Models of
an app are of one kind: vision 10 %, language 60 %, others (the paper: speech) 30 %. Sizes spread over orders of
magnitude; half of all jobs take less than 3.75 GPU-hours.

The jobs of an app are a job array: uid ``<base>_<task>``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from metasched.core.model import Job
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.records import Submission, Workload
from metasched.throughput.throughput_table import Table, TableTraining

KINDS: Mapping[str, float] = {"vision": 0.1, "language": 0.6, "others": 0.3}
VISION, LANGUAGE = ("ResNet", "CycleGAN"), ("LM", "Transformer")
CONFIGURATIONS: Mapping[int, float] = {1: 0.1, 32: 0.25, 64: 0.4, 128: 0.25}
"""How many configurations apps try, with the shares of apps: a median of about 75, and about 100 at most."""
SPREAD = math.log(10.0)
"""Of the sizes' logarithm: "many" jobs are ten times as long or as short as the median."""


def themis_apps(
    table: Table,
    *,
    apps: int = 20,
    mean_gap_seconds: float = 1200.0,
    median_hours: float = 3.75,
    configurations: Mapping[int, float] = CONFIGURATIONS,
    most_gpus: int = 8,
    seed: int = 0,
    reference: str = "v100",
) -> Workload:
    """A workload whose first app arrives at 0.

    Args:
        table: speeds.
        apps: how many.
        mean_gap_seconds: between arrivals of apps (Poisson).
        median_hours: of a phase on one GPU of the reference type.
        configurations: how many jobs apps begin with, powers of two, with the shares of apps.
        most_gpus: that one job may have.
        seed: of all chance.
        reference: the GPU type that durations hold for.

    Raises:
        GeneratorError: the table has no model that runs on one GPU of the type, or a number is no power of two.
    """
    chance = random.Random(f"themis {seed}")  # noqa: S311  no secret
    if odd := [count for count in configurations if count < 1 or count & (count - 1)]:
        raise GeneratorError(f"{odd[0]} configurations cannot be halved to one; give powers of two")
    kinds = _kinds(table, reference)
    digits = len(str(apps))
    submitted = 0.0
    submissions = []
    for number in range(1, apps + 1):
        kind = chance.choices(list(kinds), [KINDS[name] for name in kinds])[0]
        model = chance.choice(kinds[kind])
        count = chance.choices(list(configurations), list(configurations.values()))[0]
        seconds = 3600.0 * median_hours * math.exp(chance.gauss(0.0, SPREAD))
        steps = max(seconds * (table.speed(model, reference, (1,)) or 0.0), 1.0)
        ranks = list(range(count))
        chance.shuffle(ranks)
        for task, rank in enumerate(ranks):
            phases = _phases(count, rank)
            uid = f"{number:0{digits}}_{task}"
            most = _most(table, model, reference, min(2 ** (phases - 1), most_gpus))
            job = Job(
                uid=uid,
                slurm_job_id=uid,
                name=f"{model}, {phases} of {count.bit_length()} phases",
                user=f"app{number}",
                submitted=submitted,
                gpus=1,
                min_gpus=1,
                max_gpus=most,
                cpus_per_unit=0,
            )
            submissions.append(Submission(job, TableTraining(table, model, steps * phases)))
        submitted += chance.expovariate(1.0 / mean_gap_seconds)
    submissions.sort(key=lambda one: (one.job.submitted, one.job.uid))
    return Workload(f"Themis, an app every {mean_gap_seconds:g} s, seed {seed}", tuple(submissions))


def _phases(count: int, rank: int) -> int:
    """How many phases the configuration of a rank (0 is the best) goes through; half are left after each."""
    phases = 1
    while (count := count // 2) > rank:
        phases += 1
    return phases


def _most(table: Table, model: str, reference: str, gpus: int) -> int:
    """The most GPUs up to a number, by doubling, that it is known to run on."""
    most = 1
    while 2 * most <= gpus and table.speed(model, reference, (2 * most,)):
        most *= 2
    return most


def _kinds(table: Table, reference: str) -> dict[str, Sequence[str]]:
    """The table's models by kind; a kind without any is left out."""
    found: dict[str, list[str]] = {}
    for model in table.models:
        if table.speed(model, reference, (1,)):
            kind = "vision" if model.startswith(VISION) else "language" if model.startswith(LANGUAGE) else "others"
            found.setdefault(kind, []).append(model)
    if not found:
        raise GeneratorError(f"the table has no model that runs on a GPU of type {reference!r}; name another type")
    return {kind: found[kind] for kind in KINDS if kind in found}
