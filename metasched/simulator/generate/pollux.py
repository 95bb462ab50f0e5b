"""Workloads like those that Pollux was evaluated on (Qiao et al., OSDI 2021, section 5.1), from its description.

Jobs are drawn from six applications of four categories by GPU time: small (to 1 GPU-hour), medium (to 10), large (to
100) and extra large (to 1000). They arrive in the busiest hours of a day.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from metasched.simulator.generate.parameters import GeneratorParameters
from metasched.simulator.records import Workload
from metasched.simulator.traces.pollux import submission
from metasched.throughput.goodput_profile import EpochRecords, GoodputProfile, StepTime, StepTimes, packed

SHARES = {"cifar10": 0.36, "ncf": 0.36, "deepspeech2": 0.10, "bert": 0.10, "yolov3": 0.06, "imagenet": 0.02}
"""The fraction of the jobs, by application (table 1)."""

ASKED = {
    "cifar10": {1: 98, 4: 2},
    "ncf": {1: 98, 4: 2},
    "deepspeech2": {1: 96, 4: 2, 8: 2},
    "bert": {1: 96, 4: 2, 8: 2},
    "yolov3": {1: 65, 2: 5, 4: 18, 8: 12},
    "imagenet": {1: 18, 2: 6, 4: 29, 8: 40, 16: 5, 32: 2},
}
"""By application, the number of untuned jobs in 100 by the GPUs that they ask for (Philly trace, by category)."""

DAY = 86400.0
SWING = 0.5  # amplitude of the arrival rate over a day, relative to its mean
NODES = 16
NODE_GPUS = 4
GRID = 8  # number of local batch sizes of a synthetic profile


class PolluxWorkloadParameters(GeneratorParameters):
    """Parameters of ``generate_pollux``; the defaults are the paper's load 1.

    Attributes:
        jobs: the number of jobs.
        hours: the span in which they arrive; the rate of arrivals is highest in its middle.
        tuned: whether users ask for GPUs and a batch size at which the application scales at 50 to 80% of the ideal;
            else they ask for as many GPUs as in the Philly trace, and the first batch size for each of them.
        adaptive: whether policies may change the batch size of the jobs, which then begin at the first one.
    """

    jobs: Annotated[int, Field(ge=1)] = 160
    hours: Annotated[float, Field(gt=0)] = 8.0
    tuned: bool = True
    adaptive: bool = False


def generate_pollux(
    parameters: PolluxWorkloadParameters, seed: int, profiles: Mapping[str, GoodputProfile] | None = None
) -> Workload:
    """Draw a workload.

    Args:
        parameters: see there.
        seed: of the random draws.
        profiles: by name, of the applications in ``SHARES``; None for synthetic ones.
    """
    rng = random.Random(f"pollux {seed}")  # noqa: S311  no secret
    jobs, seconds = parameters.jobs, parameters.hours * 3600
    known = synthetic_profiles() if profiles is None else profiles
    arrivals = sorted(_arrival(rng, seconds) for _ in range(jobs))
    digits = len(str(jobs))
    submissions = []
    for position, at in enumerate(arrivals, start=1):
        profile = known[rng.choices(list(SHARES), list(SHARES.values()))[0]]
        if parameters.tuned:
            gpus, batch = rng.choice(profile.tuned_sizes(node_gpus=NODE_GPUS))
        else:
            asked = ASKED[profile.name]
            gpus = rng.choices(list(asked), list(asked.values()))[0]
            batch = min(gpus * profile.first_batch, profile.most_batch)
        name = f"{profile.name}-{position}"
        uid, adaptive = f"{position:0{digits}}", parameters.adaptive
        submissions.append(submission(uid, name, at, profile, gpus=gpus, batch=batch, adaptive=adaptive))
    words = "tuned" if parameters.tuned else "as users ask"
    return Workload(f"pollux, {jobs} jobs in {seconds / 3600:g} h, {words}, seed {seed}", tuple(submissions))


def _arrival(rng: random.Random, seconds: float) -> float:
    """An instant within a span around the day's peak, in whole seconds."""
    while True:
        at = rng.random() * seconds
        rate = 1 + SWING * math.cos(2 * math.pi * (at - seconds / 2) / DAY)
        if rng.random() * (1 + SWING) < rate:
            return float(int(at))


@dataclass(frozen=True, slots=True)
class _Application:
    """An application in the terms of Pollux's model (section 3).

    Attributes:
        epochs: number of epochs to train.
        steps: optimizer steps of an epoch at the first batch size.
        batches: the first (smallest) batch size and the largest.
        local: the least and the most samples on one GPU.
        compute: seconds of a pass: fixed part, and per sample.
        inside: seconds of a synchronisation within a node: for two GPUs, and per further GPU.
        between: seconds of a synchronisation between nodes, likewise.
        noise: the gradient noise scale over the first batch size, at the start and at the end of the training.
    """

    epochs: int
    steps: int
    batches: tuple[int, int]
    local: tuple[int, int]
    compute: tuple[float, float]
    inside: tuple[float, float]
    between: tuple[float, float]
    noise: tuple[float, float]


APPLICATIONS = {
    "cifar10": _Application(
        100, 390, (128, 4096), (32, 1024), (0.02, 0.0004), (0.01, 0.002), (0.04, 0.002), (10.0, 300.0)
    ),
    "ncf": _Application(
        10, 19400, (256, 32768), (32, 32768), (0.006, 4e-6), (0.02, 0.002), (0.2, 0.002), (50.0, 5000.0)
    ),
    "deepspeech2": _Application(80, 357, (20, 640), (10, 80), (0.2, 0.02), (0.03, 0.01), (0.25, 0.01), (10.0, 200.0)),
    "bert": _Application(2, 7390, (12, 384), (4, 12), (0.2, 0.055), (0.25, 0.02), (0.8, 0.02), (30.0, 300.0)),
    "yolov3": _Application(50, 2070, (8, 512), (4, 8), (0.05, 0.05), (0.1, 0.02), (0.3, 0.01), (10.0, 100.0)),
    "imagenet": _Application(
        90, 6400, (200, 12800), (20, 200), (0.02, 0.004), (0.05, 0.004), (0.15, 0.002), (20.0, 200.0)
    ),
}
"""Synthetic applications that resemble those of table 1 in size and scaling; the numbers are not the paper's."""

OVERLAP = 1.5  # gamma of the throughput model (section 3.2): how far computation and synchronisation overlap


def synthetic_profiles(gpu_type: str = "t4") -> dict[str, GoodputProfile]:
    """Profiles of ``APPLICATIONS``, on up to 16 nodes of 4 GPUs."""
    return {name: _profile(name, application, gpu_type) for name, application in APPLICATIONS.items()}


def _profile(name: str, application: _Application, gpu_type: str) -> GoodputProfile:
    least, most = application.local
    ratio = (most / least) ** (1 / (GRID - 1))
    locals_ = sorted({round(least * ratio**i) for i in range(GRID)})
    spreads = [packed(gpus, NODE_GPUS) for gpus in range(1, NODES * NODE_GPUS + 1)]
    shapes = {
        (nodes, gpus)
        for nodes in range(1, NODES + 1)
        for gpus in range(nodes, nodes * NODE_GPUS + 1, nodes)
        if nodes > 1 or gpus == 1
    }
    batches = [application.batches[0]]
    while batches[-1] < application.batches[1]:
        batches.append(min(2 * batches[-1], application.batches[1]))
    return GoodputProfile(
        name,
        {
            spread: StepTimes(
                tuple(locals_), tuple(_time(application, len(spread), sum(spread), local) for local in locals_)
            )
            for spread in spreads
        },
        {(n, g, local): _time(application, n, g, local) for n, g in sorted(shapes) for local in locals_},
        {batch: _epochs(application, batch) for batch in batches},
        epochs=application.epochs,
        gpu_type=gpu_type,
    )


def _time(application: _Application, nodes: int, gpus: int, local: int) -> StepTime:
    fixed, each = application.compute
    compute = fixed + each * local
    base, more = application.between if nodes > 1 else application.inside
    sync = base + more * max(gpus - 2, 0) if gpus > 1 else 0.0
    step = (compute**OVERLAP + sync**OVERLAP) ** (1 / OVERLAP)
    return StepTime(step, step - compute)


def _epochs(application: _Application, batch: int) -> EpochRecords:
    first, last = application.noise
    noise = [first * (last / first) ** (epoch / max(application.epochs - 1, 1)) for epoch in range(application.epochs)]
    scale = batch / application.batches[0]
    steps = itertools.accumulate(application.steps * (phi / scale + 1) / (phi + 1) for phi in noise)
    progress = tuple(float(application.steps * (epoch + 1)) for epoch in range(application.epochs))
    return EpochRecords(progress, tuple(steps), (1.0,) * application.epochs, tuple(noise))
