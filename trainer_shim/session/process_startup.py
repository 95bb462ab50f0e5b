"""What every trainer does first: it hears stop requests, finds its place in the world, and says who it is."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.job import Job, read_job
from trainer_shim.launcher import deadly_signal
from trainer_shim.logs import log_somewhere
from trainer_shim.stop import StopFlag, listen
from trainer_shim.world import World, find_world, oddity

if TYPE_CHECKING:
    from trainer_shim.group import Group
    from trainer_shim.together import Together

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
