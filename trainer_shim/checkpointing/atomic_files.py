"""Atomic, durable writes with checksums, and reads that are tried again."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

_RETRY_PAUSES = (0.5, 1.0, 2.0)  # seconds before each further attempt to read
_FLUSH_BYTES = 1 << 25  # bytes after which the kernel is advised to write them to the disk
_NO_HARD_LINK_ERRORS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP}  # of file systems without hard links
_INLINE_CHECKSUM_BYTES = 1 << 16  # bytes; smaller pieces are summed faster than another thread starts
_READ_BYTES = 1 << 22

T = TypeVar("T")

log = logging.getLogger("trainer_shim")


class FileChecksum(NamedTuple):
    """The size and the CRC-32 of a file's content."""

    size: int
    crc32: int


class ChecksummedFile:
    """A binary file for torch.save that computes the checksum of its content.

    The checksum is computed in parallel to the write, and the disk writes while further bytes arrive, so a large file
    takes hardly longer than its bytes alone.

    Attributes:
        failure: the error of a write, None without one.
    """

    def __init__(self, file: BinaryIO, helper: ThreadPoolExecutor) -> None:
        self._file = file
        self._helper = helper
        self._advised = 0  # bytes that the kernel was advised to write to the disk
        self._size = 0
        self._crc32 = 0
        self.failure: OSError | None = None

    @property
    def checksum(self) -> FileChecksum:
        """The size and the checksum of all that was written so far."""
        return FileChecksum(self._size, self._crc32)

    def write(self, data: Any) -> int:
        """Write a bytes-like object, and return its length in bytes."""
        content = memoryview(data).cast("B")
        if len(content) < _INLINE_CHECKSUM_BYTES:
            self._crc32 = zlib.crc32(content, self._crc32)
            self._put(content)
        else:
            crc32 = self._helper.submit(zlib.crc32, content, self._crc32)
            try:
                self._put(content)
            finally:
                self._crc32 = crc32.result()  # also after a failure: the memory belongs to the caller
        return len(content)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Do nothing; `synced_file` flushes."""

    def close(self) -> None:
        """Do nothing; `synced_file` closes."""

    def _put(self, content: memoryview) -> None:
        try:
            for start in range(0, len(content), _FLUSH_BYTES):
                piece = content[start : start + _FLUSH_BYTES]
                self._file.write(piece)
                self._size += len(piece)
                if self._size - self._advised >= _FLUSH_BYTES:
                    with contextlib.suppress(OSError):  # without this advice the disk only begins later
                        advice = os.POSIX_FADV_DONTNEED  # starts to write the dirty pages, and does not wait for them
                        os.posix_fadvise(self._file.fileno(), self._advised, self._size - self._advised, advice)
                    self._advised = self._size
        except OSError as error:
            self.failure = error
            raise


@contextlib.contextmanager
def synced_file(path: Path) -> Iterator[ChecksummedFile]:
    """Context manager: a new file whose content is on disk when the block ends.

    Raises:
        OSError: the file cannot be written, also where torch has turned that error into another one.
    """
    with path.open("wb") as file, ThreadPoolExecutor(1) as helper:
        summed = ChecksummedFile(file, helper)
        try:
            yield summed
        except RuntimeError as error:  # torch's own error after a failed write
            raise summed.failure or error from error
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_file(path: Path, check: Callable[[], None]) -> Iterator[ChecksummedFile]:
    """Context manager: a new file that is renamed to `path` when it is complete and on disk, or else removed.

    Args:
        path: the name that the file takes.
        check: called just before the rename; an error that it raises keeps the file from its name.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with synced_file(partial) as file:
            yield file
        check()
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def create_exclusively(path: Path, text: str) -> None:
    """Create a file that is complete and on disk; exclusive over all hosts that share the file system.

    Raises:
        FileExistsError: another process has created the file.
        OSError: the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with synced_file(partial) as file:
            file.write(text.encode())
        try:
            os.link(partial, path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINK_ERRORS:
                raise
            path.touch(exist_ok=False)  # also exclusive, but empty for a moment
            partial.replace(path)
        sync_directory(path.parent)  # else a loss of power could undo the creation, and two processes would succeed
    finally:
        partial.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to disk (fsync)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_with_retries(path: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`, which is tried again for some seconds: shared file systems fail temporarily.

    A missing file is tried again, too, because an NFS client sees new files late.

    Raises:
        OSError: the error of the last attempt.
    """
    for pause in _RETRY_PAUSES:
        try:
            return read()
        except OSError as error:  # noqa: PERF203  few iterations
            log.warning("%s cannot be read, trying again in %.1f s: %s", path, pause, error)
            time.sleep(pause)
    return read()


def checksum_file(path: Path) -> FileChecksum:
    """Read a file, and return its size and checksum.

    Raises:
        OSError: the file cannot be read.
    """
    size = crc32 = 0
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_READ_BYTES), b""):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
    return FileChecksum(size, crc32)
