"""The startup of every trainer process: stop signals, the job, the world, and the log line."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trainer_shim.environment.job import Job, read_job
from trainer_shim.environment.log_output import ensure_log_handler
from trainer_shim.environment.torchrun import torchrun_signal_warning
from trainer_shim.environment.world import World, find_world, launch_warning
from trainer_shim.preemption.stop_requests import StopRequests, handle_stop_signals

if TYPE_CHECKING:
    from trainer_shim.process_groups.rank_group import RankGroup

log = logging.getLogger("trainer_shim")


def start_process() -> tuple[Job, StopRequests, World]:
    """Handle the stop signals, read the environment, and warn of likely mistakes in it.

    Returns the job, the stop requests to this process, and its place in the world of ranks.

    Raises:
        VariableError: variables are missing or invalid.
        UsageError: called outside the main thread.
    """
    ensure_log_handler()
    job = read_job(os.environ)
    stop_requests = StopRequests()
    handle_stop_signals(stop_requests, job.signal)
    world = find_world(os.environ)
    if world.rank == 0:
        signal_warning = torchrun_signal_warning(os.environ, job.signal, os.getppid())
        for warning in filter(None, [launch_warning(os.environ, world), signal_warning]):
            log.warning("%s", warning)
    return job, stop_requests, world


def log_start(group: RankGroup, job: Job, generation: int, beginning: str) -> None:
    """Log, on rank 0, the generation, run and world size of this trainer, and where it resumes from."""
    if group.rank == 0:
        run = job.run or "unknown"
        log.info("generation %d, run %s, world size %d, %s", generation, run, group.size, beginning)
