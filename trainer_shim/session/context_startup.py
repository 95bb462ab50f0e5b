"""The beginning of a trainer, from its environment to its context."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_shim.checkpointing.checkpoint_store import CheckpointStore
from trainer_shim.checkpointing.directory_owner import belong
from trainer_shim.checkpointing.generation import claim, highest
from trainer_shim.environment.launcher import leave_word
from trainer_shim.errors import CheckpointError, UsageError
from trainer_shim.preemption.exit import outlast_gloo
from trainer_shim.process_groups.trainer_group import Group
from trainer_shim.process_groups.watchdog import HUNG_EXIT_CODE
from trainer_shim.session.context import Context
from trainer_shim.session.process_startup import arrive, introduce
from trainer_shim.session.usage_checks import refuse_second_group

if TYPE_CHECKING:
    from trainer_shim.checkpointing.checkpoint_store import Checkpoint


def start(
    checkpoint_dir: str | os.PathLike[str], checkpoint_every: float, collective_timeout: float | None = None
) -> Context:
    """See `trainer_shim.init`."""
    if collective_timeout is not None and not collective_timeout > 0:
        raise UsageError(f"collective_timeout={collective_timeout!r}: it must be seconds above 0, or None")
    refuse_second_group()
    job, stop, world = arrive()
    group = Group(world, collective_timeout)
    atexit.register(outlast_gloo)
    store = CheckpointStore(Path(checkpoint_dir))

    def enter() -> tuple[int, Checkpoint | None]:
        if job.trial is not None:
            return highest(store.directory / "incarnations"), None
        try:
            belong(store.directory, job)
            incarnation = claim(store.directory / "incarnations", store.newest_incarnation())
        except OSError as error:
            raise CheckpointError(
                f"{store.directory}: the checkpoint directory cannot be written ({error}): "
                "give one that this job can write, on a file system that all its nodes share"
            ) from error
        return incarnation, store.latest()

    incarnation, resumed = group.from_first(enter)

    def code_of_hang() -> int:
        """To ask for another run makes sense only where it would hang later than this one, if at all."""
        saved = any(store.directory.glob(f"incarnation-{incarnation}-step-*.json"))
        code = job.exit_code if saved and job.exit_code is not None else HUNG_EXIT_CODE
        leave_word(code, os.environ)
        return code

    group.watchdog.exit_code = code_of_hang
    beginning = f"resumed from step {resumed.progress.step}" if resumed else "from the beginning"
    introduce(group, job, incarnation, beginning)
    return Context(
        group=group,
        job=job,
        store=store,
        stop=stop,
        incarnation=incarnation,
        resumed=resumed,
        checkpoint_every=checkpoint_every,
    )
