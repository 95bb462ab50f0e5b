"""The state of an optimizer over sharded parameters, by the parameters' names.

This is the form that torch.distributed.checkpoint.state_dict gives it, too. Its functions are not used here: where an
optimizer has no state yet they have it take a step with gradients of zero, so that a save would change the training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

# The keys that lead to a value of a nested state; torch makes strings of all but a list's indices.
StatePath = tuple[Any, ...]


def saved_paths(metadata: Metadata, name: str) -> list[tuple[str, StatePath]]:
    """What is saved of a state: the key in the metadata, and the way to it in the state, which begins with `name`."""
    return [(key, path) for key, path in (metadata.planner_data or {}).items() if path[0] == name]


def empty_like_saved(saved: Any, parameter: torch.Tensor | None) -> Any:
    """What to read a saved tensor into, sharded as its parameter is if it has its shape; None for anything else."""
    size = getattr(saved, "size", None)
    if size is None:
        return None
    dtype = saved.properties.dtype
    if parameter is not None and size == parameter.shape:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)


class ShardedOptimizer:
    """An optimizer, seen with names in the place of numbers.

    Raises:
        UsageError: none of the modules has all of its parameters.
    """

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, modules: list[torch.nn.Module]) -> None:
        self._optimizer = optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for module in modules:
            names = {parameter: known for known, parameter in module.named_parameters()}
            if all(parameter in names for parameter in parameters):
                self._names = [names[parameter] for parameter in parameters]
                break
        else:
            raise UsageError(
                f"ctx.track({name}=...): its parameters are sharded, and go by their names in a module: "
                "track the one module that has all of them in the same call"
            )
        self._parameters = dict(zip(self._names, parameters))

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, by parameter name."""
        state = self._optimizer.state_dict()
        groups = [{**group, "params": [self._names[i] for i in group["params"]]} for group in state["param_groups"]]
        return {"state": {self._names[i]: value for i, value in state["state"].items()}, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a state by name, whatever the parameters' numbers were.

        Raises:
            ValueError: they were grouped otherwise.
        """
        saved, own = state["param_groups"], self.state_dict()["param_groups"]
        if [set(group["params"]) for group in saved] != [set(group["params"]) for group in own]:
            raise ValueError("its groups hold other parameters")
        numbers = {name: number for number, name in enumerate(self._names)}
        groups = [{**group, "params": [numbers[name] for name in mine["params"]]} for group, mine in zip(saved, own)]
        by_number = {numbers[name]: value for name, value in state["state"].items()}
        self._optimizer.load_state_dict({"state": by_number, "param_groups": groups})

    def empty_state(self, metadata: Metadata, name: str) -> dict[str, Any]:
        """A state to be filled, made after what was saved: before its first step an optimizer has none of its own."""
        state: dict[str, dict[str, Any]] = {}
        groups: list[dict[str, Any]] = []
        for key, (_, part, *path) in saved_paths(metadata, name):
            if part == "state":
                of, kind = path
                saved = metadata.state_dict_metadata[key]
                state.setdefault(of, {})[kind] = empty_like_saved(saved, self._parameters.get(of))
            elif len(path) > 1:  # else all groups are one value
                number, kind = path[:2]
                groups += [{} for _ in range(number + 1 - len(groups))]
                groups[number][kind] = None
        return {"state": state, "param_groups": groups}
