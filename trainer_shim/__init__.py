"""Preemptible, elastic PyTorch training: stop anywhere, go on at any world size, lose and repeat nothing.

The face is `init`, and the `Context` that it returns; for frameworks that own the training loop, `attach` and its
`Companion`. Without metasched around it, the same script is plain PyTorch.
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

    from trainer_shim.batch import plan_batch, splits
    from trainer_shim.session.companion import Companion
    from trainer_shim.session.context import Context

__all__ = [
    "BatchError",
    "CheckpointError",
    "LeaseError",
    "ShimError",
    "SupersededError",
    "UsageError",
    "VariableError",
    "WorldError",
    "attach",
    "init",
    "plan_batch",
    "splits",
]


def __getattr__(name: str) -> object:
    """Import late what `python -m trainer_shim.batch` is to run as its main module."""
    if name not in {"plan_batch", "splits"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer_shim import batch  # noqa: PLC0415

    return getattr(batch, name)


def init(
    checkpoint_dir: str | os.PathLike[str],
    *,
    checkpoint_every: float = 600.0,
    collective_timeout: float | None = 600.0,
) -> Context:
    """Join the process group and return the context of this trainer.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share; made if missing.
        checkpoint_every: seconds between periodic checkpoints.
        collective_timeout: seconds for which a rank waits for the others before it ends, so that a hung one does not
            hold the job's GPUs for ever; None to wait for as long as it takes.

    Raises:
        VariableError: the environment describes half a world.
        WorldError: not all ranks have come within five minutes (TRAINER_SHIM_PATIENCE, in seconds), or two share a GPU.
        CheckpointError: the directory cannot be written, or holds checkpoints of which none is whole.
        UsageError: called outside the main thread, beside a process group of the script's own, or with a
            `collective_timeout` that is not above 0.
    """
    from trainer_shim.session.context_startup import start_context  # noqa: PLC0415  importing the shim must not cost an import of torch

    return start_context(checkpoint_dir, checkpoint_every, collective_timeout)


def attach(checkpoint_dir: str | os.PathLike[str], *, checkpoint_every: float = 600.0) -> Companion:
    """Stand by a framework that owns the training loop, at the top of its script; see docs/INTEGRATIONS.md.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share; made if missing.
        checkpoint_every: seconds between periodic checkpoints.

    Raises:
        VariableError: the environment describes half a world.
        CheckpointError: the directory cannot be written, or holds checkpoints of which none is whole.
        UsageError: called outside the main thread.
    """
    from trainer_shim.session.companion_startup import start_companion  # noqa: PLC0415  importing the shim must not cost an import of torch

    return start_companion(checkpoint_dir, checkpoint_every)
