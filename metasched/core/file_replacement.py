"""Files that are replaced as a whole, and names in directories that a loss of power does not undo."""

from __future__ import annotations

import functools
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.new", re.ASCII | re.DOTALL)
_DAY = 86400.0


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    fsync: bool = False,
    before_content: Callable[[int], None] | None = None,
) -> None:
    """Replace a file as a whole: readers see the old content or the new one, never a part.

    Several threads, processes and hosts may replace one file; the last one wins.

    Args:
        path: the file; its directory exists.
        content: the new content.
        mode: permission bits of the new file; None for those that the umask leaves of 0666.
        fsync: whether content and name are on the disk at the return, so that a loss of power does not undo them.
        before_content: is called with the descriptor of the new, empty file, to set who may read it.

    Raises:
        OSError: the directory cannot be written, or ``before_content`` raised it. The old file is still there.
    """
    _remove_leftovers(path.parent, (time.time() // _DAY - 1) * _DAY)
    # a random name, because containers can share the name of their host and the numbers of their processes
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # under any umask
            if before_content is not None:
                before_content(descriptor)
            file.write(content)
            if fsync:
                file.flush()
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if fsync:
        sync_directory(path.parent)


@functools.lru_cache(maxsize=1024)  # so that a directory is listed once a day, not at each replacement
def _remove_leftovers(directory: Path, before: float) -> None:
    """Remove temporary files of crashed processes, last written before an instant at least a day ago."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if _TEMPORARY.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < before:
                    Path(entry.path).unlink()


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk, so that a loss of power undoes no rename there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
