"""Checkpointed states as leaves by path, and the comparison of leaves."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trainer_shim.checkpointing.trusted_load import require_trusted

if TYPE_CHECKING:
    from pathlib import Path


class Difference(NamedTuple):
    """The difference between two values.

    Attributes:
        gap: the largest absolute difference, 0.0 for bitwise equal values, None for values that are not comparable.
        scale: the largest magnitude, at least 1.
        text: both values, or their difference, in words.
    """

    gap: float | None
    scale: float
    text: str

    def within(self, tolerance: float) -> bool:
        """Return whether the gap is at most `tolerance`, relative to the scale."""
        return self.gap is not None and self.gap <= tolerance * self.scale


class _Opaque:
    """A placeholder for an object of a class that only the script has; its attributes are its leaves."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Opaque,), {})


def load(data: Path) -> dict[str, Any]:
    """Return the states of a data file by tracked name.

    Raises:
        CheckpointError: other users could have written the file: pickles of the script's own classes run code.
    """
    require_trusted(data, "the rehearsal loads states of any class; rehearse in a directory of your own")
    opener = SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__="pickle")
    states: dict[str, Any] = torch.load(data, map_location="cpu", weights_only=False, pickle_module=opener)
    return states


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a state by path, such as `state.0.exp_avg`."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif not isinstance(value, torch.Tensor) and getattr(value, "__dict__", None) and not isinstance(value, type):
        items = list(vars(value).items())
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in items:
        found.update(flatten(item, f"{path}.{key}" if path else str(key)))
    return found


def default_tolerance(leaves: list[Any]) -> float:
    """Return the square root of the coarsest floating type's epsilon; of float64's without a floating type."""
    kinds = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()}
    return float(max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float64).eps) ** 0.5)


def differ(first: Any, second: Any) -> Difference:
    """Return the difference between two leaves of a state."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return _differ_tensors(first, second)
    if type(first) is type(second) and isinstance(first, (float, complex)):
        kind = torch.complex128 if isinstance(first, complex) else torch.float64
        found = _differ_tensors(torch.tensor(first, dtype=kind), torch.tensor(second, dtype=kind))
        return found._replace(text=f"{first} and {second}")
    try:
        same = bool(first == second) or _pickled(first) == _pickled(second)
    except Exception:  # noqa: BLE001  an object of the script's own may do anything here
        same = False
    return Difference(0.0 if same else None, 1.0, f"{first!r:.60} and {second!r:.60}")


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  likewise
        return None


def _differ_tensors(first: torch.Tensor, second: torch.Tensor) -> Difference:
    if first.shape != second.shape or first.dtype != second.dtype:
        text = f"{first.dtype} of shape {tuple(first.shape)} and {second.dtype} of shape {tuple(second.shape)}"
        return Difference(None, 1.0, text)
    apart = (first != second) & ~(torch.isnan(first) & torch.isnan(second))
    if not apart.any():
        return Difference(0.0, 1.0, "")
    # Integers are equal or different, without a tolerance.
    exact = not (first.is_floating_point() or first.is_complex())
    wide = torch.complex128 if first.is_complex() else torch.float64
    gap = float((first.to(wide) - second.to(wide))[apart].abs().max())
    scale = max(1.0, float(first.to(wide).abs().nan_to_num(nan=0.0, posinf=0.0).max()))
    return Difference(None if exact or not math.isfinite(gap) else gap, scale, f"up to {gap:.3g} apart")
