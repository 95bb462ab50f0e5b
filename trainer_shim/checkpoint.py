"""Checkpoints on disk: atomic, checksummed, the last good ones kept.

A checkpoint is a data file, `incarnation-3-step-120.pt`, which plain torch.load reads, and a manifest of the same
name with `.json`, written last: a checkpoint without a manifest does not exist. The manifest has the size and the
checksum of the data, and the position in the training. A second one of the same step, whose position is a later one
(the next epoch's beginning, the end), is called `incarnation-3-step-120-2`: it never touches the first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, NamedTuple, cast

import torch

from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1
KEPT = 2

_NAME = re.compile(r"incarnation-([0-9]+)-step-([0-9]+)(?:-([0-9]+))?\.(json|pt)(\.partial)?")
_PATIENCE = (0.5, 1.0, 2.0)  # seconds before each further attempt to read, because shared file systems have hiccups
_CHUNK = 1 << 22

log = logging.getLogger("trainer_shim")


class Progress(NamedTuple):
    """A position in the training, always at the end of a step.

    `cursor` counts the samples of `epoch` that have been trained on; `step` and `samples` count from the job's
    beginning.
    """

    epoch: int = 0
    cursor: int = 0
    step: int = 0
    samples: int = 0
    finished: bool = False


class Checkpoint(NamedTuple):
    """A manifest. `order` is what fixes the order of the samples, as the data side describes it."""

    data: Path
    incarnation: int
    size: int
    crc32: int
    progress: Progress
    order: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one directory. Only rank 0 writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def newest_incarnation(self) -> int:
        """The highest incarnation that has left a file, 0 when there is none."""
        return max((rank[0] for rank, _ in self._files()), default=0)

    def latest(self) -> Checkpoint | None:
        """Return the highest whole checkpoint by (incarnation, step), None when there is no checkpoint at all.

        Damaged ones above it are set aside as `*.json.damaged`, with a warning. One that cannot be read, at several
        attempts, is passed over with a warning, and stays where it is.

        Raises:
            CheckpointError: there are checkpoints and none is whole, or one was written by a newer version.
        """
        damaged: list[Path] = []
        manifests = self._manifests()
        for manifest in manifests:
            try:
                checkpoint = _read_whole(manifest)
            except (_DamagedError, OSError) as error:
                log.warning("checkpoint %s is skipped: %s", manifest, error)
                if isinstance(error, _DamagedError):
                    damaged.append(manifest)
                continue
            for skipped in damaged:
                skipped.replace(f"{skipped}.damaged")
            return checkpoint
        if manifests:
            raise CheckpointError(
                f"{self.directory}: none of its {len(manifests)} checkpoints is whole; "
                "restore one, or move them away to start from the beginning"
            )
        return None

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The states by name, as they were given to `save`, on the CPU."""
        # weights_only would refuse what a scheduler or a user's own object may keep; the directory is the user's own.
        states: dict[str, Any] = torch.load(checkpoint.data, map_location="cpu", weights_only=False)
        return states

    def save(
        self,
        states: dict[str, Any],
        incarnation: int,
        progress: Progress,
        order: dict[str, Any],
        check: Callable[[], None],
    ) -> int:
        """Write a checkpoint, remove the oldest ones beyond KEPT, and return its size in bytes.

        Raises:
            SupersededError: `check` raised it just before a file would have taken its name; nothing was changed.
            OSError: it could not be written; the older checkpoints are untouched.
        """
        stem = self.directory / f"incarnation-{incarnation}-step-{progress.step}"
        before = [rank[2] for rank, path in self._files() if rank[:2] == (incarnation, progress.step) and _whole(path)]
        if before:
            stem = stem.with_name(f"{stem.name}-{max(before) + 1}")
        data, manifest = stem.with_suffix(".pt"), stem.with_suffix(".json")
        with _replacing(data, check) as file:
            summed = _SummedFile(file)
            try:
                torch.save(states, cast("BinaryIO", summed))
            except RuntimeError as error:  # torch stumbles once more over what the file has raised
                raise summed.failure or error from error
        content = {
            "format": FORMAT,
            "bytes": summed.size,
            "crc32": summed.crc32,
            "progress": progress._asdict(),
            "order": order,
        }
        with _replacing(manifest, check) as file:
            file.write(json.dumps(content).encode())
        _sync_directory(self.directory)
        self._remove_old(incarnation)
        return summed.size

    def _files(self) -> Iterator[tuple[tuple[int, int, int], Path]]:
        """Every file of a checkpoint, with what orders them: incarnation, step, number in the step from 1."""
        try:
            paths = list(self.directory.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            match = _NAME.fullmatch(path.name)
            if match:
                yield (int(match[1]), int(match[2]), int(match[3] or 1)), path

    def _manifests(self) -> list[Path]:
        """Newest first."""
        return [path for _, path in sorted(self._files(), reverse=True) if _whole(path)]

    def _remove_old(self, incarnation: int) -> None:
        """Remove all but the newest KEPT, and what earlier incarnations left unfinished."""
        manifests = self._manifests()
        for manifest in manifests[KEPT:]:
            manifest.unlink(missing_ok=True)  # first: data without a manifest is not a checkpoint
        kept = {manifest.stem for manifest in manifests[:KEPT]}
        for (owner, _, _), path in self._files():
            stem = path.name.partition(".")[0]
            if owner <= incarnation and stem not in kept:
                path.unlink(missing_ok=True)


def _whole(path: Path) -> bool:
    """Whether the file says that a checkpoint exists."""
    return path.suffix == ".json"


class _DamagedError(Exception):
    """A checkpoint is not whole; says how."""


class _SummedFile:
    """A binary file for torch.save that adds up size and CRC-32 of what passes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.crc32 = 0
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextlib.contextmanager
def _replacing(path: Path, check: Callable[[], None]) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` in one instant when it is whole and on disk, or leaves no trace."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check()
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_whole(manifest: Path) -> Checkpoint:
    """Read the manifest and verify the data, with patience for a file system that fails for a moment."""
    pauses = iter(_PATIENCE)
    while True:
        try:
            checkpoint = _read_manifest(manifest)
            _verify(checkpoint)
        except OSError as error:  # noqa: PERF203  a few turns
            pause = next(pauses, None)
            if pause is None or isinstance(error, FileNotFoundError):
                raise
            log.warning("checkpoint %s cannot be read, trying again in %.1f s: %s", manifest, pause, error)
            time.sleep(pause)
        else:
            return checkpoint


def _read_manifest(manifest: Path) -> Checkpoint:
    try:
        content = json.loads(manifest.read_bytes())
        version = content["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"its manifest cannot be read ({error!r})") from error
    if version != FORMAT:
        raise CheckpointError(f"{manifest}: format {version!r} was written by another version; this one reads {FORMAT}")
    try:
        return Checkpoint(
            data=manifest.with_suffix(".pt"),
            incarnation=int(manifest.name.split("-")[1]),
            size=content["bytes"],
            crc32=content["crc32"],
            progress=Progress(**content["progress"]),
            order=content["order"],
        )
    except (TypeError, KeyError) as error:
        raise _DamagedError(f"its manifest lacks {error}") from error


def _verify(checkpoint: Checkpoint) -> None:
    try:
        size = checkpoint.data.stat().st_size
    except FileNotFoundError:
        raise _DamagedError("its data is missing") from None
    if size != checkpoint.size:
        raise _DamagedError(f"its data has {size} bytes instead of {checkpoint.size}")
    crc32 = 0
    with checkpoint.data.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            crc32 = zlib.crc32(chunk, crc32)
    if crc32 != checkpoint.crc32:
        raise _DamagedError(f"its data has the checksum {crc32:08x} instead of {checkpoint.crc32:08x}")
