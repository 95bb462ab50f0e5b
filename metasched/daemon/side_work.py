"""The work beside the daemon: forecasts and shadow policies, whose results the daemon records and shows.

Nothing here changes a decision. What fails is logged and shown, and rounds continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from metasched.configuration.config import Config
from metasched.core.errors import MetaschedError
from metasched.daemon.side_process import SideProcess
from metasched.forecast.records import InstantRange, JobForecast, QueueForecast
from metasched.forecast.result_file import FORECASTS_FILE, decode_result
from metasched.forecast.round_follower import Task
from metasched.forecast.situation import ENDS, STARTS, calibration_of
from metasched.shadow.result_file import SHADOWS_FILE, decode_shadows
from metasched.simulator.live_settings import live_settings
from metasched.store import ForecastRecord, Store, StoreError

log = structlog.get_logger()


class SideWork:
    """The processes of forecasts and of shadow policies, and their latest results.

    Args:
        config: the configuration in force.
        store: of the daemon, opened in this thread.

    Attributes:
        forecast: the latest forecast; None before the first.
    """

    def __init__(self, config: Config, store: Store) -> None:
        self._store = store
        self._forecasts: SideProcess | None = None
        self._shadows: SideProcess | None = None
        self._of: Mapping[str, JobForecast] = {}
        self._problem = ""
        self.forecast: QueueForecast | None = None
        self._shadow_problem = ""
        self._configure(config)

    def reconfigure(self, config: Config) -> None:
        """Continue under another configuration."""
        self.close()
        self._configure(config)

    def close(self) -> None:
        """End the processes of forecasts and of shadow policies."""
        for process in (self._forecasts, self._shadows):
            if process is not None:
                process.close()
        self._forecasts = self._shadows = None

    def poll(self) -> None:
        """Look after the processes, and record new results.

        Raises:
            StoreError: the store cannot be written.
        """
        try:
            if self._forecasts is not None:
                self._forecasts.tend()
                self._take_forecast(self._forecasts.collect())
            if self._shadows is not None:
                self._shadows.tend()
                self._take_shadows(self._shadows.collect())
        except StoreError:
            raise
        except MetaschedError as error:
            log.warning("side_work_refused", error=str(error))
        except Exception:  # nothing here may end the daemon
            log.exception("side_work_failed")

    def forecast_of(self, uid: str) -> JobForecast | None:
        """The latest forecast of a job; None where there is none."""
        return self._of.get(uid)

    @property
    def forecast_problem(self) -> str:
        """Why there is no new forecast, in words; "" for no problem."""
        ended = "" if self._forecasts is None else self._forecasts.problem
        return ended or self._problem

    @property
    def shadow_problem(self) -> str:
        """Why the shadow policies do not decide, in words; "" for no problem."""
        ended = "" if self._shadows is None else self._shadows.problem
        return ended or self._shadow_problem

    def _configure(self, config: Config) -> None:
        forecast, shadow = config.forecast, config.shadow
        settings = live_settings(config.schedule.round_seconds, config.schedule.min_round_seconds)
        if forecast.enabled:
            effort = {
                "samples": forecast.samples,
                "jobs": forecast.jobs,
                "arrivals": forecast.jobs,
                "horizon_seconds": forecast.horizon_seconds,
            }
            options = {"effort": effort, "settings": settings}
            task = self._task(config, FORECASTS_FILE, forecast.pause_seconds, forecast.cpu_share, options)
            self._forecasts = SideProcess("metasched.forecast", task)
        else:
            self._of, self.forecast = {}, None
        if shadow.policies:
            shadowed: Mapping[str, Any] = {
                "policies": list(shadow.policies),
                "jobs": shadow.jobs,
                "settings": settings,
            }
            task = self._task(config, SHADOWS_FILE, shadow.pause_seconds, shadow.cpu_share, shadowed)
            self._shadows = SideProcess("metasched.shadow", task)

    def _task(self, config: Config, file: str, pause: float, share: float, options: Mapping[str, Any]) -> Task:
        results = Path(config.paths.state) / file
        return Task(str(self._store.path), str(results), pause, share, config.log.format, options)

    def _take_forecast(self, content: bytes | None) -> None:
        """Record a new forecast, and what has come of earlier ones."""
        if content is None:
            return
        result = decode_result(content)
        if result.problem and result.problem != self._problem:
            log.warning("forecast_failed", round=result.round, error=result.problem)
        self._problem = result.problem
        self._learn()
        found = result.forecast
        if found is None:
            return
        self._store.commit_forecasts(
            ForecastRecord(job.uid, kind, found.round, found.at, instant.low, instant.median, instant.high)
            for job in found.jobs
            for kind, instant in ((STARTS, job.start), (ENDS, job.end))
            if instant is not None
        )
        self.forecast = replace(found, jobs=())
        self._of = {job.uid: job for job in found.jobs}

    def _learn(self) -> None:
        """Compare open forecasts with what came, and learn the widths of later ranges."""
        found: dict[str, list[tuple[InstantRange, float]]] = {}
        with self._store.transaction():
            for record in self._store.resolve_forecasts():
                if record.truth is not None:
                    instant = InstantRange(record.low, record.median, record.high)
                    found.setdefault(record.kind, []).append((instant, record.truth))
            for kind, outcomes in found.items():
                one = calibration_of(self._store, kind).learned(outcomes)
                self._store.set_forecast_calibration(kind, one.below, one.above, one.outcomes, one.steps)

    def _take_shadows(self, content: bytes | None) -> None:
        """Record what the shadow policies would have decided."""
        if content is None:
            return
        result = decode_shadows(content)
        if result.problem and result.problem != self._shadow_problem:
            log.warning("shadows_failed", error=result.problem)
        self._shadow_problem = result.problem
        self._store.commit_shadows(result.records)
