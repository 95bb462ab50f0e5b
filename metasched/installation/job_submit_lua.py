"""Slurm's job_submit.lua in the directory of slurm.conf, as far as this host can read that file."""

from __future__ import annotations

import re
from pathlib import Path

from metasched.core.errors import MetaschedError
from metasched.slurm.client import SlurmSettings


class OtherSharedError(MetaschedError):
    """job_submit.lua names another shared directory, where another daemon may hold another lock and schedule as well.

    Attributes:
        finding: both directories, by file and key.
        fix: what the admin has to do.
    """

    def __init__(self, named: str, shared: Path) -> None:
        self.finding = f"job_submit.lua has SHARED = {named!r}, the configuration [paths] shared = '{shared}'"
        self.fix = "make them the same"
        super().__init__(f"{self.finding}: another daemon may run there for this cluster; {self.fix}")


def read_plugin(settings: SlurmSettings) -> str | None:
    """Return the text of job_submit.lua; None where it cannot be read, or Slurm does not use it."""
    conf = settings.values.get("SLURM_CONF", "")
    if not conf or "lua" not in settings.job_submit_plugins:
        return None
    try:
        return (Path(conf).parent / "job_submit.lua").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def shared_dir_of(text: str) -> str | None:
    """Return the shared directory that a job_submit.lua names; None where it names none."""
    named = re.search(r"""^\s*local SHARED\s*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return None if named is None else named[1]


def check_shared(text: str, shared: Path) -> None:
    """Check that a job_submit.lua names the shared directory of the configuration, by this or another path, or none.

    Raises:
        OtherSharedError: the script names another directory.
    """
    named = shared_dir_of(text)
    if named is None:
        return
    try:
        same = Path(named).samefile(shared)
    except OSError:
        same = Path(named).resolve() == shared.resolve()
    if not same:
        raise OtherSharedError(named, shared)
