"""The startup of a trainer whose training loop belongs to a framework, from its environment to its companion."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from trainer_shim.checkpointing.directory_owner import claim_directory
from trainer_shim.checkpointing.formats.framework_checkpoints import FrameworkCheckpoint, FrameworkCheckpoints
from trainer_shim.checkpointing.generation import claim_generation, generations_directory
from trainer_shim.checkpointing.trusted_load import require_trusted
from trainer_shim.errors import CheckpointError
from trainer_shim.preemption.exit import process_exit
from trainer_shim.process_groups.framework_group import FrameworkGroup
from trainer_shim.session.companion import Companion
from trainer_shim.session.process_startup import log_start, start_process
from trainer_shim.session.trainer_session import TrainerSession

log = logging.getLogger("trainer_shim")


def start_companion(
    checkpoint_dir: str | os.PathLike[str], checkpoint_every: float, *, trust_checkpoints: bool = False
) -> Companion:
    """Return the companion of this process; see `trainer_shim.attach` for the arguments and errors."""
    job, stop_requests, world = start_process()
    if job.profiling_steps is not None:
        log.info("no profiling run: the training loop belongs to a framework")
        process_exit.start(0)
    group = FrameworkGroup(world)
    checkpoints = FrameworkCheckpoints(Path(checkpoint_dir).resolve())

    def claim() -> tuple[int, FrameworkCheckpoint | None]:
        root = checkpoints.root
        if any(root.glob("incarnation-*-step-*.json")):
            raise CheckpointError(f"{root}: holds checkpoints of trainer_shim.init(); use another directory")
        try:
            claim_directory(root, job)
            generation = claim_generation(generations_directory(root), checkpoints.newest_generation())
            checkpoints.generation_directory(generation).mkdir()
        except OSError as error:
            raise CheckpointError(f"{root}: the checkpoint directory cannot be written: {error}") from error
        latest = checkpoints.latest()
        if not trust_checkpoints:  # also before the first checkpoint: a failure after hours of training helps nobody
            files = () if latest is None else (latest.path, *latest.path.rglob("*"))
            for path in (root, *files):
                require_trusted(path, "the framework may load pickles of any class")
        return generation, latest

    generation, resumed = group.on_rank_zero(claim)
    log_start(group, job, generation, f"resumes from step {resumed.step}" if resumed else "from the beginning")
    session = TrainerSession(
        group=group,
        job=job,
        stop_requests=stop_requests,
        checkpoints=checkpoints.root,
        generation=generation,
        resumed=resumed is not None,
        checkpoint_every=checkpoint_every,
        measures_data=False,
    )
    if session.read_lease_batch() is not None:
        log.warning(
            "the job's tag has batch=adaptive, and the batch stays fixed, because a framework owns the training loop: "
            "take batch=adaptive out of the tag, or use trainer_shim.init() and ctx.loader(..., max_batch=, lr_scale=)"
        )
    return Companion(session=session, checkpoints=checkpoints, resumed=resumed)
