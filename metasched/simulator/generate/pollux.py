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

from metasched.simulator.records import Workload
from metasched.simulator.traces.pollux import submission
from metasched.throughput.goodput_profile import Epochs, Measured, Profile, StepTime, packed

SHARES = {"cifar10": 0.36, "ncf": 0.36, "deepspeech2": 0.10, "bert": 0.10, "yolov3": 0.06, "imagenet": 0.02}
"""Of the jobs, by application (table 1)."""

ASKED = {
    "cifar10": {1: 98, 4: 2},
    "ncf": {1: 98, 4: 2},
    "deepspeech2": {1: 96, 4: 2, 8: 2},
    "bert": {1: 96, 4: 2, 8: 2},
    "yolov3": {1: 65, 2: 5, 4: 18, 8: 12},
    "imagenet": {1: 18, 2: 6, 4: 29, 8: 40, 16: 5, 32: 2},
}
"""How many of 100 users ask for so many GPUs where nothing is tuned, as in the Philly trace by category."""

DAY = 86400.0
SWING = 0.5  # of the rate of arrivals round its mean, in the course of a day
NODES = 16
NODE_GPUS = 4
GRID = 8  # local batch sizes of a synthetic profile


def generate_pollux(
    seed: int,
    *,
    jobs: int = 160,
    seconds: float = 8 * 3600.0,
    tuned: bool = True,
    profiles: Mapping[str, Profile] | None = None,
) -> Workload:
    """A workload.

    Args:
        seed: of all chance.
        jobs: how many; 160 is the paper's load 1.
        seconds: in which they arrive; their rate is highest in the middle.
        tuned: whether users ask for GPUs and a batch size at which the application scales at 50 to 80% of the ideal;
            else they ask for as many GPUs as in the Philly trace, and the first batch size for each of them.
        profiles: of the applications in ``SHARES``; None for synthetic ones.
    """
    chance = random.Random(f"pollux {seed}")  # noqa: S311  no secret
    known = synthetic_profiles() if profiles is None else profiles
    arrivals = sorted(_arrival(chance, seconds) for _ in range(jobs))
    digits = len(str(jobs))
    submissions = []
    for position, at in enumerate(arrivals, start=1):
        profile = known[chance.choices(list(SHARES), list(SHARES.values()))[0]]
        if tuned:
            gpus, batch = chance.choice(profile.tuned_sizes(node_gpus=NODE_GPUS))
        else:
            asked = ASKED[profile.name]
            gpus = chance.choices(list(asked), list(asked.values()))[0]
            batch = min(gpus * profile.first_batch, profile.most_batch)
        name = f"{profile.name}-{position}"
        submissions.append(submission(f"{position:0{digits}}", name, at, profile, gpus=gpus, batch=batch))
    words = "tuned" if tuned else "as users ask"
    return Workload(f"pollux, {jobs} jobs in {seconds / 3600:g} h, {words}, seed {seed}", tuple(submissions))


def _arrival(chance: random.Random, seconds: float) -> float:
    """An instant of the hours round the day's peak, in whole seconds."""
    while True:
        at = chance.random() * seconds
        rate = 1 + SWING * math.cos(2 * math.pi * (at - seconds / 2) / DAY)
        if chance.random() * (1 + SWING) < rate:
            return float(int(at))


@dataclass(frozen=True, slots=True)
class _Kind:
    """An application in the terms of Pollux's model (section 3).

    Attributes:
        epochs: to train.
        steps: of an epoch at the first batch size.
        batches: the first batch size and the largest.
        local: samples on one GPU, least and most.
        compute: seconds of a pass, fixed and for each sample.
        inside: seconds of the synchronisation within a node, and for each GPU beyond the second.
        between: the same between nodes.
        noise: the gradients' noise scale over the first batch size, at the beginning and at the end.
    """

    epochs: int
    steps: int
    batches: tuple[int, int]
    local: tuple[int, int]
    compute: tuple[float, float]
    inside: tuple[float, float]
    between: tuple[float, float]
    noise: tuple[float, float]


KINDS = {
    "cifar10": _Kind(100, 390, (128, 4096), (32, 1024), (0.02, 0.0004), (0.01, 0.002), (0.04, 0.002), (10.0, 300.0)),
    "ncf": _Kind(10, 19400, (256, 32768), (32, 32768), (0.006, 4e-6), (0.02, 0.002), (0.2, 0.002), (50.0, 5000.0)),
    "deepspeech2": _Kind(80, 357, (20, 640), (10, 80), (0.2, 0.02), (0.03, 0.01), (0.25, 0.01), (10.0, 200.0)),
    "bert": _Kind(2, 7390, (12, 384), (4, 12), (0.2, 0.055), (0.25, 0.02), (0.8, 0.02), (30.0, 300.0)),
    "yolov3": _Kind(50, 2070, (8, 512), (4, 8), (0.05, 0.05), (0.1, 0.02), (0.3, 0.01), (10.0, 100.0)),
    "imagenet": _Kind(90, 6400, (200, 12800), (20, 200), (0.02, 0.004), (0.05, 0.004), (0.15, 0.002), (20.0, 200.0)),
}
"""Like the applications of table 1 in size and in how they scale; the numbers are ours."""

OVERLAP = 1.5  # the exponent by which computing and synchronising overlap


def synthetic_profiles(gpu_type: str = "t4") -> dict[str, Profile]:
    """Profiles of ``KINDS``, on up to 16 nodes of 4 GPUs."""
    return {name: _profile(name, kind, gpu_type) for name, kind in KINDS.items()}


def _profile(name: str, kind: _Kind, gpu_type: str) -> Profile:
    least, most = kind.local
    ratio = (most / least) ** (1 / (GRID - 1))
    locals_ = sorted({round(least * ratio**i) for i in range(GRID)})
    spreads = [packed(gpus, NODE_GPUS) for gpus in range(1, NODES * NODE_GPUS + 1)]
    shapes = {
        (nodes, gpus)
        for nodes in range(1, NODES + 1)
        for gpus in range(nodes, nodes * NODE_GPUS + 1, nodes)
        if nodes > 1 or gpus == 1
    }
    batches = [kind.batches[0]]
    while batches[-1] < kind.batches[1]:
        batches.append(min(2 * batches[-1], kind.batches[1]))
    return Profile(
        name,
        {
            spread: Measured(tuple(locals_), tuple(_time(kind, len(spread), sum(spread), local) for local in locals_))
            for spread in spreads
        },
        {(n, g, local): _time(kind, n, g, local) for n, g in sorted(shapes) for local in locals_},
        {batch: _epochs(kind, batch) for batch in batches},
        epochs=kind.epochs,
        gpu_type=gpu_type,
    )


def _time(kind: _Kind, nodes: int, gpus: int, local: int) -> StepTime:
    fixed, each = kind.compute
    compute = fixed + each * local
    base, more = kind.between if nodes > 1 else kind.inside
    sync = base + more * max(gpus - 2, 0) if gpus > 1 else 0.0
    step = (compute**OVERLAP + sync**OVERLAP) ** (1 / OVERLAP)
    return StepTime(step, step - compute)


def _epochs(kind: _Kind, batch: int) -> Epochs:
    first, last = kind.noise
    noise = [first * (last / first) ** (epoch / max(kind.epochs - 1, 1)) for epoch in range(kind.epochs)]
    scale = batch / kind.batches[0]
    steps = itertools.accumulate(kind.steps * (phi / scale + 1) / (phi + 1) for phi in noise)
    progress = tuple(float(kind.steps * (epoch + 1)) for epoch in range(kind.epochs))
    return Epochs(progress, tuple(steps), (1.0,) * kind.epochs, tuple(noise))
