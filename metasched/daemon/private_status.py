"""The private part of the published status: the file of all whole jobs, and a file for each user with shown jobs.

A file is written again only where its content has changed. A user's file is removed when the user has no more jobs that
are shown. Where the file system has no access control lists, users have no files, and the daemon's log says so once.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import structlog

from metasched.configuration.config import Access
from metasched.intake.report_reading import user_id
from metasched.shared_dir.private_files import NoReadersError, PrivateFileError, PrivateFiles, Readers
from metasched.shared_dir.published_status import ALL_FILE_NAME, PRIVATE_DIRECTORY, user_file_name

UNKNOWN_USER_SECONDS = 60.0
"""Time until a user whom this host does not know is looked up again."""

log = structlog.get_logger()


class PrivateStatus:
    """Writes the private files. A file that cannot be written is logged once, and scheduling continues."""

    def __init__(self, shared: Path) -> None:
        self._files = PrivateFiles(shared / PRIVATE_DIRECTORY)
        self._prepared = False
        self._written: dict[str, int] = {}  # digests of the users' files, by name
        self._access: Access | None = None
        self._admins = Readers()
        self._unknown: dict[str, float] = {}  # users whom this host does not know, with the instant of the look-up
        self._no_lists = False
        self._failed = False

    def write_all(self, content: bytes, access: Access) -> None:
        """Replace the file of all whole jobs, for the daemon's user and the admins."""
        if access != self._access:
            self._access, self._admins = access, admins_of(access)
        try:
            self._prepare()
            try:
                self._files.write(ALL_FILE_NAME, content, Readers() if self._no_lists else self._admins)
            except NoReadersError as error:
                self._note_no_lists(error)
                self._files.write(ALL_FILE_NAME, content, Readers())
        except PrivateFileError as error:
            self._note(error)
        else:
            self._failed = False

    def write_users(
        self, users: Collection[str], changed: Iterable[str], content_of: Callable[[str], bytes], now: float
    ) -> None:
        """Replace the files of users whose content has changed, and remove those of users without jobs.

        Args:
            users: names of all users with jobs that are shown.
            changed: those of them whose content may have changed.
            content_of: the content of a user's file.
            now: unix seconds.
        """
        if self._no_lists:
            return
        try:
            self._prepare()
            for user in changed:
                self._write_user(user, content_of, now)
        except NoReadersError as error:
            self._note_no_lists(error)
        except PrivateFileError as error:
            self._note(error)
        wanted = {user_file_name(number) for user in users if (number := self._number(user, now)) is not None}
        gone = self._written.keys() - wanted
        self._files.remove(gone)
        for name in gone:
            del self._written[name]

    def _write_user(self, user: str, content_of: Callable[[str], bytes], now: float) -> None:
        number = self._number(user, now)
        if number is None:
            return
        name, content = user_file_name(number), content_of(user)
        digest = hash(content)  # keyed with a secret of the process
        if self._written.get(name) != digest:
            self._written.pop(name, None)
            self._files.write(name, content, Readers(frozenset({number})))
            self._written[name] = digest

    def _number(self, user: str, now: float) -> int | None:
        """Return the number of a user; None for one whom this host does not know."""
        if 0 <= now - self._unknown.get(user, -UNKNOWN_USER_SECONDS) < UNKNOWN_USER_SECONDS:
            return None
        try:
            return user_id(user)
        except KeyError:
            self._unknown[user] = now
            return None

    def _prepare(self) -> None:
        """Make the directory, and remove what an earlier daemon left there."""
        if not self._prepared:
            self._files.prepare()
            self._files.remove(name for name in self._files.names() if name != ALL_FILE_NAME)
            self._prepared = True

    def _note_no_lists(self, error: NoReadersError) -> None:
        if not self._no_lists:
            log.warning("status_not_shown_to_owners", error=str(error))
        self._no_lists = True
        self._files.remove(self._written)
        self._written.clear()

    def _note(self, error: PrivateFileError) -> None:
        if not self._failed:
            log.warning("private_status_not_written", error=str(error))
        self._failed = True


def admins_of(access: Access) -> Readers:
    """The Unix users and groups that may see all jobs; names that this host does not know are logged and left out."""
    users = _numbers(access.admins, lambda name: pwd.getpwnam(name).pw_uid, "user")
    return Readers(users, _numbers(access.admin_groups, lambda name: grp.getgrnam(name).gr_gid, "group"))


def _numbers(names: Iterable[str], number_of: Callable[[str], int], kind: str) -> frozenset[int]:
    found: Mapping[str, int] = {}
    for name in names:
        try:
            found = {**found, name: number_of(name)}
        except KeyError:
            log.warning("unknown_admin", kind=kind, name=name, key="[access]")
    return frozenset(found.values())
