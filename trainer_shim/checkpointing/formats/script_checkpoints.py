"""The checkpoints of a script: atomic, with checksums, the newest two retained.

A checkpoint is a data file, `incarnation-3-step-120.pt`, which plain torch.load reads; where states are sharded, also a
directory `incarnation-3-step-120.dcp` of torch.distributed.checkpoint; and a manifest, `incarnation-3-step-120.json`,
which is written last: a checkpoint without a manifest does not exist. The manifest has the size and the checksum of
every other file, and the position in the training. A second checkpoint of the same step at a later position (the next
epoch's beginning, the end) is called `incarnation-3-step-120-2`, and does not change the first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, cast

import torch

from trainer_shim.adaptive_batch.adaptive_progress import AdaptiveProgress
from trainer_shim.checkpointing.atomic_files import (
    FileChecksum,
    atomic_file,
    checksum_file,
    read_with_retries,
    sync_directory,
)
from trainer_shim.checkpointing.batch_record import BatchRecord
from trainer_shim.checkpointing.checkpoint_pruning import retained
from trainer_shim.checkpointing.formats.sharded_states import write_shards
from trainer_shim.checkpointing.trusted_load import (
    CONSENT,
    load_states,
    require_trusted,
    unsafe_classes,
    why_untrusted,
)
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from trainer_shim.process_groups.save_group import SaveGroup

FORMAT = 2  # format 1 has no shards

_NAME = re.compile(r"incarnation-([0-9]+)-step-([0-9]+)(?:-([0-9]+))?\.(json|pt|dcp)(\.partial)?")
_READERS = 8  # files that are verified in parallel

log = logging.getLogger("trainer_shim")


class Progress(NamedTuple):
    """A position in the training, always at the end of a step.

    Attributes:
        epoch: the present epoch, from 0.
        cursor: the samples of the epoch that have been trained on.
        step: optimizer steps since the beginning of the job.
        samples: samples since the beginning of the job.
        finished: whether the script has ended the training before its last epoch.
        adaptive: the rest of the position of a training whose batch adapts, None where the batch is fixed.
    """

    epoch: int = 0
    cursor: int = 0
    step: int = 0
    samples: int = 0
    finished: bool = False
    adaptive: AdaptiveProgress | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position as manifests hold it; that of a fixed batch is as in earlier versions."""
        found = self._asdict()
        del found["adaptive"]
        return found if self.adaptive is None else {**found, "adaptive": self.adaptive.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Progress:
        """Return the position that `to_json` has described.

        Raises:
            TypeError: a key is missing or unknown.
        """
        adaptive = content.get("adaptive")
        return cls(**{**content, "adaptive": None if adaptive is None else AdaptiveProgress.from_json(adaptive)})


class States(NamedTuple):
    """States to save, by name.

    Attributes:
        unsharded: the states that rank 0 saves; empty on the other ranks.
        sharded: this rank's part of the states that all ranks save.
        group: the ranks that save the sharded states, None where there are none.
    """

    unsharded: dict[str, Any]
    sharded: dict[str, Any] = {}  # noqa: RUF012  never changed
    group: SaveGroup | None = None


class ScriptCheckpoint(NamedTuple):
    """A checkpoint, as its manifest describes it.

    Attributes:
        data: the path of the data file.
        generation: the generation that has written the checkpoint.
        files: the checksums of the other files, by name within the checkpoint directory.
        sharded: the names of the states in the directory `shards`, empty without such a directory.
        progress: the position in the training.
        order: the description of the order of the samples, in which the position counts.
        batch: the global batch, None in a checkpoint of an earlier version.
        samples: the fingerprints of some samples by their indices, empty where there are none.
    """

    data: Path
    generation: int
    files: dict[str, FileChecksum]
    sharded: list[str]
    progress: Progress
    order: dict[str, Any]
    batch: BatchRecord | None = None
    samples: dict[int, list[float]] = {}  # noqa: RUF012  never changed

    @property
    def shards(self) -> Path:
        """The directory of the sharded states, which all ranks have written."""
        return self.data.with_suffix(".dcp")


class ScriptCheckpoints:
    """The checkpoints of one directory. Only rank 0 writes, except for shards.

    Args:
        directory: the checkpoint directory.
        trusted: whether the script consents to load states of any class, whoever could have written them.

    Attributes:
        batch: the global batch that new manifests have, None before it is known.
        samples: the fingerprints of some samples that new manifests have, by the samples' indices.
    """

    def __init__(self, directory: Path, *, trusted: bool = False) -> None:
        self.directory = directory
        self.batch: BatchRecord | None = None
        self.samples: dict[int, list[float]] = {}
        self._trusted = trusted
        self._inspected = False  # whether the classes in this trainer's checkpoints are known
        self._unreadable: set[Path] = set()  # manifests that `latest` has skipped

    def newest_generation(self) -> int:
        """Return the highest generation that has left a file, 0 without one."""
        return max((rank[0] for rank, _ in self._files()), default=0)

    def latest(self) -> ScriptCheckpoint | None:
        """Return the highest complete checkpoint by (generation, step), None without any checkpoint.

        Damaged checkpoints above it are renamed to `*.json.damaged`, with a warning. A checkpoint that cannot be read
        at several attempts is skipped with a warning, and not renamed.

        Raises:
            CheckpointError: no checkpoint is complete, the newest one was written by another version, or the directory
                holds checkpoints of a framework.
        """
        damaged: list[Path] = []
        manifests = self._manifests()
        for manifest in manifests:
            try:
                checkpoint = _read_verified(manifest)
            except (_DamagedError, OSError) as error:
                log.warning("checkpoint %s is skipped: %s", manifest, error)
                if isinstance(error, _DamagedError):
                    damaged.append(manifest)
                else:
                    self._unreadable.add(manifest)
                continue
            for skipped in damaged:
                skipped.replace(f"{skipped}.damaged")
            return checkpoint
        if manifests:
            raise CheckpointError(
                f"{self.directory}: none of its {len(manifests)} checkpoints is whole; "
                "restore one, or move them away to start from the beginning"
            )
        if next(self.directory.glob("incarnation-*/step-*.json"), None) is not None:
            raise CheckpointError(
                f"{self.directory}: holds checkpoints of a framework (trainer_shim.attach); use another directory"
            )
        return None

    def load(self, checkpoint: ScriptCheckpoint) -> dict[str, Any]:
        """Return the unsharded states by name, as they were given to `save`, on the CPU.

        Raises:
            CheckpointError: a state is of a class that is not safe to load, and other users could have written it.
            OSError: the data file cannot be read.
        """
        states: dict[str, Any] = read_with_retries(
            checkpoint.data, lambda: load_states(checkpoint.data, trusted=self._trusted)
        )
        return states

    def require_trusted_shards(self, checkpoint: ScriptCheckpoint | None) -> None:
        """Check that sharded states can be loaded: torch reads their description as a pickle of any class.

        Args:
            checkpoint: the one to load; None before the first, when the directory is checked.

        Raises:
            CheckpointError: other users can have written them, and the script does not consent.
        """
        if self._trusted or not self.directory.exists():  # no directory: a profiling run, which loads and saves nothing
            return
        shards = () if checkpoint is None else (checkpoint.shards, *checkpoint.shards.iterdir())
        for path in (self.directory, *shards):
            require_trusted(path, "torch reads sharded states by pickles of any class")

    def save(
        self,
        states: States,
        generation: int,
        progress: Progress,
        order: dict[str, Any],
        check: Callable[[], None],
    ) -> int:
        """Write a checkpoint, remove checkpoints that are not retained, and return the new one's size in bytes.

        With sharded states the call is collective, and `check` is called on rank 0.

        Raises:
            SupersededError: `check` raised it, at the beginning or just before a file was renamed; nothing was changed.
            OSError: the checkpoint cannot be written; the older checkpoints are unchanged.
        """
        position: dict[str, Any] = {
            "progress": progress.to_json(),
            "order": order,
            "sharded": sorted(states.sharded),
        }
        if self.batch is not None:
            position["batch"] = self.batch._asdict()
        if self.samples:
            position["samples"] = {str(index): found for index, found in self.samples.items()}
        if states.group is not None:
            return self._save_sharded(states, states.group, generation, position, check)
        check()
        return self._publish(self._stem(generation, progress.step), states.unsharded, {}, position, check)

    def _save_sharded(
        self,
        states: States,
        group: SaveGroup,
        generation: int,
        position: dict[str, Any],
        check: Callable[[], None],
    ) -> int:
        """Make a directory, write into it on every rank, and publish the checkpoint."""

        def create_directory() -> Path:
            check()
            stem = self._stem(generation, position["progress"]["step"])
            _remove_shards(stem)  # left by a save that failed
            _shards(stem, partial=True).mkdir()
            return stem

        def publish() -> int:
            directory, partial = _shards(stem), _shards(stem, partial=True)
            for name in files:
                if not (partial / name).exists():
                    raise FileNotFoundError(
                        f"{partial / name}: another rank has written it, and rank 0 does not find it: "
                        "the directory must be on a file system that all nodes of the job share"
                    )
            sync_directory(partial)
            check()
            partial.replace(directory)
            return self._publish(stem, states.unsharded, files, position, check)

        stem = group.on_rank_zero(create_directory)
        try:
            files = write_shards(_shards(stem, partial=True), states.sharded, group)
            return group.on_rank_zero(publish)
        except BaseException:
            if group.is_rank_zero and not stem.with_suffix(".json").exists():
                _remove_shards(stem)
            raise

    def _stem(self, generation: int, step: int) -> Path:
        """Return the path of a new checkpoint without its suffix."""
        stem = self.directory / f"incarnation-{generation}-step-{step}"
        before = [rank[2] for rank, path in self._files() if rank[:2] == (generation, step) and _is_manifest(path)]
        return stem.with_name(f"{stem.name}-{max(before) + 1}") if before else stem

    def _publish(
        self,
        stem: Path,
        states: dict[str, Any],
        written: dict[str, FileChecksum],
        position: dict[str, Any],
        check: Callable[[], None],
    ) -> int:
        """Write the data file, then the manifest of it and of the files that were `written` before."""
        data, manifest = stem.with_suffix(".pt"), stem.with_suffix(".json")
        with atomic_file(data, check) as file, _without_torch_checksum():
            torch.save(states, cast("BinaryIO", file))
        checksum = file.checksum
        content = {"format": FORMAT, **_checksum_to_json(checksum), **position}
        content["shards"] = {name: _checksum_to_json(found) for name, found in written.items()}
        content["own_crc32"] = _manifest_checksum(content)
        with atomic_file(manifest, check) as file:
            file.write(json.dumps(content).encode())
        sync_directory(self.directory)
        self._warn_of_refusal(data)
        self._remove_old(int(stem.name.split("-")[1]))
        return checksum.size + sum(found.size for found in written.values())

    def _warn_of_refusal(self, data: Path) -> None:
        """Warn, once, if a checkpoint just written is one that `load` refuses."""
        if self._trusted or self._inspected:
            return
        self._inspected = True
        why = why_untrusted(data)
        if why is not None and (classes := unsafe_classes(data)):
            log.warning(
                "%s: a restart will not load this checkpoint, because %s and it holds %s: pass %s, take write access "
                "from others, or give the classes to torch.serialization.add_safe_globals",
                data, why, ", ".join(classes), CONSENT,
            )  # fmt: skip

    def _files(self) -> Iterator[tuple[tuple[int, int, int], Path]]:
        """Iterate over the files of all checkpoints, each with its (generation, step, number in the step from 1)."""
        try:
            paths = list(self.directory.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            match = _NAME.fullmatch(path.name)
            if match:
                yield (int(match[1]), int(match[2]), int(match[3] or 1)), path

    def _manifests(self) -> list[Path]:
        """Return the manifests, the newest one first."""
        return [path for _, path in sorted(self._files(), reverse=True) if _is_manifest(path)]

    def _remove_old(self, generation: int) -> None:
        """Remove checkpoints that are not retained, and unfinished files of earlier generations."""
        manifests = self._manifests()
        retained_manifests = retained(manifests, self._unreadable)
        for manifest in manifests[len(retained_manifests) :]:
            manifest.unlink(missing_ok=True)  # first: data without a manifest is not a checkpoint
        stems = {manifest.stem for manifest in retained_manifests}
        for (owner, _, _), path in self._files():
            stem = path.name.partition(".")[0]
            if owner <= generation and stem not in stems:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _without_torch_checksum() -> Iterator[None]:
    """Context manager: torch computes no checksum of its own, which takes as long as the write.

    The manifest has a checksum of the whole file, and torch.load needs none. Torch before 2.6 has no such option.
    """
    serialization: Any = torch.serialization
    if not hasattr(serialization, "set_crc32_options"):
        yield
        return
    before = serialization.get_crc32_options()
    serialization.set_crc32_options(False)
    try:
        yield
    finally:
        serialization.set_crc32_options(before)


def _is_manifest(path: Path) -> bool:
    """Return whether a file of a checkpoint is its manifest."""
    return path.suffix == ".json"


class _DamagedError(Exception):
    """A checkpoint is incomplete or damaged; the message says how."""


def _shards(stem: Path, *, partial: bool = False) -> Path:
    """Return the directory of a checkpoint's shards, or with `partial` that of shards which are being written."""
    return stem.with_name(f"{stem.name}.dcp{'.partial' if partial else ''}")


def _remove_shards(stem: Path) -> None:
    for partial in (True, False):
        shutil.rmtree(_shards(stem, partial=partial), ignore_errors=True)


def _checksum_to_json(found: FileChecksum) -> dict[str, int]:
    return {"bytes": found.size, "crc32": found.crc32}


def _checksum_from_json(described: dict[str, int]) -> FileChecksum:
    return FileChecksum(described["bytes"], described["crc32"])


def _read_verified(manifest: Path) -> ScriptCheckpoint:
    """Read the manifest, and verify the files that it names."""
    checkpoint = read_with_retries(manifest, lambda: _read_manifest(manifest))
    try:
        read_with_retries(checkpoint.data, lambda: _verify(checkpoint))
    except FileNotFoundError as error:
        raise _DamagedError(f"its data is missing ({error.filename})") from None
    return checkpoint


def _read_manifest(manifest: Path) -> ScriptCheckpoint:
    try:
        content = json.loads(manifest.read_bytes())
        version = content["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _DamagedError(f"its manifest cannot be read ({error!r})") from error
    if version not in (1, FORMAT):
        raise CheckpointError(
            f"{manifest}: was written by another version of trainer_shim, in format {version!r}, and this one reads "
            f"{FORMAT}: use that version, or another checkpoint directory"
        )
    if version == FORMAT and content.get("own_crc32") != _manifest_checksum(content):
        raise _DamagedError("its manifest has a wrong checksum")
    data, shards = manifest.with_suffix(".pt"), _shards(manifest.with_suffix(""))
    try:
        parts = {
            f"{shards.name}/{name}": _checksum_from_json(described)
            for name, described in content.get("shards", {}).items()
        }
        return ScriptCheckpoint(
            data=data,
            generation=int(manifest.name.split("-")[1]),
            files={data.name: _checksum_from_json(content), **parts},
            sharded=list(content.get("sharded", [])),
            progress=Progress.from_json(content["progress"]),
            order=content["order"],
            batch=BatchRecord.from_json(content.get("batch")),
            samples={int(index): list(found) for index, found in content.get("samples", {}).items()},
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise _DamagedError(f"its manifest makes no sense ({error!r})") from error


def _manifest_checksum(content: dict[str, Any]) -> int:
    """Return the CRC-32 of a manifest's other keys: without it, training could resume from a corrupted position."""
    rest = {key: value for key, value in content.items() if key != "own_crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def _verify(checkpoint: ScriptCheckpoint) -> None:
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(
            lambda item: _verify_file(checkpoint.data.parent / item[0], item[1]), checkpoint.files.items()
        ):
            pass


def _verify_file(path: Path, expected: FileChecksum) -> None:
    size = path.stat().st_size
    if size != expected.size:
        raise _DamagedError(f"its data has {size} bytes instead of {expected.size} ({path.name})")
    crc32 = checksum_file(path).crc32
    if crc32 != expected.crc32:
        raise _DamagedError(f"its data has the checksum {crc32:08x} instead of {expected.crc32:08x} ({path.name})")
