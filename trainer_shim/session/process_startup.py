"""What every trainer does first: it hears stop requests, finds its place in the world, and says who it is."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.environment.job import Job, read_job
from trainer_shim.environment.launcher import deadly_signal
from trainer_shim.environment.log_output import log_somewhere
from trainer_shim.environment.world import World, find_world, oddity
from trainer_shim.preemption.stop_requests import StopFlag, listen

if TYPE_CHECKING:
    from trainer_shim.process_groups.framework_group import Together
    from trainer_shim.process_groups.trainer_group import Group

log = logging.getLogger("trainer_shim")


class Arrival(NamedTuple):
    """A trainer that has just started."""

    job: Job
    stop: StopFlag
    world: World


def arrive() -> Arrival:
    """Listen, and look at the environment.

    Raises:
        VariableError: the environment describes half a world.
        UsageError: called outside the main thread.
    """
    log_somewhere()
    job = read_job(os.environ)
    stop = StopFlag()
    listen(stop, job.signal)
    world = find_world(os.environ)
    if world.rank == 0:
        for words in (oddity(os.environ, world), deadly_signal(os.environ, job.signal, os.getppid())):
            if words:
                log.warning("%s", words)
    return Arrival(job, stop, world)


def introduce(group: Group | Together, job: Job, incarnation: int, beginning: str) -> None:
    """Say in the log who starts, and from where; rank 0 does."""
    if group.rank == 0:
        run = job.run or "unknown"
        log.info("incarnation %d, run %s, world size %d, %s", incarnation, run, group.size, beginning)
