"""A job's batch size and gradient noise, brought up to date from the reports of its trainers. Pure.

The numbers are the user's: noise that no training has is clamped, and only the latest regimes are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from metasched.core.batching import BatchControl, Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.shared_dir.reports import DeclareReport, Report, StepsReport

MAX_NOISE = 1e30
"""Largest squared norm and variance of a gradient that is stored."""
MAX_REGIMES = 64
"""Regimes of a job that are stored, the latest."""


class ReportedBatching(NamedTuple):
    """What is known of a job's batch size and gradients.

    Attributes:
        batching: the batch size; None where nothing was reported. ``control`` is the script's word alone: SCHEDULER
            where the script consents to other batches.
        noise: the latest gradient noise; None where it is not known.
    """

    batching: Batching | None = None
    noise: GradientNoise | None = None

    def after(self, reports: Iterable[Report]) -> ReportedBatching:
        """The same after further reports of the job's latest trainer, in their order."""
        found = self
        for report in reports:
            if isinstance(report, DeclareReport):
                found = found.after_declaration(report)
            elif isinstance(report, StepsReport):
                found = found.after_steps(report)
        return found

    def after_declaration(self, report: DeclareReport) -> ReportedBatching:
        """The same after the script has declared its batch size and its limits."""
        first = report.first_batch or report.global_batch
        if first is None:
            return self
        before = self.batching or Batching(first)
        consents = BatchControl.SCHEDULER if report.adaptive else BatchControl.FIXED
        control = before.control if report.adaptive is None else consents
        declared = replace(
            before,
            first_batch=first,
            control=control,
            max_batch=report.max_batch,
            min_per_gpu=report.min_per_gpu or 1,
            max_per_gpu=report.max_per_gpu,
        )
        return self._replace(batching=declared)

    def after_steps(self, report: StepsReport) -> ReportedBatching:
        """The same after steps at a batch size, with their gradient noise where it was measured."""
        before = self.batching or Batching(report.global_batch)
        regimes = before.regimes
        if not regimes or regimes[-1].batch != report.global_batch:
            done = report.step if report.progress is None else report.progress
            began = max(done - report.steps, 0.0) if regimes else 0.0
            regimes = (*regimes, BatchRegime(report.global_batch, began))[-MAX_REGIMES:]
        plan = BatchPlan(report.per_gpu_batch, report.accumulation)
        taken = max(before.taken_plan, report.plan)
        batching = replace(before, plan=plan, global_batch=report.global_batch, regimes=regimes, taken_plan=taken)
        if batching.control is BatchControl.FIXED and batching.has_changed:
            batching = replace(batching, control=BatchControl.SCRIPT)
        return ReportedBatching(batching, _noise(report) or self.noise)


def has_implausible_noise(report: Report) -> bool:
    """Whether a report has negative or huge gradient noise, which is clamped."""
    if not isinstance(report, StepsReport):
        return False
    reported = [number for number in (report.grad_square, report.grad_variance) if number is not None]
    return any(_clamped(number) != number for number in reported)


def _noise(report: StepsReport) -> GradientNoise | None:
    if report.grad_square is None or report.grad_variance is None:
        return None
    return GradientNoise(_clamped(report.grad_square), _clamped(report.grad_variance))


def _clamped(number: float) -> float:
    return min(max(number, 0.0), MAX_NOISE)
