"""Paths of the files of slurm_scripts/: in a checkout, or where pip installs them."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import metasched
from metasched.core.errors import MetaschedError


class NotInstalledError(MetaschedError):
    """A file of the distribution is missing."""

    def __init__(self, name: str, folders: list[Path]) -> None:
        super().__init__(f"{name} is not in {', '.join(map(str, folders))}; install metasched again")


def slurm_script(name: str) -> Path:
    """Return the path of a file of slurm_scripts/; raises NotInstalledError where no known folder has the file."""
    folders = [
        Path(metasched.__file__).parents[1] / "slurm_scripts",
        Path(sysconfig.get_path("data")) / "share" / "metasched" / "slurm_scripts",
        Path(sysconfig.get_path("scripts")),
    ]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    if (program := shutil.which(name)) is not None:
        return Path(program)
    raise NotInstalledError(name, folders)
