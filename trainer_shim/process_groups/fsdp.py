"""FSDP2: sharding of a module, and gradients that are not exchanged in every backward pass."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def fully_shard(module: torch.nn.Module, device: str, size: int, options: dict[str, Any]) -> torch.nn.Module:
    """Apply FSDP2 to the module in place, over all ranks unless the options name a mesh, and return the module."""
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
    """Return whether FSDP2 was applied to this module itself, and not only to a part of it."""
    return hasattr(module, "set_requires_gradient_sync")


class FsdpNoSync:
    """DDP's `no_sync` for one part of a model that is sharded by FSDP2."""

    def __init__(self, part: Any) -> None:
        self._part = part

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager: keep the gradients on this rank; a later backward pass exchanges them."""
        self._part.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            self._part.set_requires_gradient_sync(True, recurse=False)
