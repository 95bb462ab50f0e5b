"""Reuse of results while the objects that they were made from are the same.

A poll makes nothing again whose inputs are unchanged. Inputs are compared by identity: records are frozen, so the same
object has the same content, and the readers of Slurm and of the store give an unchanged record as the same object
(``Interned``). A comparison then costs nanoseconds, whatever the record's size.

With ``METASCHED_FROM_SCRATCH=1`` in the daemon's environment nothing is reused; tests compare the two ways.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import is_not, not_
from typing import Generic, TypeVar

FROM_SCRATCH = "METASCHED_FROM_SCRATCH"
"""The environment variable that makes every poll from scratch; for tests."""

T = TypeVar("T")


def reuses_results() -> bool:
    """Whether polls reuse results: not with ``FROM_SCRATCH`` set in the environment to anything but ``0``."""
    return os.environ.get(FROM_SCRATCH, "0") in {"", "0"}


LONGEST_SHARED_TEXT = 200
"""Characters of the longest text that is kept to be shared."""


def shared_text(text: str) -> str:
    """Return an equal text that was seen before, so that thousands of equal texts take the memory of one.

    The latest texts alone are kept, and no long ones: users choose many of them. (Python 3.12 keeps interned texts for
    good.)
    """
    return _seen_text(text) if len(text) <= LONGEST_SHARED_TEXT else text


@lru_cache(maxsize=4096)
def _seen_text(text: str) -> str:
    return text


class Latest(Generic[T]):
    """The latest result of one function, which is reused while all inputs are the same objects.

    Args:
        reuses: whether results are reused at all.
    """

    def __init__(self, *, reuses: bool = True) -> None:
        self._reuses = reuses
        self._inputs: tuple[object, ...] | None = None
        self._result: T | None = None

    def of(self, make: Callable[[], T], *inputs: object) -> T:
        """Return the latest result if its inputs were these objects, else a new result of ``make``."""
        known = self._inputs
        if not self._reuses or known is None or not all(a is b for a, b in zip(known, inputs, strict=True)):
            self._result = make()
            self._inputs = inputs
        return self._result  # type: ignore[return-value]  # made above, or by an earlier call

    @property
    def latest(self) -> T | None:
        """The latest result; None before the first, and after ``clear``."""
        return self._result

    def clear(self) -> None:
        """Forget the latest result."""
        self._inputs = self._result = None


class Interned(Generic[T]):
    """Successive lists of records, in which a record that equals one of the list before is the same object.

    Args:
        key: names a record within a list.
        reuses: whether earlier objects are returned at all.
    """

    def __init__(self, key: Callable[[T], Hashable], *, reuses: bool = True) -> None:
        self._key = key
        self._reuses = reuses
        self._given: Sequence[T] | None = None
        self._latest: tuple[T, ...] = ()
        self._known: dict[Hashable, T] = {}
        self._ids: frozenset[int] = frozenset()  # of the objects in the latest list, which keeps them alive

    def of(self, records: Sequence[T]) -> Sequence[T]:
        """Return the records, with the earlier objects of those that are unchanged.

        The whole list is the same object as the one before if it has the same records in the same order.
        """
        if not self._reuses:
            return records
        if self._given is not records:
            key, found = self._key, list(records)
            is_new = map(not_, map(self._ids.__contains__, map(id, records)))
            for position in compress(range(len(found)), is_new):
                before = self._known.get(key(found[position]))
                if before is not None and before == found[position]:
                    found[position] = before
            if len(found) != len(self._latest) or any(map(is_not, found, self._latest)):
                self._latest = tuple(found)
                self._known = dict(zip(map(key, found), found, strict=True))
                self._ids = frozenset(map(id, found))
            self._given = records
        return self._latest


def differing(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    """Return the keys with another object after than before; those that are new or gone are among them."""
    if before is after:
        return set()
    found = set(compress(after, map(is_not, map(before.get, after), after.values())))
    return found.union(before.keys() - after.keys())


def patched(before: Mapping[str, T], without: Iterable[str], having: Mapping[str, T]) -> dict[str, T]:
    """Return a copy of a mapping without some keys, and with other values; new keys come last.

    A key that is both in ``without`` and in ``having`` keeps its place, with its other value.
    """
    found = dict(before)
    for key in without:
        if key not in having:
            found.pop(key, None)
    found.update(having)
    return found


def in_order_of(keys: Iterable[str], found: dict[str, T]) -> dict[str, T]:
    """Return the mapping in the order of some keys, all of which it has, and without its other keys.

    It is the same object where it has just these keys in that order.
    """
    wanted = list(keys)
    return found if list(found) == wanted else {key: found[key] for key in wanted}


def unchanged(before: Mapping[str, T], after: Mapping[str, T]) -> Mapping[str, T]:
    """Return ``after`` with the earlier objects of the values that are equal to those before.

    The whole is the same object as before if it has the same keys and values in the same order.
    """
    found = {
        key: value if (known := before.get(key)) is None or known != value else known for key, value in after.items()
    }
    return before if found == before and list(found) == list(before) else found
