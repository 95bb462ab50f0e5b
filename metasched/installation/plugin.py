"""Slurm's job_submit.lua beside its slurm.conf, as far as this host can read it."""

from __future__ import annotations

import re
from pathlib import Path

from metasched.core.errors import MetaschedError
from metasched.slurm.client import SlurmSettings


class OtherSharedError(MetaschedError):
    """Jobs are told of another shared directory: two daemons, each with the lock of its own, would both schedule."""

    def __init__(self, named: str, shared: Path) -> None:
        super().__init__(
            f"job_submit.lua has SHARED = {named!r}, the configuration [paths] shared = '{shared}': another daemon may "
            "run there for this cluster; make them the same"
        )


def text_of(settings: SlurmSettings) -> str | None:
    """All of it; None where it cannot be read, or Slurm does not use it."""
    conf = settings.values.get("SLURM_CONF", "")
    if not conf or "lua" not in settings.job_submit_plugins:
        return None
    try:
        return (Path(conf).parent / "job_submit.lua").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def shared_of(text: str) -> str | None:
    """The shared directory that it names, as ours does; None where it names none."""
    named = re.search(r"""^\s*local SHARED\s*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return None if named is None else named[1]


def is_another(named: str, shared: Path) -> bool:
    """Whether the plugin's shared directory is not the configuration's, by whatever path either is reached."""
    try:
        return not Path(named).samefile(shared)
    except OSError:
        return Path(named).resolve() != shared.resolve()


def refuse_another(settings: SlurmSettings, shared: Path) -> None:
    """Make sure that jobs are not told of another shared directory.

    Raises:
        OtherSharedError: they are.
    """
    named = shared_of(text_of(settings) or "")
    if named is not None and is_another(named, shared):
        raise OtherSharedError(named, shared)
