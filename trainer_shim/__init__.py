"""Preemptible, elastic PyTorch training: stop anywhere, go on at any world size, lose and repeat nothing.

The face is `init`, and the `Context` that it returns. Without metasched around it, the same script is plain PyTorch.
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
)
from trainer_shim.leave import departure as _departure  # registers its exit hook before the script's  # noqa: F401

if TYPE_CHECKING:
    import os

    from trainer_shim.context import Context

__all__ = [
    "BatchError",
    "CheckpointError",
    "LeaseError",
    "ShimError",
    "SupersededError",
    "UsageError",
    "VariableError",
    "init",
]


def init(checkpoint_dir: str | os.PathLike[str], *, checkpoint_every: float = 600.0) -> Context:
    """Join the process group and return the context of this trainer.

    Args:
        checkpoint_dir: a directory of this job alone, on a file system that all its nodes share; made if missing.
        checkpoint_every: seconds between periodic checkpoints.

    Raises:
        VariableError: the environment describes half a world.
        CheckpointError: the directory cannot be written, or holds checkpoints of which none is whole.
        UsageError: called outside the main thread.
    """
    from trainer_shim.context import start  # noqa: PLC0415  importing the shim must not cost an import of torch

    return start(checkpoint_dir, checkpoint_every)
