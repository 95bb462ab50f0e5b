"""The job_submit.lua beside slurm.conf, where this host can read it: does it name the same shared directory?"""

from __future__ import annotations

import re
from pathlib import Path

from metasched.core.errors import MetaschedError
from metasched.slurm.client import SlurmSettings


class OtherSharedError(MetaschedError):
    """job_submit.lua names another shared directory: two daemons, each with its own lock, would both schedule."""

    def __init__(self, named: str, shared: Path) -> None:
        super().__init__(
            f"job_submit.lua has SHARED = {named!r}, the configuration [paths] shared = '{shared}': another daemon may "
            "run there for this cluster; make them the same"
        )


def read_plugin(settings: SlurmSettings) -> str | None:
    """Read job_submit.lua; None where it cannot be read, or Slurm does not use it."""
    conf = settings.values.get("SLURM_CONF", "")
    if not conf or "lua" not in settings.job_submit_plugins:
        return None
    try:
        return (Path(conf).parent / "job_submit.lua").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def shared_dir_of(text: str) -> str | None:
    """Return the shared directory (``local SHARED``) of a job_submit.lua; None where the script names none."""
    named = re.search(r"""^\s*local SHARED\s*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return None if named is None else named[1]


def is_other_directory(named: str, shared: Path) -> bool:
    """Whether the script's shared directory differs from the configuration's; two paths of one directory do not."""
    try:
        return not Path(named).samefile(shared)
    except OSError:
        return Path(named).resolve() != shared.resolve()


def refuse_another(settings: SlurmSettings, shared: Path) -> None:
    """Refuse a job_submit.lua that gives jobs another shared directory than the configuration's.

    Raises:
        OtherSharedError: the directories differ.
    """
    named = shared_dir_of(read_plugin(settings) or "")
    if named is not None and is_other_directory(named, shared):
        raise OtherSharedError(named, shared)
