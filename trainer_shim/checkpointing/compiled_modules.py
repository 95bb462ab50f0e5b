"""States of modules without the prefix of torch.compile, so that a checkpoint fits the module compiled or not."""

from __future__ import annotations

from typing import Any

import torch

_PREFIX = "_orig_mod."  # of a compiled module's parameters, at any depth


def plain_name(name: str) -> str:
    """Return the name that a parameter has in the module that is not compiled."""
    return name.replace(_PREFIX, "")


class PlainNames:
    """A module whose state has the names that it has where nothing of it is compiled.

    Args:
        module: the module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        """Return the module's state by plain names; the present state itself where nothing is compiled."""
        state = self._module.state_dict()
        return {plain_name(name): value for name, value in state.items()} if _is_compiled(state) else state

    def load_state_dict(self, state: Any) -> Any:
        """Load a state by any names, of the module compiled or not."""
        present = self._module.state_dict()
        if isinstance(state, dict) and (_is_compiled(state) or _is_compiled(present)):
            names = {plain_name(name): name for name in present}
            state = {names.get(plain_name(name), name): value for name, value in state.items()}
        return self._module.load_state_dict(state)


def _is_compiled(state: dict[str, Any]) -> bool:
    return any(_PREFIX in name for name in state)
