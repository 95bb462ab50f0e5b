"""The fence: each start of a trainer on a checkpoint directory claims the next generation, a number from 1.

Slurm may start a job again while an old trainer still lives (a lost node, a crashed controller). Claims are files
created exclusively, which works on every shared file system in use. They are never removed, so that a higher number
proves that a newer trainer has started.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

from trainer_shim.checkpointing.atomic_files import create_exclusively, sync_directory

if TYPE_CHECKING:
    from pathlib import Path


def generations_directory(checkpoints: Path) -> Path:
    """Return the directory of the claimed generations, below a checkpoint directory.

    On disk and in reports a generation is called an incarnation, its name in earlier versions: older checkpoint
    directories are read, and the names that the daemon reads are unchanged.
    """
    return checkpoints / "incarnations"


def highest_generation(directory: Path) -> int:
    """Return the newest generation that was claimed in the directory, 0 without one.

    The directory is listed instead of testing for one name, because NFS clients cache that a name does not exist.
    """
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def claim_generation(directory: Path, above: int) -> int:
    """Claim the lowest free generation that is higher than every other and than `above`, and return it.

    Raises:
        OSError: the directory cannot be written; nothing was claimed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sync_directory(directory.parent)
    # The content is for people only.
    text = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "claimed": time.time()})
    while True:
        above = max(highest_generation(directory), above)
        try:
            create_exclusively(directory / str(above + 1), text)
        except FileExistsError:  # another trainer was faster
            above += 1
        else:
            return above + 1
