"""The shim's log lines, which appear in the job's output also where the script has not set up logging."""

from __future__ import annotations

import logging

log = logging.getLogger("trainer_shim")


def ensure_log_handler() -> None:
    """Write the shim's log to stderr, unless the script has set up a handler."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("trainer_shim: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.INFO)
