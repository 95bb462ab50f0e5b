"""The checkpoints of a framework: files that the framework writes, and a manifest that the shim writes last.

Each generation has a directory of its own, `incarnation-3/`, in which it alone writes, so a trainer that Slurm believed
dead never changes its successor's checkpoints. A checkpoint in it is a file or a directory. Its manifest,
`step-120.json`, is written when all of the checkpoint is on disk, and has the size and the checksum of every file; a
checkpoint without a manifest does not exist.
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

from trainer_shim.checkpointing.atomic_files import (
    FileChecksum,
    atomic_file,
    checksum_file,
    read_with_retries,
    sync_directory,
)
from trainer_shim.checkpointing.checkpoint_pruning import retained
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

FORMAT = 1

_GENERATION_DIRECTORY = re.compile(r"incarnation-([0-9]+)")
_MANIFEST = re.compile(r"step-([0-9]+)\.json")

log = logging.getLogger("trainer_shim")


class FrameworkCheckpoint(NamedTuple):
    """A complete checkpoint.

    Attributes:
        path: the file or directory that the framework has written.
        generation: the generation that has written it.
        step: optimizer steps since the beginning of the job.
        metadata: the values that the companion has saved with it.
    """

    path: Path
    generation: int
    step: int
    metadata: dict[str, Any]


class FrameworkCheckpoints:
    """The framework's checkpoints below one directory. Only rank 0 writes manifests, and removes checkpoints."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unreadable: set[Path] = set()  # manifests that `latest` has skipped

    def generation_directory(self, generation: int) -> Path:
        """Return the directory in which this generation alone writes."""
        return self.root / f"incarnation-{generation}"

    def newest_generation(self) -> int:
        """Return the highest generation that has a directory, 0 without one."""
        return max((number for number, _ in self._generation_directories()), default=0)

    def latest(self) -> FrameworkCheckpoint | None:
        """Return the highest complete checkpoint by (generation, step), None without any checkpoint.

        Damaged checkpoints above it are skipped with a warning, and not changed.

        Raises:
            CheckpointError: no checkpoint is complete, or one was written by another version.
        """
        manifests = self._manifests()
        for manifest in manifests:
            try:
                return read_with_retries(manifest, functools.partial(_read_verified, manifest))
            except (_DamagedError, OSError) as error:  # noqa: PERF203  few iterations
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
        """Bring a complete checkpoint to disk, write its manifest, and return its size in bytes.

        Raises:
            SupersededError: `check` raised it; the checkpoint has no manifest.
            OSError: the checkpoint is missing, or cannot be brought to disk.
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
        """Remove checkpoints that are neither retained nor `protected`, and unfinished files of earlier generations."""
        manifests = self._manifests()
        retained_manifests = retained(manifests, self._unreadable)
        for manifest in manifests[len(retained_manifests) :]:
            with contextlib.suppress(_DamagedError, OSError, ValueError):
                path = manifest.with_name(_read(manifest)["path"])
                if path in protected:
                    continue
                manifest.unlink()  # first: files without a manifest are not a checkpoint
                _remove(path)
        used = {manifest.parent for manifest in retained_manifests} | {path.parent for path in protected}
        for number, directory in self._generation_directories():
            if number < generation and directory not in used:
                shutil.rmtree(directory, ignore_errors=True)

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
        """Return the manifests, the newest one first."""
        found = [
            (number, int(match[1]), path)
            for number, directory in self._generation_directories()
            for path in directory.glob("step-*.json")
            if (match := _MANIFEST.fullmatch(path.name))
        ]
        return [path for _, _, path in sorted(found, reverse=True)]


class _DamagedError(Exception):
    """A checkpoint is incomplete or damaged; the message says how."""


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Iterate over the files of a checkpoint, each with its relative name, empty where the checkpoint is a file."""
    if not path.is_dir():
        yield "", path
        return
    for file in path.rglob("*"):
        if not file.is_dir():
            yield file.relative_to(path).as_posix(), file


def _synced(path: Path) -> FileChecksum:
    """Bring a file to disk, and return its checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return checksum_file(path)


def _read(manifest: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(manifest.read_bytes())
        version = content["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _DamagedError(f"its manifest cannot be read ({error!r})") from error
    if version != FORMAT:
        raise CheckpointError(f"{manifest}: format {version!r} was written by another version; this one reads {FORMAT}")
    return content


def _read_verified(manifest: Path) -> FrameworkCheckpoint:
    content = _read(manifest)
    try:
        path = manifest.with_name(content["path"])
        files = {name: FileChecksum(*expected) for name, expected in content["files"].items()}
        generation = int(manifest.parent.name.partition("-")[2])
        found = FrameworkCheckpoint(path, generation, content["step"], content["facts"])
        for name, expected in files.items():
            _verify_file(path / name if name else path, name or path.name, expected)
    except (TypeError, KeyError, ValueError, AttributeError) as error:  # also of names that no file can have
        raise _DamagedError(f"its manifest makes no sense ({error!r})") from error
    return found


def _verify_file(file: Path, name: str, expected: FileChecksum) -> None:
    size = file.stat().st_size
    if size != expected.size:
        raise _DamagedError(f"{name} has {size} bytes instead of {expected.size}")
    if checksum_file(file) != expected:
        raise _DamagedError(f"{name} has another checksum than when it was written")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
