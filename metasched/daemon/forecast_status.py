"""The published form of forecasts."""

from __future__ import annotations

from metasched.daemon.side_work import SideWork
from metasched.forecast.records import InstantRange
from metasched.shared_dir.published_status import ForecastStatus, InstantStatus, JobForecastStatus


def forecast_summary(side_work: SideWork | None) -> ForecastStatus | None:
    """Return what the latest forecast assumes, or why there is none; None where none was made and none has failed."""
    if side_work is None:
        return None
    found, problem = side_work.forecast, side_work.forecast_problem
    if found is None:
        return ForecastStatus(problem=problem) if problem else None
    return ForecastStatus(
        found.round, found.at, found.samples, found.left_out, found.seconds, found.assumptions, problem
    )


def job_forecast(uid: str, side_work: SideWork | None) -> JobForecastStatus | None:
    """Return the forecast of a job; None where the latest forecast does not have it."""
    found = None if side_work is None else side_work.forecast_of(uid)
    if side_work is None or side_work.forecast is None or found is None:
        return None
    return JobForecastStatus(side_work.forecast.at, _instant(found.start), _instant(found.end), found.work_from)


def _instant(found: InstantRange | None) -> InstantStatus | None:
    return None if found is None else InstantStatus(found.low, found.median, found.high)
