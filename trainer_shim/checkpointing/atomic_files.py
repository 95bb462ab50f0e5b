"""Files that are on disk when they are said to be, the checksums of what was written, and reads with patience."""

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
_FLUSH_BYTES = 1 << 25  # bytes after which the disk is told to begin
_NO_HARD_LINK_ERRORS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP}  # what file systems without hard links say
_INLINE_CHECKSUM_BYTES = 1 << 16  # bytes that are summed sooner than another thread would begin to
_READ_BYTES = 1 << 22

T = TypeVar("T")

log = logging.getLogger("trainer_shim")


class FileChecksum(NamedTuple):
    """The size and the CRC-32 of a file's content."""

    size: int
    crc32: int


class ChecksummedFile:
    """A binary file for torch.save that adds up what passes.

    The checksum is computed beside the write, and the disk begins while there is more to come: so a large file takes
    hardly longer than its bytes alone.
    """

    def __init__(self, file: BinaryIO, helper: ThreadPoolExecutor) -> None:
        self._file = file
        self._helper = helper
        self._begun = 0  # up to where the disk has been told to begin
        self._size = 0
        self._crc32 = 0
        self.failure: OSError | None = None

    @property
    def checksum(self) -> FileChecksum:
        """Of all that was written."""
        return FileChecksum(self._size, self._crc32)

    def write(self, data: Any) -> int:
        """Write a bytes-like object."""
        content = memoryview(data).cast("B")
        if len(content) < _INLINE_CHECKSUM_BYTES:
            self._crc32 = zlib.crc32(content, self._crc32)
            self._put(content)
        else:
            crc32 = self._helper.submit(zlib.crc32, content, self._crc32)
            try:
                self._put(content)
            finally:
                self._crc32 = crc32.result()  # also on a failure: the memory is the caller's
        return len(content)

    def tell(self) -> int:
        """How many bytes were written."""
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
                if self._size - self._begun >= _FLUSH_BYTES:
                    with contextlib.suppress(OSError):  # where this advice is not known, the disk begins later
                        advice = os.POSIX_FADV_DONTNEED  # starts to write the dirty pages, and does not wait for them
                        os.posix_fadvise(self._file.fileno(), self._begun, self._size - self._begun, advice)
                    self._begun = self._size
        except OSError as error:
            self.failure = error
            raise


@contextlib.contextmanager
def synced_file(path: Path) -> Iterator[ChecksummedFile]:
    """A new file whose content is on disk when the block is left.

    Raises:
        OSError: it could not be written, whatever the block has made of that.
    """
    with path.open("wb") as file, ThreadPoolExecutor(1) as helper:
        summed = ChecksummedFile(file, helper)
        try:
            yield summed
        except RuntimeError as error:  # torch stumbles once more over what the file has raised
            raise summed.failure or error from error
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_file(path: Path, check: Callable[[], None]) -> Iterator[ChecksummedFile]:
    """A new file that takes the name `path` in one instant when it is whole and on disk, or leaves no trace."""
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
    """A new file that is whole and on disk, or not there at all; exclusive over all hosts that share the file system.

    Raises:
        FileExistsError: somebody else has made it.
        OSError: it could not be written.
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
            path.touch(exist_ok=False)  # exclusive, too, and empty for a moment
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the directory's names last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_with_retries(path: Path, read: Callable[[], T]) -> T:
    """What `read` makes of the path, tried again for some seconds: shared file systems have hiccups.

    A file that is not there may be one of them: an NFS client is told of new files late.

    Raises:
        OSError: what the last attempt raised.
    """
    for pause in _RETRY_PAUSES:
        try:
            return read()
        except OSError as error:  # noqa: PERF203  a few turns
            log.warning("%s cannot be read, trying again in %.1f s: %s", path, pause, error)
            time.sleep(pause)
    return read()


def checksum_file(path: Path) -> FileChecksum:
    """Read a file for its checksum.

    Raises:
        OSError: it cannot be read.
    """
    size = crc32 = 0
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_READ_BYTES), b""):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
    return FileChecksum(size, crc32)
