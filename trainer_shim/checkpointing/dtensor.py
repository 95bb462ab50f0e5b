"""Recognises sharded tensors (DTensor) without importing torch's modules for them, which plain models do not need."""

from __future__ import annotations

import sys
from typing import Any


def dtensors_exist() -> bool:
    """Return whether this process can have made a sharded tensor."""
    return _kind() is not None


def is_dtensor(value: Any) -> bool:
    """Return whether `value` is a tensor of which each rank has a part."""
    kind = _kind()
    return kind is not None and isinstance(value, kind)


def _kind() -> type | None:
    # A process that makes such a tensor has imported its module, under the second name in torch 2.4.
    for module in ("torch.distributed.tensor", "torch.distributed._tensor"):
        kind: type | None = getattr(sys.modules.get(module), "DTensor", None)
        if kind is not None:
            return kind
    return None


def holds_dtensor(state: Any) -> bool:
    """Return whether a state of nested dictionaries, lists and tuples holds a sharded tensor."""
    if isinstance(state, dict):
        return any(map(holds_dtensor, state.values()))
    if isinstance(state, (list, tuple)):
        return any(map(holds_dtensor, state))
    return is_dtensor(state)
