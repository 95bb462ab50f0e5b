"""The file in which the process of forecasts leaves its latest result for the daemon, and how such files are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from metasched.core.errors import MetaschedError
from metasched.forecast.records import QueueForecast

_Result = TypeVar("_Result")

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
    return decode(content, ForecastResult, FORECASTS_FILE)


def decode(content: bytes, kind: type[_Result], file: str) -> _Result:
    """Return the result of a kind in a file's content; ``file`` is its name, for the error.

    Raises:
        ResultError: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ResultError(f"{file} cannot be read: {error}") from None
