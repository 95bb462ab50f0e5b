"""Report lines, parsed strictly: what a trainer wrote is hostile until it has passed here.

The format is in ``docs/developer/PROTOCOL.md``. Keys and kinds that are not known are ignored, so that a newer
shim can talk to an older daemon; a known kind with a missing, mistyped or implausible value is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from metasched.core.errors import MetaschedError

VERSION = 1
MAX_LINE_BYTES = 64 * 1024

# what no honest trainer exceeds
MAX_STEP = 10**12
MAX_SAMPLES = 10**15
MAX_BYTES = 2**60
MAX_SECONDS = 10.0**8
MAX_BATCH = 10**9
MAX_WORLD = 2**20
MAX_COUNT = 2**31 - 1
MAX_STEPS_PER_SECOND = 10.0**6
MAX_SAMPLES_PER_SECOND = 10.0**10
CLOCK_SKEW_SECONDS = 24 * 3600.0
EARLIEST = 10.0**9  # September 2001: a clock before that was never set


class RefusedLineError(MetaschedError):
    """A report line is not what the protocol says."""


@dataclass(frozen=True, slots=True)
class StartReport:
    """A trainer is ready; ``step`` and ``samples`` are what it resumes from."""

    at: float
    run: int
    generation: int
    world_size: int
    step: int
    samples: int
    resumed: bool
    init_seconds: float


@dataclass(frozen=True, slots=True)
class DeclareReport:
    """What the script knows of its work; None where it did not say."""

    at: float
    total_steps: int | None
    total_samples: int | None
    global_batch: int | None


@dataclass(frozen=True, slots=True)
class StepsReport:
    """``steps`` optimizer steps over ``samples`` samples took ``seconds``; ``step`` is the last one.

    Of the seconds, ``data_seconds`` waited for data and ``sync_seconds`` for other ranks, None where not said.
    """

    at: float
    step: int
    steps: int
    samples: int
    seconds: float
    loss: float | None
    world_size: int
    global_batch: int
    per_gpu_batch: int
    accumulation: int
    data_seconds: float | None = None
    sync_seconds: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Before this run, ``steps`` steps on ``world_size`` of its GPUs took ``seconds``."""

    at: float
    world_size: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint of ``size`` bytes was written in ``seconds``; training stood still for ``stall_seconds`` of them."""

    at: float
    step: int
    seconds: float
    size: int
    cause: str
    stall_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StopReport:
    """The trainer stops before its work is done."""

    at: float
    step: int
    cause: str
    noticed: float
    checkpointed: bool


@dataclass(frozen=True, slots=True)
class EndReport:
    """The trainer is done."""

    at: float
    step: int
    samples: int
    loss: float | None


Report = StartReport | DeclareReport | TrialReport | StepsReport | CheckpointReport | StopReport | EndReport


def parse_line(line: bytes, now: float) -> Report | None:
    """The report in a line (without its newline); None for a kind that is not known.

    Args:
        line: as read.
        now: unix seconds; instants later than this by more than a day are refused.

    Raises:
        RefusedLineError: the line is not what the protocol says.
    """
    if len(line) > MAX_LINE_BYTES:
        raise RefusedLineError(f"{len(line)} bytes; a line has at most {MAX_LINE_BYTES}")
    try:
        values = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise RefusedLineError("not JSON") from None
    if not isinstance(values, dict):
        raise RefusedLineError("not a JSON object")
    fields = _Fields(values, now)
    fields.integer("v", VERSION, VERSION)
    kind = values.get("kind")
    if not isinstance(kind, str):
        raise RefusedLineError("key 'kind' must be a string")
    at = fields.instant("t")
    parse = _PARSERS.get(kind)
    return None if parse is None else parse(fields, at)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


class _Fields:
    """Reads the keys of one line; every method raises RefusedLineError naming the key."""

    def __init__(self, values: dict[str, Any], now: float) -> None:
        self._values = values
        self._now = now

    def integer(self, key: str, low: int, high: int) -> int:
        value = self._values.get(key)
        if type(value) is not int or not low <= value <= high:
            raise RefusedLineError(f"key {key!r} must be an integer from {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        return None if self._values.get(key) is None else self.integer(key, low, high)

    def number(self, key: str, low: float, high: float) -> float:
        value: Any = self._values.get(key)
        # the bounds come before the conversion: an integer may lie beyond the range of a float
        if type(value) not in {int, float} or not low <= value <= high:
            raise RefusedLineError(f"key {key!r} must be a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        return None if self._values.get(key) is None else self.number(key, low, high)

    def loss(self) -> float | None:
        if "loss" not in self._values:
            raise RefusedLineError("key 'loss' must be a number or null")
        return None if self._values["loss"] is None else self.number("loss", -1e300, 1e300)

    def instant(self, key: str) -> float:
        return self.number(key, EARLIEST, self._now + CLOCK_SKEW_SECONDS)

    def boolean(self, key: str) -> bool:
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise RefusedLineError(f"key {key!r} must be true or false")
        return value

    def word(self, key: str, known: frozenset[str]) -> str:
        value = self._values.get(key)
        if not isinstance(value, str) or value not in known:
            raise RefusedLineError(f"key {key!r} must be one of {', '.join(sorted(known))}")
        return value


_CHECKPOINT_CAUSES = frozenset({"periodic", "stop", "final"})
_STOP_CAUSES = frozenset({"signal", "mailbox", "superseded", "sigterm"})


def _start(fields: _Fields, at: float) -> StartReport:
    return StartReport(
        at=at,
        run=fields.integer("run", 1, MAX_COUNT),
        generation=fields.integer("incarnation", 1, MAX_COUNT),
        world_size=fields.integer("world_size", 1, MAX_WORLD),
        step=fields.integer("step", 0, MAX_STEP),
        samples=fields.integer("samples", 0, MAX_SAMPLES),
        resumed=fields.boolean("resumed"),
        init_seconds=fields.number("init_seconds", 0.0, MAX_SECONDS),
    )


def _declare(fields: _Fields, at: float) -> DeclareReport:
    return DeclareReport(
        at=at,
        total_steps=fields.optional_integer("total_steps", 1, MAX_STEP),
        total_samples=fields.optional_integer("total_samples", 1, MAX_SAMPLES),
        global_batch=fields.optional_integer("global_batch", 1, MAX_BATCH),
    )


def _trial(fields: _Fields, at: float) -> TrialReport:
    report = TrialReport(
        at=at,
        world_size=fields.integer("world_size", 1, MAX_WORLD),
        steps=fields.integer("steps", 1, MAX_STEP),
        seconds=fields.number("seconds", math.ulp(0.0), MAX_SECONDS),
    )
    if report.steps > report.seconds * MAX_STEPS_PER_SECOND:
        raise RefusedLineError(f"{report.steps} steps in {report.seconds:g} s are implausible")
    return report


def _steps(fields: _Fields, at: float) -> StepsReport:
    report = StepsReport(
        at=at,
        step=fields.integer("step", 0, MAX_STEP),
        steps=fields.integer("steps", 1, MAX_STEP),
        samples=fields.integer("samples", 0, MAX_SAMPLES),
        seconds=fields.number("seconds", math.ulp(0.0), MAX_SECONDS),
        loss=fields.loss(),
        world_size=fields.integer("world_size", 1, MAX_WORLD),
        global_batch=fields.integer("global_batch", 1, MAX_BATCH),
        per_gpu_batch=fields.integer("per_gpu_batch", 1, MAX_BATCH),
        accumulation=fields.integer("accumulation", 1, MAX_BATCH),
        data_seconds=fields.optional_number("data_seconds", 0.0, MAX_SECONDS),
        sync_seconds=fields.optional_number("sync_seconds", 0.0, MAX_SECONDS),
        peak_bytes=fields.optional_integer("peak_bytes", 0, MAX_BYTES),
    )
    if report.steps > report.seconds * MAX_STEPS_PER_SECOND or report.samples > report.seconds * MAX_SAMPLES_PER_SECOND:
        raise RefusedLineError(
            f"{report.steps} steps of {report.samples} samples in {report.seconds:g} s are implausible"
        )
    return report


def _checkpoint(fields: _Fields, at: float) -> CheckpointReport:
    return CheckpointReport(
        at=at,
        step=fields.integer("step", 0, MAX_STEP),
        seconds=fields.number("seconds", 0.0, MAX_SECONDS),
        size=fields.integer("bytes", 0, MAX_BYTES),
        cause=fields.word("cause", _CHECKPOINT_CAUSES),
        stall_seconds=fields.optional_number("stall_seconds", 0.0, MAX_SECONDS),
    )


def _stop(fields: _Fields, at: float) -> StopReport:
    return StopReport(
        at=at,
        step=fields.integer("step", 0, MAX_STEP),
        cause=fields.word("cause", _STOP_CAUSES),
        noticed=fields.instant("noticed"),
        checkpointed=fields.boolean("checkpointed"),
    )


def _end(fields: _Fields, at: float) -> EndReport:
    return EndReport(
        at=at,
        step=fields.integer("step", 0, MAX_STEP),
        samples=fields.integer("samples", 0, MAX_SAMPLES),
        loss=fields.loss(),
    )


_PARSERS: dict[str, Callable[[_Fields, float], Report]] = {
    "start": _start,
    "declare": _declare,
    "trial": _trial,
    "steps": _steps,
    "checkpoint": _checkpoint,
    "stop": _stop,
    "end": _end,
}
