"""Reading of pickled states without running code of other users.

A pickle may run any code in the process that loads it. So states are loaded with ``weights_only=True`` first, which
admits tensors, plain containers and the classes listed here. What holds other classes is loaded only where nobody
but this user and root can have written it, or where the script consents.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pickle
import pwd
import stat
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

CONSENT = "trust_checkpoints=True"
"""The argument of `init`, `attach` and the integrations that lets states be loaded whoever could have written them."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OVERFLOW_UID = 65534  # the kernel's default for owners that a user namespace (a container) does not map
_ALL_UIDS = "4294967295"


def load_states(path: Path, map_location: Any = "cpu", *, trusted: bool = False) -> Any:
    """Return the content of a file that torch.save has written.

    Args:
        path: the file.
        map_location: as in torch.load.
        trusted: whether the script consents to load states of any class, whoever could have written the file.

    Raises:
        CheckpointError: the file holds other classes than those that are safe to load, and other users could have
            written it.
        OSError: the file cannot be read.
    """
    try:
        with _safe_classes():
            return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        if not trusted:
            require_trusted(path, f"it holds {', '.join(unsafe_classes(path)) or 'more than plain values'}")
    return torch.load(path, map_location=map_location, weights_only=False)


def require_trusted(path: Path, why_needed: str) -> None:
    """Check that nobody but this user and root can have written a file or directory; its files are not looked at.

    Raises:
        CheckpointError: others can; the message names the path and the option to consent.
    """
    why = why_untrusted(path)
    if why is not None:
        raise CheckpointError(
            f"{path}: {why}, and what others put there could run any code in this job ({why_needed}): take write "
            f"access from others (chmod go-w), or, if you trust everybody who has it, pass {CONSENT}; states of plain "
            "values, or of classes given to torch.serialization.add_safe_globals, need neither"
        )


def why_untrusted(path: Path) -> str | None:
    """Return who besides this user and root can have written a file or directory, in words; None for nobody.

    All directories above it count, because whoever may rename one may put another in its place; in a sticky directory
    only owners may. Write access of the group does not count where the user alone is in the group.
    """
    given = Path(os.path.abspath(path))  # noqa: PTH100  the directories of a link count, too
    real = given.resolve()
    for place in dict.fromkeys((given, real, *given.parents, *real.parents)):
        found = place.stat()
        for owner in (found.st_uid, place.lstat().st_uid):
            above = place not in {given, real}
            if owner not in {0, os.geteuid()} and not (above and _is_unmapped(owner)):
                return f"{place} belongs to {_user(owner)}"
        writable = found.st_mode & _OTHERS_WRITE
        if writable == stat.S_IWGRP and _is_private_group(found.st_gid):
            continue
        if writable and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            whom = "every user" if writable & stat.S_IWOTH else f"the group {_group(found.st_gid)}"
            return f"{whom} may write to {place}"
    return None


def unsafe_classes(path: Path) -> list[str]:
    """Return the classes in a file of torch.save that `load_states` loads from trusted files only.

    Torch before 2.6 cannot tell them: the list is then empty.
    """
    serialization: Any = torch.serialization
    if not hasattr(serialization, "get_unsafe_globals_in_checkpoint"):
        return []
    with _safe_classes():
        return sorted(serialization.get_unsafe_globals_in_checkpoint(path))


@contextlib.contextmanager
def _safe_classes() -> Iterator[None]:
    """Context manager: classes without side effects that states of optimizers, schedulers and metrics have."""
    serialization: Any = torch.serialization
    classes: list[Any] = [defaultdict, list, dict, set, *_numpy_classes()]
    if hasattr(serialization, "safe_globals"):
        with serialization.safe_globals(classes):
            yield
    else:  # torch 2.4
        serialization.add_safe_globals(classes)
        yield


def _numpy_classes() -> list[Any]:
    """Return what numbers and arrays of NumPy are pickled as, where the script has imported NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    multiarray: Any = sys.modules.get("numpy._core.multiarray") or sys.modules.get("numpy.core.multiarray")
    kinds = {type(numpy.dtype(kind)) for kind in ("?", *"bhilqBHILQefd")}
    return [numpy.ndarray, numpy.dtype, multiarray.scalar, multiarray._reconstruct, *kinds]  # noqa: SLF001  as torch's documentation does


def _is_private_group(gid: int) -> bool:
    """Return whether a group has this user as its only member, by its name: the user's own group."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _is_unmapped(uid: int) -> bool:
    """Return whether an owner is one that this process's user namespace does not know: of the host's directories."""
    if uid != _OVERFLOW_UID:
        return False
    try:
        return _ALL_UIDS not in Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except OSError:
        return False


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
