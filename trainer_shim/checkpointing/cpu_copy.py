"""Copies of states in CPU memory, which the training that goes on does not change."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch

from trainer_shim.checkpointing.dtensor import is_dtensor


def cpu_copy(state: Any) -> Any:
    """Return a copy of `state` with all tensors on the CPU; torch.save writes it like the original.

    Tensors that share memory share it in the copy, so tied weights and views are saved once.
    """
    return _copied(state, {})


def _copied(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_quantized:
        return _tensor(value, storages)
    if kind in (dict, collections.OrderedDict):
        same = copy.copy(value)  # with a module state's `_metadata`
        for key, item in value.items():
            same[key] = _copied(item, storages)
        return same
    if kind in (list, tuple):
        return kind(_copied(item, storages) for item in value)
    if is_dtensor(value):
        return value.detach().to("cpu", copy=True)
    if kind in (str, bytes, int, float, bool, type(None)):
        return value
    return copy.deepcopy(value)


def _tensor(value: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    storage = value.untyped_storage()
    key = storage._cdata  # noqa: SLF001  the identity that torch's own deepcopy uses
    if key not in storages:
        own = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
        storages[key] = own.copy_(storage)
    with torch.no_grad():
        same = torch.empty(0, dtype=value.dtype, device="cpu").set_(
            storages[key],
            value.storage_offset(),
            value.size(),
            value.stride(),
        )
        if value.is_conj():  # conjugation and negation are flags of the tensor, and not in its memory
            same = same.conj()
        if value.is_neg():
            same = torch._neg_view(same)  # noqa: SLF001  the only way to set the flag
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(same, requires_grad=value.requires_grad)
    return same.requires_grad_(value.requires_grad and value.is_leaf)
