"""Failover to a daemon on another host: copies of the store in shared storage, and the choice between two stores.

SQLite is not safe on a network file system, so the store stays on the daemon's local disk, and copies of it go to
shared storage. Each daemon that gets the lock begins the next **term**, which the store carries: a copy of a later term
than the local store's was written by a daemon that took over in between, and replaces the local store.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import structlog

from metasched.configuration.file_names import DATABASE
from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import sync_directory
from metasched.store import NotAStoreError, Store, StoreError
from metasched.store.connection import exists, read_term

PAUSE_FACTOR = 20.0
"""Pause after a copy, in multiples of the time that the copy took."""
SPARE_BYTES = 64 * 2**20
"""Free disk space that a copy leaves to the store."""

log = structlog.get_logger()


class CopyError(MetaschedError):
    """The store's copy cannot be written, read or moved to the store's path."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"the store's copy {path}: {error.strerror or error}; "
            "check that [paths] state and shared belong to the daemon, and are not full"
        )


class UnusableCopyError(MetaschedError):
    """The store's copy is of a later term than the local store, and cannot be opened."""

    def __init__(self, path: Path, error: StoreError) -> None:
        super().__init__(
            f"the store's copy {path} is newer than this host's store, and cannot be used here ({error}); "
            "where that does not help, move the copy away: the daemon then continues from this host's own store"
        )


def take_over(local: Path, shared: Path) -> None:
    """Replace the local store by its copy where the copy is of a later term, and begin the next term in the store.

    A local store that is replaced is kept as ``<name>.superseded``.

    Args:
        local: path of the store.
        shared: the directory of copies.

    Raises:
        StoreError: the store cannot be read or written; or there is no store, and the copy is no store.
        CopyError: the copy cannot be read, or not moved to the store's path.
        UnusableCopyError: the copy is to replace the store, and cannot be opened.
    """
    own = _term(local)
    try:
        copied = term_of_copy(shared)
    except NotAStoreError as error:
        if not own:
            raise
        log.warning("copy_is_no_store", error=str(error), effect="the daemon uses this host's own store")
        copied = 0
    if copied > own:
        _replace(local, shared / DATABASE)
        log.info("took_over", copy=str(shared / DATABASE), term=copied)
    with Store.open(local) as store:
        store.begin_term(max(own, copied) + 1)


def term_of_copy(shared: Path) -> int:
    """Return the term of the copy in a directory of copies; 0 where there is no copy.

    Raises:
        NotAStoreError: the copy is no store.
        CopyError: the copy cannot be read.
    """
    try:
        return read_term(shared / DATABASE)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise CopyError(shared / DATABASE, error) from error


def _term(path: Path) -> int:
    if not exists(path):
        return 0
    with Store.open(path) as store:  # closing it leaves one file, without a journal
        return store.term


def _replace(local: Path, copy: Path) -> None:
    """Move the copy to the store's path, through a file on the local disk, where it can be opened safely."""
    fetched = local.with_name(f"{local.name}.fetched")
    try:
        _remove(fetched)
        local.parent.mkdir(parents=True, exist_ok=True)
        _write_through(copy, fetched)
        _term(fetched)
        if local.exists():
            local.replace(local.with_name(f"{local.name}.superseded"))
        fetched.replace(local)
        sync_directory(local.parent)
    except StoreError as error:
        raise UnusableCopyError(copy, error) from error
    except OSError as error:
        raise CopyError(copy, error) from error


def write_copy(local: Path, shared: Path, before_write: Callable[[], None] = lambda: None) -> None:
    """Copy the store without its snapshots, as of one instant, also while the daemon writes to it.

    The copy appears whole or not at all, readable by its owner only.

    Args:
        local: path of the store.
        shared: the directory of copies.
        before_write: called last before the new copy replaces the old one; an exception prevents that.

    Raises:
        StoreError: the store cannot be read, or not copied.
        CopyError: the copy cannot be written to the directory.
    """
    # The name has the host: a daemon that was frozen while another took over continues its own unfinished copy.
    made, part = local.with_name(f"{local.name}.copy"), shared / f"{DATABASE}.{socket.gethostname()}.part"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        _remove(made)
        _check_space(local)
        with Store.open(made) as copy:
            copy.fill_from(local)
        _write_through(made, part)
        before_write()
        part.replace(shared / DATABASE)
        sync_directory(shared)
    except OSError as error:
        raise CopyError(shared / DATABASE, error) from error
    finally:
        _remove(made)


def _check_space(local: Path) -> None:
    """Check that the local disk has space for a copy in the store's directory.

    Raises:
        OSError: the disk has too little free space.
        StoreError: the store cannot be read.
    """
    with Store.open(local, read_only=True) as store:
        needed = store.copy_bytes() + SPARE_BYTES
    if shutil.disk_usage(local.parent).free < needed:
        raise OSError(errno.ENOSPC, f"less than {needed >> 20} MiB are free in {local.parent}")


def _write_through(source: Path, target: Path) -> None:
    with source.open("rb") as reader, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as writer:
        writer.truncate()
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)


class StoreCopier:
    """Copies the store in a thread: at the beginning of the ``with`` block, regularly during it, and once at its end.

    The first copy publishes the daemon's term, so that a daemon that takes over begins a later one.

    Args:
        local: path of the store.
        shared: the directory of copies, made if missing.
        every: seconds between copies; 0 for none.
        before_write: see ``write_copy``.

    Attributes:
        every: seconds between copies; a reload of the configuration changes it.
    """

    def __init__(
        self, local: Path, shared: Path, every: float, before_write: Callable[[], None] = lambda: None
    ) -> None:
        self.every = every
        self._local = local
        self._shared = shared
        self._before_write = before_write
        self._failed = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-copier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        took = self._write()
        while not self._end.wait(max(self.every or 1.0, PAUSE_FACTOR * took)):
            took = self._write()
        self._write()

    def _write(self) -> float:
        """Write a copy, unless none are wanted; return the seconds that it took."""
        begun = time.monotonic()
        if not self.every:
            return 0.0
        try:
            write_copy(self._local, self._shared, self._before_write)
        except MetaschedError as error:
            if not self._failed:
                log.warning(
                    "store_not_copied", error=str(error), effect="a daemon that takes over would use an older copy"
                )
            self._failed = True
        else:
            self._failed = False
        return time.monotonic() - begun
