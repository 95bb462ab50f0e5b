"""The startup of a trainer whose script owns the training loop, from its environment to its context."""

from __future__ import annotations

import atexit
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_shim.checkpointing.directory_owner import claim_directory
from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoints
from trainer_shim.checkpointing.generation import claim_generation, generations_directory, highest_generation
from trainer_shim.data.data_wait import DataWait
from trainer_shim.environment.torchrun import write_exit_code
from trainer_shim.errors import CheckpointError, UsageError
from trainer_shim.preemption.exit import wait_for_gloo_threads
from trainer_shim.process_groups.script_group import ScriptGroup
from trainer_shim.process_groups.watchdog import HUNG_EXIT_CODE
from trainer_shim.session.context import Context
from trainer_shim.session.process_startup import log_start, start_process
from trainer_shim.session.trainer_session import TrainerSession
from trainer_shim.session.usage_checks import check_no_process_group

if TYPE_CHECKING:
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint


def start_context(
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_every: float,
    collective_timeout: float | None = None,
    *,
    data_timeout: float | None = None,
    trust_checkpoints: bool = False,
) -> Context:
    """Return the context of this process; see `trainer_shim.init` for the arguments and errors."""
    for name, seconds in [("collective_timeout", collective_timeout), ("data_timeout", data_timeout)]:
        if seconds is not None and not seconds > 0:
            raise UsageError(f"{name}={seconds!r}: it must be seconds above 0, or None")
    check_no_process_group()
    job, stop_requests, world = start_process()
    group = ScriptGroup(world, collective_timeout)
    atexit.register(wait_for_gloo_threads)
    checkpoints = ScriptCheckpoints(Path(checkpoint_dir), trusted=trust_checkpoints)

    def claim() -> tuple[int, ScriptCheckpoint | None]:
        if job.profiling_steps is not None:
            return highest_generation(generations_directory(checkpoints.directory)), None
        try:
            claim_directory(checkpoints.directory, job)
            generation = claim_generation(generations_directory(checkpoints.directory), checkpoints.newest_generation())
        except OSError as error:
            raise CheckpointError(
                f"{checkpoints.directory}: the checkpoint directory cannot be written ({error}): "
                "give one that this job can write, on a file system that all its nodes share"
            ) from error
        return generation, checkpoints.latest()

    generation, resumed = group.on_rank_zero(claim)

    def exit_code_of_hang() -> int:
        """Return the code that asks for another run only where that run would resume from this one's checkpoint."""
        saved = any(checkpoints.directory.glob(f"incarnation-{generation}-step-*.json"))
        code = job.exit_code if saved and job.exit_code is not None else HUNG_EXIT_CODE
        write_exit_code(code, os.environ)
        return code

    group.watchdog.exit_code = exit_code_of_hang
    beginning = f"resumed from step {resumed.progress.step}" if resumed else "from the beginning"
    log_start(group, job, generation, beginning)
    session = TrainerSession(
        group=group,
        job=job,
        stop_requests=stop_requests,
        checkpoints=checkpoints.directory,
        generation=generation,
        resumed=resumed is not None,
        checkpoint_every=checkpoint_every,
        measures_data=True,
    )
    end_for_data = group.watchdog.end_for_data
    return Context(
        session=session,
        group=group,
        checkpoints=checkpoints,
        resumed=resumed,
        data_wait=DataWait(data_timeout, group.rank, end_for_data),
        evaluation_wait=DataWait(data_timeout, group.rank, functools.partial(end_for_data, data="evaluation data")),
    )
