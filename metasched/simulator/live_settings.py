"""How simulations of the live cluster are set up: in forecasts, shadow policies and what-ifs alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

START_SECONDS = 60.0
"""From getting its GPUs to a job's first step, where no restart was measured."""


def live_settings(
    round_seconds: float, min_round_seconds: float, start_seconds: float = START_SECONDS
) -> Mapping[str, Any]:
    """Return the arguments of ``metasched.simulator.records.Settings``, as another process can be told them.

    Args:
        round_seconds: the daemon's time of a round.
        min_round_seconds: the daemon's least time between two rounds.
        start_seconds: from getting its GPUs to a job's first step, in the first run and in later ones.
    """
    return {
        "round_seconds": round_seconds,
        "min_round_seconds": min_round_seconds,
        "start_seconds": start_seconds,
        "restart_seconds": start_seconds,
    }
