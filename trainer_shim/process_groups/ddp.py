"""What DDP asks of evaluations: a forward pass first broadcasts the buffers, for which it needs all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterable


def stop_buffer_broadcasts(parts: Iterable[Any]) -> list[DistributedDataParallel]:
    """Broadcast buffers now, and no more in forward passes, of which the ranks may then have different numbers.

    Collective. Returns those of the parts that it concerns, for `resume_buffer_broadcasts`.
    """
    settled = [
        part
        for part in parts
        if isinstance(part, DistributedDataParallel) and part.broadcast_buffers and part.modules_buffers
    ]
    for part in settled:
        part._sync_buffers()  # type: ignore[no-untyped-call]  # noqa: SLF001  what the forward pass would call
        part.broadcast_buffers = False
    return settled


def resume_buffer_broadcasts(settled: list[DistributedDataParallel]) -> None:
    """Broadcast buffers in forward passes again, from the next one on, whatever passes this rank has had meanwhile."""
    for part in settled:
        part.broadcast_buffers = part.require_forward_param_sync = True
