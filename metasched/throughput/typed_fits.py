"""The time of an iteration of many subjects by GPU type, where each subject teaches how the types compare."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median

from metasched.throughput.iteration_fit import MeasuredIteration, fit_iteration, fit_types, pass_ratios
from metasched.throughput.iteration_time import IterationParameters


class TypedFits:
    """Fits by GPU type, with the ratios of the types' passes.

    A type on which a subject has never run has its parameters on another type, scaled as the passes of the subjects
    that have run on both. A subject is a job, or all jobs that train the same model.
    """

    def __init__(self) -> None:
        self._fits: dict[Hashable, tuple[float, Mapping[str, IterationParameters]]] = {}
        self._ratios: Mapping[tuple[str, str], float] = {}

    def fit(
        self, subject: Hashable, measured: Mapping[str, Sequence[MeasuredIteration]]
    ) -> Mapping[str, IterationParameters]:
        """Fit one subject's parameters, on every GPU type of which something is known.

        Args:
            subject: the subject, whose earlier measurements these ones replace.
            measured: its iterations by GPU type, one of each configuration; a type has at least one.
        """
        own = {gpu_type: fit_iteration(found) for gpu_type, found in measured.items()}
        if len(own) > 1:  # the iterations of one type alone tell no ratio
            self._fits[subject] = median(one.per_gpu for found in measured.values() for one in found), own
            self._ratios = pass_ratios(self._fits.values())
        return fit_types(measured, self._ratios, fitted=own)

    def forget(self, subject: Hashable) -> None:
        """Leave a subject out of later ratios."""
        self._fits.pop(subject, None)
