"""Files that users write below ``reports/``: opened without following a link or waiting, and only as their owner's."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: opening a pipe must not wait


class RefusedFileError(Exception):
    """A directory or file that is not what it should be, and will not be read; the message says why."""


@contextmanager
def owned_directory(reports: Path, uid: str, owner: int) -> Iterator[int]:
    """A job's directory of reports as an open descriptor.

    Args:
        reports: the ``reports`` directory of the shared tree.
        uid: the job.
        owner: numeric user id of the job's owner; the directory must be theirs.

    Raises:
        RefusedFileError: a link, no directory, or somebody else's.
        OSError: the directory cannot be opened.
    """
    root = os.open(reports, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory = _open(uid, root, os.O_DIRECTORY)
    finally:
        os.close(root)
    try:
        if os.fstat(directory).st_uid != owner:
            raise RefusedFileError("not a directory of the job's owner")
        yield directory
    finally:
        os.close(directory)


@contextmanager
def owned_file(name: str, directory: int, owner: int) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file of the owner in an open directory, as an open descriptor with what ``fstat`` says of it.

    A file with several hard links is refused: it could be read once for each of them, at no cost to its owner.

    Raises:
        RefusedFileError: a link, no regular file, somebody else's, or a file with several links.
        OSError: the file cannot be opened.
    """
    descriptor = _open(name, directory)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner:
            raise RefusedFileError("not a file of the job's owner")
        if facts.st_nlink > 1:
            raise RefusedFileError(f"has {facts.st_nlink} hard links: copy the file, it is not read through links")
        yield descriptor, facts
    finally:
        os.close(descriptor)


def _open(name: str, directory: int, flags: int = 0) -> int:
    try:
        return os.open(name, _OPEN | flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise RefusedFileError("a symbolic link, or not what it should be") from None
        raise
