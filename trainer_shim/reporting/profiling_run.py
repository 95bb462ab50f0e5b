"""A profiling run: a few steps at another world size, before the run itself, to measure how the job scales.

The wrapper starts the script on a part of the job's GPUs. Such a trainer claims no generation, loads and saves nothing,
reports only its speed, and exits. Source: Liu et al., "Ares", 2025, section 4 (profiling by the first
10 iterations, the initial ones left out).
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_shim.environment.job import Job

WARM_UP_STEPS = 3  # steps that are not timed
_MAX_BYTES = 1 << 16

log = logging.getLogger("trainer_shim")


class ProfilingRun:
    """Times steps after a warm-up.

    Args:
        steps: the number of timed steps.
        file: the file for the results, None on ranks that write none.
    """

    def __init__(self, steps: int, file: Path | None) -> None:
        self._steps = steps
        self._file = file
        self._started = 0.0  # seconds on the clock of `record_step`
        self._samples = 0

    @classmethod
    def of_job(cls, job: Job, *, writes: bool) -> ProfilingRun | None:
        """Return the profiling run that the job's variables ask for, None where they ask for none.

        Args:
            job: the job as the wrapper describes it.
            writes: whether this rank writes the results.
        """
        if job.profiling_steps is None:
            return None
        return cls(job.profiling_steps, job.profiling_file if writes else None)

    def record_step(self, step: int, samples: int, clock: Callable[[], float], **values: Any) -> bool:
        """Note the end of a step, and return whether it was the last; the last writes a line of JSON to the file.

        Args:
            step: the steps of the profiling run so far.
            samples: the samples so far, over all ranks.
            clock: returns the time in seconds at which the device has finished these steps.
            **values: further values of the line.
        """
        if step <= WARM_UP_STEPS:
            self._started, self._samples = clock(), samples
        if step < WARM_UP_STEPS + self._steps:
            return False
        line = {"steps": self._steps, "samples": samples - self._samples, "seconds": clock() - self._started, **values}
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return True


def read_profiling_results(file: Path | None) -> list[dict[str, Any]]:
    """Return the results of the profiling runs before this run, one dictionary each; empty without a file."""
    if file is None:
        return []
    try:
        with file.open("rb") as opened:
            return [json.loads(line) for line in opened.read(_MAX_BYTES).splitlines()]
    except (OSError, ValueError) as error:
        log.warning("the profiling runs' results cannot be read: %s", error)
        return []
