"""One run of a tracker over all runs of a job: opened again by its id, at the checkpoint's step, without repeats."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Protocol

import torch

from trainer_shim.errors import UsageError
from trainer_shim.trackers.logged_steps import LoggedSteps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LIBRARIES = {
    "wandb": "trainer_shim.trackers.wandb_run",
    "mlflow": "trainer_shim.trackers.mlflow_run",
    "tensorboard": "trainer_shim.trackers.tensorboard_run",
}
"""The module of each kind of tracker, whose `open_run` opens a run of it."""
CLOSE_SECONDS = 20.0  # for which a stop waits for a tracker: the GPUs are wanted by another job
PAUSE_SECONDS = 60.0  # without points, after a tracker has failed: each try may wait for a network

log = logging.getLogger("trainer_shim")


class TrackerRun(Protocol):
    """A run of a tracker's library.

    Attributes:
        handle: the library's own object: W&B's `Run`, MLflow's `Run`, or TensorBoard's `SummaryWriter`.
    """

    handle: Any

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values at an optimizer step."""

    def close(self, outcome: str) -> None:
        """End the process's part of the run; the outcome is `stopped`, `superseded`, `finished` or `failed`.

        A newer trainer has begun to log to the same run where it is `superseded`.
        """


class Tracker:
    """What a script logs to; made by `ctx.tracker(...)` or `companion.tracker(...)` on every rank.

    Rank 0 logs. On the other ranks, in profiling runs, and in a trainer that a newer one has superseded, nothing
    happens. A tracker that fails changes nothing in the training: the log has a warning, and points are left out for a
    minute.

    Args:
        run: the opened run, None where nothing is to be logged.
        logged: the steps that the run has points of already.
        present_step: returns the optimizer steps so far.
        superseded: returns whether a newer trainer has started on the checkpoint directory.
    """

    def __init__(
        self,
        run: TrackerRun | None,
        logged: LoggedSteps | None,
        present_step: Callable[[], int],
        superseded: Callable[[], bool],
    ) -> None:
        self._run = run
        self._logged = logged
        self._present_step = present_step
        self._superseded = superseded
        self._paused_until = 0.0  # seconds on the monotonic clock

    @property
    def handle(self) -> Any:
        """The library's own object, for all that is not a number by step; None where nothing is logged."""
        return None if self._run is None else self._run.handle

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers, or tensors with one element, that an earlier run of the job has not logged yet.

        Args:
            values: the values by name.
            step: the optimizer step over all runs; by default the present one.
        """
        if self._run is None or self._logged is None or time.monotonic() < self._paused_until or self._superseded():
            return
        step = self._present_step() if step is None else step
        try:
            new = self._logged.new({name: _number(value) for name, value in values.items()}, step)
            if new:
                self._logged.add(new.keys(), step)
                self._run.log(new, step)
        except Exception as error:  # noqa: BLE001  any library's error
            log.warning("the tracker has failed, no points for %d s: %s", PAUSE_SECONDS, error)
            self._paused_until = time.monotonic() + PAUSE_SECONDS

    def close(self, outcome: str) -> None:
        """End this process's part of the run; where the training goes on elsewhere, wait for CLOSE_SECONDS at most.

        Args:
            outcome: `stopped` where another run of the job continues, `finished` or `failed`; `superseded` takes its
                place where a newer trainer has started.
        """
        run, self._run = self._run, None
        if run is None:
            return
        outcome = "superseded" if self._superseded() else outcome
        closing = threading.Thread(target=_close, args=(run, outcome), daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS if outcome in {"stopped", "superseded"} else None)


def open_tracker(
    kind: str,
    options: dict[str, Any],
    *,
    directory: Path,
    uid: str | None,
    present_step: Callable[[], int],
    superseded: Callable[[], bool],
) -> Tracker:
    """Return the tracker of this job, which continues the run that an earlier run of the job has opened.

    A tracker that cannot be opened fails the first run of a job, and no later one: those train on, without it.

    Args:
        kind: `wandb`, `mlflow` or `tensorboard`.
        options: options of the library, as the script gives them.
        directory: the checkpoint directory.
        uid: the job's identity, None outside metasched.
        present_step: returns the optimizer steps so far.
        superseded: returns whether a newer trainer has started on the checkpoint directory.

    Raises:
        UsageError: there is no such kind, or its library is not installed.
        OSError: the file of the logged steps cannot be read or written.
    """
    library = _library(kind)
    logged = LoggedSteps(directory / f"tracker-{kind}.jsonl", uid)
    try:
        run = library.open_run(logged.run_id, options)
    except Exception as error:
        if not logged.continues:
            raise
        log.error("the tracker %s cannot be opened, the training goes on without it: %s", kind, error)  # noqa: TRY400
        run = None
    return Tracker(run, logged, present_step, superseded)


def _library(kind: str) -> Any:
    if kind not in LIBRARIES:
        raise UsageError(f"tracker({kind!r}): there is no such tracker: use one of {', '.join(map(repr, LIBRARIES))}")
    try:
        return importlib.import_module(LIBRARIES[kind])
    except ImportError as error:
        raise UsageError(f"tracker({kind!r}): {error}: run `pip install {kind}`") from error


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _close(run: TrackerRun, outcome: str) -> None:
    try:
        run.close(outcome)
    except Exception as error:  # noqa: BLE001  any library's error
        log.warning("the tracker could not be closed: %s", error)
