"""Sharded states, of which each rank has a part: all ranks write and read them with torch.distributed.checkpoint.

The planner of that package finds the parts again at any other world size, and plain torch reads its files.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.checkpointing.atomic_files import ChecksummedFile, FileChecksum, read_with_retries, synced_file
from trainer_shim.checkpointing.sharded_optimizer import ShardedOptimizer, empty_like_saved, saved_paths
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

    from trainer_shim.checkpointing.sharded_optimizer import StatePath
    from trainer_shim.process_groups.save_group import SaveGroup


def write_shards(directory: Path, states: dict[str, Any], group: SaveGroup) -> dict[str, FileChecksum]:
    """Write this rank's part of the states into an empty directory. Collective.

    Returns the checksums of the files of all ranks, by file name.

    Raises:
        OSError: a rank could not write its part; raised on all ranks.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  slow to import
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    # Without copies ahead, the writer touches no GPU: its thread would choose the first one.
    writer = FileSystemWriter(directory, sync_files=False, per_thread_copy_ahead=0)
    writer.fs = files = _checksumming_files()
    failure = None
    try:
        save(states, storage_writer=writer, process_group=group.process_group)
    except CheckpointException as error:
        failure = error
    outcomes = group.all_gather(files.outcome())
    for outcome in outcomes:
        if isinstance(outcome, OSError):
            raise outcome
    if failure is not None:
        raise RuntimeError(f"the sharded states cannot be written: {failure}") from failure
    return {name: found for sums in outcomes for name, found in sums.items()}


def _checksumming_files() -> Any:
    """Return the file system for torch's writer; its files are on disk when they are closed, and have checksums."""
    from torch.distributed.checkpoint.filesystem import FileSystem  # noqa: PLC0415  slow to import

    class Files(FileSystem):
        def __init__(self) -> None:
            self._checksums: dict[str, FileChecksum] = {}
            self._failure: OSError | None = None

        def outcome(self) -> dict[str, FileChecksum] | OSError:
            """Return the checksums of the written files by name, or the error of a write."""
            return self._failure or self._checksums

        @contextlib.contextmanager
        def create_stream(self, path: Path, mode: str) -> Iterator[ChecksummedFile]:  # type: ignore[override]
            assert mode == "wb"  # noqa: S101  a writer reads nothing
            try:
                with synced_file(path) as file:
                    yield file
            except OSError as error:
                self._failure = error
                raise
            self._checksums[path.name] = file.checksum

        def rename(self, path: Path, new_path: Path) -> None:  # type: ignore[override]
            path.rename(new_path)
            self._checksums[new_path.name] = self._checksums.pop(path.name)

        def mkdir(self, path: str | os.PathLike[str]) -> None:
            """Do nothing: rank 0 has made the directory, and a rank that does not see it must fail."""

    return Files()


def read_shards(directory: Path, objects: dict[str, Any], group: SaveGroup) -> dict[str, Any]:
    """Read the states of the objects, each rank its part, and return them by name. Collective.

    Raises:
        CheckpointError: the directory holds other tensors than the objects, or cannot be read; raised on all ranks.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  slow to import
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    reader = _retrying_reader(directory)
    try:
        metadata: Metadata = group.on_rank_zero(reader.read_metadata)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error}") from error
    templates = {
        name: item.empty_state(metadata, name) if isinstance(item, ShardedOptimizer) else item.state_dict()
        for name, item in objects.items()
    }
    values: dict[str, Any] = {}  # by the metadata's keys; `load` fills the tensors
    for name, template in templates.items():
        values.update(_read_plan(directory, template, name, metadata))
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        load(values, storage_reader=reader, planner=planner, process_group=group.process_group)
    except CheckpointException as error:
        raise CheckpointError(f"{directory}: cannot be read: {error}") from error
    loaded = {path: values[key] for name in objects for key, path in saved_paths(metadata, name)}
    return {name: _filled(template, (name,), loaded) for name, template in templates.items()}


def _retrying_reader(directory: Path) -> Any:
    """Return torch's reader with reads that are tried again, each time into the same tensors."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: PLC0415  slow to import

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return read_with_retries(directory, lambda: super(Reader, self).read_metadata(*args, **kwargs))

        def read_data(self, *args: Any, **kwargs: Any) -> Any:
            return read_with_retries(directory, lambda: super(Reader, self).read_data(*args, **kwargs))

    return Reader(directory)


def state_mismatch(path: Path, name: str, why: object) -> CheckpointError:
    """Return the error for a state that an object of the script cannot load."""
    return CheckpointError(
        f"{path}: the state of {name!r} does not fit this script's: {why}; "
        "build it as it was when the checkpoint was made, or use another checkpoint directory"
    )


def _read_plan(directory: Path, template: Any, name: str, metadata: Metadata) -> dict[str, Any]:
    """Return the values to read for a template, by the metadata's keys."""
    keys = {path: key for key, path in saved_paths(metadata, name)}
    found: dict[str, Any] = {}

    def collect(value: Any, path: StatePath) -> None:
        key, label = keys.get(path), ".".join(map(str, path[1:]))
        if key is not None:
            saved = metadata.state_dict_metadata[key]
            size, own = getattr(saved, "size", None), getattr(value, "shape", None)
            if own is not None and size != own:
                there = "is no tensor" if size is None else f"has the shape {tuple(size)}"
                raise state_mismatch(directory, name, f"{label} {there} there, and the shape {tuple(own)} here")
            found[key] = empty_like_saved(saved, None) if own is None else value
        elif isinstance(value, dict):
            for inner, item in value.items():
                collect(item, (*path, str(inner)))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                collect(item, (*path, number))
        elif isinstance(value, torch.Tensor):
            raise state_mismatch(directory, name, f"{label} is not there")

    collect(template, (name,))
    more = sorted(set(keys.values()) - found.keys())
    if more:
        raise state_mismatch(
            directory, name, f"{', '.join(more[:3])}{', ...' if more[3:] else ''} is there, and not here"
        )
    return found


def _filled(template: Any, path: StatePath, loaded: dict[StatePath, Any]) -> Any:
    """Return a copy of the template with the loaded values."""
    if path in loaded:
        return loaded[path]
    if isinstance(template, dict):
        same = copy.copy(template)  # with a module state's `_metadata`
        for key, item in template.items():
            same[key] = _filled(item, (*path, str(key)), loaded)
        return same
    if isinstance(template, list):
        return [_filled(item, (*path, number), loaded) for number, item in enumerate(template)]
    return template
