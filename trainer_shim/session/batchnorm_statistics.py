"""Running statistics of BatchNorm that are those of the whole global batch, and not of one rank's micro-batches.

A plain training updates them with every micro-batch that rank 0 sees, so that their number and their last values
depend on the world size. Here each optimizer step makes one update, with the mean over all micro-batches of all ranks,
weighted by samples. Where all micro-batches have one size at every world size, this mean is the same at every world
size, up to rounding. The statistics by which a forward pass normalises remain those of its micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer_shim.session.gradient_accumulation import GradientAccumulation

_NAMES = ("running_mean", "running_var")


class BatchNormStatistics:
    """The BatchNorm layers of some modules, whose running statistics are updated once for each optimizer step.

    Args:
        modules: the modules.
        accumulation: the state of the optimizer step.

    Raises:
        UsageError: the modules have no BatchNorm layer with running statistics.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], accumulation: GradientAccumulation) -> None:
        self._accumulation = accumulation
        self._layers: list[_BatchNorm] = [
            part
            for module in modules
            for part in module.modules()
            if isinstance(part, _BatchNorm)
            and not isinstance(part, torch.nn.SyncBatchNorm)
            and part.track_running_stats
        ]
        if not self._layers:
            raise UsageError("ctx.average_statistics(model): the model has no BatchNorm with running statistics")
        self._sums: dict[_BatchNorm, torch.Tensor] = {}  # weighted mean and variance, one below the other
        self._held: dict[_BatchNorm, tuple[dict[str, Any], float | None]] = {}  # during a forward pass
        for layer in self._layers:
            layer.register_forward_pre_hook(self._before)
            layer.register_forward_hook(self._after)

    def finish_step(self) -> None:
        """Update the running statistics at the end of a global batch. Collective."""
        own = [self._sum(layer).flatten() for layer in self._layers]
        total = torch.cat(own)
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(total)
        for layer, part in zip(self._layers, torch.split(total, [each.numel() for each in own])):
            mean, variance = part.reshape(2, -1)
            known_mean, known_variance, updates = layer.running_mean, layer.running_var, layer.num_batches_tracked
            assert known_mean is not None and known_variance is not None and updates is not None  # noqa: S101, PT018
            with torch.no_grad():
                updates.add_(1)
                factor = 1 / float(updates) if layer.momentum is None else layer.momentum
                known_mean.lerp_(mean.to(known_mean.dtype), factor)
                known_variance.lerp_(variance.to(known_variance.dtype), factor)
        self._sums.clear()

    def _sum(self, layer: _BatchNorm) -> torch.Tensor:
        known = self._sums.get(layer)
        if known is not None:
            return known
        assert layer.running_mean is not None  # noqa: S101  it tracks them
        return torch.zeros(2, layer.num_features, dtype=torch.float64, device=layer.running_mean.device)

    def _before(self, layer: torch.nn.Module, _: Any) -> None:
        """Let a forward pass write the statistics of its micro-batch into buffers of their own."""
        if not (layer.training and isinstance(layer, _BatchNorm)) or self._accumulation.micro is None:
            return
        buffers = layer._buffers  # noqa: SLF001  an assignment would register the names anew
        self._held[layer] = {name: buffers[name] for name in (*_NAMES, "num_batches_tracked")}, layer.momentum
        for name, value in self._held[layer][0].items():
            buffers[name] = torch.zeros_like(value)
        layer.momentum = None  # the average over one pass: its own statistics

    def _after(self, layer: torch.nn.Module, _: Any, __: Any) -> None:
        """Add the statistics of the micro-batch, and put the buffers back."""
        if not isinstance(layer, _BatchNorm) or layer not in self._held:
            return
        micro = self._accumulation.current()
        buffers = layer._buffers  # noqa: SLF001
        seen = torch.stack([torch.as_tensor(buffers[name]).double() for name in _NAMES])
        held, layer.momentum = self._held.pop(layer)
        buffers.update(held)
        self._sums[layer] = self._sum(layer) + seen * (micro.samples / micro.global_samples)
