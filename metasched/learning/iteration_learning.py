"""The time of an iteration of each subject, learnt from trainers' reports and fitted by GPU type.

A subject is that of its speed (``throughput_learning``): all jobs of a user that name the same model, or one job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from metasched.store import IterationRecord, Store
from metasched.throughput.iteration_fit import MeasuredIteration
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.measured_speed import moving_mean, within_tolerance
from metasched.throughput.typed_fits import TypedFits

TOLERANCE = 0.02
"""Relative change of a duration from which on a subject's parameters are fitted anew."""

Configuration = tuple[str, int, bool, int, int]
"""GPU type, number of GPUs, whether they are on several nodes, samples per GPU at once, micro-batches."""


class IterationLearning:
    """The measured durations of every subject's iterations, in memory and in the store, and their fits.

    A fit is made when it is asked for, and again where a duration has changed by more than ``TOLERANCE`` or a new
    configuration was measured. A GPU type on which a subject has never run has the subject's parameters on another
    type, scaled as other subjects' iterations are.

    Args:
        store: of the daemon.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._measured: dict[str, dict[Configuration, float]] = {}  # seconds, by subject
        self._fitted_for: dict[str, dict[Configuration, float]] = {}  # the durations of the latest fit, by subject
        self._typed_fits = TypedFits()
        self._fits: dict[str, Mapping[str, IterationParameters]] = {}
        for record in store.iterations():
            self._measured.setdefault(record.subject, {})[_configuration(record)] = record.seconds

    def note(self, measured: IterationRecord) -> None:
        """Add a measurement to the moving average in memory and in the store; ``measured.seconds`` is its duration."""
        known = self._measured.setdefault(measured.subject, {})
        where = _configuration(measured)
        known[where] = moving_mean(known.get(where), measured.seconds)
        self._store.set_iteration(replace(measured, seconds=known[where]))

    def parameters(self, subject: str) -> Mapping[str, IterationParameters]:
        """The fitted parameters by GPU type, the same object until something changes; empty without measurements."""
        measured = self._measured.get(subject)
        if not measured:
            return {}
        if not within_tolerance(measured, self._fitted_for.get(subject, {}), TOLERANCE):
            self._fit(subject, measured)
        return self._fits[subject]

    def forget(self, subject: str) -> None:
        """Drop the durations of a job that has ended and names no model."""
        if self._measured.pop(subject, None) is not None:
            self._fitted_for.pop(subject, None)
            self._fits.pop(subject, None)
            self._typed_fits.forget(subject)
            self._store.delete_iterations(subject)

    def _fit(self, subject: str, measured: Mapping[Configuration, float]) -> None:
        by_type: dict[str, list[MeasuredIteration]] = {}
        for (gpu_type, gpus, multi_node, per_gpu, accumulation), seconds in measured.items():
            one = MeasuredIteration(gpus, multi_node, per_gpu, accumulation, seconds)
            by_type.setdefault(gpu_type, []).append(one)
        self._fitted_for[subject] = dict(measured)
        self._fits[subject] = self._typed_fits.fit(subject, by_type)


def _configuration(record: IterationRecord) -> Configuration:
    return record.gpu_type, record.gpus, record.multi_node, record.per_gpu, record.accumulation
