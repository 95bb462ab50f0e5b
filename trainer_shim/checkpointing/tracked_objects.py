"""The objects that a script tracks: their states for a checkpoint, and how they load states again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer_shim.checkpointing.compiled_modules import PlainNames
from trainer_shim.checkpointing.dtensor import dtensors_exist, holds_dtensor
from trainer_shim.checkpointing.formats.script_checkpoints import States
from trainer_shim.checkpointing.formats.sharded_states import read_shards, state_mismatch
from trainer_shim.checkpointing.sharded_optimizer import ShardedOptimizer
from trainer_shim.errors import CheckpointError, UsageError
from trainer_shim.process_groups.fsdp import FsdpNoSync, is_fully_sharded
from trainer_shim.process_groups.save_group import SaveGroup

if TYPE_CHECKING:
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint, ScriptCheckpoints


class Stateful(Protocol):
    """Anything that a checkpoint can hold."""

    def state_dict(self) -> Any:
        """Return the object's state, as a checkpoint holds it."""

    def load_state_dict(self, state: Any) -> Any:
        """Load a state that ``state_dict`` returned."""


class TrackedObjects:
    """The objects that a script has named in `track`.

    All ranks save the states that hold sharded tensors, each rank its part. Rank 0 saves the other states.

    Attributes:
        objects: the objects by name, without DDP and torch.compile around them.
        modules: the modules among them, as the script has named them.

    Raises:
        UsageError: an object has no state_dict, or cannot be saved.
    """

    def __init__(self, objects: dict[str, Stateful], *, is_rank_zero: bool) -> None:
        self._is_rank_zero = is_rank_zero
        self.objects: dict[str, Stateful] = {}
        self._stateful: dict[str, Stateful] = {}  # the objects, whose states have the names of uncompiled modules
        self._sharded: dict[str, Stateful] = {}
        self.modules = modules = [item for item in objects.values() if isinstance(item, torch.nn.Module)]
        for name, item in objects.items():
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UsageError(
                    f"ctx.track({name}=...): a {type(item).__name__} has no state_dict and load_state_dict"
                )
            if isinstance(item, torch.nn.Module):
                _refuse_older_fsdp(name, item)
            # The state of the plain module has no prefix of DDP, so any script can load it.
            plain = _without_wrappers(item)
            self.objects[name] = plain
            self._stateful[name] = PlainNames(plain) if isinstance(plain, torch.nn.Module) else plain
            if _is_sharded(plain):
                named = ShardedOptimizer(name, plain, modules) if isinstance(plain, torch.optim.Optimizer) else None
                self._sharded[name] = named or self._stateful[name]
        self._models = [part for module in modules for part in module.modules()]
        self._save_group = SaveGroup() if self._sharded else None

    @property
    def sharded(self) -> bool:
        """Whether all ranks save together, because a state is sharded."""
        return self._save_group is not None

    def gradient_sync_modules(self) -> list[Any]:
        """Return the parts of the models that exchange gradients, each with a `no_sync()` that delays the exchange."""
        return [part for part in self._models if isinstance(part, DistributedDataParallel)] + [
            FsdpNoSync(part) for part in self._models if is_fully_sharded(part)
        ]

    @property
    def _unsharded(self) -> list[str]:
        return [name for name in self.objects if name not in self._sharded]

    def states(self) -> States:
        """Return the present states; `unsharded` is empty on all ranks except rank 0."""
        return States(
            unsharded={name: self._stateful[name].state_dict() for name in self._unsharded}
            if self._is_rank_zero
            else {},
            sharded={name: item.state_dict() for name, item in self._sharded.items()},
            group=self._save_group,
        )

    def read(self, checkpoints: ScriptCheckpoints, checkpoint: ScriptCheckpoint) -> dict[str, Any]:
        """Return the checkpoint's unsharded states, by name.

        Raises:
            CheckpointError: the checkpoint holds other names, or this rank cannot read it.
        """
        try:
            states = checkpoints.load(checkpoint)
        except OSError as error:
            raise CheckpointError(
                f"{checkpoint.data}: a rank cannot read it ({error}): "
                "the directory must be on a file system that all nodes of the job share"
            ) from error
        held = sorted([*states, *checkpoint.sharded])
        tracked = sorted(self.objects)
        if held != tracked:
            raise CheckpointError(
                f"{checkpoint.data}: holds {held}, and ctx.track() was given {tracked}; "
                "track the same names, or use another checkpoint directory"
            )
        if set(checkpoint.sharded) != set(self._sharded):
            raise CheckpointError(
                f"{checkpoint.data}: holds {sorted(checkpoint.sharded)} sharded, and this script has "
                f"{sorted(self._sharded)} sharded; shard the same models, or use another checkpoint directory"
            )
        return states

    def restore(self, states: dict[str, Any], checkpoints: ScriptCheckpoints, checkpoint: ScriptCheckpoint) -> None:
        """Load every object's state; sharded states are read here, by all ranks together.

        Raises:
            CheckpointError: a state does not fit its object, or the shards cannot be read, or others could have
                written them.
        """
        if self._save_group is not None:
            checkpoints.require_trusted_shards(checkpoint)
            states = states | read_shards(checkpoint.shards, self._sharded, self._save_group)
        for name, item in {**self._stateful, **self._sharded}.items():
            try:
                item.load_state_dict(states[name])
            except Exception as error:  # noqa: PERF203  few iterations
                raise state_mismatch(checkpoint.data, name, error) from error


def _without_wrappers(item: Stateful) -> Stateful:
    """Return a module without DDP and torch.compile around it, in any order; anything else as it is."""
    while isinstance(item, torch.nn.Module):
        compiled = getattr(item, "_orig_mod", None)
        if isinstance(item, DistributedDataParallel):
            item = item.module
        elif isinstance(compiled, torch.nn.Module):
            item = compiled
        else:
            break
    return item


def _is_sharded(item: Stateful) -> bool:
    if isinstance(item, torch.optim.Optimizer):  # an optimizer may have no state yet
        return holds_dtensor([group["params"] for group in item.param_groups])
    return dtensors_exist() and holds_dtensor(item.state_dict())


def _refuse_older_fsdp(name: str, module: torch.nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a script that uses FSDP has imported it
    if fsdp is not None and any(isinstance(part, fsdp.FullyShardedDataParallel) for part in module.modules()):
        raise UsageError(
            f"ctx.track({name}=...): FullyShardedDataParallel is not supported: use fully_shard, as ctx.shard(...) does"
        )
