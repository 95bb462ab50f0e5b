"""A job's losses, or its metric, brought up to date from the reports of its trainers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from metasched.core.apps import MOST_LOSS_POINTS, LossPoint
from metasched.shared_dir.reports import EndReport, Report, StepsReport


class ReportedLosses(NamedTuple):
    """What is known of a job's losses.

    Attributes:
        points: the losses, ascending in progress, at most ``MOST_LOSS_POINTS``; the newer ones closer together.
        of_metric: whether they are values of the script's own metric, which then counts instead of its loss.
    """

    points: tuple[LossPoint, ...] = ()
    of_metric: bool = False

    def after(self, reports: Iterable[Report], *, adapts: bool) -> ReportedLosses:
        """The same after further reports of the job's latest trainer, in their order.

        Args:
            reports: the reports.
            adapts: whether the batch adapts, so that steps alone are no progress.
        """
        points, of_metric = list(self.points), self.of_metric
        for report in reports:
            if not isinstance(report, StepsReport | EndReport):
                continue
            progress = report.step if report.progress is None and not adapts else report.progress
            if report.metric is not msgspec.UNSET and not of_metric:
                points, of_metric = [], True  # the losses of before are another quantity
            loss = _metric(report) if of_metric else _loss(report)
            if progress is None or loss is None:
                continue
            while points and points[-1].progress_steps >= progress:
                points.pop()  # steps that were lost, and are done again
            points.append(LossPoint(float(progress), loss))
            if len(points) > MOST_LOSS_POINTS:
                points = _thinner(points)
        return ReportedLosses(tuple(points), of_metric)


def _metric(report: StepsReport | EndReport) -> float | None:
    if report.metric is msgspec.UNSET:
        return None
    return math.nan if report.metric is None else float(report.metric)


def _loss(report: StepsReport | EndReport) -> float | None:
    if isinstance(report, EndReport):
        return None  # that of the last steps, which is known
    return math.nan if report.diverged else report.loss


def _thinner(points: list[LossPoint]) -> list[LossPoint]:
    """The points with the older half merged in pairs, each to its mean over the steps since the point before."""
    older = 2 * (len(points) // 4)
    merged = []
    begin = 0.0
    for first, second in zip(points[:older:2], points[1:older:2], strict=True):
        part = (first.progress_steps - begin) / (second.progress_steps - begin)
        merged.append(LossPoint(second.progress_steps, first.loss * part + second.loss * (1 - part)))
        begin = second.progress_steps
    return merged + points[older:]
