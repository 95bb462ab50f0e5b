"""The shim's few lines are seen in the job's output, also where the script has not set up logging."""

from __future__ import annotations

import logging

log = logging.getLogger("trainer_shim")


def ensure_log_handler() -> None:
    """Write to stderr, unless somebody listens already."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("trainer_shim: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.INFO)
