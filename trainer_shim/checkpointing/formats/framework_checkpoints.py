"""Which checkpoints of a framework are whole: files that somebody else writes, and a manifest that is written last.

Each generation has a folder of its own, `incarnation-3/`, in which it alone writes: so a trainer that Slurm believed
dead never touches what its successor saves. A checkpoint in it is a file or a directory; `step-120.json` beside it,
written when all of it is on disk, has the size and the checksum of every file. Without that it does not exist.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from trainer_shim.checkpointing.atomic_files import atomic_file, checksum_file, read_with_retries, sync_directory
from trainer_shim.checkpointing.checkpoint_pruning import retained
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from trainer_shim.checkpointing.atomic_files import FileChecksum

FORMAT = 1

_GENERATION_DIRECTORY = re.compile(r"incarnation-([0-9]+)")
_MANIFEST = re.compile(r"step-([0-9]+)\.json")

log = logging.getLogger("trainer_shim")


class FrameworkCheckpoint(NamedTuple):
    """A whole checkpoint. `step` counts optimizer steps; `metadata` is what the trainer wrote down with it."""

    path: Path
    generation: int
    step: int
    metadata: dict[str, Any]


class FrameworkCheckpoints:
    """The checkpoints under one directory. Only rank 0 writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unreadable: set[Path] = set()  # manifests that `latest` has passed over

    def generation_directory(self, generation: int) -> Path:
        """Where this generation, and nobody else, writes."""
        return self.root / f"incarnation-{generation}"

    def newest_generation(self) -> int:
        """The highest generation that has a folder, 0 when there is none."""
        return max((number for number, _ in self._generation_directories()), default=0)

    def latest(self) -> FrameworkCheckpoint | None:
        """Return the highest whole checkpoint by (generation, step), None when there is no checkpoint at all.

        Those above it that are not whole any more are passed over with a warning, and stay where they are.

        Raises:
            CheckpointError: there are checkpoints and none is whole, or one was written by a newer version.
        """
        manifests = self._manifests()
        for manifest in manifests:
            try:
                return read_with_retries(manifest, functools.partial(_read_whole, manifest))
            except (_DamagedError, OSError) as error:  # noqa: PERF203  a few turns
                log.warning("checkpoint %s is skipped: %s", manifest, error)
                self._unreadable.add(manifest)
        if manifests:
            raise CheckpointError(
                f"{self.root}: none of its {len(manifests)} checkpoints is whole; "
                "restore one, or move them away to start from the beginning"
            )
        return None

    def publish(
        self, path: Path, generation: int, step: int, metadata: dict[str, Any], check: Callable[[], None]
    ) -> int:
        """Bring a finished checkpoint to disk, say that it is whole, and return its size in bytes.

        Raises:
            SupersededError: `check` raised it; the checkpoint does not count.
            OSError: it is not there, or could not be brought to disk.
        """
        files = {name: _synced(file) for name, file in sorted(_files(path))}
        if not files:
            raise FileNotFoundError(f"{path}: the checkpoint has no files")
        for directory in {self.root, path.parent, *(file.parent for _, file in _files(path))}:
            sync_directory(directory)
        content = {"format": FORMAT, "path": path.name, "step": step, "files": files, "facts": metadata}
        manifest = self.generation_directory(generation) / f"step-{step}.json"
        with atomic_file(manifest, check) as file:
            file.write(json.dumps(content).encode())
        sync_directory(manifest.parent)
        return sum(size for size, _ in files.values())

    def remove_old(self, generation: int, protected: Collection[Path] = ()) -> None:
        """Remove what is neither kept nor `protected`, and what earlier generations left unfinished."""
        manifests = self._manifests()
        retained_manifests = retained(manifests, self._unreadable)
        for manifest in manifests[len(retained_manifests) :]:
            with contextlib.suppress(_DamagedError, OSError, ValueError):
                path = manifest.with_name(_read(manifest)["path"])
                if path in protected:
                    continue
                manifest.unlink()  # first: without it, what is left is not a checkpoint
                _remove(path)
        folders = {manifest.parent for manifest in retained_manifests} | {path.parent for path in protected}
        for number, folder in self._generation_directories():
            if number < generation and folder not in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _generation_directories(self) -> Iterator[tuple[int, Path]]:
        try:
            paths = list(self.root.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            match = _GENERATION_DIRECTORY.fullmatch(path.name)
            if match:
                yield int(match[1]), path

    def _manifests(self) -> list[Path]:
        """Newest first."""
        found = [
            (number, int(match[1]), path)
            for number, folder in self._generation_directories()
            for path in folder.glob("step-*.json")
            if (match := _MANIFEST.fullmatch(path.name))
        ]
        return [path for _, _, path in sorted(found, reverse=True)]


class _DamagedError(Exception):
    """A checkpoint is not whole; says how."""


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Every file of a checkpoint by its name relative to it; a file is its own only one, and its name is empty."""
    if not path.is_dir():
        yield "", path
        return
    for file in path.rglob("*"):
        if not file.is_dir():
            yield file.relative_to(path).as_posix(), file


def _synced(path: Path) -> FileChecksum:
    """Bring a file to disk, and sum it up."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return checksum_file(path)


def _read(manifest: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(manifest.read_bytes())
        version = content["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"its manifest cannot be read ({error!r})") from error
    if version != FORMAT:
        raise CheckpointError(f"{manifest}: format {version!r} was written by another version; this one reads {FORMAT}")
    return content


def _read_whole(manifest: Path) -> FrameworkCheckpoint:
    content = _read(manifest)
    path = manifest.with_name(content["path"])
    for name, expected in content["files"].items():
        file = path / name if name else path
        size = file.stat().st_size
        if size != expected[0]:
            raise _DamagedError(f"{name or path.name} has {size} bytes instead of {expected[0]}")
        if checksum_file(file) != tuple(expected):
            raise _DamagedError(f"{name or path.name} has another checksum than when it was written")
    generation = int(manifest.parent.name.partition("-")[2])
    return FrameworkCheckpoint(path, generation, content["step"], content["facts"])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
