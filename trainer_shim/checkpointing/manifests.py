"""Which checkpoints of a framework are whole: files that somebody else writes, and a manifest that is written last.

Each incarnation has a folder of its own, `incarnation-3/`, in which it alone writes: so a trainer that Slurm believed
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

from trainer_shim.checkpointing.atomic_files import patiently, read_sum, replacing, sync_directory
from trainer_shim.checkpointing.retention import kept
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from trainer_shim.checkpointing.atomic_files import FileSum

FORMAT = 1

_FOLDER = re.compile(r"incarnation-([0-9]+)")
_MANIFEST = re.compile(r"step-([0-9]+)\.json")

log = logging.getLogger("trainer_shim")


class Entry(NamedTuple):
    """A whole checkpoint. `step` counts optimizer steps; `facts` is what the trainer wrote down with it."""

    path: Path
    incarnation: int
    step: int
    facts: dict[str, Any]


class Ledger:
    """The checkpoints under one directory. Only rank 0 writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unread: set[Path] = set()  # manifests that `latest` has passed over

    def folder(self, incarnation: int) -> Path:
        """Where this incarnation, and nobody else, writes."""
        return self.root / f"incarnation-{incarnation}"

    def newest_incarnation(self) -> int:
        """The highest incarnation that has a folder, 0 when there is none."""
        return max((number for number, _ in self._folders()), default=0)

    def latest(self) -> Entry | None:
        """Return the highest whole checkpoint by (incarnation, step), None when there is no checkpoint at all.

        Those above it that are not whole any more are passed over with a warning, and stay where they are.

        Raises:
            CheckpointError: there are checkpoints and none is whole, or one was written by a newer version.
        """
        manifests = self._manifests()
        for manifest in manifests:
            try:
                return patiently(manifest, functools.partial(_read_whole, manifest))
            except (_DamagedError, OSError) as error:  # noqa: PERF203  a few turns
                log.warning("checkpoint %s is skipped: %s", manifest, error)
                self._unread.add(manifest)
        if manifests:
            raise CheckpointError(
                f"{self.root}: none of its {len(manifests)} checkpoints is whole; "
                "restore one, or move them away to start from the beginning"
            )
        return None

    def enter(self, path: Path, incarnation: int, step: int, facts: dict[str, Any], check: Callable[[], None]) -> int:
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
        content = {"format": FORMAT, "path": path.name, "step": step, "files": files, "facts": facts}
        manifest = self.folder(incarnation) / f"step-{step}.json"
        with replacing(manifest, check) as file:
            file.write(json.dumps(content).encode())
        sync_directory(manifest.parent)
        return sum(size for size, _ in files.values())

    def tidy(self, incarnation: int, spared: Collection[Path] = ()) -> None:
        """Remove what is neither kept nor `spared`, and what earlier incarnations left unfinished."""
        manifests = self._manifests()
        stay = kept(manifests, self._unread)
        for manifest in manifests[len(stay) :]:
            with contextlib.suppress(_DamagedError, OSError, ValueError):
                path = manifest.with_name(_read(manifest)["path"])
                if path in spared:
                    continue
                manifest.unlink()  # first: without it, what is left is not a checkpoint
                _remove(path)
        folders = {manifest.parent for manifest in stay} | {path.parent for path in spared}
        for number, folder in self._folders():
            if number < incarnation and folder not in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> Iterator[tuple[int, Path]]:
        try:
            paths = list(self.root.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            match = _FOLDER.fullmatch(path.name)
            if match:
                yield int(match[1]), path

    def _manifests(self) -> list[Path]:
        """Newest first."""
        found = [
            (number, int(match[1]), path)
            for number, folder in self._folders()
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


def _synced(path: Path) -> FileSum:
    """Bring a file to disk, and sum it up."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return read_sum(path)


def _read(manifest: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(manifest.read_bytes())
        version = content["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"its manifest cannot be read ({error!r})") from error
    if version != FORMAT:
        raise CheckpointError(f"{manifest}: format {version!r} was written by another version; this one reads {FORMAT}")
    return content


def _read_whole(manifest: Path) -> Entry:
    content = _read(manifest)
    path = manifest.with_name(content["path"])
    for name, expected in content["files"].items():
        file = path / name if name else path
        size = file.stat().st_size
        if size != expected[0]:
            raise _DamagedError(f"{name or path.name} has {size} bytes instead of {expected[0]}")
        if read_sum(file) != tuple(expected):
            raise _DamagedError(f"{name or path.name} has another checksum than when it was written")
    incarnation = int(manifest.parent.name.partition("-")[2])
    return Entry(path, incarnation, content["step"], content["facts"])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
