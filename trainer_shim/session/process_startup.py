"""What every trainer does first: it hears stop requests, finds its place in the world, and says who it is."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.environment.job import Job, read_job
from trainer_shim.environment.launcher import torchrun_signal_warning
from trainer_shim.environment.log_output import ensure_log_handler
from trainer_shim.environment.world import World, find_world, launch_warning
from trainer_shim.preemption.stop_requests import StopRequests, handle_stop_signals

if TYPE_CHECKING:
    from trainer_shim.process_groups.framework_group import FrameworkGroup
    from trainer_shim.process_groups.trainer_group import TrainerGroup

log = logging.getLogger("trainer_shim")


class ProcessStart(NamedTuple):
    """A trainer that has just started."""

    job: Job
    stop: StopRequests
    world: World


def start_process() -> ProcessStart:
    """Listen, and look at the environment.

    Raises:
        VariableError: the environment describes half a world.
        UsageError: called outside the main thread.
    """
    ensure_log_handler()
    job = read_job(os.environ)
    stop = StopRequests()
    handle_stop_signals(stop, job.signal)
    world = find_world(os.environ)
    if world.rank == 0:
        for words in (launch_warning(os.environ, world), torchrun_signal_warning(os.environ, job.signal, os.getppid())):
            if words:
                log.warning("%s", words)
    return ProcessStart(job, stop, world)


def log_start(group: TrainerGroup | FrameworkGroup, job: Job, generation: int, beginning: str) -> None:
    """Say in the log who starts, and from where; rank 0 does."""
    if group.rank == 0:
        run = job.run or "unknown"
        log.info("generation %d, run %s, world size %d, %s", generation, run, group.size, beginning)
