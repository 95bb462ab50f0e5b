"""Searches for hyper-parameters, whose trials arrive as others end (Pollux, OSDI 2021, section 5.4.2).

All trials train one application. The network's width, which is searched, too, makes their steps differ in length.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.parameters import GeneratorParameters
from metasched.simulator.records import Workload
from metasched.simulator.traces.pollux import submission
from metasched.throughput.goodput_profile import GoodputProfile


class HpoWorkloadParameters(GeneratorParameters):
    """Parameters of ``hpo_trials``; the defaults are the paper's.

    Attributes:
        trials: the number of trials.
        gpus: the GPUs that each trial asks for.
        per_gpu: samples of a GPU in the batch that each trial asks for; None for the application's first batch.
        spread: the standard deviation of the logarithm of a step's length.
        adaptive: whether policies may change GPUs and batch size; else each trial has those that it asks for.
    """

    trials: Annotated[int, Field(ge=1)] = 100
    gpus: Annotated[int, Field(ge=1)] = 4
    per_gpu: Annotated[int, Field(ge=1)] | None = None
    spread: Annotated[float, Field(ge=0, le=2)] = 0.3
    adaptive: bool = True


def hpo_trials(parameters: HpoWorkloadParameters, seed: int, profile: GoodputProfile) -> Workload:
    """Draw the trials, all of which could arrive at 0.

    Args:
        parameters: see there.
        seed: of the random draws.
        profile: the application.

    Raises:
        GeneratorError: the application cannot have the batch.
    """
    rng = random.Random(f"hpo {seed}")  # noqa: S311  no secret
    gpus = parameters.gpus
    batch = profile.first_batch if parameters.per_gpu is None else gpus * parameters.per_gpu
    least = max(profile.first_batch, gpus * profile.least_local)
    if not least <= batch <= profile.most_batch:
        fault = f"{gpus} GPUs with a batch of {batch} are not possible for {profile.name}"
        raise GeneratorError(f"{fault}: give a per_gpu from {-(-least // gpus)} to {profile.most_batch // gpus}")
    digits, found = len(str(parameters.trials)), []
    for position in range(1, parameters.trials + 1):
        slowed = profile.slowed(math.exp(rng.gauss(0.0, parameters.spread)))
        adaptive = parameters.adaptive
        uid, name = f"{position:0{digits}}", f"trial-{position}"
        one = submission(uid, name, 0.0, slowed, gpus=gpus, batch=batch, adaptive=adaptive)
        if not adaptive:
            one = replace(one, job=one.job.evolve(min_gpus=gpus, max_gpus=gpus))
        found.append(one)
    return Workload(f"{parameters.trials} trials of {profile.name}, seed {seed}", tuple(found))
