"""How far each destination has come in the events, and its messages that are not delivered yet; one file."""

from __future__ import annotations

import fcntl
from pathlib import Path

import msgspec
from msgspec import Struct

from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import replace_file
from metasched.notify.messages import Message

_FILE = "positions.json"
_LOCK = "positions.lock"
_VERSION = 1


class PositionsError(MetaschedError):
    """The file of positions cannot be used."""


class Position(Struct, frozen=True):
    """How far one destination has come.

    Attributes:
        after: number of the last event that became part of a message, or that the destination does not want.
        at: instant of that event; unix seconds.
        pending: messages that are not delivered yet, the oldest first.
        recent: digests of the latest events up to ``after``.
        earlier: the same of the store's term before, whose numbers may be of other events.
    """

    after: int
    at: float
    pending: tuple[Message, ...] = ()
    recent: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


class Positions(Struct, frozen=True):
    """The content of the file.

    Attributes:
        term: term of the store that the numbers of events belong to.
        destinations: by name.
        version: of the file's form.
    """

    term: int
    destinations: dict[str, Position]
    version: int = _VERSION


class PositionsFile:
    """The file in its directory, for one process at a time.

    Args:
        directory: made if it is missing, for the process's user alone.

    Raises:
        PositionsError: the directory cannot be made or written, or another process has it.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / _FILE
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (directory / _LOCK).open("a")
        except OSError as error:
            raise PositionsError(
                f"{directory}: {error.strerror}; make the directory, owned by the user of `metasched notify`"
            ) from None
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise PositionsError(f"{directory}: another `metasched notify` uses it") from None

    def close(self) -> None:
        """Let another process use the directory."""
        self._lock.close()

    def load(self) -> Positions | None:
        """Read the file; None where there is none.

        Raises:
            PositionsError: the file cannot be read, or is not as this version writes it.
        """
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=Positions)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PositionsError(
                f"{self.path}: {error}; move it away, and messages begin with the events from then on"
            ) from None
        if found.version != _VERSION:
            raise PositionsError(f"{self.path}: version {found.version} is of another release of metasched")
        return found

    def save(self, positions: Positions) -> None:
        """Replace the file at once, whatever happens meanwhile.

        Raises:
            OSError: it cannot be written; the file before is still there.
        """
        replace_file(self.path, msgspec.json.encode(positions), mode=0o600, fsync=True)
