"""Sharded tensors, told from plain ones without importing what a script with plain models never needs."""

from __future__ import annotations

import sys
from typing import Any


def dtensors_exist() -> bool:
    """Whether anybody in this process can have made a sharded tensor."""
    return _kind() is not None


def is_dtensor(value: Any) -> bool:
    """Whether `value` is a tensor of which each rank has a part."""
    kind = _kind()
    return kind is not None and isinstance(value, kind)


def _kind() -> type | None:
    # Whoever makes one has imported its module, under the older name in torch 2.4.
    for module in ("torch.distributed.tensor", "torch.distributed._tensor"):
        kind: type | None = getattr(sys.modules.get(module), "DTensor", None)
        if kind is not None:
            return kind
    return None


def holds_dtensor(state: Any) -> bool:
    """Whether there is a sharded tensor anywhere in dictionaries, lists and tuples."""
    if isinstance(state, dict):
        return any(map(holds_dtensor, state.values()))
    if isinstance(state, (list, tuple)):
        return any(map(holds_dtensor, state))
    return is_dtensor(state)
