"""Logs of the daemon and of the web page: to standard error, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys

import structlog

from metasched.configuration.config import Log


def configure_logs(options: Log) -> None:
    """Send this process's logs to standard error, as text or as JSON lines."""
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if options.format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[options.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(stream=sys.stderr, level=options.level.upper(), format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
