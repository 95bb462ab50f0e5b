"""Orders of an app's driver, parsed strictly: ``reports/<uid>/app.jsonl`` is hostile until it is parsed here.

The format is in ``docs/developer/PROTOCOL.md``. Unknown keys and kinds are ignored; a known kind with a missing,
mistyped or implausible value is refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from metasched.core.apps import TrialOrder
from metasched.shared_dir.owned_files import owned_directory, owned_file

FILE_NAME = "app.jsonl"
MAX_BYTES = 256 * 1024
"""A larger file is not read."""
MAX_ORDERS = 1_000
"""Of more orders in a file the first ones are ignored."""


class _Line(msgspec.Struct, frozen=True):
    """Keys that decide whether, and as what, a line is read."""

    v: Literal[1]
    kind: str


class _Order(_Line, frozen=True):
    """One order for one trial."""

    uid: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}(_[0-9]{1,10})?\Z", max_length=27)]
    end: bool = False
    max_gpus: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    words: Annotated[str, Meta(max_length=200)] = ""


_LINE = msgspec.json.Decoder(_Line)
_ORDER = msgspec.json.Decoder(_Order)


class OrderFile(NamedTuple):
    """The content of one file of orders.

    Attributes:
        orders: for each trial the latest one, but an end is for good.
        refused: number of lines that are not what the protocol says.
    """

    orders: tuple[TrialOrder, ...] = ()
    refused: int = 0


class FileVersion(NamedTuple):
    """What tells one content of a file from another: inode, size, and time of change in nanoseconds."""

    inode: int
    size: int
    changed: int


class OrdersTooLargeError(Exception):
    """The file of orders is larger than ``MAX_BYTES``."""


def read_orders(
    reports: Path, uid: str, owner: int, app: str, known: FileVersion | None
) -> tuple[FileVersion, OrderFile] | None:
    """Read the orders that lie in a job's directory of reports.

    Args:
        reports: the ``reports`` directory of the shared tree.
        uid: the job.
        owner: numeric user id of the job's owner; directory and file must be theirs.
        app: uid of the job's app, for which the orders count.
        known: the version of the file that was read before.

    Returns:
        the file's version and content; None where it is that version still.

    Raises:
        OrdersTooLargeError: the file is too large.
        RefusedFileError: the directory or the file is not what it should be.
        OSError: there is no such file, or it cannot be read.
    """
    with owned_directory(reports, uid, owner) as directory, owned_file(FILE_NAME, directory, owner) as (file, facts):
        version = FileVersion(facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if version == known:
            return None
        if facts.st_size > MAX_BYTES:
            raise OrdersTooLargeError
        return version, parse_orders(os.pread(file, MAX_BYTES, 0), app)


def parse_orders(data: bytes, app: str) -> OrderFile:
    """The orders in the whole lines of a file.

    Args:
        data: the file's content.
        app: uid of the app for which the orders count.
    """
    latest: dict[str, TrialOrder] = {}
    refused = 0
    for line in data.split(b"\n")[:-1][-MAX_ORDERS:]:
        try:
            if _LINE.decode(line).kind != "order":
                continue
            order = _ORDER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            refused += 1
            continue
        before = latest.pop(order.uid, None)
        if before is not None and before.end:
            latest[order.uid] = before
        else:
            latest[order.uid] = TrialOrder(app, order.uid, order.max_gpus, order.end, order.words)
    return OrderFile(tuple(latest.values()), refused)
