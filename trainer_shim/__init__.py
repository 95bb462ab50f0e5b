"""Preemptible, elastic PyTorch training: a job stops at any step, and resumes at any world size without losing work.

Scripts call `init`, and use the `Context` that it returns; scripts whose training loop belongs to a framework call
`attach`, and use its `Companion`. Without metasched the same script is plain PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_shim.errors import (
    BatchError,
    CheckpointError,
    LeaseError,
    ShimError,
    SupersededError,
    UsageError,
    VariableError,
    WorldError,
)
from trainer_shim.preemption.exit import process_exit as _process_exit  # registers its exit hook before the script's  # noqa: F401

if TYPE_CHECKING:
    import os

    from trainer_shim.adaptive_batch.adapt import Accordion, BatchSchedule, NoiseScale
    from trainer_shim.adaptive_batch.lr_scaling import ScalingInputs, legw
    from trainer_shim.batch import plan_batch, splits
    from trainer_shim.checkpointing.tracked_values import Values
    from trainer_shim.session.companion import Companion
    from trainer_shim.session.context import Context

__all__ = [
    "Accordion",
    "BatchError",
    "BatchSchedule",
    "CheckpointError",
    "LeaseError",
    "NoiseScale",
    "ScalingInputs",
    "ShimError",
    "SupersededError",
    "UsageError",
    "Values",
    "VariableError",
    "WorldError",
    "attach",
    "init",
    "legw",
    "plan_batch",
    "splits",
]


def __getattr__(name: str) -> object:
    """Import some names late: `python -m trainer_shim.batch` runs its module as the main one, and few scripts scale."""
    if name in {"plan_batch", "splits"}:
        from trainer_shim import batch  # noqa: PLC0415

        return getattr(batch, name)
    if name in {"ScalingInputs", "legw"}:
        from trainer_shim.adaptive_batch import lr_scaling  # noqa: PLC0415

        return getattr(lr_scaling, name)
    if name in {"Accordion", "BatchSchedule", "NoiseScale"}:
        from trainer_shim.adaptive_batch import adapt  # noqa: PLC0415

        return getattr(adapt, name)
    if name == "Values":
        from trainer_shim.checkpointing.tracked_values import Values  # noqa: PLC0415

        return Values
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init(
    checkpoint_dir: str | os.PathLike[str],
    *,
    checkpoint_every: float = 600.0,
    collective_timeout: float | None = 600.0,
    data_timeout: float | None = 600.0,
    trust_checkpoints: bool = False,
) -> Context:
    """Join the process group, and return the context of this trainer.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share; made if missing.
        checkpoint_every: seconds between periodic checkpoints.
        collective_timeout: seconds for which a rank waits for the other ranks before it ends, so that a hung rank does
            not hold the job's GPUs for ever; None for no limit.
        data_timeout: seconds for which a rank waits for its loader workers while none of them makes progress, before
            the rank ends; None for no limit.
        trust_checkpoints: whether to load states of any class from the checkpoints, whoever else could have written to
            the directory. Otherwise such states are loaded only where nobody but this user and root could.

    Raises:
        VariableError: environment variables that describe the world of ranks are missing or invalid.
        WorldError: not all ranks have joined within five minutes (TRAINER_SHIM_PATIENCE, in seconds), or two share a
            GPU.
        CheckpointError: the directory cannot be written, or none of its checkpoints is complete.
        UsageError: called outside the main thread, or where the script has made a process group, or with a
            `collective_timeout` or `data_timeout` that is not above 0.
    """
    from trainer_shim.session.context_startup import start_context  # noqa: PLC0415  importing the shim must not cost an import of torch

    return start_context(
        checkpoint_dir,
        checkpoint_every,
        collective_timeout,
        data_timeout=data_timeout,
        trust_checkpoints=trust_checkpoints,
    )


def attach(
    checkpoint_dir: str | os.PathLike[str], *, checkpoint_every: float = 600.0, trust_checkpoints: bool = False
) -> Companion:
    """Return the companion of a framework that owns the training loop; to be called at the top of the script.

    See docs/user/INTEGRATIONS.md.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share; made if missing.
        checkpoint_every: seconds between periodic checkpoints.
        trust_checkpoints: whether the framework may load checkpoints, whoever else could have written to the directory.

    Raises:
        VariableError: environment variables that describe the world of ranks are missing or invalid.
        CheckpointError: the directory cannot be written, or others may write to it, or none of its checkpoints is
            complete.
        UsageError: called outside the main thread.
    """
    from trainer_shim.session.companion_startup import start_companion  # noqa: PLC0415  importing the shim must not cost an import of torch

    return start_companion(checkpoint_dir, checkpoint_every, trust_checkpoints=trust_checkpoints)
