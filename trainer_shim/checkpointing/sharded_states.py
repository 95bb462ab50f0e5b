"""States of which each rank has a part: written and read by all ranks together with torch.distributed.checkpoint.

Its planner finds the parts again at any other world size, and plain torch reads what it writes.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.checkpointing.atomic_files import FileSum, SummedFile, patiently, written
from trainer_shim.checkpointing.sharded_optimizer import ShardedOptimizer, empty_like_saved, ways_of
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

    from trainer_shim.checkpointing.sharded_optimizer import Way
    from trainer_shim.process_groups.save_group import Team


def write_shards(directory: Path, states: dict[str, Any], team: Team) -> dict[str, FileSum]:
    """Write this rank's part of the states into an empty directory; collective.

    Returns what all ranks have written, by file name.

    Raises:
        OSError: a rank could not; on all ranks.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  slow to import
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    # Without copies ahead, the writer touches no GPU: its thread would choose the first one.
    writer = FileSystemWriter(directory, sync_files=False, per_thread_copy_ahead=0)
    writer.fs = files = _summing_files()
    failure = None
    try:
        save(states, storage_writer=writer, process_group=team.group)
    except CheckpointException as error:
        failure = error
    outcomes = team.everyones(files.outcome())
    for outcome in outcomes:
        if isinstance(outcome, OSError):
            raise outcome
    if failure is not None:
        raise RuntimeError(f"the sharded states cannot be written: {failure}") from failure
    return {name: found for sums in outcomes for name, found in sums.items()}


def _summing_files() -> Any:
    """What torch's writer goes through to reach its files: they are on disk when they are closed, and are summed."""
    from torch.distributed.checkpoint.filesystem import FileSystem  # noqa: PLC0415  slow to import

    class Files(FileSystem):
        def __init__(self) -> None:
            self._sums: dict[str, FileSum] = {}
            self._failure: OSError | None = None

        def outcome(self) -> dict[str, FileSum] | OSError:
            """What was written by name, or why it was not."""
            return self._failure or self._sums

        @contextlib.contextmanager
        def create_stream(self, path: Path, mode: str) -> Iterator[SummedFile]:  # type: ignore[override]
            assert mode == "wb"  # noqa: S101  a writer reads nothing
            try:
                with written(path) as file:
                    yield file
            except OSError as error:
                self._failure = error
                raise
            self._sums[path.name] = file.sum

        def rename(self, path: Path, new_path: Path) -> None:  # type: ignore[override]
            path.rename(new_path)
            self._sums[new_path.name] = self._sums.pop(path.name)

        def mkdir(self, path: str | os.PathLike[str]) -> None:
            """Do nothing: rank 0 has made it, and who does not see it must notice."""

    return Files()


def read_shards(directory: Path, objects: dict[str, Any], team: Team) -> dict[str, Any]:
    """Read the states of the objects, each rank its part; collective.

    Raises:
        CheckpointError: the directory holds other tensors than the objects have, or cannot be read; on all ranks.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  slow to import
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    reader = _patient_reader(directory)
    try:
        metadata: Metadata = team.from_first(reader.read_metadata)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error}") from error
    frames = {
        name: item.frame(metadata, name) if isinstance(item, ShardedOptimizer) else item.state_dict()
        for name, item in objects.items()
    }
    values: dict[str, Any] = {}  # by the metadata's keys; tensors are read into
    for name, frame in frames.items():
        values.update(_wanted(directory, frame, name, metadata))
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        load(values, storage_reader=reader, planner=planner, process_group=team.group)
    except CheckpointException as error:
        raise CheckpointError(f"{directory}: cannot be read: {error}") from error
    loaded = {way: values[key] for name in objects for key, way in ways_of(metadata, name)}
    return {name: _filled(frame, (name,), loaded) for name, frame in frames.items()}


def _patient_reader(directory: Path) -> Any:
    """Torch's reader, which tries again where a read fails; the tensors are then read into once more."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: PLC0415  slow to import

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return patiently(directory, lambda: super(Reader, self).read_metadata(*args, **kwargs))

        def read_data(self, *args: Any, **kwargs: Any) -> Any:
            return patiently(directory, lambda: super(Reader, self).read_data(*args, **kwargs))

    return Reader(directory)


def misfit(path: Path, name: str, why: object) -> CheckpointError:
    """The error for a state that an object of the script cannot take."""
    return CheckpointError(
        f"{path}: the state of {name!r} does not fit this script's: {why}; "
        "build it as it was when the checkpoint was made, or use another checkpoint directory"
    )


def _wanted(directory: Path, frame: Any, name: str, metadata: Metadata) -> dict[str, Any]:
    """What to read for a frame, by the metadata's keys."""
    keys = {way: key for key, way in ways_of(metadata, name)}
    found: dict[str, Any] = {}

    def collect(value: Any, way: Way) -> None:
        key, label = keys.get(way), ".".join(map(str, way[1:]))
        if key is not None:
            saved = metadata.state_dict_metadata[key]
            size, own = getattr(saved, "size", None), getattr(value, "shape", None)
            if own is not None and size != own:
                there = "is no tensor" if size is None else f"has the shape {tuple(size)}"
                raise misfit(directory, name, f"{label} {there} there, and the shape {tuple(own)} here")
            found[key] = empty_like_saved(saved, None) if own is None else value
        elif isinstance(value, dict):
            for inner, item in value.items():
                collect(item, (*way, str(inner)))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                collect(item, (*way, number))
        elif isinstance(value, torch.Tensor):
            raise misfit(directory, name, f"{label} is not there")

    collect(frame, (name,))
    more = sorted(set(keys.values()) - found.keys())
    if more:
        raise misfit(directory, name, f"{', '.join(more[:3])}{', ...' if more[3:] else ''} is there, and not here")
    return found


def _filled(frame: Any, way: Way, loaded: dict[Way, Any]) -> Any:
    """The frame with what was loaded in its places."""
    if way in loaded:
        return loaded[way]
    if isinstance(frame, dict):
        same = copy.copy(frame)  # with a module state's `_metadata`
        for key, item in frame.items():
            same[key] = _filled(item, (*way, str(key)), loaded)
        return same
    if isinstance(frame, list):
        return [_filled(item, (*way, number), loaded) for number, item in enumerate(frame)]
    return frame
