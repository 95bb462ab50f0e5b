"""Exports of trained models, which other programs read without the shim.

An export is a directory. `dcp/` is a checkpoint of torch.distributed.checkpoint with the states of all tracked
modules by name. Besides, each module has a directory for `from_pretrained` where it has a `save_pretrained` (Hugging
Face), else `NAME.pt` for torch.load and, where the package safetensors is installed, `NAME.safetensors`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.checkpointing.dtensor import dtensors_exist, holds_dtensor
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer_shim.process_groups.rank_group import RankGroup

_MARK = "export.json"  # a directory with this file may be replaced


def export_modules(directory: Path, modules: Mapping[str, torch.nn.Module], group: RankGroup, step: int) -> None:
    """Export the modules into a directory, which is complete or as before; an earlier export is replaced. Collective.

    Args:
        directory: the directory, on a file system that all ranks share.
        modules: the modules by name, without DDP around them.
        group: the processes of the training.
        step: the optimizer steps so far, for `export.json`.

    Raises:
        CheckpointError: the directory has other files, or cannot be written; raised on all ranks.
    """
    partial = directory.with_name(directory.name + ".partial")
    plain = {name: getattr(module, "_orig_mod", module) for name, module in modules.items()}  # torch.compile's wrapper
    _agree(group, lambda: _prepare(directory, partial), directory)
    _write_dcp(partial / "dcp", plain, directory)
    whole = {name: _whole_state(module) for name, module in plain.items()}

    def write() -> None:
        for name, module in plain.items():
            _write_module(partial, name, module, whole[name])
        (partial / _MARK).write_text(json.dumps({"step": step, "modules": sorted(plain)}) + "\n", encoding="utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        partial.rename(directory)

    _agree(group, write, directory)


def _agree(group: RankGroup, action: Any, directory: Path) -> None:
    """Run `action` on rank 0; its error is an error of all ranks. Collective."""

    def outcome() -> str | None:
        try:
            action()
        except (OSError, CheckpointError) as error:
            return str(error)
        return None

    failure = group.on_rank_zero(outcome)
    if failure is not None:
        raise CheckpointError(f"{directory}: the export cannot be written: {failure}")


def _prepare(directory: Path, partial: Path) -> None:
    if directory.exists() and not (directory / _MARK).is_file():
        raise CheckpointError("there is something else: name a directory that does not exist, or an earlier export")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _write_dcp(directory: Path, modules: Mapping[str, torch.nn.Module], named: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  slow to import
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    states = {name: module.state_dict() for name, module in modules.items()}
    try:
        save(states, storage_writer=FileSystemWriter(directory, per_thread_copy_ahead=0))
    except CheckpointException as error:
        raise CheckpointError(f"{named}: the export cannot be written: {error}") from error


def _whole_state(module: torch.nn.Module) -> dict[str, Any]:
    """Return the module's state in CPU memory, on all ranks or on rank 0 alone. Collective where it is sharded."""
    state = module.state_dict()
    if dtensors_exist() and holds_dtensor(state):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # noqa: PLC0415

        return get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return state


def _write_module(directory: Path, name: str, module: torch.nn.Module, state: dict[str, Any]) -> None:
    save_pretrained: Any = getattr(module, "save_pretrained", None)  # Hugging Face's models
    if save_pretrained is not None:
        save_pretrained(directory / name, state_dict=state)
        return
    tensors = {key: value.detach().cpu() for key, value in state.items() if isinstance(value, torch.Tensor)}
    torch.save({**state, **tensors}, directory / f"{name}.pt")
    if importlib.util.find_spec("safetensors") is not None and len(tensors) == len(state):
        save_file = importlib.import_module("safetensors.torch").save_file  # the shim needs torch alone
        save_file(
            {key: value.clone().contiguous() for key, value in tensors.items()}, directory / f"{name}.safetensors"
        )
