"""DDP in evaluations: a forward pass first broadcasts the buffers, a collective that needs all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterable


def stop_buffer_broadcasts(parts: Iterable[Any]) -> list[DistributedDataParallel]:
    """Broadcast the buffers once, and in no forward pass from now on. Collective.

    The ranks may then make different numbers of forward passes. Returns the parts whose broadcasts were stopped, for
    `resume_buffer_broadcasts`.
    """
    stopped = [
        part
        for part in parts
        if isinstance(part, DistributedDataParallel) and part.broadcast_buffers and part.modules_buffers
    ]
    for part in stopped:
        part._sync_buffers()  # type: ignore[no-untyped-call]  # noqa: SLF001  what the forward pass would call
        part.broadcast_buffers = False
    return stopped


def resume_buffer_broadcasts(stopped: list[DistributedDataParallel]) -> None:
    """Broadcast buffers in forward passes again, from the next pass on."""
    for part in stopped:
        part.broadcast_buffers = part.require_forward_param_sync = True
