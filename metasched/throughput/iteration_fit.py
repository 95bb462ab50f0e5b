"""Fit of the iteration time's parameters to a job's measured iterations (Pollux, OSDI 2021, section 4.1).

The root mean square of the logarithmic errors is minimised by L-BFGS-B, with every alpha and beta at least 0 and gamma
in [1, 10]. Section 4.1's priors make unexplored configurations look like perfect scaling: a parameter on which no
measured iteration depends keeps the value 0. (The paper prints "local" for the parameters that are 0 until the job has
used several nodes; those of the synchronisation between nodes are meant.) So does a retrogression, beta_local or
beta_node, until two numbers of GPUs tell it from its alpha: otherwise a single number of GPUs on several nodes would
make all larger ones look slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from metasched.throughput.iteration_time import Floats, Ints, IterationParameters

PERFECT_SCALING = IterationParameters(0.0, 0.0)
GAMMA_LIMITS = (1.0, 10.0)
FIRST_GAMMA = 1.1
FIRST_VALUE = 0.3
"""Where the minimisation begins: gamma, and every alpha and beta in units of the measurements' means."""

OPTIONS = {"maxiter": 200, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-7}

NODE_OVER_LOCAL = 1.1
"""How many times as long jobs are taken to synchronise on several nodes as on one, until they have tried.

It is about as in the public code. As in the paper, with 0, jobs leave a node just because they have not left it before.
"""

RIDGE = 1e-6
"""The weight of the squares of gamma - 1 and of both retrogressions, which decides what measurements leave open."""

LEAST_ALPHA = 1e-8
"""The least alpha_grad, as a fraction of the mean iteration, so that logarithms are finite."""

RETROGRESSIONS = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 1.0])
"""1 for the alphas and betas that are retrogressions."""


class MeasuredIteration(NamedTuple):
    """The measured mean duration of iterations in one configuration.

    Attributes:
        gpus: the number of GPUs.
        multi_node: whether the GPUs were on several nodes.
        per_gpu: the samples of a GPU in one pass.
        accumulation: the passes of an iteration.
        seconds: the seconds of an iteration.
        pass_seconds: the seconds of a pass without synchronisation; None where that was not measured by itself.
    """

    gpus: int
    multi_node: bool
    per_gpu: float
    accumulation: int
    seconds: float
    pass_seconds: float | None = None


def fit_iteration(
    measured: Sequence[MeasuredIteration],
    unexplored: IterationParameters = PERFECT_SCALING,
    *,
    node_over_local: float = NODE_OVER_LOCAL,
) -> IterationParameters:
    """Fit the model's parameters to the iterations of one job on one GPU type.

    Args:
        measured: at least one iteration, each in another configuration.
        unexplored: the values of the parameters of the synchronisation on which no iteration depends.
        node_over_local: until several nodes were used, alpha_node is at least this many times the longest
            synchronisation that was used on one node; 0 as in the paper.

    Returns:
        The parameters, in seconds and samples as ``measured``. Where only one number of samples per GPU was measured,
        half of a pass is taken to depend on the samples.

    Raises:
        ValueError: nothing was measured, or a number of seconds is not above 0 and finite.
    """
    if not measured or not all(0 < one.seconds < math.inf for one in measured):
        raise ValueError("iterations need a positive duration; give at least one measured iteration")
    from scipy.optimize import minimize  # noqa: PLC0415  takes 45 MiB, and most daemons fit nothing

    data = _Data.of(measured)
    free = _free_parameters(data)
    fixed = np.where(free.any(axis=1), 0.0, np.array(unexplored[:-1]) / data.units)
    size = free.shape[1]
    bounds = [(LEAST_ALPHA, None), *[(0.0, None)] * (size - 1), GAMMA_LIMITS]
    overlaps = bool(np.any(data.gpus > 1))
    begin = np.array([*[FIRST_VALUE] * size, FIRST_GAMMA])
    terms = data.of_variables(free, fixed)
    found = minimize(_error, begin, (terms,), "L-BFGS-B", jac=True, bounds=bounds, options=OPTIONS)
    seconds = (fixed + free @ found.x[:-1]) * data.units
    if not any(one.multi_node for one in measured):
        beyond = max((one.gpus - 2 for one in measured if one.gpus > 1), default=0)
        seconds[4] = max(seconds[4], node_over_local * float(seconds[2] + seconds[3] * beyond))
    gamma = float(found.x[-1]) if overlaps else unexplored.gamma
    return IterationParameters._make([*seconds.tolist(), gamma])


def fit_types(
    measured: Mapping[str, Sequence[MeasuredIteration]],
    ratios: Mapping[tuple[str, str], float],
    *,
    node_over_local: float = NODE_OVER_LOCAL,
    fitted: Mapping[str, IterationParameters] = MappingProxyType({}),
) -> dict[str, IterationParameters]:
    """Fit one job's parameters on every GPU type of which something is known.

    A type on which the job has explored less than on another one takes the missing parameters from that other type,
    scaled by the ratio of both types' passes; so does a type on which the job has never run, where the ratio is known
    from other jobs. That is Sia's bootstrap (Jayaram Subramanya et al., SOSP 2023, section 3.2), for footnote 1 of
    Pollux.

    Args:
        measured: the job's iterations, by GPU type; types without any are left out of the fits.
        ratios: by (type, other type), how many times as long a pass takes on the other type (``pass_ratios``).
        node_over_local: see ``fit_iteration``.
        fitted: by GPU type, what ``fit_iteration`` returned for these iterations; types without it are fitted here.

    Returns:
        Parameters by GPU type; without the types of which nothing is known.
    """
    fits = {
        gpu_type: fitted.get(gpu_type) or fit_iteration(found, node_over_local=node_over_local)
        for gpu_type, found in sorted(measured.items())
        if found
    }
    if not fits:
        return {}
    explored = {gpu_type: int(_free_parameters(_Data.of(measured[gpu_type])).any(axis=1).sum()) for gpu_type in fits}
    reference = max(fits, key=lambda gpu_type: (explored[gpu_type], len(measured[gpu_type])))
    known = {other: ratio for (gpu_type, other), ratio in sorted(ratios.items()) if gpu_type == reference}
    found = {other: fits[reference].scaled(ratio) for other, ratio in known.items()}
    for gpu_type, own in fits.items():
        if explored[gpu_type] < explored[reference]:
            per_gpu = median(one.per_gpu for one in measured[gpu_type])
            ratio = own.pass_seconds(per_gpu) / fits[reference].pass_seconds(per_gpu)
            scaled = fits[reference].scaled(ratio)
            found[gpu_type] = fit_iteration(measured[gpu_type], scaled, node_over_local=node_over_local)
        else:
            found[gpu_type] = own
    return found


def pass_ratios(jobs: Iterable[tuple[float, Mapping[str, IterationParameters]]]) -> dict[tuple[str, str], float]:
    """How many times as long a pass takes on one GPU type as on another.

    Args:
        jobs: for each job, its usual samples of a GPU in one pass, and its fits by the GPU types on which it has run.

    Returns:
        By (type, other type), the median over the jobs that have run on both of T_grad on the other type over T_grad on
        the first one.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for per_gpu, fits in jobs:
        for gpu_type, own in fits.items():
            for other_type, other in fits.items():
                if gpu_type != other_type:
                    ratio = other.pass_seconds(per_gpu) / own.pass_seconds(per_gpu)
                    found.setdefault((gpu_type, other_type), []).append(ratio)
    return {types: median(each) for types, each in found.items()}


def mean_error(parameters: IterationParameters, measured: Sequence[MeasuredIteration]) -> float:
    """The mean relative error of the modelled seconds, as a fraction of the measured ones."""
    data = np.array([one[:5] for one in measured], dtype=float).T
    seconds = parameters.iteration_seconds_of(data[0], data[2], data[3], data[1].astype(bool))
    return float(np.mean(np.abs(seconds / data[4] - 1.0)))


@dataclass(frozen=True)
class _Data:
    """Measured iterations in units of their geometric means, so that fits are independent of the units.

    Attributes:
        gpus: numbers of GPUs.
        passes: the seconds of each iteration's pass as a linear function of the alphas and betas.
        syncs: the same of each iteration's synchronisation.
        more_passes: passes before the last one.
        log_seconds: logarithms of the seconds of an iteration.
        timed: the iterations whose pass was measured by itself.
        log_pass: logarithms of the seconds of these passes.
        units: the unit of each alpha and beta.
    """

    gpus: Floats
    passes: Floats
    syncs: Floats
    more_passes: Floats
    log_seconds: Floats
    timed: Ints
    log_pass: Floats
    units: Floats

    @classmethod
    def of(cls, measured: Sequence[MeasuredIteration]) -> _Data:
        rows = [(*one[:5], np.nan if one.pass_seconds is None else one.pass_seconds) for one in measured]
        gpus, multi_node, per_gpu, accumulation, seconds, one_pass = np.array(rows, dtype=float).T
        second, sample = np.exp(np.log(seconds).mean()), np.exp(np.log(per_gpu).mean())
        beyond = np.maximum(gpus - 2.0, 0.0)
        gpu = beyond.max() or 1.0
        none, several = np.zeros(len(gpus)), gpus > 1
        local, node = several * (multi_node == 0), several * (multi_node == 1)
        timed = np.flatnonzero(~np.isnan(one_pass))
        return cls(
            gpus=gpus,
            passes=np.stack([none + 1.0, per_gpu / sample, none, none, none, none], axis=1),
            syncs=np.stack([none, none, local, local * beyond / gpu, node, node * beyond / gpu], axis=1),
            more_passes=accumulation - 1.0,
            log_seconds=np.log(seconds / second),
            timed=timed,
            log_pass=np.log(one_pass[timed] / second),
            units=np.array([second, second / sample, second, second / gpu, second, second / gpu]),
        )

    def of_variables(self, free: Floats, fixed: Floats) -> _Terms:
        """The iterations as functions of the free variables (``_free_parameters``)."""
        return _Terms(self, self.passes @ free, self.passes @ fixed, self.syncs @ free, self.syncs @ fixed, free, fixed)


class _Terms(NamedTuple):
    """Seconds of passes and synchronisations as linear functions of the free variables.

    Attributes:
        data: the measured iterations.
        by_pass: iterations x variables.
        fixed_pass: the seconds of the passes that do not depend on the variables.
        by_sync: the same of the synchronisations.
        fixed_sync: the same of the synchronisations.
        free: the alphas and betas as a function of the variables.
        fixed: the alphas and betas that are not free, 0 elsewhere.
    """

    data: _Data
    by_pass: Floats
    fixed_pass: Floats
    by_sync: Floats
    fixed_sync: Floats
    free: Floats
    fixed: Floats


def _free_parameters(data: _Data) -> Floats:
    """The alphas and betas as a linear function of the free variables: a matrix of 6 x (free variables)."""
    samples = data.passes[:, 1]
    one_batch = bool(np.ptp(samples) <= 1e-9 * samples.max())
    columns = [np.eye(6)[:2].sum(axis=0) / 2] if one_batch else [*np.eye(6)[:2]]
    columns += [np.eye(6)[number] for number in range(2, 6) if _is_explored(data, number)]
    return np.array(columns).T


def _is_explored(data: _Data, number: int) -> bool:
    """Whether the iterations tell one parameter of the synchronisation from the others."""
    found = data.syncs[:, number]
    if RETROGRESSIONS[number]:
        return len(np.unique(found[data.syncs[:, number - 1] > 0])) > 1
    return bool(found.any())


def _error(variables: Floats, terms: _Terms) -> tuple[float, Floats]:
    """The mean square logarithmic error with its ridge, and the gradient by the free variables and gamma."""
    data, gamma = terms.data, variables[-1]
    one_pass = terms.fixed_pass + terms.by_pass @ variables[:-1]
    sync = terms.fixed_sync + terms.by_sync @ variables[:-1]
    longer, shorter = np.maximum(one_pass, sync), np.minimum(one_pass, sync)
    ratio = shorter / longer
    power = ratio**gamma
    last = longer * (1.0 + power) ** (1.0 / gamma)
    seconds = data.more_passes * one_pass + last
    error = np.log(seconds) - data.log_seconds
    slope = 2.0 / len(error) * error / seconds
    by_pass = slope * (data.more_passes + (one_pass / last) ** (gamma - 1.0))
    by_sync = slope * (sync / last) ** (gamma - 1.0)
    log_ratio = np.log(np.maximum(ratio, np.finfo(float).tiny))
    by_gamma = last * (power * log_ratio / (gamma * (1.0 + power)) - np.log1p(power) / gamma**2)
    total = float(error @ error) / len(error)
    if len(data.timed):
        pass_error = np.log(one_pass[data.timed]) - data.log_pass
        total += float(pass_error @ pass_error) / len(data.timed)
        by_pass[data.timed] += 2.0 / len(data.timed) * pass_error / one_pass[data.timed]
    retrogressions = (terms.fixed + terms.free @ variables[:-1]) * RETROGRESSIONS
    total += RIDGE * (float(retrogressions @ retrogressions) + (gamma - 1.0) ** 2)
    gradient = by_pass @ terms.by_pass + by_sync @ terms.by_sync + 2.0 * RIDGE * (retrogressions @ terms.free)
    return total, np.append(gradient, slope @ by_gamma + 2.0 * RIDGE * (gamma - 1.0))
