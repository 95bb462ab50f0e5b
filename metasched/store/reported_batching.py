"""A job's batch size, gradient noise and progress, brought up to date from the reports of its trainers. Pure.

The numbers are the user's: noise that no training has is clamped, and only the latest regimes are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.shared_dir.reports import DeclareReport, EndReport, Report, StartReport, StepsReport, StopReport

MAX_NOISE = 1e30
"""Largest squared norm and variance of a gradient that is stored."""
MAX_REGIMES = 64
"""Regimes of a job that are stored, the latest."""


class ReportedBatching(NamedTuple):
    """What is known of a job's batch size, gradients and progress.

    Attributes:
        batching: the batch size; None where nothing was reported. ``control`` is the script's word alone: SCHEDULER
            where the script consents to other batches.
        noise: the latest gradient noise; None where it is not known.
        progress: steps done, at the first batch; None where they are not known.
    """

    batching: Batching | None = None
    noise: GradientNoise | None = None
    progress: float | None = None

    def after(self, reports: Iterable[Report]) -> ReportedBatching:
        """The same after further reports of the job's latest trainer, in their order."""
        found = self
        for report in reports:
            if isinstance(report, DeclareReport):
                found = found.after_declaration(report)
            elif isinstance(report, StepsReport):
                found = found.after_steps(report)
            # A checkpoint is written while training continues: its line may come after those of later steps.
            elif isinstance(report, StartReport | StopReport | EndReport):
                found = found._replace(progress=_progress_after(report, found.batching, found.progress))
        return found

    def after_declaration(self, report: DeclareReport) -> ReportedBatching:
        """The same after the script has declared its batch size, its limits, and the rule by which it changes."""
        first = report.first_batch or report.global_batch
        if first is None:
            return self
        before = self.batching or Batching(first)
        consents = BatchControl.SCHEDULER if report.adaptive else BatchControl.FIXED
        control = before.control if report.adaptive is None else consents
        adapts = None if report.adapts is None else AdaptationRule(report.adapts)
        if adapts not in (None, AdaptationRule.STATIC):
            control = BatchControl.SCRIPT
        declared = replace(
            before,
            first_batch=first,
            control=control,
            max_batch=report.max_batch,
            min_per_gpu=report.min_per_gpu or 1,
            max_per_gpu=report.max_per_gpu,
            adapts=adapts,
            most_regimes=report.regimes,
            schedule=tuple(BatchRegime(batch, began) for batch, began in report.schedule),
            sizes=tuple(sorted(set(report.sizes))),
        )
        return self._replace(batching=declared)

    def after_steps(self, report: StepsReport) -> ReportedBatching:
        """The same after steps at a batch size, with their gradient noise where it was measured."""
        before = self.batching or Batching(report.global_batch)
        regimes, control = before.regimes, before.control
        changes = not regimes or regimes[-1].batch != report.global_batch
        if control is BatchControl.FIXED and regimes and (changes or before.has_changed):
            control = BatchControl.SCRIPT
        progress = _progress_after(report, replace(before, control=control), self.progress)
        if changes:
            began = 0.0 if not regimes else self.progress if self.progress is not None else report.step - report.steps
            regimes = (*regimes, BatchRegime(report.global_batch, max(began, 0.0)))
        batching = replace(
            before,
            control=control,
            plan=BatchPlan(report.per_gpu_batch, report.accumulation),
            global_batch=report.global_batch,
            regimes=regimes[-MAX_REGIMES:],
            taken_plan=max(before.taken_plan, report.plan),
        )
        return ReportedBatching(batching, _noise(report) or self.noise, progress)


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


def _progress_after(
    report: StartReport | StepsReport | StopReport | EndReport, batching: Batching | None, before: float | None
) -> float | None:
    """The progress after a report, by the batch size and the progress before it.

    Where the batch changes, steps alone are no progress. A script that changes its batch by itself trains the same
    number of epochs at every batch, so its samples are its progress.
    """
    if report.progress is not None:
        return report.progress
    if batching is None or batching.control is BatchControl.FIXED:
        return report.step
    if batching.control is BatchControl.SCHEDULER or isinstance(report, StopReport):
        return before
    return ((before or 0.0) if isinstance(report, StepsReport) else 0.0) + report.samples / batching.first_batch
