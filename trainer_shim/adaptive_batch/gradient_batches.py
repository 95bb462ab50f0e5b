"""Gradients of several parameters as one tensor, for which a GPU runs as many kernels as for one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch._utils import _flatten_dense_tensors  # the host is faster by it than by a loop over the tensors

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

BATCH_BYTES = 2**24
"""The most bytes of a batch of several gradients in a backward pass, which keeps them alive beside its activations."""
STEP_FACTOR = 4
"""The factor on the bytes of a batch after the passes of a step, whose activations are freed by then."""


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def batches(
    gradients: Iterable[tuple[int, torch.Tensor]], key: Callable[[int], Hashable], limit: int
) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Yield batches of gradients with one dtype and one key, each as parameters' numbers and their gradients.

    Args:
        gradients: numbers of parameters, and their gradients.
        key: returns what the parameters of a batch have in common, from a parameter's number.
        limit: the most bytes of a batch of several gradients.
    """
    begun: dict[Hashable, tuple[list[int], list[torch.Tensor]]] = {}
    sizes: dict[Hashable, int] = {}
    for number, gradient in gradients:
        size, shared = size_in_bytes(gradient), (gradient.dtype, key(number))
        if shared in begun and sizes[shared] + size > limit:
            yield begun.pop(shared)
        if shared not in begun:
            begun[shared], sizes[shared] = ([], []), 0
        numbers, members = begun[shared]
        numbers.append(number)
        members.append(gradient)
        sizes[shared] += size
    yield from begun.values()


def join(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the elements of all tensors as one tensor of a dtype; a single tensor of that dtype itself."""
    whole = tensors[0] if len(tensors) == 1 else _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return whole.to(dtype)
