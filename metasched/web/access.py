"""Who looks at the page, and which jobs and values that user may see."""

from __future__ import annotations

import grp
import pwd
import re
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from metasched.core.errors import MetaschedError
from metasched.web.settings import WebSettings

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}\$?")
_GROUP_SECONDS = 60.0  # time for which the members of Unix groups are kept


class OwnedJob(Protocol):
    """A job of the status or the store, as far as access depends on it."""

    @property
    def user(self) -> str:
        """The owner's user name."""

    @property
    def account(self) -> str | None:
        """The Slurm account; None if not known."""


class UnknownViewerError(MetaschedError):
    """A request names no user that the page can believe.

    Attributes:
        public: the message for the client. The error's own message is for the log and the admin.
    """

    def __init__(self, why: str) -> None:
        self.public = "The page was not told who you are. Its administrator finds the reason in its log."
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of one request.

    Attributes:
        user: the user's name.
        is_admin: whether the user sees everything.
        accounts: Slurm accounts that the user coordinates.
        jobs_private: whether Slurm's PrivateData hides jobs from other users.
    """

    user: str
    is_admin: bool = False
    accounts: frozenset[str] = frozenset()
    jobs_private: bool = False

    def owns(self, job: OwnedJob) -> bool:
        """Whether the job is the viewer's own."""
        return job.user == self.user

    def may_see(self, job: OwnedJob) -> bool:
        """Whether the viewer may see that the job exists; a job that may not be seen is answered like a missing one."""
        return not self.jobs_private or self.is_admin or self.owns(job) or job.account in self.accounts

    def may_see_details(self, job: OwnedJob) -> bool:
        """Whether the viewer may see the job's loss, speed and progress: its owner and admins."""
        return self.is_admin or self.owns(job)

    def may_see_user(self, user: str) -> bool:
        """Whether the viewer may see sums over a user's jobs."""
        return not self.jobs_private or self.is_admin or user == self.user


class Access:
    """Who the viewer of a request is. Safe for threads."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._coordinated: dict[str, set[str]] = {}
        for account, users in settings.coordinators.items():
            for user in users:
                self._coordinated.setdefault(user, set()).add(account)
        self._lock = threading.Lock()
        self._members: frozenset[str] = frozenset()
        self._members_until = 0.0

    def viewer(self, request: Request, *, jobs_private: bool) -> Viewer:
        """The viewer of a request.

        Raises:
            UnknownViewerError: the header is missing, repeated, not a user's name, or cannot be believed.
        """
        name = self._settings.viewer or self._named(request)
        return Viewer(
            user=name,
            is_admin=name in self._settings.admins or name in self._admins_by_group(),
            accounts=frozenset(self._coordinated.get(name, ())),
            jobs_private=jobs_private,
        )

    def _named(self, request: Request) -> str:
        header = self._settings.user_header
        if not self._settings.trusts_header:
            raise UnknownViewerError("no user is believed over TCP; use the Unix socket, or --viewer NAME to develop")
        values = request.headers.getlist(header)
        if len(values) != 1:
            raise UnknownViewerError(
                f"the request has {len(values)} headers {header}, not one; the proxy must set it and drop the client's"
            )
        if not _NAME.fullmatch(values[0]):
            raise UnknownViewerError(f"header {header} holds no user name: {values[0][:80]!r}")
        return values[0]

    def _admins_by_group(self) -> frozenset[str]:
        if not self._settings.admin_groups:
            return frozenset()
        with self._lock:
            now = time.monotonic()
            if now >= self._members_until:
                self._members = frozenset().union(*map(_members, self._settings.admin_groups))
                self._members_until = now + _GROUP_SECONDS
            return self._members


def _members(group: str) -> frozenset[str]:
    """The users of a Unix group, those included whose primary group it is; none for an unknown group."""
    try:
        found = grp.getgrnam(group)
    except KeyError:
        return frozenset()
    primary = {user.pw_name for user in pwd.getpwall() if user.pw_gid == found.gr_gid}
    return frozenset(primary | set(found.gr_mem))
