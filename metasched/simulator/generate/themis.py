"""Workloads of apps like those of Themis (Mahajan et al., NSDI 2020, sections 2.2, 4.3.2, 6.1), from its description.

An app searches hyper-parameters: its trials begin together, and its tuner ends those whose losses are worse. Which ones
these are follows from the trials' learning curves, which are drawn, and hidden from policies. A tenth of the apps has
one job. Models are those of the paper's table 4, by its mix: vision 10 %, language 60 %, speech 30 %.

Of the paper's two workloads the first has searches that are stopped by performance curves, whose jobs use one GPU or
two. The second has successive halving, and wider jobs, whose GPUs double with each phase. Sizes spread over orders of
magnitude. The paper shows distributions of jobs and GPUs as figures without numbers, so those here are assumptions, and
so is which models besides VGG16 and Inception-v3 (table 1) depend on the network.

The jobs of an app are a job array: uid ``<base>_<task>``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from metasched.core.apps import TunerSettings
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.learning_curves import learning_curve
from metasched.simulator.generate.parameters import GeneratorParameters
from metasched.simulator.records import Submission, Workload, trace_job
from metasched.throughput.linear_scaling import LinearTraining


class Model(NamedTuple):
    """A model of table 4.

    Attributes:
        name: its name.
        network_intensive: whether it is slower on several servers.
    """

    name: str
    network_intensive: bool


DOMAINS: Mapping[tuple[Model, ...], float] = {
    (
        Model("Inception-v3", network_intensive=False),
        Model("AlexNet", network_intensive=True),
        Model("ResNet50", network_intensive=False),
        Model("VGG16", network_intensive=True),
        Model("VGG19", network_intensive=True),
    ): 0.1,
    (
        Model("Bi-Att-Flow", network_intensive=False),
        Model("LangModel", network_intensive=True),
        Model("GNMT", network_intensive=True),
        Model("Transformer", network_intensive=False),
    ): 0.6,
    (Model("WaveNet", network_intensive=False), Model("DeepSpeech", network_intensive=True)): 0.3,
}
"""The models of vision, language and speech, with the fraction of the apps that train one of them."""
MODELS = tuple(model for models in DOMAINS for model in models)
SLOWDOWN = 103.6 / 80.4
"""How many times as long a network-intensive model needs on several servers (VGG16, table 1)."""
TRIALS: Mapping[int, float] = {1: 0.1, 32: 0.25, 64: 0.4, 128: 0.25}
"""Fraction of the apps by their number of trials: a median of about 75, and about 100 at most."""
TRIAL_GPUS: Mapping[str, Mapping[int, float]] = {
    "curve": {1: 0.5, 2: 0.5},
    "halving": {1: 0.25, 2: 0.5, 4: 0.25},
}
"""By tuner, the fraction of the apps by the GPUs of a trial (in its first phase)."""
SPREAD = math.log(3.0)
"""Standard deviation of the logarithm of an app's GPU time, so that a few apps are ten times as long as others."""
STEPS = 10_000
"""Steps of a whole training."""
SECONDS = (0.8, 1.2)
"""Range of the seconds of a step of a trial, over those of its app: some hyper-parameters change them (4.3.3)."""
MAX_GPUS = 8
"""The most GPUs of one job."""


class ThemisWorkloadParameters(GeneratorParameters):
    """Parameters of ``themis_apps``.

    Attributes:
        apps: the number of apps.
        gap_seconds: the mean time between arrivals of apps.
        tuner: the tuner of each app: ``curve`` for the paper's workload 1, ``halving`` for its workload 2.
        gpu_hours: the median of the GPU time that an app needs under successive halving; 11.5 days in the paper.
        most_trials: the most trials of an app, a power of two.
        network_intensive: the fraction of the apps whose model is network-intensive; None for the mix of table 4.
    """

    apps: Annotated[int, Field(ge=1)] = 20
    gap_seconds: Annotated[float, Field(gt=0)] = 1200.0
    tuner: Literal["curve", "halving"] = "halving"
    gpu_hours: Annotated[float, Field(gt=0)] = 276.0
    most_trials: Annotated[int, Field(ge=1)] = 128
    network_intensive: Annotated[float, Field(ge=0, le=1)] | None = None


def themis_apps(
    parameters: ThemisWorkloadParameters, seed: int = 0, *, trials: Mapping[int, float] = TRIALS
) -> Workload:
    """Draw a workload whose first app arrives at 0; apps arrive as a Poisson process.

    Args:
        parameters: see there.
        seed: of the random draws, learning curves included.
        trials: fraction of the apps by the number of jobs that they begin with, a power of two.

    Raises:
        GeneratorError: a number of trials is no power of two.
    """
    if odd := [count for count in (*trials, parameters.most_trials) if count < 1 or count & (count - 1)]:
        raise GeneratorError(f"{odd[0]} trials cannot be halved to one; give powers of two")
    rng = random.Random(f"themis {seed}")  # noqa: S311  no secret
    digits = len(str(parameters.apps))
    submitted = 0.0
    submissions: list[Submission] = []
    for number in range(1, parameters.apps + 1):
        count = min(rng.choices(list(trials), list(trials.values()))[0], parameters.most_trials)
        submissions += _app(f"{number:0{digits}}", count, submitted, parameters, rng)
        submitted += rng.expovariate(1.0 / parameters.gap_seconds)
    submissions.sort(key=lambda one: (one.job.submitted, one.job.uid))
    source = f"Themis, {parameters.tuner}, an app every {parameters.gap_seconds:g} s, seed {seed}"
    return Workload(source, tuple(submissions))


def _app(
    base: str, count: int, submitted: float, parameters: ThemisWorkloadParameters, rng: random.Random
) -> list[Submission]:
    """The jobs of one app."""
    model = _model(parameters.network_intensive, rng)
    slowdown = SLOWDOWN if model.network_intensive else 1.0
    widths = TRIAL_GPUS[parameters.tuner]
    gpus = rng.choices(list(widths), list(widths.values()))[0]
    halvings = count.bit_length() - 1
    gpu_seconds = 3600.0 * parameters.gpu_hours * math.exp(rng.gauss(0.0, SPREAD))
    seconds = gpu_seconds / (STEPS * (1 + halvings / 2))  # each halving adds half a training
    tuner = TunerSettings(parameters.tuner) if count > 1 else None
    most = gpus if parameters.tuner == "curve" else max(min(gpus << halvings, MAX_GPUS), gpus)
    found = []
    for task in range(count):
        job = trace_job(f"{base}_{task}", model.name, submitted, gpus, min_gpus=1, max_gpus=most)
        job = job.evolve(user=f"app{base}", app=f"array:{base}", tuner=tuner)
        training = LinearTraining(float(STEPS), seconds * rng.uniform(*SECONDS), slowdown)
        found.append(Submission(job, training, losses=learning_curve(rng, training.total)))
    return found


def _model(network_intensive: float | None, rng: random.Random) -> Model:
    """The model of one app: by the mix of table 4, or one that is network-intensive with a given probability."""
    if network_intensive is None:
        return rng.choice(rng.choices(list(DOMAINS), list(DOMAINS.values()))[0])
    wanted = rng.random() < network_intensive
    return rng.choice([model for model in MODELS if model.network_intensive is wanted])
