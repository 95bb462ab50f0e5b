"""The state of an optimizer over sharded parameters, by the parameters' names.

torch.distributed.checkpoint.state_dict uses the same form. Its functions are not used here, because they let an
optimizer without a state take a step with gradients of zero: a save would change the training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.checkpointing.compiled_modules import plain_name
from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

# The keys that lead to a value of a nested state: strings, and the indices of lists.
StatePath = tuple[Any, ...]


def saved_paths(metadata: Metadata, name: str) -> list[tuple[str, StatePath]]:
    """Return each saved value of the state `name`: its key in the metadata, and its path, which begins with `name`."""
    return [(key, path) for key, path in (metadata.planner_data or {}).items() if path[0] == name]


def empty_like_saved(saved: Any, parameter: torch.Tensor | None) -> Any:
    """Return an empty tensor for a saved tensor, sharded like a parameter of the same shape; None for other values."""
    size = getattr(saved, "size", None)
    if size is None:
        return None
    dtype = saved.properties.dtype
    if parameter is not None and size == parameter.shape:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)


class ShardedOptimizer:
    """An optimizer whose state refers to parameters by name instead of by number.

    Raises:
        UsageError: none of the modules has all parameters of the optimizer.
    """

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, modules: list[torch.nn.Module]) -> None:
        self._optimizer = optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for module in modules:
            names = {parameter: plain_name(known) for known, parameter in module.named_parameters()}
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
        """Load a state by parameter name; the parameters' order within a group may differ from that at the save.

        Raises:
            ValueError: the parameter groups of the state hold other parameters than the optimizer's groups.
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
