"""How simulations of the live cluster are set up: in forecasts, shadow policies and what-ifs alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

START_SECONDS = 60.0
"""From getting its GPUs to a job's first step, where no restart was measured, as in `metasched what-if`."""


def live_settings(round_seconds: float, min_round_seconds: float) -> Mapping[str, Any]:
    """Return the arguments of ``metasched.simulator.records.Settings`` for the daemon's times of rounds, seconds."""
    return {
        "round_seconds": round_seconds,
        "min_round_seconds": min_round_seconds,
        "start_seconds": START_SECONDS,
        "restart_seconds": START_SECONDS,
    }
