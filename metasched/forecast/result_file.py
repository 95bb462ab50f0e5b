"""The file in which the process of forecasts leaves its latest result for the daemon."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from metasched.core.errors import MetaschedError
from metasched.forecast.records import QueueForecast

FORECASTS_FILE = "forecasts.json"
"""Its name, in the state directory."""


class ResultError(MetaschedError):
    """The file is not a result of this version."""


@dataclass(frozen=True, slots=True)
class ForecastResult:
    """The result of the work on one round.

    Attributes:
        round: the number of the round.
        forecast: the forecast; None where there is a problem.
        problem: why there is none, in words; "" for no problem.
    """

    round: int
    forecast: QueueForecast | None = None
    problem: str = ""


def encode_result(result: ForecastResult) -> bytes:
    """Return the content of the file."""
    return msgspec.json.encode(result)


def decode_result(content: bytes) -> ForecastResult:
    """Return the result in a file's content.

    Raises:
        ResultError: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=ForecastResult)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ResultError(f"{FORECASTS_FILE} cannot be read: {error}") from None
