"""Files of the shared directory that one user, or the admins, may read: by POSIX access control lists (ACLs).

The daemon is rarely root, and cannot give its files away. It owns the private files with mode 0600, and a list of the
file's own lets the one user read (acl(5)). The extended attribute that Linux keeps such a list in is written directly.
A daemon that is root gives the file to the user instead, where the file system has no lists. Where neither is
possible there is no file: nobody reads what he may not.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import replace_file

ACL_ATTRIBUTE = "system.posix_acl_access"
ENTERED_BY_ALL = 0o711
"""The mode of a directory that every user may enter, and only its owner may list."""
READ, NONE = 4, 0
_VERSION = 2
_UNDEFINED = 0xFFFFFFFF
_OWNER, _USER, _OWNING_GROUP, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20  # in the order of the list


class PrivateFileError(MetaschedError):
    """A private file cannot be written, or nobody but the daemon could read it."""


class NoReadersError(PrivateFileError):
    """The file system has no access control lists, and the daemon, which is not root, cannot give the file away."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Unix users and groups, by number, that may read a file besides its owner."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()


def encode_acl(readers: Readers) -> bytes:
    """Return the list that lets the owner read and write, the readers read, and others nothing, as Linux keeps it.

    The layout is that of ``struct posix_acl_xattr_header`` and its entries in Linux's ``posix_acl_xattr.h``.
    """
    entries = [
        (_OWNER, READ | 2, _UNDEFINED),
        *((_USER, READ, number) for number in sorted(readers.users)),
        (_OWNING_GROUP, NONE, _UNDEFINED),
        *((_GROUP, READ, number) for number in sorted(readers.groups)),
        (_MASK, READ, _UNDEFINED),
        (_OTHER, NONE, _UNDEFINED),
    ]
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


class PrivateFiles:
    """The private files of one directory, below a directory that only the daemon writes.

    Args:
        directory: made where it is missing; every user may enter it, and only its owner may list it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> None:
        """Make the directory, or check that it is the daemon's own.

        Raises:
            PrivateFileError: it cannot be made, is a link, or is somebody else's.
        """
        try:
            self._directory.mkdir(mode=ENTERED_BY_ALL, exist_ok=True)
            facts = self._directory.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                msg = f"{self._directory}: not a directory of the daemon's user; remove it, the daemon makes it again"
                raise PrivateFileError(msg)
            if stat.S_IMODE(facts.st_mode) != ENTERED_BY_ALL:
                self._directory.chmod(ENTERED_BY_ALL)
        except OSError as error:
            msg = f"{self._directory}: {error.strerror}"
            raise PrivateFileError(msg) from None

    def names(self) -> Collection[str]:
        """The names of all files in the directory; empty where it cannot be listed."""
        try:
            return [path.name for path in self._directory.iterdir()]
        except OSError:
            return ()

    def write(self, name: str, content: bytes, readers: Readers) -> None:
        """Replace a file, which its readers may read at once.

        Raises:
            NoReadersError: its readers could not read it.
            PrivateFileError: the file cannot be written. There is no such file after an error.
        """
        path = self._directory / name
        try:
            replace_file(path, content, mode=0o600, before_content=lambda opened: self._grant(opened, readers))
        except NoReadersError:
            self.remove([name])
            raise
        except OSError as error:
            self.remove([name])
            msg = f"{path}: {error.strerror}"
            raise PrivateFileError(msg) from None

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are missing, or cannot be removed, are left."""
        for name in names:
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError:  # a directory that somebody put there
                continue

    def _grant(self, descriptor: int, readers: Readers) -> None:
        try:
            grant(descriptor, readers)
        except OSError as error:
            msg = (
                f"{self._directory}: its file system has no access control lists ({error.strerror}): owners of "
                "jobs and admins cannot be shown losses, speeds and progress on other hosts"
            )
            raise NoReadersError(msg) from None


def grant(descriptor: int, readers: Readers) -> None:
    """Let readers read an open file of this process's user, and nobody else.

    Raises:
        OSError: the file system has no access control lists, and this process cannot give the file away.
    """
    mine = os.geteuid()
    users = readers.users - {mine}
    if not users and not readers.groups:
        return
    try:
        os.setxattr(descriptor, ACL_ATTRIBUTE, encode_acl(Readers(users, readers.groups)))
    except OSError:
        if mine != 0 or readers.groups or len(users) != 1:
            raise
        os.fchown(descriptor, min(users), -1)
