"""What FSDP2 asks of a training loop that DDP does not."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def fully_shard(module: torch.nn.Module, device: str, size: int, options: dict[str, Any]) -> torch.nn.Module:
    """Apply FSDP2 in place, over all ranks unless the options name a mesh."""
    try:
        from torch.distributed.fsdp import fully_shard as shard  # noqa: PLC0415  slow to import
    except ImportError:  # torch 2.4 and 2.5
        from torch.distributed._composable.fsdp import fully_shard as shard  # type: ignore[attr-defined]  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    if "mesh" not in options:
        options = options | {"mesh": init_device_mesh(device, (size,))}
    shard(module, **options)
    return module


def is_fully_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 was applied to this very module."""
    return hasattr(module, "set_requires_gradient_sync")


class FsdpNoSync:
    """A part of a model, whose gradients are held back as DDP's are."""

    def __init__(self, part: Any) -> None:
        self._part = part

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients on this rank, to be exchanged with those of a later backward."""
        self._part.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            self._part.set_requires_gradient_sync(True, recurse=False)
