"""Fingerprints of some samples, by which different data on different ranks, or after a restart, are noticed.

A fingerprint has an exact part (types, shapes, whole numbers, words) and means of the sample's other numbers, which may
differ by rounding between hosts. Samples are read with seeded generators, as in the training. Fingerprints of a data
set whose samples differ nevertheless from one read to the next say nothing, and are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from trainer_shim.data.loader_workers import DatasetWrapper, LoaderReads
from trainer_shim.data.permutation import Permutation
from trainer_shim.data.seeding import derive_seed, seed_generators
from trainer_shim.data.worker_progress import WorkerProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = 8  # besides the first and the last one
SECONDS = 5.0  # after which no further sample is read; a sample that takes longer is left out
SPAWN_SECONDS = 60.0  # for a worker that is not forked: it imports torch and the script first
# What rounding may change, as a part of the mean size of a sample's numbers.
_TOLERANCES = {"mean": 0.01, "projection": 0.05}
_DEPTH = 8  # levels of containers in a sample


class Fingerprint(NamedTuple):
    """The fingerprint of a sample.

    Attributes:
        exact: a checksum of types, shapes, whole numbers and words.
        mean: the mean of the other numbers.
        projection: the sum of the same numbers, each times a fixed weight, over the root of their number.
        scale: the mean of their absolute values.
    """

    exact: int
    mean: float
    projection: float
    scale: float

    def matches(self, other: Fingerprint) -> bool:
        """Return whether two samples are the same up to rounding."""
        scale = max(self.scale, other.scale)
        near = all(
            abs(getattr(self, name) - getattr(other, name)) <= part * scale for name, part in _TOLERANCES.items()
        )
        # numbers that are not finite compare as equal where they are in both
        return self.exact == other.exact and (near or not self.scale + other.scale < float("inf"))


class Fingerprints(NamedTuple):
    """The fingerprints of some samples of a data set.

    Attributes:
        found: the fingerprints by the samples' indices, perhaps none.
        why_none: why there are none, None where there are some.
    """

    found: dict[int, Fingerprint]
    why_none: str | None


def fingerprint_samples(dataset: Any, size: int, seed: int, options: dict[str, Any]) -> Fingerprints:
    """Return the fingerprints of some samples; the generators of this process are left as they are.

    Where the loader has workers, the samples are read in one, started as they are: a data set that opens files at its
    first sample must not do so in the process from which workers are forked, or for which they are pickled.

    Args:
        dataset: a map-style data set.
        size: the number of its samples.
        seed: the seed of the samples' random numbers.
        options: the options of the DataLoader.
    """
    if size == 0:
        return Fingerprints({}, "the data set is empty")
    picked = Permutation(size, "fingerprints").at(torch.arange(min(SAMPLES, size), device="cpu")).tolist()
    indices = sorted({0, size - 1, *picked})
    reader = _FingerprintReader(dataset, seed)
    items: Iterator[Fingerprint | None]
    with _preserved_generators():
        if not options.get("num_workers"):
            return _collect(indices, map(reader.__getitem__, indices))
        context = options.get("multiprocessing_context")
        forks = WorkerProgress(0, context).forks
        loader: DataLoader[Any] = DataLoader(
            reader,
            batch_size=None,
            sampler=indices,
            num_workers=1,
            collate_fn=_unchanged,
            timeout=SECONDS if forks else SPAWN_SECONDS,
            multiprocessing_context=context,
            worker_init_fn=options.get("worker_init_fn"),
        )
        reads = LoaderReads(loader, reader.progress)
        items = reads.start()
        result = _collect(indices, items, starts_slowly=not forks)
        if result.why_none is not None:
            reads.end_workers()  # one that hangs in its fork ignores SIGTERM, and Python's exit would wait for it
        return result


def _collect(indices: list[int], items: Iterator[Fingerprint | None], *, starts_slowly: bool = False) -> Fingerprints:
    found: dict[int, Fingerprint] = {}
    end = time.monotonic() + SECONDS
    try:
        for index, fingerprint in zip(indices, items):
            if fingerprint is None:
                return Fingerprints({}, "they differ from one read to the next, also with seeded generators")
            if starts_slowly and not found:
                end = time.monotonic() + SECONDS
            found[index] = fingerprint
            if time.monotonic() > end:
                break
    except Exception as error:  # noqa: BLE001  the script's own: the training reports the error
        return Fingerprints({}, f"reading some failed or took too long ({type(error).__name__})")
    return Fingerprints(found, None)


def differing(found: Mapping[int, Fingerprint], others: Mapping[int, Fingerprint]) -> list[int]:
    """Return the indices of the samples that differ, of those that both have."""
    return sorted(index for index in found.keys() & others.keys() if not found[index].matches(others[index]))


class _FingerprintReader(DatasetWrapper, Dataset[Any]):
    """The fingerprints of a data set's samples, None for one that is not the same when it is read again."""

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(dataset)
        self._seed = seed

    def __getitem__(self, index: int) -> Fingerprint | None:
        first, second = self._read(index), self._read(index)
        return first if first.matches(second) else None

    def _read(self, index: int) -> Fingerprint:
        seed_generators(derive_seed(self._seed, 0, index))
        return fingerprint(self.dataset[index])


def fingerprint(sample: Any) -> Fingerprint:
    """Return the fingerprint of a sample: tensors, arrays, images, numbers, words, and containers of them."""
    parts: list[torch.Tensor] = []
    exact = _add(sample, parts, 0, _DEPTH)
    values = torch.cat(parts) if parts else torch.zeros(1, dtype=torch.float64)
    # weights without any pattern, so that an image and its mirror image differ
    weights = torch.sin(1.618 * torch.arange(1, len(values) + 1, dtype=torch.float64, device="cpu").square())
    projection = (values * weights).sum().item() / max(len(values), 1) ** 0.5
    return Fingerprint(exact, values.mean().item(), projection, values.abs().mean().item())


def _add(item: Any, parts: list[torch.Tensor], checksum: int, depth: int) -> int:
    """Append the inexact numbers of an item to `parts`, and return the checksum with its exact ones."""
    kind = type(item).__name__
    checksum = zlib.crc32(kind.encode(), checksum)
    if isinstance(item, (str, bytes, int, bool)) or item is None:
        return zlib.crc32(repr(item).encode(), checksum)
    if isinstance(item, float):
        item = torch.tensor([item], dtype=torch.float64)
    elif hasattr(item, "tobytes") and hasattr(item, "mode"):  # an image
        checksum = zlib.crc32(repr((item.mode, item.size)).encode(), checksum)
        item = torch.frombuffer(bytearray(item.tobytes()), dtype=torch.uint8)
    elif hasattr(item, "tobytes") and hasattr(item, "dtype"):  # an array
        if item.dtype.kind not in "biuf":
            return zlib.crc32(item.tobytes(), checksum)
        item = torch.as_tensor(item)
    if isinstance(item, torch.Tensor):
        return _add_tensor(item.detach().cpu(), parts, checksum)
    if depth and isinstance(item, Mapping):
        item = [part for pair in item.items() for part in pair]
    if depth and isinstance(item, Sequence):
        for part in item:
            checksum = _add(part, parts, checksum, depth - 1)
    return checksum


def _add_tensor(item: torch.Tensor, parts: list[torch.Tensor], checksum: int) -> int:
    checksum = zlib.crc32(repr((item.dtype, tuple(item.shape))).encode(), checksum)
    if item.layout is not torch.strided or item.is_complex() or item.is_quantized:
        return checksum
    if item.is_floating_point() or item.dtype is torch.uint8:  # what decoders and augmentations may round
        parts.append(item.reshape(-1).to(torch.float64))
        return checksum
    item = item.contiguous()
    return zlib.crc32(ctypes.string_at(item.data_ptr(), item.numel() * item.element_size()), checksum)


@contextlib.contextmanager
def _preserved_generators() -> Iterator[None]:
    """Context manager: the global generators of this process are afterwards as they were before."""
    numpy_random = sys.modules.get("numpy.random")
    before = torch.get_rng_state(), random.getstate(), numpy_random.get_state() if numpy_random else None
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy_random is not None and before[2] is not None:
            numpy_random.set_state(before[2])
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)


def _unchanged(item: Any) -> Any:
    return item
